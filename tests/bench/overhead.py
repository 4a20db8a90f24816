"""What a call on the simulated device costs over the CPU's, in microseconds: `python tests/bench/overhead.py`.

Every round times the CPU and each device in turn, so that a slow moment of the machine meets all of them; the least of all
rounds is printed, then the difference. One thread; backward runs on the calling thread, as the devices ask for.
"faulty" is `sim` with a fault on the kernels named here that never strikes; "other fault" has one on an operator not called.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices import Fault, resolve

Work = Callable[[], object]
NAMES = ("add", "mm", "sum", "linear", "linear_backward", "tanh", "tanh_backward")


def works(place: torch.device | str) -> dict[str, Work]:
    """The calls, on tensors of that device."""
    a, b, m = (torch.ones(*shape).to(place) for shape in ((3, 4), (3, 4), (4, 4)))
    x, w, bias = (torch.ones(*shape).to(place).requires_grad_() for shape in ((3, 4), (5, 4), (5,)))
    g = torch.ones(3, 5).to(place)
    h = torch.ones(3, 4).to(place)
    out = torch.ones(3, 4).to(place)

    def tanh() -> tuple[Tensor, ...]:
        return torch.autograd.grad(torch.tanh(x), x, h)

    return {
        "add": lambda: a + b,
        "mm": lambda: a @ m,
        "sum": lambda: a.sum(),
        "view": lambda: a.view(12),
        "add_": lambda: out.add_(b),
        "add out=": lambda: torch.add(a, b, out=out),
        "linear fwd": lambda: F.linear(x, w, bias),
        "linear fwd+bwd": lambda: torch.autograd.grad(F.linear(x, w, bias), (x, w, bias), g),
        "tanh fwd+bwd": tanh,
        "upload": lambda: h.to("cpu", copy=True).to(place),
    }


def main(argv: list[str]) -> int:
    """Print the table; 1 with --limit where add, mm or sum cost more than that over the CPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of every call (default 40)")
    parser.add_argument("--number", type=int, default=200, help="calls per round (default 200)")
    parser.add_argument("--limit", type=float, help="fail where add, mm or sum cost more microseconds over the CPU")
    o = parser.parse_args(argv)
    torch.set_num_threads(1)
    fault = Fault("never", NAMES, lambda call: call.run(), lambda call: False)
    other = Fault("other", ("erfinv",), lambda call: call.run())
    devices = {
        "sim": resolve("sim"),
        "sim:mps": resolve("sim:mps"),
        "other fault": resolve("sim", (other,)),
        "faulty": resolve("sim", (fault,)),
    }
    table = {"cpu": works("cpu")} | {label: works(d.torch_device) for label, d in devices.items()}
    print(f"torch {torch.__version__}, least of {o.rounds} rounds of {o.number} calls, microseconds per call (over the CPU)")
    print(f"{'':16s}{'cpu':>8s}" + "".join(f"{label:>20s}" for label in devices))
    dear = False
    for name in table["cpu"]:
        best = dict.fromkeys(table, float("inf"))
        for _ in range(o.rounds):
            for label, calls in table.items():
                best[label] = min(best[label], timeit.timeit(calls[name], number=o.number) / o.number * 1e6)
        over = {label: best[label] - best["cpu"] for label in devices}
        cells = "".join(f"{best[label]:10.1f} {f'(+{over[label]:.1f})':>9s}" for label in devices)
        print(f"{name:16s}{best['cpu']:8.1f}{cells}", flush=True)
        dear |= o.limit is not None and name in ("add", "mm", "sum") and over["sim"] > o.limit
    return int(dear)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
