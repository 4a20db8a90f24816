"""The search of `parity.locate`: every operator, and every public function, of a run on the device next to the CPU's."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from parity.checks.equivalents import EQUIVALENTS, on_the_cpu
from parity.checks.following import ATEN_UNWRITTEN, CLEAR, Followed, Following, is_plain_function, is_unwritten
from parity.checks.operators import ATEN_NOT_UNIQUE, OperatorCall, Reader, StridedOperand, error_ratio, run_on
from parity.comparing import meter
from parity.comparing.choices import as_written
from parity.comparing.comparison import DEFAULT, FULL, Comparison, Effort, Request
from parity.comparing.function import compared
from parity.comparing.moved_runs import moved_run
from parity.comparing.pair import compare
from parity.comparing.places import Place, Places
from parity.comparing.screens import Sums, is_settled, may_move, moves_as_far
from parity.comparing.subject import ForwardRun, Subject, forward, gradients, tracked_outputs, word
from parity.core.dtypes import HALF
from parity.core.errors import ParityError
from parity.core.observer import Functions, in_backward, lies_on, name_of, no_results
from parity.core.results import Raised, Status, Verdict
from parity.devices import Device
from parity.devices.refusals import REFUSED, classify
from parity.execution import execute as ex
from parity.locating.located import PASSES, SHOWN, Divergence, plural
from parity.locating.noted import Noted, pass_now
from parity.locating.values import key_of
from parity.oracle.yardstick import ALIKE, EASED, STRUCK, place

LARGEST = 2 << 30  # most bytes of the storages of a call's operands; larger calls are left out, and counted
MOST = 200  # diverging operators after which the search ends
LONGEST = 200  # characters of an exception's message
# Words of operators and functions that choose among elements: which of equal ones is free, and so is where a gradient goes.
ATEN_CHOOSING = ("max_pool", "topk", "sort", "max", "min", "median", "mode", "kthvalue", "unique")
ATEN_KEEPING = ("norm",)  # words of operators that return statistics for their gradients behind their result


class Search:
    """One search: the modes of both passes report what ran, and it keeps what diverges."""

    def __init__(self, device: Device, until: float = math.inf, effort: Effort = DEFAULT) -> None:
        self.device, self.until, self.effort = device, until, effort
        self.tables: Device | str = device  # whose tolerance tables judge
        self.divergences: list[Divergence] = []
        self.compared = 0
        self.left: Counter[str] = Counter()
        self.places = Places(device.torch_device.type)
        # Number of the call of a function -> the operators in it that the CPU does not have.
        self.foreign: dict[int, list[str]] = defaultdict(list)
        self.odd: set[int] = set()  # numbers of the calls that draw random numbers, or return memory that nobody wrote
        self.judged = SHOWN  # divergences after which calls of the same operators that are far off are only counted
        self.in_place = False  # whether operators that return nothing are compared by what they leave in memory
        self.broken = ""
        self.nonfinite = ""  # the first operator that gives NaN, or Inf in a half type, on both sides, in words
        self.noted = Noted()
        self._orders = Sums()
        self._agreed: set[tuple[str, str]] = set()  # digests of results of the device and the CPU that differ by roundings
        self.expected = 0  # calls of operators, where somebody asks how far the search is
        self._begun = 0
        self._taken: dict[Any, float] = {}  # operator and shapes -> the largest ratio that the judge took for agreement

    # ---------------------------------------------------------------------------------------------------- operators

    def where(self) -> tuple[str, Place]:
        """The pass and the place of the operator that runs now."""
        return pass_now(), self.places.now

    def operators(self, s: Subject, cotangents: Sequence[Tensor]) -> None:
        """Run the subject with every operator compared."""
        mode = SearchMode(self)
        # Places come first, because the operators' own runs on the CPU must not be taken for the program's.
        with self.places.watching():
            got: Any = self._ran_with(mode, s, bool(cotangents), self._drew)
            if not isinstance(got, Raised) and cotangents and len(tracked_outputs(got)) == len(cotangents):
                run, fed = got, [self.device.upload(c) for c in cotangents]
                with mode:
                    got = ex.attempt(lambda: gradients(run, tracked_outputs(run), fed), "backward")
        if isinstance(got, Raised):
            self.broken = f"{got.type} in {got.stage}: {got.message}"
        if mode.missed:
            self.left["their operands cannot be read, or are too large"] += mode.missed

    def _ran_with(self, mode: Any, s: Subject, backward: bool, drew: Callable[[], None] | None = None) -> ForwardRun | Raised:
        """The forward pass on the device, with a mode around the subject's own call: what puts operands there is parity's."""

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            self.places.pausing = False
            with mode:
                yield
            self.places.pausing = True

        def run() -> ForwardRun:
            with self.places.paused():
                return forward(replace(s, on_draw=drew), self.device.upload, backward, around(), torch.clone)

        return ex.attempt(run, "run")

    def _drew(self) -> None:
        """The call of a function that runs now draws random numbers."""
        self.odd.add(self.places.now.order)

    def is_passed(self, func: Any) -> bool:
        """Whether an operator need not be compared, because one before it is wrong, and no more than the first is asked for.
        The calls of that one are: a way around it has to serve all."""
        wrong = [d.operator for d in self.divergences if d.is_wrong] if self.judged == 1 and self.effort != FULL else []
        return bool(wrong) and OperatorCall(func, (), {}).title not in wrong

    def begins(self, name: str) -> None:
        """The device is about to run an operator: note it where its death would be looked into."""
        self._begun += 1
        if self.expected:
            meter.at(self._begun, self.expected, f"{self._begun} calls of operators, now {name}")
        if self.noted.asked:
            self.noted.begin(name, *self.where())

    def ended(self) -> None:
        """The device has run it."""
        self.noted.ended()

    def finished(self, call: OperatorCall, args: Any, kwargs: Any, result: Any) -> None:
        """The device has run an operator to its end: judge it, unless the CPU cannot run it."""
        tensors = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        if any(t.is_meta for t in tensors):  # shapes alone, as derivatives of torch ask for them
            return
        theirs = self._near(tensors)
        self.ended()  # only now: a device may compute when its result is asked for
        try:
            if not tensors and self.in_place:
                read = Reader(self.device, LARGEST)
                tree_map(read, (tuple(args), dict(kwargs)))
                self.written(call, read.bases)
            else:
                self.operator(call, theirs)
        except Exception:  # the CPU cannot run it, or refuses it
            self.not_on_cpu(call)
        if which := sorted(call.statistics):
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self.statistics(call, self._near([given[k] for k in which]))

    def _near(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch._C.DisableTorchFunction():  # its calls are parity's
            plain = [_dense(ex.with_memory(t.detach())) for t in tensors]
            return tuple(_plain(self.device.download(t) if not t.is_cpu else t.clone()) for t in plain)

    def not_on_cpu(self, call: OperatorCall) -> None:
        """Take note of an operator that the CPU does not run."""
        self.foreign[self.places.now.order].append(call.base_name)

    def operator(self, call: OperatorCall, theirs: tuple[Tensor, ...]) -> None:
        """Judge the results of an operator. Raises what the CPU raises."""
        if time.monotonic() > self.until:
            self.left["the time was over"] += 1
            return
        with self.noted.on_the_cpu():
            ours = cpu_results(call, theirs)
        with self._judging():
            theirs = _written_alike(call, theirs, ours)
            self._operator_judged(call, theirs, ours)
            self.compared += 1
            self.nonfinite = self.nonfinite or self._nonfinite(call, theirs, ours)

    def _nonfinite(self, call: OperatorCall, theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> str:
        """What an operator makes of numbers on both sides, in words: NaN, or Inf in a half type; empty for neither."""
        floats = [x for x in call.operands if x.base.is_floating_point() or x.base.is_complex()]
        if not floats or any(isinstance(x, float) and not math.isfinite(x) for x in tree_leaves((call.args, call.kwargs))):
            return ""  # it makes or masks, and no arithmetic went wrong
        for what, is_it in (("NaN", torch.isnan), ("Inf", torch.isinf)):
            pairs = [(a, b) for a, b in zip(ours, theirs) if a.is_floating_point() and (what == "NaN" or word(a.dtype) in HALF)]
            if not any(bool(is_it(b).any()) and bool(is_it(a).any()) for a, b in pairs):
                continue
            if any(bool(is_it(x.values).any()) for x in floats):
                return ""
            pass_, place = self.where()
            inf = what == "NaN" and any(bool(torch.isinf(x.values).any()) for x in floats)
            line = f" at {place.line}" if place.line else ""
            where = f"{word(floats[0].base.dtype)}, {pass_}, {place.function or 'a call'}{line}"
            where += "; its operands hold Inf" if inf else ""
            return f"the CPU gives {what} as the device does, first in {call.title} {where}"
        return ""

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Count what the judge itself fails at: an exception there is no refusal of the CPU's."""
        try:
            yield
        except Exception as e:
            self.left[f"the judge failed ({type(e).__name__}: {(str(e).splitlines() or [''])[0][:80]})"] += 1

    def _operator_judged(self, call: OperatorCall, theirs: tuple[Tensor, ...], ours: tuple[Tensor, ...]) -> None:
        theirs = theirs[: len(ours)] if call.base_name in EQUIVALENTS else theirs
        if len(ours) != len(theirs):
            self._diverges(call, Verdict(Status.MALFORMED, f"{plural(len(theirs), 'result')} instead of {len(ours)}"))
            return
        alike = _alike(call, ours, theirs)
        pairs = [(k, f"out[{k}]" if len(ours) > 1 else "out", b, a) for k, a, b in alike]
        if chooses(call.base_name):
            pairs = [(k, n, b, a) for k, n, b, a in pairs if a.is_floating_point() or b.shape != a.shape]
        doubtful = [(k, b, a) for k, _, b, a in pairs if not is_settled(b, a)]
        if not doubtful or call.base_name in ATEN_NOT_UNIQUE:
            return
        shape = call.name, tuple((x.shape, x.base.dtype) for x in call.operands)
        if (eased := self._taken.get(shape)) and not (doubtful := [p for p in doubtful if not is_settled(*p[1:], eased)]):
            return
        operands = [x.values for x in call.operands]

        def results(*x: Tensor) -> tuple[Tensor, ...]:
            return tuple(called_with(call, x)[k] for k, *_ in pairs)

        def moved(*x: Tensor) -> tuple[Tensor, ...]:
            return tuple(called_with(call, x)[k] for k, *_ in doubtful)

        if self._explained(doubtful, moved, operands, call):
            return
        struck = [d for d in self.divergences if d.operator == call.title and d.is_wrong]
        off = min(error_ratio(b, a) for _, b, a in doubtful)
        least = min([STRUCK, *(ALIKE * d.off for d in struck if self.judged == 1)])
        if struck and self.effort != FULL and len(self.divergences) >= self.judged and least < off < math.inf:
            text = f"{off:.3g} times what roundings explain ({place('struck again' if off > STRUCK else 'struck alike')})"
            self._diverges(call, Verdict(struck[-1].verdict.status, text), off=off)
            return
        verdict = self._judged(results, operands, [b for _, _, b, _ in pairs], [a for _, _, _, a in pairs])
        if verdict is None:
            self.left["their results cannot be judged alone"] += 1
        elif verdict.status.is_finding:
            self._diverges(call, verdict, off=off)
        else:
            self._agreed |= _digests(doubtful)
            ratio = max(error_ratio(b, a) for _, b, a in doubtful)
            self._taken[shape] = max(self._taken.get(shape, 1.0), EASED * ratio)

    def _explained(
        self,
        pairs: Sequence[tuple[int, Tensor, Tensor]],
        run: Callable[..., Sequence[Tensor]],
        operands: Sequence[Tensor],
        call: OperatorCall | None = None,
    ) -> bool:
        """Whether roundings explain how results differ, or the same two were found to agree before: those of an operator are
        also those of the one that it calls, and of the function that calls it. pairs: (number, the device's, the CPU's); run:
        the function of the operands that gives them."""
        keys = _digests(pairs)
        if keys <= self._agreed:
            return True
        if self.effort == FULL:
            return False
        try:
            left = list(range(len(pairs))) if call is None else self._orders.left(call, pairs)
            found = not left
            if left and all(may_move(pairs[k][2]) for k in left):

                def moved(key: int) -> list[Tensor]:
                    results = moved_run(run, operands, key)
                    return [results[k] for k in left]

                found = moves_as_far([pairs[k][1:] for k in left], moved)
        except Exception:  # the CPU refuses it with such operands
            return False
        self._agreed |= keys if found else set()
        return found

    def written(self, call: OperatorCall, theirs: tuple[Tensor, ...]) -> None:
        """Judge what an operator without results left in the storages of its operands. Raises what the CPU raises."""
        with self.noted.on_the_cpu():
            ours = run_on(call, None).bases
        with self._judging():
            off = max((error_ratio(b, a) for b, a in zip(theirs, ours)), default=0.0)
            if off > CLEAR:
                self._diverges(call, Verdict(Status.WRONG, f"{off:.3g} times what roundings explain ({place('one operator')})"))
            self.compared += 1

    def statistics(self, call: OperatorCall, theirs: tuple[Tensor, ...]) -> None:
        """Judge the running statistics that a normalization of a batch left on the device."""
        operands, which = [x.values for x in call.operands], sorted(call.statistics)

        def kept(*x: Tensor) -> tuple[Tensor, ...]:
            given = [t.clone() for t in x]
            called_with(call, given)
            return tuple(given[k] for k in which)

        try:
            with self.noted.on_the_cpu():
                ours = kept(*operands)
        except RuntimeError:  # float32 next to halves
            return
        pairs = [(k, b, a) for k, (b, a) in enumerate(zip(theirs, ours)) if not is_settled(b, a)]
        if not pairs or self._explained(pairs, lambda *x: [kept(*x)[k] for k, *_ in pairs], operands):
            return
        verdict = self._judged(kept, operands, theirs, ours)
        if verdict is not None and verdict.status.is_finding:
            self._diverges(call, verdict, "its running statistics")

    def raised(self, call: OperatorCall, e: Exception) -> None:
        """The device raised in an operator that the CPU may run."""
        try:
            run_on(call, None)
        except Exception:
            return
        refused = classify(e) == REFUSED
        text = f"{type(e).__name__}: {shortened(e)}"
        self.compared += 1
        self._diverges(call, Verdict(Status.UNSUPPORTED if refused else Status.ERROR, text))

    def _diverges(self, call: OperatorCall, verdict: Verdict, of: str = "", off: float = math.inf) -> None:
        pass_, now = self.where()
        operator = call.title
        last = self.divergences[-1] if self.divergences else None
        nested = (operator, f"{operator}_impl", f"aten::_{call.base_name}_impl")
        if last is not None and now.order and (last.place, last.pass_) == (now, pass_) and last.operator in nested:
            return  # an operator that runs another one by itself is reported once, by the inner one
        if len(self.divergences) < MOST:
            self.divergences.append(Divergence(operator, pass_, now, verdict, call, of, off))

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
        """Run the forward pass with every public function compared, or only those that run operators missing on the CPU."""
        with self.places.watching():
            self._ran_with(self._public(only_foreign), s, True)

    def functions_of(self, run: Callable[[], Any], only_foreign: bool) -> None:
        """Run a program with its public functions compared, as `functions` does."""
        with self.places.watching(), self._public(only_foreign):
            ex.attempt(run, "run")

    @property
    def order(self) -> tuple[Divergence, ...]:
        """What diverges, in the order in which it ran: the calls of the forward pass, then those of the backward pass, from the
        last to the first."""
        found = sorted(self.divergences, key=lambda p: PASSES.index(p.pass_))
        if all(p.call is not None for p in found):
            return tuple(found)  # operators were kept as they ran
        return tuple(sorted(found, key=lambda p: (k := PASSES.index(p.pass_), (1, -1)[k] * p.place.order)))

    def _public(self, only_foreign: bool) -> Functions:
        """Hands each public function on the device's tensors to this search."""

        def observe(func: Any, args: Any, kwargs: Any) -> Any:
            passed = only_foreign and self.places.following not in self.foreign
            with self.places.paused():  # calls are numbered as in the run before
                given = None if passed else self._given(func, args, kwargs)
            result = func(*args, **kwargs)
            if given is not None:
                place = self.places.now
                with self.places.paused():
                    self._function_called(func, given, result, place)
            return result

        return Functions(observe)

    def _given(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copies of the arguments of a public function on the CPU; None for what is not compared."""
        if not lies_on(self.places.kind, (args, kwargs)) or not is_plain_function(name_of(func)):
            return None
        read = Reader(self.device, LARGEST)

        def near(x: Any) -> Any:
            return read(x).values.requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

        try:
            return tree_map(near, (tuple(args), dict(kwargs)))
        except ValueError:  # what cannot be read
            return None

    def _function_called(self, func: Any, given: Any, result: Any, place: Place) -> None:
        name = name_of(func)
        try:
            if place.order in self.foreign:  # random functions are refused there
                self.with_gradients(func, name, given, place)
            elif place.order in self.odd:
                self.left["they draw random numbers, or return memory that nobody wrote"] += 1
            elif torch.is_autocast_enabled(self.places.kind):
                return  # the CPU casts by another list, and the operators were compared below the casts
            else:
                self.function(func, name, given, result, place)
        except Exception:  # the CPU refuses it with these arguments: nothing is known of it
            self.left[f"the CPU does not run {name}"] += 1

    def with_gradients(self, func: Any, name: str, given: Any, place: Place) -> None:
        """Compare a public function by itself, with its gradients."""
        with torch.autocast(self.places.kind, enabled=False):  # what reached it is compared, in its own dtype, on both sides
            comparison = compared(Request(func, given[0], given[1], self.device)).comparison
        self.compared += len(self.foreign.pop(place.order))
        self.judged_alone(name, place, comparison.findings)

    def judged_alone(self, name: str, place: Place, findings: Iterable[tuple[str, Verdict]]) -> None:
        """Keep the findings of a function that was compared by itself, with its gradients."""
        findings = list(findings)
        for pass_ in PASSES[: 1 if chooses(name) else 2]:
            found = [v for n, v in findings if n.startswith("grad[") is (pass_ == "backward")]
            if found:
                self.divergences.append(Divergence(name, pass_, place, max(found, key=_share)))

    def function(self, func: Any, name: str, given: Any, theirs: Any, place: Place) -> None:
        """Judge the result of a public function. given: its arguments before the call, on the CPU."""
        with self.noted.on_the_cpu():
            ours = func(*tree_map(_copy, given[0]), **tree_map(_copy, given[1]))
        with self._judging():
            self._function_judged(func, name, given, theirs, ours, place)

    def _function_judged(self, func: Any, name: str, given: Any, theirs: Any, ours: Any, place: Place) -> None:
        results = [[t.detach() for t in tree_leaves(side) if isinstance(t, Tensor)] for side in (theirs, ours)]
        there = [self.device.download(t) if not t.is_cpu else t for t in results[0]]
        pairs = [(k, b, a) for k, (b, a) in enumerate(zip(there, results[1])) if not is_settled(b, a)]
        if len(there) != len(results[1]) or not pairs:
            return
        leaves, tree = tree_flatten(given)
        which = [k for k, x in enumerate(leaves) if isinstance(x, Tensor)]

        def run(*tensors: Tensor) -> Any:
            whole = list(leaves)
            for k, t in zip(which, tensors):
                whole[k] = t
            args, kwargs = tree_unflatten(whole, tree)
            return tuple(t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor))

        operands = [leaves[k] for k in which]
        if self._explained(pairs, lambda *x: [run(*x)[k] for k, *_ in pairs], operands):
            return
        verdict = self._judged(run, operands, there, results[1])
        if verdict is not None and verdict.status.is_finding:
            self.divergences.append(Divergence(name, PASSES[0], place, verdict))


def _digests(pairs: Iterable[tuple[int, Tensor, Tensor]]) -> set[tuple[str, str]]:
    """What the two sides of each pair hold."""
    return {(key_of(b.contiguous().view(-1)), key_of(a.contiguous().view(-1))) for _, b, a in pairs}


def _share(v: Verdict) -> float:
    return (v.measure.share or 0.0) if v.measure is not None else 0.0


def chooses(name: str) -> bool:
    """Whether an operator or function chooses among elements, of which several may be equal."""
    last = name.rpartition(".")[2].strip("_")
    return any(last == word or last.startswith(f"{word}_") or "max_pool" in last for word in ATEN_CHOOSING)


def cpu_results(call: OperatorCall, theirs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a call returns on the CPU. A device that keeps statistics in float32 hands them to the gradients next to halves,
    which some kernels of the CPU refuse: there it is computed in float32 and rounded to the dtypes of the device's results.
    Raises what the CPU raises."""
    try:
        with torch._C.DisableTorchFunction():
            return tuple(map(_plain, run_on(call, None, bases=False).results))
    except RuntimeError:
        floats = {x.base.dtype for x in call.operands if x.base.is_floating_point()}
        if len(floats) < 2 or torch.float32 not in floats or torch.float64 in floats:
            raise
        wide = call.in_float32()
        return tuple(t.to(b.dtype) for t, b in zip(run_on(wide, None, bases=False).results, theirs, strict=True))


def _written_alike(call: OperatorCall, theirs: tuple[Tensor, ...], ours: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The device's results, with the CPU's where it is free which of several values written to one place stays."""
    if len(theirs) != 1 or len(ours) != 1 or is_settled(theirs[0], ours[0]):
        return theirs
    args, kwargs = tree_map(lambda x: x.values if isinstance(x, StridedOperand) else x, (call.args, call.kwargs))
    return (as_written(call.operator, args, kwargs, theirs[0], ours[0]),)


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


def shortened(e: Exception) -> str:
    """The first line of an exception's message, and of a long one whole sentences."""
    text = (str(e).splitlines() or [""])[0]
    if len(text) <= LONGEST:
        return text
    whole = text[:LONGEST].rpartition(". ")
    return whole[0] + "." if whole[0] else text[:LONGEST] + "..."


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def called_with(call: OperatorCall, tensors: Sequence[Tensor]) -> Any:
    """The results of an operator on these operands in place of its own."""
    following = iter(tensors)
    place = torch.device("cpu")

    def realised(leaf: Any) -> Any:
        if isinstance(leaf, StridedOperand):
            return next(following)
        return place if isinstance(leaf, torch.device) else leaf

    args, kwargs = tree_map(realised, call.args), tree_map(realised, call.kwargs)
    return tuple(_plain(t) for t in tree_leaves(on_the_cpu(call.operator)(*args, **kwargs)) if isinstance(t, Tensor))


class SearchMode(Following):
    """Hands each call on the device to the search."""

    def __init__(self, search: Search) -> None:
        super().__init__(search.device, Followed(), LARGEST)
        self._search = search

    @property
    def missed(self) -> int:
        """How many calls could not be compared."""
        return self._seen.missed

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An observer of operators."""
        if self._search.is_passed(func):
            return self._passed(func, args, kwargs)
        now = self._search.places.now
        # A function may well take fresh memory inside, and write it: causal attention makes its mask so.
        fresh = is_unwritten(func) and now.function.rpartition(".")[2].startswith(ATEN_UNWRITTEN)
        if fresh or torch.Tag.nondeterministic_seeded in func.tags:
            self._search.odd.add(now.order)
        self._search.begins(func._schema.name)
        try:
            return super().observe(func, args, kwargs)
        finally:
            self._search.ended()

    def _passed(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception:  # as where calls are compared
            if self._search.device.simulated and in_backward():
                return no_results(func)
            raise

    def failed(self, call: OperatorCall, error: Exception) -> None:
        """The device raised in a call."""
        with self._search.places.paused():
            self._search.raised(call, error)

    def finished(self, call: OperatorCall, args: Any, kwargs: Any, result: Any) -> None:
        """A call came to its end."""
        with self._search.places.paused():
            self._search.finished(call, args, kwargs, result)

    def _keep(self, call: OperatorCall) -> None:
        self._search.not_on_cpu(call)


def _plain(t: Tensor) -> Tensor:
    return _dense(t).resolve_conj().resolve_neg()


def _dense(t: Tensor) -> Tensor:
    return t if t.layout is torch.strided else t.to_dense()
