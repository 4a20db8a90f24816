"""`parity audit`: what a model needs that MPS does not have, and how two versions of torch differ."""

from __future__ import annotations

import argparse
from pathlib import Path

from parity.core.errors import UsageError
from parity.engine.reading import read_text
from parity.faces.commands.groups import add_input, add_output, take_rest

HELP = "what a model needs that MPS does not have, and how two versions of torch differ"
ABOUT = """\
What a model needs that MPS does not have (FILE.py), or how two versions of torch differ (--between).

Your model is run on this machine's CPU, forward and backward, composed of operators as MPS composes it. Listed are those that
are missing on MPS or refused, with your line and what to do; then public bugs whose conditions your calls meet. Ends with 0
where all is there, with 1 where something is missing or a finding of class A in a RUN concerns it, with 3 where not all was
seen."""
OF_MODELS = ("--input", "--torch", "--no-backward", "--shapes", "--output")
TEST = ".py"  # how -o names a test for pytest


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    how = (
        "FILE.py[:FUNCTION]: what functions of yours need of MPS, each of which returns a model and its inputs; no device is "
        "needed; a model by its name, timm:resnet18; and run files (.jsonl), whose findings are held against its operators"
    )
    to.add_argument("asked", nargs="*", type=read_text, metavar="MODEL|RUN", help=how)
    add_input(to)
    between = "which operators gained or lost an MPS kernel: two Pythons, virtual environments, wheels or native_functions.yaml"
    to.add_argument("--between", nargs=2, type=read_text, metavar=("OLD", "NEW"), help=between)
    how = "the torch to ask about: a Python, a virtual environment, a wheel for any system, native_functions.yaml"
    to.add_argument("--torch", type=read_text, metavar="PLACE", help=how)
    to.add_argument("--no-backward", action="store_true", help="leave the gradients out")
    how = "compute nothing large, for a model that this machine cannot run; build it under torch.device('meta')"
    to.add_argument("--shapes", action="store_true", help=how)
    how = "also write the answer to this file (JSON); or, as test_on_mps.py, a test that MPS has all that the model needs"
    add_output(to, how)
    take_rest(to, "asked")


def run(o: argparse.Namespace) -> int:
    """Answer one of the two questions; the exit code."""
    o.run = [Path(w) for w in o.asked if w.endswith(".jsonl")]
    models = [w for w in o.asked if not w.endswith(".jsonl")]
    o.model, o.test = "".join(models[:1]), bool(o.output and o.output.suffix == TEST)
    if len(models) + bool(o.between) != 1:
        raise UsageError(
            "audit answers for one model, parity audit FILE.py[:FUNCTION], or compares: parity audit --between OLD NEW"
        )
    if o.model:
        from parity.faces import auditing  # it loads torch

        return auditing.run(o)
    if only := next((w for w in OF_MODELS if getattr(o, w.strip("-").replace("-", "_"))), "RUN" if o.run else ""):
        raise UsageError(f"{only} goes with a model: parity audit FILE.py {only}")
    from parity.devices.operator_table import between
    from parity.history.environments import operator_table
    from parity.report.answers import Kernels
    from parity.report.needs import kernels

    k = between(*map(operator_table, o.between))
    o.answer = Kernels(k.before, k.after, k.gained, k.lost, k.kept)
    print(kernels(k))
    return 1 if k.lost else 0
