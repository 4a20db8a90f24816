"""Settings of parity's own tests."""

from __future__ import annotations

import ctypes
import functools
import gc
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from parity.core import extensions
from parity.devices import Device, resolve, setup
from parity.engine import doctor
from parity.faces import running
from parity.faces.commands import doctor as doctor_command
from parity.faces.commands import explain, replay
from parity.store.code import code_of

pytest_plugins = ["pytester"]

# A shell starts background jobs with Ctrl-C ignored, and the processes that the tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes is no garbage: to look through it again and again takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _give_back() -> Iterator[None]:
    """What a module's tests have freed goes back to the system: the C library would keep some 400 MB for each worker."""
    yield
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


@pytest.fixture(autouse=True)
def _forget_setups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test ran with --setup in this process is in no command that a later test prints."""
    monkeypatch.setattr(setup, "ran", [])


@pytest.fixture
def sim() -> Device:
    """The simulated device, healthy."""
    return resolve("sim")


@functools.cache
def _template() -> Any:
    from warm import Template  # people who run the suite with settings of their own have no tests/shared in their path

    return Template()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The Pythons that a test starts have imported torch already (`tests/shared/warm.py`), unless it is marked `cold`."""
    if sys.platform != "linux" or item.get_closest_marker("cold") or "conformance" in item.path.parts:
        return (yield)
    _template().take_over()
    try:
        return (yield)
    finally:
        _template().let_go()


_ANSWERS: dict[tuple[Any, ...], dict[str, Any]] = {}  # of examinations: device, faults, set-up, what the project adds


@pytest.fixture
def examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process take the answer of the last examination of an equal device, because the process of one
    costs 2 s. For tests of what comes after the examination."""

    def examined(name: str, faults: str | None = None, setup: str | None = None) -> dict[str, Any]:
        key = name, code_of(faults).digest, code_of(setup).digest, extensions.sources()
        if key not in _ANSWERS:
            _ANSWERS[key] = doctor.examined(name, faults, setup)
        return dict(_ANSWERS[key])

    for module in (doctor_command, explain, running, replay):
        monkeypatch.setattr(module, "examined", examined)
