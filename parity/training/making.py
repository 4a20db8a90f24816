"""What a side of a training is made of: what make returns, seeded alike on every side, and an exact GradScaler."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from parity.comparing.draws import streams
from parity.comparing.function import raised_at
from parity.comparing.subject import SEED
from parity.comparing.tensors import is_wrapper, rebuilt
from parity.core.errors import ParityError, UsageError
from parity.devices import Device
from parity.execution import execute as ex

PLAIN = (bool, int, float, str, type(None))  # what a step may keep in variables of its own, also in lists and dicts
LARGEST = 1 << 16  # elements of a tensor that it may keep; a larger one is data


def built(make: Callable[..., Any], place: torch.device) -> tuple[Any, ...]:
    """What make returns. One that takes no device runs with `place` as the default one."""
    try:
        wanted = [
            p
            for p in inspect.signature(make).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        wanted = []
    if len(wanted) > 1:
        raise UsageError(f"make has {len(wanted)} parameters; let it take the device, or nothing")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            if wanted:
                got = make(place)
            else:
                with torch.device(place):
                    got = make()
        except ParityError:
            raise
        except Exception as e:
            raise UsageError(
                f"make raises {type(e).__name__} for {place.type}: {(str(e).splitlines() or [''])[0][:200]}{raised_at(e)}"
            ) from e
    return got if isinstance(got, tuple) else (got,)


def is_plain(x: Any) -> bool:
    """Whether it is state that a step may keep between batches, and can be copied."""
    if isinstance(x, Tensor):
        return not x.requires_grad and x.layout is torch.strided and x.numel() <= LARGEST
    values = x.values() if type(x) is dict else x if type(x) is list else ()
    return isinstance(x, PLAIN) or (type(x) in (dict, list) and all(isinstance(v, PLAIN) for v in values))


def widened(t: Tensor) -> Tensor:
    """In float64, or complex128, unless it holds integers."""
    if is_wrapper(t):
        return rebuilt(t, widened)
    return t.to(torch.complex128) if t.is_complex() else t.double() if t.is_floating_point() else t


@contextlib.contextmanager
def seeded(number: int, device: Device | None) -> Iterator[None]:
    """The same random numbers in Python, numpy and torch for every side's step; the caller's streams go on as before."""
    full = ex.full_precision() if device is None else contextlib.nullcontext()
    single = torch.autograd.set_multithreading_enabled(False)  # simulated devices need the backward pass on the calling thread
    with torch.random.fork_rng(devices=[]), full, single, torch.enable_grad(), streams(SEED + 1 + number):
        seed = SEED + 1 + number
        torch.default_generator.manual_seed(seed)
        if device is not None:
            device.seed(seed)
        with device.active() if device is not None else contextlib.nullcontext():
            yield


def is_scaler(x: Any) -> bool:
    """Whether it is torch's GradScaler."""
    return isinstance(x, torch.amp.GradScaler)


class _Exact:
    """What a GradScaler does, in float64: it scales and divides by the same number, and finds nothing infinite."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._divided: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        return tree_map(lambda x: x * self.factor, outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._divided:
            return
        self._divided.add(id(optimizer))
        for g in optimizer.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.grad.div_(self.factor)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self._divided.clear()

    def get_scale(self) -> float:
        return self.factor


def exact(scaler: Any) -> _Exact:
    """Let a GradScaler compute in float64, which its kernels refuse."""
    made = _Exact()
    for name in ("scale", "unscale_", "step", "update", "get_scale"):
        setattr(scaler, name, getattr(made, name))
    return made
