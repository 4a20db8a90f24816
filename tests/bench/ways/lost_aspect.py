"""An aspect that a run was to compare falls out, because something left torch in another mode."""

from acquitted import Way

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
BOTH = {"faults.py": f"{WRONG}FAULTS = [wrong]\n", "setup.py": STAYS}
BOTH_HEALTHY = {"faults.py": HEALTHY, "setup.py": ENDS}
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
from parity.core import resources
suite = str(resources.folder("conformance"))
options = ["--parity-device", "sim", "--parity-op", "mul", "--parity-dtype", "float32", "--parity-examples", "8"]
argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "--parity-faults", "faults.py", suite]
sys.exit(subprocess.run(argv).returncode)
"""


def left_by(fault: str) -> dict[str, str]:
    """A wrong gradient of mul behind a kernel that leaves something."""
    return {"faults.py": f"{WRONG}FAULTS = [{fault}, wrong]\n"}


WAYS = (
    Way(
        "inference mode left by --setup",
        (f"{RUN} --setup setup.py",),
        files=BOTH,
        healthy=BOTH_HEALTHY,
        red=(2,),
        says="--setup setup.py leaves inference mode",
    ),
    Way(
        "inference mode left by --setup of a replay",
        ("parity replay 'mul(float32[3], float32[3])' --device sim --setup faults.py --setup setup.py",),
        files=BOTH,
        healthy=BOTH_HEALTHY,
        red=(2,),
        says="leaves inference mode",
    ),
    Way(
        "inference mode left by the file of --setup",
        (RUN,),
        files={"faults.py": f"{STAYS}{WRONG}FAULTS = [wrong]\n"},
        healthy={"faults.py": f"{ENDS}{HEALTHY}"},
        red=(2,),
        says="faults.py leaves inference mode",
    ),
    Way(
        "inference mode left by a kernel of another op",
        (f"{RUN} --output run.jsonl",),
        files=left_by('Fault("leaves", ("add",), inference)'),
        healthy={"faults.py": HEALTHY},
        says="inference mode",
    ),
    Way(
        "inference mode left by a public function",
        (RUN,),
        files={"faults.py": f'{WRONG}FAULTS = [Fault("leaves", ("mul",), inference, level="function")]\n'},
        healthy={"faults.py": HEALTHY},
        says="inference mode",
    ),
    Way(
        "autocast left by a kernel",
        (RUN,),
        files={
            "faults.py": f"{WRONG}def cast(call):\n    kept.append(torch.autocast('cpu'))\n    kept[-1].__enter__()\n"
            '    return call.run()\nFAULTS = [Fault("leaves", ("add",), cast)]\n'
        },
        healthy={"faults.py": HEALTHY},
        says="autocast",
    ),
    Way(
        "inference mode that a backend brings with torch",
        ("python run.py",),
        files={"run.py": BACKEND, "sitecustomize.py": STAYS},
        healthy={"sitecustomize.py": ""},
        red=(2,),
        says="importing torch, with the backends that it loads by itself, leaves inference mode",
    ),
    Way(
        "inference mode left by a file of models",
        ("parity run '*' models.py --device sim",),
        files={"models.py": f"{STAYS}{MODEL}"},
        healthy={"models.py": f"{ENDS}{MODEL}"},
        says="leaves inference mode",
    ),
    Way(
        "inference mode left by the device in a test with the fixture",
        ("pytest test_own.py --parity-device sim --parity-faults faults.py",),
        files={"test_own.py": TEST, "faults.py": f'{WRONG}FAULTS = [Fault("leaves", ("sinh",), inference)]\n'},
        healthy={"faults.py": HEALTHY},
        says="left behind in its process",
    ),
    Way(
        "inference mode left by a kernel, in pytest's own run of the suite",
        ("python run.py",),
        files={"run.py": PYTEST, "faults.py": f'{WRONG}FAULTS = [Fault("leaves", ("mul",), inference)]\n'},
        healthy={"faults.py": HEALTHY},
        says="inference mode",
    ),
)
