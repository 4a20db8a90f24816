"""Negative controls: honest devices under the suite's own generator. `python -m tests.bench honest controls -n 2`.

Each item of the catalog is examined on a simulated device that differs from the CPU only as healthy devices do
(`sim:honest`), in rounds with other seeds and in another order, until enough checks were made or the time is up. A
finding is a false alarm of the judge. With `--device sim:mps` the operators and the tables are MPS's, and subnormal numbers
are flushed. A check is one aspect of one case, judged against the CPU. It prints the checks per class, how many of them were
not bit-equal to the CPU (a kernel that rounds once to a half type, as devices do, mostly is: `--dtype float32 --dtype
complex64` measures the others), how often each kind of honesty occurred, how much of the ULP bounds was used, and every
finding. The exit code is 1 where there is a finding, or a kind that never occurred, or where fewer than half of the checks of
contractions, reductions and functions that could differ did: an empty result, or one that the dtype holds exactly in every
element, has the same bits on every right device, and how many of these are drawn says nothing about the judge.

`--json FILE` keeps the counts; `--merge FILE FILE ...` prints the sum of several such files and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest import mock

import front
import torch
from front import Apart
from torch import Tensor

from parity import tolerance
from parity.catalog.row import Row
from parity.checks import trial
from parity.core import notation
from parity.core.case import OpClass
from parity.core.results import Status
from parity.devices import resolve
from parity.devices.sim import honest
from parity.devices.sim.honest import rounding
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.suite import Item
from parity.judging.judge import judge
from parity.judging.sameness import bit_equal

SIZE = 6  # cases per item and round
INEXACT = ("float32", "float16", "bfloat16", "complex64")
FLOATS = tuple(getattr(torch, d) for d in INEXACT)
# Classes of which, together, at least half of the checks must not be bit-equal to the CPU.
ROUNDED = ("contractions", "reductions and scans", "elementwise functions")
CLASSES = {OpClass.CONTRACTION: "contractions", OpClass.ELEMENTWISE: "elementwise functions", OpClass.COMPOSITE: "composites"}
UNDRAWN = ("order-unique",)  # the catalog asks for distinct values in order only
# What the operators of MPS never reach: it has no kernel of these.
BEYOND_MPS = ("phases-eigh", "phases-eig")


@dataclass(slots=True)
class Counted:
    """What one item came to, or several. checks, unequal, bound: by class (bound: equal, because no result could differ);
    answered, changed, reached: as `tally` has them; ended: items that ended the process; seeds: device, seed and rounds of each
    run."""

    checks: Counter[str] = field(default_factory=Counter)
    unequal: Counter[str] = field(default_factory=Counter)
    bound: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    reached: dict[str, float] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[str] = field(default_factory=list)

    def add(self, other: Counted) -> None:
        """Take another's counts in."""
        for f in fields(Counted):
            own, more = getattr(self, f.name), getattr(other, f.name)
            if isinstance(own, Counter):
                own.update(more)
            elif isinstance(own, list):
                own += more
            else:
                own.update({k: max(v, own.get(k, 0.0)) for k, v in more.items()})


def kind(row: Row, dtype: str, pass_: str) -> str:
    """The class that a check counts for."""
    if dtype not in INEXACT:
        return "integer and bool operands"
    if pass_ == "backward":
        return "gradients"
    if row.rule is OpClass.CONTRACTION and row.family in ("reductions", "scans"):
        return "reductions and scans"
    return CLASSES.get(row.rule, str(row.rule.value))


def counting(result: Counted, dtype: str) -> Callable[..., Any]:
    """The judge, who also counts the comparisons, and those in which any bit differs."""

    def judged(bench: Any, device: Mapping[str, Tensor], reference: Mapping[str, Tensor] | None, pass_: str, *more: Any) -> Any:
        verdict, measures = judge(bench, device, reference, pass_, *more)
        if verdict.status is not Status.VOID:
            where = kind(bench.row, dtype, pass_)
            result.checks[where] += 1
            unequal = reference is not None and any(_differ(x, reference[n]) for n, x in device.items() if n in reference)
            result.unequal[where] += unequal
            if where in ROUNDED and not unequal:
                result.bound[where] += all(_has_one_answer(bench, n, x) for n, x in device.items())
        return verdict, measures

    return judged


def unsteady(*args: Any) -> bool:
    """`trial._unsteady`, whose comparisons of the CPU with itself are not counted."""
    with mock.patch.object(trial, "judge", judge):
        return _unsteady(*args)


_unsteady = trial._unsteady


def _has_one_answer(bench: Any, name: str, x: Tensor) -> bool:
    """Whether a result has one right answer: it is empty, whole, or exactly a number of the dtype everywhere. A result whose
    truth is not known counts as one that could differ."""
    if not x.numel() or not (x.is_floating_point() or x.is_complex()):
        return True
    truth = bench.oracle.truth(name.removeprefix("base[").removesuffix("]") if name.startswith("base[") else name)
    if truth is None or x.dtype not in FLOATS:
        return False
    return bool(((truth.to(x.dtype).to(truth.dtype) == truth) | ~torch.isfinite(truth.abs())).all())


def _differ(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or not (a.is_floating_point() or a.is_complex()):
        return False
    return not bit_equal(a, b)


_plans: dict[tuple[str, str], RunPlan] = {}


def plan(device: str, seed: str, shrinks: bool) -> RunPlan:
    """The plan of one round in this process."""
    if (device, seed) not in _plans:
        front.in_one_thread()
        there = next((p.device for p in _plans.values()), None) or resolve(device, honest.FAULTS)
        tables = tolerance.load(device)
        options = RunOptions(seed=seed, examples=SIZE, skip=() if shrinks else ("shrink",))
        _plans[device, seed] = RunPlan(there, resolve("cpu"), tables, suite.profile("quick"), options)
    return _plans[device, seed]


def examined(work: tuple[str, str, str, str, bool]) -> Counted:
    """One item of one round: (device, seed, op, dtype, whether findings are shrunk)."""
    device, seed, op, dtype, shrinks = work
    item = Item(suite.row(op), dtype)
    result = Counted()
    rounding.reset()
    with mock.patch.object(trial, "judge", counting(result, dtype)), mock.patch.object(trial, "_unsteady", unsteady):
        done = examine(item, plan(device, seed, shrinks), NoJournal())
    for counts in done.summary.counts.values():
        result.statuses.update({str(s): n for s, n in counts.items()})
    result.answered.update(rounding.ANSWERED)
    result.changed.update(rounding.CHANGED)
    result.reached.update(rounding.REACHED)
    for f in done.findings:
        v = f.result.verdict
        found = {"item": item.id, "aspect": str(f.result.aspect), "status": str(v.status), "tensor": v.tensor}
        cases = {"case": notation.case_text(f.case), "first": notation.case_text(f.first)}
        result.findings.append({**found, "reason": v.reason, "count": f.count, **cases})
    return result


def told(f: Mapping[str, Any]) -> str:
    """A finding in two lines."""
    return f"  {f['item']} {f['aspect']} {f['status']} {f['tensor']}: {f['reason']} ({f['count']} cases)\n    {f['case']}"


def rounds(o: argparse.Namespace) -> Iterator[list[tuple[str, str, str, str, bool]]]:
    """The items, round after round with another seed, in an order of its own: the last round may be cut short."""
    items = suite.select(o.ops, dtypes=o.dtype)
    k = 0
    while True:
        seed = f"controls-{o.seed}-{k}"
        work = [(o.device, seed, i.row.name, i.dtype, not o.no_shrink) for i in items]
        random.Random(seed).shuffle(work)
        yield work
        k += 1


def run(o: argparse.Namespace) -> Counted:
    """Rounds until enough checks were made, or the time is up."""
    total, started = Counted(), time.monotonic()
    lanes = [Apart() for _ in range(o.n)]
    for k, work in enumerate(rounds(o)):
        waiting, done = iter(work), 0
        busy = {lane.ask(examined, one): (lane, one) for lane, one in zip(lanes, waiting)}
        while busy:
            for ready in wait(busy, return_when=FIRST_COMPLETED).done:
                lane, one = busy.pop(ready)
                try:
                    counted: Counted = ready.result()
                except BrokenProcessPool:  # the item ended its process
                    counted = Counted(ended=Counter({f"{one[2]}-{one[3]}": 1}))
                    lane.renew()
                total.add(counted)
                done += 1
                for f in counted.findings:  # at once: a long run may be stopped
                    print(told(f), flush=True)
                if time.monotonic() - started < o.seconds and (more := next(waiting, None)) is not None:
                    busy[lane.ask(examined, more)] = lane, more
        checks, spent = sum(total.checks.values()), time.monotonic() - started
        print(
            f"round {k}: {done} of {len(work)} items; {checks} checks, {len(total.findings)} findings, {spent:.0f} s",
            flush=True,
        )
        if checks >= o.checks or spent > o.seconds:
            total.seeds.append(f"{o.device} {o.seed}: {k + done / len(work):.2f} rounds")
            break
    for lane in lanes:
        lane.end()
    return total


def report(total: Counted, devices: set[str]) -> int:
    """Print the tables; the exit code."""
    print("\n" + "; ".join(total.seeds))
    print(f"{'class':34}{'checks':>10}{'not bit-equal':>15}")
    for name, n in sorted(total.checks.items()):
        print(f"{name:34}{n:10}{total.unequal[name]:15}{total.unequal[name] / max(n, 1):8.0%}")
    print(f"{'all':34}{sum(total.checks.values()):10}{sum(total.unequal.values()):15}")
    expected = set(honest.KINDS) - set(UNDRAWN)
    expected -= {"flushing"} if "sim:mps" not in devices else set()
    expected -= set(BEYOND_MPS) if devices == {"sim:mps"} else set()
    print(f"\n{'kind of honesty':34}{'answers':>10}{'other bits':>15}")
    for name in sorted(expected | set(total.answered)):
        print(f"{name:34}{total.answered[name]:10}{total.changed[name]:15}")
    used = sorted((share, function) for function, share in total.reached.items())
    if used:
        most = sum(share > 0.9 for share, _ in used)
        print(f"\nULP noise: {most} of {len(used)} functions and dtypes used more than 0.9 of the table's bound; ", end="")
        print(f"least {used[0][1]} {used[0][0]:.2f}, most {used[-1][1]} {used[-1][0]:.3f}")
    print("\nstatuses: " + ", ".join(f"{s} {n}" for s, n in total.statuses.most_common()))
    print(f"items that ended the process: {', '.join(total.ended) or 'none'}")
    absent = sorted(k for k in expected if not total.changed[k])
    unequal, every, bound = (sum(c[k] for k in ROUNDED) for c in (total.unequal, total.checks, total.bound))
    share = unequal / max(1, every - bound)
    print(f"{', '.join(ROUNDED)}: {unequal} of {every} checks ({unequal / max(1, every):.1%}) are not bit-equal to the CPU;")
    print(f"  of those with a result that could differ {share:.1%} ({bound} are empty, or exact in every element)")
    print(f"kinds that never changed a bit: {', '.join(absent) or 'none'}")
    for f in sorted(total.findings, key=lambda f: (f["item"], f["aspect"])):
        print(told(f))
    print(f"{sum(total.checks.values())} checks: {len(total.findings)} findings, {len(absent)} kinds of honesty never differ")
    return 1 if total.findings or absent or share < 0.5 else 0


def merged(files: list[Path]) -> Counted:
    """The counts of several runs."""
    total = Counted()
    for file in files:
        kept = json.loads(file.read_text())
        one = Counted()
        for name, value in kept.items():
            setattr(one, name, Counter(value) if isinstance(getattr(one, name), Counter) else value)
        total.add(one)
    return total


def main(argv: list[str] | None = None) -> int:
    """The program."""
    p = front.parser(__doc__)
    p.add_argument("ops", nargs="*", help="names or patterns of ops (default: every native row)")
    p.add_argument("--checks", type=int, default=200_000, help="stop after the round that reaches so many (200000)")
    p.add_argument("--seconds", type=float, default=3600, help="... or after this much time (3600)")
    p.add_argument("--device", choices=("sim", "sim:mps"), default="sim")
    p.add_argument("--dtype", action="append", default=[])
    p.add_argument("--seed", default="0")
    p.add_argument("-n", type=int, default=2, help="processes (2)")
    p.add_argument("--no-shrink", action="store_true", help="tell findings as drawn")
    p.add_argument("--json", type=Path, help="write the counts and findings here too")
    p.add_argument("--merge", type=Path, nargs="+", help="print the sum of such files instead")
    o = p.parse_args(argv)
    total = merged(o.merge) if o.merge else run(o)
    code = report(total, {s.partition(" ")[0] for s in total.seeds})
    if o.json:
        o.json.write_text(json.dumps({k: getattr(total, k) for k in Counted.__slots__}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
