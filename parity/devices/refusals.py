"""What an exception of a device means: it refuses the operator or the dtype, it is out of memory, or it is at fault.

A refusal is only what a backend says in its own words for that; anything else that a device raises is an error.
"""

from __future__ import annotations

import re

import torch

REFUSED, OOM, ERROR = "refused", "oom", "error"
STAGES = ("upload", "run", "backward", "download")

# (exception types, pattern): read in this order, by type and text.
_Rule = tuple[tuple[type[BaseException], ...], re.Pattern[str]]


def _rules(types: tuple[type[BaseException], ...], *patterns: str) -> tuple[_Rule, ...]:
    return tuple((types, re.compile(p, re.DOTALL)) for p in patterns)


# MPS, from the texts in its library (2.13). The first also has the older wording of the link.
_MPS_REFUSALS: tuple[_Rule, ...] = (
    *_rules(
        (NotImplementedError,),
        r"The operator '.+' is not currently implemented for the MPS device",
        r"The distributed operator '.+' is not currently implemented",
    ),
    *_rules(
        (TypeError,),
        r"the MPS framework doesn't support float64",
        r"Trying to convert .+ to the MPS backend but it does not have support for that dtype",
        r"MPS bfloat16 type is supported on MacOS",
    ),
    *_rules(
        (RuntimeError,),
        r"float64 is not supported on MPS",
        r"^Undefined type ",
        # dtypes that a kernel does not take: no common form
        r"supported only for Floating types",
        r"only (supported|implemented) for floating types",
        r"MPS device does not support ",
        r"^Not implemented for \w+",
        r"\w+_mps not implemented for ",
        r"^bitwise_(left|right)_shift not implemented for ",
        r"for MPS does not support ",
        r"for (complex|bool) is not supported for MPS",
        r"is not supported for complex (types|on MPS)",
        r"not supported for complex types yet",
        r"MPS doesn't support complex types",
        r"MPS only supports floats?\b",
        r"MPS doesn't know how to do \w+_i64",
        r"Only float is supported!",
        r"Only float(, bfloat)? and half (dtypes )?are supported",
        r"only supports floating-point dtypes",
        r"_mps: only defined for floating types",
        r"histogram is only supported for float32",
        r"bincount is not supported for Bool",
        r"Long batch norm is not supported with MPS",
        r"with BF16 or FP16 types is not supported on MPS",
        r"with half to float conversion is not supported on MPS",
        r"MPS currently supports float32 only",
        r"on int64 requires macOS 15 or newer",
        r"^mps_linear_backward: unsupported weights data type",
        r"^sdpa prefill:unsupported dtype",
        r"^Unsupported scalar type '.+' on MPS backend",
        r"^random_mps handles only ",
        # options that it does not take
        r"MPS doesn't allow pivot == False",
        r"LSTM with projections is not currently supported with MPS",
        r"backward on MPS only supports bilinear and nearest interpolation",
        r"^Unsupported head_dim for prefill attention",
        r"scatter_reduce\(amin/amax\) on int64 (currently )?requires contiguous self",
        # shapes that it does not take
        r"Adaptive pool MPS: (input|output) sizes must be divisible by (input|output) sizes",
        r"MPS supports tensors with dimensions <= 16",
        r"unfold_backward_mps :Only up to 16-dim tensors supported",
        r"Current limit allows up to 16 indices to be used in MPS indexing kernels",
        r"MPSGraph does not support tensor dims larger than INT_MAX",
        r"larger than 2\*\*32 (elements|entries) .*(MPS|MacOS15)",
        r"not supported for tensors of more than 2\*\*32 elements",
        r"not supported for tensors with more than INT_MAX elements",
        r"Tensor is larger than 4Gb",
        r"tensor is larger than INT32_MAX",
        r"Output channels > 65536 not supported at the MPS device",
        r"only strided tensors are supported on MPS",
    ),
)
# CUDA's libraries in their own words: limits that their documentation names.
_CUDA_REFUSALS: tuple[_Rule, ...] = (
    *_rules(
        (RuntimeError,),
        r"is not supported on CUDA",
        r"are not supported on CUDA",
        r"HalfTensor is not supported",
        r"cudnn RNN backward can only be called in training mode",
        r"CUBLAS_STATUS_NOT_SUPPORTED when calling",
        r"rnn: hx is not contiguous",
    ),
)
# Words that every other backend of torch has for the same.
_GENERIC_REFUSALS: tuple[_Rule, ...] = (
    *_rules(
        (NotImplementedError, RuntimeError),
        r"not implemented for '\w+'",
        # In torch's words for MPS this means a build without MPS: an absent device refuses nothing.
        r"Could not run '.+' with arguments from the '(?!MPS)\w+' backend",
        r"The operator '.+' is not currently (implemented|supported) (for|on) the \w+ (device|backend)",
        # one call with a derivative of its own (linear_backward) where the CPU composes others
        r"does not support automatic differentiation for outputs with complex dtype",
        # torch.use_deterministic_algorithms
        r"does not have a deterministic implementation",
        r"^Deterministic behavior was enabled with .+ but this operation is not deterministic",
        # composites that ask for the type of the device: mode, _pdist_forward, cdist, std and var
        r"supports (tensors on a )?CPU, .+ (device type|devices?|device only), (but )?got: ",
    ),
)
_OUT_OF_MEMORY = re.compile(
    r"\bout of memory\b|^Invalid buffer size: |^Failed to allocate memory on MPS device|"
    r"DefaultCPUAllocator: (can't|not enough)|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|OUT_OF_(DEVICE|HOST)_MEMORY",
    re.IGNORECASE,
)


def classify(exc: BaseException, stage: str = "run") -> str:
    """One of the words "refused", "oom" and "error".

    stage: upload, run, backward or download. A download refuses nothing: what the device could compute it must hand over.
    Raises ValueError for another stage.
    """
    if stage not in STAGES:
        raise ValueError(f"stage '{stage}' is not one of {', '.join(STAGES)}")
    text = str(exc)
    if isinstance(exc, (torch.OutOfMemoryError, MemoryError)):
        return OOM
    if stage != "download" and any(isinstance(exc, types) and pattern.search(text) for types, pattern in _RULES):
        return REFUSED
    # An error of the accelerator itself (torch.AcceleratorError) may quote anything; it is never for want of memory
    # unless it says so, as CUDA's asynchronous ones do.
    if isinstance(exc, RuntimeError) and _OUT_OF_MEMORY.search(text):
        return OOM
    return ERROR


_RULES = _MPS_REFUSALS + _CUDA_REFUSALS + _GENERIC_REFUSALS
