"""What comparing a small pair that agrees costs, against torch.testing.assert_close: `python tests/bench/compare.py`.

parity's ways out for a pair that agrees: "equal" (the bits are the reference's: the whole of `judge`, which the
suite calls, ends there), "public" (the same pair through `parity.compare`, which people call: with the function and its inputs)
and "truth" (the bits differ by a rounding, the truth is known: the cheap screen). With them `bit_equal` alone. All are timed
in turn, in one run, so that a slow moment of the machine meets all; the least and the median of all rounds are said. The ratios
are those of the least times. The pair of "truth" is also what assert_close compares there. Integers know no rounding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import parity
from parity import catalog, tolerance
from parity.core.case import Case, TensorSpec, Values
from parity.devices import resolve
from parity.execution import execute as ex
from parity.execution.inputs import build
from parity.judging.bench import Bench
from parity.judging.judge import judge
from parity.judging.measures import bit_equal, bits
from parity.oracle.oracle import CaseOracle

SIZES = (12, 64, 1000)
DTYPES = ("float32", "float16", "complex64", "int64")
OPS = {"add": 2, "tanh": 1, "cumsum": 1}  # one of each rule: number of operands. cumsum is a sum, tanh a function
TARGET = 0.1
RATIOS = {"equal": "equal", "public": "equal", "truth": "truth"}  # which pair assert_close compares beside it
Work = Callable[[], object]


def pair(op: str, dtype: str, n: int) -> tuple[Bench, Tensor, Tensor | None, tuple[Tensor, ...]]:
    """(what the judge knows, the reference's result, a device's that differs in the last bit of every fourth element, or None
    for integers, the operands)."""
    operands = tuple(
        TensorSpec(dtype, (n,), values=Values("normal" if dtype != "int64" else "uniform", seed=k)) for k in range(OPS[op])
    )
    case = Case(op, dtype, (*operands, 0) if op == "cumsum" else operands)
    row, inputs = catalog.row(op), build(case)
    program = ex.program(row)
    ((_, reference),) = ex.forward(program, case, inputs, ex.place(inputs, resolve("cpu")), False).outputs
    oracle = CaseOracle(program, case, inputs, reference.dtype)
    bench = Bench(row, tolerance.load("cpu"), oracle, None, False)
    given = tuple(o.view for o in inputs.operands)
    if dtype == "int64":
        return bench, reference, None, given
    truth = oracle.truth("out")
    assert truth is not None  # all three run in float64
    exact = truth.to(reference.dtype)
    other = exact.clone()
    bits(other)[::4] ^= 1  # shares memory: all are contiguous
    return bench, reference, other, given


def works(op: str, dtype: str, n: int) -> dict[str, Work]:
    """The calls to time. Raises AssertionError where a pair does not take the way that it stands for."""
    bench, reference, other, given = pair(op, dtype, n)
    function, more = getattr(torch, op), (0,) if op == "cumsum" else ()
    same = {"out": reference.clone()}
    ours = {"out": reference}
    found: dict[str, Work] = {
        "bit_equal": lambda: bit_equal(same["out"], reference),
        "equal": lambda: judge(bench, same, ours, "forward"),
        "public": lambda: parity.compare(function, same["out"], reference, *given, *more),
        "assert_close equal": lambda: torch.testing.assert_close(same["out"], reference, equal_nan=True),
    }
    verdict, (m,) = judge(bench, same, ours, "forward")
    assert verdict.status == "agree"
    assert m.screen in ("bit-equal", "exact")
    assert not parity.compare(function, same["out"], reference, *given, *more).findings
    if other is not None:
        near = {"out": other}
        verdict, (m,) = judge(bench, near, ours, "forward")
        assert verdict.status == "agree"

        def anew() -> object:
            bench.verdicts.clear()  # the judge remembers what he said of these very bits
            return judge(bench, near, ours, "forward")

        found["truth"] = anew
        found["assert_close truth"] = lambda: torch.testing.assert_close(other, reference, rtol=1e-2, atol=1e-2, equal_nan=True)
    return found


def timed(calls: dict[str, Work], rounds: int, number: int) -> dict[str, list[float]]:
    """Microseconds per call, a list over the rounds, all calls in turn in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(timeit.timeit(call, number=number) / number * 1e6)
    return times


def line(op: str, dtype: str, n: int, rounds: int, number: int) -> dict[str, Any]:
    """One pair's figures in microseconds."""
    times = timed(works(op, dtype, n), rounds, number)
    found: dict[str, Any] = {"op": op, "dtype": dtype, "elements": n}
    for name, t in times.items():
        found[name] = {"min": min(t), "median": statistics.median(t)}
    for way, peer in RATIOS.items():
        if way in found:
            found[f"{way} ratio"] = found[way]["min"] / found[f"assert_close {peer}"]["min"]
    return found


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 where a ratio is above a tenth."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--rounds", type=int, default=30, help="rounds of every call (30)")
    p.add_argument("--number", type=int, default=50, help="calls per round (50)")
    p.add_argument("--size", action="append", type=int, help="elements (default: 12, 64, 1000)")
    p.add_argument("--output", type=Path, help="write the figures here as JSON")
    o = p.parse_args(argv)
    torch.set_num_threads(1)
    lines = []
    print(f"torch {torch.__version__}, microseconds per call: least (median) of {o.rounds} rounds of {o.number} calls")
    print(
        f"{'op':8}{'dtype':10}{'n':>5}{'bit_equal':>14}{'equal':>14}{'public':>14}{'assert_close':>16}{'equal':>7}{'public':>7}"
        f"{'truth':>18}{'assert_close':>16}{'ratio':>7}"
    )
    for op in OPS:
        for dtype in DTYPES:
            if dtype not in catalog.row(op).dtypes:
                continue
            for n in o.size or SIZES:
                found = line(op, dtype, n, o.rounds, o.number)
                lines.append(found)
                cells = "".join(f"{_cell(found.get(k)):>14}" for k in ("bit_equal", "equal", "public"))
                cells += f"{_cell(found['assert_close equal']):>16}{found['equal ratio']:7.2f}{found['public ratio']:7.2f}"
                if "truth" in found:
                    cells += f"{_cell(found['truth']):>18}{_cell(found['assert_close truth']):>16}{found['truth ratio']:7.2f}"
                print(f"{op:8}{dtype:10}{n:5}{cells}", flush=True)
    worst = {way: max((x[f"{way} ratio"] for x in lines if f"{way} ratio" in x), default=0.0) for way in RATIOS}
    print("largest ratio to assert_close: " + ", ".join(f"{w} {v:.2f}" for w, v in worst.items()) + f" (target {TARGET:g})")
    if o.output:
        o.output.write_text(json.dumps({"worst": worst, "pairs": lines}, indent=1))
    return 1 if max(worst.values()) > TARGET else 0


def _cell(t: dict[str, float] | None) -> str:
    return "" if t is None else f"{t['min']:.1f} ({t['median']:.1f})"


if __name__ == "__main__":
    sys.exit(main())
