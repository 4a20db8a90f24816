"""The operators that a compared case dispatched on the device: overloads below autograd, in forward and backward.

A dispatch mode around a case records every overload with an operand or a result on the device, in the order of the case's
results. An overload counts only if it led to a result with a comparison; for others (refused, void, an error) that result is
kept as the reason. The mode stays in force while a kernel runs, so that it sees what torch composes below autograd (`zeros` of
`empty` and `zero_`, `convolution` of `_mps_convolution`); a simulated device reports those itself.

If a simulated device refuses an operator of a backward pass, the pass gets no gradient there, and its result is replaced by the
refusal.

`parity prove trace`: every call that a case makes on a simulated device, as a fault would see it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from parity.checks.check import RAISED, Result, Settings, unwatched
from parity.core import notation
from parity.core.case import Case
from parity.core.errors import CaseError
from parity.core.observer import Operators, has_number, in_backward, no_results
from parity.core.results import COMPARED, Aspect, Raised, Verdict
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.refusals import classify
from parity.devices.sim import SimDevice
from parity.devices.sim.faults import ANY, LEVELS
from parity.engine import suite
from parity.engine.planning import Study
from parity.execution import execute as ex
from parity.execution.execute import said
from parity.execution.inputs import build, torch_word
from parity.store.rows import ItemRow

TRANSFERS = {"upload": "_copy_from", "download": "_copy_from"}  # name on simulated devices -> operator
HOST = ("cpu", "meta")
NOTHING_COMPARED = "no result came of it"


class Reach(Study):
    """Notes for each item which operators its cases dispatched. Two checks are left out that torch 2.13 breaks under a dispatch
    mode: tensors of zeros end the process in forward-mode derivatives, and neg bits get lost in transfers."""

    looks_everywhere = False

    def begin(self) -> None:
        """Nothing was dispatched yet."""
        self.seen = Dispatched()

    def settings(self, how: Settings) -> Settings:
        """Without what breaks under a dispatch mode."""
        return replace(how, more=how.more - {Aspect.TANGENT, Aspect.TRANSFER})

    def watching(self, case: Case, device: Device, results: list[Result]) -> AbstractContextManager[None]:
        """Not in cases with calls before them, whose operators are not the case's own."""
        return unwatched(case, device, results) if case.after else self.seen.watching(device, results)

    def noted(self, row: ItemRow) -> ItemRow:
        """With the operators."""
        return replace(row, operators=tuple(sorted(self.seen.operators)), idle=self.seen.idle)


STUDY = Reach


class Dispatched:
    """The operators that the cases of one item dispatched. operators: those with a comparison; idle: all others, each with the
    outcome of the first result that it led to."""

    def __init__(self) -> None:
        self.operators: set[str] = set()
        self._idle: dict[str, str] = {}

    @property
    def idle(self) -> Mapping[str, str]:
        """Operators without a comparison, with the reason."""
        return {n: why for n, why in sorted(self._idle.items()) if n not in self.operators}

    @contextlib.contextmanager
    def watching(self, device: Device, results: list[Result]) -> Iterator[None]:
        """Record one case on a device: operators dispatched before the k-th result belong to that result.

        `results` grows inside; those of a backward with a refused operator become that refusal.
        """
        notes = _Notes(self.operators, results)
        try:
            with _Mode(notes, within=not isinstance(device, SimDevice)), _logged(device, notes):
                yield
        finally:
            for k, refusal in notes.refused.items():
                if k < len(results):
                    results[k] = replace(results[k], verdict=refusal)
            for k, names in notes.before.items():
                self._credit(names, results[k] if k < len(results) else None)

    def _credit(self, names: set[str], result: Result | None) -> None:
        if result is not None and result.verdict.status in COMPARED:
            self.operators.update(names)
            return
        why = NOTHING_COMPARED if result is None else f"{result.aspect} {result.verdict.status}: {result.verdict.reason[:120]}"
        for name in names:
            self._idle.setdefault(name, why)


class _Log:
    """Receives the operators that a simulated device reports, as its `seat.log`.

    Without the out= overloads: torch composes functional operators of them on such a device, where MPS has a kernel for each.
    """

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes

    def append(self, name: str) -> None:
        """Record an operator."""
        name = TRANSFERS.get(name, name)
        if not _is_out(name):
            self._notes.append(name)


@functools.cache
def _is_out(name: str) -> bool:
    """Whether an overload of aten takes destinations."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base)
    return any(a.is_out for a in getattr(packet, overload or "default")._schema.arguments)


class _Notes:
    """before: number of results so far -> overloads ("add.out") dispatched then, without those that already count.
    refused: number of results so far -> verdict on a refused operator of a backward.
    """

    def __init__(self, known: set[str], results: Sequence[Result]) -> None:
        self.before: dict[int, set[str]] = {}
        self.refused: dict[int, Verdict] = {}
        self._known, self._results = known, results

    def append(self, name: str) -> None:
        """Record a dispatched operator."""
        if name not in self._known:
            self.before.setdefault(len(self._results), set()).add(name)

    def refuse(self, e: Exception) -> None:
        """Record that an operator of a backward was refused."""
        status = RAISED[classify(e, "backward")]
        self.refused.setdefault(len(self._results), Verdict(status, f"{type(e).__name__} in backward: {said(e)}"))

    def knows(self, name: str) -> bool:
        """Whether the operator already counts."""
        return name in self._known


@contextlib.contextmanager
def _logged(device: Device, notes: _Notes) -> Iterator[None]:
    """Let a simulated device report its operators, unless it already has a log."""
    if not isinstance(device, SimDevice) or device.seat.log is not None:
        yield
        return
    log: Any = _Log(notes)
    device.seat.log = log
    device.seat.touch()
    try:
        yield
    finally:
        device.seat.log = None
        device.seat.touch()


class _Mode(Operators):
    """Records aten operators with a tensor on a device other than the CPU. within: also those that its kernels call."""

    def __init__(self, notes: _Notes, within: bool) -> None:
        super().__init__()
        self._notes, self._within = notes, within

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        space, _, name = func.name().partition("::")
        ignored = space != "aten" or self._notes.knows(name)
        # Recorded before the call, because an operator that raises was dispatched too.
        noted = ignored or self._note(name, (args, kwargs))
        try:
            result = self._run(func, args, kwargs)
        except Exception as e:
            # A kernel that is handed nothing by another one would end the process: only what autograd called is answered so.
            inside = bool(self.open) or not in_backward()
            if inside or not _is_there((args, kwargs)):
                raise
            self._notes.refuse(e)
            return no_results(func)
        if not noted:
            self._note(name, result)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's own kernel, with this mode in force; as usual for an operator whose kernel calls itself by way of the
        mode, as `detach` does."""
        if has_number(func, args, kwargs):
            return func.overloadpacket(*args, **kwargs)
        followed = self._within and func not in self.open
        keys = _kernel_keys(args, kwargs) if followed else None
        if keys is None:
            return func(*args, **kwargs)
        return self.opened(func, func.redispatch, (keys, *args), kwargs)

    def _note(self, name: str, tree: Any) -> bool:
        if not _is_there(tree):
            return False
        self._notes.append(name)
        return True


def _kernel_keys(args: Any, kwargs: Any) -> Any:
    """By which the dispatcher picks the kernel from here on: what modes and autograd are asked by is left out. None for what
    the reference runs, where no operand lies on the device and the device is not named."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if tensors:
        if not _is_there(tensors):
            return None
        return functools.reduce(operator.or_, map(torch._C._dispatch_keys, tensors)) & _BELOW
    kind = torch.device(kwargs.get("device") or "cpu").type
    key = None if kind in HOST else getattr(torch._C.DispatchKey, kind.upper(), None)
    return None if key is None else torch._C.DispatchKeySet(key)


_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)


def _is_there(tree: Any) -> bool:
    """Whether a tensor lies on a device other than the CPU."""
    return any(isinstance(x, Tensor) and x.device.type not in HOST for x in tree_leaves(tree))


ATEN_INSIDE = "aten."  # how functions of torch's own Python code are called
# Functions that parity and torch call around the case, and that compute nothing.
ATEN_QUIET = frozenset(
    ("detach", "requires_grad_", "is_floating_point", "is_complex", "stride", "is_neg", "is_conj", "get_device", "ones_like")
    + ("data_ptr", "storage_offset", "untyped_storage", "_is_zerotensor", "to")
)


def trace(o: argparse.Namespace) -> int:
    """Print the calls of a case, forward and backward, in their order. Raises CaseError, and what
    `resolve` raises."""
    if "(" not in o.case:
        raise CaseError(f"'{o.case}' is not a case; one looks like max_pool2d(float32[1, 3, 8, 8], 3)")
    case = notation.parse(o.case)
    program = ex.program(suite.row(case.op))
    said: list[str] = []

    def show(call: Call) -> Any:
        inner = call.op.startswith(ATEN_INSIDE) or call.op.rpartition(".")[2] in ATEN_QUIET
        if call.level != "function" or not inner:
            said.append(_line(call))
        return call.run()

    faults = [Fault(f"trace-{level}", (ANY,), show, level=level) for level in LEVELS if level != "allocation"]
    device = resolve(o.device or "sim", tuple(faults))
    inputs = build(case)
    placed: list[ex.Placed] = []
    live: list[ex.Live] = []

    def upload() -> None:
        placed.append(ex.place(inputs, device, case.under))

    def forward() -> None:
        live.append(ex.forward(program, case, inputs, placed[0], True, torch_word))

    def backward() -> None:
        outs = ex.differentiable(live[0])
        if outs and live[0].leaves:
            fed = [torch.ones_like(t) for _, t in outs]
            said.clear()
            ex.backward(live[0], fed)

    code = 0
    with device.active():
        for name, step in (("operands", upload), ("forward", forward), ("backward", backward)):
            said.clear()
            got = ex.attempt(step, "run")
            if said or isinstance(got, Raised):
                print(name)
                print("\n".join(f"  {line}" for line in said))
            if isinstance(got, Raised):
                print(f"  raised {got.type}: {got.message}")
                code = 1
                break
    return code


def _line(call: Call) -> str:
    """One call: level, op, its arguments by name, and its destinations."""

    def said(value: Any) -> str:
        if isinstance(value, Tensor):
            where = f" strides {list(value.stride())}" if not value.is_contiguous() else ""
            where += f" offset {value.storage_offset()}" if value.storage_offset() else ""
            base = call.base_shape(value) if call.level in ("kernel", "function") else tuple(value.shape)
            where += f" of {list(base)}" if base != tuple(value.shape) else ""
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{where}"
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return f"[{', '.join(map(said, value))}]"
        return str(value)

    names = call.names
    parts = [f"{names[k]}={said(a)}" if k < len(names) else said(a) for k, a in enumerate(call.args)]
    parts += [f"{k}={said(v)}" for k, v in call.kwargs.items()]
    word = "" if call.level == "transfer" else f"{call.destination} "
    into = " -> in place" if call.is_in_place else f" -> {word}{', '.join(map(said, call.outs))}" if call.outs else ""
    return f"{call.level:<9} {call.op}({', '.join(parts)}){into}"
