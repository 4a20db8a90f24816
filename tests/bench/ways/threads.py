"""What fails in threads, and what threads or the number of them change for everybody."""

from acquitted import way

HEAD = """
import threading, time
import torch
from parity.devices import Fault
def threads(call):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return call.run()
def of_backward(call):
    torch.autograd.set_multithreading_enabled(True)
    return call.run()
def started(act, wait):
    def effect(call):
        thread = threading.Thread(target=act)
        thread.start()
        if wait:
            thread.join()
        return call.run()
    return effect
def fails():
    raise RuntimeError("lost in a thread")
def dtype():
    torch.set_default_dtype(torch.float64)
def later():
    time.sleep(0.002)
    torch.set_default_dtype(torch.float64)
"""
HEALTHY = 'from parity.devices import Fault\nFAULTS = [Fault("none", ("sigmoid",), lambda call: call.run())]\n'
RUN = "parity run sigmoid --device sim --dtype float32 --examples 8 -n 1 --setup faults.py"
TESTS = "import torch\ndef test_sigmoid(parity):\n    parity(torch.sigmoid, torch.linspace(-1.0, 1.0, 5).requires_grad_())\n"
SCRIPT = """
import threading, torch, parity
from parity.devices import load_faults, resolve
device = resolve("sim", load_faults("faults.py"))
agreed = []
def compare(k):
    agreed.append(parity.assert_parity(torch.sigmoid, torch.linspace(-k, k, 5).requires_grad_(), device=device))
several = [threading.Thread(target=compare, args=(k,)) for k in (1.0, 2.0, 3.0)]
for t in several:
    t.start()
for t in several:
    t.join()
raise SystemExit(len(agreed) != 3)
"""


def planted(effect: str, op: str = "sigmoid", level: str = "kernel") -> dict[str, str | tuple[str, str]]:
    """A file with this fault, and a healthy one."""
    return {"faults.py": (f'{HEAD}FAULTS = [Fault("threads", ("{op}",), {effect}, level="{level}")]\n', HEALTHY)}


FAILS = "started(fails, True)"
FIXTURE = "pytest test_own.py --parity-device sim --parity-faults faults.py"
WAYS = (
    way("a kernel changes the number of threads", RUN, planted("threads"), "the number of threads"),
    way("a kernel of the backward does", RUN, planted("threads", "sigmoid_backward"), "the number of threads"),
    way("a public function does", RUN, planted("threads", level="function"), "the number of threads"),
    way("a kernel lets backward run in threads", RUN, planted("of_backward"), "the threads of backward"),
    way("a thread of a kernel fails", RUN, planted(FAILS), "lost in a thread"),
    way("a thread of a kernel of the backward fails", RUN, planted(FAILS, "sigmoid_backward"), "lost in a thread"),
    way("a thread sets the default dtype of all", RUN, planted("started(dtype, True)"), "the default dtype"),
    way("a thread sets it after the call", RUN, planted("started(later, False)"), "the default dtype"),
    way(
        "a kernel changes the number of threads in a test with the fixture", FIXTURE,
        {"test_own.py": TESTS, **planted("threads")}, "the number of threads",
    ),
    way(
        "a kernel changes it in comparisons of three threads at once", "python script.py",
        {"script.py": SCRIPT, **planted("threads")},
    ),
)  # fmt: skip
