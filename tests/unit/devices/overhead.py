"""What a call on the simulated device costs over the CPU's. Run: python tests/unit/devices/overhead.py"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import torch

from parity.devices import Fault, resolve


def microseconds(call: Callable[[], object], number: int = 400) -> float:
    """The best of nine rounds."""
    call()
    return min(timeit.repeat(call, number=number, repeat=9)) / number * 1e6


def main() -> None:
    """One line per operator: CPU, `sim`, `sim:mps` and a device with one fault that never strikes."""
    torch.set_num_threads(1)
    never = Fault("never", ("add", "mm", "sum"), effect=lambda call: call.run(), when=lambda call: False)
    devices = {"sim": resolve("sim"), "sim:mps": resolve("sim:mps"), "faulty": resolve("sim", (never,))}
    a, b, m = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4, 4)
    calls: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
        "add": lambda a, b, m: a + b,
        "mm": lambda a, b, m: a @ m,
        "sum": lambda a, b, m: a.sum(),
        "linear": lambda a, b, m: torch.nn.functional.linear(a, m),
        "view": lambda a, b, m: a.view(12),
    }
    for name, call in calls.items():
        base = microseconds(lambda call=call: call(a, b, m))  # type: ignore[misc]
        line = f"{name:8s} cpu {base:6.1f} us"
        for label, device in devices.items():
            x, y, z = (device.upload(t) for t in (a, b, m))
            line += f"   {label} +{microseconds(lambda call=call, x=x, y=y, z=z: call(x, y, z)) - base:.1f}"  # type: ignore[misc]
        print(line)
    x = devices["sim"].torch_device  # type: ignore[assignment]
    print(
        f"upload {microseconds(lambda: a.to(x)):.1f} us, empty {microseconds(lambda: torch.empty(3, 4, device=x)):.1f} us"  # type: ignore[call-overload]
    )


if __name__ == "__main__":
    main()
