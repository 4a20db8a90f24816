"""Settings of parity's own tests."""

from __future__ import annotations

import signal

import pytest
import torch

from parity.devices import Device, resolve

pytest_plugins = ["pytester"]

# A shell starts background jobs with Ctrl-C ignored, and the processes that the tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)


@pytest.fixture
def sim() -> Device:
    """The simulated device, healthy."""
    return resolve("sim")
