"""Trust no device: known answers, memory, dtypes and subnormals, before anything is compared on it.

A device may end the process or never come back: `parity.engine.doctor` examines it in a child.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.core import dtypes as known
from parity.core import extensions, machine, state
from parity.core.devices import DOCTOR, HEALTHY, SUSPECT, UNUSABLE, Health
from parity.core.observer import Functions, lies_on
from parity.core.processes import deadly
from parity.devices.base import Device, fingerprint
from parity.devices.refusals import OOM, REFUSED, classify, words
from parity.devices.resolve import resolve
from parity.devices.setup import load_faults, refuse_modes, run_setup

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


# --------------------------------------------------------------------------------------------------- the known answers
# Operands are whole numbers from -4 to 4, so that sums of products are exact in float32 in whatever order, and in any reduced
# precision of products, too.

Place = Callable[[Tensor], Tensor]  # from the CPU to where it is to run: float64 for the truth, or an upload
Canary = Callable[[Place], Tensor]
DEEP = 40_000  # terms of a sum: more than a 16-bit number counts
# Largest absolute error of a canary; the others are exact. A convolution may go by way of a transform with fractions, and
# attention multiplies its weights in the precision that is set for products.
BOUNDS = {"softmax": 1e-5, "layer_norm": 1e-5, "conv2d": 1e-2, "attention": 1e-2, "attention, causal": 1e-2}


def said(e: BaseException) -> str:
    """An exception in one line."""
    try:
        text = str(e)
    except Exception as broken:  # str() of a device's exception may fail, too
        text = f"(its message cannot be made: {type(broken).__name__})"
    return f"{type(e).__name__}: {(text.splitlines() or [''])[0][:200]}"


def _integers(*shape: int) -> Tensor:
    """Whole numbers from -4 to 4, no two neighbours alike, as float32."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + 3) % 9 - 4).to(torch.float32).reshape(shape)


def _strided_copy(at: Place) -> Tensor:
    return at(_integers(6, 8)).t()[1::2, 1:].clone()


def _into_stepped(at: Place) -> Tensor:
    base = at(torch.zeros(6, 8))
    base[1:, ::2].copy_(at(_integers(4, 5)).t())
    base[0, ::3].add_(at(_integers(3)))
    return base


def _index_put(at: Place) -> Tensor:
    """Added where an index stands several times, and stored where each stands once."""
    twice = at(torch.tensor([3, 0, 3, 5, 0, 3])), at(_integers(6, 4))
    once = at(torch.tensor([4, 1])), at(_integers(2, 4))
    base = at(_integers(6, 4)).index_put(twice[:1], twice[1], accumulate=True)
    return base.index_put_(once[:1], once[1])


def _attention(at: Place, causal: bool) -> Tensor:
    q, k, v = (at(_integers(2, 2, n, 8)) for n in (9, 9, 9))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


CANARIES: dict[str, Canary] = {
    "copy": lambda at: at(_integers(5, 7)) + 0,
    "copy of a strided view": _strided_copy,
    "write into a strided view": _into_stepped,
    "index_put, duplicates": _index_put,
    "sum": lambda at: at(_integers(33, 65)).sum(1),
    "cumsum": lambda at: at(_integers(5, 40)).cumsum(-1),
    "matmul": lambda at: at(_integers(17, 33)) @ at(_integers(33, 9)),
    "matmul, transposed": lambda at: at(_integers(33, 17)).t() @ at(_integers(9, 33)).t(),
    "matmul, batched": lambda at: at(_integers(3, 5, 7)) @ at(_integers(3, 7, 4)),
    f"matmul, K = {DEEP}": lambda at: at(_integers(3, DEEP)) @ at(_integers(DEEP, 4)),
    "linear, 2-D": lambda at: F.linear(at(_integers(6, 16)), at(_integers(5, 16))),
    "linear, 2-D, bias": lambda at: F.linear(at(_integers(6, 16)), at(_integers(5, 16)), at(_integers(5))),
    "linear, 3-D": lambda at: F.linear(at(_integers(2, 6, 16)), at(_integers(5, 16))),
    "linear, 3-D, bias": lambda at: F.linear(at(_integers(2, 6, 16)), at(_integers(5, 16)), at(_integers(5))),
    "linear, 1-D input": lambda at: F.linear(at(_integers(16)), at(_integers(5, 16)), at(_integers(5))),
    "conv2d": lambda at: F.conv2d(at(_integers(2, 3, 8, 8)), at(_integers(4, 3, 3, 3)), at(_integers(4)), padding=1),
    "softmax": lambda at: at(_integers(5, 33)).softmax(-1),
    "layer_norm": lambda at: F.layer_norm(at(_integers(5, 33)), (33,), at(_integers(33)), at(_integers(33) + 1)),
    "attention": lambda at: _attention(at, False),
    "attention, causal": lambda at: _attention(at, True),
}


def _exactly(t: Tensor) -> Tensor:
    return t.to(torch.float64) if t.is_floating_point() else t


def problem(device: Device, name: str, run: Canary) -> str | None:
    """What is wrong with this one, or None. The answer is computed in float64 on the CPU from the same whole numbers."""
    truth = run(_exactly)
    try:
        answer = device.download(run(device.upload))
        device.synchronize()
    except Exception as e:
        return f"{name}: raised {said(e)}"
    if answer.shape != truth.shape:
        return f"{name}: shape {list(answer.shape)}, should be {list(truth.shape)}"
    off = (answer.to(torch.float64) - truth).abs()
    bad = ~(off <= BOUNDS.get(name, 0.0))  # NaN is bad
    if not bad.any():
        return None
    worst = int(torch.where(off.isnan(), torch.inf, off).argmax())
    got, right = answer.flatten()[worst].item(), truth.flatten()[worst].item()
    return f"{name}: {int(bad.sum())} of {bad.numel()} elements are wrong, e.g. {got:g} for {right:g}"


# ------------------------------------------------------------------------------------------- what the examination calls
# Noted before each call, so that one that ends the process has a name, and computed on the CPU where one did so before. Names
# come from a variable of the environment, because every process of a run needs them. What one leaves in torch's state is put
# back at once: a mode that is entered by each call makes every later call slower, without end.

# What uploads and downloads call: without them nothing can be done.
ATEN_TRANSFERS = ("to", "resolve_conj", "resolve_neg", "detach")


class _Calls:
    """Notes each public function, turns whatever it raises into an exception with words, and puts back what it leaves in
    torch's state. left: where that goes, by the function's name."""

    def __init__(self, device: Device, note: Callable[[str], object], left: dict[str, str]) -> None:
        self._device, self._without, self._left, self._note = device, deadly(), left, note

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An observer of public functions."""
        name = getattr(func, "__name__", str(func))
        if name in self._without and name not in ATEN_TRANSFERS and lies_on(self._device.torch_device.type, (args, kwargs)):
            return self._on_cpu(func, args, kwargs)
        self._note("" if name in ATEN_TRANSFERS else name)
        if name.startswith("_set_"):  # torch.no_grad and the like: the examination's own
            return func(*args, **kwargs)
        before = state.whole()
        try:
            return func(*args, **kwargs)
        except BaseException as e:
            said = words(e)
            if isinstance(e, Exception) and said == str(e):
                raise
            raise RuntimeError(f"{name} raised {type(e).__name__}: {said}") from None
        finally:
            if state.whole() != before:
                self._left.setdefault(name, "; ".join(state.put_back(before, state.WHOLE)))

    def _on_cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__.endswith("_"):  # what it writes would stay on the CPU
            raise RuntimeError(f"{func.__name__} ended the process before")

        def down(x: Any) -> Any:
            return x.detach().to("cpu") if lies_on(self._device.torch_device.type, x) else x

        with torch._C.DisableTorchFunction():
            result = func(*tree_map(down, args), **tree_map(down, kwargs))
            return tree_map(lambda x: self._device.upload(x) if isinstance(x, Tensor) else x, result)


@contextlib.contextmanager
def guarded(device: Device, note: Callable[[str], object] = str) -> Iterator[dict[str, str]]:
    """While active, the device's calls are given to `note`, and those of the deadly operators are computed on the CPU. Yields
    what calls left in torch's state, which grows."""
    active, left = device.active, dict[str, str]()

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with active(), Functions(_Calls(device, note, left).observe):
            yield

    setattr(device, "active", both)  # noqa: B010 -- a method of one object
    try:
        yield left
    finally:
        delattr(device, "active")


def reasons(left: Mapping[str, str]) -> tuple[str, ...]:
    """What is wrong with a device whose operators have ended an examination, or have left this in torch's state."""
    ended = [f"{name}: ended the process that examined the device; its own findings say more" for name in sorted(deadly())]
    return (*ended, *(f"{name}: left {words} in its process" for name, words in left.items()))
