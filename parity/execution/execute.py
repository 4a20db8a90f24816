"""Runs the call of a case on a device and returns an outcome. Failures of a device are values, not exceptions: `attempt` has
the only broad `except`.

The same functions run the reference, the device and the oracle; only the tensors differ.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.catalog import entries, opinfo
from parity.catalog.row import Row
from parity.core import layout as layouts
from parity.core import state
from parity.core.case import Case, Cotangent, Layout
from parity.core.dtypes import FACTS
from parity.core.errors import CaseError
from parity.core.processes import asked_to_stop
from parity.core.results import MISSING, Computed, Outcome, Raised
from parity.devices.base import Device
from parity.devices.refusals import classify, words
from parity.execution.inputs import Inputs, apply, cut, fill_like, realise, torch_word
from parity.execution.modes import MODES, in_force, withheld

Named = tuple[tuple[str, Tensor], ...]


_AS_IT_IS = nullcontext()


# ------------------------------------------------------------------------------------------------------------ the program


@functools.lru_cache(maxsize=4096)
def attribute(path: str) -> Any:
    """The object at a dotted path: the longest importable module, then attributes. Raises CaseError if torch has none."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        try:
            for name in parts[end:]:
                value = getattr(value, name)
        except AttributeError:
            break
        return value
    raise CaseError(f"{MISSING} {path}, which a row of the catalog calls")


@dataclass(frozen=True, slots=True)
class Program:
    """The callables of a row. out: whether the function takes out=; there: makes of it the program that runs anywhere but
    on the CPU, if that is another one (a way around a fault)."""

    row: Row
    function: Callable[..., Any]
    inplace: Callable[..., Any] | None
    out: bool
    there: There | None = None

    def on(self, placed: Placed) -> Program:
        """What runs on these operands."""
        return self if self.there is None or placed.device == "cpu" else self.there(self)


There: TypeAlias = Callable[[Program], Program]


@functools.lru_cache(maxsize=2048)
def program(row: Row) -> Program:
    """The callables of a row. Raises CaseError if torch does not have one."""
    if row.family == "opinfo":
        function, inplace, out = opinfo.callables(row.name)
        return Program(row, function, inplace, out)
    return Program(row, attribute(row.call), attribute(row.forms.inplace) if row.forms.inplace else None, row.forms.out)


def arguments(
    case: Case, inputs: Inputs, tensors: Sequence[Tensor], word: Callable[[str], Any], device: str = "cpu"
) -> tuple[Any, dict[str, Any]]:
    """Positional and keyword arguments of the call, with these tensors as operands. word: turns the name of a torch attribute
    into an argument. device: the one that OpInfo samples name."""
    if not inputs.fed and not case.is_sample:
        args = tuple([realise(a, tensors, word) for a in inputs.args])
        return args, {k: realise(v, tensors, word) for k, v in inputs.kwargs.items()} if inputs.kwargs else {}
    if inputs.fed:
        alone = Inputs(inputs.operands, inputs.args, inputs.kwargs)
        args, kwargs = arguments(case, alone, tensors[: -inputs.fed], word, device)
        return args, {**kwargs, "fed": tuple(tensors[-inputs.fed :])}
    pinned = dict(case.kwargs)
    index = case.args[0]
    assert isinstance(index, int)
    tree = entries.assemble(
        case.op, case.dtype, index, list(tensors), str(pinned.get("torch")), str(pinned.get("digest")), device
    )
    return tree if word is torch_word else tree_map(lambda a: word(_name(a)) if isinstance(a, torch.dtype) else a, tree)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def outputs(result: Any) -> Named:
    """Every tensor in a result, named: `out`, or `out[0]`, `out[1]` ... in their order, or by its key where it is alone under
    one of a dict. Python numbers become 0-d tensors."""
    if isinstance(result, Tensor):
        return (("out", result),)
    tensors: dict[str, Tensor] = {}

    def walk(r: Any, name: str = "") -> None:
        if isinstance(r, Tensor):
            own = f"out[{name}]"
            tensors[own if name and own not in tensors else f"out[{len(tensors)}]"] = r
        elif isinstance(r, (tuple, list)):
            for x in r:
                walk(x, name)
        elif isinstance(r, dict):
            for key, x in r.items():
                walk(x, f"{name}.{key}" if name else str(key))
        elif isinstance(r, (bool, int, float, complex)):
            walk(torch.tensor(r, dtype=torch.float64 if isinstance(r, float) else None), name)

    walk(result)
    return tuple(tensors.items())


# ------------------------------------------------------------------------------------------------------------ one place


@dataclass(frozen=True, slots=True)
class Placed:
    """Operands of a case on one device: dense bases and the views of them. device: its name in torch."""

    bases: tuple[Tensor, ...]
    views: tuple[Tensor, ...]
    device: str = "cpu"


def place(inputs: Inputs, device: Device, under: str = "grad") -> Placed:
    """Uploads the bases and makes the views on the device, in an autograd mode. On the CPU, returns the tensors as they are."""
    if device.name == "cpu":
        return Placed(tuple([o.base for o in inputs.operands]), tuple([o.view for o in inputs.operands]))
    bases, views, there = [], [], dict[int, Tensor]()
    with MODES[under]():
        for o in inputs.operands:
            base = there.get(id(o.base))  # operands may share one
            if base is None:
                base = there[id(o.base)] = o.base if o.spec.on_cpu else device.upload(o.base)
            bases.append(base)
            views.append(cut(base, o.spec.layout, o.spec.shape))
    return Placed(tuple(bases), tuple(views), str(device.torch_device))


@dataclass(frozen=True, slots=True)
class Live:
    """The result of a forward call with its graph: outputs on the device, and (operand number, leaf) pairs."""

    outputs: Named
    leaves: tuple[tuple[int, Tensor], ...]


def forward(
    p: Program, case: Case, inputs: Inputs, placed: Placed, grad: bool, word: Callable[[str], Any] = torch_word
) -> Live:
    """Runs the function in the autograd mode of the case. With `grad`, operands that require a gradient are leaves. If the row
    mutates, it gets a fresh copy of its first operand's base; outputs are the view, and the base to find writes outside it."""
    if case.under == "grad" and torch.is_grad_enabled():
        return _forward(p, case, inputs, placed, grad, word)
    with MODES[case.under]():
        return _forward(p, case, inputs, placed, grad, word)


def _forward(p: Program, case: Case, inputs: Inputs, placed: Placed, grad: bool, word: Callable[[str], Any]) -> Live:
    tensors = [_copied(v) for v in placed.views] if p.row.forms.updates else list(placed.views)
    leaves: list[tuple[int, Tensor]] = []
    if grad:
        for i, o in enumerate(inputs.operands):
            t = tensors[i]
            if o.spec.grad and (t.is_floating_point() or t.is_complex()):
                source = placed.bases[i] if p.row.forms.mutates and i == 0 else t
                leaf = source.detach().requires_grad_()
                leaves.append((i, leaf))
                tensors[i] = leaf
    if not p.row.forms.mutates:
        args, kwargs = arguments(case, inputs, tensors, word, placed.device)
        return Live(outputs(p.on(placed).function(*args, **kwargs)), tuple(leaves))
    source = tensors[0] if leaves and leaves[0][0] == 0 else placed.bases[0]
    base = source.clone()
    spec = inputs.operands[0].spec
    tensors[0] = apply(base, spec.layout, spec.shape)
    args, kwargs = arguments(case, inputs, tensors, word, placed.device)
    p.on(placed).function(*args, **kwargs)
    return Live((("out", tensors[0]), ("base[out]", base)), tuple(leaves))


def _copied(v: Tensor) -> Tensor:
    """A dense copy of an operand, which starts as far into its memory: parameters are often parts of one tensor."""
    copy = v.clone()
    if not (start := v.storage_offset()) or not copy.numel():
        return copy
    return copy.new_empty(start + copy.numel()).as_strided(copy.shape, copy.stride(), start).copy_(copy)


def differentiable(live: Live) -> tuple[tuple[str, Tensor], ...]:
    """The outputs that get a cotangent."""
    return tuple([(n, t) for n, t in live.outputs if t.requires_grad and not n.startswith("base[")])


def _engine() -> Callable[..., Any] | None:
    """`run_backward` of torch's autograd engine, which simulated devices replace; None if this torch keeps it elsewhere."""
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    return getattr(engine, "run_backward", None)


def gradients(
    outs: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor], create: bool = False
) -> Sequence[Tensor | None]:
    """`torch.autograd.grad` of unused leaves too, without the checks that it makes in Python: 27 us of a call, 2 % of a whole
    examination on the CPU. The engine checks shapes, dtypes and devices itself. create: the
    gradients can be differentiated."""
    run_backward = _engine()
    if run_backward is None or not outs or not leaves:
        return torch.autograd.grad(outs, leaves, cotangents, create_graph=create, allow_unused=True)
    allow_unreachable = True
    grads: Sequence[Tensor | None] = run_backward(
        tuple(outs), tuple(cotangents), create, create, tuple(leaves), allow_unreachable, accumulate_grad=False
    )
    return grads


def backward(live: Live, cotangents: Sequence[Tensor]) -> Named:
    """Gradients of the leaves, named grad[operand number]; leaves that the outputs do not depend on are left out."""
    outs = [t for _, t in differentiable(live)]
    grads = gradients(outs, [leaf for _, leaf in live.leaves], cotangents)
    return tuple([(f"grad[{i}]", with_memory(g)) for (i, _), g in zip(live.leaves, grads) if g is not None])


def with_memory(t: Tensor) -> Tensor:
    """The tensor; zeros in memory for a ZeroTensor, which has none: torch makes such where a derivative is 0 (sign)."""
    return t.new_zeros(t.shape) if t._is_zerotensor() else t


@dataclass(frozen=True, slots=True)
class Destination:
    """A pre-filled tensor to write into: its dense base on the CPU, and layout and shape of the view."""

    base: Tensor
    layout: Layout
    shape: tuple[int, ...]


def destination(like: Tensor, word: str) -> Destination:
    """A destination for a result like this, filled with the fill value. word: a layout (`layout.WORDS`), "empty" for one
    without elements that torch resizes, or a dtype that torch casts to."""
    shape = tuple(like.shape)
    if word == "empty":
        return Destination(torch.empty(0, dtype=like.dtype), (), (0,))
    if word in FACTS:
        like, word = torch.empty(shape, dtype=getattr(torch, word), device="meta"), "contiguous"
    layout = layouts.named(word, shape)
    base = torch.full(layouts.base_shape(shape, layout), fill_like(like.dtype), dtype=like.dtype)
    return Destination(base, layout, shape)


def write_out(p: Program, case: Case, inputs: Inputs, placed: Placed, targets: Sequence[Destination], device: Device) -> Named:
    """Runs the out= form. Returns the whole bases of the destinations, named base[out]; the views, named out, if torch resizes
    or casts them."""
    with MODES[_writing(case)]():
        bases = [device.upload(t.base) if device.name != "cpu" else t.base.clone() for t in targets]
        views = [cut(b, t.layout, t.shape) for b, t in zip(bases, targets)]
        args, kwargs = arguments(case, inputs, placed.views, torch_word, placed.device)
        p.on(placed).function(*args, **kwargs, out=views[0] if len(views) == 1 else tuple(views))
    names = ["out"] if len(bases) == 1 else [f"out[{i}]" for i in range(len(bases))]
    if case.into == "empty" or case.into in FACTS:
        return tuple(zip(names, views))
    return tuple((f"base[{n}]", b) for n, b in zip(names, bases))


def _writing(case: Case) -> str:
    """The autograd mode for calls that write into their arguments."""
    return "no_grad" if case.under == "grad" else case.under


def write_inplace(p: Program, case: Case, inputs: Inputs, placed: Placed, device: Device) -> Named:
    """Runs the in-place form on a fresh copy of the first operand's base, and returns that whole base."""
    p = p.on(placed)
    assert p.inplace is not None
    first = inputs.operands[0]
    with MODES[_writing(case)]():
        base = device.upload(first.base) if device.name != "cpu" else first.base.clone()
        view = cut(base, first.spec.layout, first.spec.shape)
        args, kwargs = arguments(case, inputs, (view, *placed.views[1:]), torch_word, placed.device)
        p.inplace(*args, **kwargs)
    return (("base[out]", base),)


def cotangent(
    c: Cotangent, like: Tensor, position: int, make: Callable[[str, torch.dtype, int, int, int], Tensor]
) -> Destination:
    """The cotangent of an output. make(family, dtype, n, seed, position) returns the n values of its base."""
    shape = tuple(like.shape)
    layout = layouts.named(c.layout, shape)
    base = layouts.base_shape(shape, layout)
    return Destination(make(c.values, like.dtype, math.prod(base), c.seed, position).view(base), layout, shape)


# ------------------------------------------------------------------------------------------------------- outcomes, safely


@contextmanager
def full_precision() -> Iterator[None]:
    """Computes float32 products in float32, even if the caller lowered the precision: on some machines that affects the CPU
    too."""
    lowered = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(lowered)


def precisely(run: Callable[[], Any], stage: str) -> Any | Raised:
    """`attempt` for the reference: in full precision, and without classifying what it raised."""
    with _AS_IT_IS if torch.get_float32_matmul_precision() == "highest" else full_precision():
        return attempt(run, stage, False)


left: dict[bool, list[str]] = {True: [], False: []}  # what calls of a device, and of the reference, left in torch's modes


def attempt(run: Callable[[], Any], stage: str, classified: bool = True) -> Any | Raised:
    """The value of `run`, or a Raised if it raised. classified: whether to determine the kind of error, which has a cost; not
    for the reference. torch's modes are put back, and noted in `left`."""
    if classified and withheld:
        with in_force():
            return attempt(run, stage)
    modes, warned = state.modes(), state.warned[0]
    try:
        return run()
    except BaseException as e:  # whatever a device raises is a result of the check
        if asked_to_stop(e):
            raise
        return Raised(classify(e, stage) if classified else "error", type(e).__name__, said(e), stage)
    finally:
        if state.modes() != modes:
            left[classified] += state.put_back(modes)
        if state.warned[0] - warned > state.ENDLESS:
            left[classified].append(f"more than {state.ENDLESS:,} warnings")


def left_by_the_device() -> list[str]:
    """What its calls left in torch's modes since this was asked last, and those of the reference did not."""
    theirs, ours = left[True], left[False]
    left[True], left[False] = [], []
    return [w for w in dict.fromkeys(theirs) if w not in ours]


def said(e: BaseException) -> str:
    """The message of an exception on one line of at most 600 printable characters."""
    plain = "".join(c if c.isprintable() else " " for c in words(e).encode("utf-8", "backslashreplace").decode())
    return " ".join(plain.split())[:600]


def download(named: Named, device: Device) -> Named:
    """All tensors on the CPU, detached. Results of the CPU are not copied, since nothing writes into them."""
    if device.name == "cpu":
        return tuple([(n, t.detach().resolve_conj().resolve_neg()) for n, t in named])
    return tuple([(n, device.download(t)) for n, t in named])


def computed(
    named: Named, device: Device, notes: Sequence[str] = (), synchronized: Callable[[], None] | None = None
) -> Outcome:
    """The outcome with these tensors, downloaded. Pending errors of the device belong to this call: a download waits for
    everything before it. synchronized: called when the device has computed everything, before the download."""

    def fetch() -> Named:
        if synchronized is not None or not any(t.numel() and not t.is_cpu for _, t in named):
            device.synchronize()
        if synchronized is not None:
            synchronized()
        return download(named, device)

    got = attempt(fetch, "download")
    return got if isinstance(got, Raised) else Computed(got, tuple(notes))
