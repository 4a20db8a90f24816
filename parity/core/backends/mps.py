"""MPS: the words of its library, the names of `torch.mps`, the variables that it reads.

Nothing here was learnt by running MPS. Each text was read in the macOS wheels of torch 2.12.1, 2.13.0 and 2.14.1, and
`tests/bench/mac_wheel.py` looks all of them up again in any wheel. This module is the only place that quotes MPS; whoever
needs to understand its errors, or to imitate them, imports them from here.
"""

from __future__ import annotations

import platform
import re

from parity.core.devices import Backend, Wording, says, text, torch_at

LIBRARY = "torch/lib/libtorch_cpu.dylib"

# ------------------------------------------------------------------------------------------------------ texts with holes

FALLBACK_FILE = "mps/MPSFallback.mm"
# Of an operator without a kernel. Structured operators are named by their out= overload.
MISSING = text(
    "The operator '", "{op}", "' is not currently implemented ",
    "for the MPS device. If you want this op to be considered for addition ",
    "please comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, that resulted in missing op",
    " as well as commit hash ", "{sha}",
    ". As a temporary fix, you can set the environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` ",
    "to use the CPU as a fallback for this op. WARNING: this will be slower than running natively ", "on MPS.",
)  # fmt: skip
# A UserWarning with one flag for all operators: of the first one of a process alone, unless torch is to warn always.
FALLBACK = text(
    "The operator '", "{op}", "' is not currently supported ", "on the MPS backend and will fall back to run on the CPU.",
    " This may have performance implications.",
)  # fmt: skip
FLOAT64 = text(
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead."
)
DTYPE = text("Trying to convert ", "{dtype}", " to the MPS backend but it does not have support for that dtype.")
RANK = text("MPS supports tensors with dimensions <= ", "16", ", but got ", "{rank}", ".")
MEMORY = text(
    "MPS backend out of memory (MPS allocated: ", "{allocated}", ", other allocations: ", "{other}", ", max allowed: ",
    "{most}", "). Tried to allocate ", "{asked}", " on ", "{pool}",
    " pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
)  # fmt: skip
UNITS = (" bytes", " KiB", " MiB", " GiB")  # of sizes in the texts of the allocator

# ---------------------------------------------------------------------------- it refuses the operator, the dtype, the shape

REFUSALS: tuple[Wording, ...] = (
    says(
        NotImplementedError, r"The operator '.+' is not currently implemented for the MPS device", MISSING,
        text(
            "The operator '", "{op}",
            "' is not currently implemented for the MPS device. If you want this op to be added in priority during the "
            "prototype phase of this feature, please comment on https://github.com/pytorch/pytorch/issues/77764.",
            until="2.5",
        ),
        source=FALLBACK_FILE,
    ),
    says(
        NotImplementedError, r"The distributed operator '.+' is not currently implemented",
        text(
            "The distributed operator '", "{op}", "' is not currently implemented ",
            "for the MPS device. If you want this op to be considered for addition ", "{hint}",
            ". Please note, that distributed operators can not fall back to CPU",
        ),
        source=FALLBACK_FILE,
    ),
    says(
        NotImplementedError, r"Could not run 'new_compressed_tensor' from the 'mps",
        text("Could not run 'new_compressed_tensor' from the '", "{device}", "' device.)"),
        source="native/sparse/SparseCsrTensor.cpp",
    ),
    says(
        TypeError, r"the MPS framework doesn't support float64", FLOAT64,
        "Cannot convert a float64 Tensor to MPS as the MPS framework doesn't support float64. Please use float32 instead.",
        source="mps/EmptyTensor.cpp",
    ),
    says(
        TypeError, r"Trying to convert .+ to the MPS backend but it does not have support for that dtype", DTYPE,
        source="native/mps/OperationUtils.mm",
    ),
    says(
        TypeError, r"MPS bfloat16 type is supported on MacOS",
        text("MPS bfloat16 type is supported on MacOS 14.0 or newer.", until="2.8"), source="native/mps/OperationUtils.mm",
    ),
    says(RuntimeError, r"float64 is not supported on MPS", "float64 is not supported on MPS"),
    says(RuntimeError, r"^Undefined type ", text("Undefined type ", "{dtype}"), source="native/mps/OperationUtils.mm"),
    # A kernel of the CPU and CUDA that asks a table with no entry for MPS.
    says(
        RuntimeError, r"DispatchStub: missing kernel for (mps|sim)", text("DispatchStub: missing kernel for ", "{device}"),
        source="native/DispatchStub.cpp",
    ),
    # dtypes that a kernel does not take: no common form
    says(RuntimeError, r"supported only for Floating types", "Convolution is supported only for Floating types"),
    says(
        RuntimeError, r"only (supported|implemented) for floating types", "softmax only supported for floating types",
        "frac_out_mps is only implemented for floating types",
    ),
    says(
        RuntimeError, r"MPS device does not support ", "MPS device does not support addr for non-float input",
        "MPS device does not support linear for non-float inputs", "MPS device does not support linear for non-float weights",
        "MPS device does not support linear for non-float bias",
        "MPS device does not support linear backward for non-float inputs",
        "MPS device does not support addbmm or baddbmm for this input type",
    ),
    says(
        RuntimeError, r"^Not implemented for \w+", "Not implemented for long", "Not implemented for long on MPS",
        "Not implemented for complex",
    ),
    says(
        RuntimeError, r"\w+_mps not implemented for ", text("gcd_mps not implemented for ", "{dtype}"),
        text("normal_kernel_mps not implemented for '", "{dtype}", "'", since="2.13"),
        "nextafter_mps not implemented for non-floating types",
        "chebyshev_polynomial_t_mps not implemented for non-floating types",
        text("kthvalue_mps not implemented for ", "{dtype}", since="2.14"),
    ),
    says(
        RuntimeError, r"^bitwise_(left|right)_shift not implemented for ",
        text("bitwise_left_shift not implemented for ", "{dtype}", since="2.13"),
        text("bitwise_right_shift not implemented for ", "{dtype}", since="2.13"),
    ),
    says(
        RuntimeError, r"for MPS does not support ", "index_reduce for MPS does not support torch.long dtype",
        "upsample for MPS does not support complex inputs",
        text("scaled_dot_product_attention for MPS does not support dropout.", since="2.13"),
    ),
    says(
        RuntimeError, r"for (complex|bool) is not supported for MPS", "log_softmax for complex is not supported for MPS",
        "log_softmax for bool is not supported for MPS", "huber_loss for complex is not supported for MPS",
        text("Batch norm for complex is not supported for MPS", until="2.13"),
    ),
    says(
        RuntimeError, r"is not supported for complex (types|on MPS)", "relu is not supported for complex types",
        "clamp is not supported for complex types", "grid_sampler_2d is not supported for complex on MPS",
        text("grid_sampler_2d_backward is not supported for complex on MPS", since="2.13"),
    ),
    says(RuntimeError, r"not supported for complex types yet", "linalg_inv: not supported for complex types yet!"),
    says(RuntimeError, r"MPS doesn't support complex types", "linalg.lu_factor(): MPS doesn't support complex types."),
    says(
        RuntimeError, r"MPS only supports float", text("linalg.lu_solve(): MPS only supports float32.", since="2.14"),
        "cholesky_inverse: MPS only supports float type!", text("linalg.lu_factor(): MPS only supports floats.", until="2.13"),
    ),
    says(RuntimeError, r"MPS doesn't know how to do \w+_i64", "MPS doesn't know how to do square_i64"),
    says(RuntimeError, r"Only float is supported!", "linalg.solve.triangular(); Only float is supported!"),
    says(
        RuntimeError, r"Only float(, bfloat)? and half (dtypes )?are supported", "Only float and half dtypes are supported",
        "Only float, bfloat and half are supported",
    ),
    says(
        RuntimeError, r"only supports floating-point dtypes",
        "_upsample_bicubic2d_aa_out_mps only supports floating-point dtypes",
    ),
    says(RuntimeError, r"_mps: only defined for floating types", text("mse_loss_out_mps", ": only defined for floating types")),
    says(RuntimeError, r"histogram is only supported for float32", "histogram is only supported for float32"),
    says(RuntimeError, r"bincount is not supported for Bool", "bincount is not supported for Bool"),
    says(
        RuntimeError, r"Long batch norm is not supported with MPS",
        text("Long batch norm is not supported with MPS", until="2.13"),
    ),
    says(
        RuntimeError, r"with BF16 or FP16 types is not supported on MPS",
        "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
    ),
    says(
        RuntimeError, r"with half to float conversion is not supported on MPS",
        "softmax with half to float conversion is not supported on MPS",
    ),
    says(
        RuntimeError, r"MPS currently supports float32 only",
        text("linalg_qr: MPS currently supports float32 only", until="2.13"),
        text("geqrf: MPS currently supports float32 only", since="2.14"),
    ),
    says(
        RuntimeError, r"on int64 requires macOS 15 or newer",
        text("scatter_reduce(amin/amax) on int64 requires macOS 15 or newer", since="2.13"),
    ),
    says(
        RuntimeError, r"^mps_linear_backward: unsupported weights data type",
        text("mps_linear_backward: unsupported weights data type: ", "{dtype}"), source="native/mps/operations/Linear.mm",
    ),
    says(RuntimeError, r"^sdpa prefill:unsupported dtype", text("sdpa prefill:unsupported dtype ", "{dtype}", since="2.13")),
    says(
        RuntimeError, r"^Unsupported scalar type '.+' on MPS backend",
        text("Unsupported scalar type '", "{dtype}", "' on MPS backend."),
    ),
    says(
        RuntimeError, r"^random_mps handles only ",
        text("random_mps handles only integral, floating-point and boolean types", since="2.13"),
    ),
    says(
        RuntimeError, r"MPS (backend )?supports (only )?float32 and complex64",
        text("linalg.cholesky: MPS supports float32 and complex64, but got ", "{dtype}", since="2.14"),
        text("linalg.svd: the MPS backend supports only float32 and complex64. Got ", "{dtype}", since="2.14"),
    ),
    says(
        RuntimeError, r"is not supported on MPS for dtype",
        text("unique is not supported on MPS for dtype ", "{dtype}", since="2.14"),
    ),
    says(
        RuntimeError, r"on MPS does not support complex inputs",
        text("nansum on MPS does not support complex inputs", until="2.12"),
    ),
    # options that it does not take
    says(
        RuntimeError, r"not (yet )?supported in MPS", text("Scatter reduce mean mode not yet supported in MPS", until="2.12"),
        text("sparse_grad not supported in MPS yet", until="2.12"),
    ),
    says(RuntimeError, r"driver= is not supported on MPS", text("linalg.svd: driver= is not supported on MPS.", since="2.14")),
    says(RuntimeError, r"MPS doesn't allow pivot == False", "linalg.lu_factor(): MPS doesn't allow pivot == False."),
    says(
        RuntimeError, r"LSTM with projections is not currently supported with MPS",
        "LSTM with projections is not currently supported with MPS.",
    ),
    says(
        RuntimeError, r"backward on MPS only supports bilinear and nearest interpolation",
        text("grid_sampler_3d backward on MPS only supports bilinear and nearest interpolation", since="2.13"),
    ),
    says(
        RuntimeError, r"^Unsupported head_dim for prefill attention",
        text("Unsupported head_dim for prefill attention: ", "{rank}", since="2.13"),
    ),
    says(
        RuntimeError, r"scatter_reduce\(amin/amax\) on int64 (currently )?requires contiguous self",
        text("scatter_reduce(amin/amax) on int64 requires contiguous self", since="2.13"),
        text("scatter_reduce(amin/amax) on int64 currently requires contiguous self", since="2.13"),
    ),
    # shapes that it does not take
    says(
        RuntimeError, r"Adaptive pool MPS: (input|output) sizes must be divisible by (input|output) sizes",
        "Adaptive pool MPS: input sizes must be divisible by output sizes. "
        "Non-divisible input sizes are not implemented on MPS device yet.",
        "Adaptive pool MPS: output sizes must be divisible by input sizes. "
        "Non-divisible input sizes are not implemented on MPS device yet.",
        source="native/mps/operations/AdaptivePooling.mm",
    ),
    says(RuntimeError, r"MPS supports tensors with dimensions <= 16", RANK, source="mps/EmptyTensor.cpp"),
    says(
        RuntimeError, r"unfold_backward_mps :Only up to 16-dim tensors supported",
        "unfold_backward_mps :Only up to 16-dim tensors supported",
    ),
    says(
        RuntimeError, r"Current limit allows up to 16 indices to be used in MPS indexing kernels",
        "Current limit allows up to 16 indices to be used in MPS indexing kernels",
    ),
    says(
        RuntimeError, r"MPSGr?aph does not support tensor dims larger than INT_MAX",
        text("MPSGaph does not support tensor dims larger than INT_MAX", until="2.12"),
        text("MPSGraph does not support tensor dims larger than INT_MAX", since="2.13"),
    ),
    says(
        RuntimeError, r"larger than 2\*\*32 (elements|entries) .*(MPS|MacOS15)",
        "Output dim sizes larger than 2**32 elements for matmul not supported on MPS device.",
        "Tiling of batch matmul for larger than 2**32 entries only available from MacOS15 onwards",
    ),
    says(
        RuntimeError, r"not supported for tensors of more than 2\*\*32 elements",
        "masked_fill not supported for tensors of more than 2**32 elements",
    ),
    says(
        RuntimeError, r"not supported for tensors with more than INT_MAX elements",
        text("nonzero is not supported for tensors with more than INT_MAX elements, ", until="2.13"),
    ),
    says(
        RuntimeError, r"tensors requiring 64-bit indexing are not supported",
        text("MPS norm: tensors requiring 64-bit indexing are not supported (numel=", "{rank}", since="2.14"),
        text("{op}", ": tensors requiring 64-bit indexing are not supported on MPS (numel=", "{rank}", since="2.14"),
    ),
    says(
        RuntimeError, r"MPS FFT only supports transforming up to \d+ dimensions",
        text("MPS FFT only supports transforming up to 4 dimensions, but got ", "{rank}", since="2.14"),
    ),
    says(RuntimeError, r"Tensor is larger than 4Gb", "histogramdd(): Tensor is larger than 4Gb"),
    says(
        RuntimeError, r"tensor is larger than INT32_MAX",
        text("embedding_dense_backward_mps: tensor is larger than INT32_MAX", since="2.13"),
    ),
    says(
        RuntimeError, r"Output channels > 65536 not supported at the MPS device",
        "Output channels > 65536 not supported at the MPS device. ",
    ),
    says(
        RuntimeError, r"only strided tensors are supported on MPS", "only strided tensors are supported on MPS",
        source="mps/EmptyTensor.cpp",
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------------------------------------- other answers

# RuntimeErrors: the library never makes a torch.OutOfMemoryError.
OUT_OF_MEMORY: tuple[Wording, ...] = (
    says(RuntimeError, r"\bout of memory\b", MEMORY, source="mps/MPSAllocator.mm"),
    says(RuntimeError, r"^Invalid buffer size: ", text("Invalid buffer size: ", "{size}"), source="mps/MPSAllocator.mm"),
    says(RuntimeError, r"^Failed to allocate memory on MPS device", "Failed to allocate memory on MPS device"),
)
# What must not be taken for a refusal: a mistake of the caller, of the machine, or of the kernel itself. An index out of
# bounds is noticed by the kernel and raised at the next synchronisation, as torch.AcceleratorError.
ERRORS: tuple[Wording, ...] = (
    says(RuntimeError, r"^Placeholder storage", "Placeholder storage has not been allocated on MPS device!"),
    says(RuntimeError, r"^Passed CPU tensor", "Passed CPU tensor to MPS op"),
    says(
        RuntimeError, r"at least two devices", "Expected all tensors to be on the same device, but found at least two devices, "
    ),
    says(RuntimeError, r"^Failed to create metal library", "Failed to create metal library, error: "),
    says(RuntimeError, r" is out of bounds: ", text("Index ", "{rank}", " is out of bounds: ")),
    says(RuntimeError, r"^The MPS backend is supported on macOS", "The MPS backend is supported on macOS 14.0+. "),
    says(RuntimeError, r"PyTorch is not linked", text("PyTorch is not linked with support for ", "{device}", " devices")),
)

# ---------------------------------------------------------------------------------------------------------------- names

# Functions that parity asks, by what it wants to know. They take no device: MPS has one.
MEMORY_FUNCTIONS = {
    "allocated": "current_allocated_memory",
    "reserved": "driver_allocated_memory",
    "recommended_max": "recommended_max_memory",
}
FACTS = {"chip": "get_name", "cores": "get_core_count"}  # of torch.backends.mps
# Variables that change what the library computes or does, with the effect. A fingerprint takes all that start with PYTORCH_.
FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"  # read once, when the library is loaded
VARIABLES = {
    FALLBACK_VARIABLE: "1 runs operators without a kernel on the CPU",
    "PYTORCH_MPS_FAST_MATH": "1 compiles kernels at run time with fast functions",
    "PYTORCH_MPS_PREFER_METAL": "1 multiplies matrices by Metal kernels instead of MPSGraph",
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO": "limit of memory, as a multiple of what is recommended (1.7); 0 for none",
    "PYTORCH_MPS_LOW_WATERMARK_RATIO": "memory from which on torch collects what is freed (1.4)",
}
# Read in the library of 2.13 alone; torch documents none of them.
MORE_VARIABLES = {
    "PYTORCH_MPS_DISABLE_PREFILL_ATTENTION": "another kernel computes attention",
    "PYTORCH_UNARY_FORCE_FLAVOR": "one variant of elementwise kernels is forced",
    "PYTORCH_BINARY_FORCE_FLAVOR": "one variant of elementwise kernels is forced",
}
KEY = "MPS"  # its dispatch key in torch's operator table


def _absent() -> str:
    if not torch_at("backends.mps").is_built():
        return f"torch {torch_at('__version__')} is built without MPS (it needs macOS on Apple silicon)"
    return "no Metal device is visible, or macOS is older than 14.0"


BACKEND = Backend(
    name="mps", key=KEY, refusals=REFUSALS, out_of_memory=OUT_OF_MEMORY, errors=ERRORS,
    no_float64=re.compile(r"(?:doesn't|does not) support (float64|complex128)"), fallback_variable=FALLBACK_VARIABLE,
    variables=VARIABLES | MORE_VARIABLES, retried=(("PYTORCH_MPS_FAST_MATH", "0"),), has_fast_math=True, alone=True, waits=True,
    shares_memory=True, keeps_graphs=True, memory=MEMORY_FUNCTIONS,
    most_virtual=1 << 30,  # in virtual machines of Apple's: actions/runner-images#11899
    releases=("empty_cache", "clear_graph_cache"),  # the second in versions to come; not in 2.13
    facts={fact: f"backends.mps.{function}" for fact, function in FACTS.items()},
    # MPSGraph comes with macOS.
    driver=lambda: f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else "", absent=_absent,
)  # fmt: skip
