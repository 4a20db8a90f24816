"""Destinations of out= and resize_: on the simulated device they end in the form and the memory that they have on the CPU."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from likeness import close
from torch import Tensor

from parity.devices import Device

X = torch.randn(3, 4)
_PIVOTS = torch.tensor([1, 2, 3, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "shape", "dtype"),
    [
        (lambda x, out: torch.linalg.householder_product(x, x[0], out=out), (4, 4), torch.float32),
        (lambda x, out: torch.linalg.lu_solve(x, _PIVOTS.to(x.device), x, left=False, out=out), (4, 4), torch.complex64),
        (lambda x, out: torch.nonzero(x[0, 0] * 0, out=out), (2, 2), torch.int64),
        (lambda x, out: torch.linalg.cholesky(x[:, :0, :0], out=out), (2, 3, 3), torch.float32),
    ],
)
def test_a_slice_that_grows_within_its_memory_ends_in_the_form_it_has_on_the_cpu(
    sim: Device, call: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Both in memory that has room and at its end: layout, offset, lazy conjugate, and what lies around."""
    x = torch.arange(1, 1 + math.prod(shape)).reshape(shape).to(dtype) / (1 if dtype is torch.int64 else 17)
    x = x * (1 + 2j) if dtype.is_complex else x.to(dtype)
    for start, length in ((5, 90), (5, 8)):
        base, there = torch.full((length,), 7, dtype=dtype), sim.upload(torch.full((length,), 7, dtype=dtype))
        want, got = base[start : start + 3], there[start : start + 3]
        call(x, want)
        call(sim.upload(x), got)
        assert (got.shape, got.stride(), got.is_conj()) == (want.shape, want.stride(), want.is_conj())
        close(got, want.resolve_conj())
        if length == 90:
            assert got.storage_offset() == want.storage_offset() == start
            close(there, base)


def test_what_a_kernel_leaves_in_a_destination_that_is_too_small_stays(sim: Device) -> None:
    """Batch norm in evaluation has no statistics to save, and writes none."""

    def outs(place: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        x, one, zero = place(torch.arange(24.0).reshape(2, 3, 4)), place(torch.ones(3)), place(torch.zeros(3))
        outs = tuple(place(torch.full((2,), 7.0)) for _ in range(3))
        torch.ops.aten.native_batch_norm.out(
            x, one, zero, zero, one, False, 0.1, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2]
        )
        return outs

    for got, want in zip(outs(sim.upload), outs(lambda t: t)):
        close(got, want)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_strided_destination_is_written_where_it_lies(sim: Device, name: str) -> None:
    """torch computes into a temporary, resizes the destination to the size that it has, and copies."""
    base, there = torch.zeros(9), sim.upload(torch.zeros(9))
    view = there[::2]
    getattr(torch, name)(sim.upload(X.flatten()[:5]), 0, out=view)
    getattr(torch, name)(X.flatten()[:5], 0, out=base[::2])
    assert view.stride() == (2,)
    close(there, base)


@pytest.mark.parametrize(
    "resize",
    [
        lambda t: t.t().resize_(4, 3),
        lambda t: t.t().resize_(3, 4),
        lambda t: t[1:, ::2].resize_(2, 2),
        lambda t: t[1:, ::2].resize_(2, 3),
        lambda t: t.view(-1)[1::3].resize_(11),
        lambda t: t.resize_(1, 2, 2, 3, memory_format=torch.channels_last),
        lambda t: t.t().resize_(4, 3, memory_format=torch.contiguous_format),
        lambda t: t.resize_(0),
        lambda t: t.resize_(()),
    ],
)
def test_resizing_keeps_memory_offset_and_strides_as_the_cpu_does(sim: Device, resize: Callable[[Tensor], Tensor]) -> None:
    got, want = resize(sim.upload(X)), resize(X.clone())
    assert (got.shape, got.stride(), got.storage_offset()) == (want.shape, want.stride(), want.storage_offset())
    close(got, want)


def test_growing_keeps_the_whole_memory_and_the_offset(sim: Device) -> None:
    got, want = sim.upload(X).view(-1)[2::3].resize_(30), X.clone().view(-1)[2::3].resize_(30)
    assert got.storage_offset() == want.storage_offset() == 2
    close(got[:10], want[:10])


_BATCHES = torch.randn(2, 3, 4, 4)
_LU, _LU_PIVOTS = torch.linalg.lu_factor(_BATCHES)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, **k: (torch.tril(x(_BATCHES), **k),),
        lambda x, **k: (torch.triu(x(_BATCHES), **k),),
        lambda x, **k: torch.lu_unpack(x(_LU), x(_LU_PIVOTS), **k),
        lambda x, **k: torch.linalg.lu(x(_BATCHES), pivot=True, **k),
    ],
    ids=["tril", "triu", "lu_unpack", "lu"],
)
@pytest.mark.parametrize(
    "form",
    [
        lambda sim: torch.zeros(4, 4, 3, 2, device=sim).permute(3, 2, 1, 0),
        lambda sim: torch.zeros(5, 3, 4, 9, device=sim)[1:3, ..., 1::2],
        lambda sim: torch.empty(0, device=sim),
        lambda sim: torch.zeros(2, device=sim),
        lambda sim: torch.zeros(500, device=sim)[3:5],
    ],
    ids=["reversed", "strided", "empty", "small", "slice"],
)
def test_triangles_into_batches_that_cannot_be_merged(
    sim: Device, call: Callable[..., Any], form: Callable[..., Tensor]
) -> None:
    """The CPU writes outside such a destination."""
    want = call(lambda t: t)
    outs = tuple(form(sim.torch_device) for _ in want)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        got = call(sim.upload, out=outs if len(outs) > 1 else outs[0])
    for g, o, w in zip(got, outs, want):
        close(o, w)
        close(g, w)


@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles_in_place_where_batches_cannot_be_merged(sim: Device, name: str) -> None:
    x = torch.randn(5, 3, 5, 4).permute(2, 1, 0, 3)
    there = sim.upload(torch.zeros(5, 3, 5, 4)).permute(2, 1, 0, 3)
    getattr(there.copy_(x), name + "_")(1)
    close(there, getattr(x, name)(1))


def test_an_empty_slice_grows_within_its_memory(sim: Device) -> None:
    close(torch.fft.fftfreq(5, device=sim.torch_device), torch.fft.fftfreq(5))


def test_a_composite_that_asks_for_the_type_of_the_device(sim: Device) -> None:
    x = torch.tensor([[1, 2, 2], [3, 3, 1]])
    values, indices = (torch.zeros(2, dtype=torch.long, device=sim.torch_device) for _ in range(2))
    torch.mode(sim.upload(x), out=(values, indices))
    close(values, torch.mode(x)[0])
    close(indices, torch.mode(x)[1])
