"""Trust no device: known answers, memory, dtypes and subnormals, before anything is compared on it.

`python -m parity.devices.preflight NAME [--faults FILE] [--setup FILE]` prints one JSON line, so that a device that ends the
process or never comes back is found out in a child.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.core import dtypes as known
from parity.core.errors import ParityError
from parity.devices.base import Device
from parity.devices.fingerprint import fingerprint
from parity.devices.health import HEALTHY, SUSPECT, UNUSABLE, Health
from parity.devices.refusals import OOM, REFUSED, classify
from parity.devices.resolve import resolve
from parity.devices.setup import run_setup
from parity.devices.sim.loading import load_faults

SIZES = (1 << 10, 1 << 20, 1 << 26)  # bytes; the last is what a suite of small cases may have in use at once
# Largest absolute error of a canary. Inputs are whole numbers from -4 to 4, so that sums of products are exact in float32
# in whatever order, and in any reduced matmul precision too. A convolution may go by way of a transform with fractions.
BOUNDS = {"softmax": 1e-5, "conv2d": 1e-2}


def probe(device: Device) -> Health:
    """Examine a device. Whatever it does wrong is a reason, never an exception."""
    with device.active():
        if (fatal := _memory(device)) is not None:
            return Health(UNUSABLE, (fatal,), (), tuple(device.facts().items()))
        reasons = [r for name, run in CANARIES.items() if (r := _canary(device, name, run)) is not None]
        supported, broken = _dtypes(device)
        reasons += broken
        facts = (*device.facts().items(), *_subnormals(device, supported), *_precision(device), ("math", math_mode(device)))
    return Health(SUSPECT if reasons else HEALTHY, tuple(reasons), supported, facts)


def _said(e: BaseException) -> str:
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}"


def _memory(device: Device) -> str | None:
    """Why the device cannot be used at all, or None. Some hosted machines fail at the first byte, with none in use."""
    used = 0
    for size in SIZES:
        try:
            used = device.memory().get("allocated", 0)
            back = device.download(torch.add(device.upload(torch.zeros(size, dtype=torch.uint8)), 1))
            device.synchronize()
            if back.numel() != size:
                return f"a tensor of {size} bytes came back with {back.numel()}"
        except Exception as e:
            if classify(e) == OOM:
                return f"out of memory at {size} bytes with {used} bytes allocated"
            return f"cannot compute on {size} bytes ({_said(e)})"
    return None


# ----------------------------------------------------------------------------------------------------------- known answers


def _integers(*shape: int) -> Tensor:
    """Whole numbers from -4 to 4, no two neighbours alike, as float32."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + 3) % 9 - 4).to(torch.float32).reshape(shape)


Place = Callable[[Tensor], Tensor]  # from the CPU to where it is to run: the identity, float64, or an upload
Canary = Callable[[Place], Tensor]


def _strided_copy(at: Place) -> Tensor:
    return at(_integers(6, 8)).t()[1::2, 1:].clone()


def _into_stepped(at: Place) -> Tensor:
    base = at(torch.zeros(6, 8))
    base[1:, ::2].copy_(at(_integers(4, 5)).t())
    base[0, ::3].add_(at(_integers(3)))
    return base


CANARIES: dict[str, Canary] = {
    "copy": lambda at: at(_integers(5, 7)) + 0,
    "copy of a strided view": _strided_copy,
    "write into a strided view": _into_stepped,
    "sum": lambda at: at(_integers(33, 65)).sum(1),
    "cumsum": lambda at: at(_integers(5, 40)).cumsum(-1),
    "matmul": lambda at: at(_integers(17, 33)) @ at(_integers(33, 9)),
    "matmul, transposed": lambda at: at(_integers(33, 17)).t() @ at(_integers(9, 33)).t(),
    "matmul, batched": lambda at: at(_integers(3, 5, 7)) @ at(_integers(3, 7, 4)),
    "linear, 2-D": lambda at: F.linear(at(_integers(6, 16)), at(_integers(5, 16))),
    "linear, 2-D, bias": lambda at: F.linear(at(_integers(6, 16)), at(_integers(5, 16)), at(_integers(5))),
    "linear, 3-D": lambda at: F.linear(at(_integers(2, 6, 16)), at(_integers(5, 16))),
    "linear, 3-D, bias": lambda at: F.linear(at(_integers(2, 6, 16)), at(_integers(5, 16)), at(_integers(5))),
    "linear, 1-D input": lambda at: F.linear(at(_integers(16)), at(_integers(5, 16)), at(_integers(5))),
    "conv2d": lambda at: F.conv2d(at(_integers(2, 3, 8, 8)), at(_integers(4, 3, 3, 3)), at(_integers(4)), padding=1),
    "softmax": lambda at: at(_integers(5, 33)).softmax(-1),
}


def _canary(device: Device, name: str, run: Canary) -> str | None:
    """What is wrong with this one, or None. The answer is computed in float64 on the CPU from the same whole numbers."""
    truth = run(lambda t: t.to(torch.float64))
    try:
        answer = device.download(run(device.upload))
        device.synchronize()
    except Exception as e:
        return f"{name}: raised {_said(e)}"
    if answer.shape != truth.shape:
        return f"{name}: shape {list(answer.shape)}, should be {list(truth.shape)}"
    off = (answer.to(torch.float64) - truth).abs()
    bad = ~(off <= BOUNDS.get(name, 0.0))  # NaN is bad
    if not bad.any():
        return None
    worst = int(torch.where(off.isnan(), torch.inf, off).argmax())
    got, right = answer.flatten()[worst].item(), truth.flatten()[worst].item()
    return f"{name}: {int(bad.sum())} of {bad.numel()} elements are wrong, e.g. {got:g} for {right:g}"


# --------------------------------------------------------------------------------------------------------- what it can hold


def _dtypes(device: Device) -> tuple[tuple[str, ...], list[str]]:
    """Names of the dtypes that work, and what is wrong with those that neither work nor are refused."""
    supported, broken = [], []
    for name in known.FACTS:
        dtype = getattr(torch, name)
        ones = torch.ones(3, dtype=dtype)
        try:
            # Addition is not there for the unsigned types beyond 8 bits on every backend; moving the data is what counts.
            on_device = device.upload(ones)
            if not name.startswith("uint") or name == "uint8":
                # Not by `+`: Python turns a TypeError of that into one of its own, and the refusal would be lost.
                on_device = torch.add(on_device, on_device)
                ones = ones + ones
            back = device.download(on_device)
        except Exception as e:
            if classify(e) != REFUSED:
                broken.append(f"{name}: raised {_said(e)}")
            continue
        if back.dtype != dtype or not torch.equal(back, ones):
            broken.append(f"{name}: 1 + 1 gave {back.tolist()} in {str(back.dtype).removeprefix('torch.')}")
        else:
            supported.append(name)
    return tuple(supported), broken


def _subnormals(device: Device, supported: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Per float dtype: whether twice and half a subnormal number are kept or flushed to zero."""
    for name in known.FLOATS:
        if name in supported:
            yield f"subnormals {name}", _subnormal(device, known.FACTS[name])


def _subnormal(device: Device, facts: known.DtypeFacts) -> str:
    number = torch.tensor([facts.smallest * 4] * 8, dtype=torch.float64).to(getattr(torch, facts.name))
    try:
        held = device.upload(number)
        back = [device.download(t) for t in (held, held * 2, held + held)]
    except Exception as e:
        return f"raised {_said(e)}"
    if not back[0].any():
        return "lost in the copy"
    return "kept" if all(bool((b == number * 2).all()) for b in back[1:]) else "flushed"


def is_fast(device: Device) -> bool:
    """Whether the tables of fast functions judge it (`tolerances/mps-fast.toml`): Metal's fast math, by what it computes."""
    return device.name.partition(":")[0] == "mps" and math_mode(device) == "fast"


def math_mode(device: Device) -> str:
    """Whether float32 functions are precise or fast: the worst of exp and log against Metal's precise bound of 4 ULP."""
    x = torch.linspace(1.25, 40.0, 512)
    worst = 0.0
    try:
        for function in (torch.exp, torch.log):
            truth = function(x.double())
            spacing = torch.nextafter(truth.float(), torch.tensor(torch.inf)).double() - truth.float().double()
            off = (device.download(function(device.upload(x))).double() - truth).abs() / spacing
            worst = max(worst, float(off.nan_to_num(torch.inf).max()))
    except Exception as e:
        return f"raised {_said(e)}"
    return "precise" if worst <= 5.0 else "fast"


def _precision(device: Device) -> Iterator[tuple[str, str]]:
    """The float32 matmul precision that is set, and the one that the device shows: bits that survive a product."""
    yield "float32_matmul_precision", torch.get_float32_matmul_precision()
    try:
        for bits, word in ((23, "float32"), (10, "tf32 or float16"), (7, "bfloat16")):
            # 1 + 2^-bits needs that many significand bits; a product with the identity must hand it on.
            x = torch.full((32, 32), 1.0 + 2.0**-bits)
            back = device.download(device.upload(x) @ device.upload(torch.eye(32)))
            if torch.equal(back, x):
                yield "float32_matmul", word
                return
        yield "float32_matmul", "below bfloat16"
    except Exception as e:
        yield "float32_matmul", f"raised {_said(e)}"


# ------------------------------------------------------------------------------------------------------- as a child process


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON line: name, verdict, reasons, dtypes, facts, fingerprint; or error and exit_code. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m parity.devices.preflight", description="Examine a device.")
    parser.add_argument("name")
    parser.add_argument("--faults", default=None, metavar="FILE")
    parser.add_argument("--setup", default=None, metavar="FILE")
    options = parser.parse_args(argv)
    try:
        if options.setup:  # before the device is looked for: it may import the backend
            run_setup(options.setup)
        device = resolve(options.name, load_faults(options.faults) if options.faults else ())
    except ParityError as e:
        print(json.dumps({"error": str(e), "exit_code": e.exit_code}))
        return 0
    health = probe(device)
    print(json.dumps({"device": device.name, **asdict(health), "fingerprint": asdict(fingerprint(device, health))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
