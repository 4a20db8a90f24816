"""The checks of a case that follow when its forward ran on both sides, and to which files outside of the package add theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parity.checks import transfer
from parity.checks.trial import Result, Sides, Trial
from parity.core import extensions
from parity.core.errors import CaseError, UsageError
from parity.core.results import Aspect, Status, Verdict


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
