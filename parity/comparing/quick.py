"""The efforts of `assert_parity`, and the yardstick of the quick one: how far rounding moves each result of a function.

The function runs again on the CPU in its own dtypes, with every result of a kernel moved by a roundoff or two. A device whose
result is about as far from the CPU's as these runs are differs from it by rounding. That costs a few plain runs, where the
float64 truth and its samples cost up to a hundred. It speaks of whole tensors: an error that is small next to the tensor's
largest roundings is not seen, however large it is next to its own element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from parity.comparing.comparison import MOVED_RUNS
from parity.comparing.meter import Meter
from parity.comparing.moved_runs import Moved, Screened, comparable, moved_results, screened
from parity.comparing.subject import Subject, word
from parity.core.dtypes import FACTS
from parity.core.errors import UsageError
from parity.core.results import Raised
from parity.execution import execute as ex
from parity.oracle.yardstick import STEP, WHOLE

Effort: TypeAlias = Literal["quick", "default", "full"]
QUICK: Effort = "quick"
DEFAULT: Effort = "default"
FULL: Effort = "full"
EFFORTS = QUICK, DEFAULT, FULL
RUNS = 2  # moved runs at most; the farther one counts


def effort_of(word_: object) -> Effort:
    """The effort that a caller names. Raises UsageError."""
    for effort in EFFORTS:
        if effort == word_:
            return effort
    raise UsageError(f"effort is {word_!r}; allowed: {', '.join(EFFORTS)}")


def by_rounding(
    s: Subject, backward: bool, fed: Sequence[Tensor], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], meter: Meter
) -> Screened:
    """The results of the device that are as far from the CPU's as a moved run, each with its verdict. All others, and all if
    the function cannot be run so, are for the judge. fed: the cotangents."""
    pairs = {n: (theirs[n], t) for n, t in ours.items() if n in theirs and comparable(t, theirs[n])}

    def run(number: int) -> Mapping[str, Tensor] | None:
        with meter.run("a moved run", RUNS - number):
            made = ex.attempt(functools.partial(moved_results, s, backward, fed, Moved(number)), "run")
        return None if isinstance(made, Raised) else made

    return screened(pairs, RUNS, run, _off, (MOVED_RUNS, "moved runs", "as far from the CPU's result as rounding moves it"))


def _off(device: Tensor, cpu: Tensor, moved: Sequence[Tensor]) -> float:
    """How far the device is from the CPU, in units of `WHOLE` times the moved runs: the larger one of the norms' ratio and of
    the largest elements'. Infinite where only one side is finite, or where the others differ."""
    if not moved or any(m.shape != cpu.shape for m in moved):
        return math.inf
    x, c, *others = (torch.view_as_real(t) if t.is_complex() else t for t in (device, cpu, *moved))
    finite = c.isfinite()
    if not bool(finite.all()):
        if not torch.equal(finite, x.isfinite()) or not torch.equal(x[~finite].nan_to_num(7.0), c[~finite].nan_to_num(7.0)):
            return math.inf
        x, c, *others = (t[finite] for t in (x, c, *others))
        if not c.numel():
            return 0.0
    wide = torch.float64 if c.dtype == torch.float64 or c.numel() < 1 << 16 else torch.float32
    x, c, *others = (t.to(wide) for t in (x, c, *others))
    # A buffer that a kernel writes is moved by nobody: half a step of its own is granted to all.
    u = STEP / WHOLE * FACTS[word(cpu.dtype.to_real())].unit_roundoff
    largest, norm = u * float(c.abs().max()), u * float(c.norm())
    for o in others:
        d = (o - c).nan_to_num_(0.0, 0.0, 0.0)
        largest, norm = max(largest, float(d.abs().max())), max(norm, float(d.norm()))
    d = x - c
    far = (float(d.abs().max()), largest), (float(d.norm()), norm)
    return max(math.inf if not e <= math.inf or (e and not by) else e / (WHOLE * by) if by else 0.0 for e, by in far)
