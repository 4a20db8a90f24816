"""A catalog row -> cases: the same everywhere, and shrunk to what matters."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from parity import catalog
from parity.catalog import entries
from parity.catalog.draw import Sizes
from parity.core.case import Case, Layout, TensorSpec, Word
from parity.core.layout import base_shape
from parity.core.notation import case_text
from parity.engine import suite
from parity.generation import generate, shrink

SIZES = Sizes()
PRINT = """
from parity import catalog
from parity.generation import generate
from parity.catalog.draw import Sizes
from parity.core.notation import case_text
for name in ("softmax", "add", "conv2d"):
    for drawn in generate.search(catalog.row(name), "float32", Sizes(), "7", 30):
        print(case_text(drawn.case))
"""


def tensors(case: Case) -> list[TensorSpec]:
    return [a for a in (*case.args, *dict(case.kwargs).values()) if isinstance(a, TensorSpec)]


@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_train", "native_batch_norm", "batch_norm_backward"])
def test_parameters_that_the_cpu_reads_as_dense_are_dense(name: str) -> None:
    """A strided one is read beyond its end, so that the gradient is different each time."""
    drawn = [generate.nth(catalog.row(name), "float32", SIZES, "7", n).case for n in range(300)]
    cut = [tensors(c)[0].shape for c in drawn if any(len(s.shape) == 1 and s.layout for s in tensors(c))]
    assert cut
    assert all(len(shape) == 3 and shape[2] > 1 for shape in cut)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3)])
def test_the_cpu_reads_parameters_as_dense_in_some_gradients(shape: tuple[int, ...]) -> None:
    """torch 2.13; once it no longer does, `Quirk.DENSE` can go."""
    x = torch.ones(shape, requires_grad=True)
    mean, weight = torch.zeros(5), torch.full((5, 3), 7.0)
    weight[:, 0] = 1
    y = torch.nn.functional.batch_norm(x, mean, torch.ones(5), weight[:, 0], eps=0.0)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert bool((grad == 1).all()) is (shape[-1] == 3)


@pytest.mark.parametrize("name", ["softmax", "add", "conv2d", "mm", "index_select", "lstm"])
def test_the_first_case_is_the_simplest(name: str) -> None:
    drawn = generate.nth(catalog.row(name), "float32", SIZES, "any", 0)
    assert drawn.picks == ()
    assert all(t.layout == () and t.values.specials == () and t.values.seed == 0 for t in tensors(drawn.case))
    assert drawn.case == generate.nth(catalog.row(name), "float32", SIZES, "another", 0).case
    assert "cotangent" not in case_text(drawn.case)


def replayed(picks: tuple[int, ...]) -> Callable[[int], int]:
    rest = iter(picks)
    return lambda n: next(rest, 0) if n > 1 else 0


def test_the_picks_give_the_case_back() -> None:
    row = catalog.row("conv2d")
    for drawn in generate.search(row, "float16", SIZES, "3", 20):
        assert generate.decode(row, "float16", replayed(drawn.picks), SIZES) == drawn.case


@pytest.mark.parametrize("name", ["conv2d", "opinfo:addmm"])
def test_the_picks_of_a_pinned_case_give_it_back(name: str) -> None:
    """Though it is not mixed; samples of torch's are aimed at nothing."""
    row = entries.row(name)
    for k in range(1, 6):
        drawn = generate.nth(row, "float32", SIZES, "pinned", k, mixes=False)
        assert generate.decode(row, "float32", replayed(drawn.picks), SIZES) == drawn.case


def test_the_same_seed_gives_the_same_cases_in_another_process_and_any_order() -> None:
    here = [
        case_text(generate.nth(catalog.row(name), "float32", SIZES, "7", i).case)
        for name in ("softmax", "add", "conv2d")
        for i in reversed(range(30))
    ]
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == sorted(here)


def test_another_seed_gives_other_cases() -> None:
    row = catalog.row("add")
    one, two = ({case_text(d.case) for d in generate.search(row, "float32", SIZES, s, 30)} for s in "12")
    assert len(one & two) < 5


def test_features_meet_each_other() -> None:
    """Most real bugs need two features at once, so all pairs must be drawn together, not only one after the other."""
    drawn = [d.case for seed in "12" for d in generate.search(catalog.row("add"), "float32", SIZES, seed, 2000)]

    def count(*has: Callable[[Case], bool]) -> int:
        return sum(all(h(c) for h in has) for c in drawn)

    features: list[Callable[[Case], bool]] = [
        lambda c: any(s[0] in ("transpose", "permute", "channels_last") for t in tensors(c) for s in t.layout),
        lambda c: any(s[0] == "step" for t in tensors(c) for s in t.layout),
        lambda c: any(s[0] == "expand" for t in tensors(c) for s in t.layout),
        lambda c: any(t.values.specials for t in tensors(c)),
        lambda c: dict(c.kwargs).get("alpha", 1) != 1,
        lambda c: c.cotangent.layout == "expanded",
        lambda c: c.into == "stepped",
        lambda c: any(not t.grad for t in tensors(c)),
    ]
    for i, one in enumerate(features):
        for other in features[:i]:
            assert count(one, other) >= 10


def test_every_other_layout_is_drawn_with_an_offset_too() -> None:
    """A slice of a larger batch is transposed or channels last and begins further back: kernels know one of the two."""
    drawn = [t for d in generate.search(catalog.row("avg_pool2d"), "float32", SIZES, "1", 1500) for t in tensors(d.case)]
    displaced = [t for t in drawn if any(s[0] == "flat" for s in t.layout)]
    for word in ("transpose", "permute", "channels_last", "step"):
        assert sum(any(s[0] == word for s in t.layout) for t in displaced) >= 5, word


def test_a_strategy_draws_cases_of_the_row_for_property_tests() -> None:
    @settings(max_examples=20, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(shrink.cases(catalog.row("relu"), "float16"))
    def holds(case: Case) -> None:
        assert (case.op, case.dtype) == ("relu", "float16")

    holds()


def stepped_with_nan(case: Case) -> bool:
    return any(
        any(s[0] == "step" for s in t.layout) and any(word == "nan" for _, word in t.values.specials) for t in tensors(case)
    )


def large_transposed_second(case: Case) -> bool:
    y = case.args[1] if len(case.args) > 1 else None
    scaled = dict(case.kwargs).get("alpha", 1) != 1
    return isinstance(y, TensorSpec) and _transposed(y.layout) and max(y.shape, default=0) >= 16 and scaled


def _transposed(layout: Layout) -> bool:
    return any(s[0] == "transpose" for s in layout)


def offset_softmax_over_dim_1(case: Case) -> bool:
    x = tensors(case)[0]
    shifted = {"flat": 1, "select": 1, "slice": 2, "step": 3}
    offset = any(s[0] in shifted and s[shifted[str(s[0])]] for s in x.layout)
    return len(x.shape) >= 3 and offset and dict(case.kwargs).get("dim") == 1


@pytest.mark.parametrize(
    "name, fails, elements",
    [("add", stepped_with_nan, 1), ("add", large_transposed_second, 16), ("softmax", offset_softmax_over_dim_1, 1)],
)
def test_shrinking_leaves_nothing_superfluous(name: str, fails: Callable[[Case], bool], elements: int) -> None:
    row = catalog.row(name)
    drawn = next(d for d in generate.search(row, "float32", SIZES, "3", 20_000) if fails(d.case))
    shrunk = shrink.shrink(row, "float32", SIZES, drawn, fails)
    assert shrunk is not None
    assert fails(shrunk)
    used = tensors(shrunk)
    assert all(t.numel <= elements and t.values.seed == 0 and t.grad and not t.on_cpu for t in used), case_text(shrunk)
    assert sum(len(t.layout) for t in used) == 1, case_text(shrunk)
    assert sum(len(t.values.specials) for t in used) == (fails is stepped_with_nan), case_text(shrunk)
    assert "cotangent" not in case_text(shrunk)
    assert "into" not in case_text(shrunk)


def test_a_case_that_does_not_fail_again_is_not_shrunk() -> None:
    row = catalog.row("add")
    drawn = generate.nth(row, "float32", SIZES, "1", 5)
    assert shrink.shrink(row, "float32", SIZES, drawn, lambda case: False) is None


def largest(case: Case) -> int:
    return max((t.numel for t in tensors(case)), default=0)


@pytest.mark.parametrize("name", ["inner", "tensordot", "matmul", "bmm", "conv2d", "index_select"])
def test_where_border_sizes_come_together_the_call_is_drawn_again(name: str) -> None:
    """One dimension of such a size is what kernels are asked for; two of them make a tensor that no machine holds."""
    full = suite.profile("full").sizes
    cases = [generate.nth(catalog.row(name), "float32", full, "9", k).case for k in range(1200)]
    assert max(map(largest, cases)) <= generate.ROOM
    assert max(map(largest, cases)) > full.limit // 8
    assert all(sum(t.numel for t in tensors(c)) <= generate.ROOM for c in cases)


def test_the_full_profile_reaches_every_dimension_of_products_and_convolutions() -> None:
    """Channels in and out beyond 2**16, and long sums, of real and of complex numbers, while all else is tiny."""
    full, seen = suite.profile("full"), set[str]()
    for name in ("conv2d", "conv_transpose1d", "conv3d"):
        for k in range(500):
            shapes = [t.shape for t in tensors(generate.nth(catalog.row(name), "float32", full.sizes, "9", k).case)]
            side = int("transpose" in name)
            seen.update(f"{name} out" for w in shapes[1:2] if w[side] > 1 << 16)
            seen.update(f"{name} in" for w in shapes[1:2] if w[1 - side] > 1 << 16)
    assert len(seen) == 6, seen
    for name, dtype, least in (("mm", "float32", 32767), ("bmm", "float32", 32767), ("addmm", "complex64", 8192)):
        row = catalog.row(name)
        drawn = (generate.nth(row, dtype, full.sizes, "9", k).case for k in range(1, 500))
        assert any(tensors(c)[-1].shape[-2:-1] >= (least,) for c in drawn), name


@pytest.mark.parametrize("name", ["add", "sum_dim", "sort", "softmax", "mm", "conv1d"])
def test_the_deep_profile_draws_huge_dimensions_within_its_limit(name: str) -> None:
    """Up to beyond 2**24, wherever they are."""
    deep = suite.profile("deep").sizes
    sizes = [sum(t.numel for t in tensors(generate.nth(catalog.row(name), "float32", deep, "9", k).case)) for k in range(1500)]
    assert max(sizes) <= deep.limit
    assert sum(n > 1 << 20 for n in sizes) > 4
    assert any(n > 1 << 24 for n in sizes)


def test_the_first_operand_of_group_norm_is_differentiated_where_the_cpu_dies_otherwise() -> None:
    """torch 2.13's CPU writes the gradient of an operand in channels_last that nobody asked for, at no address."""
    row = catalog.row("group_norm")
    cases = [generate.nth(row, "float32", SIZES, "unfrozen", k).case for k in range(400)]
    firsts = [tensors(c)[0] for c in cases if not c.refused]
    laid = [x for x in firsts if x.layout]
    assert laid
    assert all(x.grad for x in laid)
    assert not all(x.grad for x in firsts)


def test_some_views_reach_far_through_their_memory() -> None:
    """Rows far from each other, and an offset beyond what few bits count: of tensors that are small themselves."""
    rows, offsets = 0, 0
    for drawn in generate.search(catalog.row("copy_"), "float32", SIZES, "5", 800):
        for t in tensors(drawn.case):
            far = [step for step in t.layout if generate.FAR in step]
            rows += any(step[0] == "slice" for step in far)
            offsets += any(step[0] == "flat" for step in far)
            if far:
                assert math.prod(base_shape(t.shape, t.layout)) <= 4 * generate.FAR_LIMIT
    assert min(rows, offsets) > 3


def test_nothing_lies_far_behind_in_a_large_base() -> None:
    """Not where the sliced dimension has no elements, either: the others would be as long."""
    assert generate._behind((3, 0, 7), 1, lambda n: n - 1) == generate.FAR
    assert generate._behind((0, 2, 65537), -3, lambda n: n - 1) == 2
    assert generate._behind((0, 2, 65537), 0, lambda n: n - 1) == 2


def test_images_of_bytes_are_not_resized_deterministically() -> None:
    """torch.nn.functional.interpolate takes a formula in Python for that on every device but the CPU, off by one in uint8."""
    row = next(r for r in suite.rows("opinfo") if r.name == "opinfo:nn.functional.upsample_bilinear")
    assert "deterministic" not in {d.case.under for d in generate.search(row, "uint8", SIZES, "1", 80)}
    assert "deterministic" in {d.case.under for d in generate.search(row, "float32", SIZES, "1", 80)}


@pytest.mark.parametrize("name", ["cat", "add", "hardswish_backward", "conv2d"])
def test_operands_sometimes_share_one_layout(name: str) -> None:
    """As in a model in channels_last; each operand draws alone else."""
    cases = [
        [generate.nth(catalog.row(name), "float32", SIZES, "8", k, mixes=m).case for k in range(300)] for m in (False, True)
    ]
    alone, some = (sum(_in_one_order(c) for c in drawn) for drawn in cases)
    assert some > alone + 5


def _in_one_order(case: Case) -> bool:
    """Whether all operands have the rank of the first one, and one layout that is none of a plain tensor's."""
    first, *rest = case.operands()
    return bool(first.layout and rest) and all(len(s.shape) == len(first.shape) and s.layout == first.layout for s in rest)


@pytest.mark.parametrize(("name", "dtype", "odds"), [("cumsum", "bool", 3), ("cumsum", "int8", 24), ("any", "bool", 3)])
def test_masks_are_long_more_often_than_numbers(name: str, dtype: str, odds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "planned", lambda *_: (0, 0))  # a long dimension is met by plan, too
    cases = [d.case for d in generate.search(catalog.row(name), dtype, SIZES, "2", 400)]
    long = sum(max(c.operands()[0].shape, default=0) >= 1000 for c in cases)
    assert 400 / odds / 3 < long < 3 * 400 / odds


def test_sums_of_narrow_integers_keep_their_dtype_in_some_cases() -> None:
    cases = [d.case for d in generate.search(catalog.row("sum"), "uint8", SIZES, "2", 400)]
    assert 30 < sum(str(dict(c.kwargs).get("dtype")) == str(Word("uint8")) for c in cases) < 130


def test_a_number_may_be_a_whole_float() -> None:
    """1.0 and 1 are different numbers for torch, and may take different ways."""
    numbers = [d.case.args[1] for d in generate.search(catalog.row("rsub"), "float32", SIZES, "2", 400)]
    assert {type(n) for n in numbers if n == 1} == {int, float}


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv2d_of"])
def test_no_kernel_of_which_onednn_dies_is_drawn(name: str) -> None:
    """One wide, and dilated there; others are dilated as before."""
    row, wide = catalog.row(name), 0
    for seed in "1234":
        for case in (d.case for d in generate.search(row, "bfloat16", Sizes(), seed, 64)):
            (_, weight, *_), dilation = case.operands(), dict(case.kwargs).get("dilation", 1)
            last = dilation[-1] if isinstance(dilation, tuple) else dilation
            wide += weight.shape[-1] > 1 and last != 1
            assert case.refused or weight.shape[-1] > 1 or last == 1
    assert wide
