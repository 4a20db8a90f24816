"""An exception means what its type and its text say together."""

from __future__ import annotations

import re

import pytest
import torch

from parity.devices import classify
from parity.devices.refusals import _MPS_REFUSALS
from parity.devices.sim.profile import DTYPE_TEXT, FLOAT64_TEXT, MISSING_TEXT, RANK_TEXT

REFUSALS = [
    NotImplementedError(MISSING_TEXT.format(op="aten::heaviside.out", sha="cf30153c4c13")),
    NotImplementedError(
        "The operator 'aten::x' is not currently implemented for the MPS device. If you want this op to be added in "
        "priority during the prototype phase of this feature, please comment on https://github.com/pytorch/pytorch/issues/77764."
    ),
    NotImplementedError(
        "The distributed operator 'c10d::x' is not currently implemented for the MPS device. Please note, that distributed "
        "operators can not fall back to CPU"
    ),
    TypeError(FLOAT64_TEXT),
    TypeError(
        "Cannot convert a float64 Tensor to MPS as the MPS framework doesn't support float64. Please use float32 instead."
    ),
    RuntimeError("float64 is not supported on MPS"),
    TypeError(DTYPE_TEXT.format(dtype="ComplexDouble")),
    TypeError("MPS bfloat16 type is supported on MacOS 14.0 or newer."),
    RuntimeError("Undefined type BFloat16"),
    RuntimeError("Convolution is supported only for Floating types"),
    RuntimeError("MPS device does not support linear for non-float inputs"),
    RuntimeError("softmax only supported for floating types"),
    RuntimeError("Not implemented for long"),
    RuntimeError("Not implemented for long on MPS"),
    RuntimeError("frac_out_mps is only implemented for floating types"),
    RuntimeError("MPS device does not support addr for non-float input"),
    RuntimeError("MPS device does not support linear for non-float weights"),
    RuntimeError("MPS device does not support addbmm or baddbmm for this input type"),
    RuntimeError("bitwise_left_shift not implemented for Bool"),
    NotImplementedError("log_softmax for complex is not supported for MPS"),
    NotImplementedError("log_softmax for bool is not supported for MPS"),
    RuntimeError("Batch norm for complex is not supported for MPS"),
    RuntimeError("relu is not supported for complex types"),
    RuntimeError("grid_sampler_2d_backward is not supported for complex on MPS"),
    RuntimeError("linalg_inv: not supported for complex types yet!"),
    RuntimeError("linalg.lu_factor(): MPS doesn't support complex types."),
    RuntimeError("linalg.lu_factor(): MPS only supports floats."),
    RuntimeError("cholesky_inverse: MPS only supports float type!"),
    RuntimeError("linalg.lu_factor(): MPS doesn't allow pivot == False."),
    RuntimeError("linalg.solve.triangular(); Only float is supported!"),
    RuntimeError("MPS doesn't know how to do square_i64"),
    RuntimeError("Only float and half dtypes are supported"),
    RuntimeError("Only float, bfloat and half are supported"),
    RuntimeError("_upsample_bicubic2d_aa_out_mps only supports floating-point dtypes"),
    RuntimeError("mse_loss_out_mps: only defined for floating types"),
    RuntimeError("histogram is only supported for float32"),
    RuntimeError("bincount is not supported for Bool"),
    RuntimeError("Long batch norm is not supported with MPS"),
    RuntimeError("softmax with half to float conversion is not supported on MPS"),
    RuntimeError("mps_linear_backward: unsupported weights data type: Long"),
    RuntimeError("sdpa prefill:unsupported dtype Int"),
    RuntimeError("Unsupported head_dim for prefill attention: 96"),
    RuntimeError("Unsupported scalar type 'ComplexDouble' on MPS backend."),
    RuntimeError("random_mps handles only integral, floating-point and boolean types"),
    RuntimeError("LSTM with projections is not currently supported with MPS."),
    RuntimeError("grid_sampler_3d backward on MPS only supports bilinear and nearest interpolation"),
    RuntimeError("scatter_reduce(amin/amax) on int64 currently requires contiguous self"),
    RuntimeError("unfold_backward_mps :Only up to 16-dim tensors supported"),
    RuntimeError("Current limit allows up to 16 indices to be used in MPS indexing kernels"),
    RuntimeError(
        "Adaptive pool MPS: output sizes must be divisible by input sizes. Non-divisible input sizes are not implemented "
        "on MPS device yet."
    ),
    RuntimeError("silu_mps not implemented for non-floating types"),
    RuntimeError("upsample for MPS does not support complex inputs"),
    RuntimeError("ConvTranspose 3D with BF16 or FP16 types is not supported on MPS"),
    RuntimeError("linalg_qr: MPS currently supports float32 only"),
    RuntimeError("scatter_reduce(amin/amax) on int64 requires macOS 15 or newer"),
    RuntimeError("index_reduce for MPS does not support torch.long dtype"),
    RuntimeError(RANK_TEXT.format(rank=17)),
    RuntimeError("MPSGraph does not support tensor dims larger than INT_MAX"),
    RuntimeError("Output dim sizes larger than 2**32 elements for matmul not supported on MPS device."),
    RuntimeError("Tiling of batch matmul for larger than 2**32 entries only available from MacOS15 onwards"),
    RuntimeError("masked_fill not supported for tensors of more than 2**32 elements"),
    RuntimeError("nonzero is not supported for tensors with more than INT_MAX elements, See issue"),
    RuntimeError("histogramdd(): Tensor is larger than 4Gb"),
    RuntimeError("embedding_dense_backward_mps: tensor is larger than INT32_MAX"),
    RuntimeError("Output channels > 65536 not supported at the MPS device. As a temporary fix ..."),
    RuntimeError(
        "Adaptive pool MPS: input sizes must be divisible by output sizes. Non-divisible input sizes are not implemented "
        "on MPS device yet."
    ),
    RuntimeError("only strided tensors are supported on MPS"),
    RuntimeError("linear_backward does not support automatic differentiation for outputs with complex dtype."),
    RuntimeError("mode only supports CPU, CUDA and XPU device type, got: mps"),
    RuntimeError("_pdist_forward only supports CPU, XPU, CUDA and PrivateUse1 devices, got: mps"),
    RuntimeError("std and var supports tensors on a CPU, CUDA, XPU or PrivateUse1 device only, but got: mps"),
    NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
    RuntimeError("\"erfinv_cuda\" not implemented for 'Int'"),
    NotImplementedError("Could not run 'aten::x' with arguments from the 'CUDA' backend. This could be because ..."),
]
OUT_OF_MEMORY = [
    RuntimeError(
        "MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: 7.93 GB). Tried to "
        "allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
        "allocations (may cause system failure)."
    ),
    RuntimeError("Invalid buffer size: 24.00 GiB"),
    RuntimeError("Failed to allocate memory on MPS device"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: you tried to ..."),
    MemoryError(),
]
ERRORS = [
    RuntimeError("Placeholder storage has not been allocated on MPS device!"),
    RuntimeError("Passed CPU tensor to MPS op"),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!"),
    RuntimeError("Failed to create metal library, error: ..."),
    RuntimeError("shape '[2]' is invalid for input of size 3"),
    # MPS's words under another type are not MPS's refusal
    ValueError(FLOAT64_TEXT),
    # a build without MPS: the device is absent, and an absent device refuses nothing
    NotImplementedError("Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend."),
    RuntimeError("PyTorch is not linked with support for mps devices"),
    RuntimeError("The MPS backend is supported on macOS 14.0+. Current OS version can be queried using `sw_vers`"),
    torch.AcceleratorError("Index 2 is out of bounds: 6, range 0 to 4"),
    KeyError("x"),
]


@pytest.mark.parametrize("exc", REFUSALS, ids=lambda e: str(e)[:50])
def test_a_refusal_is_told_by_its_text(exc: Exception) -> None:
    assert classify(exc, "run") == "refused"


@pytest.mark.parametrize(("types", "pattern"), _MPS_REFUSALS, ids=lambda v: getattr(v, "pattern", "-"))
def test_every_rule_has_a_text_of_the_library(types: tuple[type[BaseException], ...], pattern: re.Pattern[str]) -> None:
    """So that a rule that matches nothing is seen."""
    assert any(isinstance(exc, types) and pattern.search(str(exc)) for exc in REFUSALS)


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
