"""Results that are promised to the bit: moved or compared numbers, integers, and zeros with their sign."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from parity.core.results import Measure, Status, Verdict
from parity.judging.bench import Bench
from parity.judging.destination import EXACT, equal
from parity.judging.limits import exact_limits
from parity.judging.measures import exact_measure
from parity.judging.promises import odd_zero
from parity.judging.rules import rule_of
from parity.judging.sameness import bit_equal, same_values

UNFAMILIAR_ULP = 4.0


def exactly(bench: Bench, name: str, device: Tensor, expected: Tensor) -> Verdict:
    """The verdict on a result that must equal the expected one, NaN equal to NaN; signs of zeros as the tables say."""
    if same_values(device, expected):
        if (device.is_floating_point() or device.is_complex()) and not bit_equal(device, expected):
            odd = of_zeros(bench, name, device, expected, expected)
            if odd is not None:
                return odd
        if bench.limits is not None:
            bench.limits[name] = exact_limits(device)
        same = Measure(name, 0.0, 0.0, True, screen="exact", max_abs=0.0, total=device.numel())
        return Verdict(Status.AGREE, "", same, EXACT)
    m = exact_measure(name, device, expected)
    what = "an exact result differs" if m.mismatched == 1 else f"{m.mismatched} of {m.total} exact results differ"
    return Verdict(Status.WRONG, what, m, EXACT)


def where_the_reference_errs(bench: Bench, name: str, device: Tensor, reference: Tensor, truth_name: str) -> Verdict | None:
    """Agreement where a result differs from the reference only in elements that equal the truth; else None.

    CPU kernels compute some exact results (fmod with a tiny divisor) and make errors themselves.
    """
    truth = bench.oracle.truth(truth_name)
    if truth is None or truth.shape != device.shape or truth.is_complex() != device.is_complex():
        return None
    meant = truth.to(device.dtype)
    verdict = exactly(bench, name, device, torch.where(equal(device, meant), meant, reference))
    errs = int((~equal(reference, meant)).sum())
    return (
        replace(verdict, reason=f"the CPU is the worse side here: wrong in {errs}") if verdict.status is Status.AGREE else None
    )


def of_zeros(
    bench: Bench, name: str, device: Tensor, reference: Tensor, truth: Tensor, pass_: str = "forward"
) -> Verdict | None:
    """A WRONG verdict for a zero of the other sign, if the tables ask for the sign; else None."""
    value = "signed_zero" if pass_ == "forward" else "gradient_zero"
    if bench.tables.special(bench.row.name, bench.row.rule, value) == "any":
        return None
    m = odd_zero(name, device, reference, truth)
    if m is None:
        return None
    return Verdict(Status.WRONG, f"a zero of the other sign: {m.device} where the truth is {m.truth}", m, EXACT)


def unfamiliar(bench: Bench, name: str, device: Tensor, reference: Tensor | None) -> Verdict:
    """Verdict on a dtype without facts (float8, complex32): equality with the reference, up to a few roundings if the op
    rounds."""
    if reference is None:
        return Verdict(Status.VOID, f"no reference, and parity has no facts about {device.dtype}", Measure(name))
    wide = torch.complex64 if device.is_complex() else torch.float32
    if not (device.is_floating_point() or device.is_complex()):
        return Verdict(Status.VOID, f"parity has no facts about {device.dtype}", Measure(name))
    mine, theirs = device.to(wide), reference.to(wide)
    if not rule_of(bench.row).exact:  # the op may round, and there is no truth to say how far
        near = (mine - theirs).abs() <= UNFAMILIAR_ULP * torch.finfo(device.dtype).eps * theirs.abs()
        mine = torch.where(near, theirs, mine)
    return exactly(bench, name, mine, theirs)
