"""One case being checked: its settings, what both sides returned, and how two outcomes of one aspect become a result."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.checks import power
from parity.checks.power import ProbeResults
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.results import (
    BOTH_REFUSE,
    DERIVATIVES,
    Aspect,
    Computed,
    Measure,
    MetadataNote,
    Outcome,
    Raised,
    Status,
    Verdict,
)
from parity.devices.base import Device
from parity.devices.refusals import is_about_dtypes
from parity.execution import execute as ex
from parity.execution.execute import Destination, Live, Named, Placed, Program, There
from parity.execution.inputs import Inputs, torch_word
from parity.execution.modes import Unwatched
from parity.execution.values import begin, pool, window
from parity.judging.bench import Bench
from parity.judging.destination import Part
from parity.judging.judge import agreed, judge
from parity.judging.sameness import bit_equal, same_bits
from parity.oracle.yardstick import WIDENING_LIMIT
from parity.tolerance import Tables

Mark = Callable[[str], None]
Again = Callable[[], Named]
# Bytes of poison: NaN in every float dtype (-1 in integers), and 61,280 in float16, 1.3e36 in float32.
NAN, LARGE = 0xFF, 0x7B
HELD = 1  # case whose results are held across later calls
RERUNS = 2  # uninitialised memory often holds the same bytes twice, so it is overwritten before each rerun
INDICES = ("index", "unique")  # families of values
MADE = 1 << 22  # elements of the results of a call that comes before a case
RAISED = {"refused": Status.UNSUPPORTED, "oom": Status.OOM, "error": Status.ERROR}


@dataclass(frozen=True, slots=True)
class Result:
    """One aspect of a case, judged. notes: how its fresh tensors lie otherwise in memory than the CPU's."""

    aspect: Aspect
    verdict: Verdict
    measures: tuple[Measure, ...] = ()
    notes: tuple[MetadataNote, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies a finding of an op: aspect, tensor, and the kind of difference (not its size)."""
        m, status = self.verdict.measure, self.verdict.status
        by_value = m is not None and status.differs
        kind = m.problem if m is not None and by_value else f"{status}: {self.verdict.reason[:60]}"
        return self.aspect, self.verdict.tensor, kind

    def about(self, key: tuple[str, ...]) -> Result | None:
        """This finding if it has that key, with the verdict of that key's tensor if another tensor is worse; else None."""
        if self.key == key:
            return self
        aspect, tensor, kind = key
        status = self.verdict.status
        if self.aspect != aspect or not status.differs or status is Status.MALFORMED:
            return None
        for m in self.measures:
            if m.tensor == tensor and m.problem == kind and m.share is not None and m.share > 1.0:
                return replace(self, verdict=self.verdict.of(m))
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """How a case is checked.

    always_use_oracle: measure every error by the truth. whole: against the whole budget (`Bench.whole`). repeat: run the
    forward twice and compare the bits. only: the one aspect to check (the forward always runs), or None for all. more:
    which of the expensive aspects (`SELDOM`) to check. law: draw a random op repeatedly and test its law; without, each
    result only has to be possible. operands: check that the calls left their operands unchanged (always_use_oracle implies
    it). power: judge agreements again with errors put in. poison: the byte with which freed memory of the device is filled
    before the calls (`parity.checks.poison`), 0 for none. guards: run the calls once more between guards. fail_on_metadata:
    other strides than the CPU's are a finding also where torch promises none. held: of how many cases, this one among them,
    the results stay held across later calls, to be compared once more (`parity.checks.repeat`); 0: not of this one. there:
    `Program.there`.
    """

    always_use_oracle: bool = False
    repeat: bool = False
    only: str | None = None
    more: frozenset[Aspect] = frozenset()
    law: bool = True
    operands: bool = False
    power: bool = False
    poison: int = 0
    guards: bool = False
    fail_on_metadata: bool = False
    whole: bool = False
    held: int = 0
    there: There | None = None

    def wants(self, aspect: Aspect) -> bool:
        """Whether to check this aspect."""
        return self.only is None or self.only == aspect

    def wants_more(self, aspect: Aspect) -> bool:
        """Whether to check this aspect, one of the expensive ones."""
        return self.only == aspect if self.only is not None else aspect in self.more


KNOWN = frozenset(getattr(torch, name) for name in FACTS if hasattr(torch, name))
SELDOM = frozenset({Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER})
EVERYTHING = Settings(True, True, None, SELDOM, poison=NAN, guards=True, whole=True, held=HELD)


class Lent(NamedTuple):
    """A tensor that a call only reads: the contents of its base before, on the CPU, and the base that the call reads."""

    name: str
    before: Tensor
    base: Tensor


@dataclass(slots=True)
class Trial:
    """One case and where it is checked; lives as long as its check.

    notes: the fallbacks heard so far; results: so far; fed: the cotangents given to the device's backward; cotangents: as made,
    and as the reference takes them, once requested; power: outcomes of errors put into results; seconds: aspect -> time of its
    call on the device, from the call until everything is computed; due: the aspects in which the case is to be compared,
    without those for which a reason was found why it cannot.
    """

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
    power: list[ProbeResults] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    due: set[Aspect] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Sides:
    """The forward's results on both sides, for the later aspects. here: the operands on the CPU; there: on the device. grad:
    whether they are leaves."""

    bench: Bench
    here: Placed
    there: Placed
    live: Live
    theirs: Live
    reference: Computed
    outcome: Outcome
    grad: bool


def is_known(x: Tensor) -> bool:
    """Whether parity can make and judge tensors of this kind; not float8, complex32, sparse or quantised ones."""
    return x.layout is torch.strided and x.dtype in KNOWN


def values(family: str, dtype: torch.dtype, n: int, seed: int, position: int) -> Tensor:
    """n values of a cotangent or tangent."""
    if dtype not in KNOWN:  # results that are not judged (complex32) are differentiated, too
        return values(family, torch.complex64 if dtype.is_complex else torch.float32, n, seed, position).to(dtype)
    if family == "ones":
        return torch.ones(n, dtype=dtype)
    x = window(_bell(dtype), n, seed, 50 + position).clone()
    if family == "zero":  # of both signs
        parts = torch.view_as_real(x) if dtype.is_complex else x
        parts.copy_(torch.copysign(torch.zeros_like(parts), parts))
    if family in SCALES:
        x *= 2.0 ** int(SCALES[family][seed % 2] * math.log2(torch.finfo(dtype).max))
    elif family == "nonfinite" and n:
        for k in range(1 + seed % 3):
            number = NONFINITE[(seed + k) % len(NONFINITE)]
            x[begin(seed + k, 50 + position) % n] = complex(number, number) if dtype.is_complex else number  # type: ignore[assignment]
    return x


# The powers of two of a cotangent, by its seed, as shares of that of the dtype's largest number.
SCALES = {"huge": (0.7, 0.84), "tiny": (-0.6, -0.5)}
NONFINITE = (math.inf, math.nan, -math.inf)


@functools.cache
def _bell(dtype: torch.dtype) -> Tensor:
    return pool("normal", str(dtype).removeprefix("torch."))


def outcome_of(t: Trial, raw: Named | Raised, timed: tuple[Aspect, float] | None = None) -> Outcome:
    """Attach the fallbacks to the outcome of a run on the device; clear the list of them. timed: (aspect, when its call began)
    if its time is to be noted in `t.seconds`."""

    def computed() -> None:
        if timed is not None:
            t.seconds[timed[0]] = time.perf_counter() - timed[1]

    outcome: Outcome = raw if isinstance(raw, Raised) else ex.computed(raw, t.device, t.notes, computed)
    t.notes.clear()
    if isinstance(outcome, Raised) and outcome.kind == "error" and outcome.stage == "run" and _refuses_the_dtypes(t, outcome):
        return replace(outcome, kind="refused")
    return outcome


def _refuses_the_dtypes(t: Trial, outcome: Raised) -> bool:
    """Whether the device says that it does not take operands of these dtypes together, though the CPU does: no two backends
    take the same. Ops that promote must take them."""
    if t.program.row.forms.promotes or not is_about_dtypes(outcome.message):
        return False
    specs = t.case.operands()
    return (
        len({s.dtype for s in specs if FACTS[s.dtype].is_inexact}) > 1
        or any(s.dtype == "int32" and s.values.family in INDICES for s in specs)
        or (t.case.dtype != "uint8" and any(s.dtype == "uint8" for s in specs))
    )


def agrees(t: Trial, aspect: Aspect, expected: Named, outcome: Outcome) -> Result | None:
    """The result if the device returned the expected bits under the expected names; else None.

    None too if everything is to be judged.
    """
    if t.settings.whole or t.settings.power or not isinstance(outcome, Computed) or outcome.notes:
        return None
    if len(outcome.tensors) != len(expected):
        return None
    with Unwatched():
        pairs = [(n, x, r) for (n, x), (name, r) in zip(outcome.tensors, expected) if n == name and _same_form(x, r)]
        if len(pairs) != len(expected) or not all(bit_equal(x, r) for _, x, r in pairs):
            return None
        sizes = [(n, x.numel()) for n, x, _ in pairs]
    return Result(aspect, *agreed(tuple(sizes))) if sizes else None


def _same_form(x: Tensor, r: Tensor) -> bool:
    return x.dtype is r.dtype and x.shape == r.shape and x.layout is r.layout is torch.strided


def compare(
    t: Trial,
    bench: Bench,
    aspect: Aspect,
    reference: Outcome,
    outcome: Outcome,
    again: Again,
    parts: dict[str, Part] | None = None,
) -> Result:
    """Judge the outcomes of one aspect. again: reruns the reference, in case of a finding."""
    if isinstance(outcome, Raised):
        return raised(aspect, reference, outcome)
    pass_ = "backward" if aspect in DERIVATIVES else "forward"
    assert isinstance(outcome, Computed)
    theirs = dict(outcome.tensors)
    ours = dict(reference.tensors) if isinstance(reference, Computed) else None
    if parts:
        theirs = {n: x for n, x in theirs.items() if n in parts}
        ours = None if ours is None else {n: x for n, x in ours.items() if n in parts}
    with Unwatched():
        verdict, measures = judge(bench, theirs, ours, pass_, parts)
    if verdict.status.is_finding and ours is not None and _unsteady(t, bench, ours, pass_, again, parts):
        text = f"the reference is unstable: two equal runs of it differ ({verdict.reason})"
        verdict = Verdict(Status.VOID, text, verdict.measure)
    elif verdict.status.is_finding and (ratio := _own_error(t.device, verdict)) > WIDENING_LIMIT:
        text = f"the CPU is {ratio:.3g} budgets off itself, and this device computes with its kernels ({verdict.reason})"
        verdict = Verdict(Status.VOID, text, verdict.measure)
    if t.settings.power and verdict.status is Status.AGREE and aspect is not Aspect.REPEAT:
        with Unwatched():
            probes = power.probe(bench, theirs, ours, pass_, parts, aspect, repr(t.case))
        t.power += [probes] if probes is not None else []
    if outcome.notes:
        text = "ran on the CPU: " + ", ".join(sorted(set(outcome.notes)))
        if verdict.status is Status.AGREE:
            verdict = Verdict(Status.FALLBACK, text, verdict.measure, verdict.tolerance)
        elif verdict.status.is_finding:  # the fallback itself may be at fault: it copies operands and results
            verdict = replace(verdict, reason=f"{verdict.reason} ({text})")
    return Result(aspect, verdict, measures)


def _own_error(device: Device, verdict: Verdict) -> float:
    """The reference's error ratio if the device is the CPU, simulated or not; 0 if the device has kernels of its own.

    A CPU kernel that reads freed memory has another error in every call.
    """
    shares_kernels = device.simulated or device.torch_device.type == "cpu"
    return (verdict.measure and verdict.measure.reference_share) or 0.0 if shares_kernels else 0.0


def _unsteady(t: Trial, bench: Bench, ours: dict[str, Tensor], pass_: str, again: Again, parts: dict[str, Part] | None) -> bool:
    """Whether another run of the reference differs from the first by as much as a finding.

    CPU kernels that read uninitialised memory would cause findings on every device.
    """
    for _ in range(RERUNS):
        _overwrite_freed_memory(t, ours)
        raw = ex.precisely(again, "run")
        if isinstance(raw, Raised):
            return True
        second = {n: x.detach() for n, x in raw if n in ours}
        if set(second) == set(ours) and all(same_bits(second[n], x) for n, x in ours.items()):
            continue
        with Unwatched():
            verdict, _ = judge(bench, second, ours, pass_, parts)
        if verdict.status.is_finding:
            return True
    return False


def _overwrite_freed_memory(t: Trial, ours: dict[str, Tensor]) -> None:
    """Leave other bytes in the memory that the allocator will reuse, in the sizes that a kernel may request."""
    sizes = {x.numel() * x.element_size() for x in (*ours.values(), *(o.base for o in t.inputs.operands))}
    held = [torch.full((n * k,), 77, dtype=torch.uint8) for n in sorted(sizes) for k in (1, 2, 4) if 0 < n * k <= 1 << 24]
    del held


def raised(aspect: Aspect, reference: Outcome, outcome: Raised) -> Result:
    """The result if the device raised."""
    if isinstance(reference, Raised):
        return Result(aspect, Verdict(Status.VOID, f"{BOTH_REFUSE}: {outcome.message}"))
    return Result(aspect, Verdict(RAISED[outcome.kind], f"{outcome.type} in {outcome.stage}: {outcome.message}"))


def is_giant(p: Program, case: Case, inputs: Inputs) -> bool:
    """Whether the results of a call would fill the memory, as of a long transform along another dimension."""
    numbers = [x for x in tree_leaves((inputs.args, inputs.kwargs)) if type(x) is int]
    if case.is_sample or math.prod(sorted((*numbers, *(n for o in inputs.operands for n in o.view.shape)))[-2:]) <= MADE:
        return False
    try:
        args, kwargs = ex.arguments(case, inputs, [o.view.to("meta") for o in inputs.operands], torch_word, "meta")
        results = tree_leaves(p.function(*args, **kwargs))
    except Exception:  # the CPU says then what it takes
        return False
    return sum(x.numel() for x in results if isinstance(x, Tensor)) > MADE
