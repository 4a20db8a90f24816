"""Measures how long a function takes on the device and on the CPU, by operator, and what the fallback to the CPU costs there.

A side runs once to warm up. The totals are the median of `RUNS` plain runs, forward and backward, with nothing in between:
copies are made before, and the clock is read when the device has done all its work. Operators are measured in runs of their
own, in which each is waited for; that is slower where the device computes behind the program's back. Where it doubles the
time of a plain run on either side, it measures the waiting, and no operator is given a share. Random numbers are each
side's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from parity.comparing.subject import SEED, Subject, forward, gradients, tracked_outputs
from parity.comparing.truth import seeded
from parity.core.observer import Operators
from parity.core.results import Raised
from parity.devices import Device, resolve
from parity.devices.refusals import listening
from parity.execution import execute as ex
from parity.locating.located import plural

RUNS = 3
NAMED = 3  # operators in a line
DISTORTED = 2.0  # times a plain run: from here on, waiting costs more than what is measured
SAME = 1.05  # times as long, which is not called slower


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side took, in seconds. whole: a plain run; operators: the calls of each operator, each waited for."""

    whole: float
    operators: dict[str, float]

    @property
    def distortion(self) -> float:
        """How many times as long as a plain run the operators take that are waited for."""
        return sum(self.operators.values()) / self.whole if self.whole else 0.0


def times(s: Subject, cotangents: Sequence[Tensor], device: Device) -> tuple[str, ...]:
    """At most three lines: the time on the device against the CPU's, the operators that take most of it, and what ran on the
    CPU instead. Nothing if it raises on the device. The subject is one that runs on the CPU."""
    own, fell = replace(s, draws=False, choices=None), dict[str, int]()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        sides = [ex.attempt(lambda d=d: _side(own, cotangents, d), "run") for d in (device, resolve("cpu"))]  # type: ignore[misc]
        if not any(isinstance(side, Raised) for side in sides):
            _listen(own, cotangents, device, fell)
    there, here = sides
    if not isinstance(there, _Side) or not isinstance(here, _Side):
        return ()
    passes = "forward and backward" if cotangents else "forward"
    simulated = "; SIMULATED: this says nothing about any hardware" if device.simulated else ""
    first = f"time: {_against(there.whole, here.whole)} ({_ms(there.whole)}, {_ms(here.whole)} there; {passes}{simulated})"
    return (first, *_by_operator(there, here, fell))


def _by_operator(there: _Side, here: _Side, fell: dict[str, int]) -> Iterator[str]:
    distorted = max(there.distortion, here.distortion)
    names = ", ".join(f"{name} ({plural(n, 'call')})" for name, n in fell.items())
    if distorted >= DISTORTED:
        yield f"no times of operators: waiting for each takes {distorted:.2g} times as long as a plain run"
        if names:
            yield f"ran on the CPU by fallback: {names}"
        return
    total = sum(there.operators.values())
    if not total:
        return
    most = sorted(there.operators.items(), key=lambda nt: -nt[1])[:NAMED]
    theirs = {name: f", CPU {_ms(t)}" for name, t in here.operators.items()}  # some are made of others there
    shares = (
        f"{name} {t / total:.0%} ({_ms(t)}{theirs.get(name, '; the CPU calls others')})" + ", by fallback" * (name in fell)
        for name, t in most
    )
    yield f"of the time in operators: {', '.join(shares)}"
    if names:
        cost = sum(there.operators.get(name, 0.0) for name in fell)
        yield f"ran on the CPU by fallback, {cost / total:.0%} of it ({_ms(cost)}): {names}"


def _against(there: float, here: float) -> str:
    slower = there / here if here else float("inf")
    if 1 / SAME <= slower <= SAME:
        return "as long as on the CPU"
    return f"{slower:.2g} times slower than on the CPU" if slower > 1 else f"{1 / slower:.2g} times faster than on the CPU"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


# ------------------------------------------------------------------------------------------------------------------ a run


def _side(s: Subject, cotangents: Sequence[Tensor], device: Device) -> _Side:
    """The times on one device. Raises what the function raises."""
    _run(s, cotangents, device)
    whole = median([_run(s, cotangents, device) for _ in range(RUNS)])
    runs: list[dict[str, float]] = [{} for _ in range(RUNS)]
    for seconds in runs:

        def timed(func: Any, args: Any, kwargs: Any, seconds: dict[str, float] = seconds) -> Any:
            with _clock(device) as took:
                result = func(*args, **kwargs)
            seconds[_name(func)] = seconds.get(_name(func), 0.0) + took[0]
            return result

        _run(s, cotangents, device, lambda timed=timed: Operators(timed))  # type: ignore[misc]
    names = {name for seconds in runs for name in seconds}
    return _Side(whole, {n: median([seconds.get(n, 0.0) for seconds in runs]) for n in names})


def _listen(s: Subject, cotangents: Sequence[Tensor], device: Device, fell: dict[str, int]) -> None:
    """Count the calls of each operator that ran on the CPU, in a run of its own: the warnings take time, too."""
    heard: list[str] = []

    def counted(func: Any, args: Any, kwargs: Any) -> Any:
        before = len(heard)
        result = func(*args, **kwargs)
        if len(heard) > before:
            fell[_name(func)] = fell.get(_name(func), 0) + 1
        return result

    with listening(heard):
        ex.attempt(lambda: _run(s, cotangents, device, lambda: Operators(counted)), "run")


def _run(
    s: Subject, cotangents: Sequence[Tensor], device: Device, watch: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> float:
    """The seconds of one run, without its copies. watch: makes what sees the operators."""
    spent: list[float] = []

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _clock(device, spent):
                return function(*args, **kwargs)

        return call

    device.seed(SEED)
    with seeded(), device.active():
        run = forward(s, device.upload, bool(cotangents), watch(), stay=torch.clone, wrap=wrap)
        fed = [device.upload(c) for c in cotangents]
        if fed:
            with watch(), _clock(device, spent):
                gradients(run, tracked_outputs(run), fed)
    return sum(spent)


@contextmanager
def _clock(device: Device, spent: list[float] | None = None) -> Iterator[list[float]]:
    """Append the seconds that what is in it takes, with all its work on the device."""
    spent = [] if spent is None else spent
    device.synchronize()
    began = perf_counter()
    yield spent
    device.synchronize()
    spent.append(perf_counter() - began)


def _name(func: Any) -> str:
    return str(func._schema.name) if hasattr(func, "_schema") else str(func)
