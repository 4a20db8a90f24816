"""Branches of torch's Python code that depend on the type of the device, taken for `sim:mps` as for MPS.

torch takes the simulated device for a backend like CUDA: its optimizers use the `_foreach` kernels by default, and `torch.norm`
calls `linalg_vector_norm`. On MPS they do not (torch 2.13: `torch/utils/_foreach_utils.py`, `torch/functional.py`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

ANOTHER = "no backend"


@contextlib.contextmanager
def as_on_mps() -> Iterator[None]:
    """Let torch's Python code see a device without such kernels."""
    optimizer: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
    backends: Any = torch.utils.backend_registration
    supported, name = optimizer._get_foreach_kernels_supported_devices, backends._privateuse1_backend_name
    optimizer._get_foreach_kernels_supported_devices = lambda: [d for d in supported() if d != name]
    backends._privateuse1_backend_name = ANOTHER
    try:
        yield
    finally:
        optimizer._get_foreach_kernels_supported_devices = supported
        backends._privateuse1_backend_name = name
