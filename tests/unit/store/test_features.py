"""What a case is counted under."""

from __future__ import annotations

import pytest

from parity.core import notation
from parity.store.features import BORDER, Coverage, Tally, features, pack, unpack


def of(text: str, *aspects: str) -> frozenset[str]:
    return features(notation.parse(text), aspects)


def test_layouts_are_told_by_position() -> None:
    """The first, the second, and all behind."""
    found = of("lerp(float32[2, 3].transpose(0, 1), float32[2, 3], float32[2, 3].step(-1, 2, 0).expand(0))")
    assert {
        "layout[0] transpose",
        "layout[1] contiguous",
        "layout[2+] step",
        "layout[2+] expand",
        "layout[2+] stacked",
    } <= found
    assert "layout[0] contiguous" not in found
    assert "count 3" in found


def test_values_and_specials_are_told_of_all_operands() -> None:
    """Specials by their kind; an empty operand holds none."""
    found = of('add(float32[2].wide(seed=1).at(0, "-inf"), float32[2].ties(seed=2).at(1, "subnormal"))')
    assert {"values wide", "values ties", "special inf", "special subnormal"} <= found
    assert not [f for f in of('neg(float32[0].at(0, "nan"))') if f.startswith("special")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("neg(float32[()])", {"shape 0-d"}),
        ("neg(float32[3, 0])", {"shape empty"}),
        ("neg(float32[1, 4, 4])", {"shape size 1", "shape square"}),
        ("neg(float32[1, 2, 1, 2, 1])", {"shape rank 5+", "shape size 1"}),
        ("neg(float32[2, 257])", {"shape border"}),
        ("neg(float32[40000])", {"shape border", "shape large"}),
    ],
)
def test_shapes(text: str, words: set[str]) -> None:
    """Each shape word, and no other."""
    assert {f for f in of(text) if f.startswith("shape")} == words


def test_what_stands_beside_the_operands() -> None:
    """Numbers, flags, lists, dims from the end, mixed dtypes, a subset of gradients, an operand on the CPU."""
    assert {"argument list", "argument flag", "argument negative dim"} <= of("sum(float32[2, 3], dim=(0, -1), keepdim=True)")
    assert "argument number" in of("add(float32[2], 2)")
    assert "argument list of tensors" in of("cat((float32[2], float32[3]))")
    assert {"operands of several dtypes", "operand on the CPU"} <= of("add(float32[2], int64[()].on_cpu())")
    assert "gradients of some" in of("add(float32[2], float32[2].frozen())")


def test_what_is_the_same_everywhere_is_no_feature() -> None:
    """A plain destination, ones as cotangent, gradients recorded."""
    plain = of("neg(float32[2])", "forward")
    assert plain == {"dtype float32", "count 1", "layout[0] contiguous", "values uniform", "aspect forward"}
    found = of('neg(float32[2]).cotangent("normal", "expanded", 3).into("stepped").after("garbage")')
    assert found - plain == {"cotangent normal", "cotangent-layout expanded", "into stepped", "after garbage"}
    assert "into another dtype" in of('neg(float32[2]).into("float16")')
    assert "mode no_grad" in of('neg(float32[2]).under("no_grad")')


def test_a_refused_case_has_neither_destination_nor_cotangent() -> None:
    """Only what is wrong with it."""
    found = of('add(float32[2], float32[3]).refused("shape")')
    assert "refused shape" in found
    assert not [f for f in found if f.startswith(("into", "cotangent", "after"))]


def test_each_two_features_of_a_case_are_counted_together() -> None:
    """Aspects are counted, and are no pairs that were drawn."""
    tally = Tally("some")
    tally.add([{"into rows", "special nan"}, {"special nan"}])
    tally.add([{"into rows", "special nan", "aspect forward"}])
    counted = tally.coverage()
    assert counted.cases == 3
    assert counted.counts == {"aspect forward": 1, "into rows": 2, "special nan": 3}
    assert counted.together == {"aspect forward": {"into rows": 1, "special nan": 1}, "into rows": {"special nan": 2}}
    assert list(counted.drawn()) == [("into rows", "special nan")]


def test_features_travel_as_json() -> None:
    """Each word once."""
    cases = [{"into rows", "special nan"}, set[str](), {"special nan"}]
    tree = pack(cases)
    assert sorted(tree["words"]) == ["into rows", "special nan"]
    assert [set(c) for c in unpack(tree)] == cases


def test_a_dim_that_is_0_is_not_negative() -> None:
    assert "argument negative dim" not in of("sum(float32[2, 3], dim=(0, 1))")


def test_views_are_stacked_where_two_steps_are_of_different_kinds() -> None:
    """A lazy bit and a step are one kind, and so is a step taken twice."""
    step = ".step(0, 2, 0)"
    views = (step, f"{step}.step(1, 2, 0)", f".conj(){step}", f"{step}.transpose(0, 1)")
    assert ["layout[0] stacked" in of(f"exp(complex64[4, 4]{view})") for view in views] == [False, False, False, True]


def test_a_dimension_is_at_the_border_from_that_size_on() -> None:
    assert ["shape border" in of(f"exp(float32[{BORDER + more}])") for more in (-1, 0, 1)] == [False, True, True]


def test_no_feature_counts_more_cases_than_there_are() -> None:
    assert Coverage("unary", 2, {"scalar": 2}).cases == 2
    with pytest.raises(ValueError, match="a feature counts more cases than there are"):
        Coverage("unary", 1, {"scalar": 2})
