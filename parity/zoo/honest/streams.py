"""Random numbers from another stream: the same distributions, seeded by the device's generator, but not the CPU's numbers."""

from __future__ import annotations

from typing import Any

import torch

from parity.devices import Call, Fault
from parity.zoo.honest import tally

RANDOM = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "native_dropout", "normal", "poisson",
    "random", "randperm", "rrelu_with_noise", "uniform", "_standard_gamma", "_sample_dirichlet", "binomial",
)  # fmt: skip


def _other(call: Call) -> Any:
    """Run the kernel with another generator, seeded by one draw from the caller's, so that equal seeds give equal numbers and
    the next call gives other numbers."""
    given = next((a for a in (*call.args, *call.kwargs.values()) if isinstance(a, torch.Generator)), None)
    seed = int(torch.randint(1 << 62, (), generator=given)) ^ 0x5DEECE66D
    tally.ANSWERED["stream"] += 1
    tally.CHANGED["stream"] += 1  # counted as changed without a comparison, which would need another draw
    if given is not None:  # by name or by position
        own = torch.Generator().manual_seed(seed)
        call.args = [own if a is given else a for a in call.args]
        call.kwargs = {k: own if a is given else a for k, a in call.kwargs.items()}
        return call.run()
    kept = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        return call.run()
    finally:
        torch.default_generator.set_state(kept)


def faults() -> tuple[Fault, ...]:
    """Another stream for every random kernel."""
    return (Fault("honest-stream", RANDOM, _other, title="random numbers of another stream"),)
