"""The unit of the count: OpInfo entry x dtype, from records that hold a comparison."""

from __future__ import annotations

from parity.catalog import opinfo
from parity.core.results import Aspect
from parity.engine import suite
from parity.prove import counts
from parity.prove.counts import ItemRecords, Pair

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
