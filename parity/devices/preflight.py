"""Trust no device: known answers, memory, dtypes and subnormals, before anything is compared on it.

A device may end the process or never come back: `parity.engine.doctor` examines it in a child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from parity.core import dtypes as known
from parity.core import extensions, machine
from parity.core.health import DOCTOR, HEALTHY, SUSPECT, UNUSABLE, Health
from parity.devices.base import Device
from parity.devices.canaries import CANARIES, problem, said
from parity.devices.fingerprint import fingerprint
from parity.devices.guard import guarded, reasons
from parity.devices.refusals import OOM, REFUSED, classify
from parity.devices.resolve import resolve
from parity.devices.setup import refuse_modes, run_setup
from parity.devices.sim.loading import load_faults

# Bytes. A virtual machine may fail at the first, and the last is what a suite of small cases may have in use at once.
SIZES = (1 << 8, 1 << 20, 1 << 26)


def probe(device: Device) -> Health:
    """Examine a device. Whatever it does wrong is a reason, never an exception."""
    with device.active():
        fatal, reasons = _memory(device)
        if fatal:
            return Health(UNUSABLE, (fatal,), (), tuple(device.facts().items()), tuple(_machine(device)))
        reasons += [r for name, run in CANARIES.items() if (r := problem(device, name, run)) is not None]
        supported, broken = _dtypes(device)
        reasons += broken
        facts = [*device.facts().items(), *_subnormals(device, supported), *_precision(device), ("math", math_mode(device))]
        if reasons:
            facts.append((DOCTOR, f"{SUSPECT}: {'; '.join(dict.fromkeys(r.partition(':')[0] for r in reasons))}"))
        about = tuple(_machine(device))
    return Health(SUSPECT if reasons else HEALTHY, tuple(reasons), supported, tuple(facts), about)


def _memory(device: Device) -> tuple[str, list[str]]:
    """Why the device cannot be used at all, or an empty text; and what is wrong with what it allocates."""
    wrong: list[str] = []
    for size in SIZES:
        used = 0
        try:
            used = device.memory().get("allocated", 0)
            back = device.download(torch.add(device.upload(torch.zeros(size, dtype=torch.uint8)), 1))
            device.synchronize()
            if back.numel() != size:
                return f"a tensor of {size} bytes came back with {back.numel()}", wrong
            if bad := int((back != 1).count_nonzero()):
                wrong.append(f"allocation of {size} bytes: 0 + 1 is not 1 in {bad} of them")
        except Exception as e:
            if classify(e) == OOM:
                return f"out of memory at {size} bytes with {used} bytes allocated", wrong
            return f"cannot compute on {size} bytes ({said(e)})", wrong
    return "", wrong


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
                broken.append(f"{name}: raised {said(e)}")
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
        return f"raised {said(e)}"
    if not back[0].any():
        return "lost in the copy"
    return "kept" if all(bool((b == number * 2).all()) for b in back[1:]) else "flushed"


def is_fast(device: Device) -> bool:
    """Whether the tables of fast functions judge it (`tolerances/mps-fast.toml`): Metal's fast math, by what it computes."""
    return device.backend.has_fast_math and math_mode(device) == "fast"


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
        return f"raised {said(e)}"
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
        yield "float32_matmul", f"raised {said(e)}"


def _machine(device: Device) -> Iterator[tuple[str, str]]:
    """Whether the machine is virtual, and the memory of the machine and of the device."""
    yield "virtual machine", machine.is_virtual(device.facts().get("chip", ""))
    if total := machine.total_memory():
        free = machine.free_memory()
        yield "memory of the machine", machine.size(total) + (f", {machine.size(free)} of it free" if free else "")
    words = {"total": "in all", "recommended_max": "recommended at most", "reserved": "reserved", "allocated": "in tensors"}
    figures = device.memory()
    if said := ", ".join(f"{machine.size(figures[key])} {word}" for key, word in words.items() if key in figures):
        yield "memory of the device", said


def examined(name: str, faults: str | None, setup: str | None, note: Callable[[str], None]) -> dict[str, Any]:
    """Examine a device in this process: name, verdict, reasons, dtypes, facts, fingerprint. setup: a file that is run first,
    since it may import the backend; note: is given each operator before its call. Raises as `resolve` and `run_setup` do."""
    refuse_modes()
    if setup:
        run_setup(setup)
    device = resolve(name, load_faults(faults) if faults else ())
    with guarded(device, note) as left:
        health = probe(device)
    if more := reasons(left):
        verdict = SUSPECT if health.verdict == HEALTHY else health.verdict
        health = replace(health, verdict=verdict, reasons=(*more, *health.reasons))
    answer = {"device": device.name, **asdict(health), "fingerprint": asdict(fingerprint(device, health))}
    return answer | {"adds": extensions.added}
