"""Cheap screens: which results of an operator need no truth, because roundings alone explain how they differ from the CPU's."""

from __future__ import annotations

import torch
from torch import Tensor

from parity.assertion.subject import word
from parity.checks.operators import error_ratio
from parity.core.dtypes import FACTS

FEW = 16  # elements from which on a common factor of all errors shows
FACTOR = 6.0  # standard deviations of the common factor that independent roundings have


def is_settled(got: Tensor, cpu: Tensor, ratio: float = 1.0) -> bool:
    """Whether two results are equal, or differ by roundings alone: no element is far off, and the errors have no factor in
    common. ratio: how far off an element may be, in units of what one operator's roundings explain."""
    if got.shape != cpu.shape or got.dtype != cpu.dtype:
        return False
    if torch.equal(got, cpu):
        return True
    if not cpu.is_floating_point() and not cpu.is_complex():
        return False
    if error_ratio(got, cpu) > ratio:
        return False
    d, c = (torch.view_as_real(x) if x.is_complex() else x for x in (got, cpu))
    d, c = d.to(torch.float64).flatten(), c.to(torch.float64).flatten()
    usable = d.isfinite() & c.isfinite()
    d, c = d[usable], c[usable]
    size = float(c.square().sum())
    if d.numel() < FEW or size == 0.0:
        return bool(torch.equal(d, c)) or FACTS[word(cpu.dtype)].bits >= 32
    common = abs(float(((d - c) * c).sum())) / size
    # The factor of independent roundings of half an ULP, each relative to its own element.
    alone = torch.finfo(cpu.dtype).eps * float(c.pow(4).sum()) ** 0.5 / size
    return bool(common <= FACTOR * max(alone, torch.finfo(cpu.dtype).eps / d.numel() ** 0.5))
