"""Measures how far off each module of a model is on the device, with all errors before it: outputs, input gradients,
parameters.

Unlike `locate`, which judges every operator on the operands that it got, this compares whole runs: a module behind a wrong one
is off, too. An error is given in units of what rounding explains at that place: how far runs in float64 lie from the exact one
in which every operator's result is rounded by chance.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from parity.comparing.draws import SharedRandom
from parity.comparing.moved_runs import by_chance
from parity.comparing.subject import SEED, Subject, forward, gradients, tracked_outputs
from parity.comparing.truth import seeded
from parity.core.results import Raised
from parity.devices import Device
from parity.execution import execute as ex
from parity.oracle.float64 import widen
from parity.oracle.roundoffs import perturbed, unit_roundoff
from parity.oracle.step_dtypes import Recorded, in_double

RUNS = 4  # rounded runs
LARGEST = 1 << 30  # most bytes of exact results that are kept at a time
KINDS = ("outputs", "input gradients", "parameter gradients")
Key = tuple[str, str, str]  # module, one of KINDS, which of them


@dataclass(frozen=True, slots=True)
class ModuleError:
    """How many times as far off as rounding explains a module's tensors are, at most; None where there are none to compare.
    module: its dotted path, "" for the model itself; kind: its class; parameters: the gradients of its own, by name."""

    module: str
    kind: str
    outputs: float | None = None
    input_gradients: float | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max((x for x in (self.outputs, self.input_gradients, *self.parameters.values()) if x is not None), default=0.0)


def module_errors(s: Subject, cotangents: Sequence[Tensor], device: Device) -> tuple[tuple[ModuleError, ...], str]:
    """(the errors of each module that ran, in the order in which they first ran; a note on what was left out)."""
    exact = _Exact()
    wide = in_double(s.coarsest)
    got: Any = ex.attempt(lambda: _run(s, lambda t: widen(t, None).clone(), cotangents, exact, wide), "run")
    if isinstance(got, Raised):
        return (), f"no table of modules: it does not run in float64 ({got.type}: {got.message})"
    recorded, explained = Recorded(), _Errors(exact)
    ex.attempt(lambda: _run(s, torch.clone, cotangents, explained, recorded), "run")
    for key in range(RUNS):

        def put(t: Tensor, key: int = key) -> Tensor:
            return perturbed(widen(t, None).clone(), unit_roundoff(s.coarsest), 101 * key)

        chance = by_chance(recorded.dtypes, s.coarsest, key)
        ex.attempt(lambda: _run(s, put, cotangents, explained, chance), "run")  # noqa: B023 -- run at once
    theirs = _Errors(exact, device)
    with device.active():
        got = ex.attempt(lambda: _run(s, device.upload, cotangents, theirs, contextlib.nullcontext(), device), "run")
    if isinstance(got, Raised):
        return (), f"no table of modules: it raises on the device ({got.type}: {got.message})"
    return tuple(_table(exact, explained, theirs)), _left_out(exact)


def _left_out(exact: _Exact) -> str:
    return (
        f"{exact.left} tensors of modules were not compared, because all of them are too large to be kept" if exact.left else ""
    )


def _table(exact: _Exact, explained: _Errors, theirs: _Errors) -> Iterator[ModuleError]:
    ratios: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for key, off in theirs.norms.items():
        usual = explained.norms.get(key, [])
        typical = (sum(x * x for x in usual) / len(usual)) ** 0.5 if usual else 0.0
        least = theirs.least[key] * exact.sizes[key]
        by = max(typical, least)
        ratios[key[0], key[1]][key[2]] = max(off) / by if by else (float("inf") if max(off) else 0.0)
    for name, kind in exact.kinds.items():
        outputs, inputs, parameters = (ratios.get((name, k), {}) for k in KINDS)
        most = [max(x.values(), default=None) for x in (outputs, inputs)]
        yield ModuleError(name, kind, most[0], most[1], parameters)


def shown(errors: Sequence[ModuleError], most: int = 40) -> list[str]:
    """The table in words, the worst module first."""
    order = sorted(errors, key=lambda e: -e.worst)
    wide = max((len(_title(e)) for e in order[:most]), default=6)
    lines = [f"{'module':<{wide}}  {'outputs':>8}  {'input grad':>10}  parameter gradients"]
    for e in order[:most]:
        worst = sorted(e.parameters.items(), key=lambda nv: -nv[1])
        own = ", ".join(f"{n.rpartition('.')[2]} {v:.2g}" for n, v in worst[:3])
        lines.append(f"{_title(e):<{wide}}  {_number(e.outputs):>8}  {_number(e.input_gradients):>10}  {own}".rstrip())
    return lines + ([f"... and {len(order) - most} more modules, each less far off"] if len(order) > most else [])


def _title(e: ModuleError) -> str:
    return f"{e.module} ({e.kind})" if e.module else e.kind


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.2g}"


# ------------------------------------------------------------------------------------------------------------------ a run


class _Seen:
    """The tensors of a run's modules. kinds: class of each module that ran, in order."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}

    def add(self, key: Key, t: Tensor) -> None:
        """A tensor came by."""
        raise NotImplementedError


class _Exact(_Seen):
    """Keeps the exact results. left: how many were not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[Key, Tensor] = {}
        self.sizes: dict[Key, float] = {}
        self.left = self._bytes = 0

    def add(self, key: Key, t: Tensor) -> None:
        """Keep it, if there is room."""
        self._bytes += t.numel() * 8
        if self._bytes > LARGEST:
            self.left += 1
            return
        self.tensors[key] = t.detach().clone()
        self.sizes[key] = float(self.tensors[key].norm())


class _Errors(_Seen):
    """Keeps the norms of the differences to the exact results, one for each run; least: unit roundoff of each tensor."""

    def __init__(self, exact: _Exact, device: Device | None = None) -> None:
        super().__init__()
        self._exact, self._device = exact, device
        self.norms: dict[Key, list[float]] = defaultdict(list)
        self.least: dict[Key, float] = {}

    def add(self, key: Key, t: Tensor) -> None:
        """Compare it."""
        truth = self._exact.tensors.get(key)
        if truth is None or truth.shape != t.shape:
            return
        near = self._device.download(t.detach()) if self._device is not None and not t.is_cpu else t.detach()
        norm = float((widen(near, None) - truth).abs().norm())
        self.norms[key].append(norm if norm == norm else float("inf"))
        self.least[key] = unit_roundoff(t.dtype)


def _run(
    s: Subject,
    put: Callable[[Tensor], Tensor],
    cotangents: Sequence[Tensor],
    seen: _Seen,
    around: contextlib.AbstractContextManager[Any],
    device: Device | None = None,
) -> None:
    """A run, forward and backward, that hands on its modules' tensors."""
    if device is not None:
        device.seed(SEED)
    with seeded(), around, SharedRandom(), _hooked(seen):
        run = forward(s, put, bool(cotangents), stay=torch.clone)
        fed = [put(c) for c in cotangents]
        grads = gradients(run, tracked_outputs(run), fed) if fed else ()
    owners = {f"grad[{n}]": n for n, _ in run.leaves}
    known = dict(s.module.named_parameters()) if s.module is not None else {}
    for name, g in grads:
        module, _, own = owners[name].rpartition(".")
        if owners[name] in known:
            seen.add((module, KINDS[2], own), g)


@contextlib.contextmanager
def _hooked(seen: _Seen) -> Iterator[None]:
    names: dict[int, str] = {}
    roots: list[nn.Module] = []
    calls: dict[str, int] = defaultdict(int)

    def add(key: Key, t: Tensor) -> None:
        with _disable_current_modes():
            seen.add(key, t)

    def enter(m: nn.Module, args: Any) -> Any:
        if not roots or id(m) not in names:
            roots.append(m)
            names.update({id(part): n for n, part in m.named_modules()})
        name = names[id(m)]
        calls[name] += 1
        seen.kinds.setdefault(name, type(m).__name__)
        return tuple(apart(f"{calls[name]} {k}", name, x) for k, x in enumerate(args))

    def apart(which: str, name: str, x: Any) -> Any:
        """An input with a node of its own, so that its gradient is what this module alone hands back."""
        if not isinstance(x, Tensor) or not x.requires_grad or not x.is_floating_point() or not torch.is_grad_enabled():
            return x
        own = x.view_as(x)
        own.register_hook(lambda g: add((name, KINDS[1], which), g))  # type: ignore[no-untyped-call]
        return own

    def leave(m: nn.Module, args: Any, out: Any) -> None:
        name = names[id(m)]
        for k, t in enumerate(tree_leaves(out)):
            if isinstance(t, Tensor) and t.is_floating_point() and t.layout is torch.strided:
                add((name, KINDS[0], f"{calls[name]} {k}"), t)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for h in hooks:
            h.remove()
