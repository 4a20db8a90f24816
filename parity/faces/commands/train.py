"""`parity train`: the first step and layer of a training that diverge."""

from __future__ import annotations

import argparse

from parity.engine.reading import read_count
from parity.faces import guarded
from parity.faces.commands.groups import add_code, add_device, add_model

HELP = "the first step and layer of a training that diverge"
SETTINGS = ("device", "setup", "faults")
ABOUT = (
    "Train a model on the CPU and on the device, from the same weights with the same batches, and name the first step, layer "
    "and operator of the device that rounding does not explain, in loss, gradients or weights. Each step is judged from the "
    "device's own state, so that differences which only grow from step to step blame nothing. FUNCTION takes no parameters and "
    "returns make and the batches; make(device) returns the model, its optimizer, anything else with a state_dict, and "
    "step(batch), which returns the loss. A model without all that is trained with AdamW and a standard loss. Ends "
    "with 0 where rounding explains all steps, with 1 where it does not."
)


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model(to, "training", "what builds model and optimizer, and the batches")
    to.add_argument("--steps", type=read_count, default=20, metavar="N", help="steps of each training (20 by default)")
    add_device(to)
    add_code(to)


def run(o: argparse.Namespace) -> int:
    """Compare the training, in a process that the device may end; the exit code."""
    if not guarded.inside():
        return guarded.run(o)
    from parity.faces import locating  # it loads torch

    return locating.train(o)
