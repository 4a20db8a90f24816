"""The common practice, on the same faults: OpInfo samples unchanged, CPU against device, `assert_close` with its defaults.

It compares the forward and the first backward (with a cotangent of ones) in every dtype that the entry supports on the CPU.
Entries with random results are left out, as common test suites leave them out: they have no rule to compare them.
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
from parity.checks.check import RAISED, Mark
from parity.core.dtypes import DEFAULT
from parity.core.errors import CaseError
from parity.core.results import Raised, Status
from parity.devices import Device
from parity.devices.refusals import listening
from parity.execution.execute import attempt, said
from parity.prove.score import PATIENCE, STOPPED, FaultTrial, Score, counted

UNCOMPARED = ("random", "uninitialised")


@dataclass(frozen=True, slots=True)
class OpInfoCall:
    """One sample call of an OpInfo entry. grad: whether its gradients are compared."""

    entry: str
    dtype: str
    ordinal: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool

    @property
    def text(self) -> str:
        """The name of the call in reports."""
        return f"opinfo:{self.entry} {self.dtype} sample {self.ordinal}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that `assert_close` reports. status: as a `Status` of parity."""

    status: Status
    aspect: str
    reason: str


def search(t: FaultTrial) -> Score:
    """Try the samples, entries and dtypes taking turns, until one shows the fault."""
    started, hit, stopped = time.monotonic(), None, False
    entries = compared(t.route.entries)
    with t.plan.device.active(), listening([]):
        for sample in _samples(entries):
            if (sample.text, sample.ordinal) in t.dead:
                continue
            if stopped := time.process_time() > t.until:
                break
            t.journals.about(examples=t.score.examples + 1, fired=t.score.fired, through=False)
            if (hit := _tried(t, sample)) is not None:
                break
    score = replace(t.score, seconds=time.monotonic() - started)
    if hit is None:
        return replace(score, miss=_miss(score, entries, stopped), late=stopped)
    sizes = sum(x.numel() for x in opinfo.tensors_of((sample.args, sample.kwargs)))
    score = replace(score, found=True, op=f"opinfo:{sample.entry}", dtype=sample.dtype, elements=sizes)
    score = replace(score, case=sample.text, shrunk=sample.text)
    return replace(score, status=str(hit.status), aspect=hit.aspect, reason=hit.reason)


def compared(entries: tuple[str, ...]) -> tuple[str, ...]:
    """The entries whose results `assert_close` can compare."""
    kept = {r.counts.opinfo[0] for r in opinfo.rows() if r.judged.relation not in UNCOMPARED}
    return tuple(e for e in entries if e in kept)


def _samples(entries: tuple[str, ...]) -> Iterator[OpInfoCall]:
    """All samples; entries and dtypes take turns."""
    streams = [_of(e, d) for d in DEFAULT for e in entries if d in opinfo.ENTRIES[e].dtypes]
    while streams:
        for stream in tuple(streams):
            sample = next(stream, None)
            if sample is None:
                streams.remove(stream)
            else:
                yield sample


def _of(entry: str, dtype: str) -> Iterator[OpInfoCall]:
    """The samples of an entry in a dtype; none if OpInfo cannot make them."""
    grad = dtype in opinfo.ENTRIES[entry].backward
    try:
        op, _, _ = opinfo.callables(opinfo.PREFIX + entry)
        calls = opinfo.raw_samples(entry, dtype, grad)
    except CaseError:
        return
    for k, (args, kwargs) in enumerate(calls):
        yield OpInfoCall(entry, dtype, k, op, args, kwargs, grad)


def _tried(t: FaultTrial, sample: OpInfoCall) -> Difference | None:
    """Run one sample and count it; the difference that shows the fault, or None."""
    before, t.tap.raised = t.tap.count, ""
    t.journals.begin(sample.ordinal, sample.text, sample.text, t.plan.options.hang_after or PATIENCE)
    try:
        shown = difference(sample, t.plan.device, t.journals.stage)
        honest = difference(sample, t.healthy, t.journals.stage) if shown is not None else None
    except CaseError:
        return None
    finally:
        t.journals.end()
    hits = [] if shown is None else [shown]
    return counted(t, sample.text, before, hits, lambda _: honest is None, lambda d: (d.status, d.reason))


def difference(sample: OpInfoCall, device: Device, mark: Mark) -> Difference | None:
    """The difference that `assert_close` reports for one sample on a device; None if both sides are close. Raises CaseError if
    the CPU refuses the call.

    Operands are copied with `.to(device)`, as is usual: a view arrives dense and without its offset.
    """
    mark("reference")
    ours, theirs = _copied(sample, "cpu"), _copied(sample, str(device.torch_device))
    here: Any = attempt(lambda: _outputs(sample.op, ours), "run")
    if isinstance(here, Raised):
        raise CaseError(f"{sample.text}: the CPU refuses: {here.message}")
    mark("device")
    there: Any = attempt(lambda: _outputs(sample.op, theirs), "run")
    if (apart := _apart(there, here, "forward")) is not None or not sample.grad:
        return apart
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


def _copied(sample: OpInfoCall, device: str) -> Any:
    """The call's arguments on a device, with new leaves; arguments that name the CPU name the device instead."""

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
    """How the device's result differs from the CPU's, compared on the CPU. NaN equals NaN, as in torch's own tests."""
    if not isinstance(there, Raised):
        there = attempt(lambda: [x.detach().to("cpu") if isinstance(x, Tensor) else x for x in there], "download")
    if isinstance(there, Raised):
        return Difference(RAISED[there.kind], aspect, f"{there.type} in {there.stage}: {there.message}")
    pairs = [(a, b) for a, b in zip(there, here) if a is not None and b is not None]
    try:
        torch.testing.assert_close([a for a, _ in pairs], [b for _, b in pairs], equal_nan=True)
    except AssertionError as e:
        return Difference(Status.WRONG, aspect, said(e))
    except TypeError:  # a result type that assert_close does not compare, such as a dtype
        return None
    return None


def _miss(score: Score, entries: tuple[str, ...], stopped: bool) -> str:
    if not entries:
        return "no OpInfo entry of its ops is compared"
    late = STOPPED if stopped else ""
    how = f"fired unseen in {score.fired}" if score.fired else "never fired in any"
    return f"{late}{how} of {score.examples} samples"
