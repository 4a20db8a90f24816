"""How many graphs MPS would compile and keep in a run: calls with differing operators, dtypes, shapes and scalars.

    python tests/bench/graphs.py [--profile quick] [--every 12] [--seed 0] [--alike 1]

MPS's cache keys hold the operator, the dtypes, the logical sizes and the scalars of a call, and no strides; it has no eviction,
and an entry costs some 55 KB by one public report. Every n-th item of a profile runs on sim:mps, and the calls that reach the
device are counted by such keys. Views never reach it; copies and allocations compile nothing. Operators with a Metal kernel of
their own compile nothing either, and torch does not say which those are, so the figures are the most that a run can cost.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from parity import tolerance
from parity.core.results import COMPARED
from parity.devices import Call, Fault, resolve
from parity.engine import cases, suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan

ENTRY_KB = 55
FREE = (
    "copy_",
    "_to_copy",
    "empty",
    "empty_like",
    "empty_strided",
    "detach",
    "alias",
    "resize_",
    "set_",
    "_efficientzerotensor",
)


class Counted:
    """Counts the calls of a device by the key that a graph would have, as a fault that never strikes."""

    def __init__(self) -> None:
        self.calls = 0
        self.keys: set[tuple[Any, ...]] = set()

    def note(self, call: Call) -> bool:
        """Note a call."""
        if call.op.partition(".")[0] not in FREE:
            o = call.outline
            self.calls += 1
            self.keys.add((o.op, o.shapes, o.dtypes, repr(o.scalars)))
        return False


def operators() -> tuple[str, ...]:
    """The names of all operators of torch that a device may be asked for."""
    names: list[str] = torch._C._dispatch_get_all_op_names()
    bases = {n.removeprefix("aten::").partition(".")[0] for n in names if n.startswith("aten::")}
    return tuple(sorted(b for b in bases if hasattr(torch.ops.aten, b)))


def main(argv: Sequence[str] | None = None) -> None:
    """Print graphs per 1,000 checks, and which dtypes and ops need most."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--alike", type=int, default=cases.ALIKE, help="explored cases in a row with the same structure")
    given = parser.parse_args(argv)
    cases.ALIKE = given.alike
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    counted = Counted()
    device = resolve("sim:mps", (Fault("count", operators(), Call.run, counted.note),))
    options = RunOptions(device="sim:mps", skip=("shrink",), seed=given.seed)
    profile = suite.profile(given.profile)
    plan = RunPlan(device, resolve("cpu"), tolerance.load("sim:mps"), profile, options)
    everything = suite.select((), (), (), profile.source)
    items = everything[:: given.every]
    graphs, checks, kept = Counter[str](), Counter[str](), Counter[str]()
    for item in items:
        before = len(counted.keys)
        done = examine(item, plan, NoJournal())
        graphs[item.row.name] += len(counted.keys) - before
        kept[item.dtype] += len(counted.keys) - before
        checks[item.dtype] += sum(n for c in done.summary.counts.values() for s, n in c.items() if s in COMPARED)
    total, distinct, calls = checks.total(), len(counted.keys), counted.calls
    print(f"{given.profile} profile: {len(items)} of {len(everything)} items, {total} checks, {calls} calls")
    print(f"graphs per 1,000 checks: {1000 * distinct / total:.0f}; one graph for {calls / distinct:.1f} calls")
    whole = distinct * len(everything) / len(items)
    print(f"a whole run: some {whole:,.0f} graphs, {whole * ENTRY_KB / (1 << 20):.1f} GB at {ENTRY_KB} KB each")
    for dtype, n in kept.most_common():
        print(f"  {dtype:<10} {n:>6} graphs, {1000 * n / max(1, checks[dtype]):.0f} per 1,000 checks")
    print("most: " + ", ".join(f"{op} {n}" for op, n in graphs.most_common(12)))


if __name__ == "__main__":
    main()
