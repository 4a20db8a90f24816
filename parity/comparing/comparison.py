"""The request for a comparison of a user's function, its result, and the failure that carries it. It says how far a result
that agrees is from the CPU's.

Says how far a result that agrees is from the CPU's, and how much rounding allows.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from parity.comparing.subject import Subject, Wrap, is_dense, original, subject
from parity.core.errors import UsageError
from parity.core.results import Status, Verdict, left_unjudged
from parity.devices import Device
from parity.judging.budget import ulp_at
from parity.judging.limits import Limits, detectable_error
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


SHOWN = 8  # findings that are shown in full; the others are named
LISTED = 400  # most characters of their names
PACKAGE = str(Path(__file__).parents[1]) + os.sep


class ParityWarning(UserWarning):
    """A comparison agrees but covers less than it seems to. It is a warning because pytest hides the output of tests that
    pass."""


class Notes:
    """Remarks in addition to the verdicts. loud: those of `lines` that the caller must see even if everything agrees."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.loud: list[str] = []

    def say(self, text: str, loud: bool = False) -> None:
        """Add a note."""
        self.lines.append(text)
        self.loud += [text] if loud else []

    def anew(self) -> Notes:
        """These without any line, where the comparison begins anew."""
        self.lines.clear()
        self.loud.clear()
        return self

    def warn(self, subject: str) -> None:
        """Issue a ParityWarning for every loud note, at the caller's line."""
        for text in self.loud:
            warn(f"{subject}: {text}")


def warn(text: str) -> None:
    """Issue a ParityWarning at the first line outside of parity."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, ParityWarning, stacklevel=level)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a result's table. where: a tensor, an operator or a step; error: in units of what rounding explains, None
    where none was measured."""

    where: str
    status: Status
    error: float | None = None
    reason: str = ""

    @classmethod
    def of(cls, where: str, v: Verdict) -> Line:
        """The line of a verdict. where: empty for the call as a whole."""
        return cls(where or "the call", v.status, None if v.measure is None else v.measure.share, v.reason)


class Answer(Protocol):
    """What every question about a user's function gives. It agrees exactly if every line of its table does."""

    @property
    def agrees(self) -> bool: ...  # whether all that was asked for agrees

    @property
    def first(self) -> object | None: ...  # what differs first

    @property
    def table(self) -> tuple[Line, ...]: ...  # all that was compared, or that differs


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What was compared: a verdict per tensor (`out`, `out['logits']`, `grad[0.weight]`, `buffer[1.running_mean]`).

    subject: "Net on mps". notes: what was not compared or was judged less strictly, and operators that ran on the CPU. next:
    after a finding, the command that tests the ops that the function called on the device. limits: with `detail`, how large an
    error of each tensor would have been reported. where: where the device diverges, in words.
    differences: how far tensors that agree are from the CPU's. wrong_side: with `compile`, which
    code is wrong on the device: "eager", "compiled", "both", or "" for none. brief: the operator and the line
    that are wrong, in a few words.
    """

    subject: str
    verdicts: tuple[tuple[str, Verdict], ...]
    notes: tuple[str, ...] = ()
    next: str = ""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    dtype: str = ""
    device: str = ""
    where: str = ""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    wrong_side: str = ""
    brief: str = ""

    @property
    def headline(self) -> str:
        """What is wrong, in a few words."""
        if self.brief or not self.findings:
            return self.brief or str(self).partition("\n")[0]
        return next(_finding_lines(self.subject, *self.findings[0])).partition(" (")[0]

    @property
    def findings(self) -> tuple[tuple[str, Verdict], ...]:
        """The verdicts other than agreement, in the order of the tensors."""
        return tuple((n, v) for n, v in self.verdicts if v.status is not Status.AGREE)

    @property
    def agrees(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    @property
    def first(self) -> Line | None:
        """The first finding; None if all agree."""
        return next((line for line in self.table if line.status is not Status.AGREE), None)

    @property
    def table(self) -> tuple[Line, ...]:
        """A line for each tensor, and for what is judged of the call as a whole."""
        return tuple(Line.of(n, v) for n, v in self.verdicts)

    @property
    def share(self) -> float:
        """The largest measured error, in units of its budget; bit-equal tensors count as 0."""
        return max((v.measure.share or 0.0 for _, v in self.verdicts if v.measure is not None), default=0.0)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        agreed = [(n, v) for n, v in self.verdicts if v.status is Status.AGREE]
        findings = self.findings
        shown = findings if len(findings) <= SHOWN + 1 else findings[:SHOWN]
        lines = [f"{self.subject} {self.where}"] if self.where else []
        lines += [line for n, v in shown for line in _finding_lines(self.subject, n, v)]
        if len(shown) < len(findings):
            lines.append(
                f"... and {len(findings) - len(shown)} more tensors: {', '.join(n for n, _ in findings[SHOWN:])[:LISTED]}"
            )
        if agreed:
            total = sum(1 for n, _ in self.verdicts if n)
            many = "" if total == 1 else f"{len(agreed)} of {total} tensors agree; "
            ok = "" if findings else "OK  "
            lines.append(f"{ok}{self.subject}: {many}{'; '.join(_agreement(agreed, self.differences, bool(many)))}")
        rows = {n: f" ({v.tolerance.origin})" for n, v in agreed if v.tolerance is not None}
        lines += [f"  {n}: {detectable_error(known)}{rows.get(n, '')}" for n, known in self.limits.items()]
        lines += [f"note: {n}" for n in self.notes]
        return "\n".join([*lines, f"next: {self.next}"] if self.next else lines)


class ParityFailure(AssertionError):
    """The device's results differ from the CPU's. comparison, verdicts: all tensors, including those that agree."""

    __module__ = "parity"  # where people import it from, and how tracebacks and pytest name it

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(str(comparison))
        self.comparison = comparison
        self.verdicts = comparison.verdicts


def _agreement(agreed: Sequence[tuple[str, Verdict]], apart: Mapping[str, Difference], named: bool) -> Iterator[str]:
    """How far the tensor that is nearest to its limit is from the CPU's, what rounding allows, and what was not judged in every
    element. named: whether there are others."""
    shares = {n: v.measure.share or 0.0 if v.measure else 0.0 for n, v in agreed}
    differing = [n for n in shares if n in apart and apart[n] != EQUAL]
    worst = max(differing or shares, key=lambda n: shares[n])
    if differing:
        yield f"{f'{worst} ' if named else ''}{apart[worst]}"
        yield apart[worst].allowed(dict(agreed)[worst])
    if unknown := [shares[n] for n in shares if n not in apart and shares[n]]:
        yield largest(max(unknown))
    elif not differing:
        yield "equal to the CPU's"
    measures = [(n, v.measure) for n, v in agreed if v.measure is not None]
    yield from (f"{n}: {left_unjudged(m)}" for n, m in measures if m.unjudged)


def _finding_lines(subject: str, name: str, v: Verdict) -> Iterator[str]:
    """One finding, in the same form as in all of parity's reports."""
    m = v.measure
    where = f" in {name}" if name else ""
    scaled = m is not None and m.share is not None and 0.0 < m.share < math.inf
    how = f", {m.share:.3g} times the budget" if scaled and m is not None else f": {v.reason}" if v.reason else ""
    yield f"{subject}: {v.status}{where}{how}" + (f" ({v.tolerance.origin})" if scaled and v.tolerance else "")
    if m is None or not m.device:
        return
    truth = f", truth {m.truth}" if m.truth else ""
    own = "" if m.reference_share is None else f" (reference's own share {m.reference_share:.2g})"
    yield f"  worst at {list(m.index)}: device {m.device}, reference {m.reference or m.truth}{truth}{own}"
    if m.mismatched > 1:
        yield f"  {m.mismatched} of {m.total} elements are outside"


Effort: TypeAlias = Literal["default", "full"]
DEFAULT: Effort = "default"
FULL: Effort = "full"
EFFORTS = DEFAULT, FULL


def effort_of(word: object) -> Effort:
    """The effort that a caller names. Raises UsageError."""
    for effort in EFFORTS:
        if effort == word:
            return effort
    raise UsageError(f"effort is {word!r}; allowed: {', '.join(EFFORTS)}")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A function with its arguments, and how it is to be compared, in the words of `assert_parity`. fail_on, keep_on_cpu: taken
    apart already; wrap: makes what the device runs of the function (a compiler); alone: whether nothing else is compared in
    addition; proof: asked where the results do not decide, for the verdict of the first operator that is wrong by itself on
    the device, AGREE if every one agrees, None if that is not known."""

    fn: Callable[..., Any]
    inputs: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: str | torch.device | Device = "auto"
    backward: bool = True
    atol: float | None = None
    fail_on: tuple[Status, ...] = ()
    keep_on_cpu: tuple[str, ...] = ()
    detail: bool = False
    effort: Effort = DEFAULT
    wrap: Wrap | None = None
    alone: bool = True
    proof: Callable[[], Verdict | None] | None = None

    @property
    def closely(self) -> bool:
        """Whether the truth decides on every result, with all samples of its sensitivity."""
        return self.detail or self.effort == FULL

    def check(self) -> None:
        """Raise UsageError for a word or a number that cannot be meant so."""
        number = self.atol is None or (isinstance(self.atol, Real) and not isinstance(self.atol, bool))
        if not number or (self.atol is not None and not 0 <= self.atol < math.inf):
            raise UsageError(f"atol is {self.atol!r}; give a number that is 0 or more, or None for the tolerance tables alone")
        effort_of(self.effort)

    def subject(self) -> Subject:
        """The function with its arguments. Raises UsageError as `parity.comparing.subject.subject` does."""
        return subject(self.fn, self.inputs, self.kwargs, self.keep_on_cpu)

    def eager(self) -> Subject:
        """The same with the eager code of a compiled function."""
        return subject(original(self.fn), self.inputs, self.kwargs, self.keep_on_cpu)
