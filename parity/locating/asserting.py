"""`assert_parity`: compare a function on the device with the CPU, and say where it diverges if it does. `locate`: which
module and which operator of a model do so first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parity.comparing.comparison import DEFAULT, Comparison, Effort, ParityFailure, Request
from parity.comparing.compiled import Backend, Compiler, compiled_side, with_compiled
from parity.comparing.function import compared, target
from parity.core.errors import ParityError, UsageError
from parity.core.results import statuses
from parity.devices import Device
from parity.locating.against import located_against
from parity.locating.located import Located
from parity.locating.search import Sought, located, with_divergence

hearers: list[Callable[[Comparison], None]] = []  # called with every comparison of `assert_parity`, also of failing ones


def assert_parity(
    fn: Callable[..., Any],
    *inputs: Any,
    device: str | torch.device | Device = "auto",
    backward: bool = True,
    atol: float | None = None,
    fail_on: str | Iterable[str] = (),
    keep_on_cpu: str | Iterable[str] = (),
    detail: bool = False,
    effort: Effort = DEFAULT,
    compile: Backend | None = None,
    **kwargs: Any,
) -> Comparison:
    """Assert that `fn(*inputs, **kwargs)` computes the same on the device as on the CPU, up to rounding.

    It compares the outputs, the buffers and inputs that the call writes, and (`backward`) the gradients of all parameters and
    inputs that require one; without `backward` it runs under no_grad. Everything is copied, so the caller's objects stay
    unchanged. atol: errors up to this absolute size, measured against the truth, agree whatever the tables say. fail_on:
    statuses that fail in addition to the findings, as for `--fail-on`: "fallback" for an operator that silently ran on the CPU,
    "void" for a tensor of a kind that parity does not compare. keep_on_cpu: names of inputs that stay on the CPU in the
    device's run, such as the lengths for `pack_padded_sequence`. detail: compute the truth of every tensor, even of equal ones,
    and print how large an error in each would have been reported. effort: by default a result of a large float32 function
    passes without a float64 truth if rounding moves every element as far on the CPU, and the rest is judged;
    "full" judges every tensor by the truth, with most samples. compile: a backend of torch.compile, by name ("aot_eager",
    "inductor") or as a function (graph, example inputs) -> function: the function is also compiled with it on the device, and
    judged against the same truth, so that it shows which code is wrong (`Comparison.wrong_side`). Random numbers that
    torch draws (dropout) come from the CPU for every side. Where results in half types differ and are inside, and where one is
    outside of an estimate by a hair, each operator is judged by itself, as by `locate`, and decides.

    Raises ParityFailure for findings and refusals; NothingCompared if no number came out or nothing ran on the device;
    UsageError for a function that draws random numbers by a kernel of its own, moves its module away, does not
    run on the CPU or returns something that cannot be opened (a set, an iterator); DeviceError for a device that is not
    available. A ParityWarning says what a passing comparison left out.

    >>> parity.assert_parity(torch.nn.Linear(4, 2), torch.randn(3, 4), device="sim").findings
    ()
    """
    __tracebackhide__ = True
    near = (keep_on_cpu,) if isinstance(keep_on_cpu, str) else tuple(keep_on_cpu)
    wanted = statuses(tuple(fail_on.split(",")) if isinstance(fail_on, str) else tuple(fail_on), "fail_on")
    q = Request(fn, inputs, kwargs, device, backward, atol, wanted, near, detail, effort, alone=compile is None)
    try:
        compiler = None if compile is None else Compiler(compile, fn, target(device))
        search = Sought(q)
        q = replace(q, proof=search.proves)
        found = compared(q)
        comparison, cause = found.comparison, found.cause
        if compiler is not None:
            side, raised = compiled_side(compiler, q, bool(comparison.findings))
            comparison, cause = with_compiled(comparison, side), cause or raised
    except ParityError as e:  # one sentence for the caller, without parity's own frames
        raise e.with_traceback(None) from e.__cause__
    for hear in hearers:
        hear(comparison)
    if comparison.findings or any(v.status in wanted for _, v in comparison.verdicts):
        if comparison.wrong_side != "compiled":
            comparison = with_divergence(comparison, search)
        raise ParityFailure(comparison) from cause
    found.notes.warn(comparison.subject)
    if detail:
        print(comparison)
    return comparison


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
