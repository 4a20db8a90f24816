"""An aspect that a run was to compare falls out, because something left torch in another mode."""

from acquitted import way

WRONG = """
import torch
from parity.devices import Fault
kept = []
def inference(call):
    result = call.run()
    kept.append(torch.inference_mode())
    kept[-1].__enter__()
    return result
wrong = Fault("wrong", ("mul",), lambda call: call.run_with_gradient(lambda g: g * 1.5), level="function")
"""
HEALTHY = 'from parity.devices import Fault\nFAULTS = [Fault("none", ("mul",), lambda call: call.run())]\n'
STAYS = "import torch\ntorch.kept = torch.inference_mode()\ntorch.kept.__enter__()\n"
ENDS = "import torch\nwith torch.inference_mode():\n    torch.ones(2)\n"
RUN = "parity run add mul --device sim --dtype float32 --examples 8 -n 1 --setup faults.py"
MODEL = """
import torch
def net():
    return torch.nn.Linear(2, 2), torch.ones(3, 2)
"""
TEST = "import torch\ndef test_sinh(parity):\n    parity(torch.sinh, torch.linspace(-1.0, 1.0, 5).requires_grad_())\n"
BACKEND = """
import os, subprocess, sys
path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
argv = [sys.executable, "-m", "parity", "run", "mul", "--device", "sim", "--dtype", "float32", "--examples", "8", "-n", "1"]
sys.exit(subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}).returncode)
"""
PYTEST = """
import subprocess, sys
from parity.core import project as resources
suite = str(resources.folder("conformance"))
options = ["--parity-device", "sim", "--parity-op", "mul", "--parity-dtype", "float32", "--parity-examples", "8"]
argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--parity-faults", "faults.py", suite]
sys.exit(subprocess.run(argv).returncode)
"""


SETUP = {"faults.py": (f"{WRONG}FAULTS = [wrong]\n", HEALTHY), "setup.py": (STAYS, ENDS)}
CAST = "def cast(call):\n    kept.append(torch.autocast('cpu'))\n    kept[-1].__enter__()\n    return call.run()\n"
REPLAY = "parity replay 'mul(float32[3], float32[3])' --device sim --setup faults.py --setup setup.py"
FIXTURE = "pytest test_own.py --parity-device sim --parity-faults faults.py"
OF_TORCH = "importing torch, with the backends that it loads by itself, leaves inference mode"
OF_FILE = {"faults.py": (f"{STAYS}{WRONG}FAULTS = [wrong]\n", f"{ENDS}{HEALTHY}")}


def left_by(fault: str, more: str = "") -> dict[str, str | tuple[str, str]]:
    """A wrong gradient of mul behind a kernel that leaves something."""
    return {"faults.py": (f"{WRONG}{more}FAULTS = [{fault}]\n", HEALTHY)}


WAYS = (
    way("inference mode left by --setup", f"{RUN} --setup setup.py", SETUP, "--setup setup.py leaves inference mode", (2,)),
    way("inference mode left by --setup of a replay", REPLAY, SETUP, "leaves inference mode", (2,)),
    way("inference mode left by the file of --setup", RUN, OF_FILE, "faults.py leaves inference mode", (2,)),
    way(
        "inference mode left by a kernel of another op", f"{RUN} --output run.jsonl",
        left_by('Fault("leaves", ("add",), inference), wrong'), "inference mode",
    ),
    way(
        "inference mode left by a public function", RUN,
        left_by('Fault("leaves", ("mul",), inference, level="function")'), "inference mode",
    ),
    way("autocast left by a kernel", RUN, left_by('Fault("leaves", ("add",), cast)', CAST), "autocast"),
    way(
        "inference mode that a backend brings with torch", "python run.py",
        {"run.py": BACKEND, "sitecustomize.py": (STAYS, "")}, OF_TORCH, (2,),
    ),
    way(
        "inference mode left by a file of models", "parity run '*' models.py --device sim",
        {"models.py": (STAYS + MODEL, ENDS + MODEL)}, "leaves inference mode",
    ),
    way(
        "inference mode left by the device in a test with the fixture", FIXTURE,
        {"test_own.py": TEST, **left_by('Fault("leaves", ("sinh",), inference)')}, "left behind in its process",
    ),
    way(
        "inference mode left by a kernel, in pytest's own run of the suite", "python run.py",
        {"run.py": PYTEST, **left_by('Fault("leaves", ("mul",), inference)')}, "inference mode",
    ),
)  # fmt: skip
