"""What comes first changes what comes after it: ops of a run, files, tests, comparisons of a program."""

from acquitted import Way, way

HEAD = """
import torch
from torch.overrides import TorchFunctionMode
from parity.devices import Fault
kept = []
class Detaching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.detach() if isinstance(result, torch.Tensor) else result
def leaving(act):
    def effect(call):
        result = call.run()
        act()
        return result
    return Fault("first", ("add",), effect)
def enter(mode):
    kept.append(mode)
    mode.__enter__()
wrong = Fault("wrong", ("sinh",), lambda call: call.run_with_gradient(lambda g: g * 1.5), level="function")
"""
HEALTHY = 'from parity.devices import Fault\nFAULTS = [Fault("none", ("sinh",), lambda call: call.run())]\n'
RUN = "parity run add sinh --device sim --dtype float32 --examples 8 -n 1 --setup faults.py"
WRONG = f"{HEAD}FAULTS = [leaving(lambda: enter(torch.inference_mode())), wrong]\n"
FIRST = """
import pytest, torch
from parity import ParityFailure
def test_add(parity):
    try:
        parity(torch.add, torch.ones(2), torch.ones(2))
    except ParityFailure:
        pass
"""
SECOND = "import torch\ndef test_sinh(parity):\n    parity(torch.sinh, torch.linspace(-1.0, 1.0, 5).requires_grad_())\n"
SCRIPT = """
import torch, parity
from parity.devices import load_faults, resolve
device = resolve("sim", load_faults("faults.py"))
try:
    parity.assert_parity(torch.add, torch.ones(2), torch.ones(2), device=device)
except parity.ParityFailure:
    pass
parity.assert_parity(torch.sinh, torch.linspace(-1.0, 1.0, 5).requires_grad_(), device=device)
"""
STAYS = "import torch\ntorch.kept = torch.inference_mode()\ntorch.kept.__enter__()\n"
MODEL = "import torch\ndef {}():\n    return torch.sinh, torch.linspace(-1.0, 1.0, 5).requires_grad_()\n"


def first(what: str, act: str, says: str) -> Way:
    """A run in which the kernel of the first op does something for all that come after it."""
    return way(f"the first op {what}", RUN, {"faults.py": (f"{HEAD}FAULTS = [leaving(lambda: {act})]\n", HEALTHY)}, says)


FAULTS = {"faults.py": (WRONG, HEALTHY)}
PYTEST = "pytest test_a.py test_b.py --parity-device sim --parity-faults faults.py"
HOOK = "torch.nn.modules.module.register_module_forward_hook(lambda *_: None)"
WAYS = (
    way("the first op takes the gradients of the second away", RUN, FAULTS, "sinh"),
    first("replaces the function of the second", "setattr(torch, 'sinh', torch.cosh)", "another torch.sinh"),
    first("seeds the random numbers of all others", "torch.manual_seed(3)", "the seed of random numbers"),
    first("leaves a mode that detaches all results", "enter(Detaching())", "the function modes"),
    first("lets all others raise where a gradient is NaN", "torch.autograd.set_detect_anomaly(True)", "detection of anomalies"),
    first("takes the tangents of the second away", "torch._C._set_fwd_grad_enabled(False)", "forward gradients"),
    first("begins dual numbers", "torch.autograd.forward_ad.enter_dual_level()", "the level of dual numbers"),
    first("flushes the subnormals of all others", "torch.set_flush_denormal(True)", "flushing of subnormals"),
    first("lowers the precision of all others", "torch.set_float32_matmul_precision('medium')", "matmul_precision"),
    first("hooks all modules", HOOK, "hooks on modules"),
    way(
        "a test takes the gradients of the next file's away", PYTEST,
        {"test_a.py": FIRST, "test_b.py": SECOND, **FAULTS}, "test_b.py",
    ),
    way(
        "a comparison takes the gradients of the next one away", "python script.py",
        {"script.py": SCRIPT, **FAULTS}, "grad[input]",
    ),
    way(
        "a file of models takes the gradients of the next one's away",
        "parity run '*' a.py b.py --device sim --setup faults.py",
        {
            "a.py": (STAYS + MODEL.format("first"), MODEL.format("first")),
            "b.py": MODEL.format("second"),
            "faults.py": (f"{HEAD}FAULTS = [wrong]\n", HEALTHY),
        },
        "b.py:second",
    ),
)  # fmt: skip
