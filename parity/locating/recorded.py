"""Recorded calls, run again on this machine's CPU: one, and a stretch of them behind storages that were not kept."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_overridable_functions, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from parity.checks.equivalents import on_the_cpu
from parity.checks.operators import OperatorCall
from parity.locating.capture_file import RecordedCall, Ref, refs
from parity.locating.capturing import runs_on_the_cpu
from parity.locating.values import Sketch

ATEN_FORBIDDEN = ("aten::from_file", "aten::_print")  # they touch more than tensors


class Stretch:
    """A function of known storages: the results of a recorded call, and of all calls between. sources: the storages; calls: the
    numbers of the calls that run."""

    def __init__(
        self, ran: RecordedCall, known_: Mapping[str, Tensor], made: Mapping[str, tuple[OperatorCall, RecordedCall]]
    ) -> None:
        self._ran, self._made = ran, made
        keys: dict[str, None] = {}
        self.calls: dict[int, RecordedCall] = {}
        left = [ran]
        while left:
            one = left.pop()
            if id(one) in self.calls:
                continue
            self.calls[id(one)] = one
            for r in refs((one.args, one.kwargs)):
                if r.storage in known_:
                    keys[r.storage] = None
                elif r.storage in made:
                    left.append(made[r.storage][1])
        self._keys = list(keys)
        self.sources = [known_[k] for k in keys]
        self.__name__ = ran.name

    def __call__(self, *sources: Tensor) -> tuple[Tensor, ...]:
        """The results of the last call."""
        bases = dict(zip(self._keys, sources, strict=True))
        done: set[int] = set()
        # Without recursion, because a stretch may be as long as the whole run.
        waiting = [self._ran]
        while True:
            one = waiting[-1]
            needed = [r.storage for r in refs((one.args, one.kwargs)) if r.storage not in bases]
            if needed:
                waiting += [self._made[k][1] for k in needed]
                continue
            waiting.pop()
            if id(one) in done:
                continue
            done.add(id(one))
            results, after = run(one, bases)
            if one is self._ran:
                return results
            for key, base in bases_of(one, results, after):
                bases.setdefault(key, base)


def run(ran: RecordedCall, bases: Mapping[str, Tensor]) -> tuple[tuple[Tensor, ...], Mapping[int, Tensor]]:
    """The results of a recorded call on these storages, and those that it wrote, by group."""
    copies = {r.group: bases[r.storage].clone() for r in refs((ran.args, ran.kwargs))}

    def realised(x: Any) -> Any:
        return r.over(copies[r.group]).on(copies[r.group]) if isinstance(r := x, Ref) else x

    args, kwargs = tree_map(realised, ran.args), tree_map(realised, ran.kwargs)
    got = on_the_cpu(_overload(ran.name))(*args, **kwargs)
    return tuple(t for t in tree_leaves(got) if isinstance(t, Tensor)), copies


def bases_of(
    ran: RecordedCall, results: Sequence[Tensor], after: Mapping[int, Tensor] | Sequence[Tensor]
) -> list[tuple[str, Tensor]]:
    """The storages that a call made or wrote, with their digests."""
    made = [(key, after[group]) for group, key in ran.after.items()]
    return made + [(r.storage, laid(r, t, None)) for r, t in zip(ran.results, results)]


def laid(r: Ref, t: Tensor, sketch: Sketch | None) -> Tensor:
    """The flat storage of a result that lies as the device's did."""
    plain = t.resolve_conj().resolve_neg()
    reach = 1 + sum((n - 1) * k for n, k in zip(r.shape, r.strides)) if t.numel() else 0
    count = sketch.count if sketch is not None else r.offset + reach
    if r.strides == plain.contiguous().stride() and count == t.numel() and not r.offset:
        return plain.contiguous().view(-1)
    made = torch.zeros(count, dtype=plain.dtype)
    made.as_strided(r.shape, r.strides, r.offset).copy_(plain)
    return made


def call_of(ran: RecordedCall, base: Callable[[str], Tensor]) -> OperatorCall:
    """The operator with its operands. Raises ValueError for one that is not run, or that would make more than was recorded."""
    # Copies, because some operators write operands although their schemas do not say so (`native_batch_norm`).
    copies = {r.group: base(r.storage).clone() for r in refs((ran.args, ran.kwargs))}
    trees = (tree_map(lambda x: x.over(copies[x.group]) if isinstance(x, Ref) else x, t) for t in (ran.args, ran.kwargs))
    call = OperatorCall(_overload(ran.name), *trees)
    if ran.error is None:
        _sized(call, sum(math.prod(r.shape) for r in ran.results))
    return call


def _sized(call: OperatorCall, most: int) -> None:
    """Raises ValueError if the operator makes larger results than were recorded, as far as torch can say without running it."""
    nowhere = torch.device("meta")

    def meta(x: Any) -> Any:
        if isinstance(x, torch.device):
            return nowhere
        return x if not hasattr(x, "strides") else torch.empty_strided(x.shape, x.strides, dtype=x.base.dtype, device=nowhere)

    args, kwargs = tree_map(meta, call.args), tree_map(meta, call.kwargs)
    try:
        with torch.no_grad():
            got = on_the_cpu(call.operator)(*args, **kwargs)
    except Exception:  # what it makes depends on the values
        return
    if sum(t.numel() for t in tree_leaves(got) if isinstance(t, Tensor)) > most:
        raise ValueError("it makes more than was recorded")


@functools.cache
def _overload(name: str) -> Any:
    """The operator of aten with this name. Raises ValueError for what is none that parity runs on the CPU."""
    full = f"aten::{name}"
    if full.partition(".")[0] in ATEN_FORBIDDEN or full not in _operators():
        raise ValueError(f"no operator {name}")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if not runs_on_the_cpu(operator):
        raise ValueError(f"the CPU has no {name}")
    return operator


@functools.cache
def _operators() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


@functools.cache
def functions() -> dict[str, Any]:
    """torch's public functions by their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = [f for some in get_overridable_functions().values() for f in some]
    return {str(resolve_name(f)): f for f in every if str(resolve_name(f) or "").startswith("torch.")}


def cloned(x: Any) -> Any:
    """A tensor with memory of its own; anything else as it is."""
    return x.clone() if isinstance(x, Tensor) else x
