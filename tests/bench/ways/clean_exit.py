"""A process that ends with 0 before it has done what it was to do."""

from acquitted import Way, way

HEAD = """
import os, threading
import torch
def good(): return torch.sinh, torch.ones(3)
"""
RUN = "parity run mul --device sim --dtype float32 --examples 3 -n 1"
FAULTS = """
import os
from parity.devices import Fault
FAULTS = [Fault("mul", ("mul",), lambda c: os._exit(0), lambda c: {where})]
"""
WORKER = '"PYTEST_XDIST_WORKER" in os.environ'
SETUP = "import os, sys\nif {where}:\n    os._exit(0)\n"


LOCATE = "parity locate models.py --device sim"


def model(name: str, more: str, says: str) -> Way:
    """A file of models that ends its process."""
    return way(name, f"{RUN} models.py", {"models.py": (HEAD + more, HEAD)}, says)


GONE, UNTIL = "def gone(): return (lambda x: os._exit(0)), torch.ones(3)", "ended before it was done (exit code 0)"
IN_MODELS = SETUP.format(where='"parity.comparing.models" in " ".join(sys.orig_argv)'), SETUP.format(where="False")
OF_WORKER = FAULTS.format(where=f"{WORKER} and c.operands[0].dim() == 2"), FAULTS.format(where="False")
BETWEEN = """import json
def said(thing, say=json.dumps, **how):
    if thing.get('begin') == {'name': 'models.py:other', 'dtype': ''}: os._exit(0)
    return say(thing, **how)
json.dumps = said
def other(): return torch.cosh, torch.ones(3)
"""
WAYS = (
    model("a file of models ends its process when it is read", "os._exit(0)", UNTIL),
    model(
        "a model ends the process while it is being made", "def gone(): os._exit(0)",
        "models.py:gone ends its process while it is being made (exit code 0)",
    ),
    model("a model ends the process when it is called", GONE, "models.py:gone-float32"),
    model("a file of models ends its process between two of them", BETWEEN, UNTIL),
    way(
        "a kernel ends the worker with 0",
        "parity run mul --device sim --dtype float32 --examples 2 -n 1 --skip shrink --power 0 --setup faults.py",
        {"faults.py": OF_WORKER},
    ),
    way(
        "a setup ends the process of the models with 0", f"{RUN} --setup setup.py models.py",
        {"models.py": HEAD, "setup.py": IN_MODELS}, UNTIL,
    ),
    way(
        "a setup ends the examination of the device with 0", f"{RUN} --setup setup.py",
        {"setup.py": (SETUP.format(where=f"not {WORKER}"), SETUP.format(where="False"))}, red=(1, 2, 4),
    ),
    way("a model ends the process of locate with 0", LOCATE, {"models.py": (f"{HEAD}{GONE}\n", HEAD)}, red=(1, 2)),
    way(
        "a model leaves locate with 0 by sys.exit while it is being made", LOCATE,
        {"models.py": (HEAD + "import sys\ndef gone(): sys.exit(0)\n", HEAD)}, red=(1, 2),
    ),
    way(
        "a kernel ends the process of replay with 0",
        "parity replay 'mul(float32[2], float32[2])' --device sim --setup faults.py",
        {"faults.py": (FAULTS.format(where="True"), FAULTS.format(where="False"))},
    ),
)  # fmt: skip
