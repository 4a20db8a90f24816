"""What rows draw besides the usual: forms of arguments that kernels have code of their own for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from parity import catalog
from parity.catalog.draw import Sizes
from parity.catalog.glue import layers
from parity.catalog.glue.calls import embedding_bag
from parity.core.case import Case, TensorSpec
from parity.engine import suite
from parity.execution.execute import attribute
from parity.generation.generate import search


def drawn(name: str, dtype: str = "float32", n: int = 1000) -> list[Case]:
    return [d.case for d in search(catalog.row(name), dtype, Sizes(), "1", n) if not d.case.refused]


def operands(case: Case) -> list[TensorSpec]:
    return [v for v in (*case.args, *dict(case.kwargs).values()) if isinstance(v, TensorSpec)]


@pytest.mark.parametrize("name", ["clamp", "clamp_min", "addcmul", "addcdiv", "lerp"])
def test_any_operand_may_be_the_one_that_the_others_are_broadcast_to(name: str) -> None:
    largest = {max(range(len(s)), key=lambda k: s[k].numel) for c in drawn(name) if len(s := operands(c)) > 1}
    assert len(largest) >= (2 if name == "clamp_min" else 3)


def test_masks_of_attention_spread_along_queries_or_keys() -> None:
    """A mask of one column, or of one row, is read with a stride of 0 by kernels that take strides at all."""
    found = set()
    for case in drawn("scaled_dot_product_attention"):
        mask, query, key = dict(case.kwargs).get("attn_mask"), case.args[0], case.args[1]
        if isinstance(mask, TensorSpec) and isinstance(query, TensorSpec) and isinstance(key, TensorSpec):
            lengths = query.shape[-2], key.shape[-2]
            if min(lengths) > 1:
                found.add(tuple(n == 1 for n in mask.shape[-2:]))
    assert {(False, False), (False, True), (True, False)} <= found


def test_the_last_bag_may_end_before_the_indices_do() -> None:
    """What lies behind the last offset, where it is included, is in no bag; torch's CPU has no gradients of it."""
    early = [c for c in drawn("embedding_bag") if dict(c.kwargs).get("early")]
    assert len(early) >= 20
    assert not any(s.grad for c in early for s in operands(c) if s.dtype == "float32")
    index, table, offsets = torch.tensor([0, 1, 2, 3]), torch.arange(4.0)[:, None], torch.tensor([0, 2])
    bags = embedding_bag(index, table, offsets, mode="sum", include_last_offset=True, early=True)
    assert bags.tolist() == [[1.0]]
    assert embedding_bag(index, table, offsets, mode="sum", include_last_offset=True).tolist() == [[1.0], [5.0]]


@pytest.mark.parametrize("name", ["sum", "prod"])
def test_sums_are_taken_in_dtypes_of_all_kinds(name: str) -> None:
    asked = {dict(c.kwargs).get("dtype") for c in drawn(name, "int16", 400)}
    assert len(asked - {None}) >= 4


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda y: y.clamp(min=0),
    "leaky_relu": lambda y: torch.where(y > 0, y, y / 4),
    "hardtanh": lambda y: y.clamp(-1.5, 1.5),
    "mul": lambda y: y / 2,
    "abs": lambda y: y.sign() * y,
}


@pytest.mark.parametrize("act", layers.IN_PLACE)
def test_what_follows_a_product_in_place_is_in_the_result(act: str) -> None:
    x, w = torch.linspace(-3, 2, 12).view(1, 3, 4), torch.linspace(-1, 2, 8).view(1, 4, 2)
    product = x @ w
    assert bool((product < -1.5).any())
    assert torch.equal(layers.bmm_then(act, x, w), AFTER[act](product))
    assert not torch.equal(AFTER[act](product), product)


@pytest.mark.parametrize("name", ["max_pool1d", "max_pool2d", "max_pool3d"])
def test_no_dilated_window_of_a_pool_steps_over_its_whole_input(name: str) -> None:
    """torch's CPU gives such a window an index outside, and its backward writes there."""
    padded = [c for c in drawn(name) if isinstance(dict(c.kwargs).get("padding"), int)]
    found = [
        (x.shape[-int(name[-2]) :], d)
        for c in padded
        if isinstance(d := dict(c.kwargs).get("dilation"), int)
        for x in operands(c)
    ]
    assert len(found) > 20
    assert all(min(sizes) >= d for sizes, d in found)


# `median` and its like draw the dim; of one number a softmax is 1 and a variance nothing, whatever is drawn.
WITHOUT_DIM = ("median_all", "nanmedian_all", "max_all", "min_all", "gumbel_softmax", "masked.var", "masked.std")


def test_whatever_takes_a_dim_of_a_0d_tensor_gets_one() -> None:
    """Kernels that count dimensions meet none, and torch takes dim 0 of it all the same."""
    missing = []
    for row in suite.rows("native"):
        if row.forms.mutates or not row.call.startswith("torch.") or row.name in WITHOUT_DIM:
            continue
        try:
            attribute(row.call)(torch.ones((), dtype=getattr(torch, row.dtypes[0])), dim=0)
        except Exception:  # whatever it says, it does not take one
            continue
        if not any(_along_a_dim_of_0d(c) for n in (50, 400) for c in drawn(row.name, row.dtypes[0], n)):
            missing.append(row.name)
    assert not missing


def _along_a_dim_of_0d(case: Case) -> bool:
    x = case.args[0] if case.args else None
    beside = (*case.args[1:], *(v for k, v in case.kwargs if k == "dim"))
    given = any(isinstance(a, (int, tuple)) and not isinstance(a, bool) for a in beside)
    return isinstance(x, TensorSpec) and not x.shape and given


@pytest.mark.parametrize("name", ["index_select", "index_add", "index_copy", "index_fill", "index_reduce_mean"])
def test_an_index_may_be_0d(name: str) -> None:
    ranks = {len(s.shape) for c in drawn(name) for s in operands(c) if s.values.family in ("index", "unique")}
    assert ranks == {0, 1}


@pytest.mark.parametrize("name", ["equal", "allclose", "isclose", "nonzero", "argwhere", "nonzero_static"])
def test_what_looks_for_equal_numbers_or_for_zeros_meets_nan_and_a_negative_zero(name: str) -> None:
    words = {word for c in drawn(name) for s in operands(c) for _, word in s.values.specials}
    assert {"nan", "-0.0", "inf"} <= words
    if name.endswith("close"):
        given = [c for c in drawn(name) if dict(c.kwargs).get("equal_nan")]
        assert any(all(any(w == "nan" for _, w in s.values.specials) for s in operands(c)) for c in given)


@pytest.mark.parametrize("name", ["foreach_add", "foreach_addcmul", "foreach_pow"])
def test_numbers_of_a_list_differ(name: str) -> None:
    """A kernel that takes the first one for all tensors passed."""
    lists = [a for c in drawn(name, n=100) for a in c.args if isinstance(a, tuple) and not isinstance(a[0], TensorSpec)]
    assert any(len(set(a)) > 1 for a in lists)


def test_the_reflected_bitwise_functions_take_two_tensors() -> None:
    for name in ("rand_", "ror_", "rxor"):
        assert {len(operands(c)) for c in drawn(name, "int32", 40)} == {1, 2}
