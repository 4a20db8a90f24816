"""The bench a case is judged at: what the judge knows of it beside the results."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from parity.catalog.row import Row
from parity.judging.limits import Limits
from parity.judging.relations import Bound
from parity.swift import swift
from parity.tolerance import Tables
from parity.truth.protocol import Oracle
from parity.vocabulary import Verdict


@swift
@dataclass(frozen=True, slots=True)
class Bench:
    """What the judge knows of a case beside the results. insist: no cheap screens, everything goes to the oracle.
    limits: where to note what each agreement excludes, by result; None where nobody asks.
    told: by the truth's name and the pass, what the oracle said of which tensors: most destinations hold the same bits."""

    row: Row
    tables: Tables
    oracle: Oracle
    bound: Bound | None
    insist: bool
    limits: dict[str, Limits] | None = None
    told: dict[tuple[str, str], tuple[Tensor, Tensor | None, Verdict]] = field(default_factory=dict, init=False)
