"""Branches of torch's Python code that depend on the type of the device, taken for `sim:mps` as for MPS.

torch takes the simulated device for a backend like CUDA, whose optimizers use the `_foreach` kernels by default; on MPS they do
not (torch 2.13: `torch/utils/_foreach_utils.py`), and the layers of transformers have a fused way without gradients, which MPS
does not take. `torch.norm` has a branch for MPS, too, which refuses `dtype=`: a bug of torch that would be reported of a
healthy device, so `sim:mps` does not take it; audits of models do.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def without_other_backends() -> Iterator[None]:
    """Let torch's Python code not know the simulated device for a backend that takes CUDA's ways: `torch.norm` has another
    one for MPS."""
    registration: Any = importlib.import_module("torch.utils.backend_registration")
    name = registration._privateuse1_backend_name
    registration._privateuse1_backend_name = "privateuseone"
    try:
        yield
    finally:
        registration._privateuse1_backend_name = name


@contextlib.contextmanager
def as_on_mps() -> Iterator[None]:
    """Let torch's Python code see a device without such kernels, and without fused layers of transformers."""
    optimizer: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
    c: Any = torch._C
    supported, name = optimizer._get_foreach_kernels_supported_devices, c._get_privateuse1_backend_name()
    optimizer._get_foreach_kernels_supported_devices = lambda: [d for d in supported() if d != name]
    mha = torch.backends.mha
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(fast)
        optimizer._get_foreach_kernels_supported_devices = supported
