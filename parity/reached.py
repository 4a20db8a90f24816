"""Which operators a compared case dispatched on the device: overloads below autograd, forward, backward and on the way there.

A mode of torch's dispatcher lies over a case and notes every overload with an operand or a result on the device, in the order
of the case's results. What led to a result that compares nothing (refused, void, an error) does not count; it is kept as the
reason why. The mode does not see what torch composes an operator of below autograd; a simulated device says that itself.

Where a simulated device refuses an operator of a backward pass, the mode must not raise: torch 2.13 throws what a mode raises
with Python's error still set, and ends the process at the device's guard, which is Python too. So the pass gets no gradient
there, and what came of it is told as the refusal that it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parity.checking.trial import RAISED, Result
from parity.devices.base import Device
from parity.devices.refusals import classify
from parity.devices.sim import SimDevice
from parity.execute import said
from parity.vocabulary import COMPARED, Verdict

TRANSFERS = {"upload": "_copy_from", "download": "_copy_from"}  # as simulated devices call them -> the operator that it is
NO_BACKWARD = -1  # as torch numbers the pass of its engine that is under way
NOTHING_COMPARED = "no result came of it"


class Reached:
    """What the cases of one item dispatched. operators: by results that hold a comparison; idle: all others, each with what
    became of the first result that it led to."""

    def __init__(self) -> None:
        self.operators: set[str] = set()
        self._idle: dict[str, str] = {}

    @property
    def idle(self) -> Mapping[str, str]:
        """Operators that only results without a comparison dispatched, with the reason."""
        return {n: why for n, why in sorted(self._idle.items()) if n not in self.operators}

    @contextlib.contextmanager
    def watching(self, device: Device, results: list[Result]) -> Iterator[None]:
        """Over one case on a device: what is dispatched before the k-th of its results belongs to that one. `results` grows
        inside; those of a backward in which an operator was refused become that refusal."""
        notes = _Notes(self.operators, results)
        try:
            with _Mode(notes), _logged(device, notes):
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
    """What a simulated device says, for its `seat.log`. Not the out= overloads: torch composes functional operators of them on
    such a device, where MPS has a kernel for each."""

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes

    def append(self, name: str) -> None:
        """An operator reaches the device."""
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
    """before: number of results so far -> overloads ("add.out") that are dispatched then, those that count already left out.
    refused: number of results so far -> what an operator of a backward came to then."""

    def __init__(self, known: set[str], results: Sequence[Result]) -> None:
        self.before: dict[int, set[str]] = {}
        self.refused: dict[int, Verdict] = {}
        self._known, self._results = known, results

    def append(self, name: str) -> None:
        """An operator is dispatched."""
        if name not in self._known:
            self.before.setdefault(len(self._results), set()).add(name)

    def refuse(self, e: Exception) -> None:
        """An operator of a backward is refused."""
        status = RAISED[classify(e, "backward")]
        self.refused.setdefault(len(self._results), Verdict(status, f"{type(e).__name__} in backward: {said(e)}"))

    def knows(self, name: str) -> bool:
        """Whether it counts already."""
        return name in self._known


@contextlib.contextmanager
def _logged(device: Device, notes: _Notes) -> Iterator[None]:
    """A simulated device notes what reaches it, unless somebody else listens to it already."""
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


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Notes the operators of aten with a tensor on a device other than the CPU."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self._notes = notes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        space, _, name = func.name().partition("::")
        told = space != "aten" or self._notes.knows(name)
        # Noted before the call: an operator that raises was dispatched too, and its result says what became of it.
        noted = told or self._note(name, (args, kwargs))
        try:
            result = func(*args, **kwargs)
        except Exception as e:
            if torch._C._current_graph_task_id() == NO_BACKWARD or not _is_there((args, kwargs)):
                raise
            self._notes.refuse(e)
            returns = func._schema.returns
            return None if len(returns) == 1 else tuple(None for _ in returns)
        if not noted:
            self._note(name, result)
        return result

    def _note(self, name: str, tree: Any) -> bool:
        if not _is_there(tree):
            return False
        self._notes.append(name)
        return True


def _is_there(tree: Any) -> bool:
    """Whether a tensor lies on a device other than the CPU."""
    return any(isinstance(x, Tensor) and x.device.type not in ("cpu", "meta") for x in tree_leaves(tree))
