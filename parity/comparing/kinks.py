"""Gradients that jump: where a function has a kink (relu at 0, abs at 0, max of two equal elements), a rounding of its argument
decides between two gradients, and both are right.

So where a gradient is far from the CPU's, the arguments at kinks are compared. If some lie on another side than on the CPU, and
the judge finds them within rounding, then CPU and truth run once more with these arguments set to the device's: what comes of
that is the gradient along the device's own choice, with the usual budget. A device that computes another one is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from parity.comparing.comparison import Notes, farthest
from parity.comparing.places import line
from parity.comparing.subject import SEED, Put, Subject, forward, gradients, is_dense, known, tracked_outputs
from parity.comparing.truth import FunctionTruth, seeded
from parity.comparing.verdicts import Verdicts, verdicts
from parity.core.observer import Operators, in_backward
from parity.core.results import Raised, Status, Verdict
from parity.devices import Device
from parity.devices.refusals import listening
from parity.execution import execute as ex
from parity.judging.bench import Bench

LARGEST = 1 << 30  # most bytes of arguments that are kept of a run
SHOWN = 3  # calls that are named
JUMPS = "the gradient of "  # how the note of each begins
Given = Mapping[str, Any]  # the arguments of a call, by name
Points = tuple[tuple[float, Callable[[Tensor, float], Tensor]], ...]  # with what says on which side a number is


def _sign(x: Tensor, point: float) -> Tensor:
    return torch.sign(x - point)


def _shrinks(g: Given) -> Points:
    return (-g["lambd"], torch.ge), (g["lambd"], torch.gt)


def _clamps(g: Given) -> Points:
    ends = (g.get("min"), torch.ge), (g.get("max"), torch.gt)
    return tuple((p, side) for p, side in ends if isinstance(p, (int, float)))


def _compares(side: Callable[[Tensor, float], Tensor]) -> Callable[[Given], Points]:
    return lambda g: ((g["other"], side),) if isinstance(g["other"], (int, float)) else ()


# Where the gradient of an operator of one tensor jumps, and to which side each point itself belongs.
ATEN_POINTS: dict[str, Callable[[Given], Points]] = {
    **dict.fromkeys(("relu", "leaky_relu", "_prelu_kernel"), lambda g: ((0.0, torch.gt),)),
    "abs": lambda g: ((0.0, _sign),),
    "linalg_vector_norm": lambda g: ((0.0, _sign),) if g["ord"] == 1 else (),
    "threshold": lambda g: ((g["threshold"], torch.gt),),
    "hardtanh": lambda g: ((g["min_val"], torch.gt), (g["max_val"], torch.ge)),
    **dict.fromkeys(("hardshrink", "softshrink"), _shrinks),
    **dict.fromkeys(("hardsigmoid", "hardswish"), lambda g: ((-3.0, torch.gt), (3.0, torch.ge))),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamps),
    **dict.fromkeys(("gt", "le"), _compares(torch.gt)),
    **dict.fromkeys(("ge", "lt"), _compares(torch.ge)),
}
ATEN_PAIRS = ("maximum", "minimum", "fmax", "fmin", "max", "min", "gt", "ge", "lt", "le")  # jump where two tensors are equal
ATEN_POOL = "max_pool2d_with_indices"
ATEN_PICKS = ("max", "min", "amax", "amin", ATEN_POOL)  # the gradient goes to the element that they pick


@dataclass(frozen=True, slots=True)
class Argument:
    """What decides which gradient a call has. function: its name; values: one or two tensors, on the CPU; points: the kinks;
    side: on which side of these each element is, or whether it is picked; line: of the call in the caller's code."""

    function: str
    values: tuple[Tensor, ...]
    side: Tensor
    points: tuple[float, ...]
    line: str

    def elsewhere(self, other: Argument) -> Tensor | None:
        """The elements that lie on another side than in `other`; None if there are none."""
        if self.side.shape != other.side.shape:
            return None
        mask = self.side != other.side
        return mask if bool(mask.any()) else None


def _argument(name: str, g: Given, download: Put) -> Argument | None:
    """The argument of a call, None if its gradient does not jump. name: of the operator, without "aten::"."""
    first, other = g["self"], g.get("other")
    if not (is_dense(first) and first.is_floating_point() and first.numel()):
        return None
    pair = isinstance(other, Tensor) and name in ATEN_PAIRS
    points = () if pair or name not in ATEN_POINTS else ATEN_POINTS[name](g)
    if not (pair or points or name in ATEN_PICKS):
        return None
    values = tuple(download(t.detach()) for t in (first, other) if isinstance(t, Tensor) and (pair or t is first))
    if values[-1].shape != values[0].shape:
        return None
    x = values[0]
    if pair:
        side = torch.sign(values[0] - values[1]).to(torch.int8)
    elif points:
        side = sum((3**k * of(x, p).to(torch.int8) for k, (p, of) in enumerate(points)), torch.zeros_like(x, dtype=torch.int8))
    else:
        side = _picked(name, x, g)
    return Argument(name, values, side, tuple(p for p, _ in points), line())


def _picked(name: str, x: Tensor, g: Given) -> Tensor:
    """Which elements an operator picks."""
    if name == ATEN_POOL:
        how = [g[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
        _, at = torch.ops.aten.max_pool2d_with_indices(x, *how)
        return torch.zeros_like(x, dtype=torch.bool).flatten(-2).scatter(-1, at.flatten(-2), True).view(x.shape)
    dim = g.get("dim")
    dims = list(range(x.dim())) if dim is None or dim == [] else dim
    return x == (x.amax(dims, True) if "max" in name else x.amin(dims, True))


class Kinks:
    """Notes the arguments of all calls whose gradients jump, by operator and number. download: brings one to the CPU; chosen:
    elements to set before such a call, by the same names: a mask, and the values. backward: whether a backward pass ran."""

    def __init__(
        self, download: Put = torch.clone, chosen: Mapping[str, tuple[Tensor, Sequence[Tensor]]] | None = None
    ) -> None:
        self._download, self._chosen = download, chosen or {}
        self._numbers: Counter[str] = Counter()
        self._room = LARGEST
        self.seen: dict[str, Argument] = {}
        self.backward = False

    def observed(self) -> Operators:
        """The mode in which calls are noted."""
        return Operators(self._observe)

    def _observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.partition("::")[2].rstrip("_")
        inside = in_backward()
        self.backward |= inside
        if not inside and (name in ATEN_POINTS or name in ATEN_PAIRS or name in ATEN_PICKS):
            given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
            given |= {**dict(zip((a.name for a in func._schema.arguments), args)), **kwargs}
            with _disable_current_modes():
                self._call(name, given)
        return func(*args, **kwargs)

    def _call(self, name: str, g: Given) -> None:
        self._numbers[name] += 1
        key = f"{name} {self._numbers[name]}"
        if key in self._chosen:
            mask, values = self._chosen[key]
            for t, wanted in zip((g["self"], g.get("other")), values):
                if isinstance(t, Tensor) and t.shape == mask.shape:
                    t.data.copy_(torch.where(mask, wanted.to(t.dtype), t.data))  # `data`: autograd need not see a rounding
        elif self._room > 0 and (a := _argument(name, g, self._download)) is not None:
            self._room -= sum(v.nbytes for v in a.values)
            self.seen[key] = a


class _Arguments(FunctionTruth):
    """The truth of the arguments themselves. seen: those of the run in float64 whose operands are not moved."""

    seen: Mapping[str, Argument] | None = None

    def _run(self, put: Put, fed: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        mode = Kinks()
        with seeded():
            run = forward(self._s, put, self._backward, mode.observed())
        wide = any(v.dtype is torch.float64 for a in mode.seen.values() for v in a.values)
        self.seen = mode.seen if self.seen is None and wide else self.seen
        return _named(mode.seen), run.handed.stream if run.handed is not None else None


def _named(seen: Mapping[str, Argument]) -> dict[str, Tensor]:
    return {f"{key}[{k}]": v for key, a in seen.items() for k, v in enumerate(a.values)}


class _Along(FunctionTruth):
    """The truth with arguments set. chosen: see `Kinks`."""

    chosen: Mapping[str, tuple[Tensor, Sequence[Tensor]]] = {}

    def around(self) -> AbstractContextManager[Any]:
        """What sets them."""
        return Kinks(chosen=self.chosen).observed()


@dataclass(frozen=True, slots=True)
class AtKinks:
    """What came of the gradients that jump. verdicts: of those that are right along the device's choice; ours: the CPU's along
    that choice; notes: which arguments were turned, in words."""

    verdicts: Mapping[str, Verdict]
    ours: Mapping[str, Tensor]
    notes: tuple[str, ...]


NOTHING = AtKinks({}, {}, ())


def at_kinks(
    judgements: Verdicts, bench: Bench, s: Subject, device: Device, cotangents: Sequence[Tensor], sides: Sequence[Given]
) -> AtKinks:
    """What becomes of gradients that are far from the CPU's where arguments lie at kinks. bench: that of the judgements;
    sides: the results of the device and of the CPU."""
    theirs, ours = sides
    names = [n for n, v in judgements if n.startswith("grad[") and is_far(v, theirs.get(n), ours.get(n))]
    got = ex.attempt(lambda: _turned(s, device, bench), "run") if names else None
    if got is None or isinstance(got, Raised) or not got[0]:
        return NOTHING
    turned, here, there, wide = got

    def chosen(other: Mapping[str, Argument]) -> dict[str, tuple[Tensor, Sequence[Tensor]]]:
        masks = {k: there[k].elsewhere(other[k]) for k in turned}
        return {k: (m, there[k].values) for k, m in masks.items() if m is not None}

    along = _Along(s, True, cotangents, {}, most=bench.whole)
    along.chosen = chosen(wide)

    def run() -> dict[str, Tensor]:
        with seeded():
            made = forward(s, torch.clone, True, Kinks(chosen=chosen(here)).observed())
            return dict(gradients(made, tracked_outputs(made), cotangents))

    moved = ex.attempt(run, "run")
    if isinstance(moved, Raised) or any(n not in moved for n in names):
        return NOTHING
    there_, here_ = ({n: side[n] for n in names} for side in (theirs, moved))
    judged = verdicts(replace(bench, oracle=along), there_, here_, Notes())
    right = {n: v for n, v in judged if v.status is Status.AGREE} if not along.refused else {}
    if not right:
        return NOTHING
    some = [(k, m) for k in turned if (m := there[k].elsewhere(here[k])) is not None]
    words = tuple(_words(here[k], there[k], m, device.name, "the CPU") for k, m in some[:SHOWN])
    more = (f"so do the gradients of {len(some) - SHOWN} more calls",) if len(some) > SHOWN else ()
    listed = ", ".join(list(right)[:SHOWN]) + (f" and {len(right) - SHOWN} more" if len(right) > SHOWN else "")
    how = f"compared along the choice that {device.name} made there: {listed}"
    return AtKinks(right, {n: moved[n] for n in right}, (*words, *more, how)) if some else NOTHING


def is_far(v: Verdict, device: Tensor | None, cpu: Tensor | None) -> bool:
    """Whether a gradient is farther from the CPU's than roundings of its steps usually bring it."""
    if device is None or cpu is None or not (known(device) and known(cpu) and cpu.numel()):
        return False
    if (d := farthest(device, cpu)) is None:
        return False
    if not (cpu.is_floating_point() or cpu.is_complex()):
        return v.status.differs
    return v.status.differs or d.size > math.sqrt(torch.finfo(cpu.dtype).eps) * float(cpu.abs().max())


def _turned(
    s: Subject, device: Device, bench: Bench
) -> tuple[list[str], Mapping[str, Argument], Mapping[str, Argument], Mapping[str, Argument]] | None:
    """(the calls with an argument that is on another side on the device than on the CPU or in float64, and within rounding; all
    arguments on the CPU, on the device, and in float64); None where nothing is turned."""
    here = noted(s)
    mode = Kinks(device.download)
    with torch.random.fork_rng(devices=[]), device.active(), listening([]):
        device.seed(SEED)
        forward(s, device.upload, True, mode.observed(), torch.clone)
    there = {k: a for k, a in mode.seen.items() if k in here.seen}
    if not any(there[k].elsewhere(here.seen[k]) is not None for k in there):
        return None
    truth = _Arguments(s, True, (), _named(here.seen), most=bench.whole)
    found: dict[str, Argument] = {}
    for key, a in there.items():
        names = [n for n in _named({key: a}) if truth.truth(n) is not None]
        wide = truth.seen or {}
        if truth.refused or key not in wide or len(names) < len(a.values):
            continue
        if a.elsewhere(here.seen[key]) is not None or a.elsewhere(wide[key]) is not None:
            found[key] = a
    asked = replace(bench, oracle=truth, limits=None)
    judged = dict(verdicts(asked, _named(found), _named({k: here.seen[k] for k in found}), Notes()))
    right = [k for k, a in found.items() if all(judged[n].status is Status.AGREE for n in _named({k: a}))]
    return right, here.seen, there, truth.seen or {}


def noted(s: Subject) -> Kinks:
    """The arguments of a run on the CPU. Raises what the function raises."""
    mode = Kinks()
    with seeded():
        forward(s, torch.clone, True, mode.observed())
    return mode


def _words(here: Argument, there: Argument, mask: Tensor, device: str, cpu: str) -> str:
    """Why the gradient of a call jumps, in words. mask: the elements that are turned; device, cpu: who has each argument."""
    name = f"{JUMPS}{here.function.strip('_').removesuffix('_kernel').removesuffix('_with_indices')}"
    at = f" (at {here.line.partition(', in ')[0]})" if here.line else ""
    index = tuple(int(i) for i in mask.nonzero()[0])
    more = int(mask.sum()) - 1
    others = f", and {more} more" if more else ""
    (x, y), where = (a.values[0][index] for a in (there, here)), list(index)
    if here.points:
        p = min(here.points, key=lambda p: abs(float(y) - p))
        digits = ".9g" if p else ".3g"  # that numbers near 1 differ in
        return (
            f"{name}{at} jumps at {p:g}: the argument at {where} is {p:g} within rounding "
            f"({float(x):{digits}} on {device}, {float(y):{digits}} on {cpu}){others}"
        )
    if len(here.values) > 1:
        gaps = [float(a.values[0][index]) - float(a.values[1][index]) for a in (there, here)]
        return (
            f"{name}{at} jumps where its arguments are equal: those at {where} are within rounding "
            f"({gaps[0]:.3g} apart on {device}, {gaps[1]:.3g} on {cpu}){others}"
        )
    alone = [(mask & a.side.bool()).nonzero()[:1].tolist() for a in (there, here)]
    picks = ", ".join(f"{some[0]} on {who} alone" for some, who in zip(alone, (device, cpu)) if some)
    return f"{name}{at} goes to what it picks, {picks}, of elements that are equal within rounding"


def in_words(s: Subject, theirs: Given, ours: Given) -> Iterator[str]:
    """Which kinks may explain results that are far from the CPU's, of a function that computes gradients itself, so that
    nobody knows the device's arguments."""
    if not any(is_far(Verdict(Status.AGREE), theirs.get(n), t) for n, t in ours.items()):
        return
    mode = ex.attempt(lambda: noted(s), "run")
    if isinstance(mode, Raised) or not mode.backward:
        return
    truth, shown = _Arguments(s, True, (), _named(mode.seen)), 0
    for key, a in mode.seen.items():
        wide = None if truth.truth(f"{key}[0]") is None else (truth.seen or {}).get(key)
        if truth.refused or wide is None or shown == SHOWN or wide.side.shape != a.side.shape:
            continue
        mask = a.side != wide.side
        moved = sum(truth.sensitivity(n, 0.0, 0.0) for n in _named({key: a}))
        gaps = [wide.values[0] - p for p in a.points] or ([wide.values[0] - wide.values[1]] if len(a.values) > 1 else [])
        for gap in gaps:
            mask |= (gap.abs() <= moved) & (moved > 0)
        if bool(mask.any()):
            shown += 1
            yield _words(a, wide, mask, "float64", "the CPU")
