"""A fault that lowers a simulated device's precision as TF32 does, where `in_force[0]` says so.

The float32 factors of a matrix product, batched or not, forward and backward, are rounded to 10 bits after the point, and the
products added up in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.devices import Call, Fault

# Places of the factors.
FACTORS = {
    **dict.fromkeys(("mm", "bmm", "linear"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), (1, 2)),
    "linear_backward": (0, 1, 2),
}
in_force = [True]  # whether the flag is set


def rounded(t: Tensor) -> Tensor:
    """Float32 numbers with 10 bits after the point, to nearest; both parts of complex ones. Others as they are."""
    if t.dtype is torch.complex64:
        return torch.view_as_complex(rounded(torch.view_as_real(t.resolve_conj()).contiguous()))
    if t.dtype is not torch.float32:
        return t
    cut = ((t.resolve_neg().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(t.isfinite(), cut, t)


def lowered(call: Call) -> Any:
    """The call on rounded factors."""
    for k in FACTORS[call.op.partition(".")[0].removesuffix("_")]:
        call.args[k] = rounded(call.args[k])
    return call.run()


FAULTS = [Fault("tf32", tuple(FACTORS), lowered, lambda call: in_force[0], title="products of matrices in TF32")]
