"""For people's own functions and modules: the same three runs (reference, device, float64) and the same judge as the suite.

`assert_parity(model, x, device="mps")` compares outputs, gradients, and whatever the call writes;
`compare(fn, on_device, on_cpu, x)` judges two results that are there already.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor

from parity import execute as ex
from parity import tolerance
from parity.assertion.comparison import Comparison, ParityFailure
from parity.assertion.subject import (
    SEED,
    Run,
    Subject,
    coarsest,
    fixed_cotangents,
    forward,
    gradients,
    known,
    outputs_of,
    subject,
    tracked_outputs,
    word,
)
from parity.assertion.truth import Truth, seeded
from parity.catalog.draw import Call
from parity.catalog.row import Row
from parity.devices import Device, resolve
from parity.dtypes import FACTS
from parity.errors import NothingCompared, UsageError
from parity.execute import Named
from parity.judging.bench import Bench
from parity.judging.judge import agreed, judge
from parity.judging.measures import bit_equal, same_bytes
from parity.truth.oracle import Oracle
from parity.vocabulary import Computed, Measure, OpClass, Outcome, Raised, Status, Verdict

__all__ = ["Comparison", "ParityFailure", "assert_parity", "compare"]
# Whatever a function does inside, its results are compositions; half types are rounded after every step of it.
ROW = Row(
    name="assert_parity",
    family="own",
    rule=OpClass.COMPOSITE,
    call="",
    signature=lambda draw: Call(()),
    rounds_between=True,
)
PLAIN = (FunctionType, BuiltinFunctionType)
STRIDED = torch.strided
NUMBERS = (int, float, bool, complex)
STATUS_OF = {"refused": Status.UNSUPPORTED, "oom": Status.OOM, "error": Status.ERROR}


@functools.lru_cache(maxsize=16)
def _resolved(name: str) -> Device:
    found = resolve(name)
    if name == "auto" and found.simulated:
        warnings.warn(
            f"parity: torch reports no accelerator, so everything is compared on {found.name}, a SIMULATED device: that says "
            "nothing about any hardware. Name a device to be sure of it",
            stacklevel=4,
        )
    return found


def _target(device: str | torch.device | Device) -> Device:
    """The device that a caller means. Raises UsageError for what names none, and as `resolve` does."""
    if isinstance(device, Device):
        return device
    if not isinstance(device, (str, torch.device)):
        raise UsageError(f"the device is {device!r}; give its name, like 'mps' or 'cuda:1', or a torch.device")
    return _resolved(str(device).removesuffix(":0") if str(device).startswith("sim") else str(device))


@functools.lru_cache(maxsize=16)
def _tables(name: str) -> tolerance.Tables:
    return tolerance.load(name)


def assert_parity(
    fn: Callable[..., Any],
    *inputs: Any,
    device: str | torch.device | Device = "auto",
    backward: bool = True,
    atol: float | None = None,
    **kwargs: Any,
) -> Comparison:
    """Assert that `fn(*inputs, **kwargs)` computes the same on the device as on the CPU, up to rounding.

    Compared are the outputs, the buffers and inputs that the call writes, and (`backward`) the gradients of all parameters
    and inputs that require one; without `backward` it runs under no_grad. Everything is copied: nothing of the caller's
    changes. atol: absolute errors against the truth up to it agree whatever the tables say.

    Raises ParityFailure for findings and refusals, NothingCompared where no number came out, UsageError for a function that
    draws random numbers or does not run on the CPU, DeviceError for a device that is not here.
    """
    __tracebackhide__ = True
    if atol is not None and not 0 <= atol < math.inf:
        raise UsageError(f"atol is {atol!r}; give a number that is 0 or more, or None for the tolerance tables alone")
    target = _target(device)
    comparison = _judged(subject(fn, inputs, kwargs), target, backward, atol)
    if comparison.findings:
        raise ParityFailure(comparison)
    return comparison


def _judged(s: Subject, device: Device, backward: bool, atol: float | None) -> Comparison:
    __tracebackhide__ = True
    if not s.moves:
        raise NothingCompared(f"{s.name}: no input is a tensor, so nothing would reach {device.name}; give it tensors")
    if device.simulated and s.odd:
        raise UsageError(
            f"'{s.odd}' of {s.name} is sparse, nested or quantized, and {device.name}, a simulated device, holds dense tensors "
            "alone; give a dense one, or name a real device"
        )
    title = f"{s.name} {word(s.coarsest)} on {device.name}"
    run, reference = _reference(s, backward)
    cotangents = fixed_cotangents(run) if backward else []
    tracked = tracked_outputs(run) if backward else ()
    notes = [] if cotangents or not backward else ["no gradients: no output depends on anything that requires one"]
    ours, problem = _with_gradients(run, reference, tracked, cotangents)
    notes += [f"no gradients: the CPU has none ({problem.message})"] if problem is not None else []
    if problem is not None:
        tracked, cotangents = (), []
    fallbacks: list[str] = []
    with ex.listening(fallbacks):
        theirs = _on_device(s, device, backward, tracked, cotangents, notes)
    notes += [f"ran on the CPU: {f}" for f in sorted(set(fallbacks))]
    if isinstance(theirs, Raised):
        verdict = Verdict(STATUS_OF[theirs.kind], f"{theirs.type} in {theirs.stage}: {theirs.message}")
        return Comparison(title, (("", verdict),), tuple(notes))
    truth = Truth(s, backward, cotangents, ours)
    idle = _untouched(s, theirs, ours)
    theirs, ours = ({n: t for n, t in side.items() if n not in idle} for side in (theirs, ours))
    return _verdicts(title, theirs, ours, truth, _tables(device.name), atol, notes)


def _untouched(s: Subject, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> set[str]:
    """Names of the inputs and buffers that neither side wrote. Their bits tell: batch_norm writes without a new version."""
    before = {f"after[{n}]": x for n, x in zip(s.names, s.leaves) if isinstance(x, Tensor)}
    before |= {f"buffer[{n}]": b for n, b in s.module.named_buffers()} if s.module is not None else {}
    return {n for n, x in before.items() if n in ours and n in theirs and _kept(x, theirs[n]) and _kept(x, ours[n])}


def _kept(before: Tensor, after: Tensor) -> bool:
    if not known(before):
        return True
    before = before.detach().cpu()
    return before.shape == after.shape and before.dtype == after.dtype and bit_equal(before, after)


def _reference(s: Subject, backward: bool) -> tuple[Run, dict[str, Tensor]]:
    """The run on the CPU. Raises UsageError where it does not run there, or not twice alike."""
    __tracebackhide__ = True
    with seeded():
        run = ex.attempt(lambda: forward(s, torch.clone, backward), "run")
    if isinstance(run, Raised):
        raise UsageError(
            f"{s.name} raises on the CPU, so there is nothing to compare with: {run.type}: {run.message}; "
            "give inputs that it takes there"
        )
    results: dict[str, Tensor] = {n: t.detach() for n, t in (*run.outputs, *run.written)}
    if not _alike(results, _again(s, backward, SEED + 1)):
        if _alike(results, _again(s, backward, SEED)):
            raise UsageError(f"{s.name} draws random numbers, which no two devices share; call .eval() or fix the mask")
        if not _alike(results, _again(s, backward, SEED), 1e-3):
            raise UsageError(
                f"two equal runs of {s.name} on the CPU differ by more than rounding; call .eval(), fix the random numbers "
                "that it draws, or write to all memory that it reads"
            )
    return run, results


def _again(s: Subject, backward: bool, seed: int) -> dict[str, Tensor]:
    with seeded(seed):
        run = forward(s, torch.clone, backward)
    return {n: t.detach() for n, t in (*run.outputs, *run.written)}


def _alike(a: Mapping[str, Tensor], b: Mapping[str, Tensor], relative: float | None = None) -> bool:
    """Whether two runs gave the same bits or, with `relative`, the same up to that part of each tensor's largest number."""
    if list(a) != list(b):
        return False
    for x, y in zip(a.values(), b.values()):
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if not known(x) or bit_equal(x, y):
            continue
        if relative is None:
            return False
        p, q = (torch.nan_to_num(t.abs().to(torch.float64)) for t in (x, y))
        if p.numel() and float((p - q).abs().max()) > relative * float(p.max()):
            return False
    return True


def _with_gradients(
    run: Run, results: Mapping[str, Tensor], tracked: Sequence[str], cotangents: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Raised | None]:
    if not cotangents:
        return dict(results), None
    with seeded():
        grads = ex.attempt(lambda: gradients(run, tracked, cotangents), "backward")
    return (dict(results), grads) if isinstance(grads, Raised) else ({**results, **dict(grads)}, None)


def _on_device(
    s: Subject, device: Device, backward: bool, tracked: Sequence[str], cotangents: Sequence[Tensor], notes: list[str]
) -> dict[str, Tensor] | Raised:
    """All results of the device, on the CPU, or what it raised. notes: where it says that none of them lay on the device."""
    with torch.random.fork_rng(devices=[]), device.active():
        device.seed(SEED)
        run = ex.attempt(lambda: forward(s, device.upload, backward), "run")
        if isinstance(run, Raised):
            return run
        if run.outputs and all(t.device.type != device.torch_device.type for _, t in run.outputs):
            notes.append(f"no output lies on {device.name}: make sure that the function computes there")
        results = ex.computed((*((n, t.detach()) for n, t in run.outputs), *run.written), device)
        if isinstance(results, Raised) or not cotangents or tracked_outputs(run) != tuple(tracked):
            return results if isinstance(results, Raised) else dict(_tensors(results))
        fed = [device.upload(c) for c in cotangents]
        grads = ex.attempt(lambda: gradients(run, tracked, fed), "backward")
        more = grads if isinstance(grads, Raised) else ex.computed(grads, device)
        return more if isinstance(more, Raised) else {**dict(_tensors(results)), **dict(_tensors(more))}


def _tensors(outcome: Outcome) -> Named:
    assert isinstance(outcome, Computed)
    return outcome.tensors


def _verdicts(
    title: str,
    theirs: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    truth: Oracle,
    tables: tolerance.Tables,
    atol: float | None,
    notes: Sequence[str],
) -> Comparison:
    """A verdict per tensor. Raises NothingCompared."""
    bench = Bench(ROW, tables, truth, None, False)
    found: list[tuple[str, Verdict]] = []
    told = list(notes)
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in theirs or name not in ours:
            text = "is missing on the device" if name in ours else "exists on the device only"
            found.append((name, Verdict(Status.MALFORMED, f"{name} {text}", Measure(name, problem="missing"))))
        elif not known(ours[name]) or not known(theirs[name]):
            told.append(f"{name} is {word(ours[name].dtype)} ({word(ours[name].layout)}), which parity does not compare")
        else:
            pass_ = "backward" if name.startswith("grad[") else "forward"
            verdict = judge(bench, {name: theirs[name]}, {name: ours[name]}, pass_)[0]
            found.append((name, _within(verdict, atol)))
    if not any(ours[n].numel() for n, _ in found if n in ours) and not any(v.status.is_finding for _, v in found):
        raise NothingCompared(f"{title}: no tensor with elements came out; return what is to be compared")
    refused = truth.refused if isinstance(truth, Truth) else ""
    if refused:
        told.append(f"judged against the reference: it does not run in float64 ({refused})")
    return Comparison(title, tuple(found), tuple(told))


def _within(v: Verdict, atol: float | None) -> Verdict:
    m = v.measure
    small = atol is not None and m is not None and m.problem == "value" and m.max_abs is not None and m.max_abs <= atol
    return replace(v, status=Status.AGREE, reason=f"within atol={atol:g}") if small and v.status.is_finding else v


def _same(fn: Any, theirs: Any, ours: Any, inputs: Sequence[Any]) -> Comparison | None:
    """The answer to the commonest question, two tensors of one bit pattern from a plain function of tensors, without asking
    anything else; None where the question is another one."""
    if type(theirs) is not Tensor or type(ours) is not Tensor or type(fn) not in PLAIN:
        return None
    own = theirs.dtype
    if own is not ours.dtype or theirs.layout is not STRIDED or theirs.shape != ours.shape or not same_bytes(theirs, ours):
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
    return Comparison(f"{name} {word(coarsest(dtypes))} on cpu", (("out", agreed((("out", total),))[0]),))


def compare(
    fn: Callable[..., Any],
    device_result: Any,
    reference_result: Any,
    *inputs: Any,
    device: str | torch.device | Device | None = None,
    **kwargs: Any,
) -> Comparison:
    """Judge two results of `fn(*inputs, **kwargs)` that are there already: the device's and the reference's.

    Results are tensors or nests of them, on any device. The function runs on the CPU in float64 only, for the truth.
    device: whose tolerance table judges; by default the result's own, and the default table for results on the CPU.
    Findings are in the Comparison, never raised. Raises NothingCompared and UsageError as `assert_parity` does.
    """
    if device is None and not kwargs and (same := _same(fn, device_result, reference_result, inputs)) is not None:
        return same
    s = subject(fn, inputs, kwargs)
    theirs, ours = (outputs_of(r, s.coarsest) for r in (device_result, reference_result))
    if device is None:
        place = next((t.device.type for _, t in theirs if t.device.type != "cpu"), "cpu")
    else:
        place = device.name if isinstance(device, Device) else str(device)
    here = [{n: t.detach().cpu().resolve_conj().resolve_neg() for n, t in side} for side in (theirs, ours)]
    truth = Truth(s, False, (), here[1])
    return _verdicts(f"{s.name} {word(s.coarsest)} on {place}", here[0], here[1], truth, _tables(place), None, ())
