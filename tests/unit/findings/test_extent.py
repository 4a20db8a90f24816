"""At which values a finding shows, and by how much: measured from its cases, and compared with what is known."""

from __future__ import annotations

import math

import pytest

from parity.core import notation, picture
from parity.core.results import Measure
from parity.findings.extents import exceeds, joined
from parity.findings.regions import extent

INF = math.inf


def measured(case: str, letters: str, share: float, problem: str = "value", index: int = 0, **more: float) -> dict[str, float]:
    """The extent of one tensor of one dimension whose elements have errors with these letters."""
    bins = tuple(map(letters.count, picture.LETTERS))
    m = Measure("out", share, shape=(len(letters),), errors=letters, index=(index,), problem=problem, bins=bins)
    return dict(extent([(notation.parse(case), m)], **{"sure": 1.0, **more}))


def test_each_region_of_values_has_its_largest_error() -> None:
    """As the picture has it; the worst element's is exact, and what was not judged is left out."""
    found = measured("exp(float32[5].of(0.5, -0.5, 7.5, -7.5, -9.5))", "mano-", 30.0, index=2)
    assert found == {"0 to 1": 1.0, "-1 to 0": 0.0, "above 1": 30.0, "below -1": 4.0}


@pytest.mark.parametrize(
    ("value", "region"),
    [
        *(("0.0", "zero"), ("3.0", "integers"), ("250.5", "large"), ("1e-30", "tiny"), ("1e30", "huge"), ("-inf", "Inf")),
        *(("nan", "NaN"), ("0.25", "0 to 1")),
    ],
)
def test_a_value_lies_in_the_rarest_region_that_it_is_in(value: str, region: str) -> None:
    assert measured(f"exp(float32[2].of(0.5, {value}))", "am", 9.0, index=1)[region] == 9.0


def test_elements_made_of_several_lie_in_the_rarest_region_of_all() -> None:
    assert measured("sum(float32[2, 3].of(0.5, 2.5, -0.5, 9.5, 0.25, nan), 1)", "mm", 9.0) == {"NaN": 9.0}
    assert measured("add(float32[2].of(0.5, 2.5), float32[2].of(nan, 3))", "xm", INF, "class") == {
        "NaN": 0.0,
        "class NaN": INF,
        "integers": 1.0,
        "beside NaN or Inf": 1.0,
    }


def test_what_has_no_size_is_a_class_of_its_own() -> None:
    """At finite elements of operands that hold NaN, it says nothing of those that hold none."""
    found = measured("exp(float32[3].of(nan, 0.5, 2.5))", "axa", INF, "class", index=1)
    assert found == {"NaN": 0.0, "0 to 1": 0.0, "above 1": 0.0, "beside NaN or Inf": 0.0, "class beside NaN or Inf": INF}


def test_what_fails_for_its_size_says_nothing_of_a_nan_next_to_it() -> None:
    """A plain number does."""
    assert measured("exp(float32[2].of(nan, 1e30))", "ax", INF, "class", index=1) == {
        "NaN": 0.0,
        "huge": 0.0,
        "class huge": INF,
    }
    assert "class beside NaN or Inf" in measured("exp(float32[2].of(nan, 0.5))", "ax", INF, "class", index=1)


def test_a_region_agrees_where_chance_does_not_explain_it() -> None:
    """Where all others fail, few elements say it; where one in twenty does, more."""
    whole = "exp(float32[9].of(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, nan, nan, nan))"
    assert measured(whole, "oooooo" + "aaa", 9.0, sure=1e-3) == {"0 to 1": 9.0, "NaN": 0.0, "beside NaN or Inf": 9.0}
    assert "NaN" not in measured(whole, "oaaaaa" + "aaa", 9.0, sure=1e-3)


def test_what_agrees_with_a_rare_value_shows_that_it_does() -> None:
    case = notation.parse('exp(float32[2].at(0, "nan"))')
    assert dict(extent([(case, Measure("out", 0.1))])) == {"NaN": 0.0, "beside NaN or Inf": 0.0}
    assert extent([(None, Measure("out", 40.0, problem="value"))]) == (("anywhere", 40.0),)


def beyond(new: dict[str, float], old: dict[str, float], dtype: str = "float32") -> str:
    return exceeds(tuple(new.items()), tuple(old.items()), dtype)


def test_an_error_is_contained_up_to_a_factor_and_in_the_same_regions() -> None:
    known = {"0 to 1": 100.0, "above 1": 0.2, "NaN": 0.0}
    assert not beyond({"0 to 1": 900.0, "above 1": 0.9}, known)
    assert beyond({"0 to 1": 3e4}, known) == "3e+04 times the budget at values 0 to 1, was 100"
    assert beyond({"above 1": 3.0}, known) == "3 times the budget at values above 1"
    assert beyond({"class NaN": INF, "0 to 1": 9.0}, known) == "NaN or Inf differs at values NaN"
    assert beyond({"class 0 to 1": INF}, known) == "NaN or Inf differs at values 0 to 1"


def test_what_was_not_met_is_contained_where_plain_values_fail_in_both() -> None:
    known = {"0 to 1": 100.0}
    assert not beyond({"0 to 1": 100.0, "huge": 50.0, "class NaN": INF}, known)
    assert beyond({"0 to 1": 0.5, "huge": 50.0}, known) == "50 times the budget at values huge"
    assert beyond({"above 1": 50.0}, {"NaN": 0.0, "class NaN": INF}) == "50 times the budget at values above 1"
    assert beyond({"above 1": 50.0}, {}) == "50 times the budget at values above 1"


def test_results_that_had_nothing_to_do_with_the_truth_may_be_anything() -> None:
    assert not beyond({"above 1": 1e30, "class above 1": INF}, {"above 1": 1e12})
    assert beyond({"class above 1": INF}, {"above 1": 1e5})
    assert not beyond({"integers": INF}, {"integers": INF}, "int64")


def test_errors_at_huge_values_excuse_no_nan_at_plain_ones_nor_any_size() -> None:
    """Though the picture shows neither exactly. Where plain results had nothing to do with the truth, they do."""
    known = {"0 to 1": 5e4, "below -1": 1024.0, "huge": 5e25}
    assert beyond({"class 0 to 1": INF}, known) == "NaN or Inf differs at values 0 to 1"
    assert beyond({"0 to 1": 1e20}, known) == "1e+20 times the budget at values 0 to 1, was 5e+04"
    assert not beyond({"0 to 1": 1e5, "below -1": 5e4, "huge": 1e26}, known)
    assert not beyond({"class 0 to 1": INF, "0 to 1": 1e20}, {**known, "0 to 1": 5e12})


def test_extents_are_joined_by_their_largest_errors() -> None:
    assert joined([(("NaN", 0.0), ("huge", 3.0)), (("huge", 9.0),)]) == (("NaN", 0.0), ("huge", 9.0))
