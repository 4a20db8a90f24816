"""What a run consists of: items (one op in one dtype), profiles (how many cases of each), and their selection by name.

Nothing here imports torch, so that a misspelt name is told at once and every worker collects the same items in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from parity import catalog, naming
from parity.catalog import opinfo
from parity.catalog.draw import Sizes
from parity.catalog.row import Row
from parity.dtypes import DEFAULT, FACTS
from parity.errors import UsageError, near

SOURCES = ("native", "opinfo", "all")
ORACLE_EVERY = 50  # one explored case in so many goes to the oracle whatever the screens say


@dataclass(frozen=True, slots=True)
class Profile:
    """How much a run does. examples: cases per op by dtype (`""` for all others), for native and for OpInfo rows.

    pinned: how many cases of each item are the same in every run, whatever the seed; they feed baselines.
    often: families of which so many times as many cases are drawn, because few of their ops have what may come together.
    """

    name: str
    source: str
    native: dict[str, int]
    opinfo: dict[str, int]
    pinned: int
    sizes: Sizes
    often: dict[str, int] = field(default_factory=dict)

    def examples(self, row: Row, dtype: str) -> int:
        """Explored cases of one item, beside the pinned ones."""
        table = self.opinfo if row.family == "opinfo" else self.native
        return table.get(dtype, table[""]) * self.often.get(row.family, 1)


# The one table of how many. quick: a pull request; full: every night; deep: before an upgrade.
PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile(
            "quick",
            "native",
            {"float32": 32, "float16": 20, "bfloat16": 16, "complex64": 12, "int64": 10, "": 6},
            {"float32": 6, "": 3},
            2,
            Sizes(),
        ),
        Profile(
            "full",
            "all",
            {"float32": 140, "float16": 90, "bfloat16": 70, "complex64": 50, "": 30},
            {"float32": 12, "": 6},
            8,
            Sizes(
                border=(
                    *(16, 17, 31, 32, 33, 64, 65, 127, 128, 255, 256, 257, 512, 1024, 4097, 8192),
                    *(32767, 32769, 65535, 65536, 65537),
                ),
                limit=1 << 18,
            ),
            {
                "histograms": 8,
                "attention": 4,
                "activations": 2,
                "fft": 2,
                "indexing": 2,
                "reductions": 2,
                "scans": 2,
                "vision": 2,
            },
        ),
        Profile(
            "deep",
            "all",
            {"float32": 1100, "float16": 700, "bfloat16": 550, "complex64": 400, "": 240},
            {"float32": 100, "": 50},
            8,
            Sizes(
                border=(
                    16,
                    17,
                    32,
                    33,
                    64,
                    65,
                    127,
                    128,
                    255,
                    256,
                    257,
                    512,
                    1024,
                    4097,
                    8192,
                    32767,
                    32769,
                    65535,
                    65537,
                    131073,
                ),
                border_odds=6,
                limit=1 << 25,
            ),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Item:
    """One op in one dtype: a test of the suite."""

    row: Row
    dtype: str

    @property
    def id(self) -> str:
        """Stable name, as pytest and reports show it."""
        return f"{self.row.name}-{self.dtype}"


@functools.cache
def rows(source: str) -> tuple[Row, ...]:
    """All rows of a source, in the order of a report. Raises UsageError for an unknown source."""
    if source not in SOURCES:
        raise UsageError(f"unknown source '{source}'; allowed: {', '.join(SOURCES)}")
    native = tuple(catalog.ROWS.values()) if source != "opinfo" else ()
    return (*native, *(opinfo.rows() if source != "native" else ()))


def row(name: str) -> Row:
    """A row of either source by its full name. Raises UsageError."""
    if name.startswith(opinfo.PREFIX):
        for r in rows("opinfo"):
            if r.name == name:
                return r
        known = [r.name for r in rows("opinfo")]
        raise UsageError(f"unknown op '{name}'; {near(name, known) or 'parity run --list --source opinfo lists them'}")
    return catalog.row(name)


def profile(name: str) -> Profile:
    """A profile by name. Raises UsageError."""
    if name not in PROFILES:
        raise UsageError(f"unknown profile '{name}'; allowed: {', '.join(PROFILES)}")
    return PROFILES[name]


def select(
    patterns: Sequence[str] = (), families: Collection[str] = (), dtypes: Collection[str] = (), source: str = "native"
) -> tuple[Item, ...]:
    """The items that patterns (`*`, `?`), families and dtypes leave, in catalog order; an empty restriction restricts nothing.

    Raises UsageError for a name that nothing has, with near matches; also where the restrictions together leave nothing.
    """
    pool = rows(source)
    named: set[str] = set()
    for pattern in patterns:
        found = naming.meant(pattern, pool)
        if not found:
            there = "torch's OpInfo" if source == "native" else "parity's own rows"
            elsewhere = f"it is in {there} only: add --source all" if naming.meant(pattern, rows("all")) else ""
            said = elsewhere or naming.hint(pattern, pool) or naming.hint(pattern, rows("all"))
            raise UsageError(f"no op matches '{pattern}'; {said or 'parity run --list lists all'}")
        named |= {r.name for r in found}
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
