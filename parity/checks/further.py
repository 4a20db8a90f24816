"""The checks of a case that follow when its forward ran on both sides, and to which files outside of the package add theirs.

Lists what a case must compare, from its row, dtype, settings and operands before it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from parity.catalog import opinfo
from parity.catalog.row import Row
from parity.checks import transfer
from parity.checks.gauge import GAUGES
from parity.checks.trial import Result, Sides, Trial
from parity.core import extensions
from parity.core.case import TensorSpec
from parity.core.dtypes import COMPLEX, FLOATS
from parity.core.errors import CaseError, UsageError
from parity.core.layout import overlaps
from parity.core.results import Aspect, Status, Verdict
from parity.judging.relations import GAUGE_DEPENDENT
from parity.judging.rules import rule_of


@dataclass(frozen=True, slots=True)
class Check:
    """A check. aspect: of its results; is_due: whether a case is to be compared so, known before it runs; run: compares, and
    adds results of that aspect to those of the trial."""

    aspect: Aspect
    is_due: Callable[[Trial], bool]
    run: Callable[[Trial, Sides], None]


CHECKS = [Check(Aspect.TRANSFER, transfer.is_due, lambda t, s: transfer.check(t, s.there))]


def add(check: Check) -> None:
    """Add a check. Raises UsageError for an aspect that has one, and for a name that is parity's."""
    if check.aspect in tuple(Aspect) or any(c.aspect == check.aspect for c in CHECKS):
        raise UsageError(f"there is a check '{check.aspect}' already; name yours otherwise: Aspect('own-...')")
    CHECKS.append(check)
    extensions.note("check", check.aspect)


def play(t: Trial, s: Sides) -> None:
    """Run those that are due."""
    for c in CHECKS:
        if c.aspect not in t.due:
            continue
        if c.aspect in tuple(Aspect):
            c.run(t, s)
            continue
        try:
            c.run(t, s)
        except CaseError:
            raise
        except Exception as e:  # people's own code: what it raises is the result
            t.results.append(Result(c.aspect, Verdict(Status.ERROR, f"the check raises {type(e).__name__}: {e}")))


TWICE = (*FLOATS, *COMPLEX)  # dtypes of backward of backward
PUSHED = ("float32", "complex64")  # dtypes of forward-mode
# Elements of operands up to which derivatives beyond the first are asked for: each takes as long as ten calls, and kernels that
# err in large tensors alone do so in forward and backward, too.
MANY = 1 << 14


def due(t: Trial) -> set[Aspect]:
    """The aspects in which a case is to be compared. What falls out on the way is taken out by the check that finds the
    reason."""
    if t.case.refused:
        return {Aspect.REFUSAL}
    row, s = t.program.row, t.settings
    own = Aspect.INPLACE if row.forms.mutates else Aspect.FORWARD
    wanted = {own} if s.wants(own) else set()
    wanted.update(c.aspect for c in CHECKS if c.is_due(t))
    if (s.repeat or t.case.under == "deterministic") and row.judged.relation not in ("random", "uninitialised"):
        wanted.add(Aspect.REPEAT)
    if t.program.out and not row.forms.mutates and s.wants(Aspect.OUT):
        wanted.add(Aspect.OUT)
    if t.program.inplace is not None and not row.forms.mutates and s.wants(Aspect.INPLACE) and _takes_its_result(t):
        wanted.add(Aspect.INPLACE)
    return wanted | _derivatives(t) if t.case.under == "grad" else wanted


def _derivatives(t: Trial) -> set[Aspect]:
    row, s, leaves = t.program.row, t.settings, has_leaves(t)
    if not (leaves or row.judged.relation in GAUGES):
        return set()
    wanted = {Aspect.BACKWARD} if s.wants(Aspect.BACKWARD) else set()
    if t.case.numel > MANY and s.only is None and not s.whole:
        return wanted
    # If several numbers go to one place, the one that stays decides every derivative; only the first is checked.
    twice = s.wants_more(Aspect.DOUBLE) and t.case.dtype in TWICE and not row.forms.mutates and row.judged.relation != "unpool"
    if twice and promises(row, "gradgrad"):
        wanted.add(Aspect.DOUBLE)
    pushed = s.wants_more(Aspect.TANGENT) and t.case.dtype in PUSHED and not row.forms.mutates and leaves
    if pushed and rule_of(row).has_tangents and promises(row, "forward_ad"):
        wanted.add(Aspect.TANGENT)
    return wanted


def has_leaves(t: Trial) -> bool:
    """Whether operands are leaves. They are under no_grad too, like the parameters of a model; inference tensors cannot be."""
    row = t.program.row
    return (
        t.case.under != "inference"
        and t.case.dtype in row.grad
        and row.judged.relation not in GAUGE_DEPENDENT
        and any(o.spec.grad and (o.view.is_floating_point() or o.view.is_complex()) for o in t.inputs.operands)
    )


@functools.lru_cache(maxsize=4096)
def promises(row: Row, flag: str) -> bool:
    """Whether torch's test data lists these derivatives for the op; True for a row without an entry, which is tried on the
    reference."""
    known = [opinfo.ENTRIES[n] for n in row.counts.opinfo if n in opinfo.ENTRIES]
    return not known or any(getattr(e, flag) for e in known)


def _takes_its_result(t: Trial) -> bool:
    """Whether the first operand may be written into, as far as its own layout goes."""
    first = t.inputs.operands[0].spec if t.inputs.operands and isinstance(t.case.args[0], (TensorSpec, int)) else None
    return first is not None and not overlaps(first.layout) and not first.on_cpu


def not_derived(t: Trial, *aspects: Aspect) -> None:
    """The reference has no such derivatives here. That is a reason only while torch records gradients at all."""
    if (torch.ones(1, requires_grad=True) * 1).requires_grad:
        t.due -= set(aspects)
