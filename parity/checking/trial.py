"""One case under way: how it is checked, what both sides gave, and how two outcomes of one aspect become a result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from parity import execute as ex
from parity.checking import power
from parity.checking.power import Asked
from parity.devices.base import Device
from parity.dtypes import FACTS
from parity.execute import Destination, Live, Named, Placed, Program
from parity.inputs import Inputs
from parity.judging.bench import Bench
from parity.judging.destination import Part
from parity.judging.judge import agreed, judge
from parity.judging.measures import WIDENING_LIMIT, bit_equal, same_bits
from parity.swift import swift
from parity.tolerance import Tables
from parity.values import pool, window
from parity.vocabulary import Aspect, Case, Computed, Measure, Outcome, Raised, Status, Verdict

Mark = Callable[[str], None]
Again = Callable[[], Named]
BUDGETS = " times the budget"  # behind a share, in the reason of a verdict
RERUNS = 2  # memory that nobody wrote often holds the same twice, so the second rerun finds it stirred
RAISED = {"refused": Status.UNSUPPORTED, "oom": Status.OOM, "error": Status.ERROR}


@swift
@dataclass(frozen=True, slots=True)
class Result:
    """One aspect of a case, judged."""

    aspect: Aspect
    verdict: Verdict
    measures: tuple[Measure, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells one finding of an op from another: aspect, tensor, and the kind of difference (not how large it is)."""
        m, status = self.verdict.measure, self.verdict.status
        by_value = m is not None and status in (Status.DRIFT, Status.WRONG, Status.MALFORMED)
        kind = m.problem if m is not None and by_value else f"{status}: {self.verdict.reason[:60]}"
        return self.aspect, self.verdict.tensor, kind

    def about(self, key: tuple[str, ...]) -> Result | None:
        """This finding where it is the one of that key, told of that key's tensor where another one is worse; else None."""
        if self.key == key:
            return self
        aspect, tensor, kind = key
        if self.aspect != aspect or self.verdict.status not in (Status.DRIFT, Status.WRONG):
            return None
        for m in self.measures:
            if m.tensor == tensor and m.problem == kind and m.share is not None and m.share > 1.0:
                _, found, more = self.verdict.reason.partition(BUDGETS)
                reason = f"{m.share:.3g}{BUDGETS}{more}" if found else self.verdict.reason
                return replace(self, verdict=replace(self.verdict, measure=m, reason=reason))
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """How a case is checked. insist: everything to the oracle. repeat: run the forward twice and compare the bits. only: the
    aspect that is asked for (the forward always runs), or None for all. more: which of the aspects that cost most (`SELDOM`)
    are asked for. law: draw a random op again and again for its law; without, each result is only one that may come out.
    operands: ask whether the calls left their operands as they were; where everything goes to the oracle, that is asked too.
    power: judge what agrees once more, with errors put in."""

    insist: bool = False
    repeat: bool = False
    only: str | None = None
    more: frozenset[Aspect] = frozenset()
    law: bool = True
    operands: bool = False
    power: bool = False

    def wants(self, aspect: Aspect) -> bool:
        """Whether this aspect is asked for."""
        return self.only is None or self.only == aspect

    def wants_more(self, aspect: Aspect) -> bool:
        """Whether this aspect, one of those that are checked now and then, is asked for here."""
        return self.only == aspect if self.only is not None else aspect in self.more


KNOWN = frozenset(getattr(torch, name) for name in FACTS if hasattr(torch, name))
SELDOM = frozenset({Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER})
EVERYTHING = Settings(True, True, None, SELDOM)


class Lent(NamedTuple):
    """A tensor that a call is given to read: what its base held before, on the CPU, and the base where the call reads it."""

    name: str
    before: Tensor
    base: Tensor


@dataclass(slots=True)
class Trial:
    """One case and where it is checked; lives as long as its check. notes: where fallbacks are heard; results: so far; fed: the
    cotangents that the device's backward was given; cotangents: as they are made, and as the reference takes them, once asked
    for; power: what became of errors that were put in."""

    program: Program
    case: Case
    inputs: Inputs
    device: Device
    tables: Tables
    settings: Settings
    cpu: Device
    mark: Mark
    notes: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    fed: list[Lent] = field(default_factory=list)
    cotangents: tuple[list[Destination], list[Tensor]] | None = None
    power: list[Asked] = field(default_factory=list)


@swift
@dataclass(frozen=True, slots=True)
class Sides:
    """What the forward gave on both sides, for the aspects that go on from there. here: the operands on the CPU; there: on the
    device. grad: whether they are leaves."""

    bench: Bench
    here: Placed
    there: Placed
    live: Live
    theirs: Live
    reference: Computed
    outcome: Outcome
    grad: bool


def is_known(x: Tensor) -> bool:
    """Whether parity can make and judge tensors of this kind (float8, complex32, sparse and quantised ones it cannot)."""
    return x.layout is torch.strided and x.dtype in KNOWN


def values(family: str, dtype: torch.dtype, n: int, seed: int, position: int) -> Tensor:
    """n values of a cotangent or tangent."""
    if dtype not in KNOWN:  # results that are not judged (complex32) are differentiated all the same
        return values(family, torch.complex64 if dtype.is_complex else torch.float32, n, seed, position).to(dtype)
    if family == "normal":
        return window(_bell(dtype), n, seed, 50 + position).clone()
    return torch.full((n,), 1.0 if family == "ones" else 0.0, dtype=dtype)


@functools.cache
def _bell(dtype: torch.dtype) -> Tensor:
    return pool("normal", str(dtype).removeprefix("torch."))


def outcome_of(t: Trial, raw: Named | Raised) -> Outcome:
    """What a run on the device came to, its fallbacks noted and the list of them left empty for the next."""
    found: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw, t.device, t.notes)
    t.notes.clear()
    return found


def agrees(t: Trial, aspect: Aspect, expected: Named, outcome: Outcome) -> Result | None:
    """The result where the device gave the expected bits under the expected names, which needs no judge; None where it did not,
    or where everything is to be judged."""
    if t.settings.insist or t.settings.power or not isinstance(outcome, Computed) or outcome.notes:
        return None
    if len(outcome.tensors) != len(expected):
        return None
    sizes = []
    for (name, x), (told, r) in zip(outcome.tensors, expected):
        alike = name == told and x.dtype is r.dtype and x.shape == r.shape and x.layout is r.layout is torch.strided
        if not alike or not bit_equal(x, r):
            return None
        sizes.append((name, x.numel()))
    return Result(aspect, *agreed(tuple(sizes))) if sizes else None


def compare(
    t: Trial,
    bench: Bench,
    aspect: Aspect,
    reference: Outcome,
    outcome: Outcome,
    pass_: str,
    again: Again,
    parts: dict[str, Part] | None = None,
) -> Result:
    """One aspect's outcomes, judged. again: the reference's run, which a finding asks for once more."""
    if isinstance(outcome, Raised):
        return raised(aspect, reference, outcome)
    assert isinstance(outcome, Computed)
    theirs = dict(outcome.tensors)
    ours = dict(reference.tensors) if isinstance(reference, Computed) else None
    if parts:
        theirs = {n: x for n, x in theirs.items() if n in parts}
        ours = None if ours is None else {n: x for n, x in ours.items() if n in parts}
    verdict, measures = judge(bench, theirs, ours, pass_, parts)
    if verdict.status.is_finding and ours is not None and _unsteady(t, bench, ours, pass_, again, parts):
        text = f"the reference is unstable: two equal runs of it differ ({verdict.reason})"
        verdict = Verdict(Status.VOID, text, verdict.measure)
    elif verdict.status.is_finding and (share := _own_error(t.device, verdict)) > WIDENING_LIMIT:
        text = f"the CPU is {share:.3g} budgets off itself, and this device computes with its kernels ({verdict.reason})"
        verdict = Verdict(Status.VOID, text, verdict.measure)
    if t.settings.power and verdict.status is Status.AGREE and aspect is not Aspect.REPEAT:
        asked = power.ask(bench, theirs, ours, pass_, parts, aspect, repr(t.case))
        t.power += [asked] if asked is not None else []
    if outcome.notes and verdict.status is Status.AGREE:
        text = "ran on the CPU: " + ", ".join(sorted(set(outcome.notes)))
        verdict = Verdict(Status.FALLBACK, text, verdict.measure, verdict.tolerance)
    return Result(aspect, verdict, measures)


def _own_error(device: Device, verdict: Verdict) -> float:
    """The reference's share where the device is the CPU, simulated or not: a kernel that reads freed memory errs by another
    amount in every call. 0 where the device has kernels of its own."""
    shares_kernels = device.simulated or device.torch_device.type == "cpu"
    return (verdict.measure and verdict.measure.reference_share) or 0.0 if shares_kernels else 0.0


def _unsteady(t: Trial, bench: Bench, ours: dict[str, Tensor], pass_: str, again: Again, parts: dict[str, Part] | None) -> bool:
    """Whether another run of the reference differs from the first so much that it would be a finding itself: kernels of the
    CPU that read memory which nobody wrote accuse every device."""
    for _ in range(RERUNS):
        _stir(t, ours)
        raw = ex.precisely(again, "run")
        if isinstance(raw, Raised):
            return True
        second = {n: x.detach() for n, x in raw if n in ours}
        if set(second) == set(ours) and all(same_bits(second[n], x) for n, x in ours.items()):
            continue
        if judge(bench, second, ours, pass_, parts)[0].status.is_finding:
            return True
    return False


def _stir(t: Trial, ours: dict[str, Tensor]) -> None:
    """Leave other bytes in the memory that the allocator hands out next, in the sizes that a kernel may ask for."""
    sizes = {x.numel() * x.element_size() for x in (*ours.values(), *(o.base for o in t.inputs.operands))}
    held = [torch.full((n * k,), 77, dtype=torch.uint8) for n in sorted(sizes) for k in (1, 2, 4) if 0 < n * k <= 1 << 24]
    del held


def raised(aspect: Aspect, reference: Outcome, outcome: Raised) -> Result:
    """The result where the device raised."""
    if isinstance(reference, Raised):
        return Result(aspect, Verdict(Status.VOID, f"reference and device both refuse: {outcome.message}"))
    return Result(aspect, Verdict(RAISED[outcome.kind], f"{outcome.type} in {outcome.stage}: {outcome.message}"))
