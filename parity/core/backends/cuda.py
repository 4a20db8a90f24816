"""CUDA, and ROCm under the same name: the words of its libraries, the flags and variables that change its results."""

from __future__ import annotations

import contextlib
import re

from parity.core.devices import Backend, Flag, says, text, torch_at

# Limits that the documentation of its libraries names.
REFUSALS = (
    says(RuntimeError, r"is not supported on CUDA", "gcd is not supported on CUDA"),
    says(RuntimeError, r"are not supported on CUDA", "sparse tensors are not supported on CUDA"),
    says(RuntimeError, r"HalfTensor is not supported", "torch.cuda.sparse.HalfTensor is not supported"),
    says(
        RuntimeError,
        r"cudnn RNN backward can only be called in training mode",
        "cudnn RNN backward can only be called in training mode",
    ),
    says(
        RuntimeError,
        r"CUBLAS_STATUS_NOT_SUPPORTED when calling",
        text("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `", "{call}", "`"),
    ),
    says(RuntimeError, r"rnn: hx is not contiguous", "rnn: hx is not contiguous"),
    *(  # of float8 and of grouped products, before and since torch checks them as values
        says(
            kind,
            r"is only supported on CUDA devices with compute capability",
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
        )
        for kind in (RuntimeError, ValueError)
    ),
)
OUT_OF_MEMORY = (
    says(RuntimeError, r"CUDNN_STATUS_ALLOC_FAILED", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    says(
        RuntimeError,
        r"CUBLAS_STATUS_ALLOC_FAILED",
        text("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `", "{call}", "`"),
    ),
)


def _driver() -> str:
    versions = {"CUDA": torch_at("version").cuda, "HIP": torch_at("version").hip}
    words = [f"{k} {v}" for k, v in versions.items() if v]
    for name, path in (("driver", "_C._cuda_getDriverVersion"), ("cuDNN", "backends.cudnn.version")):
        with contextlib.suppress(AttributeError, RuntimeError):  # built without CUDA, no driver, or another cuDNN than torch's
            if (version := torch_at(path)()) is not None:
                words.append(f"{name} {version}")
    return ", ".join(words)


def _absent() -> str:
    built = torch_at("version").cuda is not None or torch_at("version").hip is not None
    return "" if built else f"torch {torch_at('__version__')} is built without CUDA"


BACKEND = Backend(
    name="cuda", key="CUDA", refusals=REFUSALS, out_of_memory=OUT_OF_MEMORY, ends=re.compile(r"\b(CUDA|HIP) error"),
    variables={
        "CUBLAS_WORKSPACE_CONFIG": "which algorithms cuBLAS may take; :4096:8 and :16:8 make it deterministic",
        "CUDA_LAUNCH_BLOCKING": "1 waits after every kernel, which hides races",
        "CUDNN_LOGDEST_DBG": "cuDNN writes what it runs",
        "NVIDIA_TF32_OVERRIDE": "0 forbids TF32 in NVIDIA's libraries, whatever torch asks for",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1 lets cuBLAS compute float32 products in TF32",
    },
    flags=(
        Flag("torch.backends.cudnn.allow_tf32", "cudnn_allow_tf32"),
        Flag("torch.set_float32_matmul_precision", "float32_matmul_precision", "highest"),
        *(
            Flag(f"torch.backends.cuda.matmul.{name}", f"cublas_{name}", dtypes=(dtype,))
            for name, dtype in (
                ("allow_fp16_reduced_precision_reduction", "float16"),
                ("allow_bf16_reduced_precision_reduction", "bfloat16"),
            )
        ),
        Flag("torch.backends.cudnn.benchmark", "cudnn_benchmark"),
    ),
    asserts=True,
    # It has read pageable memory when its copy returns (CUDA's documentation, "API synchronization behavior"), and every wait
    # costs as much as a small kernel, or ten times as much where other processes use the device too.
    reads_at_once=True, driver=_driver, absent=_absent,
)  # fmt: skip
