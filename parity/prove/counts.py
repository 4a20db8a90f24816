"""Counts the pairs of op and dtype that were compared, in the unit of torch's own suite: OpInfo entry x dtype; as a study of a
run that draws until every aspect of an item holds a comparison, and as a table next to what torch's suite compares on MPS.

A native row counts as the entry that it covers, and as an extra op only if OpInfo does not have it. A pair counts in an aspect
if a record of that aspect holds a comparison; refused and void cases do not count.

The coverage of a run's draws: how often each feature occurred in each family, and which pairs of features never occurred
together.

Cases of the run's items are decoded without running them; a pair that occurs there often, and never in the run, is a hole. The
decoded cases depend only on the items and on the sizes of the profile, not on the seed of the run.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

from parity.catalog import module_entries, opinfo, optimizer_entries
from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.checks.check import Settings
from parity.checks.further import TWICE, promises
from parity.checks.gauge import GAUGES
from parity.core.errors import CaseError, RunFileError, UsageError, near
from parity.core.results import COMPARED, Aspect, Status
from parity.engine import suite
from parity.engine.planning import Study
from parity.engine.suite import Item
from parity.generation.generate import Drawn, nth
from parity.judging.relations import GAUGE_DEPENDENT
from parity.report.words import listed, plural, table
from parity.store.features import Coverage, features
from parity.store.rows import ItemRow, Run

ASPECTS = (Aspect.FORWARD, Aspect.BACKWARD, Aspect.INPLACE, Aspect.OUT, Aspect.DOUBLE)
REASONS = 12  # most reasons to list per aspect
TRIES = 10  # cases drawn per item before an aspect without a comparison is given up
# Comparisons of torch 2.13's TestConsistency (test/test_mps.py, CPU against MPS in the same dtype), without its skips and
# expected failures.
TEST_MPS = {Aspect.FORWARD: 4432, Aspect.BACKWARD: 883, Aspect.INPLACE: 0, Aspect.OUT: 0, Aspect.DOUBLE: 0}
# Suffixes of row names for another way to call an op.
SUFFIXES = (
    "kernel", "written", "train", "running", "sampled", "limited", "number", "edges", "dims", "zeros", "fractional",
    "autocast", "packed", "turned", "without", "statistics", "channels", "last", "cross",
)  # fmt: skip


@functools.cache
def _last_words() -> dict[str, str]:
    """Last word of an entry's name -> entry: plain ones before variants, torch's own names before those of its parts."""
    order = sorted(opinfo.ENTRIES, key=lambda key: (":" in key, key.count("."), not key.startswith("nn.")))
    entries: dict[str, str] = {}
    for key in order:
        last = key.partition(":")[0].rpartition(".")[2]
        entries.setdefault(last if last.startswith("__") else last.strip("_"), key)
    return entries


def units(row: Row) -> tuple[str, ...]:
    """The units that the row counts as: OpInfo entries, or its own name if OpInfo does not have the op."""
    if row.counts.opinfo:
        return row.counts.opinfo
    if row.counts.under:
        return (row.counts.under,)
    bare = row.call.removeprefix("torch.").removeprefix("Tensor.")
    if exact := next((n for n in (bare, bare.rstrip("_")) if n in opinfo.ENTRIES), ""):
        return (exact,)
    return (next((_last_words()[n] for n in _names(row) if n in _last_words()), row.name),)


def _names(row: Row) -> tuple[str, ...]:
    """Names to look up among OpInfo entries: that of the row without suffixes, its last word, and that of its function."""
    own = row.name
    while "_" in own and own.rpartition("_")[2] in SUFFIXES:
        own = own.rpartition("_")[0]
    function = "" if row.call.startswith("operator.") else row.call.rpartition(".")[2]
    return own.strip("_"), own.rpartition(".")[2].strip("_"), function.strip("_")


def applies(unit: str, dtype: str, aspect: Aspect) -> bool:
    """Whether torch's own test data says that a pair has this aspect on the CPU; False if the unit is no entry."""
    if unit in module_entries.ENTRIES:
        m = module_entries.ENTRIES[unit]
        held = {Aspect.FORWARD: m.dtypes, Aspect.BACKWARD: m.backward, Aspect.DOUBLE: m.backward if m.gradgrad else ()}
        return dtype in held.get(aspect, ())
    if unit in optimizer_entries.ENTRIES:
        o = optimizer_entries.ENTRIES[unit]
        return dtype in {Aspect.FORWARD: o.dtypes, Aspect.BACKWARD: o.backward}.get(aspect, ())
    e = opinfo.ENTRIES.get(unit, opinfo.OpInfoEntry())
    return {
        Aspect.FORWARD: dtype in e.dtypes,
        Aspect.BACKWARD: dtype in e.backward,
        Aspect.INPLACE: e.inplace and dtype in e.dtypes,
        Aspect.OUT: e.out and dtype in e.dtypes,
        Aspect.DOUBLE: e.gradgrad and dtype in e.backward,
    }[aspect]


def why_impossible(row: Row, dtype: str, aspect: Aspect) -> str:
    """Why no case of a row in a dtype can have an aspect; "" if one can."""
    if aspect is Aspect.FORWARD:
        return ""
    if aspect is Aspect.INPLACE:
        return "" if row.forms.mutates or row.forms.inplace else "the row has no in-place form"
    if row.forms.mutates and aspect is not Aspect.BACKWARD:
        return "the op itself writes into its first operand"
    if aspect is Aspect.OUT:
        return "" if row.forms.out else "the row has no out= form"
    if row.judged.relation in GAUGE_DEPENDENT and row.judged.relation not in GAUGES:
        return f"gradients of several right answers ({row.judged.relation}) are not compared"
    if dtype not in row.grad:
        return "the row has no gradient in this dtype"
    if aspect is Aspect.DOUBLE and dtype not in TWICE:
        return f"second derivatives are compared in {', '.join(TWICE)}"
    return "" if aspect is Aspect.BACKWARD or promises(row, "gradgrad") else "torch has no second derivative"


def fully_compared(row: Row, dtype: str, counts: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether every aspect that is possible for the row holds a comparison. counts: aspect -> status -> records."""
    first = Aspect.INPLACE if row.forms.mutates else Aspect.FORWARD
    wanted = (a for a in (first, *ASPECTS[1:]) if not why_impossible(row, dtype, a))
    return all(any(s in COMPARED for s in counts.get(a, ())) for a in wanted)


class Counts(Study):
    """Draws cases of an item until every aspect that it can have holds a comparison, and judges them in no other way."""

    looks_everywhere = False

    def cases(self, item: Item, sizes: Sizes, seed: str) -> Iterator[tuple[int, bool, Drawn]]:
        """A few explored ones."""
        return ((k, False, nth(item.row, item.dtype, sizes, seed, k)) for k in range(1, TRIES + 1))

    def settings(self, how: Settings) -> Settings:
        """Cheap, and with second derivatives in every case."""
        return Settings(more=frozenset({Aspect.DOUBLE}))

    def is_over(self, item: Item, counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether no aspect is left."""
        return fully_compared(item.row, item.dtype, counts)


STUDY = Counts

# ---------------------------------------------------------------------------------------------------------- the count


@dataclass(frozen=True, slots=True)
class ItemRecords:
    """The records of one item in a run. counts: aspect -> status -> records; void: reason -> cases."""

    row: Row
    dtype: str
    counts: Mapping[str, Mapping[str, int]]
    void: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair in one aspect. state: compared, void or not reached. entry: whether OpInfo itself has the pair in this aspect.
    by: what compared it: "native" rows, or a "sample" of torch's own."""

    unit: str
    dtype: str
    aspect: Aspect
    state: str
    entry: bool
    by: frozenset[str] = frozenset()
    reason: str = ""


def tally(seen: Iterable[ItemRecords], units_asked: Iterable[tuple[str, str]] = ()) -> tuple[Pair, ...]:
    """All pairs of the items in `seen` and of `units_asked` (OpInfo entry, dtype), in every aspect that they have."""
    of: dict[tuple[str, str], list[ItemRecords]] = {pair: [] for pair in units_asked}
    for s in seen:
        for unit in units(s.row):
            of.setdefault((unit, s.dtype), []).append(s)
    pairs = []
    for (unit, dtype), some in of.items():
        for aspect in ASPECTS:
            entry = applies(unit, dtype, aspect)
            pair = _pair(unit, dtype, aspect, entry, some)
            if entry or pair.state == "compared" or any(not why_impossible(s.row, dtype, aspect) for s in some):
                pairs.append(pair)
    return tuple(pairs)


def _pair(unit: str, dtype: str, aspect: Aspect, entry: bool, some: list[ItemRecords]) -> Pair:
    by = frozenset("sample" if s.row.is_sampled else "native" for s in some if COMPARED & set(_records(s, unit, aspect)))
    if by:
        return Pair(unit, dtype, aspect, "compared", entry, by)
    if not some:
        return Pair(unit, dtype, aspect, "not reached", entry, reason=opinfo.OUT_OF_REACH.get(unit, "not selected"))
    able = [s for s in some if not why_impossible(s.row, dtype, aspect)]
    if not able:
        return Pair(unit, dtype, aspect, "not reached", entry, reason=why_impossible(some[-1].row, dtype, aspect))
    statuses = {status for s in able for status in _records(s, unit, aspect)}
    void = next((why for s in able for why in s.void), "")
    if Status.VOID in statuses or not any(s.counts for s in able):
        return Pair(unit, dtype, aspect, "void", entry, reason=void or "no case could be drawn")
    others = ", ".join(sorted(statuses))
    return Pair(unit, dtype, aspect, "not reached", entry, reason=others or f"none of {TRIES} cases came to it")


def _records(s: ItemRecords, unit: str, aspect: Aspect) -> Mapping[str, int]:
    """Status -> records of an aspect. If the entry's own callable writes into its operand, in-place counts as forward."""
    records = s.counts.get(aspect, {})
    if (
        aspect is Aspect.FORWARD
        and not records
        and s.row.forms.mutates
        and (unit in opinfo.MUTATES or unit not in opinfo.ENTRIES)
    ):
        return s.counts.get(Aspect.INPLACE, {})
    return records


# ---------------------------------------------------------------------------------------------------------- the table


def of_run(items: Iterable[ItemRow], whole: bool) -> tuple[Pair, ...]:
    """The pairs of a run's items. whole: include the OpInfo pairs of which nothing was run."""
    known = {r.name: r for r in suite.rows("all")}
    asked = [(name, d) for name, e in opinfo.ENTRIES.items() for d in e.dtypes] if whole else []
    return tally([ItemRecords(known[i.op], i.dtype, i.counts, i.void) for i in items if i.op in known], asked)


def render(pairs: Sequence[Pair], whole: bool, verbose: bool = False) -> str:
    """A line per aspect, then the pairs that were not compared, by reason; with all their names if `verbose`.

    whole: whether all ops were asked for; only then are the numbers of test_mps shown.
    """
    head = ["op x dtype", "compared", "of torch's own", "by native", "by torch's samples", "void", "not reached"]
    rows = [head + ["test_mps"] * whole]
    for aspect in ASPECTS:
        own = [p for p in pairs if p.aspect is aspect]
        done = [p for p in own if p.state == "compared"]
        entries = [p for p in own if p.entry]
        rows.append(
            [
                aspect,
                f"{len(done):,}",
                f"{sum(p.entry for p in done):,} of {len(entries):,}",
                *(f"{sum(source in p.by for p in done):,}" for source in ("native", "sample")),
                *(f"{sum(p.state == state for p in own):,}" for state in ("void", "not reached")),
                *([f"{TEST_MPS[aspect]:,}"] if whole else []),
            ]
        )
    lines = table(rows)
    for aspect in ASPECTS:
        left = [p for p in pairs if p.aspect is aspect and p.state != "compared"]
        lines += ["", f"{aspect}: {plural(len(left), 'pair')} without a comparison", *_reasons(left, verbose)] if left else []
    return "\n".join(lines)


def _reasons(left: Sequence[Pair], verbose: bool) -> list[str]:
    by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for p in left:
        by[f"{p.state}: {p.reason}"][p.unit].append(p.dtype)
    order = sorted(by, key=lambda why: -sum(map(len, by[why].values())))
    shown = order if verbose else order[:REASONS]
    lines = []
    for why in shown:
        ops = by[why]
        names = [f"{op} ({', '.join(dtypes)})" for op, dtypes in ops.items()] if verbose else list(ops)
        lines.append(f"  {sum(map(len, ops.values())):>5,} {why}")
        lines += [f"          {n}" for n in names] if verbose else [f"        {listed(names, 100)}"]
    rest = sum(len(d) for why in order[len(shown) :] for d in by[why].values())
    return lines + ([f"  {rest:>5,} for {len(order) - len(shown)} other reasons: -v lists all"] if rest else [])


SHOWN = 8  # most missing pairs to list per family
SEED = "decoded"
CASES = 2000  # decoded cases per family, spread evenly over its items
ITEMS = 100  # decoded items per family, evenly spaced; a limit because each OpInfo entry has to make its samples first
EXPECTED = 10.0  # cases: a pair with this expectation is hardly ever missing from a full run by chance

TwoFeatures: TypeAlias = tuple[str, str]
Missing: TypeAlias = Mapping[TwoFeatures, float]


def expected_pairs(items: Sequence[tuple[Row, str, int]], sizes: Sizes) -> Mapping[TwoFeatures, float]:
    """(Feature, alphabetically later feature) -> expected number of cases of the run with both. items: (row, dtype, cases of
    the run), all of one family. A decoded case counts for at most one case of the run, so the expectation of a run with more
    cases than are decoded is a lower bound."""
    chosen = items[:: -(-len(items) // ITEMS) or 1]
    total: dict[TwoFeatures, float] = defaultdict(float)
    for row, dtype, cases in chosen:
        decoded: Counter[TwoFeatures] = Counter()
        count = -(-CASES // len(chosen))
        with suppress(CaseError), warnings.catch_warnings():  # OpInfo entries without samples on this machine draw nothing
            warnings.simplefilter("ignore")  # warnings of torch while it makes the samples
            for k in range(count):
                case = nth(row, dtype, sizes, SEED, k + 1).case
                decoded.update(combinations(sorted(features(case)), 2))
        weight = min(1.0, cases / count)
        for two, times in decoded.items():
            total[two] += times * weight
    return total


def missing_pairs(coverage: Coverage, items: Sequence[tuple[Row, str, int]], sizes: Sizes) -> dict[TwoFeatures, float]:
    """Pair -> expected cases, for pairs in decoded cases that no case of the run has; largest expectation first."""
    shown = expected_pairs(items, sizes)
    missing = {(f, g): n for (f, g), n in shown.items() if g not in coverage.together.get(f, ())}
    return dict(sorted(missing.items(), key=lambda pair: (-pair[1], pair[0])))


# ------------------------------------------------------------------------------------------------------------- the tables


def render_coverage(run: Run, families: Collection[str] = (), verbose: bool = False) -> str:
    """The tables of a run: a line per family; for `families`, their features and pairs too; and the run's effective pairs.

    Raises RunFileError if the file holds no coverage, UsageError for a family that it does not have and for an unknown profile.
    """
    if not run.coverage:
        raise RunFileError("the run file holds no coverage: it was broken off, or an older parity wrote it; run it again")
    known = [c.family for c in run.coverage]
    for family in families:
        if family not in known:
            raise UsageError(f"the run has no family '{family}'; {near(family, known) or 'it has: ' + ', '.join(known)}")
    chosen = [c for c in run.coverage if not families or c.family in families]
    gaps = _missing(run, chosen)
    lines = _families(chosen, gaps)
    for c in chosen:
        missing = gaps[c.family]
        if families:
            lines += ["", f"{c.family}: {plural(c.cases, 'case')}", *_features(c, missing)]
        if missing:
            lines += ["", f"{c.family}: {len(missing):,} applicable pairs were not drawn", *_named(missing, verbose)]
    if not families:
        lines += ["", render(of_run(run.items, run.header.complete), run.header.complete, verbose)]
    return "\n".join(lines)


def _missing(run: Run, chosen: Sequence[Coverage]) -> dict[str, Missing]:
    """The missing pairs of each family; items whose op or dtype this parity does not have are left out."""
    known, sizes = {r.name: r for r in suite.rows("all")}, suite.profile(run.header.profile).sizes
    # The first case of an item is the simplest possible one, without random choices.
    items = [(known[i.op], i.dtype, max(0, i.cases - 1)) for i in run.items if i.op in known and i.dtype in known[i.op].dtypes]
    return {c.family: missing_pairs(c, [i for i in items if i[0].family == c.family], sizes) for c in chosen}


def _holes(missing: Missing) -> int:
    return sum(n >= EXPECTED for n in missing.values())


def _families(chosen: Sequence[Coverage], missing: Mapping[str, Missing]) -> list[str]:
    rows = [["family", "cases", "features", "applicable pairs", "drawn", "not drawn", "of them holes", "median cases"]]
    sizes = []
    for c in chosen:
        times = sorted(n for others in c.together.values() for n in others.values()) or [0]
        drawn, left = sum(1 for _ in c.drawn()), len(missing[c.family])
        sizes.append((c.cases, len(c.counts), drawn + left, drawn, left, _holes(missing[c.family])))
        rows.append([c.family, *(f"{n:,}" for n in (*sizes[-1], times[len(times) // 2]))])
    cases, _, *sums = (sum(column) for column in zip(*sizes))
    rows.append(["all", f"{cases:,}", "", *(f"{n:,}" for n in sums), ""])
    return table(rows)


def _features(c: Coverage, missing: Missing) -> list[str]:
    """For each feature: how often it occurred, with how many others it can occur, and with how many it did."""
    did = Counter(f for two in c.drawn() for f in two)
    can = did + Counter(f for two in missing for f in two)
    rows = [["feature", "cases", "share", "with other features"]]
    rows += [[f, f"{n:,}", f"{n / c.cases:.1%}", f"{did[f]} of {can[f]}"] for f, n in c.counts.items()]
    return table(rows)


def _named(missing: Missing, verbose: bool) -> list[str]:
    """The pairs that were not drawn; by default the holes and a few of the likeliest others."""
    order = list(missing.items())
    shown = order if verbose else order[: max(SHOWN, _holes(missing))]
    lines = [f"  {f} + {g}  (expected in {n:.1f} cases)" for (f, g), n in shown]
    return lines + ([f"  and {len(order) - len(shown):,} more: -v names all"] if len(order) > len(shown) else [])
