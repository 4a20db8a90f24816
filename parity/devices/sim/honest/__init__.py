"""Honest devices: simulated devices that differ from the CPU only as real healthy devices do. They are the judge's negative
controls: a finding on one of them is a false alarm.

`parity run --device sim:honest` runs the suite on a device with every kind of honest difference; `--device sim:mps:honest` on
one with the operators of MPS, functions as inexact as its tables allow, and flushing. `SUBSETS` has the kinds
by name. `tally` counts which kinds occurred, and how often a result's bits differed from the CPU's.
"""

from __future__ import annotations

from parity.devices import Fault
from parity.devices.sim.honest import choice, formulas, noise, order

ARITHMETIC = (
    *noise.FUNCTIONS, *order.REDUCTIONS, *order.SCANS, *order.PRODUCTS, *order.CONVOLUTIONS, *order.TRANSFORMS, *formulas.ONCE,
    *formulas.FUSED, *formulas.FORMULAS, *formulas.SOFTMAX, "native_layer_norm",
)  # fmt: skip


SUBSETS: dict[str, tuple[Fault, ...]] = {
    "flushing": noise.flushing(ARITHMETIC),  # first, so that the others get flushed operands
    "noise": noise.functions(),
    "order": order.faults(),
    "duplicates": choice.repeats(),
    "composites": formulas.faults(),
    "choice": choice.faults(),
    "streams": choice.streams(),
}
FAULTS = [fault for group in SUBSETS.values() for fault in group]
KINDS = tuple(fault.id.removeprefix("honest-") for fault in FAULTS)  # as `tally` calls them
