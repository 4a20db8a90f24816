"""Calls that do to their process what no call may: each is accused by name, and the next call is as it would be without."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import checked

from parity.checks.trial import HELD, Settings
from parity.core import processes, state
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.refusals import FALLBACK_TEXT, MOST, listening

CASE = "abs(float32[4].of(1.0, 2.0, 3.0, 4.0))"
OTHER = "exp(float32[4].between(-1, 1))"
SETTINGS = Settings(held=HELD)


class Own(BaseException):
    """What no `except Exception` catches."""


def lowers(call: Call) -> Any:
    sys.setrecursionlimit(sys.getrecursionlimit() - 200)
    return call.run()


def moves(call: Call) -> Any:
    os.chdir("/")
    return call.run()


def handles(call: Call) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return call.run()


def writes(call: Call) -> Any:
    for number in range(3, 60):
        with contextlib.suppress(OSError):
            if os.fstat(number).st_mode & 0o100000 and number in processes._decoys:  # not those of pytest
                os.write(number, b"garbage")
    return call.run()


def raises(call: Call) -> Any:
    raise Own("ends everything")


def aliases(call: Call) -> Any:
    call.run()
    return call.operands[0].view(call.operands[0].shape)


def warns(call: Call) -> Any:
    for k in range(2 * MOST):
        warnings.warn(f"The operator 'sinh{k}' is not currently supported and will {FALLBACK_TEXT}", stacklevel=1)
    return call.run()


def complains(call: Call) -> Any:
    for k in range(2 * state.ENDLESS):
        warnings.warn(f"the kernel is unwell ({k})", stacklevel=1)
    return call.run()


def mutters(call: Call) -> Any:
    warnings.warn("the kernel is unwell", stacklevel=1)
    return call.run()


def memorises() -> Callable[[Call], Any]:
    """Hands out its first result again wherever the values are equal."""
    held: list[torch.Tensor] = []

    def again(call: Call) -> Any:
        held.append(call.run())
        return held[0] if held[0].shape == held[-1].shape and torch.equal(held[0].cpu(), held[-1].cpu()) else held[-1]

    return again


def device(effect: Callable[[Call], Any] | None, level: str = "kernel") -> Device:
    return resolve("sim", () if effect is None else (Fault("lies", ("abs",), effect, level=level),))


@pytest.fixture
def aside() -> Iterator[None]:
    """A descriptor that calls must not write to."""
    number = os.dup(1)
    moved, before = processes.set_aside(number), os.getcwd()
    yield
    for left in (number, moved):
        os.close(left)
    processes._decoys.remove(number)
    assert os.getcwd() == before


@pytest.mark.usefixtures("aside")
@pytest.mark.parametrize(
    ("effect", "status", "said"),
    [
        (lowers, "wrong", "the recursion limit"),
        (moves, "wrong", "the current folder"),
        (handles, "wrong", "the handler of SIGTERM"),
        (writes, "wrong", "bytes in file descriptors that it does not own"),
        (raises, "error", "Own"),
        (aliases, "malformed", "lies in the memory of an operand"),
        (complains, "wrong", "more than 1,000 warnings"),
        (mutters, "agree", ""),
        (None, "agree", ""),
    ],
)
def test_a_call_that_lies_is_accused_and_the_next_one_is_not(effect: Any, status: str, said: str) -> None:
    place = device(effect, "function" if effect is aliases else "kernel")
    handler, limit = signal.getsignal(signal.SIGTERM), sys.getrecursionlimit()
    with listening([]):
        forward = checked(place, CASE)["forward"].verdict
        after = checked(place, OTHER)["forward"].verdict
    assert (str(forward.status), said in forward.reason) == (status, True), forward
    assert str(after.status) == "agree"
    assert (signal.getsignal(signal.SIGTERM), sys.getrecursionlimit()) == (handler, limit)


def test_a_law_takes_many_calls_that_may_warn_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state.warned[0]
    monkeypatch.setattr(state, "ENDLESS", 3)
    with listening([]):
        place = resolve("sim", (Fault("mutters", ("bernoulli",), mutters, level="function"),))
        results = checked(place, "bernoulli(float32[4].of(0.1, 0.2, 0.5, 0.9))", Settings(law=True))
        assert [str(r.verdict.status) for r in results.values() if r.verdict.status.is_finding] == []
        assert state.warned[0] > before
        with state.many_calls():
            warnings.warn("one", stacklevel=1)
        heard = state.warned[0]
        warnings.warn("another", stacklevel=1)
    assert state.warned[0] == heard + 1


def test_a_result_that_is_another_results_memory_is_accused() -> None:
    """Both have equal values, so that neither is wrong by itself."""
    for effect, said in ((memorises(), f"its result lies in the memory of the result of {CASE}"), (None, "")):
        place = device(effect, "function")
        checked(place, CASE, SETTINGS)
        found = checked(place, CASE, SETTINGS)
        assert (found["repeat"].verdict.reason if "repeat" in found else "").partition(" (")[0] == said


def test_warnings_without_end_take_a_bounded_room() -> None:
    notes: list[str] = []
    with listening(notes):
        place = device(warns)
        assert str(checked(place, CASE)["forward"].verdict.status) in ("fallback", "agree")
    assert 0 < len(notes) <= MOST
