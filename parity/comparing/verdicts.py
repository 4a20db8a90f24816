"""Judge the results of a function tensor by tensor, and describe those that cannot be judged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parity.catalog.draw import Arguments
from parity.catalog.row import Row
from parity.comparing.comparison import Notes
from parity.comparing.subject import coarsest, is_dense, known, word
from parity.core.case import OpClass
from parity.core.results import Measure, Status, Verdict
from parity.judging.bench import Bench
from parity.judging.judge import judge
from parity.oracle.yardstick import FAR

Verdicts = tuple[tuple[str, Verdict], ...]
# A function's results are judged as compositions; the truth knows in which dtype each step is rounded.
ROW = Row(name="assert_parity", family="own", rule=OpClass.COMPOSITE, call="", signature=lambda draw: Arguments(()))
# Types that need no warning: None means that there is no result, and the others cannot hold a number.
QUIET = ("NoneType", "str", "bytes", *(f"torch.{t}" for t in ("dtype", "device", "layout", "memory_format")))
MANY = 6  # most paths that a note names
FEW = 16  # elements that show by themselves whether most are far outside


def verdicts(
    bench: Bench,
    theirs: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    notes: Notes,
    atol: float | None = None,
    passed: Mapping[str, Verdict] | None = None,
) -> Verdicts:
    """A verdict per tensor; VOID for kinds of tensors that parity does not judge. passed: those that need no judge."""
    results: dict[str, Verdict] = dict.fromkeys((*ours, *theirs), Verdict(Status.VOID, ""))
    for name in sorted(results, key=lambda n: _place(n, theirs.get(n), ours.get(n))):
        if name not in theirs or name not in ours:
            text = "is missing on the device" if name in ours else "exists on the device only"
            results[name] = Verdict(Status.MALFORMED, f"{name} {text}", Measure(name, problem="missing"))
        elif not known(ours[name]) or not known(theirs[name]):
            text = f"{name} is {described(ours[name])}, which parity does not compare"
            results[name] = Verdict(Status.VOID, text)
        else:
            pass_ = "backward" if name.startswith("grad[") else "forward"
            verdict = (passed or {}).get(name) or judge(bench, {name: theirs[name]}, {name: ours[name]}, pass_)[0]
            results[name] = _within(verdict, atol)
            if all_nan(theirs[name]) and all_nan(ours[name]):
                text = f"every element of {name} is NaN on both sides: this compares nothing about the numbers"
                notes.say(text, loud=True)
    return tuple(results.items())


def is_far_outside(v: Verdict) -> bool:
    """Whether a result is wrong, by so much that no more samples of rounding explain it."""
    return v.status.differs and v.measure is not None and v.measure.problem == "value" and (v.measure.share or 0.0) > FAR


def judged_again(
    results: Verdicts, bench: Bench, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], notes: Notes, atol: float | None
) -> Verdicts:
    """The verdicts, by samples where moved runs stood for them because an operator is wrong, and nothing differs by those."""
    if not bench.oracle.proven or any(v.status.differs for _, v in results):
        return results
    bench.oracle.ask_again()
    left = [n for n, v in results if v.measure is not None and v.measure.share]
    again = dict(verdicts(replace(bench), {n: theirs[n] for n in left}, {n: ours[n] for n in left}, notes, atol))
    return tuple((n, again.get(n, v)) for n, v in results)


def _place(name: str, a: Tensor | None, b: Tensor | None) -> tuple[bool, bool, float]:
    """The place of a result in the order of judging: outputs come before gradients, which a kink may move, results of few
    elements last, and those first that are farthest from the CPU's."""
    if a is None or b is None or a.shape != b.shape or not (known(a) and known(b) and b.is_floating_point()):
        return False, False, 0.0
    far = float((a.float() - b.float()).norm()) / max(float(b.float().norm()), 1e-30)
    return b.numel() < FEW, name.startswith("grad["), 0.0 if math.isnan(far) else -far


def in_one_dtype(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], device: str, notes: Notes
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The results of a function under autocast, each in the coarser of its two dtypes where the sides have different ones,
    because every backend has its own list of what it casts. Notes these."""
    sides = dict(theirs), dict(ours)
    for name, a in ours.items():
        b = theirs.get(name)
        if b is None or a.dtype == b.dtype or not (known(a) and known(b) and a.is_floating_point() and b.is_floating_point()):
            continue
        notes.say(f"{name} is {word(b.dtype)} on {device} and {word(a.dtype)} on the CPU, whose autocast casts otherwise")
        for side in sides:
            side[name] = side[name].to(coarsest((a.dtype, b.dtype)))
    return sides


def judged(results: Verdicts, ours: Mapping[str, Tensor]) -> bool:
    """Whether a number was compared, or there is a finding."""
    return any(v.status.is_finding or (v.status is not Status.VOID and ours[n].numel()) for n, v in results)


def settled(results: Verdicts, fail_on: Sequence[str], notes: Notes) -> Verdicts:
    """The verdicts without the VOID ones, which become notes, unless VOID is in `fail_on`."""
    if Status.VOID in fail_on:
        return results
    for reason, count in Counter(v.reason for _, v in results if v.status is Status.VOID).items():
        notes.say(reason if count == 1 else f"{count} results: {reason}", loud=True)
    return tuple((n, v) for n, v in results if v.status is not Status.VOID)


def bare(named: Sequence[tuple[str, str]], notes: Notes) -> None:
    """Note the parts of a result that hold no numbers."""
    if named:
        listed = ", ".join(f"{n} ({t})" for n, t in named[:MANY])
        more = f" and {len(named) - MANY} more" if len(named) > MANY else ""
        notes.say(f"not compared, because it holds no tensor: {listed}{more}", loud=any(t not in QUIET for _, t in named))


def described(t: Tensor) -> str:
    """The kind of a tensor that parity does not judge, in words."""
    how = "nested" if t.is_nested else word(t.layout)
    return f"a tensor of {word(t.dtype)} ({how})"


def all_nan(t: Tensor) -> bool:
    """Whether the tensor has elements and all are NaN."""
    inexact = t.is_floating_point() or t.is_complex()
    if not inexact or not is_dense(t) or not t.numel():
        return False
    first = t[(0,) * t.dim()]
    return bool(torch.isnan(first)) and bool(torch.isnan(t).all())


def _within(v: Verdict, atol: float | None) -> Verdict:
    m = v.measure
    small = atol is not None and m is not None and m.problem == "value" and m.max_abs is not None and m.max_abs <= atol
    return replace(v, status=Status.AGREE, reason=f"within atol={atol:g}") if small and v.status.is_finding else v
