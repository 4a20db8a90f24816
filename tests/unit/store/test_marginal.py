"""Which drift is marginal at the end of a run: one element just outside an estimated budget, in few cases of one operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import stored
from cases import verdict_on
from torch import Tensor

from parity import tolerance
from parity.checks.check import Result
from parity.core.results import Aspect, Cause, Measure, Record, Status, Verdict
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.cases import is_near
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.merging import merged
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.findings.causes import gather
from parity.findings.verdict import RunResult
from parity.store import marginal, run_file
from parity.store.rows import Death, End, ItemRow, Run, totals

NEAR, FAR = 3.8e-6, 9e-6  # relative errors of 1.3 and 3.1 budgets of silu in float32
# Operators, and relative errors of 1.2 to 1.9 budgets of theirs.
OPS = {
    "silu": NEAR, "mish": NEAR, "elu": NEAR, "sinc": NEAR, "gelu": 8e-6, "glu": 8e-6, "lerp": 8e-6, "softplus": 6e-6,
}  # fmt: skip

# ---------------------------------------------------------------------------------------------- what the judge says of a case

MISH = "mish(bfloat16[2048].between(-3, 3))"


def scaled(x: Tensor, factor: float, first: int = 0, count: int = 1) -> Tensor:
    x.view(-1)[first : first + count] *= factor
    return x


def near(text: str, change: Callable[[Tensor], Tensor]) -> tuple[bool, Verdict]:
    v = verdict_on(text, change)
    assert v.status is Status.DRIFT
    assert v.measure is not None
    return v.near, v


def test_one_element_within_twice_an_estimate_is_near() -> None:
    said, v = near("silu(float32[2048].between(1, 3))", partial(scaled, factor=1 + NEAR))
    assert said
    assert 1.0 < ((v.measure and v.measure.share) or 0.0) < 2.0
    healthy = verdict_on("silu(float32[2048].between(1, 3))", lambda x: x)
    assert (healthy.status, healthy.near) == (Status.AGREE, False)


@pytest.mark.parametrize(
    "text, change",
    [
        pytest.param("silu(float32[2048].between(1, 3))", partial(scaled, factor=1 + FAR), id="more than twice"),
        pytest.param("silu(float32[108].between(1, 3))", partial(scaled, factor=1 + NEAR, count=104), id="104 of 108"),
        pytest.param("silu(float32[1999].between(1, 3))", partial(scaled, factor=1 + NEAR, count=2), id="2 of 1999"),
        pytest.param("exp(float32[2048].between(-3, 3))", partial(scaled, factor=1 + 1e-6), id="a published bound"),
        pytest.param("sum(float32[64, 2048].between(0, 1), -1)", partial(scaled, factor=1 + 6e-6), id="the terms of a sum"),
        pytest.param(MISH, lambda x: x * 1.005, id="a common factor, though one element is outside"),
        pytest.param(
            "silu(float32[2048].between(1, 3))", lambda x: scaled(x * (1 + 2.3e-6), 1 + 2e-6), id="all far from exact"
        ),
    ],
)
def test_what_says_more_is_not_near(text: str, change: Callable[[Tensor], Tensor]) -> None:
    said, _ = near(text, change)
    assert not said


def test_two_of_two_thousand_are_near() -> None:
    assert near("silu(float32[2000].between(1, 3))", partial(scaled, factor=1 + NEAR, count=2))[0]


def test_an_exact_result_is_never_near() -> None:
    assert not verdict_on("neg(float32[2048].between(-3, 3))", partial(scaled, factor=1 + 3e-7)).near


@pytest.mark.parametrize("unjudged, said", [(0, True), (1000, True), (1990, False)])
def test_elements_that_were_not_judged_are_no_witnesses(unjudged: int, said: bool) -> None:
    m = Measure("out", 1.3, mismatched=1, total=2000, unjudged=unjudged, problem="value")
    assert is_near(Result(Aspect.FORWARD, Verdict(Status.DRIFT, measure=m, near=True))) is said


# ------------------------------------------------------------------------------------------------------- planted faults


def examined(op: str, error: float, results: int = 1, elements: int = 1, seed: str = "0", derived: bool = False) -> Examined:
    """An item of which the first results of some size are off by this relative error in so many elements, in every call that
    computes them. derived: with its derivatives, which say no more, but draw other cases."""
    struck = set[tuple[float, ...]]()

    def off(call: Call) -> Tensor:
        out: Tensor = call.run()
        seen = (out.numel(), float(out.sum()))
        if out.numel() >= 100 and out.is_contiguous() and (seen in struck or len(struck) < results):
            struck.add(seen)
            out.view(-1)[out.view(-1).abs().argsort(descending=True)[:elements]] *= 1.0 + error
        return out

    sim = resolve("sim", (Fault("off", (op,), off),))
    options = RunOptions(examples=40, seed=seed, skip=("shrink",))
    plan = RunPlan(sim, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options)
    row = suite.row(op) if derived else replace(suite.row(op), grad=())
    return examine(suite.Item(row, "float32"), plan, NoJournal())


def ended(*done: Examined) -> RunResult:
    """The end of a run that examined these."""
    records, items = marginal.settled([r for d in done for r in d.records], [d.summary for d in done])
    return RunResult(items, records)


def count(result: RunResult) -> Counter[str]:
    return totals(result.items)


def test_an_item_says_drift_and_the_run_marginal() -> None:
    """So a suite under pytest alone fails, and a run that has no more of it does not."""
    done = examined("silu", NEAR)
    assert {f.result.verdict.status for f in done.findings} == {Status.DRIFT}
    assert {r.status for r in done.records} == {"agree", "drift"}
    result = ended(done)
    assert (count(result)["marginal"], count(result)["drift"], result.exit_code) == (len(done.findings), 0, 0)
    assert result.marginal == ("silu-float32",)
    assert not gather(result.records)
    failing = replace(result, fail_on=(Status.MARGINAL,))
    assert [(u.status, u.checks) for u in failing.unwanted] == [("marginal", len(done.findings))]
    assert failing.exit_code == 1


def test_a_healthy_device_has_nothing_marginal() -> None:
    result = ended(examined("silu", NEAR, 0))
    assert {*count(result)} == {"agree"}
    assert replace(result, fail_on=(Status.MARGINAL,)).exit_code == 0


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param({"error": 4.5e-6, "results": 9}, id="in three cases"),
        pytest.param({"error": FAR}, id="more than twice the budget"),
        pytest.param({"error": NEAR, "elements": 104}, id="in most elements of one tensor"),
    ],
)
def test_a_fault_that_says_more_fails(planted: Any) -> None:
    result = ended(examined("silu", **planted))
    assert result.exit_code == 1
    assert not count(result)["marginal"]


@pytest.mark.slow
def test_a_fault_spread_over_eight_operators_fails() -> None:
    """Each of them alone is marginal."""
    seeds = {"softplus": "1"}  # with the usual one the call that is struck is made before a case, and not compared
    done = [examined(op, error, seed=seeds.get(op, "0"), derived=True) for op, error in OPS.items()]
    assert [(count(ended(d))["marginal"] > 0, ended(d).exit_code) for d in done] == [(True, 0)] * 8
    result = ended(*done)
    assert (result.exit_code, count(result)["marginal"]) == (1, 0)


# ---------------------------------------------------------------------------------------------------- the end of a run


ONE = Measure("out", 1.3, mismatched=1, total=100, problem="value")


def found(case: str = "f(float32[99])", op: str = "silu", dtype: str = "float32", **more: Any) -> Record:
    """A near finding with its cause."""
    made = Record(case, op, dtype, "forward", "drift", reason="1.3 times the budget", measures=(ONE,), shrunk=case, count=1)
    return replace(made, cause=Cause(f"aten::{op}", "values"), near=(case,), **more)


def item(op: str = "silu", dtype: str = "float32", drift: int = 1, agree: int = 900, judged: int = 9000) -> ItemRow:
    return ItemRow(op, dtype, 9, {"forward": {"agree": agree, "drift": drift}}, judged=judged)


def statuses(records: list[Record], items: list[ItemRow]) -> set[str]:
    """The statuses of records and items, which must say the same."""
    settled, counted = marginal.settled(records, items)
    assert {s for i in counted for c in i.counts.values() for s in c} - {"agree"} == {r.status for r in settled}
    return {r.status for r in settled}


def test_what_no_other_case_speaks_against_is_marginal() -> None:
    """In several passes of one case, and in two cases of one draw of values."""
    assert statuses([found()], [item()]) == {"marginal"}
    passes = replace(item(), counts={a: {"agree": 9, "drift": 1} for a in ("forward", "backward")})
    assert statuses([found(), found(aspect="backward")], [passes]) == {"marginal"}
    two = [found(f"f(float32[{n}].normal(seed=7))") for n in (98, 99)]
    assert statuses(two, [item(drift=2)]) == {"marginal"}
    drawn = replace(found(), shrunk="", count=0)
    assert statuses([drawn, found()], [item()]) == {"marginal"}


OTHER = found("f(float32[98].normal(seed=8))")


@pytest.mark.parametrize(
    "records, items",
    [
        pytest.param([found(f"f(float32[{n}])") for n in (97, 98, 99)], [item(drift=3)], id="three cases"),
        pytest.param([found(), OTHER], [item(drift=2)], id="two draws of values"),
        pytest.param([found(), replace(OTHER, dtype="float16")], [item(), item(dtype="float16")], id="of two dtypes"),
        pytest.param([found(), replace(OTHER, near=())], [item(drift=2)], id="and one that is not near"),
        pytest.param([found(), replace(found("g"), near=(), known="k")], [item(drift=2)], id="and one that is known"),
        pytest.param([replace(found(), measures=(Measure("out", 3.0),))], [item()], id="a mark that its error contradicts"),
        pytest.param([replace(found(), count=2)], [item(drift=2)], id="a mark without one of its cases"),
        pytest.param([replace(found(), shrunk="", near=("f(float32[9])",))], [item()], id="a mark of another case"),
        pytest.param([replace(found(), measures=(replace(ONE, mismatched=2),))], [item()], id="more elements than one"),
        pytest.param([replace(found(), measures=(replace(ONE, problem="lean"),))], [item()], id="what elements share"),
        pytest.param([found(), found(op="mish", gone=True)], [item(), item("mish", drift=0)], id="one that was not reproduced"),
        pytest.param([found()], [item(judged=999)], id="more than one of a thousand elements"),
        pytest.param([found()], [item(drift=2)], id="a check that drifts without a record"),
        pytest.param([found(op="silu"), found(op="mish")], [item(), item("mish")], id="two operators of a small run"),
        pytest.param(
            [found(op=op) for op in OPS], [item(op, agree=1_000_000) for op in OPS], id="eight operators of a large one"
        ),
    ],
)
def test_what_speaks_against_it_drifts(records: list[Record], items: list[ItemRow]) -> None:
    assert statuses(records, items) == {"drift"}


def test_a_large_run_may_have_as_many_as_an_honest_device() -> None:
    ops = [*OPS][:4]
    assert statuses([found(op=op) for op in ops], [item(op, agree=50_000) for op in ops]) == {"marginal"}
    assert statuses([found(op=op) for op in ops], [item(op, agree=30_000) for op in ops]) == {"drift"}


def test_operators_with_one_cause_are_one_operator() -> None:
    """Rows of other sources and modules call the same kernel: each of them alone would be marginal."""
    ops = "silu", "opinfo:nn.functional.silu", "module:SiLU"
    items = [item(op, agree=60_000) for op in ops]
    records = [found(f"f(float32[{n}].normal(seed={n}))", op) for n, op in enumerate(ops, 97)]
    assert statuses(records, items) == {"marginal"}
    one = [replace(r, cause=Cause("aten::silu", "values")) for r in records]
    assert statuses(one, items) == {"drift"}
    assert statuses(one[:1], items[:1]) == {"marginal"}


def test_an_operator_that_ended_a_process_drifts() -> None:
    """Known or not."""
    for op, then in (("silu", "drift"), ("mish", "marginal")):
        death = Death(op, "float16", "g(float16[9])", how="crash", blame="device", known="k")
        records, _ = marginal.settled([found()], [item()], [death])
        assert [r.status for r in records] == [then]


def test_a_known_finding_stays_what_it_is() -> None:
    """An item takes it as drift, before anyone knows whether the run would call it marginal."""
    assert statuses([replace(found(), known="silu-1")], [item()]) == {"drift"}


# --------------------------------------------------------------------------------------------------------- stored runs


def run(records: list[Record], items: list[ItemRow], shard: str = "", **end: Any) -> Run:
    whole = stored.run()
    header = replace(whole.header, shard=shard)
    last = End(1.0, dict(totals(items)), **({"expected": len(items)} | end))
    return Run(header, tuple(records), tuple(items), end=last)


def reread(path: Path, one: Run) -> Run:
    run_file.write(path, one)
    return run_file.read(path, partial=True)


def test_the_reader_of_a_whole_run_decides(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    read = reread(path, run([found()], [item()]))
    assert (read.records[0].status, read.items[0].counts["forward"]) == ("marginal", {"agree": 900, "marginal": 1})
    assert '"status":"drift"' in path.read_text()
    assert '"near":["f(float32[99])"]' in path.read_text()
    older = path.read_text().replace(',"near":["f(float32[99])"]', "")
    path.write_text(older)
    assert run_file.read(path).records[0].status == "drift"


def test_a_part_of_a_run_drifts(tmp_path: Path) -> None:
    """A shard, a run that was cut, and one without its end."""
    path = tmp_path / "a.jsonl"
    assert reread(path, run([found()], [item()], stopped="interrupted")).records[0].status == "drift"
    assert reread(path, run([found()], [item()], "1/2")).records[0].status == "drift"
    assert reread(path, run([found()], [item()], "1/1")).records[0].status == "marginal"
    assert reread(path, replace(run([found()], [item()]), end=None)).records[0].status == "drift"


def test_merged_shards_are_decided_over_all_of_them(tmp_path: Path) -> None:
    """Each shard alone is red; the whole is green with one, and red with what only all of them show."""

    def shards(*more: Record) -> list[tuple[Path, Run]]:
        parts = [([found()], [item()]), ([*more], [item("mish", drift=len(more)), item(dtype="float16")])]
        parts[1][1][1] = item(dtype="float16", drift=0)
        return [(tmp_path / f"{k}", reread(tmp_path / f"{k}", run(*p, f"{k}/2"))) for k, p in enumerate(parts, 1)]

    one, two = shards(), shards(found(op="mish"))
    assert [r.status for _, x in (*one, *two) for r in x.records] == ["drift"] * 3
    assert [r.status for r in reread(tmp_path / "m", merged(one)).records] == ["marginal"]
    assert [r.status for r in reread(tmp_path / "m", merged(two)).records] == ["drift"] * 2
    partly = merged(one[:1], partial=True)
    assert [r.status for r in reread(tmp_path / "m", partly).records] == ["drift"]
