"""Branches of torch's Python code that depend on the type of the device, taken for `sim:mps` as for MPS.

torch takes the simulated device for a backend like CUDA, whose optimizers use the `_foreach` kernels by default; on MPS they do
not (torch 2.13: `torch/utils/_foreach_utils.py`). `torch.norm` has a branch for MPS, too, which refuses `dtype=`: a bug of
torch that would be told of a healthy device, so it is left to the stand-in of parity's tests.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def without_other_backends() -> Iterator[None]:
    """Let torch's Python code not know the simulated device for a backend that takes CUDA's ways: the fused layers of
    `torch.nn.TransformerEncoder` and `MultiheadAttention`, and `torch.norm`'s, which MPS does not take."""
    registration: Any = importlib.import_module("torch.utils.backend_registration")
    name = registration._privateuse1_backend_name
    registration._privateuse1_backend_name = "privateuseone"
    try:
        yield
    finally:
        registration._privateuse1_backend_name = name


@contextlib.contextmanager
def as_on_mps() -> Iterator[None]:
    """Let torch's Python code see a device without such kernels."""
    optimizer: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
    c: Any = torch._C
    supported, name = optimizer._get_foreach_kernels_supported_devices, c._get_privateuse1_backend_name()
    optimizer._get_foreach_kernels_supported_devices = lambda: [d for d in supported() if d != name]
    try:
        yield
    finally:
        optimizer._get_foreach_kernels_supported_devices = supported
