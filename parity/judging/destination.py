"""Destinations: which part of a base a call was to write, what it wrote beside it, and the form of any result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parity.inputs import apply
from parity.judging.measures import exact_measure
from parity.swift import swift
from parity.vocabulary import Layout, Measure, Status, Tolerance, Verdict

EXACT = Tolerance("exact", 0.0, 0.0, None, "exact results")


@swift
@dataclass(frozen=True, slots=True)
class Part:
    """A written view inside a base: how it is cut, and what lay in the base before."""

    before: Tensor
    layout: Layout
    shape: tuple[int, ...]


def inner(name: str) -> str:
    """Name of the result that a whole destination holds."""
    return name.removeprefix("base[").removesuffix("]") if name.startswith("base[") else name


def written(results: Mapping[str, Tensor], parts: Mapping[str, Part] | None) -> dict[str, Tensor]:
    """Results by name, those in destinations cut out of their bases."""
    if not parts:
        return dict(results)
    return {inner(n): apply(t, parts[n].layout, parts[n].shape) if n in parts else t for n, t in results.items()}


def form(name: str, device: Tensor, reference: Tensor | None) -> Verdict | None:
    """Shape and dtype."""
    if reference is None:
        return None
    if device.shape != reference.shape:
        text = f"{name}.shape={list(device.shape)}, but should be {list(reference.shape)}"
        return Verdict(Status.MALFORMED, text, Measure(name, problem="shape"))
    if device.dtype != reference.dtype:
        text = f"{name}.dtype={device.dtype}, but should be {reference.dtype}".replace("torch.", "")
        return Verdict(Status.MALFORMED, text, Measure(name, problem="dtype"))
    return None


def beside(base: Tensor, part: Part) -> Tensor:
    """Where something was written beside the view."""
    plain = tuple(s for s in part.layout if s[0] not in ("conj", "neg"))
    own = torch.zeros(base.shape, dtype=torch.bool)
    apply(own, plain, part.shape).fill_(True)
    return ~own & ~equal(base, part.before)


def stray(name: str, device: Tensor, part: Part) -> Verdict | None:
    """What was written beside the view."""
    places = beside(device, part)
    if not bool(places.any()):
        return None
    m = exact_measure(name, torch.where(places, device, part.before), part.before)
    return Verdict(Status.WRONG, "written beside its destination", replace(m, problem="beside"), EXACT)


def equal(a: Tensor, b: Tensor) -> Tensor:
    same = a == b
    if a.is_floating_point() or a.is_complex():
        same |= torch.isnan(a) & torch.isnan(b)
    return same
