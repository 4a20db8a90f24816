"""Settings of parity's own tests."""

from __future__ import annotations

import pytest
import torch

from parity.devices import Device, resolve

pytest_plugins = ["pytester"]

torch.set_num_threads(1)
torch.autograd.set_multithreading_enabled(False)


@pytest.fixture
def sim() -> Device:
    """The simulated device, healthy."""
    return resolve("sim")
