"""XPU, Intel's GPUs: the words of its libraries, the flags and variables that change its results.

Nothing here was learnt by running one. The texts of operators without a kernel and of fallbacks stand in torch-xpu-ops
(src/ATen/native/xpu/XPUFallback.template), the others in the public reports that are named; functions and properties are those
of `torch.xpu` in torch 2.13.
"""

from __future__ import annotations

import re

from parity.core.devices import Backend, Flag, says, text, torch_at

FALLBACK_VARIABLE = "PYTORCH_ENABLE_XPU_FALLBACK"  # read once, when the library is loaded
NAMING_VARIABLE = "PYTORCH_DEBUG_XPU_FALLBACK"  # read then, too

REFUSALS = (
    says(
        NotImplementedError, r"The operator '.+' is not currently implemented for the XPU device",
        text(
            "The operator '", "{op}",
            "' is not currently implemented for the XPU device. Please open a feature on "
            "https://github.com/intel/torch-xpu-ops/issues. You can set the environment variable "
            "`PYTORCH_ENABLE_XPU_FALLBACK=1` to use the CPU implementation as a fallback for XPU unimplemented operators. "
            "WARNING: this will bring unexpected performance compared with running natively on XPU.",
        ),
        source="native/xpu/XPUFallback.template",
    ),
    # SYCL's words. Arc of the first generation (A770) has no float64: a tensor of it can be made and copied, and not computed.
    says(
        RuntimeError, r"Required aspect \w+ is not supported on the device",
        "Required aspect fp64 is not supported on the device", "Required aspect fp16 is not supported on the device",
        source="intel/torch-xpu-ops#1742",
    ),
    says(
        RuntimeError, r"Kernel is incompatible with all devices", "Kernel is incompatible with all devices in devs",
        source="intel/torch-xpu-ops#1150",
    ),
)  # fmt: skip
OUT_OF_MEMORY = (
    says(
        RuntimeError, r"XPU out of memory",
        text("XPU out of memory. Tried to allocate ", "{size}", ". GPU 0 has a total capacity of 5.65 GiB"),
        source="intel/torch-xpu-ops#3011",
    ),
    says(
        RuntimeError, r"OUT_OF_(DEVICE|HOST)_MEMORY",
        "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", source="intel/torch-xpu-ops#1598",
    ),
)  # fmt: skip
# What must not be taken for a refusal.
ERRORS = (
    says(
        RuntimeError,
        r"DEVICE_LOST",
        "Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        source="intel/torch-xpu-ops#3155",
    ),
)


def _absent() -> str:
    return "" if torch_at("xpu")._is_compiled() else f"torch {torch_at('__version__')} is built without XPU"


BACKEND = Backend(
    name="xpu", key="XPU", refusals=REFUSALS, out_of_memory=OUT_OF_MEMORY, errors=ERRORS,
    no_float64=re.compile(r"Required aspect fp64 is not supported"), ends=re.compile(r"DEVICE_LOST"),
    # Some operators run on the CPU whatever the variable says; they are named where NAMING_VARIABLE is 1 (without an end to the
    # quotation in some versions).
    fallback=re.compile(r"The operator '([\w:.]+)'? ?on the XPU backend|fallback from XPU to CPU"),
    fallback_variable=FALLBACK_VARIABLE,
    # Not those that choose a device (ONEAPI_DEVICE_SELECTOR, ZE_AFFINITY_MASK): the steps of `parity doctor --archive` go
    # without all of these, and would be on another one.
    variables={
        FALLBACK_VARIABLE: "1 runs operators without a kernel on the CPU",
        NAMING_VARIABLE: "1 names the operators that run on the CPU",
        "PYTORCH_XPU_FALLBACK_OP": "operators that run on the CPU although they have a kernel",
        "IGC_EnableDPEmulation": "1 computes float64 where the device does not have it, slowly",
        "OverrideDefaultFP64Settings": "1 says that float64 is there although the device does not have it",
    },
    flags=(Flag("torch.backends.mkldnn.allow_tf32", "onednn_allow_tf32"),),  # pytorch/pytorch#137570, #144240
    asserts=True,  # an assertion of a kernel ends the whole process: pytorch/pytorch#142135
    facts={"chip": "get_device_name"},  # its capability is a mapping of some thirty numbers
    properties={"driver": "driver_version", "float64": "has_fp64", "architecture": "architecture"}, absent=_absent,
)  # fmt: skip
