"""The plain rule of the field, on the same faults: OpInfo samples as they are, CPU against device, `assert_close` defaults.

Forward and first backward (a cotangent of ones), in every dtype that the entry has on the CPU. Entries with random results
are left out, as the field's own suites do: no rule of theirs compares them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.catalog import opinfo
from parity.checking.check import RAISED, Mark
from parity.devices import Device
from parity.dtypes import DEFAULT
from parity.errors import CaseError
from parity.execute import attempt, said
from parity.listening import listening
from parity.vocabulary import Raised, Status
from parity.zoo.score import OPINFO, PATIENCE, Score, Trial, kept, void

UNCOMPARED = ("random", "uninitialised")


@dataclass(frozen=True, slots=True)
class Sample:
    """One call as OpInfo gives it. grad: whether its gradients are compared."""

    entry: str
    dtype: str
    ordinal: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool

    @property
    def text(self) -> str:
        """Its name in reports."""
        return f"opinfo:{self.entry} {self.dtype} sample {self.ordinal}"


@dataclass(frozen=True, slots=True)
class Difference:
    """What the rule found. status: in parity's words."""

    status: Status
    aspect: str
    reason: str


def search(t: Trial) -> Score:
    """Every sample of every entry and dtype in turn, until one shows the fault."""
    started, hit, stopped = time.monotonic(), None, False
    t.score = replace(t.score, generator=OPINFO)
    entries = compared(t.route.entries)
    with t.plan.device.active(), listening([]):
        for sample in _samples(entries):
            if (sample.text, sample.ordinal) in t.dead:
                continue
            if stopped := time.monotonic() > t.until:
                break
            t.watch.about(examples=t.score.examples + 1, fired=t.score.fired, through=False)
            if (hit := _tried(t, sample)) is not None:
                break
    score = replace(t.score, seconds=time.monotonic() - started)
    if hit is None:
        return replace(score, miss=_miss(score, entries, stopped))
    sizes = sum(x.numel() for x in opinfo.tensors_of((sample.args, sample.kwargs)))
    score = replace(score, found=True, op=f"opinfo:{sample.entry}", dtype=sample.dtype, elements=sizes)
    score = replace(score, case=sample.text, shrunk=sample.text)
    return replace(score, status=str(hit.status), aspect=hit.aspect, reason=hit.reason)


def compared(entries: tuple[str, ...]) -> tuple[str, ...]:
    """The entries whose results the rule can compare."""
    kept = {r.opinfo[0] for r in opinfo.rows() if r.relation not in UNCOMPARED}
    return tuple(e for e in entries if e in kept)


def _samples(entries: tuple[str, ...]) -> Iterator[Sample]:
    """All samples, entries and dtypes in turn."""
    streams = [_of(e, d) for d in DEFAULT for e in entries if d in opinfo.ENTRIES[e].dtypes]
    while streams:
        for stream in tuple(streams):
            sample = next(stream, None)
            if sample is None:
                streams.remove(stream)
            else:
                yield sample


def _of(entry: str, dtype: str) -> Iterator[Sample]:
    """The samples of an entry in a dtype; none where it cannot make them."""
    grad = dtype in opinfo.ENTRIES[entry].backward
    try:
        op, _, _ = opinfo.callables(opinfo.PREFIX + entry)
        calls = opinfo.as_given(entry, dtype, grad)
    except CaseError:
        return
    for k, (args, kwargs) in enumerate(calls):
        yield Sample(entry, dtype, k, op, args, kwargs, grad)


def _tried(t: Trial, sample: Sample) -> Difference | None:
    """One sample, counted; the difference that shows the fault, if there is one."""
    before, t.tap.raised = t.tap.count, ""
    t.watch.begin(sample.ordinal, sample.text, sample.text, t.plan.patience or PATIENCE)
    try:
        found = difference(sample, t.plan.device, t.watch.stage)
        honest = difference(sample, t.healthy, t.watch.stage) if found is not None else None
    except CaseError:
        return None
    finally:
        t.watch.end()
    fired = t.tap.count > before
    s = t.score = replace(t.score, examples=t.score.examples + 1, fired=t.score.fired + fired)
    if found is None:
        t.score = replace(s, unseen=kept(s.unseen, sample.text)) if fired else s
        return None
    if not fired or honest is not None:
        why = "on the healthy device too" if honest is not None else "and the fault was not at work"
        t.score = replace(s, alarms=kept(s.alarms, f"{found.status} in {sample.text}, {why}"))
        return None
    if note := void(t, found.status, found.reason):
        t.score = replace(s, notes=kept(s.notes, note))
        return None
    return found


def difference(sample: Sample, device: Device, mark: Mark) -> Difference | None:
    """What the rule says of one sample on a device; None where both sides are close. Raises CaseError where the CPU refuses.

    Operands travel by `.to(device)`, as they do in the field: a view arrives dense, without its offset.
    """
    mark("reference")
    ours, theirs = _copied(sample, "cpu"), _copied(sample, str(device.torch_device))
    here: Any = attempt(lambda: _outputs(sample.op, ours), "run")
    if isinstance(here, Raised):
        raise CaseError(f"{sample.text}: the CPU refuses: {here.message}")
    mark("device")
    there: Any = attempt(lambda: _outputs(sample.op, theirs), "run")
    if (found := _apart(there, here, "forward")) is not None or not sample.grad:
        return found
    tracked = [k for k, x in enumerate(here) if isinstance(x, Tensor) and x.requires_grad]
    leaves = [[x for x in opinfo.tensors_of(tree) if x.requires_grad] for tree in (ours, theirs)]
    if not tracked or not leaves[0]:
        return None
    mark("reference")
    first = attempt(lambda: _gradients([here[k] for k in tracked], leaves[0]), "backward")
    if isinstance(first, Raised):
        return None
    mark("device")
    second = attempt(lambda: _gradients([there[k] for k in tracked], leaves[1]), "backward")
    return _apart(second, first, "backward")


def _copied(sample: Sample, device: str) -> Any:
    """The call's arguments on a device, leaves anew; samples that name the CPU name the device instead."""

    def leaf(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.detach().to(device, copy=True).requires_grad_(x.requires_grad)
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
            return torch.device(device) if isinstance(x, torch.device) else device
        return x

    return tree_map(leaf, (sample.args, sample.kwargs))


def _outputs(op: Any, call: Any) -> list[Any]:
    """The results of a call as a list; both sides draw the same random numbers."""
    torch.default_generator.manual_seed(0)
    result = op(*call[0], **call[1])
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _gradients(outs: list[Tensor], leaves: list[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(outs, leaves, [torch.ones_like(x) for x in outs], allow_unused=True))


def _apart(there: Any, here: Any, aspect: str) -> Difference | None:
    """How the device's answer differs from the CPU's, compared on the CPU; NaN equals NaN, as in torch's own tests."""
    if not isinstance(there, Raised):
        there = attempt(lambda: [x.detach().to("cpu") if isinstance(x, Tensor) else x for x in there], "download")
    if isinstance(there, Raised):
        return Difference(RAISED[there.kind], aspect, f"{there.type} in {there.stage}: {there.message}")
    pairs = [(a, b) for a, b in zip(there, here) if a is not None and b is not None]
    try:
        torch.testing.assert_close([a for a, _ in pairs], [b for _, b in pairs], equal_nan=True)
    except AssertionError as e:
        return Difference(Status.WRONG, aspect, said(e))
    except TypeError:  # results that it does not know, such as dtypes
        return None
    return None


def _miss(score: Score, entries: tuple[str, ...], stopped: bool) -> str:
    if not entries:
        return "no OpInfo entry of its ops is compared"
    late = "stopped by its time limit; " if stopped else ""
    how = f"fired unseen in {score.fired}" if score.fired else "never fired in any"
    return f"{late}{how} of {score.examples} samples"
