"""The facts of a case that the judge needs apart from its results."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from parity.catalog.row import Row
from parity.core.results import Verdict
from parity.judging.limits import Limits
from parity.judging.relations import Bound
from parity.oracle.protocol import Oracle
from parity.tolerance import Tables


@dataclass(frozen=True, slots=True)
class Bench:
    """The context in which the results of one case are judged.

    always_use_oracle: measure errors by the truth also where they are known to be small.
    whole: measure against the whole budget also what has the reference's bits, and so agrees, or what a part of the budget,
    which costs less, shows to agree.
    limits: where to record, by result, which errors an agreement rules out; None if nobody asks.
    verdicts: earlier (device, reference, verdict), by (truth name, pass): most destinations of a case hold the same bits.
    """

    row: Row
    tables: Tables
    oracle: Oracle
    bound: Bound | None
    always_use_oracle: bool
    limits: dict[str, Limits] | None = None
    whole: bool = False
    verdicts: dict[tuple[str, str], tuple[Tensor, Tensor | None, Verdict]] = field(default_factory=dict, init=False)

    @property
    def bits_suffice(self) -> bool:
        """Whether nothing is computed for results with the reference's bits, which agree whatever the truth is."""
        return not self.whole and self.limits is None
