"""The search of `parity.locate`: which module and operator of a model first compute something else on the device than the CPU.

The model runs once on the device, forward and backward. Each operator of aten that it dispatches there runs once more on the
CPU with the very operands that it got, and is judged by itself: a wrong layer does not blame those behind it. Results that are
equal or differ by roundings alone are settled at once; the others are judged as by `parity.compare`, against a float64 truth.
Nothing is kept of an operator that agrees, so memory is bounded by the largest call.

Where no operator parts, the public functions of the forward pass are compared in the same way, and those that the device
computes by operators that the CPU does not have (`_lstm_mps`) with their gradients, as by `assert_parity`.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from parity.assertion.advice import raised_on_the_cpu
from parity.assertion.comparing import compared, target
from parity.assertion.comparison import Comparison, ParityWarning
from parity.assertion.compiled import CompiledSide
from parity.assertion.modules import ModuleError, module_errors, shown
from parity.assertion.pair import compare
from parity.assertion.places import Place, Places
from parity.assertion.subject import (
    SEED,
    ForwardRun,
    Subject,
    fixed_cotangents,
    forward,
    gradients,
    is_compiled,
    subject,
    tracked_outputs,
    word,
)
from parity.assertion.truth import seeded
from parity.assertion.watch import command, row_of
from parity.checks.equivalents import EQUIVALENTS, on_the_cpu
from parity.checks.operators import (
    ATEN_NOT_UNIQUE,
    ATEN_UNWRITTEN,
    CLEAR,
    OUTSIDE,
    Followed,
    Following,
    Lain,
    OperatorCall,
    Reader,
    error_ratio,
    is_unwritten,
    run_on,
)
from parity.core.dtypes import FACTS
from parity.core.errors import NothingCompared, ParityError, UsageError
from parity.core.results import Raised, Status, Verdict
from parity.devices import Device
from parity.devices.refusals import REFUSED, classify
from parity.execution import execute as ex
from parity.runs.journal import ALLOWED, NOTES, Journal

LARGEST = 2 << 30  # most bytes of the storages of a call's operands; larger calls are left out, and counted
MOST = 200  # parting operators after which the search ends
SHOWN = 5  # of those in the text
FEW = 16  # elements from which on a common factor of all errors shows
FACTOR = 6.0  # standard deviations of the common factor that independent roundings have
EASED = 1.5  # an operator with the same shapes may be so many times farther off than one that the judge took for agreement
PASSES = ("forward", "backward")
# Words of operators and functions that choose among elements: which of equal ones is free, and so is where a gradient goes.
ATEN_CHOOSING = ("max_pool", "topk", "sort", "max", "min", "median", "mode", "kthvalue", "unique")
ATEN_KEEPING = ("norm",)  # words of operators that return statistics for their gradients behind their result
LOCATABLE = (Status.WRONG, Status.DRIFT, Status.MALFORMED)
PATIENCE = 60.0  # seconds for looking where a comparison that failed parts


@dataclass(frozen=True, slots=True)
class Parting:
    """An operator (or function) whose own result is outside. operator: "aten::gelu" or "torch.nn.functional.gelu"; pass_: one
    of `PASSES`; verdict: of its worst result; call: the operator with its operands, None for a function."""

    operator: str
    pass_: str
    place: Place
    verdict: Verdict
    call: OperatorCall | None = None

    @property
    def title(self) -> str:
        """The module, and in which pass."""
        return f"{self.place}, {self.pass_}"


@dataclass(frozen=True, slots=True, repr=False)
class Located:
    """What `locate` found. subject: "Net float32 on mps"; partings: the operators whose own results are outside, in the order
    in which they ran; compared: number of calls of operators that were; left: reason -> number of those that were not. broken:
    what the function raised on the device; whole: what differs in its results although no operator parts alone; modules: how
    far each is off as errors add up, in the order in which they ran, where that was asked for. here: of a comparison with a
    capture, what was located on the device of this machine (None for the CPU); compiled: what became of the function that
    torch.compile compiled, where that was asked for."""

    subject: str
    dtype: str
    device: str
    partings: tuple[Parting, ...] = ()
    compared: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    broken: str = ""
    whole: str = ""
    notes: tuple[str, ...] = ()
    modules: tuple[ModuleError, ...] = ()
    here: Located | None = None
    compiled: CompiledSide | None = None

    @property
    def agrees(self) -> bool:
        """Whether the run came to its end, and nothing differs."""
        others = (self.here is None or self.here.agrees) and (self.compiled is None or not self.compiled.wrong)
        return others and not (self.partings or self.broken or self.whole)

    @property
    def first(self) -> Parting | None:
        """The first of them; None if all agree."""
        return self.partings[0] if self.partings else None

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.first is None:
            if self.compiled is not None and not self.broken and not self.whole:
                return f"{self.subject} {self.compiled.text}"
            many = plural(self.compared, "call") + " of operators"
            if self.broken:
                return f"{self.subject} raises on the device ({self.broken}); {many} before agree with the CPU"
            if self.whole:
                return f"{self.subject}: no operator parts alone ({many} agree), but the results differ: {self.whole}"
            return f"{self.subject}: no operator parts; {many} agree with the CPU, each on the operands that it got"
        return f"{self.subject} parts from the CPU first in {self.first.title}: {_what(self.first)}"

    def __repr__(self) -> str:
        return f"<{self.headline}>"

    def __str__(self) -> str:
        lines = [self.headline]
        for k, p in enumerate(self.partings[:SHOWN]):
            lines += ["then, each judged by itself:"] if k == 1 else []
            lines += [f"  {p.title}: {_what(p)}"] if k else []
            lines += [f"  {line}" for line in (*_worst(p), *_called(p))]
        more = len(self.partings) - SHOWN
        lines += [f"  ... and {more} more operators"] if more > 0 else []
        if self.first is not None:
            lines.append(f"{plural(self.compared, 'call')} of operators compared")
        lines += [f"note: {plural(n, 'call')} of operators not compared: {why}" for why, n in self.left.items()]
        if self.compiled is not None:
            lines += [f"compiled: {line}" for line in self.compiled.lines if line not in self.headline]
        if self.modules:
            lines += ["each module, as errors add up, in units of what rounding explains there:"]
            lines += [f"  {line}" for line in shown(self.modules)]
        lines += [f"note: {n}" for n in self.notes]
        lines += [f"and here: {self.here}"] if self.here is not None else []
        return "\n".join(lines)


def plural(n: int, noun: str) -> str:
    """A number with its noun."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _what(p: Parting) -> str:
    m = p.verdict.measure
    share = m is not None and m.share is not None and 0.0 < m.share < float("inf")
    how = f"{m.share:.3g} times the budget" if share and m is not None else p.verdict.reason
    return f"{p.operator} {p.verdict.status}" + (f", {how}" if how else "")


def _worst(p: Parting) -> Iterator[str]:
    m = p.verdict.measure
    if m is not None and m.device:
        truth = f", truth {m.truth}" if m.truth else ""
        yield f"worst at {list(m.index)}: device {m.device}, CPU {m.reference or m.truth}{truth}"


def _called(p: Parting) -> Iterator[str]:
    of = "of" if p.pass_ == "backward" else "by"
    if p.place.function or p.place.line:
        yield f"{of} {p.place.function or 'a call'}" + (f" at {p.place.line}" if p.place.line else "")


# ------------------------------------------------------------------------------------------------------------- locating


def located(
    fn: Callable[..., Any],
    *inputs: Any,
    device: str | torch.device | Device = "auto",
    backward: bool = True,
    keep_on_cpu: str | Iterable[str] = (),
    seconds: float = math.inf,
    whole: bool = True,
    modules: bool = False,
    **kwargs: Any,
) -> Located:
    """What parts on a device of this machine. The arguments are those of `locate`, which raises as this does. seconds: the time
    after which no more operators are compared; whole: compare the results as well where no operator parts."""
    near = (keep_on_cpu,) if isinstance(keep_on_cpu, str) else tuple(keep_on_cpu)
    s, place = subject(fn, inputs, kwargs, near), target(device)
    if not s.moves:
        raise NothingCompared(f"{s.name}: no input is a tensor, so nothing would reach {place.name}; give it tensors")
    if place.name == "cpu":
        raise UsageError("the device is the CPU itself, which cannot part from itself; name another with device=")
    s, cotangents = _ran_on_the_cpu(s, backward)
    why = "no backward pass: no output depends on an input or parameter that requires a gradient"
    notes: tuple[str, ...] = (why,) if backward and not cotangents else ()
    if is_compiled(fn):
        notes += ("it is compiled, and what was compared here is its eager code",)
    if s.draws:
        notes += ("random numbers (dropout) were drawn on the CPU and handed to the device",)
    search = Search(place, time.monotonic() + seconds)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), place.active():
        warnings.simplefilter("ignore", ParityWarning)
        place.seed(SEED)
        search.operators(s, cotangents)
        # Behind a part that was found, functions that the CPU has no operator for may part before it.
        if (search.foreign or not search.partings) and time.monotonic() < search.until:
            place.seed(SEED)
            search.functions(s, only_foreign=bool(search.partings))
    differs = ""
    if whole and search.broken:
        notes += _advice(fn, inputs, kwargs, place, backward, near)
    elif whole and not search.partings:
        differs = _whole(fn, inputs, kwargs, place, backward, near)
    if not search.compared and not search.partings:
        raise NothingCompared(f"{s.name}: no operator that can be compared ran on {place.name}")
    if names := [n for some in search.foreign.values() for n in some]:
        search.left[f"the CPU does not run them ({', '.join(sorted(set(names)))[:80]})"] += len(names)
    title = f"{s.name} {word(s.coarsest)} on {place.name}"
    table, more = module_errors(s, cotangents, place) if modules else ((), "")
    notes += (more,) if more else ()
    left, broken = dict(search.left), "" if search.partings else search.broken
    return Located(title, word(s.coarsest), place.name, search.order, search.compared, left, broken, differs, notes, table)


def _whole(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: Device,
    backward: bool,
    near: Sequence[str],
) -> str:
    """What differs in the results as a whole; empty if nothing does, or if they cannot be compared (random numbers)."""
    try:
        comparison, _, _ = compared(fn, inputs, kwargs, device, backward, keep_on_cpu=near)
    except ParityError:
        return ""
    found = [f"{n or 'the call'} ({v.status}: {v.reason})" for n, v in comparison.findings]
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _advice(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: Device,
    backward: bool,
    near: Sequence[str],
) -> tuple[str, ...]:
    """What `assert_parity` notes where the device raises: what to change in the function, if the fault is its own. Raises
    UsageError if the function moves itself away from the device."""
    try:
        return compared(fn, inputs, kwargs, device, backward, keep_on_cpu=near)[0].notes
    except UsageError:
        raise
    except ParityError:
        return ()


def locate_run(name: str, run: Callable[[], Any], device: Device, seconds: float = math.inf) -> Located:
    """`locate` for a program that has its tensors on the device already, and runs its own backward pass (a training step).
    name: how it is called. Operators that write in place and return nothing are compared by what they leave in memory."""
    search = Search(device, time.monotonic() + seconds)
    mode = Operators(search, in_place=True)
    with warnings.catch_warnings(), search.places.watching(), mode:
        warnings.simplefilter("ignore", ParityWarning)
        got = ex.attempt(run, "run")
    if isinstance(got, Raised):
        search.broken = f"{got.type}: {got.message}"
    order = tuple(search.partings)
    return Located(name, "", device.name, order, search.compared, dict(search.left), "" if order else search.broken)


def parted(
    comparison: Comparison,
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: str | torch.device | Device,
    backward: bool,
    keep_on_cpu: Sequence[str],
) -> Comparison:
    """The comparison with where the device parts, and with the results of that module first. As it is if nothing can be
    located: the device refuses the function, or differs by what its operators add up to."""
    if not any(v.status in LOCATABLE for _, v in comparison.verdicts):
        return comparison
    try:
        found = located(
            fn, *inputs, device=device, backward=backward, keep_on_cpu=keep_on_cpu, seconds=PATIENCE, whole=False, **kwargs
        )
    except Exception:  # the findings must be told all the same
        return comparison
    return with_place(comparison, found, device)


def with_place(comparison: Comparison, found: Located, device: str | torch.device | Device) -> Comparison:
    """A comparison with what `located` found of it: where the device parts, and the command that tests that operator."""
    if (one := found.first) is None:
        return comparison
    own = f"[{one.place.module}."
    order = sorted(comparison.verdicts, key=lambda nv: bool(one.place.module) and own not in nv[0])
    row = row_of(one.operator.rpartition("::")[2].rpartition(".")[2].removesuffix("_backward"))
    planted = bool(getattr(target(device), "faults", ()))
    next_ = command([row], found.dtype, found.device, planted) if row else comparison.next
    where = "; ".join((f"{found.headline.removeprefix(found.subject).strip()}", *_called(one)))
    where += f"\n  {comparison.parts}" if comparison.parts else ""  # of compiled code
    return replace(comparison, verdicts=tuple(order), parts=where, next=next_)


def cotangents_of(s: Subject) -> list[Tensor]:
    """Those of the outputs that require a gradient. Raises UsageError if the subject does not run on the CPU."""
    return _ran_on_the_cpu(s, True)[1]


def _ran_on_the_cpu(s: Subject, backward: bool) -> tuple[Subject, list[Tensor]]:
    """The subject, which draws its random numbers on the CPU from here on if it draws any, and the cotangents of its outputs.
    Raises UsageError if it does not run on the CPU."""
    handing = replace(s, draws=True)

    def run() -> ForwardRun:
        with seeded():
            return forward(handing, torch.clone, backward)

    got: ForwardRun | Raised = ex.attempt(run, "run")
    if isinstance(got, Raised):
        raise UsageError(f"{s.name} raises on the CPU: {got.type}: {got.message}; {raised_on_the_cpu(got.message)}")
    draws = got.handed is not None and got.handed.draws > 0 and not got.handed.left
    return handing if draws else s, fixed_cotangents(got) if backward and got.leaves else []


class Search:
    """One search: the modes of both passes tell it what ran, and it keeps what parts."""

    def __init__(self, device: Device, until: float = math.inf) -> None:
        self.device, self.until = device, until
        self.tables: Device | str = device  # whose tolerance tables judge
        self.partings: list[Parting] = []
        self.compared = 0
        self.left: Counter[str] = Counter()
        self.places = Places(device.torch_device.type)
        # Number of the call of a function -> the operators in it that the CPU does not have.
        self.foreign: dict[int, list[str]] = defaultdict(list)
        self.odd: set[int] = set()  # numbers of the calls that draw random numbers, or return memory that nobody wrote
        self.broken = ""
        notes = os.environ.get(NOTES)  # of a process that the device may end: its parent reads what it was at
        self._journal = Journal(Path(notes)) if notes else None
        self._allowed = float(os.environ.get(ALLOWED, math.inf))
        self._taken: dict[Any, float] = {}  # operator and shapes -> the largest ratio that the judge took for agreement

    # ---------------------------------------------------------------------------------------------------- operators

    def mode(self) -> Operators:
        """What hands the calls of operators to this search."""
        return Operators(self)

    def where(self) -> tuple[str, Place]:
        """The pass and the place of the operator that runs now."""
        return PASSES[torch._C._current_graph_task_id() != OUTSIDE], self.places.now

    def operators(self, s: Subject, cotangents: Sequence[Tensor]) -> None:
        """Run the subject with every operator compared."""
        mode = self.mode()
        # Places come first, because the operators' own runs on the CPU must not be taken for the program's.
        with self.places.watching(), mode:
            run = ex.attempt(lambda: forward(s, self.device.upload, bool(cotangents), None, torch.clone, self._drew), "run")
            got: Any = run
            if not isinstance(run, Raised) and cotangents and len(tracked_outputs(run)) == len(cotangents):
                fed = [self.device.upload(c) for c in cotangents]
                got = ex.attempt(lambda: gradients(run, tracked_outputs(run), fed), "backward")
        if isinstance(got, Raised):
            self.broken = f"{got.type} in {got.stage}: {got.message}"
        if mode.seen.missed:
            self.left["their operands cannot be read, or are too large"] += mode.seen.missed

    def _drew(self) -> None:
        """The call of a function that runs now draws random numbers."""
        self.odd.add(self.places.now.order)

    def begins(self, name: str) -> None:
        """The device is about to run an operator: note it where its death would be looked into."""
        if self._journal is not None:
            now = self.places.now
            at = f" at {now.line}" if now.line else ""
            pass_ = PASSES[torch._C._current_graph_task_id() != OUTSIDE]
            self._journal.begin(self.compared, name, f"{name}, {pass_} of {now}{at}", self._allowed)
            self._journal.stage("device")

    def ended(self) -> None:
        """The device has run it."""
        if self._journal is not None:
            self._journal.stage("compare")

    def operator(self, call: OperatorCall, theirs: tuple[Tensor, ...]) -> None:
        """Judge the results of an operator. Raises what the CPU raises."""
        if time.monotonic() > self.until:
            self.left["the time was over"] += 1
            return
        ours = cpu_results(call, theirs)
        self.compared += 1
        theirs = theirs[: len(ours)] if call.base_name in EQUIVALENTS else theirs
        if len(ours) != len(theirs):
            self._parts(call, Verdict(Status.MALFORMED, f"{len(theirs)} results instead of {len(ours)}"))
            return
        alike = _alike(call, ours, theirs)
        pairs = [(k, f"out[{k}]" if len(ours) > 1 else "out", b, a) for k, a, b in alike]
        shape = call.name, tuple((x.shape, x.base.dtype) for x in call.operands)
        if chooses(call.base_name):
            pairs = [(k, n, b, a) for k, n, b, a in pairs if a.is_floating_point() or b.shape != a.shape]
        doubtful = [(b, a) for _, _, b, a in pairs if not is_settled(b, a, self._taken.get(shape, 1.0))]
        if not doubtful or call.base_name in ATEN_NOT_UNIQUE:
            return
        verdict = self._judged(
            lambda *x: tuple(called_with(call, x)[k] for k, *_ in pairs), [x.values for x in call.operands],
            [b for _, _, b, _ in pairs], [a for _, _, _, a in pairs],
        )  # fmt: skip
        if verdict is None:
            self.left["their results cannot be judged alone"] += 1
        elif verdict.status.is_finding:
            self._parts(call, verdict)
        else:
            ratio = max(error_ratio(b, a) for b, a in doubtful)
            self._taken[shape] = max(self._taken.get(shape, 1.0), EASED * ratio)

    def written(self, call: OperatorCall, theirs: tuple[Tensor, ...]) -> None:
        """Judge what an operator without results left in the storages of its operands. Raises what the CPU raises."""
        ours = run_on(call, None).bases
        self.compared += 1
        off = max((error_ratio(b, a) for b, a in zip(theirs, ours)), default=0.0)
        if off > CLEAR:
            self._parts(call, Verdict(Status.WRONG, f"{off:.3g} times what roundings explain"))

    def raised(self, call: OperatorCall, e: Exception) -> None:
        """The device raised in an operator that the CPU may run."""
        try:
            run_on(call, None)
        except Exception:
            return
        refused = classify(e) == REFUSED
        text = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:200]}"
        self.compared += 1
        self._parts(call, Verdict(Status.UNSUPPORTED if refused else Status.ERROR, text))

    def _parts(self, call: OperatorCall, verdict: Verdict) -> None:
        pass_, now = self.where()
        operator = f"aten::{call.base_name}"
        last = self.partings[-1] if self.partings else None
        nested = (operator, f"{operator}_impl", f"aten::_{call.base_name}_impl")
        if last is not None and now.order and (last.place, last.pass_) == (now, pass_) and last.operator in nested:
            return  # an operator that runs another one by itself is told once, by the inner one
        if len(self.partings) < MOST:
            self.partings.append(Parting(operator, pass_, now, verdict, call))

    def _judged(
        self, fn: Callable[..., Any], operands: Sequence[Tensor], theirs: Sequence[Tensor], ours: Sequence[Tensor]
    ) -> Verdict | None:
        """The worst verdict of a call's results; None if they cannot be judged."""
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            try:
                found: Comparison = compare(fn, tuple(theirs), tuple(ours), *operands, device=self.tables)
            except ParityError:
                return None
        bad = [v for _, v in found.findings if v.status.is_finding]
        return max(bad, key=_share, default=Verdict(Status.AGREE))

    # ---------------------------------------------------------------------------------------------------- functions

    def functions(self, s: Subject, only_foreign: bool = False) -> None:
        """Run the forward pass with every public function compared, or those alone that run operators which the CPU lacks."""
        with self.places.watching(), Calls(self, only_foreign):
            ex.attempt(lambda: forward(s, self.device.upload, True, stay=torch.clone), "run")

    @property
    def order(self) -> tuple[Parting, ...]:
        """What parts, in the order in which it ran: the calls of the forward pass, then those of the backward pass, from the
        last to the first."""
        found = sorted(self.partings, key=lambda p: PASSES.index(p.pass_))
        if all(p.call is not None for p in found):
            return tuple(found)  # operators were kept as they ran
        return tuple(sorted(found, key=lambda p: (k := PASSES.index(p.pass_), (1, -1)[k] * p.place.order)))

    def with_gradients(self, func: Any, name: str, given: Any, place: Place) -> None:
        """Compare a public function by itself, with its gradients."""
        with torch.autocast(self.places.kind, enabled=False):  # what reached it is compared, in its own dtype, on both sides
            comparison, _, _ = compared(func, given[0], given[1], self.device)
        self.compared += len(self.foreign.pop(place.order))
        self.judged_alone(name, place, comparison.findings)

    def judged_alone(self, name: str, place: Place, findings: Iterable[tuple[str, Verdict]]) -> None:
        """Keep the findings of a function that was compared by itself, with its gradients."""
        findings = list(findings)
        for pass_ in PASSES[: 1 if chooses(name) else 2]:
            found = [v for n, v in findings if n.startswith("grad[") is (pass_ == "backward")]
            if found:
                self.partings.append(Parting(name, pass_, place, max(found, key=_share)))

    def function(self, func: Any, name: str, given: Any, theirs: Any, place: Place) -> None:
        """Judge the result of a public function. given: its arguments before the call, on the CPU."""
        ours = func(*tree_map(_copy, given[0]), **tree_map(_copy, given[1]))
        results = [[t.detach() for t in tree_leaves(side) if isinstance(t, Tensor)] for side in (theirs, ours)]
        there = [self.device.download(t) if not t.is_cpu else t for t in results[0]]
        if len(there) != len(results[1]) or all(is_settled(b, a) for b, a in zip(there, results[1])):
            return
        leaves, tree = tree_flatten(given)
        which = [k for k, x in enumerate(leaves) if isinstance(x, Tensor)]

        def run(*tensors: Tensor) -> Any:
            whole = list(leaves)
            for k, t in zip(which, tensors):
                whole[k] = t
            args, kwargs = tree_unflatten(whole, tree)
            return tuple(t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor))

        verdict = self._judged(run, [leaves[k] for k in which], there, results[1])
        if verdict is not None and verdict.status.is_finding:
            self.partings.append(Parting(name, PASSES[0], place, verdict))


def _share(v: Verdict) -> float:
    return (v.measure.share or 0.0) if v.measure is not None else 0.0


def chooses(name: str) -> bool:
    """Whether an operator or function chooses among elements, of which several may be equal."""
    last = name.rpartition(".")[2].strip("_")
    return any(last == word or last.startswith(f"{word}_") or "max_pool" in last for word in ATEN_CHOOSING)


def cpu_results(call: OperatorCall, theirs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a call returns on the CPU. A device that keeps statistics in float32 hands them to the gradients beside halves,
    which some kernels of the CPU refuse: there it is computed in float32 and rounded to the dtypes of the device's results.
    Raises what the CPU raises."""
    try:
        return run_on(call, None).results
    except RuntimeError:
        floats = {x.base.dtype for x in call.operands if x.base.is_floating_point()}
        if len(floats) < 2 or torch.float32 not in floats or torch.float64 in floats:
            raise
        wide = call.in_float32()
        return tuple(t.to(b.dtype) for t, b in zip(run_on(wide, None).results, theirs, strict=True))


def _alike(call: OperatorCall, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[tuple[int, Tensor, Tensor]]:
    """The numbers of the results with the CPU's and the device's. The statistics that a normalization keeps for its gradient
    are taken in the coarser dtype of the two: a kernel may keep them finer than the CPU's, and the CPU's keep none in eval
    mode. Nobody but the gradient sees them."""
    every = [(k, a, b) for k, (a, b) in enumerate(zip(ours, theirs))]
    if not any(word in call.base_name for word in ATEN_KEEPING):
        return every
    kept = [(k, a, b) for k, a, b in every[1:] if a.numel() and b.numel()]
    coarser = [max((a.dtype, b.dtype), key=lambda d: torch.finfo(d).eps) for _, a, b in kept]
    return every[:1] + [(k, a.to(d), b.to(d)) for (k, a, b), d in zip(kept, coarser)]


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def called_with(call: OperatorCall, tensors: Sequence[Tensor]) -> Any:
    """The results of an operator on these operands in place of its own."""
    following = iter(tensors)
    place = torch.device("cpu")

    def realised(leaf: Any) -> Any:
        if isinstance(leaf, Lain):
            return next(following)
        return place if isinstance(leaf, torch.device) else leaf

    args, kwargs = tree_map(realised, call.args), tree_map(realised, call.kwargs)
    return tuple(t for t in tree_leaves(on_the_cpu(call.operator)(*args, **kwargs)) if isinstance(t, Tensor))


def is_settled(got: Tensor, cpu: Tensor, ratio: float = 1.0) -> bool:
    """Whether two results are equal, or differ by roundings alone: no element is far off, and the errors have no factor in
    common. ratio: how far off an element may be, in units of what one operator's roundings explain."""
    if got.shape != cpu.shape or got.dtype != cpu.dtype:
        return False
    if torch.equal(got, cpu):
        return True
    if not cpu.is_floating_point() and not cpu.is_complex():
        return False
    if error_ratio(got, cpu) > ratio:
        return False
    d, c = (torch.view_as_real(x) if x.is_complex() else x for x in (got, cpu))
    d, c = d.to(torch.float64).flatten(), c.to(torch.float64).flatten()
    usable = d.isfinite() & c.isfinite()
    d, c = d[usable], c[usable]
    size = float(c.square().sum())
    if d.numel() < FEW or size == 0.0:
        return bool(torch.equal(d, c)) or FACTS[word(cpu.dtype)].bits >= 32
    common = abs(float(((d - c) * c).sum())) / size
    # The factor of independent roundings of half an ULP, each relative to its own element.
    alone = torch.finfo(cpu.dtype).eps * float(c.pow(4).sum()) ** 0.5 / size
    return bool(common <= FACTOR * max(alone, torch.finfo(cpu.dtype).eps / d.numel() ** 0.5))


class Operators(Following):  # type: ignore[no-untyped-call]  # as torch has it
    """Hands each call on the device to the search."""

    def __init__(self, search: Search, in_place: bool = False) -> None:
        super().__init__(search.device, Followed(), LARGEST)
        self._search, self._in_place = search, in_place

    @property
    def seen(self) -> Followed:
        """What could not be compared."""
        return self._seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now = self._search.places.now
        # A function may well take fresh memory inside, and write it: causal attention makes its mask so.
        fresh = is_unwritten(func) and now.function.rpartition(".")[2].startswith(ATEN_UNWRITTEN)
        if fresh or torch.Tag.nondeterministic_seeded in func.tags:
            self._search.odd.add(now.order)
        self._search.begins(func._schema.name)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._search.ended()

    def failed(self, call: OperatorCall, error: Exception) -> None:
        """The device raised in a call."""
        with self._search.places.paused():
            self._search.raised(call, error)

    def finished(self, call: OperatorCall, args: Any, kwargs: Any, result: Any) -> None:
        """A call came to its end: judge it, unless the CPU cannot run it."""
        with self._search.places.paused():
            tensors = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            theirs = tuple(_plain(self._device.download(t.detach()) if not t.is_cpu else t.detach().clone()) for t in tensors)
            self._search.ended()  # only now: a device may compute when its result is asked for
            try:
                if not tensors and self._in_place:
                    self._search.written(call, self._ran(args, kwargs, result).bases)
                else:
                    self._search.operator(call, theirs)
            except Exception:  # the CPU cannot run it, or refuses it
                self._keep(OperatorCall(call.operator, (), {}, unknown=True))

    def _keep(self, call: OperatorCall) -> None:
        """Take note of an operator that the CPU does not run."""
        self._search.foreign[self._search.places.now.order].append(call.base_name)


def _plain(t: Tensor) -> Tensor:
    return t.resolve_conj().resolve_neg()


class Calls(TorchFunctionMode):
    """Hands each public function on the device's tensors to the search."""

    def __init__(self, search: Search, only_foreign: bool) -> None:
        super().__init__()
        self._search, self._only_foreign = search, only_foreign

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, places = kwargs or {}, self._search.places
        passed = self._only_foreign and places.following not in self._search.foreign
        with places.paused():  # calls are numbered as in the run before
            given = None if passed else self._given(func, args, kwargs)
        result = func(*args, **kwargs)
        if given is not None:
            place = places.now
            with places.paused():
                self._compare(func, given, result, place)
        return result

    def _given(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copies of the arguments of a public function on the CPU; None for what is not compared."""
        there = any(isinstance(x, Tensor) and x.device.type == self._search.places.kind for x in tree_leaves((args, kwargs)))
        name = str(resolve_name(func) or "")
        if not there or not name.startswith("torch.") or name.startswith("torch.Tensor."):
            return None
        read = Reader(self._search.device, LARGEST)

        def near(x: Any) -> Any:
            return read(x).values.requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

        try:
            return tree_map(near, (tuple(args), dict(kwargs)))
        except ValueError:  # what cannot be read
            return None

    def _compare(self, func: Any, given: Any, result: Any, place: Place) -> None:
        search, name = self._search, str(resolve_name(func))
        try:
            if place.order in search.foreign:  # random functions are refused there
                search.with_gradients(func, name, given, place)
            elif place.order in search.odd:
                search.left["they draw random numbers, or return memory that nobody wrote"] += 1
            elif torch.is_autocast_enabled(search.places.kind):
                return  # the CPU casts by another list, and the operators were compared below the casts
            else:
                search.function(func, name, given, result, place)
        except Exception:  # the CPU refuses it with these arguments: nothing is known of it
            search.left[f"the CPU does not run {name}"] += 1
