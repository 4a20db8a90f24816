"""`compare`: judge two existing results of a function."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor

from parity.comparing.comparison import EQUAL as SAME
from parity.comparing.comparison import Comparison, Notes, differences
from parity.comparing.function import tables_of
from parity.comparing.kinks import in_words
from parity.comparing.meter import Meter
from parity.comparing.subject import Subject, forward, known, outputs_of, shown_dtype, subject, word
from parity.comparing.truth import FunctionTruth
from parity.comparing.verdicts import ROW, Verdicts, bare, described, judged, settled, verdicts
from parity.core.dtypes import FACTS
from parity.core.errors import NothingCompared, UsageError
from parity.core.results import Raised, Status
from parity.devices import Device
from parity.execution import execute as ex
from parity.judging.bench import Bench
from parity.judging.judge import agreed, judge
from parity.judging.limits import Limits
from parity.judging.sameness import same_bytes

PLAIN = (FunctionType, BuiltinFunctionType)
STRIDED = torch.strided
NUMBERS = (int, float, bool, complex)
EQUAL = "equal in every bit, so not judged against the truth, which both may miss; insist=True asks it"
# Where the exponent of an element lies: its byte offset, and a mask of the 16 bits there. If all are set, it is NaN or Inf.
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
    """Judge two existing results of `fn(*inputs, **kwargs)`: the device's and the reference's.

    Results are tensors, numbers, arrays or nests of them, on any device. The function runs only on the CPU in float64, for the
    truth, and not at all if both results hold the same bits: a note then says so, and `insist` makes it run all the same.
    detail: compute the truth of every tensor, and keep how large an error of each would have been reported
    (`Comparison.limits`). device: whose tolerance table judges; by default that of the result's own device, and the default
    table for results on the CPU.

    Findings are in the Comparison, never raised. Raises NothingCompared and UsageError as `assert_parity` does, and UsageError
    if the function does not accept the inputs or gives results of other shapes for them.

    >>> x = torch.tensor([1.0, 2.0])
    >>> [(name, str(v.status)) for name, v in parity.compare(torch.exp, 2 * torch.exp(x), torch.exp(x), x).findings]
    [('out', 'wrong')]
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
    title = f"{s.name} {s.dtype} on {place}"
    truth = FunctionTruth(s, False, (), here, meter=Meter(""), most=detail)  # one of hundreds, of which a bar says how far
    limits: dict[str, Limits] | None = {} if detail else None
    bench = Bench(ROW, tables_of(place), truth, None, detail, limits, detail)
    judgements = verdicts(bench, there, here, notes)
    if not judged(judgements, here):
        came = [f"{n} is {described(t)}" for n, t in ours if not known(t)] + [f"{n} is a {t}" for n, t in named]
        text = "no tensor with elements was given that parity compares" + (f" ({', '.join(came[:3])})" if came else "")
        void = next((f"{n}: {v.reason}" for n, v in judgements if v.status is Status.VOID and here[n].numel()), "")
        raise NothingCompared(f"{title}: {void or text}; give the results of the call, or of one with other inputs")
    if insist:
        judgements = _judged_by_truth(bench, s, judgements, there, here, notes)
    _fits(s, truth, here)
    if truth.refused:
        notes.say(f"judged against the reference: it does not run in float64 ({truth.refused})")
    judgements = settled(judgements, (), notes)
    for line in in_words(s, there, here):
        notes.say(line)
    apart = differences(judgements, there, here)
    if not insist and any(v.measure is not None and v.measure.screen == "bit-equal" for _, v in judgements):
        notes.say(EQUAL)
    notes.warn(title)
    return Comparison(title, judgements, tuple(notes.lines), limits=limits or {}, differences=apart)


def _judged_by_truth(
    bench: Bench, s: Subject, judgements: Verdicts, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], notes: Notes
) -> Verdicts:
    """The verdicts, with results that equal the reference's judged by the truth alone. Integer results only if no input is
    rounded, because the truth of rounded inputs may round to other integers."""
    again = []
    rounded = any(t.is_floating_point() or t.is_complex() for _, t in s.tensors)
    for name, v in judgements:
        if v.measure is not None and v.measure.screen == "bit-equal" and bench.oracle.truth(name) is not None:
            if FACTS[word(ours[name].dtype)].is_inexact or not rounded:
                v = judge(bench, {name: theirs[name]}, None, "forward")[0]
            else:
                notes.say(f"{name} is {word(ours[name].dtype)} made of rounded numbers: judged against the reference")
        again.append((name, v))
    return tuple(again)


def _fits(s: Subject, truth: FunctionTruth, ours: Mapping[str, Tensor]) -> None:
    """Raises UsageError if the truth was computed and its shapes are not those of the results."""
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
    shapes = {n: list(t.shape) for n, t in truth.known.items() if n.startswith("out") and known(t)}
    if given != shapes:
        raise UsageError(
            f"the results given are {_shapes(given)}, and {s.name} gives {_shapes(shapes)} for these inputs; give the results "
            "and the inputs of one call"
        )


def _shapes(named: Mapping[str, list[int]]) -> str:
    return ", ".join(f"{n} {shape}" for n, shape in named.items()) or "none"


def _same(fn: Any, theirs: Any, ours: Any, inputs: Sequence[Any]) -> Comparison | None:
    """The verdict for the most common case, two bit-identical tensors from a plain function of tensors, without any other work;
    None in every other case."""
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
    if not _begins_finite(theirs):  # a tensor that begins with NaN may be all NaN, which needs a note
        return None
    for x in inputs:  # usually all have the result's dtype, which then stands for them: building a tuple is slow
        if (x.dtype if type(x) is Tensor else type(x)) is not own and type(x) not in NUMBERS:
            kinds: list[Any] = [x.dtype if type(x) is Tensor else type(x) for x in inputs]
            return _equal(fn.__name__, own, theirs.numel(), *kinds)
    return _equal(fn.__name__, own, theirs.numel(), own)


def _begins_finite(t: Tensor) -> bool:
    """Whether the first element is neither NaN nor Inf; True for integers. Asking torch takes 2 to 4 us more, and a whole
    comparison of equal results takes 5."""
    if t.dtype not in EXPONENT:
        return True
    at, mask = EXPONENT[t.dtype]
    return _bits_at(t.data_ptr() + at).value & mask != mask


@functools.lru_cache(maxsize=1024)
def _equal(name: str, own: torch.dtype, total: int, *kinds: torch.dtype | type) -> Comparison | None:
    """The Comparison for equal results of a dtype; None if more must be checked. total: number of elements. kinds: the dtypes
    of the tensor inputs, and the types of the others."""
    dtypes = [k for k in kinds if isinstance(k, torch.dtype)]
    if not total or any(word(d) not in FACTS for d in (*dtypes, own)):
        return None
    if any(k not in NUMBERS for k in kinds if not isinstance(k, torch.dtype)):
        return None
    return Comparison(
        f"{name} {shown_dtype(dtypes)} on cpu", (("out", agreed((("out", total),))[0]),), (EQUAL,), differences={"out": SAME}
    )
