"""The judge over the results of a function, tensor by tensor, and what is told of those that it does not judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parity.assertion.comparison import Notes
from parity.assertion.subject import is_dense, known, word
from parity.catalog.draw import Call
from parity.catalog.row import Row
from parity.judging.bench import Bench
from parity.judging.judge import judge
from parity.vocabulary import Measure, OpClass, Status, Verdict

Verdicts = tuple[tuple[str, Verdict], ...]
# Whatever a function does inside, its results are compositions; the truth knows in which dtype each step of it is rounded.
ROW = Row(
    name="assert_parity",
    family="own",
    rule=OpClass.COMPOSITE,
    call="",
    signature=lambda draw: Call(()),
)
MANY = 6  # paths that a note names


def verdicts(
    bench: Bench, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], notes: Notes, atol: float | None = None
) -> Verdicts:
    """A verdict per tensor; VOID for those of kinds that parity does not judge."""
    found: list[tuple[str, Verdict]] = []
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in theirs or name not in ours:
            text = "is missing on the device" if name in ours else "exists on the device only"
            found.append((name, Verdict(Status.MALFORMED, f"{name} {text}", Measure(name, problem="missing"))))
        elif not known(ours[name]) or not known(theirs[name]):
            text = f"{name} is {described(ours[name])}, which parity does not compare"
            found.append((name, Verdict(Status.VOID, text)))
        else:
            pass_ = "backward" if name.startswith("grad[") else "forward"
            verdict = judge(bench, {name: theirs[name]}, {name: ours[name]}, pass_)[0]
            found.append((name, _within(verdict, atol)))
            if all_nan(theirs[name]) and all_nan(ours[name]):
                text = f"every element of {name} is NaN on both sides: this compares nothing about the numbers"
                notes.say(text, loud=True)
    return tuple(found)


def judged(found: Verdicts, ours: Mapping[str, Tensor]) -> bool:
    """Whether a number was compared, or something was found."""
    return any(v.status.is_finding or (v.status is not Status.VOID and ours[n].numel()) for n, v in found)


def settled(found: Verdicts, fail_on: Sequence[str], notes: Notes) -> Verdicts:
    """Without the VOID ones, which become notes, unless they are to fail."""
    if Status.VOID in fail_on:
        return found
    for _, v in found:
        if v.status is Status.VOID:
            notes.say(v.reason, loud=True)
    return tuple((n, v) for n, v in found if v.status is not Status.VOID)


def bare(named: Sequence[tuple[str, str]], notes: Notes) -> None:
    """Note what of a result holds no number."""
    if named:
        told = ", ".join(f"{n} ({t})" for n, t in named[:MANY])
        more = f" and {len(named) - MANY} more" if len(named) > MANY else ""
        # None is how a function says that there is nothing.
        notes.say(f"not compared, because it holds no tensor: {told}{more}", loud=any(t != "NoneType" for _, t in named))


def described(t: Tensor) -> str:
    """The kind of a tensor that parity does not judge."""
    how = "nested" if t.is_nested else word(t.layout)
    return f"a tensor of {word(t.dtype)} ({how})"


def all_nan(t: Tensor) -> bool:
    """Whether there are elements, and none is a number."""
    inexact = t.is_floating_point() or t.is_complex()
    return inexact and is_dense(t) and t.numel() > 0 and bool(torch.isnan(t).all())


def _within(v: Verdict, atol: float | None) -> Verdict:
    m = v.measure
    small = atol is not None and m is not None and m.problem == "value" and m.max_abs is not None and m.max_abs <= atol
    return replace(v, status=Status.AGREE, reason=f"within atol={atol:g}") if small and v.status.is_finding else v
