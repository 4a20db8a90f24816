"""The unit of the count: OpInfo entry x dtype, from records that hold a comparison."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from parity.catalog import opinfo
from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import Row
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.results import Aspect
from parity.engine import suite
from parity.generation import generate
from parity.prove import counts
from parity.prove.counts import EXPECTED, ItemRecords, Pair, TwoFeatures
from parity.store.features import Coverage, Tally, features

AGREE = {"forward": {"agree": 1}}


def one(pairs: tuple[Pair, ...], unit: str, aspect: Aspect) -> Pair:
    return next(p for p in pairs if p.unit == unit and p.aspect is aspect)


def test_a_native_row_and_its_entry_are_one_pair() -> None:
    """By both sources, counted once."""
    pairs = counts.tally(
        [ItemRecords(suite.row("add"), "float32", AGREE), ItemRecords(suite.row("opinfo:add"), "float32", AGREE)]
    )
    assert [p.unit for p in pairs if p.aspect is Aspect.FORWARD] == ["add"]
    assert one(pairs, "add", Aspect.FORWARD) == Pair(
        "add", "float32", Aspect.FORWARD, "compared", True, frozenset({"native", "sample"})
    )


def test_void_and_refused_records_are_no_comparison() -> None:
    """Neither the reference's refusal nor the device's."""
    for status in ("void", "unsupported"):
        seen = ItemRecords(suite.row("opinfo:add"), "float32", {"forward": {status: 3}}, {"the reference refuses": 3})
        pair = one(counts.tally([seen]), "add", Aspect.FORWARD)
        expected = {"void": ("void", "the reference refuses"), "unsupported": ("not reached", "unsupported")}
        assert (pair.state, pair.reason) == expected[status]


def test_what_no_case_can_come_to_has_its_reason() -> None:
    """In OpInfo's own words where it has the pair, and no pair where it has not."""
    pairs = counts.tally([ItemRecords(suite.row(f"opinfo:{name}"), "float32", AGREE) for name in ("pca_lowrank", "svd")])
    assert (
        one(pairs, "pca_lowrank", Aspect.BACKWARD).reason == "gradients of several right answers (pca_lowrank) are not compared"
    )
    assert "several right answers" not in one(pairs, "svd", Aspect.BACKWARD).reason
    assert not [p for p in pairs if p.aspect is Aspect.INPLACE]


def test_entries_that_were_not_run_are_told_where_all_were_asked_for() -> None:
    """With the reason why no row draws them."""
    pairs = counts.tally([], [("to_sparse", "float32"), ("add", "float32")])
    assert one(pairs, "to_sparse", Aspect.FORWARD).reason == opinfo.OUT_OF_REACH["to_sparse"]
    assert one(pairs, "add", Aspect.FORWARD).reason == "not selected"


def test_an_op_that_opinfo_lacks_counts_extra() -> None:
    """And a further row of an op that it has does not."""
    assert counts.units(suite.row("foreach_add")) == ("foreach_add",)
    assert counts.units(suite.row("sum_dim")) == ("sum",)
    assert counts.units(suite.row("softmax_kernel")) == ("softmax",)


def test_what_counts_extra_is_no_entry_by_another_name() -> None:
    """A further row of an op that OpInfo has does not pad the count: neither its name nor its function's is an entry's."""
    extra = [r for r in suite.rows("native") if not set(counts.units(r)) & set(opinfo.ENTRIES)]
    assert len(extra) > 50
    words = {key.partition(":")[0].rpartition(".")[2].strip("_") for key in opinfo.ENTRIES if "__" not in key}
    function = {r.name: r.call.rpartition(".")[2].strip("_") for r in extra if not r.call.startswith("operator.")}
    assert not [r.name for r in extra if {r.name.strip("_"), function.get(r.name)} & words]


def test_a_variant_counts_under_something_that_is() -> None:
    """A row that was renamed would count extra in silence."""
    rows = suite.rows("native")
    under = {r.counts.under for r in rows} - {""}
    assert len(under) > 20
    assert under - set(opinfo.ENTRIES) <= {r.name for r in rows}


def test_drawing_goes_on_until_every_aspect_holds_a_comparison() -> None:
    """Those that the row has."""
    add, copy = suite.row("add"), suite.row("copy_")
    all_of = {str(a): {"agree": 1} for a in counts.ASPECTS}
    assert counts.fully_compared(add, "float32", all_of)
    assert not counts.fully_compared(add, "float32", {**all_of, "out=": {"void": 1}})
    assert counts.fully_compared(add, "int64", {k: v for k, v in all_of.items() if "backward" not in k})
    assert not counts.fully_compared(copy, "int64", AGREE)
    assert counts.fully_compared(copy, "int64", {"in-place": {"agree": 1}})


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
    missing = counts.missing_pairs(drawn, items, FULL.sizes)
    assert sum(1 for _ in drawn.drawn()) > 2000
    assert [two for two, n in missing.items() if n >= EXPECTED] == []


def test_what_the_run_lacks_is_a_hole() -> None:
    """Two features that never come together in the run, though each of them comes."""
    items = [(suite.row("sub"), "float32", 500), (suite.row("add"), "float32", 500)]
    drawn = cases_of(items)
    without = counted([c for c in drawn if not features(c) >= set(TWO)])
    assert not set(TWO) - without.counts.keys()
    missing = counts.missing_pairs(without, items, FULL.sizes)
    assert [two for two, n in missing.items() if n >= EXPECTED] == [TWO]
    assert next(iter(missing)) == TWO
    assert TWO not in counts.missing_pairs(counted(drawn), items, FULL.sizes)


def test_a_short_run_owes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two cases are to have is a part of what many decoded ones show."""
    monkeypatch.setattr(counts, "CASES", 200)
    row = suite.row("sub")
    two, many = (counts.expected_pairs([(row, "float32", n)], FULL.sizes) for n in (2, 200))
    assert two.keys() == many.keys()
    assert two[TWO] == pytest.approx(many[TWO] / 100)
    assert max(two.values()) <= 2
    assert counts.expected_pairs([(row, "float32", 20_000)], FULL.sizes) == many


def test_no_items_owe_nothing() -> None:
    """Neither does a row without samples in a dtype."""

    def without_samples(_: Draw) -> Arguments:
        raise CaseError("no sample")

    assert not counts.expected_pairs([], FULL.sizes)
    assert not counts.expected_pairs([(replace(suite.row("sub"), signature=without_samples), "float32", 9)], FULL.sizes)
