"""Zeros by definition: what forward-mode derivatives use where an operand has no tangent.

On other devices torch gives them no memory, and a product with one is zero whatever the other factor holds, even NaN
(ZeroTensor kernels of aten/src/ATen/native/BinaryOps.cpp). A relabelled tensor cannot carry torch's mark for that, so here they
are real zeros whose memory addresses are recorded. Sums with them are computed: -0.0 + 0 gives 0.0 where torch would return
-0.0.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.memory import to_host, to_sim

live: set[int] = set()  # addresses of the memory of such zeros

_WRITTEN = ("mul.out", "div.out", "linalg_cross.out")
_SINGLE = ("dot", "vdot")


def declare(t: Tensor) -> Tensor:
    """Record a sim tensor of zeros as zeros by definition, until its memory is written or freed."""
    storage = t.untyped_storage()
    if (at := storage.data_ptr()) and at not in live:
        live.add(at)
        weakref.finalize(storage, live.discard, at).atexit = False
    return t


def forget(t: Tensor) -> None:
    """The memory of this tensor is written: from now on its values count."""
    live.discard(t.untyped_storage().data_ptr())


def product(overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The product or quotient with zeros by definition, computed by no kernel; None if there are none."""
    if overload not in _WRITTEN and overload not in _SINGLE:
        return None
    zero = [isinstance(a, Tensor) and a.untyped_storage().data_ptr() in live for a in args[:2]]
    if not any(zero) or (overload == "div.out" and zero != [True, False]):
        return None
    first: Tensor = args[0]
    if overload in _SINGLE:
        return declare(to_sim(torch.zeros((), dtype=first.dtype), first.get_device()))
    out: Tensor = kwargs["out"]
    shape = torch.broadcast_shapes(*(getattr(a, "shape", ()) for a in args[:2]))  # type: ignore[no-untyped-call]  # untyped
    if out.shape != shape:
        return None
    to_host(out).zero_()
    return declare(out)
