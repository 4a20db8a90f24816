"""Items, profiles and selection."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from parity import catalog
from parity.catalog.draw import Arguments, Draw, Sizes
from parity.catalog.row import Row
from parity.core import extensions
from parity.core.case import OpClass
from parity.core.dtypes import DEFAULT
from parity.core.errors import UsageError
from parity.engine import planning, suite
from parity.generation import generate


def test_native_rows_are_at_least_120_over_all_families() -> None:
    """What the first form of the catalog promises."""
    families = {r.family for r in suite.rows("native")}
    assert len(suite.rows("native")) >= 120
    assert {"unary", "binary", "ternary", "reductions", "contractions", "convolutions", "pooling", "normalization"} <= families
    assert {"activations", "losses", "indexing", "movement", "shapes", "linalg", "attention", "recurrent"} <= families


def test_every_opinfo_entry_is_a_row_or_has_a_reason() -> None:
    """702 entries in torch 2.13."""
    from parity.catalog import opinfo

    names = {r.name.removeprefix(opinfo.PREFIX) for r in suite.rows("opinfo")}
    assert names | set(opinfo.OUT_OF_REACH) == set(opinfo.ENTRIES)
    assert len(opinfo.ENTRIES) == 702


def test_an_empty_selection_is_everything_in_the_default_dtypes() -> None:
    """In catalog order, each item once."""
    items = suite.select()
    assert len({i.id for i in items}) == len(items)
    assert {i.dtype for i in items} <= set(DEFAULT)
    assert [i.row.name for i in items] == sorted((i.row.name for i in items), key=[r.name for r in suite.rows("native")].index)


def test_patterns_families_and_dtypes_restrict_together() -> None:
    """All of them must hold."""
    items = suite.select(["conv*"], ["convolutions"], ["float16"])
    assert {i.row.family for i in items} == {"convolutions"}
    assert {i.dtype for i in items} == {"float16"}


def test_a_pattern_names_opinfo_rows_by_their_last_word() -> None:
    """`conv2d` is `opinfo:nn.functional.conv2d` too."""
    names = {i.row.name for i in suite.select(["conv2d"], source="all")}
    assert {"conv2d", "opinfo:nn.functional.conv2d"} <= names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["sofmax"],), "no op matches 'sofmax'; did you mean 'softmax'"),
        ((["jiterator_unary*"],), "no op matches"),
        (((), ["pools"]), "unknown family 'pools'; did you mean 'pooling'"),
        (((), (), ["half"]), "unknown dtype 'half'"),
        ((["bitwise_and"], (), ["float32"]), "the selection is empty: no op of bitwise_and takes float32"),
        ((["exp"], ["losses"]), "no op of exp is of family losses; leave --family out, or name another: unary"),
        (((), ["losses"], ["bool"]), "no op of the catalog of family losses takes bool"),
        (((), (), (), "nativ"), "unknown source 'nativ'; allowed: native, opinfo, modules, optimizers, ops, all"),
    ],
)
def test_unknown_names_are_refused_with_what_is_allowed(arguments: tuple[object, ...], words: str) -> None:
    """One sentence."""
    with pytest.raises(UsageError) as told:
        suite.select(*arguments)  # type: ignore[arg-type]  # names that are none are what is tested
    assert words in str(told.value)


def test_profiles_grow() -> None:
    """mac <= quick < full < deep for every row and dtype."""
    row = suite.row("add")
    for dtype in row.dtypes:
        least, few, more, most = (suite.profile(n).examples(row, dtype) for n in ("mac", "quick", "full", "deep"))
        assert least <= few < more < most


def arguments(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(draw.shape()),))


def shape_alone(draw: Draw) -> Arguments:
    return draw.shape()  # type: ignore[return-value]  # a mistake


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": OpClass("own-no")}, " is of the class 'own-no', which has no rule; add one"),
        ({"dtypes": ("float23",)}, " names a dtype 'float23'"),
        ({"grad": ("flot32",)}, " names a dtype 'flot32'"),
        ({"call": "torch.sinn"}, " calls torch.sinn, which is not there"),
        ({"call": "no_such.sin"}, " calls no_such.sin, which is not there"),
        ({}, ""),
    ],
)
def test_a_mistake_in_a_row_of_others_is_said_before_anything_runs(change: dict[str, Any], says: str, added: None) -> None:
    """With the file and line that added it."""
    catalog.add(Row("mine.s", arguments, **{"family": "mine", "rule": OpClass.COMPOSITE, "call": "torch.sin", **change}))
    _, file, line = catalog.ADDED["mine.s"]
    assert (file, "catalog.add(Row(" in linecache.getline(file, line)) == (__file__, True)
    planning.check(suite.select(["exp"]))  # others run
    said = ""
    try:
        planning.check(items := suite.select(["mine.s"]))
        assert {i.row.name for i in items} == {"mine.s"}
    except UsageError as e:
        said = str(e)
    assert said.startswith(f"the row 'mine.s' ({file}:{line}){says}" if says else "")
    assert bool(said) is bool(says)


def test_a_signature_that_returns_something_else_says_what_it_has_to(added: None) -> None:
    made = Row("mine.s", shape_alone, family="mine", rule=OpClass.COMPOSITE, call="torch.sin")
    with pytest.raises(UsageError, match=r"signature of the row 'mine.s' returns tuple; it has to return Arguments"):
        next(generate.search(made, "float32", Sizes(), "0", 1))


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a test adds are taken out again."""
    monkeypatch.setattr(catalog, "ROWS", dict(catalog.ROWS))
    monkeypatch.setattr(catalog, "ADDED", {})
    monkeypatch.setattr(extensions, "added", [])
