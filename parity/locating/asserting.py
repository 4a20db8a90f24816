"""`assert_parity`: compare a function on the device with the CPU, and say where it diverges if it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from parity.comparing.comparison import Comparison, ParityFailure
from parity.comparing.compiled import Backend, Compiler, compiled_side, with_compiled
from parity.comparing.function import compared, target
from parity.comparing.request import DEFAULT, Effort, Request
from parity.core.errors import ParityError
from parity.core.results import statuses
from parity.devices import Device
from parity.locating.search import Sought, with_divergence

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
    torch draws (dropout) come from the CPU for every side.

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
