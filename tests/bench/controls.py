"""Negative controls: honest devices under the suite's own generator. `python tests/bench/controls.py --checks 200000 -n 2`.

Each item of the catalog is examined on a simulated device that differs from the CPU only as healthy devices do
(`parity.zoo.honest`), in rounds with other seeds, until enough checks were made. A finding is a false alarm of the judge. With
`--device sim:mps` the profile and the tables are MPS's, and subnormal numbers are flushed. It prints the checks per op class,
how many of them were not bit-equal to the CPU, how often each kind of honesty occurred, and every finding with its least case;
the exit code is 1 where there is a finding, or a kind that never occurred, or too few checks that were not bit-equal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from parity import notation, suite, tolerance
from parity.devices import resolve
from parity.examine import NoWatch, Plan, examine
from parity.judge import judge
from parity.measures import bit_equal
from parity.suite import Item
from parity.vocabulary import Status
from parity.zoo import honest
from parity.zoo.honest import tally

Named = Mapping[str, Tensor]
SIZE = 6  # cases per item and round
# Op classes of which at least half of the checks must not be bit-equal to the CPU.
ROUNDED = ("elementwise", "contraction", "composite")
INEXACT = ("float32", "float16", "bfloat16", "complex64")
FLUSHING = "flushing"


@dataclass(slots=True)
class Counted:
    """What one item came to. checks, unequal: by op class; kinds: answered and changed, by kind of honesty."""

    checks: Counter[str] = field(default_factory=Counter)
    unequal: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Counted) -> None:
        """Take another's counts in."""
        for name in ("checks", "unequal", "statuses", "answered", "changed"):
            getattr(self, name).update(getattr(other, name))
        self.findings += other.findings


def counting(unequal: Counter[str], own: Callable[..., Any]) -> Callable[..., Any]:
    """The judge, who also counts per op class the comparisons in which any bit differs."""

    def judged(
        bench: Any, device: Mapping[str, Tensor], reference: Mapping[str, Tensor] | None, *rest: Any, **more: Any
    ) -> Any:
        if reference is not None and any(_differ(device[n], reference[n]) for n in device if n in reference):
            unequal[_kind(bench.row.rule.value, rest[0] if rest else "forward")] += 1
        return own(bench, device, reference, *rest, **more)

    return judged


def _differ(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or not (a.is_floating_point() or a.is_complex()):
        return False
    return not bit_equal(a, b)


def _kind(rule: str, pass_: str) -> str:
    return f"{rule} {pass_}"


_plans: dict[tuple[str, str], Plan] = {}


def plan(device: str, seed: str, shrinks: bool) -> Plan:
    """The plan of one round in this process."""
    if (device, seed) not in _plans:
        torch.set_num_threads(1)
        torch.autograd.set_multithreading_enabled(False)
        on_mps = device == "sim:mps"
        kept = next((p.device for p in _plans.values()), None)
        there = kept or resolve(device, honest.ON_MPS if on_mps else honest.FAULTS)
        tables = tolerance.load("mps" if on_mps else "sim")  # only MPS's own tables declare flushing
        _plans[device, seed] = Plan(there, resolve("cpu"), tables, suite.profile("quick"), seed, SIZE, True, shrinks)
    return _plans[device, seed]


def examined(work: tuple[str, str, str, str, bool]) -> Counted:
    """One item of one round: (device, seed, op, dtype, whether findings are shrunk)."""
    device, seed, op, dtype, shrinks = work
    item = Item(suite.row(op), dtype)
    result = Counted()
    tally.reset()
    with mock.patch("parity.trial.judge", counting(result.unequal, judge)):
        done = examine(item, plan(device, seed, shrinks), NoWatch())
    for aspect, counts in done.summary.counts.items():
        compared = sum(n for status, n in counts.items() if status not in (Status.VOID, Status.UNSUPPORTED))
        if dtype in INEXACT:
            result.checks[_kind(item.row.rule.value, "backward" if aspect == "backward" else "forward")] += compared
        else:
            result.checks["integer and bool operands"] += compared
        result.statuses.update({str(s): n for s, n in counts.items()})
    result.answered.update(tally.ANSWERED)
    result.changed.update(tally.CHANGED)
    for f in done.findings:
        v = f.result.verdict
        result.findings.append(
            {
                "item": item.id,
                "aspect": str(f.result.aspect),
                "status": str(v.status),
                "tensor": v.tensor,
                "reason": v.reason,
                "count": f.count,
                "case": notation.case_text(f.case),
                "first": notation.case_text(f.first),
            }
        )
    return result


def told(f: Mapping[str, Any]) -> str:
    """A finding in two lines."""
    return f"  {f['item']} {f['aspect']} {f['status']} {f['tensor']}: {f['reason']} ({f['count']} cases)\n    {f['case']}"


def rounds(o: argparse.Namespace) -> Iterator[list[tuple[str, str, str, str, bool]]]:
    """The items, round after round with another seed."""
    items = suite.select(o.ops, dtypes=o.dtype)
    k = 0
    while True:
        yield [(o.device, f"controls-{o.seed}-{k}", i.row.name, i.dtype, not o.no_shrink) for i in items]
        k += 1


def run(o: argparse.Namespace) -> Counted:
    """Rounds until enough checks were made."""
    total, started = Counted(), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(o.n) as pool:
        for k, work in enumerate(rounds(o)):
            for counted in pool.imap_unordered(examined, work, chunksize=4):
                total.add(counted)
                for f in counted.findings:  # at once: a long run may be stopped
                    print(told(f), flush=True)
            checks = sum(total.checks.values())
            print(f"round {k}: {checks} checks, {len(total.findings)} findings, {time.monotonic() - started:.0f} s", flush=True)
            if checks >= o.checks or time.monotonic() - started > o.seconds:
                return total
    return total


def expected(device: str) -> set[str]:
    """The kinds of honesty that must occur."""
    kinds = {
        "formula", "formula-attention", "formula-layer-norm", "formula-softmax", "fused", "order-convolution",
        "order-duplicates", "order-index-put", "order-product", "order-reduction", "order-scan", "order-transform",
        "phases-eigh", "phases-qr", "phases-svd", "pivots", "rounded-once", "stream", "ties",
        "ties-pool", "ulp-noise",
    }  # fmt: skip
    return kinds - {"phases-eigh"} | {FLUSHING} if device == "sim:mps" else kinds  # MPS has no kernel of eigh


def report(total: Counted, device: str) -> int:
    """Print the tables; the exit code."""
    print(f"\n{'op class and pass':34}{'checks':>10}{'not bit-equal':>15}")
    for kind, n in sorted(total.checks.items()):
        print(f"{kind:34}{n:10}{total.unequal[kind]:15}{total.unequal[kind] / max(n, 1):8.0%}")
    print(f"{'all':34}{sum(total.checks.values()):10}{sum(total.unequal.values()):15}")
    print(f"\n{'kind of honesty':34}{'answers':>10}{'other bits':>15}")
    for kind in sorted(expected(device) | set(total.answered)):
        print(f"{kind:34}{total.answered[kind]:10}{total.changed[kind]:15}")
    print("\nstatuses: " + ", ".join(f"{s} {n}" for s, n in total.statuses.most_common()))
    absent = sorted(k for k in expected(device) if not total.changed[k])
    rounded = [k for k in total.checks if k.partition(" ")[0] in ROUNDED]
    share = sum(total.unequal[k] for k in rounded) / max(1, sum(total.checks[k] for k in rounded))
    print(f"contractions, composites and functions: {share:.1%} of the checks are not bit-equal to the CPU")
    print(f"kinds that never changed a bit: {', '.join(absent) or 'none'}")
    print(f"\nfindings: {len(total.findings)}")
    for f in sorted(total.findings, key=lambda f: (f["item"], f["aspect"])):
        print(told(f))
    return 1 if total.findings or absent or share < 0.5 else 0


def main(argv: list[str] | None = None) -> int:
    """The program."""
    p = argparse.ArgumentParser(description="Run the suite on an honest simulated device; every finding is a false alarm.")
    p.add_argument("ops", nargs="*", help="names or patterns of ops (default: every native row)")
    p.add_argument("--checks", type=int, default=200_000, help="stop after the round that reaches so many (200000)")
    p.add_argument("--seconds", type=float, default=3600, help="... or this much time (3600)")
    p.add_argument("--device", choices=("sim", "sim:mps"), default="sim")
    p.add_argument("--dtype", action="append", default=[])
    p.add_argument("--seed", default="0")
    p.add_argument("-n", type=int, default=2, help="processes (2)")
    p.add_argument("--no-shrink", action="store_true", help="tell findings as drawn")
    p.add_argument("--json", type=Path, help="write the counts and findings here too")
    o = p.parse_args(argv)
    total = run(o)
    code = report(total, o.device)
    if o.json:
        o.json.write_text(json.dumps({k: getattr(total, k) for k in Counted.__slots__}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
