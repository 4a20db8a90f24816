"""`compare`: two results of a function that are there already."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor

from parity import execute as ex
from parity.assertion.asserting import tables_of
from parity.assertion.comparison import Comparison, Notes
from parity.assertion.subject import Subject, coarsest, forward, known, outputs_of, subject, word
from parity.assertion.truth import Truth
from parity.assertion.verdicts import ROW, Verdicts, bare, described, judged, settled, verdicts
from parity.devices import Device
from parity.dtypes import FACTS
from parity.errors import NothingCompared, UsageError
from parity.judging.bench import Bench
from parity.judging.judge import agreed, judge
from parity.judging.limits import Limits
from parity.judging.measures import same_bytes
from parity.vocabulary import Raised, Status

PLAIN = (FunctionType, BuiltinFunctionType)
STRIDED = torch.strided
NUMBERS = (int, float, bool, complex)
EQUAL = "equal in every bit, so not judged against the truth, which both may miss; insist=True asks it"
# Where the exponent of an element lies: bytes from its beginning, and its bits in the 16 there. All of them set: NaN or Inf.
_LITTLE = sys.byteorder == "little"
EXPONENT = {
    torch.float32: (2 * _LITTLE, 0x7F80),
    torch.float64: (6 * _LITTLE, 0x7FF0),
    torch.float16: (0, 0x7C00),
    torch.bfloat16: (0, 0x7F80),
    torch.complex64: (2 * _LITTLE, 0x7F80),
    torch.complex128: (6 * _LITTLE, 0x7FF0),
}
_bits_at = ctypes.c_uint16.from_address


def compare(
    fn: Callable[..., Any],
    device_result: Any,
    reference_result: Any,
    *inputs: Any,
    device: str | torch.device | Device | None = None,
    insist: bool = False,
    detail: bool = False,
    **kwargs: Any,
) -> Comparison:
    """Judge two results of `fn(*inputs, **kwargs)` that are there already: the device's and the reference's.

    Results are tensors, numbers, arrays or nests of them, on any device. The function runs on the CPU in float64 only, for the
    truth, and not at all where both results hold the same bits: a note says so then, and with `insist` it runs all the same.
    detail: ask the truth of every tensor, and keep how large an error of each would have been told (`Comparison.limits`).
    device: whose tolerance table judges; by default the result's own, and the default table for results on the CPU.
    Findings are in the Comparison, never raised. Raises NothingCompared and UsageError as `assert_parity` does, and UsageError
    where the function does not take the inputs or gives other results for them.
    """
    plainly = device is None and not kwargs and not insist and not detail
    if plainly and (same := _same(fn, device_result, reference_result, inputs)) is not None:
        return same
    s, notes = subject(fn, inputs, kwargs), Notes()
    (theirs, _, _), (ours, _, named) = (outputs_of(r, s.coarsest) for r in (device_result, reference_result))
    bare(named, notes)
    if device is None:
        place = next((t.device.type for _, t in theirs if t.device.type != "cpu"), "cpu")
    else:
        place = device.name if isinstance(device, Device) else str(device)
    here, there = ({n: t.detach().cpu().resolve_conj().resolve_neg() for n, t in side} for side in (ours, theirs))
    title = f"{s.name} {word(s.coarsest)} on {place}"
    truth = Truth(s, False, (), here)
    limits: dict[str, Limits] | None = {} if detail else None
    bench = Bench(ROW, tables_of(place), truth, None, detail, limits)
    found = verdicts(bench, there, here, notes)
    if not judged(found, here):
        came = [f"{n} is {described(t)}" for n, t in ours if not known(t)] + [f"{n} is a {t}" for n, t in named]
        text = "no tensor with elements was given that parity compares" + (f" ({', '.join(came[:3])})" if came else "")
        void = next((f"{n}: {v.reason}" for n, v in found if v.status is Status.VOID and here[n].numel()), "")
        raise NothingCompared(f"{title}: {void or text}; give the results of the call, or of one with other inputs")
    if insist:
        found = _insisted(bench, s, found, there, here, notes)
    _fits(s, truth, here)
    if truth.refused:
        notes.say(f"judged against the reference: it does not run in float64 ({truth.refused})")
    found = settled(found, (), notes)
    if not insist and any(v.measure is not None and v.measure.screen == "bit-equal" for _, v in found):
        notes.say(EQUAL)
    notes.warn(title)
    return Comparison(title, found, tuple(notes.lines), limits=limits or {})


def _insisted(
    bench: Bench, s: Subject, found: Verdicts, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], notes: Notes
) -> Verdicts:
    """Results that equal the reference's, judged by the truth alone. Integers too, where nothing that goes in is rounded: the
    truth of rounded numbers may round to other ones."""
    made = []
    rounded = any(t.is_floating_point() or t.is_complex() for _, t in s.tensors)
    for name, v in found:
        if v.measure is not None and v.measure.screen == "bit-equal" and bench.oracle.truth(name) is not None:
            if FACTS[word(ours[name].dtype)].is_inexact or not rounded:
                v = judge(bench, {name: theirs[name]}, None, "forward")[0]
            else:
                notes.say(f"{name} is {word(ours[name].dtype)} made of rounded numbers: judged against the reference")
        made.append((name, v))
    return tuple(made)


def _fits(s: Subject, truth: Truth, ours: Mapping[str, Tensor]) -> None:
    """Raises UsageError where the truth was asked for and these inputs do not lead to such results."""
    if not truth.known:
        return
    if truth.refused:
        got = ex.attempt(lambda: forward(s, torch.clone, False), "run")
        if isinstance(got, Raised):
            raise UsageError(
                f"{s.name} raises with the inputs given, so there is no truth to judge by: {got.type}: {got.message}; give the "
                "inputs of the call after the two results"
            )
        return
    given = {n: list(t.shape) for n, t in ours.items() if known(t)}
    made = {n: list(t.shape) for n, t in truth.known.items() if n.startswith("out") and known(t)}
    if given != made:
        raise UsageError(
            f"the results given are {_shapes(given)}, and {s.name} gives {_shapes(made)} for these inputs; give the results "
            "and the inputs of one call"
        )


def _shapes(named: Mapping[str, list[int]]) -> str:
    return ", ".join(f"{n} {shape}" for n, shape in named.items()) or "none"


def _same(fn: Any, theirs: Any, ours: Any, inputs: Sequence[Any]) -> Comparison | None:
    """The answer to the commonest question, two tensors of one bit pattern from a plain function of tensors, without asking
    anything else; None where the question is another one."""
    if type(theirs) is not Tensor or type(ours) is not Tensor or type(fn) not in PLAIN:
        return None
    own = theirs.dtype
    if own is not ours.dtype or theirs.layout is not STRIDED:
        return None
    try:
        if theirs.shape != ours.shape or not same_bytes(theirs, ours):
            return None
    except RuntimeError:  # a nested tensor has no shape
        return None
    if own in EXPONENT:  # one that begins with NaN may hold nothing else, which is to be said
        at, mask = EXPONENT[own]
        if _bits_at(theirs.data_ptr() + at).value & mask == mask:
            return None
    for x in inputs:  # most often all have the result's dtype, which then stands for them: a tuple of kinds is dear
        if (x.dtype if type(x) is Tensor else type(x)) is not own and type(x) not in NUMBERS:
            kinds: list[Any] = [x.dtype if type(x) is Tensor else type(x) for x in inputs]
            return _told_same(fn.__name__, own, theirs.numel(), *kinds)
    return _told_same(fn.__name__, own, theirs.numel(), own)


@functools.lru_cache(maxsize=1024)
def _told_same(name: str, own: torch.dtype, total: int, *kinds: torch.dtype | type) -> Comparison | None:
    """What is said of equal results of a dtype; None where more is to be asked. total: number of elements. kinds: the dtypes of
    the inputs, and the types of those that are no tensors."""
    dtypes = [k for k in kinds if isinstance(k, torch.dtype)]
    if not total or any(word(d) not in FACTS for d in (*dtypes, own)):
        return None
    if any(k not in NUMBERS for k in kinds if not isinstance(k, torch.dtype)):
        return None
    return Comparison(f"{name} {word(coarsest(dtypes))} on cpu", (("out", agreed((("out", total),))[0]),), (EQUAL,))
