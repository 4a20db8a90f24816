"""An exception means what its type and its text say together."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from parity.core.backends import mps
from parity.core.devices import Wording, all_backends
from parity.devices import classify
from parity.devices.refusals import FALLBACK_TEXT, listening
from parity.devices.sim.profile import FLOAT64_TEXT

REFUSALS = [
    *(kind(t.example) for b in all_backends() for w in b.refusals for kind in w.types for t in w.texts),
    RuntimeError(
        'false INTERNAL ASSERT FAILED at ".../aten/src/ATen/native/DispatchStub.cpp":226, please report a bug to PyTorch. '
        "DispatchStub: missing kernel for mps"
    ),
    RuntimeError("torch._grouped_mm is only supported on CUDA devices with compute capability = 9.0"),
    RuntimeError("linear_backward does not support automatic differentiation for outputs with complex dtype."),
    RuntimeError("mode only supports CPU, CUDA and XPU device type, got: mps"),
    RuntimeError("_pdist_forward only supports CPU, XPU, CUDA and PrivateUse1 devices, got: mps"),
    RuntimeError("std and var supports tensors on a CPU, CUDA, XPU or PrivateUse1 device only, but got: mps"),
    NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
    RuntimeError("\"erfinv_cuda\" not implemented for 'Int'"),
    NotImplementedError("Could not run 'aten::x' with arguments from the 'CUDA' backend. This could be because ..."),
]
OUT_OF_MEMORY = [
    *(kind(t.example) for b in all_backends() for w in b.out_of_memory for kind in w.types for t in w.texts),
    # of 2.13, on a hosted machine with nothing in use
    RuntimeError(
        "MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: 7.93 GiB). Tried to "
        "allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
        "allocations (may cause system failure)."
    ),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: you tried to ..."),
    MemoryError(),
]
ERRORS = [
    *(kind(t.example) for b in all_backends() for w in b.errors for kind in w.types for t in w.texts),
    # a kernel that no device may lack
    RuntimeError("DispatchStub: missing kernel for cpu"),
    RuntimeError("shape '[2]' is invalid for input of size 3"),
    # MPS's words under another type are not MPS's refusal
    ValueError(FLOAT64_TEXT),
    # a build without MPS: the device is absent, and an absent device refuses nothing
    NotImplementedError("Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend."),
    torch.AcceleratorError("Index 2 is out of bounds: 6, range 0 to 4"),
    KeyError("x"),
]


WORDINGS = [w for b in all_backends() for w in (*b.refusals, *b.out_of_memory, *b.errors)]


@pytest.mark.parametrize("exc", REFUSALS, ids=lambda e: str(e)[:50])
def test_a_refusal_is_told_by_its_text(exc: Exception) -> None:
    assert classify(exc, "run") == "refused"


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda w: str(w.pattern.pattern)[:50])
def test_every_rule_has_a_text_of_the_library(wording: Wording) -> None:
    """Each pattern finds each text that it was written for, so that a rule that matches nothing is seen."""
    assert wording.texts
    assert all(wording.pattern.search(t.example) for t in wording.texts)


def test_the_fallback_is_heard_by_its_words() -> None:
    """What is listened for stands in MPS's warning, and the operator's name is taken out of it."""
    notes: list[str] = []
    with listening(notes):
        warnings.warn(mps.FALLBACK.text.format(op="aten::linalg_svd"), UserWarning, stacklevel=1)
    assert FALLBACK_TEXT in mps.FALLBACK.text
    assert notes == ["aten::linalg_svd"]


@pytest.mark.parametrize("exc", OUT_OF_MEMORY, ids=lambda e: f"{type(e).__name__} {str(e)[:40]}")
def test_out_of_memory_is_no_refusal(exc: Exception) -> None:
    assert classify(exc, "run") == "oom"


@pytest.mark.parametrize("exc", ERRORS, ids=lambda e: f"{type(e).__name__} {str(e)[:40]}")
def test_anything_else_is_an_error(exc: Exception) -> None:
    assert classify(exc, "run") == "error"


def test_a_download_refuses_nothing() -> None:
    assert classify(TypeError(FLOAT64_TEXT), "download") == "error"


def test_an_unknown_stage_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="stage 'later' is not one of upload, run, backward, download"):
        classify(KeyError(), "later")


def test_sizes_are_told_in_the_units_of_the_allocator() -> None:
    """GiB, not GB (torch 2.13), in the message that a simulated device raises, too."""
    assert mps.UNITS == (" bytes", " KiB", " MiB", " GiB")
    sizes = re.findall(r"\d+\.\d+ [KMG]\w+", mps.MEMORY.example)
    assert len(sizes) >= 3
    assert all(any(size.endswith(unit) for unit in mps.UNITS) for size in sizes)
