"""What a comparison of a function found, and the failure that carries it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from parity.vocabulary import Status, Verdict


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What was compared: a verdict per tensor (`out`, `out['logits']`, `grad[0.weight]`, `buffer[1.running_mean]`).

    subject: "Net on mps". notes: what was not compared or stands on weaker ground, and work that fell back to the CPU.
    """

    subject: str
    verdicts: tuple[tuple[str, Verdict], ...]
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[tuple[str, Verdict], ...]:
        """The verdicts that are not agreement, in the order of the tensors."""
        return tuple((n, v) for n, v in self.verdicts if v.status is not Status.AGREE)

    @property
    def share(self) -> float:
        """The largest error that was measured, in units of its budget; bit-equal tensors count as 0."""
        return max((v.measure.share or 0.0 for _, v in self.verdicts if v.measure is not None), default=0.0)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        agreed = [f"{n} ({_ratio(v)})" for n, v in self.verdicts if v.status is Status.AGREE]
        lines = [line for n, v in self.findings for line in _told(self.subject, n, v)]
        if agreed:
            lines.append(f"{self.subject}: {len(agreed)} of {len(self.verdicts)} tensors agree: {', '.join(agreed)}")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


class ParityFailure(AssertionError):
    """The device does not do what the CPU does. comparison, verdicts: all tensors, agreeing ones too."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(str(comparison))
        self.comparison = comparison
        self.verdicts = comparison.verdicts


def _ratio(v: Verdict) -> str:
    share = None if v.measure is None else v.measure.share
    return v.measure.screen if share is None and v.measure else f"{share or 0.0:.2g} of the budget"


def _told(subject: str, name: str, v: Verdict) -> Iterator[str]:
    """One finding in the grammar of all of parity's faces."""
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
