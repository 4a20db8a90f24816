"""The public strategy for tensors draws what it says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import find, given, settings

import parity
from parity.core.errors import UsageError


@settings(max_examples=30, deadline=None)
@given(x=parity.tensors((2, 3), torch.float16, requires_grad=True))
def test_shape_dtype_and_gradient_are_those_asked_for(x: torch.Tensor) -> None:
    """Whatever the layout."""
    assert (x.shape, x.dtype, x.requires_grad) == ((2, 3), torch.float16, True)
    assert bool(torch.isfinite(x).all())


def test_layouts_and_special_values_are_drawn_on_request() -> None:
    """Some view is not contiguous, some value is NaN; without them, none is."""
    assert not find(parity.tensors((3, 4)), lambda x: not x.is_contiguous()).is_contiguous()
    nan = find(parity.tensors((3, 4), specials=True), lambda x: bool(x.isnan().any()), settings=settings(max_examples=2000))
    assert bool(nan.isnan().any())

    @settings(max_examples=40, deadline=None)
    @given(x=parity.tensors((3, 4), "int64", layouts=False))
    def plain(x: torch.Tensor) -> None:
        assert x.is_contiguous()
        assert x.dtype == torch.int64

    plain()


def test_an_unknown_dtype_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match="unknown dtype 'float8_e4m3fn'; allowed: "):
        parity.tensors((2,), torch.float8_e4m3fn)
