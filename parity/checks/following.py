"""Finds the first operator of a case that computes something else on the device than on the CPU.

A dispatch mode around the case runs every operator of aten, or of a package, that reaches the device once more on the CPU, with
the operands as they lie in the device's memory, so that an operator is blamed for what it does itself and not for what it is
given. Composite functions are seen as the operators that torch makes of them, and the backward pass as the operators that
autograd calls.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.checks.operators import ATEN_NOT_UNIQUE, LARGEST, CallResult, OperatorCall, Reader, compared
from parity.core.devices import backend_of
from parity.core.observer import Functions, Operators, has_number, in_backward, lies_on, name_of, no_results
from parity.devices.base import Device
from parity.execution.execute import with_memory

CLEAR = 8.0  # an operator that is so many times outside is blamed before a later one that is farther outside
ATEN_UNWRITTEN = ("empty", "new_empty", "resize_", "set_", "_to_copy_uninitialized")
# Namespaces of torch's own whose operators are no computation (collectives, profiler), or are seen as those of aten.
OTHERS = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_test", "c10d", "debug_mode_ops"),
        *("debugprims", "export", "inductor", "inductor_prims", "prims", "profiler", "rngprims", "static_runtime", "symm_mem"),
    )
)


@dataclass(slots=True)
class Followed:
    """The operators of a case, in the order in which the device ran them. calls: those whose results differ in any bit;
    unknown: those that the CPU cannot run; missed: how many could not be described; functions: the public functions that were
    called with operands on the device, with the number of operators that each ran; draws: the operators that drew random
    numbers there."""

    calls: list[OperatorCall] = field(default_factory=list)
    unknown: list[OperatorCall] = field(default_factory=list)
    operators: int = 0
    missed: int = 0
    functions: list[tuple[str, int]] = field(default_factory=list)
    raised: str = ""
    draws: set[str] = field(default_factory=set)

    @property
    def function(self) -> str:
        """The public function to name for the case as a whole: the one that raised, else the one that ran most operators; "" if
        there was none."""
        return self.raised or max(self.functions, key=lambda f: f[1], default=("", 0))[0]

    def first(self, symptom: str = "values") -> OperatorCall | None:
        """The operator to blame: the first that is clearly outside, else the one farthest outside, else one that the CPU cannot
        run, else the only one that has other bits than the CPU; None if several are a little off.

        A wrong shape or dtype is blamed for a finding of that kind, and otherwise only if nothing else differs: some operators
        hand on statistics in another dtype than the CPU's. Operators with several right answers (signs of vectors) come last.
        """
        calls = [c for c in self.calls if (c.symptom == "metadata") == (symptom == "metadata")]
        calls = [c for c in calls if c.base_name not in ATEN_NOT_UNIQUE] or calls
        clear = next((c for c in calls if c.ratio >= CLEAR), None)
        worst = max(calls, key=lambda c: c.ratio, default=None)
        if clear is not None or (worst is not None and worst.differs):
            return clear or worst
        if self.unknown:
            return self.unknown[0]
        return worst if len({c.base_name for c in calls}) == 1 else None


@contextlib.contextmanager
def following(device: Device) -> Iterator[Followed]:
    """Compare every operator that runs on the device inside with the CPU."""
    seen, kind = Followed(), device.torch_device.type

    def named(func: Any, args: Any, kwargs: Any) -> Any:
        if not is_plain_function(name := name_of(func)) or not lies_on(kind, (args, kwargs)):
            return func(*args, **kwargs)
        before = seen.operators
        try:
            result = func(*args, **kwargs)
        except Exception:
            seen.raised = name
            raise
        seen.functions.append((name, seen.operators - before))
        return result

    with Functions(named), Following(device, seen):
        yield seen


def is_plain_function(name: str) -> bool:
    """Whether it is one of torch's functions, and not a method."""
    return name.startswith("torch.") and not name.startswith("torch.Tensor.")


class Following(Operators):
    """Runs each operator on the device, and once more on the CPU with the operands as they were. largest: most bytes of the
    storages of a call's operands."""

    def __init__(self, device: Device, seen: Followed, largest: int = LARGEST) -> None:
        super().__init__()
        self._device, self._seen, self._largest = device, seen, largest

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        if has_number(func, args, kwargs):
            func = _for_numbers(func, args, kwargs)
        if not _is_followed(func, (args, kwargs), self._device.torch_device.type):
            if torch.Tag.nondeterministic_seeded in func.tags and _lies_on(self._device.torch_device.type, (args, kwargs)):
                self._seen.draws.add(OperatorCall(func, (), {}).base_name)
            if torch.Tag.nondeterministic_seeded in func.tags and not _runs_on_the_cpu(func):  # `_cudnn_rnn` may drop out
                self._keep(OperatorCall(func, (), {}, unknown=True))
            return func(*args, **kwargs)
        self._seen.operators += 1
        read = Reader(self._device, self._largest)
        try:
            with torch._C.DisableTorchFunction():  # the caller's modes see the caller's calls alone
                call = OperatorCall(func, tree_map(read, tuple(args)), tree_map(read, dict(kwargs)))
        except Exception:  # what cannot be described is not run again, and the case must go on
            self._seen.missed += 1
            return func(*args, **kwargs)
        try:
            result = self._run(func, args, kwargs)
        except Exception as e:
            self.failed(call, e)
            if self._device.simulated and in_backward():
                return no_results(func)
            raise
        try:
            self.finished(call, args, kwargs, result)
        except Exception:  # whatever the device raises when it is read: the case itself reports it
            self._seen.missed += 1
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator. One that torch composes of others for every device (`_safe_softmax`) is opened, so that those are
        compared before it."""
        whole = func in self.open or OperatorCall(func, (), {}).is_copy or func.is_view
        key = None if whole else _composed(func, self._device.torch_device.type)
        if key is None:
            return func(*args, **kwargs)
        return self.opened(func, func._op_dk, (key, *args), kwargs)

    def failed(self, call: OperatorCall, error: Exception) -> None:
        """The device raised in a call."""
        self._keep(compared(call, self._device, error))

    def finished(self, call: OperatorCall, args: Any, kwargs: Any, result: Any) -> None:
        """A call came to its end: compare it."""
        self._keep(compared(call, self._device, self._ran(args, kwargs, result)))

    def _keep(self, call: OperatorCall) -> None:
        if call.unknown:
            self._seen.unknown.append(call)
        elif call.symptom:
            self._seen.calls.append(call)

    def _ran(self, args: Any, kwargs: Any, result: Any) -> CallResult:
        """What this very call left, so that a fault that does not come twice is seen."""
        read = Reader(self._device, self._largest)
        tree_map(read, (tuple(args), dict(kwargs)))
        tensors = [with_memory(t.detach()) for t in tree_leaves(result) if isinstance(t, Tensor)]
        results = tuple(self._device.download(t) if not t.is_cpu else t.clone() for t in tensors)
        return CallResult(results, read.bases, tuple(t.stride() for t in tensors))


def _for_numbers(func: Any, args: Any, kwargs: Any) -> Any:
    """The overload that takes a plain number where this one takes a tensor; the packet if torch cannot say."""
    packet = func.overloadpacket
    try:
        return getattr(packet, torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs) or "default")
    except Exception:  # a private function: without it the call is not followed
        return func


def _is_followed(func: Any, tree: Any, kind: str) -> bool:
    """Whether an operator computes on the device something that must be the same each time."""
    if func.namespace in OTHERS or torch.Tag.nondeterministic_seeded in func.tags or is_unwritten(func):
        return False
    return _lies_on(kind, tree) and (func.namespace == "aten" or _runs_on_the_cpu(func))


def _lies_on(kind: str, tree: Any) -> bool:
    leaves = tree_leaves(tree)
    places = [x.device if isinstance(x, Tensor) else x for x in leaves if isinstance(x, (Tensor, torch.device))]
    return any(place.type == kind for place in places)


def _composed(func: Any, kind: str) -> Any | None:
    """The key of the kernel that makes an operator of others, if devices of this type have none of their own."""
    has = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    keys = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
    made = None if has(backend_of(kind).key) else next(filter(has, keys), None)
    return made and getattr(torch._C.DispatchKey, made)


def _runs_on_the_cpu(func: Any) -> bool:
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in keys)


def is_unwritten(func: Any) -> bool:
    """Whether an operator returns memory that nobody wrote."""
    base: str = func.name().partition("::")[2].partition(".")[0]
    return any(base.startswith(name) for name in ATEN_UNWRITTEN)
