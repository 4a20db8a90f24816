"""Metadata of results: the strides and the aliasing that torch promises, and the strides of fresh results, which it does not.

Strides are promised of views and of elementwise functions of one operand: there others are MALFORMED. Of every other fresh
result (one that shares no memory with an operand) torch promises little, so other strides than the CPU's are noted and fail
nothing, unless the settings ask for it. Strides of dimensions of size 1 and of empty tensors are nobody's promise and never
count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parity.checks.trial import Result, Trial
from parity.core.layout import strides_differ
from parity.core.results import Measure, MetadataNote, Status, Verdict
from parity.execution.execute import Named

PROBLEM = "strides"  # of findings
ALIASING = "aliasing"


def judged(t: Trial, so_far: Result, ours: Named, theirs: Named, here: Sequence[Tensor], there: Sequence[Tensor]) -> Result:
    """`so_far`, or a MALFORMED result if strides or aliasing differ where torch promises them (or anywhere, if the settings ask
    for that), or `so_far` with a note of every fresh result whose strides differ.

    so_far: the result of comparing the numbers. ours, theirs: the tensors on the CPU and on the device. here, there: the memory
    that the call was given on each side.
    """
    row = t.program.row
    if so_far.verdict.status is not Status.AGREE or row.forms.mutates or len(ours) != len(theirs):
        return so_far
    if not row.forms.view:
        for (name, a), (_, b) in zip(ours, theirs):
            if b.numel() and _shares(b, there) and not _shares(a, here):
                return _malformed(so_far, name, f"{name} lies in the memory of an operand, unlike the reference's", ALIASING)
    if row.forms.view or row.forms.strides:
        only = row.forms.view or len(t.inputs.operands) == 1  # of several operands devices may follow different ones
        for (name, a), (_, b) in zip(ours, theirs):
            if only and _differ(a, b):
                return _malformed(so_far, name, f"{name}.stride()={b.stride()}, but should be {a.stride()}", PROBLEM)
            if row.forms.view and a.numel() and _shares(a, here) != _shares(b, there):
                text = f"{name} {'aliases' if _shares(b, there) else 'does not alias'} the input, unlike the reference's"
                return _malformed(so_far, name, text, ALIASING)
        if row.forms.view:
            return so_far
    notes = tuple(_notes(str(so_far.aspect), ours, theirs, here, there))
    if notes and t.settings.fail_on_metadata:
        n = notes[0]
        text = f"{n.tensor}.stride()={n.device}, the CPU's is {n.reference}: {n.words} (--fail-on metadata)"
        return _malformed(so_far, n.tensor, text, PROBLEM)
    return replace(so_far, notes=notes) if notes else so_far


def _notes(aspect: str, ours: Named, theirs: Named, here: Sequence[Tensor], there: Sequence[Tensor]) -> Iterator[MetadataNote]:
    """The fresh results whose strides differ."""
    for (name, a), (_, b) in zip(ours, theirs):
        if _differ(a, b) and not _shares(a, here) and not _shares(b, there):
            yield MetadataNote(aspect, name, tuple(a.shape), tuple(b.stride()), tuple(a.stride()))


def _malformed(so_far: Result, name: str, text: str, problem: str) -> Result:
    return Result(so_far.aspect, Verdict(Status.MALFORMED, text, Measure(name, problem=problem)))


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether both have strides, and others."""
    return a.layout is b.layout is torch.strided and strides_differ(a.shape, a.stride(), b.stride())


def _shares(x: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether a tensor lies in memory that the call was given."""
    pointer = x.untyped_storage().data_ptr()
    return any(b.untyped_storage().data_ptr() == pointer for b in given)
