"""Allocation, copies and resizing on the simulated device, which no CPU kernel can do for it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim import memory
from parity.devices.sim.call import Call
from parity.devices.sim.faults import run_through
from parity.devices.sim.kernels import allocated, settle
from parity.devices.sim.memory import CPU_KEYS, NAME, to_host, to_host_in_place, to_sim
from parity.devices.sim.seats import SEATS, Seat

_WRITTEN = ((0, "self", False),)  # as in Plan.returns: one result, which is the destination
_FRESH = (None,)


class _Current(threading.local):
    """The index of a device that is named without one."""

    index = 0


_current = _Current()


@contextlib.contextmanager
def allocating_on(index: int) -> Iterator[None]:
    """Inside, empty tensors of the device "sim" lie on this index: torch makes some before it makes a sparse tensor."""
    before, _current.index = _current.index, index
    try:
        yield
    finally:
        _current.index = before


def _allocate(device: torch.device | None, name: str, make: Callable[[], Tensor]) -> Tensor:
    index = (device.index or 0) if device is not None else 0
    seat = SEATS[index]
    fresh = make()
    if not seat.busy:
        return to_sim(fresh, index)
    seat.profile.check(fresh.dtype, fresh.dim())
    if seat.computes is not None and fresh.numel() <= seat.computes:
        fresh.zero_()  # a call that is not computed may leave it so, and a smaller one take it for indices
    fresh = allocated(seat, fresh) if name.startswith("empty") else fresh
    if faults := seat.faults_for(name, name.partition(".")[0]):
        call = Call(name, "kernel", [fresh.shape], {"dtype": fresh.dtype}, (), seat.history, lambda c: fresh)
        fresh = settle(_FRESH, run_through(faults, call), (), name)
    seat.note(name)
    if seat.witness is not None:
        seat.witness(f"aten::{name}", (), {}, fresh)
    return to_sim(fresh, index)


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """aten::empty.memory_format."""
    dtype = dtype or torch.get_default_dtype()
    if device is not None and device.index is None and (current := _current.index):
        device = torch.device(NAME, current)
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        if not SEATS[index := (device.index or 0) if device is not None else 0].busy:
            return to_sim(torch.empty(size, dtype=dtype), index)
        return _allocate(device, "empty.memory_format", lambda: torch.empty(size, dtype=dtype))
    stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return _allocate(device, "empty.memory_format", lambda: torch.empty_strided(size, stride, dtype=dtype))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """aten::empty_strided."""
    dtype = dtype or torch.get_default_dtype()
    if not SEATS[index := (device.index or 0) if device is not None else 0].busy:
        return to_sim(torch.empty_strided(size, stride, dtype=dtype), index)
    return _allocate(device, "empty_strided", lambda: torch.empty_strided(size, stride, dtype=dtype))


def efficient_zero_tensor(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """aten::_efficientzerotensor. The lazy kind has no memory to relabel, so these are real zeros."""
    dtype = dtype or torch.get_default_dtype()
    return memory.declare_zeros(_allocate(device, "_efficientzerotensor", lambda: torch.zeros(size, dtype=dtype)))


def copy_from(src: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """aten::_copy_from: uploads, downloads and every copy on the device."""
    if memory.live_zeros and not dst.is_cpu:
        memory.forget_zeros(dst)
    onto = None if dst.is_cpu else SEATS[dst.get_device()]
    off = None if src.is_cpu else SEATS[src.get_device()]
    if (onto is not None and onto.busy) or (off is not None and off.busy):
        _watched_copy(src, dst, onto, off)
    else:
        _plain_copy(src, dst)
    return dst


def _watched_copy(src: Tensor, dst: Tensor, onto: Seat | None, off: Seat | None) -> None:
    name = "upload" if off is None else "download" if onto is None else "copy_"
    seat = onto if onto is not None else off
    assert seat is not None
    if onto is not None:
        onto.profile.check(dst.dtype, dst.dim())
    if src.is_conj() != dst.is_conj() or src.is_neg() != dst.is_neg():
        seat.resolved[dst.data_ptr()] = frozenset(w for w, bit in (("conj", src.is_conj()), ("neg", src.is_neg())) if bit)
    faults = seat.faults_for(name, name)
    if seat.computes is not None and src.numel() + dst.numel() > seat.computes:
        pass  # neither side is read or written
    elif not faults:
        _plain_copy(src, dst)
    else:
        level = "kernel" if name == "copy_" else "transfer"
        destination = _seen(dst)
        call = Call(
            name,
            level,
            [_seen(src)],
            {},
            (destination,),
            seat.history,
            lambda c: destination.copy_(c.args[0]),
            origin=((src,), {}),
        )
        settle(_WRITTEN, run_through(faults, call), call.outs, name)
    seat.note(name)
    if seat.witness is not None:
        seat.witness("aten::_copy_from", (src,), {}, dst)


def _plain_copy(src: Tensor, dst: Tensor) -> None:
    host = src if src.is_cpu else to_host(src)
    if src.is_neg() != dst.is_neg() and src.dtype is not dst.dtype:
        host = host.to(dst.dtype)  # the CPU's own copies between float16 and float32 ignore the lazy minus (torch 2.13)
    (dst if dst.is_cpu else to_host(dst)).copy_(host)


def _seen(t: Tensor) -> Tensor:
    return t if t.is_cpu else to_host_in_place(t)


def copy_from_and_resize(src: Tensor, dst: Tensor) -> Tensor:
    """aten::_copy_from_and_resize."""
    if dst.shape != src.shape:
        dst.resize_(src.shape)
    return copy_from(src, dst)


def resize_(self: Tensor, size: Sequence[int], *, memory_format: Any = None) -> Tensor:
    """aten::resize_, as on the CPU: an unchanged size keeps the strides, and the contents of the memory stay.

    Imported memory cannot grow, so a larger size gets new memory; other views keep the old one.
    """
    if memory_format is None and tuple(size) == tuple(self.shape):
        return self
    stride = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format).stride()
    storage, offset = self.untyped_storage(), self.storage_offset()
    elements = offset + math.prod(size)
    if storage.nbytes() < elements * self.element_size():
        fresh = allocated(SEATS[self.get_device()], torch.empty(elements, dtype=self.dtype))
        ctypes.memmove(fresh.data_ptr(), storage.data_ptr(), storage.nbytes())
        storage = to_sim(fresh, self.get_device()).untyped_storage()
    return self.set_(storage, offset, size, stride)


def let_go(self: Tensor) -> Tensor:
    """aten::set_ without a source: the tensor becomes empty. torch's own kernel would give it host memory."""
    nothing = _allocate(self.device, "empty.memory_format", lambda: torch.empty(0, dtype=self.dtype))
    return self.set_(nothing.untyped_storage(), 0, (0,), (1,))


def on_metadata(op: Any) -> Callable[..., Any]:
    """The kernel for views and set_: the CPU kernel runs on the sim tensors themselves, because only metadata changes."""
    return functools.partial(op._handle.redispatch_boxed, CPU_KEYS)
