"""Stored runs made by hand, for tests of what is said of a run."""

from __future__ import annotations

from dataclasses import replace

from parity.core.results import Cause, Fingerprint, Measure, Record
from parity.store.code import Code
from parity.store.features import Coverage
from parity.store.rows import Death, End, Header, ItemRow, Power, Run, totals

EVIL = "<script>window.evil = 1</script><img src=x onerror='window.evil=1'>\"'&`|{{ 1 }}%0A\\"
MEASURE = Measure(
    "out", 37.2, 0.5, True, index=(0, 1), device="1.5", reference="1", truth="1.01", mismatched=1, total=2, problem="value",
    budget=(("rounding", 0.5), ("sum", 1.5)), shape=(1, 2), errors="br", bins=(0, 1, *[0] * 15, 1, *[0] * 6),
)  # fmt: skip
LARGER = replace(MEASURE, shape=(4, 6), errors="aaarrr" * 4, bins=(12, *[0] * 16, 12, *[0] * 6), mismatched=12, total=24)


def run(evil: str = "") -> Run:
    """Five ops: one wrong in two passes, one that agrees, one refused, one that fell back, one that ended the process."""
    f = Fingerprint(
        "0.1.0", "2.13.0", "cf30", "3.11.7", "Linux" + evil, "x86_64", "sim", "simulated" + evil, "1" + evil, True,
        (("PYTORCH_X", "1" + evil),), (("math", "precise" + evil),),
    )  # fmt: skip
    m = replace(MEASURE, tensor="out" + evil, budget=(("rounding" + evil, 0.5), ("sum", 1.5)), why="why" + evil)
    cause = Cause("aten::exp" + evil, "values", ("offset operand" + evil,))
    records = (
        Record("exp(float32[2])", "exp", "float32", "forward", "wrong", reason="37.2 times" + evil, origin="table" + evil,
               measures=(m,), shrunk="exp(float32[2])", cause=cause),
        Record("exp(float32[3])" + evil, "exp", "float32", "backward", "drift", reason="2 times", measures=(m,),
               shrunk="exp(float32[3])" + evil, cause=cause),
        Record("exp(float32[4, 6])" + evil, "exp", "float32", "forward", "wrong", measures=(replace(LARGER, tensor=m.tensor),)),
        Record("cos(float32[2])", "cos", "float32", "forward", "agree", measures=(replace(MEASURE, share=0.3),)),
    )  # fmt: skip
    items = (
        ItemRow("exp", "float32", 4, {"forward": {"wrong": 1, "agree": 1}, "backward": {"drift": 1, "agree": 1}},
                {"forward": 37.2, "backward": 2.0}, {"reason" + evil: 1}, judged=90, left={"why" + evil: 10}),
        ItemRow("exp", "int64", 2, {"forward": {"agree": 2}}, {"forward": 0.0}),
        ItemRow("cos" + evil, "float32", 2, {"forward": {"agree": 2}}, {"forward": 0.3}, judged=10),
        ItemRow("mode", "int64", 1, {"forward": {"unsupported": 1}}),
        ItemRow("pinv", "float32", 3, {"forward": {"fallback": 1, "agree": 2}}, {"forward": 0.1}),
    )  # fmt: skip
    deaths = (Death("sin", "float32", "sin(float32[2])", signal="SIGABRT in a kernel" + evil, stage="device", why="it" + evil),)
    powers = (Power("exp", "float32", "forward", "every element by half", {"seen": 3}, ("why" + evil,)),)
    drawn = (Coverage("unary" + evil, 9, {"into rows": 2, "special nan": 3}, {"into rows": {"special nan": 2}}),)
    header = Header(f, "0" + evil, "quick", "all" + evil, "2026-01-01T00:00:00+00:00", faults=Code("faults.py" + evil))
    return Run(header, records, items, deaths, End(1.5, dict(totals(items)), expected=5), drawn, powers)


def large() -> Run:
    """200,000 checks of 800 ops in 10 dtypes, with 450 findings of 120 causes, each with the largest picture that there is."""
    dtypes = ("float32", "float16", "bfloat16", "complex64", "int8", "int16", "int32", "int64", "uint8", "bool")
    counts = {
        "forward": {"agree": 15, "wrong": 1},
        "backward": {"agree": 5},
        "out=": {"agree": 3},
        "in-place": {"unsupported": 1},
    }
    items = tuple(
        ItemRow(f"an_op_of_some_length_{k}", d, 25, counts, {"forward": 0.01 * k, "backward": 0.001 * k}, judged=10_000)
        for k in range(800)
        for d in dtypes
    )
    m = replace(MEASURE, shape=(48, 48), errors="abcdrsx-" * 72, bins=(1000, *[50] * 23), total=2304, index=(3, 7))
    base = run().records[0]
    records = []
    for k in range(1, 451):
        cause = Cause(f"aten::{k % 120}", "values")
        op, case = f"an_op_of_some_length_{k}", f"exp(float32[{k}])"
        records.append(replace(base, op=op, shrunk=case, measures=(m,), cause=cause))
    end = End(300.0, dict(totals(items)), expected=len(items))
    return replace(run(), items=items, records=tuple(records), deaths=(), end=end)
