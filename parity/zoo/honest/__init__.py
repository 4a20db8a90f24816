"""Honest devices: simulated devices that differ from the CPU only as real healthy devices do. They are the judge's negative
controls: a finding on one of them is a false alarm.

`parity run --device sim --faults parity.zoo.honest` runs the suite on one with every kind of honesty; `SUBSETS` has the kinds
by name, `ON_MPS` what goes with the profile and the tables of MPS. Which kinds occurred, and how often an answer's bits were
not the CPU's, is counted in `tally`.
"""

from __future__ import annotations

from parity import tolerance
from parity.devices import Fault
from parity.zoo.honest import choice, flushing, formulas, noise, order, repeats, streams
from parity.zoo.honest.noise import Bounds

ARITHMETIC = (
    *noise.FUNCTIONS, *order.REDUCTIONS, *order.SCANS, *order.PRODUCTS, *order.CONVOLUTIONS, *order.TRANSFORMS, *formulas.ONCE,
    *formulas.FUSED, *formulas.FORMULAS, *formulas.SOFTMAX, "native_layer_norm",
)  # fmt: skip


def subsets(tables: tolerance.Tables) -> dict[str, tuple[Fault, ...]]:
    """The kinds by name, with functions as inexact as these tables allow."""
    bounds = Bounds(tables)
    return {
        "noise": noise.functions(bounds),
        "order": order.faults(),
        "duplicates": repeats.faults(),
        "composites": formulas.faults(bounds),
        "choice": choice.faults(),
        "streams": streams.faults(),
    }


def _all(kinds: dict[str, tuple[Fault, ...]]) -> list[Fault]:
    return [fault for group in kinds.values() for fault in group]


SUBSETS = subsets(tolerance.load("sim"))
FAULTS = _all(SUBSETS)
FLUSHING = flushing.faults(ARITHMETIC)
# For the profile sim:mps judged by MPS's tables, which alone declare flushing.
ON_MPS = [*FLUSHING, *_all(subsets(tolerance.load("mps")))]
