"""The judge's power: its verdicts on results that agree once an error is put into them.

A judge that agrees with everything raises no alarm. So some agreeing comparisons are judged again, with one of `ERRORS` put
into one of the device's results. Each error is then *seen*, *proved* (an experiment shows that nothing is promised of the
changed elements, or an honest device may be off by more than half of them), or *blind*.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from parity.core.results import FINDINGS, Measure, Status
from parity.core.status import BLIND, ERRORS, PROVED, SEEN
from parity.execution.inputs import apply
from parity.judging.bench import Bench
from parity.judging.destination import Part, inner
from parity.judging.judge import judge
from parity.judging.limits import Limits
from parity.judging.measures import Mask, parts
from parity.judging.rules import rule_of
from parity.judging.sameness import same_bits

SMALL = 0.05  # relative error put into one element
# Elements of the results into which errors are put: 14 larger ones of 10,000 cases took a sixth of a run's CPU time.
LARGEST = 1 << 13


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of one error. dtype: of the changed result; why: for a blind one, what the judge said."""

    aspect: str
    dtype: str
    error: str
    outcome: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of the results of one comparison in one dtype.

    total: all of them; shown: excused by an experiment; unshown: excused without one; loose: with an honest budget above half
    of their value.
    """

    dtype: str
    total: int
    shown: int
    unshown: int
    loose: int


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """All probes of one comparison. sharp: (elements for which an error of 5 % would be reported, non-zero elements)."""

    probes: tuple[Probe, ...]
    elements: tuple[Elements, ...]
    sharp: tuple[int, int]


def probe(
    bench: Bench,
    device: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    pass_: str,
    written: Mapping[str, Part] | None,
    aspect: str,
    key: str,
) -> ProbeResults | None:
    """Put each of the errors into a comparison that agrees; None if that is not possible. key: seeds the choices."""
    if not rule_of(bench.row).has_values:
        return None  # random ops are tested by their laws
    if sum(x.numel() for x in device.values()) > LARGEST:
        return None
    limits: dict[str, Limits] = {}
    whole = replace(bench, always_use_oracle=True, limits=limits)
    if judge(whole, device, reference, pass_, written)[0].status is not Status.AGREE:
        return None
    rng = random.Random(f"{key} {aspect}")
    probes, sharp = [], [0, 0]
    names = [n for n, x in device.items() if x.layout is torch.strided and x.numel() and _inner(x, n, written).numel()]
    plain = replace(bench, always_use_oracle=False, limits=None)
    for error in ERRORS:
        if not names:
            break
        name = rng.choice(names)
        x, known = _inner(device[name], name, written), limits.get(inner(name), limits.get(name))
        changed = _changed(error, x, known, rng)
        if changed is None:
            continue
        altered, where = changed
        results = {**device, name: _put(device[name], altered, name, written)}
        verdict, measures = judge(plain, results, reference, pass_, written)
        if verdict.status not in FINDINGS and _right_too(name, x, measures):
            continue
        word = str(x.dtype).removeprefix("torch.")
        outcome = SEEN if verdict.status in FINDINGS else PROVED if _proved(known, where) else BLIND
        why = f"{verdict.status}: {verdict.reason[:80]}" if outcome == BLIND else ""
        probes.append(Probe(aspect, word, error, outcome, why))
    for known in limits.values():
        some = known.size > 0.0
        sharp[0] += int((some & (known.relative < SMALL)).sum())
        sharp[1] += int(some.sum())
    return ProbeResults(tuple(probes), tuple(_elements(n, device, k) for n, k in limits.items()), (sharp[0], sharp[1]))


def _right_too(name: str, x: Tensor, measures: Sequence[Measure]) -> bool:
    """Whether the changed integers are another right answer: an index of an equal element."""
    whole = not (x.is_floating_point() or x.is_complex())
    return whole and any(m.tensor == name and m.screen == "relation" and not m.unjudged for m in measures)


def _elements(name: str, device: Mapping[str, Tensor], known: Limits) -> Elements:
    x = next(x for n, x in device.items() if name in (n, inner(n)))
    excused, shown = int(known.excused.sum()), int(known.shown.sum())
    return Elements(str(x.dtype).removeprefix("torch."), known.size.size, shown, excused - shown, int(known.loose.sum()))


def _inner(x: Tensor, name: str, written: Mapping[str, Part] | None) -> Tensor:
    """The result itself, cut out of its destination if it has one."""
    part = (written or {}).get(name)
    return x if part is None else apply(x, part.layout, part.shape)


def _put(x: Tensor, altered: Tensor, name: str, written: Mapping[str, Part] | None) -> Tensor:
    """The altered result, inside its destination if it has one."""
    part = (written or {}).get(name)
    if part is None:
        return altered
    base = x.clone()
    apply(base, part.layout, part.shape).copy_(altered)
    return base


def _proved(known: Limits | None, where: Mask) -> bool:
    """Whether all changed elements are excused by experiment, or loose."""
    if known is None or known.excused.shape != where.shape:
        return False
    return bool((known.shown | known.loose)[where].all())


# ----------------------------------------------------------------------------------------------------------- the errors

Change = tuple[Tensor, Mask]


def _changed(error: str, x: Tensor, known: Limits | None, rng: random.Random) -> Change | None:
    """(the result with an error, mask of the changed real parts); None if the error does not apply to it."""
    if not (x.is_floating_point() or x.is_complex()):
        return _changed_whole(error, x, rng)
    changes: dict[str, Callable[[], Change | None]] = {
        ERRORS[0]: lambda: _scaled(x, 1.5),
        ERRORS[1]: lambda: _one(x, known, rng),
        ERRORS[2]: lambda: _scaled(x, 1.01),
        ERRORS[3]: lambda: _special(x, rng),
    }
    return changes[error]()


def _scaled(x: Tensor, factor: float, only: Tensor | None = None) -> Change | None:
    """Every finite number (or those in `only`) times the factor; numbers that would leave the range stay as they are."""
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64) * factor
    more = wide.to(x.dtype)
    fine = torch.isfinite(x.abs()) & (x.abs() > 4 * torch.finfo(x.dtype).tiny) & torch.isfinite(more.abs())
    fine = fine if only is None else fine & only
    altered = torch.where(fine, more, x)
    if same_bits(altered, x.contiguous()):
        return None
    return altered, _places(fine, x)


def _one(x: Tensor, known: Limits | None, rng: random.Random) -> Change | None:
    """One element changed by 5 %, drawn from those for which that would be reported."""
    size = parts(x)
    sharp = (size != 0.0) & np.isfinite(size)
    if known is not None and known.size.shape == size.shape:
        sharp &= known.relative < SMALL
    sharp = sharp.all(-1) if x.is_complex() else sharp
    candidates = np.flatnonzero(sharp)
    if not candidates.size:
        return None
    only = torch.zeros(x.numel(), dtype=torch.bool)
    only[int(candidates[rng.randrange(candidates.size)])] = True
    return _scaled(x, 1.0 + SMALL, only.view(x.shape))


def _special(x: Tensor, rng: random.Random) -> Change | None:
    """One NaN or Inf replaced by 0 (every other time, if there is one), else one number replaced by NaN."""
    odd = (~torch.isfinite(x.abs())).reshape(-1).nonzero().reshape(-1)
    plain = torch.isfinite(x.abs()).reshape(-1).nonzero().reshape(-1)
    zero = odd.numel() > 0 and (plain.numel() == 0 or rng.random() < 0.5)
    places = odd if zero else plain
    at = int(places[rng.randrange(places.numel())])
    altered = x.clone().contiguous()
    altered.view(-1)[at] = 0.0 if zero else float("nan")
    where = torch.zeros(x.numel(), dtype=torch.bool)
    where[at] = True
    return altered, _places(where.view(x.shape), x)


def _changed_whole(error: str, x: Tensor, rng: random.Random) -> Change | None:
    """Integers and bool: changed by half, or at least by 1."""
    if error == ERRORS[3]:
        return None
    wide = x if x.dtype is torch.bool else x.to(torch.int64)  # torch has few functions of unsigned integers
    if x.dtype is torch.bool:
        more = ~x
    else:
        step = torch.clamp(wide.abs() // 2, min=1) if error == ERRORS[0] else torch.ones_like(wide)
        more = torch.where(wide > 0, wide - step, wide + step)
    only = torch.ones(x.numel(), dtype=torch.bool)
    if error == ERRORS[1]:
        only = torch.zeros(x.numel(), dtype=torch.bool)
        only[rng.randrange(x.numel())] = True
    where = only.view(x.shape)
    return torch.where(where, more, wide).to(x.dtype), _places(where, x)


def _places(where: Tensor, x: Tensor) -> Mask:
    places = where.numpy()
    return np.repeat(places[..., None], 2, -1) if x.is_complex() else places
