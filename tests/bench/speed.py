"""How fast parity checks, beside the bare OpInfo loop, in one process and one run: `python tests/bench/speed.py --all`.

The bare loop takes every OpInfo sample in float32, runs it on the CPU and on a CPU copy, forward and backward with a cotangent
of ones, and compares with `torch.testing.assert_close`. Parity examines the rows that cover the same entries, in the quick
profile. Both sides run per op, one after the other; which goes first alternates. Times are taken without a profiler; where
parity's time goes is asked in another pass over the same cases, so its shares are estimates (pure Python weighs more there).
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import parity
from parity import suite
from parity.catalog import opinfo
from parity.errors import ParityError
from parity.examine import Examined, NoWatch, Plan, examine
from parity.plugin import _plan
from parity.suite import Item
from parity.vocabulary import Aspect, Status

DTYPE = "float32"
ROWS = 60  # spread over the families, unless --all
WARM = "add"  # run on both sides before the clock starts
COUNTED = (Aspect.FORWARD, Aspect.BACKWARD, Aspect.INPLACE, Aspect.OUT)

# Stage: (file called, functions of it or () for all but `attempt`, files that call it). Their times do not overlap, but for the
# oracle's inside judge, which is taken off.
STAGES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "draw": ("generate.py", ("nth",), ("examine.py",)),
    "text": ("notation.py", ("case_text",), ("examine.py",)),
    "build": ("inputs.py", ("build",), ("check.py",)),
    "reference+device": ("execute.py", (), ("check.py",)),
    "compare": ("judge.py", ("judge",), ("check.py",)),
    "compare (repeat)": ("measures.py", (), ("check.py",)),
    "oracle": ("oracle.py", (), ("check.py", "judge.py")),
}
ORACLE_IN_JUDGE = ("oracle.py", (), ("judge.py",))


@dataclass(slots=True)
class Side:
    """What one side did so far. failed: comparisons that did not agree. refused: samples or cases that gave no comparison."""

    cases: int = 0
    checks: int = 0
    seconds: float = 0.0
    failed: int = 0
    refused: int = 0
    aspects: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Checks per second."""
        return self.checks / self.seconds


def total(sides: Iterable[Side]) -> Side:
    """All of them together."""
    whole = Side()
    for s in sides:
        whole.cases += s.cases
        whole.checks += s.checks
        whole.seconds += s.seconds
        whole.failed += s.failed
        whole.refused += s.refused
        whole.aspects += s.aspects
    return whole


# ---------------------------------------------------------------------------------------------------------- the bare loop


def bare(key: str, side: Side) -> None:
    """Every sample of an entry, generated, copied, run twice and compared."""
    info = opinfo._info(key)
    grad = DTYPE in opinfo.ENTRIES[key].backward
    for sample in info.sample_inputs("cpu", getattr(torch, DTYPE), requires_grad=grad):
        side.cases += 1
        ours = (sample.input, *sample.args), sample.kwargs
        theirs = tree_map(_copied, ours)
        try:
            here, there = _outputs(info.op, ours), _outputs(info.op, theirs)
        except Exception:  # the samples of some entries are not meant for the plain function
            side.refused += 1
            continue
        _compare(here, there, "forward", side)
        if not grad:
            continue
        tracked = [(a, b) for a, b in zip(here, there) if isinstance(a, Tensor) and a.requires_grad]
        leaves, copies = _leaves(ours), _leaves(theirs)
        if not tracked or not leaves:
            continue
        cotangents = [torch.ones_like(a) for a, _ in tracked]
        try:
            first = torch.autograd.grad([a for a, _ in tracked], leaves, cotangents, allow_unused=True)
            second = torch.autograd.grad([b for _, b in tracked], copies, cotangents, allow_unused=True)
        except RuntimeError:
            side.refused += 1
            continue
        _compare([g for g in first if g is not None], [g for g in second if g is not None], "backward", side)


def _copied(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x


def _outputs(op: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    """The results of a call as a list; both sides draw the same random numbers."""
    torch.default_generator.manual_seed(0)
    result = op(*call[0], **call[1])
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _leaves(tree: Any) -> list[Tensor]:
    return [t for t in opinfo.tensors_of(tree) if t.requires_grad]


def _compare(here: Sequence[Any], there: Sequence[Any], aspect: str, side: Side) -> None:
    side.checks += 1
    side.aspects[aspect] += 1
    try:
        torch.testing.assert_close(there, here, equal_nan=True)
    except (AssertionError, TypeError):  # a TypeError: results that it does not know, such as dtypes
        side.failed += 1


# ----------------------------------------------------------------------------------------------------------------- parity


def account(done: Examined, side: Side) -> None:
    """Add what parity compared of an item; repeated calls do not count."""
    side.cases += done.summary.cases
    for aspect in COUNTED:
        for word, n in done.summary.counts.get(aspect, {}).items():
            status = Status(word)
            if not status.is_comparison:
                side.refused += n
                continue
            side.checks += n
            side.aspects[aspect] += n
            side.failed += n if status.is_finding else 0


def stages(profile: cProfile.Profile) -> tuple[dict[str, float], float]:
    """(seconds per stage, seconds in all) of a profile."""
    table: dict[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # not in typeshed
    spent: dict[str, float] = defaultdict(float)
    for name, how in STAGES.items():
        spent[name.partition(" (")[0]] += _between(table, *how)
    spent["compare"] -= _between(table, *ORACLE_IN_JUDGE)
    whole = sum(row[3] for (file, _, name), row in table.items() if name == "examine" and _file(file) == "examine.py")
    spent["the rest"] = whole - sum(spent.values())
    return dict(spent), whole


def _between(table: dict[tuple[str, int, str], Any], called: str, names: Iterable[str], callers: Iterable[str]) -> float:
    """Cumulative seconds of functions of one file of parity, as far as they were called from others."""
    return sum(
        times[3]
        for (file, _, name), row in table.items()
        if _file(file) == called and name != "attempt" and (not names or name in names)
        for caller, times in row[4].items()
        if _file(caller[0]) in callers
    )


def _file(path: str) -> str:
    """The name of a file that lies directly in parity; "" for others."""
    p = Path(path)
    return p.name if p.parent == Path(parity.__file__).parent else ""


# ---------------------------------------------------------------------------------------------------------------- the run


def items(ops: str, source: str, everything: bool) -> list[Item]:
    """The rows that cover OpInfo entries in float32. Raises UsageError for an op that nothing is named like."""
    found = suite.select([p for p in ops.split(",") if p], dtypes=(DTYPE,), source=source)
    covering = [i for i in found if any(True for _ in entries(i))]
    return covering if everything or ops else list(_spread(covering))[:ROWS]


def entries(item: Item) -> Iterator[str]:
    """The OpInfo entries that an item's row covers and that take float32."""
    return (n for n in item.row.opinfo if n in opinfo.ENTRIES and DTYPE in opinfo.ENTRIES[n].dtypes)


def _spread(found: Sequence[Item]) -> Iterator[Item]:
    """One item of each family, then another of each; in families of one, evenly spaced."""
    groups: dict[str, list[Item]] = defaultdict(list)
    for i in found:
        groups[i.row.family].append(i)
    if len(groups) == 1:
        yield from found[:: max(1, len(found) // ROWS)]
        return
    for layer in zip_longest(*groups.values()):
        yield from (i for i in layer if i is not None)


def one(item: Item, plan: Plan, parity_first: bool) -> tuple[Side, Side]:
    """(parity, bare loop) on one item, timed."""
    ours, theirs = Side(), Side()
    for turn in (parity_first, not parity_first):
        started = time.perf_counter()
        if turn:
            done = examine(item, plan, NoWatch())
            ours.seconds = time.perf_counter() - started
            account(done, ours)
        else:
            for key in entries(item):
                bare(key, theirs)
            theirs.seconds = time.perf_counter() - started
    return ours, theirs


def show(name: str, side: Side) -> None:
    """What one side did."""
    told = ", ".join(f"{a} {n}" for a, n in side.aspects.items())
    rates = f"{side.rate:7.0f} checks/s {side.cases / side.seconds:7.0f} cases/s"
    print(f"{name:12} {side.cases:6} cases {side.checks:7} checks {side.seconds:8.2f} s {rates}   ({told})")
    print(f"{'':12} not agreed: {side.failed}, not compared: {side.refused}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="parity beside the bare OpInfo loop: checks per second in one run")
    parser.add_argument("--ops", default="", help="comma-separated ops or patterns; all by default")
    parser.add_argument("--device", default="cpu", help="parity's device; the bare loop is always CPU against CPU copy")
    parser.add_argument("--opinfo", action="store_true", help="parity's rows over OpInfo's samples instead of its native rows")
    parser.add_argument("--all", action="store_true", help=f"all rows instead of {ROWS} spread over the families")
    parser.add_argument("--no-profile", action="store_true", help="leave out where parity's time goes")
    a = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    try:
        chosen = items(a.ops, "opinfo" if a.opinfo else "native", a.all)
        plan: Plan = _plan(a.device, "quick", "0", None, None, True, True, None, None)
        warm = suite.select([WARM], dtypes=(DTYPE,))[0]
    except ParityError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    if not chosen:
        print(f"none of {a.ops} covers an OpInfo entry in {DTYPE}; see Row.opinfo", file=sys.stderr)
        return 2
    one(warm, plan, False)
    pairs = {item: one(item, plan, k % 2 == 1) for k, item in enumerate(chosen)}
    covered = sum(1 for i in chosen for _ in entries(i))
    print(f"{len(chosen)} rows, {covered} OpInfo entries, {DTYPE}, device {a.device}, torch {torch.__version__}, 1 thread")
    _compared(pairs)
    if not a.no_profile:
        _profiled(chosen, plan, total(o for o, _ in pairs.values()))
    return 0


def _compared(pairs: dict[Item, tuple[Side, Side]]) -> None:
    """Both sides and their ratios: of the whole, without the row where the bare loop is longest, and of the middle row."""
    ours, theirs = total(o for o, _ in pairs.values()), total(t for _, t in pairs.values())
    show("OpInfo loop", theirs)
    show("parity", ours)
    by_case = (ours.cases / ours.seconds) / (theirs.cases / theirs.seconds)
    print(f"parity / OpInfo loop: {ours.rate / theirs.rate:.2f} times the checks/s, {by_case:.2f} times the cases/s")
    longest = max(pairs, key=lambda i: pairs[i][1].seconds)
    rest = [p for i, p in pairs.items() if i != longest]
    if rest:
        without = total(o for o, _ in rest).rate / total(t for _, t in rest).rate
        print(f"  checks/s without {longest.row.name}, {pairs[longest][1].seconds:.1f} s of the bare loop: {without:.2f} times")
    each = [o.rate / t.rate for o, t in pairs.values() if o.checks and t.checks]
    if each:
        faster = sum(r > 1 for r in each)
        print(f"  checks/s row by row: {statistics.median(each):.2f} times in the middle, above 1 in {faster} of {len(each)}")


def _profiled(chosen: Sequence[Item], plan: Plan, ours: Side) -> None:
    """Where parity's time goes: shares of a profiled pass, and what they make of the time without a profiler."""
    profile = cProfile.Profile(builtins=False)
    for item in chosen:
        profile.runcall(examine, item, plan, NoWatch())
    spent, whole = stages(profile)
    print(f"parity's time per case (shares of a profiled pass of {whole:.1f} s):")
    for name, seconds in sorted(spent.items(), key=lambda s: -s[1]):
        share = seconds / whole
        print(f"  {name:18} {share:6.1%} {1e6 * share * ours.seconds / max(1, ours.cases):8.0f} us")


if __name__ == "__main__":
    sys.exit(main())
