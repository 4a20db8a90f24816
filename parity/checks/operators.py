"""Calls of operators, kept with their operands as they lie in the device's memory (strides, offset, lazy bits, shared storage),
so that they can be run again on either side, with other operands too (`parity.checks.deciding`), and compared."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.checks.equivalents import on_the_cpu
from parity.core.dtypes import FACTS
from parity.devices.base import Device
from parity.execution.execute import with_memory
from parity.oracle.yardstick import CPU_ERRORS, OWN_ULP, SUM_ULP

LARGEST = 1 << 22  # most bytes of the storages of a call's operands; larger calls are not run again
# Operators that compute nothing, or nothing that can be expected to be equal.
ATEN_NOT_UNIQUE = (
    "_linalg_svd", "_linalg_eigh", "_linalg_eig", "linalg_eig", "linalg_qr", "geqrf", "linalg_householder_product",
)  # fmt: skip
ATEN_COPIES = ("_to_copy", "copy", "clone", "contiguous", "_copy_from", "_copy_from_and_resize", "to")
ATEN_STATISTICS = frozenset(("running_mean", "running_var"))  # arguments that are written where a batch is normalized


@dataclass(frozen=True, slots=True)
class StridedOperand:
    """A tensor operand as it lay in the device's memory before the call. base: the whole storage as a flat CPU tensor, before
    the call; group: operands of the same number share it; on_cpu: whether it lay on the CPU next to operands on the device. The
    strides and the offset are in elements."""

    base: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool
    group: int
    on_cpu: bool = False

    def on(self, base: Tensor) -> Tensor:
        """The operand on a copy of its base."""
        t = base.as_strided(self.shape, self.strides, self.offset)
        t = t.conj() if self.conj else t
        return torch._neg_view(t) if self.neg else t

    @property
    def values(self) -> Tensor:
        """Its elements, on the CPU, contiguous."""
        return self.on(self.base).resolve_conj().resolve_neg().contiguous()


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator that can be run again. args, kwargs: with `StridedOperand` in place of tensors. symptom: how the
    device's outcome differs, "" if it has the same bits; ratio: how many times as much as roundings explain. unknown: whether
    the CPU cannot run it (`_cudnn_rnn`), so that nothing is known."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    symptom: str = ""
    ratio: float = 0.0
    unknown: bool = False

    @property
    def name(self) -> str:
        """The overload without aten's namespace: "add.out", "_softmax", "torchvision::nms"."""
        name: str = self.operator.name().removeprefix("aten::")
        return name

    @property
    def base_name(self) -> str:
        """The operator without its overload and without the underscore of its in-place form: "exp" of "exp_" and "exp.out"."""
        name = self.name.partition(".")[0]
        return name.rstrip("_") if name.endswith("_") and not name.startswith("__") else name

    @property
    def title(self) -> str:
        """The operator with its namespace."""
        return titled(self.base_name)

    def in_float32(self) -> OperatorCall:
        """The same call with its floating-point operands in float32."""

        def widened(x: Any) -> Any:
            if not isinstance(x, StridedOperand) or not x.base.is_floating_point():
                return x
            return replace(x, base=x.base.to(torch.float32))

        return replace(self, args=tree_map(widened, self.args), kwargs=tree_map(widened, self.kwargs))

    @property
    def is_copy(self) -> bool:
        """Whether it copies. Wrong values of a view are a copy's, too: a view computes nothing, but it was read."""
        return self.base_name in ATEN_COPIES or (bool(self.operator.is_view) and self.symptom == "values")

    @property
    def differs(self) -> bool:
        """Whether the difference is more than roundings explain."""
        return self.ratio > 1.0

    @property
    def written(self) -> frozenset[int]:
        """Numbers of the operands, in the order of the call, that it writes into."""
        return self._numbers(_written_names(self.operator))

    @property
    def statistics(self) -> frozenset[int]:
        """Numbers of the operands in which it keeps running statistics. Most schemas do not say that these are written."""
        kept = _statistics_names(self.operator)
        if not kept:
            return frozenset()
        names = [a.name for a in self.operator._schema.arguments]
        trains = {**dict(zip(names, self.args)), **self.kwargs}.get("training", True)
        return self._numbers(kept) if trains else frozenset()

    def _numbers(self, names: frozenset[str]) -> frozenset[int]:
        """Of the operands that are given for these arguments."""
        if not names:
            return frozenset()
        given = [*zip((a.name for a in self.operator._schema.arguments), self.args), *self.kwargs.items()]
        flat = [name for name, value in given for leaf in tree_leaves(value) if isinstance(leaf, StridedOperand)]
        return frozenset(k for k, name in enumerate(flat) if name in names)

    @property
    def operands(self) -> list[StridedOperand]:
        """The operands in the order of the call."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, StridedOperand)]


def titled(name: str) -> str:
    """An operator with its namespace."""
    return name if "::" in name else f"aten::{name}"


@functools.cache
def _written_names(operator: Any) -> frozenset[str]:
    arguments = operator._schema.arguments
    return frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


@functools.cache
def _statistics_names(operator: Any) -> frozenset[str]:
    return (
        frozenset()
        if "backward" in operator.name()
        else frozenset(a.name for a in operator._schema.arguments) & ATEN_STATISTICS
    )


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call left on one side. results: the tensors that it returned, on the CPU; bases: all storages of its operands
    after it."""

    results: tuple[Tensor, ...]
    bases: tuple[Tensor, ...]
    strides: tuple[tuple[int, ...], ...]


# ------------------------------------------------------------------------------------------------------ operands in memory


class Reader:
    """Copies of operands from the device, each storage once. largest: most bytes of all storages together."""

    def __init__(self, device: Device, largest: int = LARGEST) -> None:
        self._device, self._largest, self._bytes = device, largest, 0
        self._bases: dict[tuple[int, torch.dtype], tuple[int, Tensor]] = {}

    @property
    def bases(self) -> tuple[Tensor, ...]:
        """The storages that were read."""
        return tuple(b for _, b in self._bases.values())

    def __call__(self, leaf: Any) -> Any:
        """The operand as `StridedOperand`; anything else as it is. Raises ValueError for what cannot be described."""
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.layout is not torch.strided or leaf.dtype not in KNOWN:
            raise ValueError("no strided tensor of a known dtype")
        leaf = with_memory(leaf)
        conj, neg = leaf.is_conj(), leaf.is_neg()
        plain = leaf.detach()
        plain = plain.conj() if conj else plain
        plain = torch._neg_view(plain) if neg else plain
        storage = plain.untyped_storage()
        key = storage.data_ptr() or id(storage), plain.dtype
        if key not in self._bases:
            n = storage.nbytes() // plain.element_size()
            self._bytes += storage.nbytes()
            if self._bytes > self._largest:
                raise ValueError("too large to be run again")
            flat = plain.as_strided((n,), (1,), 0)
            self._bases[key] = len(self._bases), self._device.download(flat) if not plain.is_cpu else flat.clone()
        group, base = self._bases[key]
        return StridedOperand(
            base, tuple(plain.shape), plain.stride(), int(plain.storage_offset()), conj, neg, group, plain.is_cpu
        )


KNOWN = frozenset(getattr(torch, name) for name in FACTS if hasattr(torch, name))


def run_on(
    call: OperatorCall, device: Device | None, wide: bool = False, bases: bool = True, there: Callable[..., Any] | None = None
) -> CallResult:
    """Run a call on a device, or on the CPU for None. wide: in float64 and complex128; bases: whether they are asked for;
    there: what runs on the device in place of the operator.

    On the CPU destinations are written dense and then copied into their place, because its own kernels are wrong for some
    strided destinations (torch 2.13: `softmax_backward`). Raises what the operator raises.
    """
    copies: dict[int, Tensor] = {}
    places: list[tuple[Tensor, Tensor]] = []
    writes = bool(_written_names(call.operator) or call.statistics)
    written = call.written if device is None and writes else frozenset[int]()
    count = itertools.count()

    def copied(x: StridedOperand) -> Tensor:
        if x.group not in copies:
            base = _widened(x.base) if wide else x.base.clone() if writes or device is not None else x.base
            copies[x.group] = base if device is None or x.on_cpu else device.upload(base)
        return copies[x.group]

    place = torch.device("cpu") if device is None else device.torch_device

    def realised(leaf: Any) -> Any:
        if isinstance(leaf, StridedOperand):
            view = leaf.on(copied(leaf))
            if next(count) not in written or view.is_contiguous():
                return view
            places.append((view, view.clone(memory_format=torch.contiguous_format)))
            return places[-1][1]
        if wide and isinstance(leaf, torch.dtype) and (leaf.is_floating_point or leaf.is_complex):
            return torch.complex128 if leaf.is_complex else torch.float64
        return place if isinstance(leaf, torch.device) else leaf

    args, kwargs = tree_map(realised, call.args), tree_map(realised, call.kwargs)
    with torch.no_grad():
        result = (on_the_cpu(call.operator) if device is None else there or call.operator)(*args, **kwargs)
    for view, dense in places:
        if view.shape == dense.shape:
            view.copy_(dense)
    tensors = [t for t in tree_leaves(result) if isinstance(t, Tensor)]

    def fetch(t: Tensor) -> Tensor:
        if device is None:  # what an operator returns on copies of its operands belongs to nobody else
            return t
        return t.clone() if t.is_cpu else device.download(t)

    results = tuple(fetch(with_memory(t.detach())).resolve_conj().resolve_neg() for t in tensors)
    after = tuple(fetch(b) for b in copies.values()) if bases else ()
    return CallResult(results, after, tuple(t.stride() for t in tensors))


def _widened(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.to(torch.float64) if x.is_floating_point() else x.clone()


# --------------------------------------------------------------------------------------------------------- the comparison


def compared(call: OperatorCall, device: Device, ran: CallResult | Exception | None = None) -> OperatorCall:
    """The call with symptom and ratio: its own outcome on the device, run now unless it is given, against the CPU's."""
    ours = _outcome(call, None)
    theirs = _outcome(call, device) if ran is None else ran
    if isinstance(theirs, Exception) and not (ran is None and isinstance(ours, Exception)):
        return replace(call, symptom="raises", ratio=math.inf, unknown=False)
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        return replace(call, symptom="", ratio=0.0, unknown=True)
    wide = _outcome(call, None, wide=True) if not call.written else None
    truth = wide if isinstance(wide, CallResult) and len(wide.results) == len(ours.results) else None
    symptom, ratio = _difference(call, ours, theirs, truth)
    return replace(call, symptom=symptom, ratio=ratio, unknown=False)


def _outcome(call: OperatorCall, device: Device | None, wide: bool = False) -> CallResult | Exception:
    try:
        return run_on(call, device, wide)
    except Exception as e:  # whatever an operator raises is an outcome
        return e


def _difference(call: OperatorCall, ours: CallResult, theirs: CallResult, truth: CallResult | None) -> tuple[str, float]:
    if len(ours.results) != len(theirs.results):
        return "metadata", math.inf
    truths = (None,) * len(ours.results) if truth is None else truth.results
    triples = list(zip(theirs.results, ours.results, truths))
    alike = [(b, a, t) for b, a, t in triples if a.shape == b.shape and a.dtype == b.dtype]
    worst = max((error_ratio(b, a, t) for b, a, t in alike), default=0.0)
    if worst > 1.0:
        return "values", worst
    # A destination that torch resizes gets another storage; what it holds is among the results.
    kept = [(b, a) for b, a in zip(theirs.bases, ours.bases) if a.shape == b.shape]
    if kept and (off := max(error_ratio(b, a) for b, a in kept)) > 1.0:
        return ("memory" if triples else "values"), off  # what returns nothing has its results there
    if len(alike) < len(triples) or (call.operator.is_view and ours.strides != theirs.strides):
        return "metadata", math.inf
    return ("values" if any(_differ(b, a) for b, a, _ in alike) else ""), worst


def _differ(got: Tensor, cpu: Tensor) -> bool:
    """Whether any bits differ, but for those of NaN."""
    if cpu.is_complex():
        got, cpu = _parts(got), _parts(cpu)
    return not torch.equal(got.nan_to_num(0.0), cpu.nan_to_num(0.0)) if cpu.is_floating_point() else not torch.equal(got, cpu)


def error_ratio(got: Tensor, cpu: Tensor, truth: Tensor | None = None) -> float:
    """By how many times what the roundings of one operator explain `got` is off; at most 1 is no difference.

    An element may be off by `OWN_ULP` ULP of itself, `SUM_ULP` of the largest element, and `CPU_ERRORS`
    times the error of the CPU's result. That is coarser than the judge, which has found a difference already.
    """
    if got.shape != cpu.shape:
        return math.inf
    if not cpu.numel():
        return 0.0
    if not (cpu.is_floating_point() or cpu.is_complex()):
        return 0.0 if torch.equal(got, cpu) else math.inf
    d, c = _parts(got), _parts(cpu)
    t = c if truth is None or truth.shape != cpu.shape else _parts(truth)
    same = (d == c) | (d.isnan() & c.isnan())
    lost = ~same & ~(d.isfinite() & c.isfinite() & t.isfinite())
    if bool(lost.any()):
        return math.inf
    info = torch.finfo(cpu.dtype)
    size = torch.where(t.isfinite(), t.abs(), 0.0)
    allowed = info.eps * (OWN_ULP * size + SUM_ULP * size.max()) + info.tiny
    allowed = allowed + CPU_ERRORS * torch.where(same, 0.0, (c - t).abs()).nan_to_num(0.0, 0.0, 0.0)
    off = torch.where(same, 0.0, (d - t).abs()).nan_to_num(0.0, 0.0, 0.0)
    return float((off / allowed).max())


def _parts(x: Tensor) -> Tensor:
    return torch.view_as_real(x.to(torch.complex128)) if x.is_complex() else x.to(torch.float64)
