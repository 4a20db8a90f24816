"""Destinations: the part of a base that a call should write, writes outside of it, and the form of any result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parity.core.case import Layout
from parity.core.results import Measure, Status, Tolerance, Verdict
from parity.execution.inputs import apply
from parity.judging.measures import exact_measure
from parity.judging.sameness import same_bytes

EXACT = Tolerance("exact", 0.0, 0.0, None, "exact results")


@dataclass(frozen=True, slots=True)
class Part:
    """A view inside a base that a call should write. before: the whole base before the call; layout, shape: how the view is
    cut."""

    before: Tensor
    layout: Layout
    shape: tuple[int, ...]


def inner(name: str) -> str:
    """Name of the result that a whole destination holds."""
    return name.removeprefix("base[").removesuffix("]") if name.startswith("base[") else name


def written(results: Mapping[str, Tensor], parts: Mapping[str, Part] | None) -> dict[str, Tensor]:
    """Results by name; those in destinations are cut out of their bases."""
    if not parts:
        return dict(results)
    return {inner(n): apply(t, parts[n].layout, parts[n].shape) if n in parts else t for n, t in results.items()}


def form(name: str, device: Tensor, reference: Tensor | None) -> Verdict | None:
    """A MALFORMED verdict if shape or dtype differ from the reference, else None."""
    if reference is None:
        return None
    if device.shape != reference.shape:
        text = f"{name}.shape={list(device.shape)}, but should be {list(reference.shape)}"
        return Verdict(Status.MALFORMED, text, Measure(name, problem="shape"))
    if device.dtype != reference.dtype:
        text = f"{name}.dtype={device.dtype}, but should be {reference.dtype}".replace("torch.", "")
        return Verdict(Status.MALFORMED, text, Measure(name, problem="dtype"))
    return None


def written_outside(base: Tensor, part: Part) -> Tensor:
    """Mask of the elements of the base that changed outside of the view."""
    plain = tuple(s for s in part.layout if s[0] not in ("conj", "neg"))
    own = torch.zeros(base.shape, dtype=torch.bool)
    apply(own, plain, part.shape).fill_(True)
    return ~own & ~equal(base, part.before)


def stray(name: str, device: Tensor, part: Part) -> Verdict | None:
    """A WRONG verdict if something outside of the view was written, else None."""
    if _only_the_view(device, part):
        return None
    places = written_outside(device, part)
    if not bool(places.any()):
        return None
    m = exact_measure(name, torch.where(places, device, part.before), part.before)
    return Verdict(Status.WRONG, "written outside its destination", replace(m, problem="beside"), EXACT)


def _only_the_view(base: Tensor, part: Part) -> bool:
    """Whether the base without its view holds the bits of before: asked first, for most do. False says nothing yet."""
    if base.shape != part.before.shape or base.dtype != part.before.dtype:
        return False
    restored = base.clone()
    apply(restored, part.layout, part.shape).copy_(apply(part.before, part.layout, part.shape))
    return bool(same_bytes(restored, part.before))


def equal(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise equality; NaN equals NaN."""
    same = a == b
    if a.is_floating_point() or a.is_complex():
        same |= torch.isnan(a) & torch.isnan(b)
    return same
