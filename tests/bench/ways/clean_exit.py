"""A process that ends with 0 before it has done what it was to do."""

from acquitted import Way

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


def model(name: str, more: str, says: str) -> Way:
    """A file of models that ends its process."""
    files = {"models.py": HEAD + more}
    return Way(name, (f"{RUN} models.py",), files=files, healthy={"models.py": HEAD}, says=says)


WAYS = (
    model("a file of models ends its process when it is read", "os._exit(0)", "ended before it was done (exit code 0)"),
    model(
        "a model ends the process while it is being made",
        "def gone(): os._exit(0)",
        "models.py:gone ends its process while it is being made (exit code 0)",
    ),
    model(
        "a model ends the process when it is called",
        "def gone(): return (lambda x: os._exit(0)), torch.ones(3)",
        "models.py:gone-float32",
    ),
    model(
        "a file of models ends its process between two of them",
        "import json\n"
        "def said(thing, say=json.dumps, **how):\n"
        "    if thing.get('begin') == {'name': 'models.py:other', 'dtype': ''}: os._exit(0)\n"
        "    return say(thing, **how)\n"
        "json.dumps = said\n"
        "def other(): return torch.cosh, torch.ones(3)\n",
        "ended before it was done (exit code 0)",
    ),
    Way(
        "a kernel ends the worker with 0",
        ("parity run mul --device sim --dtype float32 --examples 2 -n 1 --skip shrink --power 0 --setup faults.py",),
        files={"faults.py": FAULTS.format(where=f"{WORKER} and c.operands[0].dim() == 2")},
        healthy={"faults.py": FAULTS.format(where="False")},
    ),
    Way(
        "a setup ends the process of the models with 0",
        (f"{RUN} --setup setup.py models.py",),
        files={"models.py": HEAD, "setup.py": SETUP.format(where='"parity.comparing.models" in " ".join(sys.orig_argv)')},
        healthy={"setup.py": SETUP.format(where="False")},
        says="ended before it was done (exit code 0)",
    ),
    Way(
        "a setup ends the examination of the device with 0",
        (f"{RUN} --setup setup.py",),
        files={"setup.py": SETUP.format(where=f"not {WORKER}")},
        healthy={"setup.py": SETUP.format(where="False")},
        red=(1, 2, 4),
    ),
    Way(
        "a model ends the process of locate with 0",
        ("parity locate models.py --device sim",),
        files={"models.py": HEAD + "def gone(): return (lambda x: os._exit(0)), torch.ones(3)\n"},
        healthy={"models.py": HEAD},
        red=(1, 2),
    ),
    Way(
        "a model leaves locate with 0 by sys.exit while it is being made",
        ("parity locate models.py --device sim",),
        files={"models.py": HEAD + "import sys\ndef gone(): sys.exit(0)\n"},
        healthy={"models.py": HEAD},
        red=(1, 2),
    ),
    Way(
        "a kernel ends the process of replay with 0",
        ("parity replay 'mul(float32[2], float32[2])' --device sim --setup faults.py",),
        files={"faults.py": FAULTS.format(where="True")},
        healthy={"faults.py": FAULTS.format(where="False")},
    ),
)
