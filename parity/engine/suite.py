"""The suite that a run consists of: items (one op in one dtype), profiles (how many cases of each), and their selection by
name.

Nothing here imports torch, so that a misspelt name is reported at once, and every worker collects the same items in the same
order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from parity import catalog
from parity.catalog import entries, lookup
from parity.catalog.draw import Sizes, SweepPlan
from parity.catalog.row import Row
from parity.core import extensions
from parity.core.case import TORCH_DATA, source_of
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import UsageError, near

row = entries.row
SOURCES = ("native", *TORCH_DATA, "ops", "all")
MEMBERS = {"ops": ("native", "opinfo"), "all": ("native", *TORCH_DATA)}  # sources that stand for several
MOST_SHARDS = 999
# Sizes at which kernels change their path or a counter ends, for the sweep: tiles and threads of a group (1,024), blocks
# (4,096), 16-bit integers with a sign and without, the limit of a grid's second and third dimension (65,535).
BORDERS = (1024, 1025, 4097, 32767, 32768, 32769, 65535, 65536, 65537)
SWEPT_LIMIT = 1 << 18  # elements of the operands of a case of the sweep
# At full and deep also tiles of kernels, a grid's 2**17, and the 2**20 from which reductions take several passes.
MORE_BORDERS = (
    *(16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513),
    *(*BORDERS, 131071, 131073, 1048576, 1048577),
)
MORE_SWEPT_LIMIT = 1 << 21
ORACLE_EVERY = 50  # one explored case in so many goes to the oracle even if the screens decide


@dataclass(frozen=True, slots=True)
class Score:
    """How many planted faults a profile was seen to find, and `quick` of the same ones. commit, command: what was run; the
    command names the other profile for `quick`."""

    faults: str
    found: int
    quick: int
    of: int
    commit: str
    command: str

    def __str__(self) -> str:
        return f"{self.found} of {self.of} {self.faults}, where quick found {self.quick}"


@dataclass(frozen=True, slots=True)
class RunProfile:
    """How much a run does. examples: cases per op by dtype (`""` for all others), for native rows and for
    those of torch's test data.

    pinned: number of cases per item that are the same in every run, whatever the seed; baselines use them. often: family ->
    factor for the number of cases, for families in which few ops can combine certain features; otherwise a row's own. poison:
    fill freed memory of the device before cases, and look for writes next to tensors. sweep: cases of a native item that meet
    border sizes. alike: so many explored cases of a native item in a row have the same shapes, scalars and flags. excludes:
    what the agreement of a run therefore does not speak of; scores: what it was seen to find all the same.
    """

    name: str
    source: str
    native: dict[str, int]
    sampled: dict[str, int]
    pinned: int
    sizes: Sizes
    often: dict[str, int] = field(default_factory=dict)
    poison: bool = False
    sweep: SweepPlan = field(default_factory=SweepPlan)
    alike: int = 1
    excludes: str = ""
    scores: tuple[Score, ...] = ()

    def sweeps(self, row: Row, dtype: str) -> int:
        """Cases of one item that meet border sizes."""
        return 0 if row.is_sampled else sum(self.sweep.counts(dtype))

    def examples(self, row: Row, dtype: str) -> int:
        """Explored cases of one item, in addition to the pinned ones."""
        table = self.sampled if row.is_sampled else self.native
        return int(table.get(dtype, table[""]) * self.often.get(row.family, row.draws.cases))


# mac: where each new shape compiles a graph; quick: for a pull request; full: every night; deep: before an upgrade.
_OURS = (
    RunProfile(
        "mac", "native", {"float32": 32, "float16": 16, "bfloat16": 12, "complex64": 10, "int64": 8, "": 5},
        {"float32": 6, "": 3}, 1, Sizes(), sweep=SweepPlan({"float32": 1}, BORDERS, SWEPT_LIMIT), alike=64,
        excludes="most shapes, scalars and flags besides one set for each op in each dtype (--seed draws another), and "
        "border sizes in more than one case of each op in float32",
        scores=(
            Score("bugs of the zoo", 132, 154, 164, "eb6aa80", "parity prove zoo --profile mac"),
            Score(
                "mutants of ten ops", 31, 34, 35, "eb6aa80",
                "parity prove mutants softmax conv2d mm cumsum gelu sort layer_norm index_select avg_pool2d add --limit 40 "
                "--profile mac",
            ),
        ),
    ),
    RunProfile(
        "quick", "native", {"float32": 32, "float16": 20, "bfloat16": 16, "complex64": 12, "int64": 10, "": 6},
        {"float32": 6, "": 3}, 2, Sizes(), sweep=SweepPlan({"float32": 2, "float16": 1, "int64": 1}, BORDERS, SWEPT_LIMIT),
    ),
    RunProfile(
        "full", "all", {"float32": 140, "float16": 90, "bfloat16": 70, "complex64": 50, "": 30}, {"float32": 12, "": 6}, 8,
        Sizes(
            border=(
                *(16, 17, 31, 32, 33, 64, 65, 127, 128, 255, 256, 257, 512, 1024, 4097, 8192),
                *(32767, 32769, 65535, 65536, 65537),
            ),
            limit=1 << 18,
        ),
        {
            "histograms": 8, "attention": 4, "activations": 2, "fft": 2, "indexing": 2, "reductions": 2, "scans": 2,
            "vision": 2,
        },
        poison=True,
        sweep=SweepPlan(
            one={"float32": 12, "float16": 8, "int64": 6, "": 3}, borders=MORE_BORDERS, limit=MORE_SWEPT_LIMIT,
            two={"float32": 13, "float16": 6, "int64": 4, "": 2}, elements={"float32": 1}, most=1 << 22,
        ),
    ),
    RunProfile(
        "deep", "all", {"float32": 1100, "float16": 700, "bfloat16": 550, "complex64": 400, "": 240}, {"float32": 100, "": 50},
        8,
        Sizes(
            border=(
                16, 17, 32, 33, 64, 65, 127, 128, 255, 256, 257, 512, 1024, 4097, 8192, 32767, 32769, 65535, 65537, 131073,
            ),
            border_odds=6, limit=1 << 25,
        ),
        poison=True,
        sweep=SweepPlan(
            one={"float32": 48, "float16": 32, "int64": 24, "": 12}, borders=MORE_BORDERS, limit=MORE_SWEPT_LIMIT,
            two={"float32": 78, "float16": 26, "int64": 26, "": 13}, elements={"float32": 4, "float16": 1, "int64": 1},
            most=1 << 24,
        ),
    ),
)  # fmt: skip
PROFILES: dict[str, RunProfile] = {p.name: p for p in _OURS}


@dataclass(frozen=True, slots=True)
class Item:
    """One op in one dtype: a test of the suite."""

    row: Row
    dtype: str

    @property
    def id(self) -> str:
        """Stable name in pytest and reports."""
        return f"{self.row.name}-{self.dtype}"


def shard(items: Sequence[Item], which: str | None) -> tuple[Item, ...]:
    """The items of one shard ("3/7" is the third of seven), or all. An item's shard depends on its id and the number of
    shards alone, so it is the same in every run, on every machine. Raises UsageError."""
    if not which:
        return tuple(items)
    number, count = shard_numbers(which)
    return tuple(i for i in items if _hashed(i.id) % count == number - 1)


def shard_numbers(which: str) -> tuple[int, int]:
    """(number, count) of a shard in words, from "3/7". Raises UsageError."""
    number, _, count = which.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= MOST_SHARDS):
        raise UsageError(f"'{which}' is not a shard; name one of at most {MOST_SHARDS}, such as 3/7: the third of seven")
    return int(number), int(count)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def rows(source: str) -> tuple[Row, ...]:
    """All rows of a source, in the order of a report. Raises UsageError for an unknown source."""
    if source not in SOURCES:
        raise UsageError(f"unknown source '{source}'; allowed: {', '.join(SOURCES)}")
    extensions.load()
    members = MEMBERS.get(source, (source,))
    return tuple(r for one in members for r in (catalog.ROWS.values() if one == "native" else entries.rows(one)))


def profile(name: str) -> RunProfile:
    """The profile of that name. Raises UsageError."""
    if name not in PROFILES:
        raise UsageError(f"unknown profile '{name}'; allowed: {', '.join(PROFILES)}")
    return PROFILES[name]


def _elsewhere(pattern: str, source: str) -> str:
    """Where a pattern that matches nothing in a source matches, or what is like it there; "" if nothing is."""
    others = list(dict.fromkeys(source_of(r.name) for r in lookup.matching(pattern, rows("all"))))
    if source != "native" and "native" in others:
        return "it is in parity's own rows only: add --source all"
    if "opinfo" in others:
        return "it is in torch's OpInfo only: add --source all"
    hint = lookup.hint(pattern, rows(source))
    also = f"it is in torch's {' and '.join(others)}: add --source {others[0]}" if others else ""
    return f"{hint} As a whole {also}" if hint and also else hint or also


def _check(row: Row) -> None:
    """Raise UsageError for a row of others that names a dtype that there is not; `planning.check` does for the rest."""
    for dtype in (*row.dtypes, *row.grad):
        if dtype not in FACTS:
            raise UsageError(f"{catalog.place(row.name)} names a dtype '{dtype}'; {near(dtype, FACTS)}")


def select(
    patterns: Sequence[str] = (), families: Collection[str] = (), dtypes: Collection[str] = (), source: str = "native"
) -> tuple[Item, ...]:
    """The items that match patterns (`*`, `?`), families and dtypes, in catalog order; an empty argument restricts nothing.

    Raises UsageError for an unknown name, with similar names, and if the restrictions together leave nothing.
    """
    pool = rows(source)
    named: set[str] = set()
    for pattern in patterns:
        matching = lookup.matching(pattern, pool)
        if not matching:
            said = _elsewhere(pattern, source) or lookup.hint(pattern, rows("all"))
            raise UsageError(f"no op matches '{pattern}'; {said or 'parity run --list lists all'}")
        named |= {r.name for r in matching}
    kinds = tuple(dict.fromkeys(r.family for r in pool))
    for family in families:
        if family not in kinds:
            close = near(family, kinds)
            hint = close + " " if close.startswith("did you") else ""
            raise UsageError(f"unknown family '{family}'; {hint}allowed: {', '.join(kinds)}")
    for dtype in dtypes:
        if dtype not in FACTS:
            raise UsageError(f"unknown dtype '{dtype}'; {near(dtype, FACTS) or 'allowed: ' + ', '.join(FACTS)}")
    wanted = dtypes or DEFAULT
    chosen = tuple(
        Item(r, d)
        for r in pool
        if (not patterns or r.name in named) and (not families or r.family in families)
        for d in r.dtypes
        if d in wanted
    )
    for r in pool:
        if r.name in catalog.ADDED and (not patterns or r.name in named):
            _check(r)
    if not chosen:
        what = f"no op of {', '.join(patterns) or 'the catalog'}"
        if not any(r.family in families for r in pool if r.name in named) and patterns and families:
            theirs = dict.fromkeys(r.family for r in pool if r.name in named)
            raise UsageError(
                f"the selection is empty: {what} is of family {', '.join(families)}; leave --family out, or name another: "
                + ", ".join(theirs)
            )
        of = f" of family {', '.join(families)}" if families else ""
        raise UsageError(
            f"the selection is empty: {what}{of} takes {', '.join(wanted)}; widen --dtype or --family, or see parity run --list"
        )
    return chosen
