"""A hole is a pair of features that decoded cases have and no case of the run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import Row
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.engine import suite
from parity.generation import generate
from parity.prove import coverage
from parity.prove.coverage import EXPECTED, TwoFeatures
from parity.store.features import Coverage, Tally, features

FULL = suite.profile("full")
TWO: TwoFeatures = ("layout[0] step", "shape border")


def of_family(family: str) -> list[tuple[Row, str, int]]:
    """The items of a family, each with its cases in a full run."""
    return [(i.row, i.dtype, FULL.pinned + FULL.examples(i.row, i.dtype)) for i in suite.select((), (family,))]


def cases_of(items: Collection[tuple[Row, str, int]]) -> list[Case]:
    """What a full run draws of them."""
    return [generate.nth(row, dtype, FULL.sizes, "0", k + 1).case for row, dtype, count in items for k in range(count)]


def counted(cases: Collection[Case]) -> Coverage:
    tally = Tally("some")
    tally.add([features(c) for c in cases])
    return tally.coverage()


@pytest.mark.parametrize("family", ["convolutions", "vision", "histograms"])
def test_chance_alone_makes_no_hole(family: str) -> None:
    """In a full run of a whole family, drawn and not run."""
    items = of_family(family)
    drawn = counted(cases_of(items))
    missing = coverage.missing(drawn, items, FULL.sizes)
    assert sum(1 for _ in drawn.drawn()) > 2000
    assert [two for two, n in missing.items() if n >= EXPECTED] == []


def test_what_the_run_lacks_is_a_hole() -> None:
    """Two features that never come together in the run, though each of them comes."""
    items = [(suite.row("sub"), "float32", 500), (suite.row("add"), "float32", 500)]
    drawn = cases_of(items)
    without = counted([c for c in drawn if not features(c) >= set(TWO)])
    assert not set(TWO) - without.counts.keys()
    missing = coverage.missing(without, items, FULL.sizes)
    assert [two for two, n in missing.items() if n >= EXPECTED] == [TWO]
    assert next(iter(missing)) == TWO
    assert TWO not in coverage.missing(counted(drawn), items, FULL.sizes)


def test_a_short_run_owes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two cases are to have is a part of what many decoded ones show."""
    monkeypatch.setattr(coverage, "CASES", 200)
    row = suite.row("sub")
    two, many = (coverage.expected([(row, "float32", n)], FULL.sizes) for n in (2, 200))
    assert two.keys() == many.keys()
    assert two[TWO] == pytest.approx(many[TWO] / 100)
    assert max(two.values()) <= 2
    assert coverage.expected([(row, "float32", 20_000)], FULL.sizes) == many


def test_no_items_owe_nothing() -> None:
    """Neither does a row without samples in a dtype."""

    def without_samples(_: Draw) -> Arguments:
        raise CaseError("no sample")

    assert not coverage.expected([], FULL.sizes)
    assert not coverage.expected([(replace(suite.row("sub"), signature=without_samples), "float32", 9)], FULL.sizes)
