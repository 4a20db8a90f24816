"""Says how far a result that agrees is from the CPU's, and how much rounding allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parity.comparing.subject import is_dense
from parity.core.results import Status, Verdict
from parity.judging.budget import ulp_at
from parity.judging.measures import facts_of


@dataclass(frozen=True, slots=True)
class Difference:
    """The element of a result that is farthest from the CPU's. size: by how much; ulp: in units of the last place of the larger
    of the two."""

    index: tuple[int, ...]
    size: float
    ulp: float

    def __str__(self) -> str:
        return f"differs from the CPU by {self.size:.2g} at {list(self.index)} ({self.ulp:.2g} ULP)"

    def allowed(self, v: Verdict) -> str:
        """What rounding allows. v: of the tensor; its error ratio is that of the element nearest to its limit."""
        m = v.measure
        if m is None or not m.share:
            return "it is at the truth"
        if m.share > 1.0:
            return f"more than rounding allows, but {v.reason}"
        if m.index == self.index and m.truth:
            least = "" if m.measured else "at least "
            return f"rounding allows {least}{abs(complex(m.device) - complex(m.truth)) / m.share:.2g}"
        return largest(m.share)


def nearest(apart: Mapping[str, tuple[Difference, float, str]]) -> Iterator[str]:
    """Of results that agree, the output and then any other that is nearest to its limit, in a line each. apart: by name, how
    far it is from the CPU's, its error ratio, and what rounding allows, in words."""
    differing = {n: x for n, x in apart.items() if x[0] != EQUAL}
    if not differing:
        yield "the results are equal to the CPU's"
    outputs = [n for n in differing if n.startswith("out")]
    for some in (outputs, list(differing)):
        name = max(some, key=lambda n: differing[n][1], default="")
        if name and (some is outputs or name not in outputs):
            yield f"{name} {differing[name][0]}; {differing[name][2]}"


def largest(share: float) -> str:
    """The error ratio of the element that is nearest to its limit, in words."""
    return f"no element has more than {share:.2g} of what rounding allows"


EQUAL = Difference((), 0.0, 0.0)


def differences(
    verdicts: tuple[tuple[str, Verdict], ...], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]
) -> dict[str, Difference]:
    """The differences of the tensors that agree and of which they are known."""
    found = {n: farthest(theirs[n], ours[n]) for n, v in verdicts if v.status is Status.AGREE and n in theirs and n in ours}
    return {n: d for n, d in found.items() if d is not None}


def farthest(device: Tensor, cpu: Tensor) -> Difference | None:
    """Where a tensor that agrees is farthest from the CPU's; None if that cannot be asked of tensors like these."""
    alike = (device.dtype, device.shape) == (cpu.dtype, cpu.shape)
    if not (alike and is_dense(device) and is_dense(cpu)):
        return None
    if not (cpu.is_floating_point() or cpu.is_complex()) or not cpu.numel():
        return EQUAL
    wide = cpu.dtype if cpu.is_complex() or cpu.dtype is torch.float64 else torch.float32
    apart = (device.detach().to(wide) - cpu.detach().to(wide)).abs().nan_to_num_(0.0, 0.0)
    k = int(apart.argmax())
    size = float(apart.reshape(-1)[k])
    if not size:
        return EQUAL
    index = tuple(int(i) for i in np.unravel_index(k, cpu.shape))  # torch's own imports sympy, 0.4 s
    larger = max(float(t.detach()[index].abs()) for t in (cpu, device))  # either may be 0, which has no last place to speak of
    return Difference(index, size, size / ulp_at(larger, facts_of(cpu)))
