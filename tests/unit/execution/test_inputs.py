"""Case -> tensors: the base that travels and the view that is cut from it."""

from __future__ import annotations

import math
import random

import pytest
import torch

from parity.core import layout as layouts
from parity.core.errors import CaseError
from parity.core.notation import parse
from parity.execution import inputs
from parity.execution.inputs import Slot, apply, build, realise, torch_word
from parity.generation.generate import RECIPES, RECIPES_0D


@pytest.mark.parametrize(
    "steps",
    [
        "",
        ".flat(2, 1)",
        ".transpose(0, 1)",
        ".step(-1, 2, 1)",
        ".slice(0, 1, 1)",
        ".select(1, 3)",
        ".permute(1, 0).step(0, 2, 0)",
        ".neg()",
    ],
)
def test_the_layout_changes_the_strides_and_never_the_values(steps: str) -> None:
    plain = build(parse("exp(float32[3, 4].normal(seed=8))")).operands[0]
    laid = build(parse(f"exp(float32[3, 4]{steps}.normal(seed=8))")).operands[0]
    assert torch.equal(plain.view, laid.view)
    assert laid.base.is_contiguous()
    assert laid.view.untyped_storage().data_ptr() == laid.base.untyped_storage().data_ptr()


def test_a_lazy_conjugate_holds_the_values_it_shows() -> None:
    o = build(parse("exp(complex64[5].conj().normal(seed=8))")).operands[0]
    assert o.view.is_conj()
    assert torch.equal(o.view, build(parse("exp(complex64[5].normal(seed=8))")).operands[0].view)


def test_beside_the_view_lies_the_fill_value() -> None:
    o = build(parse("exp(float32[2].flat(1, 2).uniform())")).operands[0]
    assert o.base[[0, 3, 4]].tolist() == [7.25, 7.25, 7.25]
    i = build(parse("take(float32[9], int64[2].flat(1, 2).index(0, 3))")).operands[1]
    assert i.base[[0, 3, 4]].tolist() == [0, 0, 0]  # an index that is read by mistake stays legal


def test_an_expanded_operand_has_stride_zero_and_equal_values() -> None:
    view = build(parse("exp(float32[3, 4].expand(-1).normal(seed=2))")).operands[0].view
    assert view.stride() == (1, 0)
    assert bool((view == view[:, :1]).all())


def test_the_digest_speaks_of_the_bits_of_all_operands() -> None:
    a = build(parse("add(float32[3], float32[3].uniform(seed=1))"))
    assert a.digest() == build(parse("add(float32[3], float32[3].uniform(seed=1))")).digest()
    assert a.digest() != build(parse("add(float32[3], float32[3].uniform(seed=2))")).digest()
    assert a.digest() != build(parse('add(float32[3].at(0, "-0.0"), float32[3].uniform(seed=1))')).digest()
    assert len(a.digest()) == 12


def test_arguments_keep_their_tree_and_words_become_torchs_own() -> None:
    made = build(parse("cat((float32[2], float32[3]), 0, dtype=float16)"))
    assert made.args == ((Slot(0), Slot(1)), 0)
    tensors = [o.view for o in made.operands]
    got = realise(made.args, tensors, torch_word)
    assert got[0][1] is tensors[1]
    assert realise(made.kwargs["dtype"], tensors, torch_word) is torch.float16
    index = build(parse("getitem(float32[4, 4], (slice(None, 3, 2), ...))"))
    assert realise(index.args[1], [], torch_word) == (slice(None, 3, 2), ...)


def test_a_word_that_torch_does_not_know_is_refused() -> None:
    with pytest.raises(CaseError, match="no attribute 'flaot32'"):
        torch_word("flaot32")


def test_a_device_cuts_the_same_view_from_the_base() -> None:
    o = build(parse("exp(float32[2, 3, 2, 2].channels_last().slice(1, 1, 1).normal(seed=3))")).operands[0]
    again = apply(o.base.clone(), o.spec.layout, o.spec.shape)
    assert again.stride() == o.view.stride()
    assert again.storage_offset() == o.view.storage_offset()
    assert torch.equal(again, o.view)


def test_empty_tensors_have_no_bytes() -> None:
    assert inputs.raw_bytes(torch.zeros(0, 3)) == b""


def test_a_view_is_cut_at_once_as_step_by_step() -> None:
    """Same elements, strides and offset, in layouts of one recipe and of two, with sizes of 0 and 1."""
    draw = random.Random(0)
    for _ in range(2000):
        shape = tuple(draw.choice((0, 1, 2, 3, 5)) for _ in range(draw.randrange(6)))
        recipes = RECIPES if shape else RECIPES_0D
        layout = recipes[draw.randrange(len(recipes))](shape, draw.randrange)
        if shape and draw.randrange(2):
            outer = RECIPES[draw.randrange(len(RECIPES))](layouts.base_shape(shape, layout), draw.randrange)
            layout = layout if layouts.overlaps(outer) else (*outer, *layout)
        size = layouts.base_shape(shape, layout)
        base = torch.arange(math.prod(size)).view(size)
        steps, once = apply(base, layout, shape), inputs.cut(base, layout, shape)
        assert torch.equal(steps, once), (shape, layout)
        assert not once.numel() or steps.stride() == once.stride(), (shape, layout)
        assert not once.numel() or steps.storage_offset() == once.storage_offset(), (shape, layout)
    lazy = torch.ones(3, dtype=torch.complex64)
    assert inputs.cut(lazy, (("conj",),), (3,)).is_conj()


@pytest.mark.parametrize("where", [0, inputs.LARGE_BASE // 8, -1])
def test_the_digest_of_a_large_base_shows_each_changed_element(where: int) -> None:
    """It is no hash of all its bytes."""
    made = build(parse(f"neg(float32[{inputs.LARGE_BASE // 4 + 1}].integers(seed=3))"))
    before = made.digest()
    made.operands[0].base[where] += 1
    assert made.digest() != before
    made.operands[0].base[where] -= 1
    assert made.digest() == before
