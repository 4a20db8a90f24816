"""`parity.locate`: which module and which operator of a model first compute something else on a device than on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parity.comparing.compiled import Backend, Compiler, compiled_side
from parity.comparing.function import target
from parity.comparing.request import DEFAULT, Effort, Request
from parity.core.errors import UsageError
from parity.devices import Device
from parity.locating.against import located_against
from parity.locating.located import Located
from parity.locating.search import located


def locate(
    fn: Callable[..., Any],
    *inputs: Any,
    device: str | torch.device | Device | None = None,
    backward: bool = True,
    keep_on_cpu: str | Iterable[str] = (),
    against: str | Path | None = None,
    seconds: float = math.inf,
    whole: bool = True,
    modules: bool = False,
    times: bool = False,
    compile: Backend | None = None,
    effort: Effort = DEFAULT,
    **kwargs: Any,
) -> Located:
    """Find the first module and the first operator of `fn(*inputs, **kwargs)` whose own result on the device is wrong, forward
    and (`backward`) backward.

    Each operator is judged by itself, on the operands that it got on the device. The caller's objects stay unchanged.
    device: "auto" by default. keep_on_cpu: as for `assert_parity`. against: a file of `capture`; then the calls that it holds
    are judged here, with the capture's weights and inputs, and `device` (by default the CPU) is a device of this machine that
    is searched as well (`Located.here`). Without a capture, seconds: the time after which no more operators are compared;
    whole: compare the results where no operator diverges, and go on behind one that does; modules: also say how far each
    module's outputs and gradients are off as errors add up, which needs six more runs; times: also measure how long both sides
    take, by operator, in fifteen more runs; effort: "full" asks the float64 truth wherever results differ by more than one
    rounding, the others only where no roundings on the CPU explain it; compile: a backend of torch.compile, as for
    `assert_parity`, to find which code is wrong, eager or compiled (`Located.compiled`); the device may then be the CPU.
    Raises UsageError for a function that does not run on the CPU, and for another model, or other weights that the capture
    does not hold; NothingCompared if no operator ran on the device; DeviceError for a device that is not available;
    CaptureError for a file that is not a sound capture.

    >>> parity.locate(torch.nn.Linear(4, 2), torch.randn(3, 4), device="sim").agrees
    True
    """
    near = (keep_on_cpu,) if isinstance(keep_on_cpu, str) else tuple(keep_on_cpu)
    q = Request(fn, inputs, kwargs, "auto" if device is None else device, backward, keep_on_cpu=near, effort=effort)
    if against is not None:
        if compile is not None:
            raise UsageError("against= judges what eager code recorded; leave out compile=, or the capture")
        return located_against(replace(q, device="cpu" if device is None else device), against)
    place = target(q.device)
    compiler = None if compile is None else Compiler(compile, fn, place)
    if compiler is not None and place.name == "cpu":  # eager code there is the reference itself
        s = q.subject()
        found = Located(f"{s.name} {s.dtype} on cpu", s.dtype, "cpu")
    else:
        found = located(replace(q, device=place), seconds, whole, modules, times)
    if compiler is None:
        return found
    return replace(found, compiled=compiled_side(compiler, q, not found.agrees).side)
