"""Predicts what MPS does with a call of an operator: it has a kernel, composes it, leaves it to the CPU, has none, or refuses
the dtype.

Which operators have a kernel stands in torch's operator table, of the installed torch or of another one. What a kernel refuses
stands in its own words (`parity.core.backends.mps`), each with the versions of torch that have them; at which calls, here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from parity.core.backends import mps
from parity.devices.operator_table import TORCHVISION_ON_MPS, Table

# Registered for MPS outside of the table: on the CPU, unless a later torch has a kernel for what they are made of ...
ATEN_ON_CPU: dict[str, str] = {
    "embedding_renorm_": "embedding_renorm_",
    "linalg_svd": "_linalg_svd",
    "linalg_svd.U": "_linalg_svd",
}
ATEN_FROM_PYTHON = frozenset({"linalg_lu_solve.out"})  # ... and from Python
COMPOSITE = "Composite"  # how the keys of a composition begin
COMPOSITIONS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Answer(StrEnum):
    """What MPS makes of an operator."""

    KERNEL = "kernel"
    COMPOSED = "composed"
    ON_CPU = "always on the CPU"
    MISSING = "no kernel"
    REFUSED = "refused"
    UNKNOWN = "unknown"


NOT_ON_MPS = (Answer.MISSING, Answer.REFUSED)


def answer(qualified: str, table: Table) -> Answer:
    """What MPS makes of an operator ("aten::add.out") by a table alone; unknown where the table does not have it. One of
    somebody else's (`torch.library`) by what is registered for it in this process."""
    if qualified in TORCHVISION_ON_MPS:
        return Answer.KERNEL
    space, _, name = qualified.partition("::")
    if space != "aten":
        return _foreign(qualified)
    if name not in table.keys:
        return Answer.UNKNOWN
    keys = table.keys[name]
    if mps.KEY in keys or name in ATEN_FROM_PYTHON:
        return Answer.KERNEL
    if name in ATEN_ON_CPU and mps.KEY not in table.keys.get(ATEN_ON_CPU[name], ()):
        return Answer.ON_CPU
    composed = not keys or any(k.startswith(COMPOSITE) for k in keys)
    return Answer.COMPOSED if composed else Answer.MISSING


def _foreign(qualified: str) -> Answer:
    with suppress(RuntimeError):  # there is none
        if torch._C._dispatch_has_kernel_for_dispatch_key(qualified, mps.KEY):
            return Answer.KERNEL
        composed = any(torch._C._dispatch_has_kernel_for_dispatch_key(qualified, k) for k in COMPOSITIONS)
        return Answer.COMPOSED if composed else Answer.MISSING
    return Answer.UNKNOWN


def refusal(qualified: str, args: Sequence[Any], kwargs: Mapping[str, Any], version: str) -> str:
    """MPS's words where a kernel refuses this call in that torch ("2.13.0"); empty where no text is known that would.

    args, kwargs: of the operator, with tensors of any device. What torch refuses on every device is not looked for.
    """
    base = qualified.removeprefix("aten::").partition(".")[0]
    for condition, text in ATEN_LIMITS.get(base, ()):
        if TEXTS[text].is_in(version) and condition(*args, **kwargs):
            return TEXTS[text].example
    return ""


def _is_integer(x: Tensor, *rest: Any, **named: Any) -> bool:
    return not x.is_floating_point() and not x.is_complex()


def _is_complex(x: Tensor, *rest: Any, **named: Any) -> bool:
    return x.is_complex()


def _is_not_float32(x: Tensor, *rest: Any, **named: Any) -> bool:
    return x.dtype is not torch.float32


def _is_narrow_volume(x: Tensor, *rest: Any, **named: Any) -> bool:
    return x.dim() == 5 and x.dtype in (torch.float16, torch.bfloat16)


def _has_projections(x: Tensor, hx: Sequence[Tensor], *rest: Any, **named: Any) -> bool:
    return len(hx) > 1 and hx[0].shape[-1] != hx[1].shape[-1]


def _does_not_pivot(x: Tensor, *rest: Any, pivot: bool = True, **named: Any) -> bool:
    return not pivot


def _shrinks_unevenly(x: Tensor, size: Sequence[int], *rest: Any, **named: Any) -> bool:
    there, wanted = x.shape[-len(size) :], tuple(size)
    return all(a >= b for a, b in zip(there, wanted)) and any(b and a % b for a, b in zip(there, wanted))


def _grows_unevenly(x: Tensor, size: Sequence[int], *rest: Any, **named: Any) -> bool:
    there, wanted = x.shape[-len(size) :], tuple(size)
    return all(a <= b for a, b in zip(there, wanted)) and any(a and b % a for a, b in zip(there, wanted))


_Limit = tuple[Callable[..., bool], str]
_POOLED: tuple[_Limit, ...] = (
    (_shrinks_unevenly, "Adaptive pool MPS: input sizes must be divisible by output sizes. "),
    (_grows_unevenly, "Adaptive pool MPS: output sizes must be divisible by input sizes. "),
)
_CONVOLVED: _Limit = (_is_integer, "Convolution is supported only for Floating types")
# Base name of an operator -> at which calls it is refused, and how the words begin.
ATEN_LIMITS: dict[str, tuple[_Limit, ...]] = {
    "_adaptive_avg_pool2d": _POOLED,
    "adaptive_max_pool2d": _POOLED,
    "_mps_convolution": (_CONVOLVED,),
    "_mps_convolution_transpose": (
        _CONVOLVED,
        (_is_narrow_volume, "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS"),
    ),
    "linear": ((_is_integer, "MPS device does not support linear for non-float inputs"),),
    "_lstm_mps": ((_has_projections, "LSTM with projections is not currently supported with MPS."),),
    "index_reduce": ((lambda x, *_, **__: x.dtype is torch.int64, "index_reduce for MPS does not support torch.long dtype"),),
    "cholesky_inverse": ((_is_not_float32, "cholesky_inverse: MPS only supports float type!"),),
    "linalg_qr": ((_is_not_float32, "linalg_qr: MPS currently supports float32 only"),),
    "linalg_lu_factor_ex": (
        (_is_complex, "linalg.lu_factor(): MPS doesn't support complex types."),
        (_does_not_pivot, "linalg.lu_factor(): MPS doesn't allow pivot == False."),
    ),
    "linalg_inv_ex": ((_is_complex, "linalg_inv: not supported for complex types yet!"),),
    "linalg_solve_triangular": ((_is_not_float32, "linalg.solve.triangular(); Only float is supported!"),),
}


_KNOWN = [t for w in mps.REFUSALS for t in w.texts]
TEXTS = {start: next(t for t in _KNOWN if t.text.startswith(start)) for some in ATEN_LIMITS.values() for _, start in some}
