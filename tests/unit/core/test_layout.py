"""Layouts as arithmetic over shapes."""

from __future__ import annotations

import pytest
import torch

from parity.core import layout as layouts
from parity.core.case import Layout
from parity.core.errors import CaseError
from parity.execution.inputs import apply

LAYOUTS: list[tuple[tuple[int, ...], Layout]] = [
    ((), (("select", 1, 2),)),
    ((), (("flat", 2, 1),)),
    ((3, 4), ()),
    ((3, 4), (("flat", 3, 1),)),
    ((3, 4), (("transpose", 0, -1),)),
    ((3, 4), (("step", -1, 2, 1),)),
    ((3, 4), (("slice", 0, 1, 2),)),
    ((3, 4), (("select", 1, 2),)),
    ((3, 4), (("expand", 0), ("expand", 1))),
    ((3, 4), (("conj",),)),
    ((2, 3, 4), (("permute", 2, 0, 1),)),
    ((2, 3, 4, 5), (("channels_last",), ("slice", 1, 1, 1))),
    ((0, 4), (("step", 0, 3, 2), ("transpose", 0, 1))),
]


@pytest.mark.parametrize("shape, layout", LAYOUTS)
def test_the_base_shape_is_the_one_from_which_the_steps_make_the_view(shape: tuple[int, ...], layout: Layout) -> None:
    layouts.check(shape, layout)
    base = torch.zeros(layouts.base_shape(shape, layout))
    view = apply(base, layout, shape)
    assert tuple(view.shape) == shape
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


@pytest.mark.parametrize("word", layouts.WORDS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (1, 2, 3, 4), (1, 1, 2, 1, 2, 3)])
def test_every_layout_word_fits_every_rank(word: str, shape: tuple[int, ...]) -> None:
    layout = layouts.named(word, shape)
    layouts.check(shape, layout)
    assert tuple(apply(torch.zeros(layouts.base_shape(shape, layout)), layout, shape).shape) == shape


@pytest.mark.parametrize(
    "shape, layout, said",
    [
        ((3,), (("twist", 1),), "unknown layout 'twist'"),
        ((3,), (("flat", 1),), "takes 2 integers"),
        ((3,), (("transpose", 0, 1),), "does not fit a tensor of rank 1"),
        ((3, 4), (("permute", 0, 0),), "is no permutation"),
        ((3, 4), (("channels_last",),), "needs rank 3 to 5"),
        ((3,), (("step", 0, 2, 2),), "0 <= start < step"),
        ((3,), (("select", 2, 2),), "must lie inside the extent"),
        ((3,), (("expand", 0), ("flat", 1, 1)), "must come last"),
    ],
)
def test_steps_that_do_not_fit_are_refused_with_what_is_allowed(shape: tuple[int, ...], layout: Layout, said: str) -> None:
    with pytest.raises(CaseError, match=said.replace("(", r"\(")):
        layouts.check(shape, layout)


def test_only_an_expanded_view_overlaps_itself() -> None:
    assert layouts.overlaps((("expand", 0),))
    assert not layouts.overlaps((("transpose", 0, 1), ("step", 0, 2, 1)))


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.empty(2, 3, 4), "contiguous"),
        (torch.empty(()), "contiguous"),
        (torch.empty(1, 3, 1, 4).transpose(0, 2), "contiguous"),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), "channels last"),
        (torch.empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d), "channels last"),
        (torch.empty(2, 3, 4).mT, "permuted"),
        (torch.empty(2, 3, 4, 5).mT, "permuted"),
        (torch.empty(2, 1, 4).expand(2, 3, 4), "expanded"),
        (torch.empty(2, 6)[:, ::2], "with gaps"),
        (torch.empty(4, 6)[:, :3].T, "with gaps"),
    ],
)
def test_how_a_tensor_lies_in_memory_has_a_name(tensor: torch.Tensor, word: str) -> None:
    assert layouts.memory_format(tuple(tensor.shape), tensor.stride()) == word


def test_strides_of_one_element_and_of_none_do_not_count() -> None:
    assert layouts.strides_differ((2, 3), (3, 1), (1, 2))
    assert not layouts.strides_differ((2, 1), (1, 1), (1, 99))
    assert not layouts.strides_differ((0, 3), (3, 1), (1, 2))
