"""What a case is counted under, which two features exclude each other, and what a hole is."""

from __future__ import annotations

import pytest

from parity import notation, suite
from parity.features import EXPECTED, Tally, features, pack, unpack
from parity.generation import generate
from parity.room import AT, Room, exclude


def of(text: str, *aspects: str) -> frozenset[str]:
    return frozenset(w for w in features(notation.parse(text), aspects) if w[0] != AT)


def room(*texts: str) -> Room:
    return Room.of([features(notation.parse(t)) for t in texts])


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
        ("refused dtype", "aspect forward", 4, True),
        ("refused inputs", "layout[0] slice", 4, True),
        ("aspect double backward", "aspect forward-mode", 4, True),
        ("aspect in-place", "layout[0] expand", 4, True),
        ("refused dtype", "special nan", 4, True),
        ("refused dim", "gradients of some", 4, True),
        ("refused device", "shape empty", 4, True),
        ("refused shape", "shape 0-d", 2, True),
        ("refused shape", "shape 0-d", 3, False),
        ("refused dim", "argument negative dim", 1, False),
        ("values wide", "values ties", 1, True),
        ("values wide", "values ties", 2, False),
    ],
)
def test_exclusion_is_symmetric_and_knows_how_many_operands_there_are(one: str, two: str, most: int, expected: bool) -> None:
    """What cannot stand in one case."""
    assert exclude(one, two, most) is exclude(two, one, most) is expected


def test_two_features_that_no_operand_can_have_at_once_need_two_operands_that_can_hold_them() -> None:
    """Of operands whose values the call asks for, or whose shapes go together, the drawing owes nothing."""
    one_free = room(
        "embedding(int64[2].index(0, 3), float32[3, 2].wide())", "embedding(int64[2].index(0, 3), float32[3, 2].ties())"
    )
    assert not one_free.has("values wide", "values ties")
    assert one_free.has("values index", "values wide")
    assert room("add(float32[2].wide(), float32[2].ties())").has("values wide", "values ties")
    alike = room("mul(float32[()], float32[()])", "mul(float32[2, 2], float32[2, 2].step(-1, 2, 0))")
    assert not alike.has("shape 0-d", "layout[1] step")
    apart = room("mul(float32[()], float32[2])", "mul(float32[2, 2], float32[2, 2].step(-1, 2, 0))")
    assert apart.has("shape 0-d", "layout[1] step")
    assert alike.has("shape square", "layout[1] step")


def test_a_form_of_the_call_must_have_room_for_both() -> None:
    """What stands beside the operands comes with their number."""
    mixed = room("pow(float32[2].step(0, 2, 0), 2)", "pow(float32[2], float32[3].flat(1, 0))", "pow(float32[2], 3)")
    assert not mixed.has("argument number", "layout[1] flat")
    assert not mixed.has("argument number", "count 2")
    assert mixed.has("argument number", "layout[0] step")
    assert mixed.has("layout[0] step", "layout[1] flat")


def test_gradients_of_some_take_two_operands_that_have_one() -> None:
    """Integers have none, whether the call asks for them or the dtype is drawn."""
    bag = room(
        "embedding_bag(float32[3, 2], int64[4].index(0, 3))",
        "embedding_bag(float32[3, 2], int64[4].index(0, 3), float32[4].frozen())",
    )
    assert not bag.has("count 2", "gradients of some")
    assert bag.has("count 3", "gradients of some")
    two = room("add(float32[2], float32[2].frozen())", "add(float32[2], int64[2].full())")
    assert not two.has("gradients of some", "values full")
    assert two.has("gradients of some", "values uniform")


def test_shapes_that_go_together_are_told_by_rank() -> None:
    """The source of a row is 0-d where the operand is a vector: it has no square then."""
    tied = room(
        "select_scatter(float32[3], float32[()], 0, 1)",
        "select_scatter(float32[3, 3], float32[3], 0, 1)",
        "select_scatter(float32[3].step(0, 2, 0), float32[()], 0, 1)",
    )
    assert not tied.has("shape 0-d", "shape square")
    assert tied.has("layout[0] step", "shape 0-d")
    free = room("mul(float32[3, 3], float32[()])")
    assert free.has("shape 0-d", "shape square")


def test_operands_that_the_call_tames_hold_what_it_asks_for() -> None:
    """Beside a mask, what attention is given is finite; truth values are nothing else anywhere."""
    q = "float32[1, 2, 2]"
    texts = (
        f'scaled_dot_product_attention({q}.wide(), {q}.at(0, "nan"), {q})',
        f"scaled_dot_product_attention({q}.ties(), {q}, {q}, attn_mask=bool[2, 2])",
        f"scaled_dot_product_attention({q}, {q}, {q}, attn_mask=float32[2, 2].between(-8, 2))",
    )
    row = suite.row("scaled_dot_product_attention")
    masked = Room.of([features(notation.parse(t), (), row.tames) for t in texts])
    assert not masked.has("operands of several dtypes", "special nan")
    assert not masked.has("values between", "values wide")
    assert masked.has("values between", "values ties")
    assert masked.has("special nan", "values wide")
    untold = Room.of([features(notation.parse(t)) for t in texts])
    assert untold.has("values between", "values wide")


def test_what_is_wrong_on_purpose_needs_an_operand_for_it() -> None:
    """An index out of range takes an index; integers for numbers leave no lazy bit, and want a first operand of several."""
    gets = room(
        "getitem_advanced(float32[3, 2], (int64[2].index(0, 3),))",
        "getitem_advanced(float32[3, 2], (slice(0, 1, 1),))",
        'getitem_advanced(float32[3, 2], (int64[2].index(0, 3).at(0, "3"),)).refused("index")',
    )
    assert not gets.has("count 1", "refused index")
    assert gets.has("count 2", "refused index")
    sized = room("inv(complex64[2, 2].conj())", 'inv(int64[2, 2].inside(1, 3)).as_dtype("complex64").refused("dtype")')
    assert not sized.has("layout[0] conj", "refused dtype")


def test_the_row_says_what_torch_refuses_together() -> None:
    """With no word of it in the cases."""
    texts = ("repeat_interleave(float32[()], 2)", "repeat_interleave(float32[3], 2, dim=-1)")
    cases = [features(notation.parse(t)) for t in texts]
    assert Room.of(cases).has("argument negative dim", "shape 0-d")
    never = suite.row("repeat_interleave").never
    assert not Room.of(cases, never).has("argument negative dim", "shape 0-d")
    tally = Tally("some")
    tally.add(cases, never)
    assert ("argument negative dim", "shape 0-d") not in {(f, g) for _, f, g in tally.coverage().empty}


def test_what_is_to_be_expected_is_counted_in_the_forms_that_have_room() -> None:
    """Two of ten calls have the second operand that the pair takes; the one kind of values comes in a fifth of all that have
    room for it, the other in each."""
    one, two = {"count 1", "values wide", "@0 values wide"}, {"count 2", "@0 values ties", "values ties", "@1 values wide"}
    shown = Room.of([*[one] * 8, *[two | {"values wide"}] * 2])
    assert shown.expected("values ties", "values wide") == pytest.approx(2 * 0.2 * 1.0)


@pytest.mark.parametrize("family", ["convolutions", "vision"])
def test_the_full_profile_leaves_no_applicable_pair_out(family: str) -> None:
    """Whole families, drawn and not run."""
    full, tally = suite.profile("full"), Tally(family)
    for item in suite.select((), (family,)):
        row, sizes = item.row, full.sizes
        cases = [generate.nth(row, item.dtype, sizes, "pinned", k).case for k in range(full.pinned)]
        cases += [generate.nth(row, item.dtype, sizes, "0", k + 1).case for k in range(full.examples(row, item.dtype))]
        tally.add([features(c, (), row.tames) for c in cases], row.never)
    made = tally.coverage()
    assert made.applicable > 2500
    assert made.holes == 0, made.empty[:8]


def test_two_layouts_of_one_operand_need_one_of_two_steps() -> None:
    """A 0-d operand has one step at most."""
    plain = room("neg(float32[2].flat(1, 0))", "neg(float32[2].step(0, 2, 0))")
    assert not plain.has("layout[0] flat", "layout[0] step")
    stacked = room("neg(float32[2, 2].flat(1, 0).transpose(0, 1))", "neg(float32[2].step(0, 2, 0))")
    assert stacked.has("layout[0] flat", "layout[0] step")


def test_no_drawn_case_holds_two_features_that_exclude_each_other() -> None:
    """The rules against the generator: a rule that forbids what is drawn would hide a hole."""
    for item in suite.select(("add", "sum", "lerp", "index_add", "conv2d", "cat", "clamp"), (), ("float32", "int64")):
        for k in range(60):
            case = generate.nth(item.row, item.dtype, suite.profile("full").sizes, "7", k).case
            words = sorted(w for w in features(case) if w[0] != AT)
            most = int(next(w for w in words if w.startswith("count "))[6])
            wrong = [(f, g) for i, f in enumerate(words) for g in words[i + 1 :] if exclude(f, g, most)]
            assert not wrong, f"{wrong} in {notation.case_text(case)}"


def test_a_pair_is_missing_where_each_of_the_two_was_drawn() -> None:
    """With the number of cases that chance would give it."""
    tally = Tally("some")
    nan, inf = {"count 1", "special nan", "@0 special nan"}, {"count 1", "special inf", "@0 special inf"}
    tally.add([{"into rows"} | nan, nan, {"count 1", "after garbage"}, {"count 1", "into rows"}])
    tally.add([{"count 1", "after garbage"}] * 20 + [inf] * 20)
    tally.add([{"after larger", "after garbage"}])  # one at most: neither missing nor refused once it is there
    made = tally.coverage()
    assert made.cases == 45
    assert made.counts["after garbage"] == 22
    assert made.together["into rows"] == {"special nan": 1}
    assert not [w for w in made.counts if w[0] == AT]
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
