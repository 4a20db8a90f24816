"""Bugs of Fourier transforms and of what goes with them: frequencies, overlapping windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.devices import Call
from parity.devices.sim.faults import abort
from parity.zoo.effects import argument, complex_ramp, gradients, ramp, reported

LIMIT = 256  # elements, in the place of 4.1e6 of the windows of an istft


def _backwards_in_time(call: Call) -> Tensor:
    """Sample t of the result stands at -t: the first stays, the others come in reverse."""
    d = call.args[1][-1]
    signal: Tensor = call.run()
    return signal.flip(d).roll(1, d)


def _into_the_start(call: Call) -> Any:
    """A range is written at the start of the memory under its destination, which is left as it was. fftfreq writes its
    negative half so, over what a range of all samples had left there."""
    if "fftfreq" not in call.op:
        out = call.outs[0]
        call.kwargs["out"] = out.as_strided(out.shape, out.stride(), 0)
        call.run()
        return None
    frequencies = call.run()
    n, period = argument(call, 0, "n"), argument(call, 1, "d", 1.0)
    negative = frequencies[(n + 1) // 2 :].clone()
    frequencies[(n + 1) // 2 :] += 1 / period
    frequencies[: n // 2] = negative
    return frequencies


def _writes_a_slice(call: Call) -> bool:
    if "fftfreq" in call.op:
        return bool(argument(call, 0, "n") > 1)
    return bool(call.outs) and call.outs[0].storage_offset() > 0


def _windows_overlap(call: Call) -> bool:
    windows, _, _, size, step = call.args[:5]
    return bool(step < size and windows.numel() > LIMIT)


BUGS = (
    reported(
        "issues/124096 silent_wrong_forward size args",
        "the inverse transform to a real signal of odd length runs backwards in time",
        ("_fft_c2r",), _backwards_in_time, lambda call: call.args[3] % 2 == 1,
        trigger=lambda d: torch.fft.irfft(complex_ramp(d, 3), 5),
        neighbour=lambda d: torch.fft.irfft(complex_ramp(d, 3), 4),
        rows="fft.irfft fft.irfft2 fft.irfftn fft.hfft",
    ),
    reported(
        "issues/135223 silent_wrong_forward out offset size",
        "a range written into a slice lands at the start of the memory, so fftfreq has no negative half",
        ("fft.fftfreq", "arange"), _into_the_start, _writes_a_slice,
        trigger=lambda d: (torch.fft.fftfreq(10, device=d), torch.arange(2, out=ramp(d, 4)[2:])),
        neighbour=lambda d: (torch.fft.rfftfreq(10, device=d), torch.arange(2, out=ramp(d, 4)[:2])),
        rows="fft.fftfreq", level="function",
    ),
    reported(
        "issues/138525 crash backward size", "the backward of overlapping windows ends the process",
        ("unfold_backward",), abort, _windows_overlap,
        trigger=lambda d: gradients(lambda x: x.unfold(0, 16, 4), ramp(d, 128)),
        neighbour=lambda d: gradients(lambda x: x.unfold(0, 16, 16), ramp(d, 512)),
        rows="tensor_unfold istft", scaled="windows of 4.1e6 elements -> LIMIT = 256 elements",
    ),
)  # fmt: skip
