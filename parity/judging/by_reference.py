"""Rounded results without a truth (the op does not run in float64 or differs there): the reference takes its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.core.results import Status, Verdict
from parity.judging.budget import Budget, of_perturbation
from parity.judging.excuses import Excuses, excuses
from parity.judging.limits import Limits
from parity.judging.measures import measure, parts
from parity.judging.promises import modulus, paired
from parity.judging.rounded_result import RoundedResult, agreed, is_outside
from parity.oracle.sensitivity import PERTURBATIONS
from parity.oracle.yardstick import AGAINST_REFERENCE, place

ALONE = "judged against the reference, without a truth in float64"


def judged_by_reference(t: RoundedResult) -> Verdict:
    """The verdict, with as many samples of the sensitivity as the decision needs."""
    if t.tol.ulp is None and t.tol.scale < AGAINST_REFERENCE:
        t = replace(t, tol=replace(t.tol, scale=AGAINST_REFERENCE, origin=place("against the reference")))
    while (verdict := _judged_once(t)) is None:
        pass
    return verdict


def _judged_once(t: RoundedResult) -> Verdict | None:
    """The verdict; None if the oracle now takes more samples and the result must be judged again."""
    bench, b, excused = t.bench, _budget(t), None
    m = measure(t.name, t.device, None, t.truth, b, sums=t.sums)
    if is_outside(m) or bench.limits is not None:
        if is_outside(m) and t.tol.ulp is None and bench.oracle.take_more_samples(PERTURBATIONS):
            return None
        excused = excuses(bench, b, t.truth, t.truth_name, t.f, t.pass_)
        b = excused.widened(b)
        m = measure(
            t.name, t.device, None, t.truth, b, sums=t.sums, ignore_nonfinite=excused.ignore_nonfinite, ignore=excused.ignore
        )
    verdict = replace(t.verdict(m), reason=ALONE, excess=None)
    if verdict.status is Status.AGREE and excused is not None:
        _note_limits(t, b, excused)
    return agreed(verdict, excused)


def _budget(t: RoundedResult) -> Budget:
    """The bound of a function where a table has one, else a perturbation budget.

    Nothing is known of how the terms add up, but running the op in float64 still gives its conditioning.
    """
    if t.tol.ulp is not None:
        return t.budget(None)
    size, moved, u = modulus(t.truth), None, t.f.unit_roundoff
    if (meant := t.bench.oracle.truth(t.truth_name)) is not None and meant.shape == t.truth.shape:
        moved = paired(t.bench.oracle.sensitivity(t.truth_name, u, u), t.truth)
    return of_perturbation(size, moved, t.f, u, t.tol, t.f.smallest)


def _note_limits(t: RoundedResult, b: Budget, excused: Excuses) -> None:
    """Record which errors this agreement rules out, if limits were asked for."""
    if t.bench.limits is None:
        return
    truth = parts(t.truth)
    away = excused.ignore
    loose = ~away & (b.total > 0.5 * np.abs(truth)) & ((truth != 0.0) | (parts(t.device) != 0.0))
    reported_above = np.where(away, np.inf, np.where(np.isfinite(truth), b.total, 0.0))
    t.bench.limits[t.name] = Limits(np.abs(truth), reported_above, away, away & excused.shown, loose, np.inf)
