"""Writes outside of the view that a call should write."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parity.core.case import Layout
from parity.core.layout import base_shape
from parity.execution.inputs import apply
from parity.judging.destination import Part, form, stray, written_outside

LAYOUTS: tuple[Layout, ...] = (
    (), (("flat", 2, 3),), (("slice", 1, 1, 2),), (("step", 0, 2, 1),), (("transpose", 0, 1),), (("step", 1, 3, 0), ("neg",)),
)  # fmt: skip


def made(layout: Layout, dtype: torch.dtype) -> tuple[Part, Tensor]:
    """A destination that holds NaN where its dtype has it, and its base after a call wrote the whole view and nothing else."""
    shape = (3, 4)
    before = torch.arange(1, 1 + torch.Size(base_shape(shape, layout)).numel()).view(base_shape(shape, layout)).to(dtype)
    if dtype.is_floating_point:
        before.view(-1)[0] = float("nan")
    after = before.clone()
    apply(after, layout, shape).fill_(77)
    return Part(before, layout, shape), after


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_write_outside_of_the_view_is_found_and_none_inside(layout: Layout, dtype: torch.dtype) -> None:
    part, after = made(layout, dtype)
    outside = torch.ones(part.before.shape, dtype=torch.bool)
    apply(outside, tuple(s for s in layout if s[0] != "neg"), part.shape).fill_(False)
    assert stray("out", after, part) is None
    for k in range(after.numel()):
        odd = after.clone()
        odd.view(-1)[k] = 99
        assert (stray("out", odd, part) is not None) == bool(outside.view(-1)[k])
        assert bool(written_outside(odd, part).any()) == bool(outside.view(-1)[k])


def test_another_shape_or_dtype_is_malformed() -> None:
    right = torch.zeros(2, 3)
    assert form("out", right.clone(), right) is form("out", right, None) is None
    told = [form("out", x, right) for x in (torch.zeros(3, 2), right.double())]
    assert [v and v.reason for v in told] == [
        "out.shape=[3, 2], but should be [2, 3]",
        "out.dtype=float64, but should be float32",
    ]


def test_a_base_that_lies_otherwise_or_has_another_nan_is_no_finding() -> None:
    part, after = made((("slice", 1, 1, 2),), torch.float32)
    assert stray("out", after.t().contiguous().t(), part) is None
    other = after.clone()
    other.view(torch.int32)[0, 0] += 1  # NaN with other bits
    assert torch.isnan(other[0, 0])
    assert stray("out", other, part) is None
