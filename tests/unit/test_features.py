"""What a case is counted under, which two features exclude each other, and what a hole is."""

from __future__ import annotations

import pytest

from parity import notation, suite
from parity.features import EXPECTED, Tally, exclude, features, pack, unpack
from parity.generation import generate


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


@pytest.mark.parametrize(
    ("one", "two", "most", "expected"),
    [
        ("into stepped", "into rows", 4, True),
        ("mode no_grad", "aspect backward", 4, True),
        ("cotangent zero", "mode inference", 4, True),
        ("layout[0] contiguous", "layout[0] flat", 4, True),
        ("layout[0] flat", "layout[0] step", 1, False),
        ("layout[0] contiguous", "layout[1] flat", 2, False),
        ("shape 0-d", "layout[0] step", 1, True),
        ("shape 0-d", "layout[0] step", 2, False),
        ("shape 0-d", "layout[0] select", 1, False),
        ("count 1", "layout[1] flat", 4, True),
        ("refused dtype", "into rows", 4, True),
        ("refused dtype", "aspect refusal", 4, False),
        ("values wide", "values ties", 1, True),
        ("values wide", "values ties", 2, False),
    ],
)
def test_exclusion_is_symmetric_and_knows_how_many_operands_there_are(one: str, two: str, most: int, expected: bool) -> None:
    """What cannot stand in one case."""
    assert exclude(one, two, most) is exclude(two, one, most) is expected


def test_no_drawn_case_holds_two_features_that_exclude_each_other() -> None:
    """The rules against the generator: a rule that forbids what is drawn would hide a hole."""
    for item in suite.select(("add", "sum", "lerp", "index_add", "conv2d", "cat", "clamp"), (), ("float32", "int64")):
        for k in range(60):
            case = generate.nth(item.row, item.dtype, suite.profile("full").sizes, "7", k).case
            words = sorted(features(case))
            most = int(next(w for w in words if w.startswith("count "))[6])
            wrong = [(f, g) for i, f in enumerate(words) for g in words[i + 1 :] if exclude(f, g, most)]
            assert not wrong, f"{wrong} in {notation.case_text(case)}"


def test_a_pair_is_missing_where_each_of_the_two_was_drawn() -> None:
    """With the number of cases that chance would give it."""
    tally = Tally("some")
    tally.add([{"into rows", "special nan"}, {"special nan"}, {"after garbage"}, {"into rows"}])
    tally.add([{"after garbage"}] * 20 + [{"special inf"}] * 20)
    tally.add([{"after larger", "after garbage"}])  # one at most: neither missing nor refused once it is there
    made = tally.coverage()
    assert made.cases == 45
    assert made.counts["after garbage"] == 22
    assert made.together["into rows"] == {"special nan": 1}
    missing = {(f, g): n for n, f, g in made.empty}
    assert missing[("after garbage", "special inf")] == 10.0 >= EXPECTED
    assert missing[("after garbage", "special nan")] == 0.5
    assert ("after garbage", "after larger") not in missing
    assert made.holes == 1
    assert made.applicable == made.drawn + len(missing)


def test_features_travel_as_json() -> None:
    """Each word once."""
    cases = [{"into rows", "special nan"}, set[str](), {"special nan"}]
    tree = pack(cases)
    assert sorted(tree["words"]) == ["into rows", "special nan"]
    assert [set(c) for c in unpack(tree)] == cases
