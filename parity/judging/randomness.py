"""Tests of random ops on a device: the distribution of the draws, the effect of the seed, and gradients that fit the draw.

Every test raises a false alarm on an honest generator with a probability of at most `concentration_bounds.ALPHA`; one case runs
at most two dozen of them. A case is drawn repeatedly until there are enough elements to show a fault of a given size.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parity.core.case import Case
from parity.core.results import Tolerance
from parity.devices.base import Device
from parity.execution import execute as ex
from parity.execution.execute import Live, Placed, Program
from parity.execution.inputs import Inputs
from parity.execution.values import unit
from parity.judging import laws
from parity.judging.laws.law import Law, Problems, Results, first
from parity.judging.outliers import ALPHA, weight
from parity.judging.sameness import same_values
from parity.judging.uniformity import judged

LAW = Tolerance("random", 0.0, 0.0, None, f"the op's law, at most {ALPHA:g} false alarms a test")
LARGE = 1 << 12  # from this many elements on a case is drawn as often as a large one
POOLED, POOLED_LARGE = 1 << 12, 1 << 17  # pooled elements of a small case, of a large one
DRAWS = 64  # at most this many calls
SLOPE_ELEMENTS = 4096  # larger operands are not differentiated by differences


@dataclass(frozen=True, slots=True)
class RandomCase:
    """A case on a device, ready to be drawn. bound: the call with operands on the CPU; placed: the operands on the device."""

    program: Program
    case: Case
    inputs: Inputs
    bound: laws.CallLike
    device: Device
    placed: Placed

    def draw(self, generator: torch.Generator | None = None) -> Results:
        """One call, its results on the CPU."""
        inputs = self.inputs
        if generator is not None:
            inputs = replace(inputs, kwargs={**inputs.kwargs, "generator": generator})
        live = ex.forward(self.program, self.case, inputs, self.placed, False)
        self.device.synchronize()
        return {n: t for n, t in ex.download(live.outputs, self.device) if not n.startswith("base[")}

    def draws(self, seed: int, count: int) -> list[Results]:
        """The results of `count` calls in a row after setting this seed."""
        self.device.seed(seed)
        return [self.draw() for _ in range(count)]


def problems(
    program: Program, case: Case, inputs: Inputs, bound: laws.CallLike, device: Device, seed: int | None = None
) -> Problems:
    """What is wrong with the op on the device, as (name of the result, sentence) pairs; [] if nothing is, or if the op has no
    law.

    bound: the call with the operands on the CPU. seed: derived from the case unless given. Exceptions of the device pass
    through. torch's CPU generator is left as it was.
    """
    law = laws.find(bound.row)
    if law is None:
        return []
    seed = zlib.crc32(repr(case).encode()) >> 2 if seed is None else seed
    with _undisturbed():
        drawn = RandomCase(program, case, inputs, bound, device, ex.place(inputs, device))
        if program.row.is_sampled:  # the entry seeds its own call, so there is only one draw
            draws = [drawn.draw()]
            return law.outside(bound, draws[0]) or _judged(law, drawn, draws)
        return _problems(law, drawn, seed)


def _problems(law: Law, drawn: RandomCase, seed: int) -> Problems:
    start = drawn.draws(seed, 1)
    if wrong := law.outside(drawn.bound, start[0]):
        return wrong
    name, shown = first(start[0])
    surprise = sum(s.surprise for s in law.observe(drawn.bound, start[0])[:1])
    # Enough calls that an honest generator cannot repeat them by chance.
    span = min(DRAWS, 2 + int(weight() / surprise)) if surprise > 0 else 1
    ours = start + [drawn.draw() for _ in range(span - 1)]
    again, other = drawn.draws(seed, span), drawn.draws(seed + 1, span)
    if not _alike(law, ours, again):
        return [(name, "the same seed gives another stream")]
    if surprise * span > weight() and _alike(law, ours, other):
        return [(name, "another seed gives the same stream")]
    if surprise * (span - 1) > weight() and all(_alike(law, ours[:1], [d]) for d in ours[1:]):
        return [(name, f"{span} calls one after the other give the same")]
    if law.generator and (wrong := _own_generator(law, drawn, seed, ours, surprise)):
        return wrong
    drawn.device.seed(seed + 2)
    pooled = [*ours, *other]
    size = max(1, shown.numel())
    wanted = POOLED_LARGE if size >= LARGE else POOLED
    while len(pooled) < DRAWS and len(pooled) * size < wanted and surprise:
        pooled.append(drawn.draw())
    for d in _together(law, pooled[1:]):
        if wrong := law.outside(drawn.bound, d):
            return wrong
    return _judged(law, drawn, pooled) or _differentiated(law, drawn, seed)


def _together(law: Law, draws: list[Results]) -> list[Results]:
    """The draws, as one stack if the law accepts stacks and all draws have one form."""
    forms = {tuple((n, x.shape, x.dtype) for n, x in d.items()) for d in draws}
    if not law.stacks or len(forms) != 1:
        return draws
    return [{n: torch.stack([d[n] for d in draws]) for n in draws[0]}]


def _alike(law: Law, a: list[Results], b: list[Results]) -> bool:
    """Whether two streams are the same: bit by bit, or nearly if sums may be reordered."""
    pairs = [(x[n], y[n]) for x, y in zip(a, b) for n in x]
    if law.bits:
        return all(same_values(x, y) for x, y in pairs)
    return all(torch.allclose(x.to(torch.float64), y.to(torch.float64), 1e-3, 1e-3, equal_nan=True) for x, y in pairs)


def _own_generator(law: Law, drawn: RandomCase, seed: int, ours: list[Results], surprise: float) -> Problems:
    """Problems of a separate generator: its seed must decide, it must advance, and the default stream must not move."""
    try:
        generator = torch.Generator(device=drawn.device.torch_device)
    except (RuntimeError, NotImplementedError):  # the backend has none
        return []
    name = first(ours[0])[0]
    generator.manual_seed(seed)
    drawn.device.seed(seed)
    try:
        mine = [drawn.draw(generator) for _ in ours]
    except (TypeError, NotImplementedError):  # this form of the op takes none
        return []
    default = [drawn.draw() for _ in ours]
    generator.manual_seed(seed)
    again = [drawn.draw(generator) for _ in ours]
    if not _alike(law, mine, again):
        return [(name, "the same seed of an own generator gives another stream")]
    if not _alike(law, default, ours):
        return [(name, "a draw from an own generator moves the default stream")]
    if surprise * (len(mine) - 1) > weight() and all(_alike(law, mine[:1], [d]) for d in mine[1:]):
        return [(name, "an own generator is not advanced by a draw")]
    generator.manual_seed(seed + 1)
    if surprise * len(mine) > weight() and _alike(law, mine, [drawn.draw(generator) for _ in ours]):
        return [(name, "another seed of an own generator gives the same stream")]
    return []


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore torch's default generator afterwards."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _judged(law: Law, drawn: RandomCase, draws: list[Results]) -> Problems:
    """Problems of the distribution, over all draws together."""
    observed = [law.observe(drawn.bound, d) for d in _together(law, draws)]
    name = first(draws[0])[0]
    for samples in zip(*observed):
        if text := judged(list(samples), len(draws)):
            return [(name, text)]
    return []


# ------------------------------------------------------------------------------------------------------------ gradients


def _differentiated(law: Law, drawn: RandomCase, seed: int) -> Problems:
    """Problems of the gradient: it must belong to the draw that forward made."""
    case, row = drawn.case, drawn.program.row
    if case.dtype not in row.grad or row.forms.mutates or (law.gradient is None and law.slope is None):
        return []
    leaves = [o for o in drawn.inputs.operands if o.spec.grad and o.view.is_floating_point()]
    if not leaves or any(o.view.numel() > SLOPE_ELEMENTS for o in leaves):
        return []
    drawn.device.seed(seed)
    live = ex.forward(drawn.program, case, drawn.inputs, drawn.placed, True)
    tracked = ex.differentiable(live)
    if not tracked:
        return []
    fed = [_numbers(t, 40 + i) for i, (_, t) in enumerate(tracked)]
    pulled = ex.backward(live, [c.to(t.dtype).to(t.device) for c, (_, t) in zip(fed, tracked)])
    drawn.device.synchronize()
    results = dict(ex.download(live.outputs, drawn.device))
    grads = dict(ex.download(pulled, drawn.device))
    if law.gradient is not None and "grad[0]" in grads:
        return law.gradient(drawn.bound, results, fed[0].to(tracked[0][1].dtype), grads["grad[0]"])
    if law.slope is None or not law.slope(drawn.bound) or case.dtype != "float32":
        return []
    return _by_differences(drawn, seed, live, fed, grads)


def _numbers(like: Tensor, key: int) -> Tensor:
    """Numbers of magnitude about 1 in the shape of `like`, rounded to its dtype, as float64 on the CPU."""
    numbers = torch.from_numpy(unit(key, max(1, like.numel())))[: like.numel()] * 2 - 1
    return (numbers + numbers.sign() * 0.25).view(like.shape).to(like.dtype).to(torch.float64)


def _by_differences(drawn: RandomCase, seed: int, live: Live, fed: list[Tensor], grads: dict[str, Tensor]) -> Problems:
    """Compare the gradient along one direction with differences of the op itself under the same seed.

    Two step sizes show how well the slope is known.
    """
    operands = drawn.inputs.operands
    if any(not bool((o.view.abs() <= 64).all()) for o in operands if o.view.is_floating_point()):
        return []
    directions = {i: _numbers(operands[i].view, 60 + i) for i, _ in live.leaves}
    directional = math.fsum(
        float((grads[f"grad[{i}]"].double() * v).sum()) for i, v in directions.items() if f"grad[{i}]" in grads
    )

    def along(step: float) -> float:
        views = list(drawn.placed.views)
        for i, v in directions.items():
            moved = (operands[i].view.to(torch.float64) + step * v).to(operands[i].view.dtype)
            views[i] = drawn.device.upload(moved)
        drawn.device.seed(seed)
        out = ex.forward(drawn.program, drawn.case, drawn.inputs, replace(drawn.placed, views=tuple(views)), False).outputs
        here = ex.download(out[: len(fed)], drawn.device)
        return math.fsum(float((t.to(torch.float64) * c).sum()) for (_, t), c in zip(here, fed))

    slopes = [(along(h) - along(-h)) / (2 * h) for h in (2.0**-8, 2.0**-9)]
    size = math.sqrt(math.fsum(float((g.double() ** 2).sum()) for g in grads.values()))
    unsure = 4 * abs(slopes[0] - slopes[1]) + 0.02 * (abs(slopes[1]) + size) + 1e-3
    if not math.isfinite(slopes[1]) or not abs(directional - slopes[1]) <= unsure:
        if not math.isfinite(slopes[0] + slopes[1]):
            return []
        return [("grad", f"is {directional:.4g} along a direction in which the op, equally seeded, changes by {slopes[1]:.4g}")]
    return []
