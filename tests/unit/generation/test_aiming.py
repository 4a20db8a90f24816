"""Cases that are aimed at a feature of calls which random choices hardly ever meet."""

from __future__ import annotations

import math

import pytest
import torch

from parity import catalog
from parity.catalog.draw import Arguments, Pick, Sizes, Sweep
from parity.checks.trial import values
from parity.core.case import Case, TensorSpec
from parity.core.notation import case_text, parse
from parity.core.results import Aspect
from parity.devices.resolve import resolve
from parity.engine import suite
from parity.execution import execute
from parity.execution.inputs import build
from parity.execution.values import dense, pool
from parity.generation import aiming, calls, generate, mixing, room
from parity.generation.shrink import plainest, walk
from parity.report.script import standalone


def drawn(name: str, dtype: str = "float32", seed: str = "1", count: int = 32) -> list[Case]:
    return [d.case for d in generate.search(catalog.row(name), dtype, Sizes(), seed, count)]


@pytest.mark.parametrize("name", ["conv2d", "layer_norm", "embedding", "sum"])
@pytest.mark.parametrize("word", ["nonfinite", "huge", "tiny"])
def test_each_row_with_gradients_meets_incoming_gradients_that_are_not_ordinary(name: str, word: str) -> None:
    assert any(c.cotangent.values == word for seed in range(16) for c in drawn(name, seed=str(seed)))


@pytest.mark.parametrize(("name", "why"), [("cholesky", "factors"), ("dropout", "a law"), ("gru", "formulas of gates")])
def test_rows_whose_gradients_have_conditions_do_not(name: str, why: str) -> None:
    assert {c.cotangent.values for c in drawn(name)} <= {"ones", "normal", "zero"}, why


@pytest.mark.parametrize("name", ["add", "maximum", "eq", "logaddexp"])
def test_both_operands_are_broadcast_and_one_along_a_middle_dimension(name: str) -> None:
    cases = [c for seed in "1234" for c in drawn(name, seed=seed) if len(c.operands()) == 2]
    shapes = [[s.shape for s in c.operands()] for c in cases]
    pairs = [(a, b) for a, b in shapes if len(a) == len(b)]
    assert any(
        any(m == 1 < n for m, n in zip(a, b, strict=True)) and any(n == 1 < m for m, n in zip(a, b, strict=True))
        for a, b in pairs
    )
    assert any(1 in (a[d], b[d]) and a[d] != b[d] for a, b in pairs for d in range(1, len(a) - 1))


def test_either_operand_has_fewer_dimensions() -> None:
    row, case = catalog.row("add"), parse("add(float32[4, 3].normal(), float32[4, 3].normal())")
    ranks = {tuple(len(s.shape) for s in c.operands()) for k in range(5) if (c := aiming._outer(row, case, by_turn(k)))}
    assert ranks == {(3, 3), (2, 3), (3, 2)}


@pytest.mark.parametrize("name", ["mm", "bmm", "matmul", "cat", "add", "scaled_dot_product_attention"])
def test_one_tensor_is_two_operands(name: str) -> None:
    cases = [c for seed in "12345678" for c in drawn(name, seed=seed) if c.sharing]
    assert cases
    for c in cases:
        operands = build(c).operands
        assert len({id(o.base) for o in operands}) < len(operands)
        assert parse(case_text(c)) == c


def test_operands_of_two_dtypes_become_one_of_the_dtype_that_the_call_is_named_by() -> None:
    row, case = catalog.row("mul"), parse("mul(int32[2].uniform(), float32[3, 2].uniform())")
    shared = aiming._shared(row, case, lambda _: 0)
    assert shared is not None
    assert {(s.dtype, s.shape) for s in shared.operands()} == {("int32", (2,))}


def test_incoming_gradients_are_extreme_only_where_operands_are_ordinary() -> None:
    """A special value in an operand is rarer than such a gradient, and is kept."""
    for seed in "1234":
        for c in drawn("exp", seed=seed):
            special = any(s.values.specials for s in c.operands())
            assert not special or c.cotangent.values in ("ones", "normal", "zero")


def test_gradients_of_attention_are_huge_and_tiny_but_finite() -> None:
    """Right kernels give NaN or Inf there, by the formula that they take."""
    words = {c.cotangent.values for seed in "12345" for c in drawn("scaled_dot_product_attention", seed=seed)}
    assert {"huge", "tiny"} & words
    assert "nonfinite" not in words


def test_rows_that_write_their_operands_share_none() -> None:
    for name in ("copy_", "batch_norm_train", "gru", "cholesky"):
        assert not any(c.sharing for c in drawn(name))


def test_a_shared_operand_is_uploaded_once_and_written_once_in_a_script() -> None:
    case = parse('mul(float32[3].normal(), float32[3].normal()).sharing("memory")')
    placed = execute.place(build(case), resolve("sim"))
    assert placed.views[0].data_ptr() == placed.views[1].data_ptr()
    script = standalone(case, "forward", "cuda", "title")
    assert script is not None
    assert "t1 = t0.detach()" in script
    assert "BASE_1" not in script


def test_operands_that_are_described_alike_are_two_tensors_else() -> None:
    operands = build(parse("mul(float32[3].normal(), float32[3].normal())")).operands
    assert operands[0].base.data_ptr() != operands[1].base.data_ptr()


def test_an_operand_with_limits_gets_no_values_beyond_them() -> None:
    """An exponent of any size made intermediate results subnormal, which right kernels round as they like."""
    row = catalog.row("ldexp")
    assert aiming._shared(row, parse("ldexp(float32[2].inside(-9, 6), int32[2].inside(-6, 6))"), lambda _: 0) is None
    shared = aiming._shared(row, parse("ldexp(float32[2].inside(-5, 6), float32[2].inside(-6, 6))"), lambda _: 0)
    assert shared is not None
    assert {s.values.params for s in shared.operands()} == {(-5, 6)}


@pytest.mark.parametrize("name", ["mm", "layer_norm", "where"])
def test_each_operand_alone_holds_a_nan_or_inf(name: str) -> None:
    row, case = catalog.row(name), next(c for c in drawn(name) if all(s.numel for s in c.operands()))
    met = {aiming._special(row, case, lambda n, k=k: k % n) for k in range(40)}  # type: ignore[misc]
    held = [[i for i, s in enumerate(c.operands()) if s.values.specials] for c in met if c]
    assert {i for one in held for i in one} == {k for k, s in enumerate(case.operands()) if s.dtype == "float32"}
    assert {len(one) for one in held} == {1}


def test_where_right_kernels_differ_no_nan_is_planted() -> None:
    for name in ("scaled_dot_product_attention", "cholesky"):
        assert not any(aiming._special(catalog.row(name), c, lambda n: 0) for c in drawn(name))


@pytest.mark.parametrize("name", ["relu", "softmax", "cat", "gelu_backward"])
def test_late_cases_of_a_row_meet_what_random_ones_hardly_do(name: str) -> None:
    """No elements, single ones, a long dimension wherever it is, and channels_last; many dimensions where they are checked."""
    specs = [s for seed in range(12) for c in drawn(name, seed=str(seed))[aiming.ORDINARY + 1 :] for s in c.operands()[:1]]
    assert any(s.numel == 0 for s in specs)
    assert any(len(s.shape) > 1 and s.numel == 1 for s in specs)
    assert any(len(s.shape) == 6 for s in specs) or catalog.row(name).refuses.unchecked
    assert any(s.layout == (("channels_last",),) for s in specs)
    long = [(n, d) for s in specs if len(s.shape) == 3 for d, n in enumerate(s.shape) if n > 300]
    assert {d for _, d in long} == {0, 1, 2}
    assert len({n for n, _ in long}) > 20


@pytest.mark.parametrize("name", ["upsample_nearest3d", "_upsample_nearest_exact1d", "conv2d", "svd", "foreach_add"])
def test_no_images_matrices_or_elements_are_there(name: str) -> None:
    assert any(not s.numel for seed in "123456" for c in drawn(name, seed=seed)[aiming.ORDINARY + 1 :] for s in c.operands())


@pytest.mark.parametrize("name", ["weight_norm", "mse_loss_kernel", "mse_loss_backward", "masked.softmax"])
def test_kernels_and_masked_functions_meet_five_and_six_dimensions(name: str) -> None:
    ranks = {len(s.shape) for seed in range(8) for c in drawn(name, seed=str(seed)) for s in c.operands()[1:2]}
    assert {5, 6} <= ranks


@pytest.mark.parametrize(("name", "most"), [("foreach_neg", 3), ("hstack", 4)])
def test_calls_that_take_more_dimensions_than_a_row_draws_get_them(name: str, most: int) -> None:
    ranks = {len(s.shape) for seed in range(8) for c in drawn(name, seed=str(seed)) for s in c.operands()[:1]}
    assert {5, 6} <= ranks
    shape = Sweep(lambda n: 0, "float32", rank=6, beyond=True).shape
    assert (len(shape(0, most)), len(shape(2, 2)), len(shape(2, 3))) == (6, 2, 3)


def test_gradients_of_a_step_hold_what_is_not_finite_and_probabilities_do_not() -> None:
    step = next(c for c in drawn("optim.Adam") if c.operands()[0].shape and c.operands()[0].numel)
    chance = drawn("bernoulli")[0]
    assert aiming._special(catalog.row("optim.Adam"), step, lambda n: 0) is not None
    assert aiming._special(catalog.row("bernoulli"), chance, lambda n: 0) is None


def test_every_row_of_float32_is_aimed_at_each_feature_in_one_run() -> None:
    """Whatever the seed: features come in turn, and the numbers of dimensions with those of calls."""
    quick, late = suite.profile("quick"), set(range(1 + aiming.GROUPS[1], 1 + len(aiming.AIMS)))
    for row in suite.rows("native"):
        if "float32" in row.dtypes and row.draws.cases >= 1:
            turns = [aiming.planned(row, "float32", "7", n, 1) for n in range(1, 1 + quick.examples(row, "float32"))]
            assert late <= {k for k, _ in turns}, row.name
            assert {f for k, turn in turns for f in aiming.forms_of(k, turn)} >= {*aiming.FORMS, *aiming.SHAPES}, row.name


def test_complex_numbers_meet_each_long_dimension_over_a_few_seeds() -> None:
    """A contraction of 10,000 is one of three; few random cases of complex numbers are that long."""
    row, quick = catalog.row("mm"), suite.profile("quick")
    lengths: list[set[int]] = [set(), set(), set()]
    for seed in "123456":
        cases = drawn("mm", "complex64", seed, 1 + quick.examples(row, "complex64"))
        for c in cases:
            if not c.refused:
                (m, k), n = c.operands()[0].shape, c.operands()[1].shape[1]
                for met, size in zip(lengths, (m, k, n), strict=True):
                    met.add(size)
    assert all(max(met) >= aiming.LONG // 2 for met in lengths)


def test_late_rows_of_a_long_operand_hold_special_values() -> None:
    """Kernels count rows; in the first elements no NaN would show a loss in a row beyond the first few."""
    operands = [s for seed in range(6) for c in drawn("relu", seed=str(seed)) for s in c.operands() if len(s.shape) > 1]
    places = [where % s.numel // s.shape[-1] for s in operands if s.numel for where, _ in s.values.specials]
    assert sum(row > 256 for row in places) > 2
    case = parse('mul(float32[300, 2].normal().at(3, "nan"), float32[2].normal())')
    late = aiming._at_ends(catalog.row("mul"), case, lambda n: 0)
    assert late is not None
    assert [s.values.specials for s in late.operands()] == [((596, "nan"),), ()]


def by_turn(k: int) -> Pick:
    """Picks the k-th."""
    return lambda n: k % n


@pytest.mark.parametrize(("name", "alone"), [("scatter_reduce_mean", {1}), ("mm", {0, 1}), ("foreach_add", set())])
def test_each_operand_alone_has_no_elements_where_the_cpu_takes_that(name: str, alone: set[int]) -> None:
    """Of a call with indices these alone."""
    row, cases = catalog.row(name), [c for c in drawn(name) if all(s.numel for s in c.operands())]
    met = [aiming._alone(row, c, by_turn(k)) for c in cases[:6] for k in range(3)]
    empty = [[k for k, s in enumerate(c.operands()) if not s.numel] for c in met if c]
    assert {tuple(e) for e in empty} == {(k,) for k in alone}


def test_what_the_cpu_would_read_outside_of_loses_no_elements() -> None:
    """Its kernels died of it: counts of a bag, states of an optimizer."""
    bag = parse('embedding_bag(int64[8].index(0, 4), float32[4, 1].uniform(), offsets=int64[2].inside(0, 8), mode="max")')
    met = [aiming._alone(catalog.row("embedding_bag"), bag, by_turn(k)) for k in range(3)]
    assert all(c.operands()[2].numel for c in met if c)
    step = next(c for c in drawn("fused_adam") if all(s.numel for s in c.operands()))
    assert aiming._alone(catalog.row("fused_adam"), step, by_turn(0)) is None


def test_attention_that_drops_weights_keeps_as_many_batches_of_keys_as_of_queries() -> None:
    """The CPU's fused kernel of no dropout takes 0 batches of keys; the formula that others compute refuses them."""
    text = "attention_dropout(float16[2, 4, 3, 4].inside(-1, 1), float16[{}, 4, 5, 4].inside(-1, 1), None, 0.0, False)"
    row, case = catalog.row("attention_dropout"), parse(text.format(2))
    assert mixing.is_taken(row, parse(text.format(0)))
    assert not any(aiming._alone(row, case, by_turn(k)) for k in range(4))


def test_a_number_is_its_negative_one_two_zero_or_a_million_if_the_cpu_gives_finite_numbers() -> None:
    row, case = catalog.row("leaky_relu"), parse("leaky_relu(float32[3].normal(), 0.25)")
    assert [c.args[1] for k in range(5) if (c := calls.other_number(row, case, by_turn(k)))] == [-0.25, 1.0, 2.0, 0.0, 1e6]
    row, case = catalog.row("normal_"), parse("normal_(float32[3].normal(), 0.0, 0.5)")
    deviations = {c.args[2] for k in range(12) if (c := calls.other_number(row, case, by_turn(k)))}
    assert deviations == {0.5, 1.0, 2.0, 0.0, 1e6}, "torch refuses negative ones"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("add(int64[3].uniform(), 7)", {7, -7, 1, 2, 0, (1 << 33) + 1}),
        ("add(uint8[3].uniform(), 7)", {7, -7, 1, 2, 0, (1 << 33) + 1}),
        ("mul(float32[3].normal(), 7)", {7, -7, 1, 2, 0, (1 << 33) + 1, 7 + 2j}),
        ("gt(float32[3].normal(), 7)", {7, -7, 1, 2, 0, (1 << 33) + 1}),
    ],
)
def test_a_whole_number_is_above_32_bits_and_one_beside_real_numbers_complex_where_torch_takes_it(
    text: str, numbers: set[complex]
) -> None:
    case = parse(text)
    met = [calls.other_number(catalog.row(case.op), case, by_turn(k)) for k in range(12)]
    assert {a for c in met if c for a in calls.scalars(Arguments(c.args))} | {7} == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("threshold(float32[3].normal(), 0.5, 0)", 3),
        ("add(float32[3].normal(), 0.5)", 3),
        ("softplus(float32[3].normal(), 0.5)", 0),
        ("uniform_(float32[3].normal(), 0.0, 0.5)", 0),
    ],
)
def test_a_number_of_a_function_of_single_elements_is_not_finite(text: str, numbers: int) -> None:
    """Formulas of several steps make of it what they like."""
    row, case = catalog.row(text.partition("(")[0]), parse(text)
    met = [c.args[1] for k in range(12) if (c := calls.other_number(row, case, by_turn(k)))]
    assert len({repr(x) for x in met if isinstance(x, float) and not math.isfinite(x)}) == numbers


def test_what_keeps_a_quotient_finite_is_one_and_kernels_of_gradients_have_other_numbers() -> None:
    case = parse("layer_norm(float32[3].normal(), (3,), eps=1e-05)")
    met = [c for k in range(3) if (c := calls.other_number(catalog.row("layer_norm"), case, by_turn(k)))]
    assert {dict(c.kwargs)["eps"] for c in met} == {1.0}
    case = parse("softplus_backward(float32[3].normal(), float32[3].normal(), 0.5, 20.0)")
    met = [c for k in range(8) if (c := calls.other_number(catalog.row("softplus_backward"), case, by_turn(k)))]
    assert {-0.5, 1.0, 2.0, 1e6} <= {c.args[2] for c in met}
    scaled = parse("upsample_nearest1d(float32[1, 1, 3].normal(), (6,), 2.0)")
    assert calls.other_number(catalog.row("upsample_nearest1d"), scaled, by_turn(0)) is None, "it says where to read"


@pytest.mark.parametrize("name", ["masked.argmax", "max", "cummax"])
def test_each_size_is_one_in_calls_of_which_no_more_dimensions_are_asked(name: str) -> None:
    cases = [c for seed in "123" for c in drawn(name, seed=seed, count=64)]
    assert any(len(s.shape) > 1 == s.numel for c in cases for s in c.operands()[:1] if not c.refused)


@pytest.mark.parametrize("name", ["cdist", "bilinear", "mm", "layer_norm", "kl_div", "add"])
def test_each_operand_alone_is_expanded(name: str) -> None:
    """By turns, along one of its dimensions; not an operand that the call writes, or whose matrices must be of a kind."""
    row, alone = catalog.row(name), set()
    for case in drawn(name):
        for turn in range(3):
            if met := calls.expanded(row, case, by_turn(turn)):
                changed = [k for k, (a, b) in enumerate(zip(case.operands(), met.operands())) if a.layout != b.layout]
                alone |= set(changed)
                assert len(changed) <= 1
                assert all(met.operands()[k].layout[0][0] == "expand" for k in changed)
    assert {0, 1} <= alone
    assert not any(calls.expanded(catalog.row("copy_"), c, by_turn(0)) for c in drawn("copy_"))


@pytest.mark.parametrize(("operand", "words"), [
    ("float32[4, 5]", {"shares", "sorted", "unit_rows"}), ("float32[2, 5, 5]", set(calls.SQUARE)),
    ("complex64[4, 5]", {"unit_rows"}),
])  # fmt: skip
def test_operands_have_a_structure_that_random_numbers_never_have(operand: str, words: set[str]) -> None:
    """By turns; square matrices, which are rarer, one of their own."""
    row, case = catalog.row("exp"), parse(f'exp({operand}.normal(seed=3).at(0, "nan"))')
    specs = [s for k in range(6) if (c := calls.structured(row, case, by_turn(k))) for s in c.operands()]
    assert words == {s.values.family for s in specs}
    for s in specs:
        x, identity = dense(s), torch.eye(5)
        assert {
            "shares": lambda x: bool((x > 0).all()) and torch.allclose(x.sum(-1), torch.ones(4)),
            "sorted": lambda x: torch.equal(x.sort(-1).values, x),
            "unit_rows": lambda x: torch.equal(x.real.sort(-1).values, torch.eye(5)[4].expand(4, 5)),
            "symmetric": lambda x: torch.equal(x, x.mT),
            "upper": lambda x: torch.equal(x, x.triu()),
            "orthogonal": lambda x: torch.allclose(x @ x.mT, identity.expand_as(x), atol=1e-5),  # noqa: B023
        }[s.values.family](x), s


def test_calls_that_have_no_outer_broadcast_meet_structures() -> None:
    met = {s.values.family for seed in range(12) for c in drawn("cat", seed=str(seed), count=8) for s in c.operands()}
    assert {"shares", "sorted"} & met


def test_a_square_one_hot_matrix_is_a_permutation() -> None:
    x = dense(parse("mm(float32[5, 5].unit_rows(seed=3), complex64[3, 3].orthogonal(seed=1))").operands()[0])
    assert torch.equal(x.sum(0), torch.ones(5))
    y = dense(parse("mm(complex64[3, 3].orthogonal(seed=1), complex64[3, 3].normal())").operands()[0])
    assert torch.allclose(y @ y.mH, torch.eye(3, dtype=y.dtype), atol=1e-5)


def test_the_least_whole_number_has_no_negative() -> None:
    row, case = catalog.row("bitwise_and"), parse(f"bitwise_and(int64[2].large(), {-(2**63)})")
    assert [c.args[1] for k in range(4) if (c := calls.other_number(row, case, by_turn(k)))] == [1, 2, 0, (1 << 33) + 1]


def test_no_number_makes_a_giant() -> None:
    """A scale of a million made 88 million elements of 64; the CPU took seconds to be asked."""
    for text in (
        'interpolate_nearest(float32[2, 3, 2].normal(), scale_factor=3.0, mode="nearest")',
        "range(float32[()].uniform(), 1, 3.0, 0.5)",
    ):
        row, case = catalog.row(text.partition("(")[0]), parse(text)
        met = [c for k in range(12) if (c := calls.other_number(row, case, by_turn(k)))]
        assert met
        assert max(room.elements(row, c) for c in met) <= aiming.ROOM


def test_one_operand_holds_numbers_of_extreme_size() -> None:
    row, case = catalog.row("mm"), parse('mm(float32[2, 2].normal(), float32[2, 2].normal().at(0, "nan"))')
    met = [aiming._region(row, case, by_turn(k)) for k in range(4)]
    families = [[s.values.family for s in c.operands()] for c in met if c]
    assert families == [["vast", "normal"], ["normal", "vast"], ["minute", "normal"], ["normal", "minute"]]
    assert not any(s.values.specials for c in met if c for s in c.operands())
    case = parse("xlogy(float32[2].inside(0, 8), float32[2].inside(1, 8))")
    limited = aiming._region(catalog.row("xlogy"), case, by_turn(0))
    assert limited is not None
    assert 0 < float(build(limited).operands[0].view.abs().min()) < 1e-30
    assert aiming._region(catalog.row("cholesky"), drawn("cholesky")[0], by_turn(0)) is None
    for dtype in ("float16", "bfloat16", "float32"):
        assert bool(pool("vast", dtype).isfinite().all())
        assert float((pool("minute", dtype) != 0).double().mean()) > 0.99


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_tiny_number_is_within_the_limits_of_its_operand(dtype: str) -> None:
    """It was 64 in float16."""
    met = aiming._region(catalog.row("xlogy"), parse(f"xlogy({dtype}[()].inside(0, 8), {dtype}[()].inside(1, 8))"), by_turn(0))
    assert met is not None
    assert 0 < float(build(met).operands[0].view) < 1e-3


def test_a_convolution_with_a_long_kernel_has_few_results() -> None:
    more = "stride=3, output_padding=1, groups=8, dilation=(2, 2, 1)"
    slow = parse(f"conv_transpose3d(float16[2, 8, 4, 3, 3], float16[8, 2, 2, 300, 1], {more})")
    assert room.is_slow(catalog.row(slow.op), slow)
    assert not room.is_slow(catalog.row("conv1d"), parse("conv1d(float16[2, 3, 301], float16[3, 3, 300])"))
    cases = drawn("conv_transpose3d", "float16")
    assert not any(room.is_slow(catalog.row(c.op), c) for c in cases if not c.refused)


def test_first_cases_are_ordinary_and_those_that_share_shapes_stay_so() -> None:
    """Runs of few examples, and graphs that a Mac compiles for each new shape."""
    first = [c for seed in range(12) for c in drawn("relu", seed=str(seed))[: aiming.ORDINARY + 1]]
    assert max(n for c in first for s in c.operands() for n in s.shape) <= max(Sizes().border)
    alike = [generate.nth(catalog.row("relu"), "float32", Sizes(), "1", k, alike=64).case for k in range(1, 33)]
    assert len({s.shape for c in alike for s in c.operands()}) == 1


def test_a_feature_that_a_call_cannot_have_leaves_its_turn_to_another() -> None:
    row, case = catalog.row("exp"), drawn("exp")[0]
    outer = max(k for k, aim in enumerate(aiming.AIMS) if aim is aiming._outer)
    assert aiming.featured(row, case, outer + 1, 0, lambda n: 0).after in aiming.CALLED_BEFORE
    assert aiming.featured(row, case, 2, 0, lambda n: 0) is case
    assert aiming.featured(row, case, 0, 0, lambda n: 0) is case


def test_of_calls_without_the_form_they_are_drawn_for_nothing_more_is_drawn() -> None:
    """A function of one operand has no two that share, so the next form takes its turn; a cell has neither."""
    made: list[tuple[int, ...]] = []

    def complete(call: Arguments, specs: list[TensorSpec]) -> Case:
        made.append(specs[0].shape)
        return Case("exp", "float32", call.args, call.kwargs)

    twins = aiming.TWINS, aiming.EMPTY
    for seed in range(8):
        met = aiming.formed(catalog.row("exp"), "float32", twins, seed, generate.source(str(seed), []), complete)
        assert met is None or [met.operands()[0].shape] == made[-1:]
    assert made
    assert all(0 in shape for shape in made)
    assert aiming.formed(catalog.row("gru"), "float32", twins, 0, lambda n: 0, complete) is None


def test_pinned_cases_stay_as_they_were() -> None:
    pinned = [generate.nth(catalog.row("sum"), "float32", Sizes(), "pinned", k, mixes=False).case for k in range(64)]
    assert {c.cotangent.values for c in pinned} <= {"ones", "normal", "zero"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_extreme_gradients_are_finite_and_the_others_hold_a_few_that_are_not(dtype: torch.dtype) -> None:
    for seed in range(20):
        assert 1 <= int((~values("nonfinite", dtype, 50, seed, 0).isfinite()).sum()) <= 3
        for word in ("huge", "tiny"):
            x = values(word, dtype, 50, seed, 0)
            assert bool((x.isfinite() & (x != 0)).all())
    assert float(values("huge", dtype, 50, 0, 0).abs().max()) > 1e3 > 1e-1 > float(values("tiny", dtype, 50, 0, 0).abs().max())


def test_a_text_keeps_the_incoming_gradient() -> None:
    text = 'relu(float32[3]).cotangent("nonfinite", "expanded", 3)'
    assert case_text(parse(text)) == text


def test_a_least_case_shares_operands_only_where_it_must() -> None:
    case = parse('mul(float32[3].normal(), float32[3].normal()).sharing("memory")')
    assert not plainest(case, Aspect.FORWARD, lambda c: True).sharing
    assert plainest(case, Aspect.FORWARD, lambda c: bool(c.sharing)).sharing
    assert not walk(case, lambda c: True).sharing


def test_the_only_operand_of_a_function_that_also_writes_in_place_is_expanded() -> None:
    row, case = catalog.row("erfinv"), parse("erfinv(float32[5, 1, 3].inside(-0.5, 0.5))")
    met = [calls.expanded(row, case, by_turn(turn)) for turn in range(2)]
    assert [c and c.operands()[0].layout for c in met] == [(("expand", -3),), (("expand", -1),)]


def test_an_operand_in_channels_last_is_not_expanded_instead() -> None:
    case = parse("add(float32[2, 3, 2, 2].channels_last().normal(), float32[2, 3, 2, 2].normal())")
    met = [calls.expanded(catalog.row("add"), case, by_turn(turn)) for turn in range(2)]
    assert {c.operands()[0].layout for c in met if c} == {(("channels_last",),)}
