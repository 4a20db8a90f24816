"""`parity.locate(..., against=file)`: judge on this machine what a capture recorded on another.

Each recorded operator runs once more on this machine's CPU with the operands that it got there, and is judged by itself against
a float64 truth, as `parity.locate` does with both sides at hand. Where an operand is kept as a sketch alone, it is computed
again from the last tensors that are kept whole, and the call is judged together with the calls in between, whose roundings the
truth knows too: that is an upper bound of the call's own error. Of a result that is a sketch, the kept elements are judged.

Only operators of aten with a kernel for the CPU and torch's public functions are looked up by their recorded names.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from parity.checks.operators import ATEN_NOT_UNIQUE, OperatorCall, error_ratio, run_on
from parity.comparing.comparison import DEFAULT, ParityWarning, Request
from parity.comparing.function import judged_results, target
from parity.comparing.places import Place
from parity.comparing.subject import Subject, copied, subject
from parity.core.errors import CaptureError, NothingCompared, ParityError, UsageError
from parity.core.results import Fingerprint, Status, Verdict
from parity.devices.base import fingerprint
from parity.locating.calls import MOST, Search, called_with, chooses
from parity.locating.capture_file import Capture, RecordedCall, Ref, read, refs
from parity.locating.capturing import elements, flat, given, storages
from parity.locating.located import PASSES, SHOWN, Located, plural
from parity.locating.noted import NEITHER
from parity.locating.recorded import Stretch, bases_of, call_of, cloned, functions, laid
from parity.locating.search import cotangents_of, located
from parity.locating.values import SAMPLES, Sketch, block_sums, key_of, sums_agree

NAMED = 3  # most tensors that a message names
EXPANDED = 64  # times the elements that a storage holds, beyond which a view of it that repeats them is not judged
LARGE = 1 << 24  # elements of a view, up to which it may repeat them as often as it likes
TOO_LARGE = "their tensors repeat few elements so often that they would fill the memory"
NOT_KEPT = "their operands are not in the capture"
BEHIND = "they come after a call that diverges, or that could not be judged, and its result is not kept whole"


def located_against(q: Request, path: str | Path) -> Located:
    """What diverges on the machine of a capture, judged here, and (`here`) on a device of this machine that is not the CPU,
    with the capture's weights and inputs. The arguments are those of `locate`, which raises as this does."""
    made, place = read(Path(path)), target(q.device)
    s, changed = _with_values(q.eager(), made)
    search = _Replay(made, s, q.backward)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", ParityWarning)
        search.replay([c for c in made.calls if c.kind == "operator"])
        if not search.divergences:
            search.replay([c for c in made.calls if c.kind == "function"])
        differs = "" if search.divergences or made.broken or made.whole is None else _whole(search, s, made)
    if not search.compared and not search.divergences:
        raise NothingCompared(f"{made.title}: no recorded operator can be judged here ({_counted(search.left)})")
    order = sorted(search.divergences, key=lambda p: PASSES.index(p.pass_))
    notes = (*_machines(made.machine, fingerprint(place)), *changed, *made.notes, *search.notes, *search.kept)
    if made.backward and not q.backward:
        notes = (*notes, "the backward pass of the capture was left out")
    if q.backward and not made.backward:
        notes = (*notes, "the capture holds no backward pass")
    left = search.left + Counter(made.left) + (Counter() if order else Counter(made.aside))
    found = Located(
        f"{made.title} ({Path(path).name})", made.dtype, made.machine.device, tuple(order), search.compared, dict(left),
        "" if order else made.broken, differs, tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    if place.name == "cpu":
        return found
    args, keywords = tree_unflatten(list(s.leaves), s.tree)
    return replace(found, here=located(replace(q, fn=s.function, inputs=args, kwargs=keywords, device=place, effort=DEFAULT)))


def _counted(left: Mapping[str, int]) -> str:
    return ", ".join(f"{plural(n, 'call')}: {why}" for why, n in left.items()) or "it holds none"


def _machines(theirs: Fingerprint, ours: Fingerprint) -> tuple[str, ...]:
    """Where the capture was made and where it is judged."""
    how = " (SIMULATED: this says nothing about any hardware)" if theirs.simulated else ""
    chip = f", {theirs.device_name}" if theirs.device_name and not theirs.simulated else ""
    there = f"{theirs.device}{how}{chip}, {theirs.os} {theirs.machine}, torch {theirs.torch}, parity {theirs.parity}"
    said = {"torch": ours.torch, "parity": ours.parity}
    other = [f"{k} {v}" for k, v in said.items() if getattr(theirs, k) != v]
    return (f"captured on {there}" + (f"; judged here with {', '.join(other)}" if other else ""),)


# ---------------------------------------------------------------------------------------------------- weights and inputs


def _with_values(s: Subject, made: Capture) -> tuple[Subject, tuple[str, ...]]:
    """The subject with the capture's inputs and weights, and a note where those that the function made here are others. Raises
    UsageError if it is another model, or if its tensors are others and not kept in the capture."""
    ours, theirs = ({g.name: g for g in side} for side in (given(s), made.tensors))
    if s.name != made.subject or {n: (g.dtype, g.shape) for n, g in ours.items()} != {
        n: (g.dtype, g.shape) for n, g in theirs.items()
    }:
        odd = [n for n in (*theirs, *ours) if n not in theirs or n not in ours or ours[n].shape != theirs[n].shape]
        odd += [n for n in theirs if n in ours and ours[n].dtype != theirs[n].dtype and n not in odd]
        more = f": they differ in {_listed(list(dict.fromkeys(odd)))}" if odd else ""
        raise UsageError(
            f"the capture is of {made.subject} with {plural(len(theirs), 'tensor')}, and the function makes {s.name} with "
            f"{len(ours)}{more}; name the function that was captured"
        )
    other = [n for n, g in theirs.items() if ours[n].digest != g.digest]
    if not other:
        return s, ()
    if missing := [n for n in other if theirs[n].digest not in made.store.whole]:
        raise UsageError(
            f"{_listed(missing)} have other values here than where the capture was made, and it does not hold them: make the "
            "same ones (torch.manual_seed, one checkpoint), or capture again with a larger --limit"
        )
    values = {n: made.store.whole[theirs[n].digest].view(theirs[n].shape) for n in other}
    return _replaced(s, values), (f"{_listed(other)} have other values here; those of the capture were used",)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(f"'{n}'" for n in names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _replaced(s: Subject, values: Mapping[str, Tensor]) -> Subject:
    """The subject with other values in some of its tensors; the caller's stay as they are."""
    memo: dict[int, Any] = {}
    for name, t in s.tensors:
        if name in values and id(t) not in memo:
            fresh = torch.empty_like(t.detach()).copy_(values[name])
            trained = isinstance(t, nn.Parameter)
            memo[id(t)] = nn.Parameter(fresh, t.requires_grad) if trained else fresh.requires_grad_(t.requires_grad)
    leaves = []
    for name, x, inner in zip(s.names, s.leaves, s.held):
        leaves.append(memo.get(id(x), x) if isinstance(x, Tensor) else copied(x, memo, name) if inner else x)
    function = s.function
    if s.module is not None:
        module = copied(s.module, memo, s.name)
        function = getattr(module, s.method) if s.method else module
    args, kwargs = tree_unflatten(leaves, s.tree)
    return subject(function, args, kwargs, tuple(s.kept))


# ------------------------------------------------------------------------------------------------------------ the replay


class _Replay(Search):
    """Judges the recorded calls one after the other. known: storages by their digests, as they were on the device; computed:
    those that are sketches, computed again here; made: the recorded call that makes each of these; spoiled: those that
    cannot be trusted, because a call before them diverges."""

    def __init__(self, capture: Capture, s: Subject, backward: bool) -> None:
        super().__init__(target("cpu"))
        self.tables = capture.machine.device
        self.capture, self.backward = capture, backward
        self.known: dict[str, Tensor] = dict(capture.store.whole)
        self.computed: dict[str, Tensor] = {}
        self.made: dict[str, tuple[OperatorCall, RecordedCall]] = {}
        self.spoiled: set[str] = set()
        self.notes: list[str] = []
        self.joined = self.sketched = 0  # calls that were judged with those before them; calls with results that are sketches
        self._at: tuple[str, Place] = (PASSES[0], Place())
        missing = {g.digest for g in capture.tensors} - set(self.known)
        for _, t in s.tensors if missing else ():
            for base in storages(s, t):
                self.known.setdefault(key_of(base), base)
        if capture.backward and any(k not in self.known for k in capture.store.sketches):
            for t in cotangents_of(s):
                self.known.setdefault(elements(t), flat(t))

    @property
    def kept(self) -> Iterator[str]:
        """What was judged of less than everything."""
        if self.sketched:
            many = plural(self.sketched, "call")
            yield f"the results of {many} are kept as sketches: {SAMPLES} elements of each, and sums of all, were judged"
        if self.joined:
            yield (
                f"{plural(self.joined, 'call')} got operands that are sketches, and were judged together with those before "
                "them: an upper bound, and small errors show later than they arise; capture with a larger --limit to be exact"
            )

    def where(self) -> tuple[str, Place]:
        """The recorded pass and place."""
        return self._at

    def replay(self, calls: Iterable[RecordedCall]) -> None:
        """Judge these calls."""
        for ran in calls:
            if not self.backward and (ran.pass_ or ran.named is not None):
                continue
            self._at = PASSES[ran.pass_], ran.place
            name = f"aten::{ran.name.partition('.')[0]}" if ran.kind == "operator" else ran.name
            self.noted.begin(name, *self._at, NEITHER)
            try:
                (self._operator if ran.kind == "operator" else self._function)(ran)
            except CaptureError:
                raise
            except Exception:  # the CPU cannot run it, or refuses it with what the file says
                self.left[f"the CPU does not run {ran.name.rpartition('::')[2]}"] += 1
                self._spoil(ran)

    # ---------------------------------------------------------------------------------------------------- operators

    def _operator(self, ran: RecordedCall) -> None:
        given_ = refs((ran.args, ran.kwargs))
        if any(r.storage in self.spoiled for r in given_):
            self.left[BEHIND] += 1
            self._spoil(ran)
            return
        if any(r.storage not in self.known and r.storage not in self.computed for r in given_):
            self.left[NOT_KEPT] += 1
            self._spoil(ran)
            return
        if any(map(self._is_too_large, (*given_, *ran.results))):
            self.left[TOO_LARGE] += 1
            self._spoil(ran)
            return
        call = call_of(ran, self._base)
        if ran.error is not None:
            self._failed(call, ran.error)
            return
        before = len(self.divergences)
        own = all(r.storage in self.known for r in given_)
        unknown = [k for k in (*(r.storage for r in ran.results), *ran.after.values()) if k not in self.known]
        with self.noted.on_the_cpu():
            ours = run_on(call, None) if unknown or not own else None
        results = None if ours is None else ours.results
        theirs = tuple(self._theirs(r, results[k] if results is not None else None) for k, r in enumerate(ran.results))
        self.sketched += any(r.storage not in self.known for r in ran.results)
        if own:
            self.operator(call, theirs)
        elif results is not None:
            self._stretch(call, ran, theirs, results)
        if len(self.divergences) == before and results is not None:
            self._sums(call, ran, results, own)
        if len(self.divergences) > before:
            self._spoil(ran)
        elif ours is not None:
            for key, base in bases_of(ran, ours.results, ours.bases):
                if key not in self.known and key not in self.computed:
                    self.computed[key], self.made[key] = base, (call, ran)

    def _base(self, key: str) -> Tensor:
        return self.known[key] if key in self.known else self.computed[key]

    def _is_too_large(self, r: Ref) -> bool:
        """Whether a tensor takes much more memory than the capture that describes it: strides of 0 cost a file nothing."""
        held = self.known.get(r.storage, self.computed.get(r.storage))
        return held is not None and math.prod(r.shape) > max(LARGE, EXPANDED * held.numel())

    def _spoil(self, ran: RecordedCall) -> None:
        self.spoiled |= {k for k in (*(r.storage for r in ran.results), *ran.after.values()) if k not in self.known}
        self.spoiled -= set(self.computed)

    def _theirs(self, r: Ref, ours: Tensor | None) -> Tensor:
        """A result as it was on the device: whole, or the CPU's own with what the sketch says."""
        if r.storage in self.known:
            return r.over(self.known[r.storage]).values
        assert ours is not None
        sketch = self.capture.store.sketches[r.storage]
        return r.over(sketch.over(laid(r, ours, sketch))).values

    def _failed(self, call: OperatorCall, error: tuple[str, str, bool]) -> None:
        try:
            with self.noted.on_the_cpu():
                run_on(call, None)
        except Exception:  # the CPU refuses it as well
            return
        self.compared += 1
        self._diverges(call, Verdict(Status.UNSUPPORTED if error[2] else Status.ERROR, f"{error[0]}: {error[1]}"))

    def _stretch(self, call: OperatorCall, ran: RecordedCall, theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> None:
        """Judge a call together with those that compute its operands, from tensors that are known. What as many roundings as
        there are calls explain needs no truth."""
        run = Stretch(ran, self.known, self.made)
        self.compared += 1
        self.joined += 1
        alike = [b.dtype == a.dtype and error_ratio(b, a) <= len(run.calls) for b, a in zip(theirs, ours, strict=True)]
        if all(alike):
            return
        verdict = self._judged(run, run.sources, theirs, ours)
        if verdict is None:
            self.left["their results cannot be judged alone"] += 1
        elif verdict.status.is_finding:
            before, many = len(self.divergences), plural(len(run.calls) - 1, "call")
            self._diverges(call, verdict)
            if len(self.divergences) > before:
                self.notes.append(
                    f"{self.divergences[-1].operator} of {ran.place} is judged with the {many} before it whose results "
                    "are not kept whole: an upper bound of its own error"
                )

    def _sums(self, call: OperatorCall, ran: RecordedCall, ours: Sequence[Tensor], own: bool) -> None:
        """Judge the sums of results that are sketches, which show what lies between the elements that were kept."""
        if call.base_name in ATEN_NOT_UNIQUE or chooses(call.base_name):
            return
        run = None if own else Stretch(ran, self.known, self.made)
        for k, r in enumerate(ran.results):
            sketch = None if r.storage in self.known else self.capture.store.sketches[r.storage]
            if sketch is None or sketch.count != math.prod(r.shape) or any(x.storage == r.storage for x in ran.results[:k]):
                continue
            base = laid(r, ours[k], sketch)
            here = block_sums(base)
            if sums_agree(sketch.sums, here, base, 1 if run is None else len(run.calls)):
                continue

            def summed(*given: Tensor, k: int = k, r: Ref = r, sketch: Sketch = sketch) -> tuple[Tensor]:
                results = called_with(call, given) if run is None else run(*given)
                return (block_sums(laid(r, results[k], sketch)),)

            operands = [x.values for x in call.operands] if run is None else run.sources
            verdict = self._judged(summed, operands, (sketch.sums,), (here,))
            if verdict is not None and verdict.status.is_finding and len(self.divergences) < MOST:
                self._diverges(call, Verdict(Status.WRONG, f"sums over its elements are {verdict.reason}"))
                return

    # ---------------------------------------------------------------------------------------------------- functions

    def _function(self, ran: RecordedCall) -> None:
        func = functions().get(ran.name)
        keys = [r.storage for r in refs((ran.args, ran.kwargs))]
        if func is None or any(k not in self.known for k in keys):
            self.left["arguments of functions are not kept whole" if func is not None else f"this torch has no {ran.name}"] += 1
            return
        if any(map(self._is_too_large, refs((ran.args, ran.kwargs, ran.results)))):
            self.left[TOO_LARGE] += 1
            return
        given_ = tree_map(lambda x: self._tensor(x) if isinstance(x, Ref) else x, (ran.args, ran.kwargs))
        if ran.named is not None:
            s = subject(func, given_[0], given_[1])
            found = [(n, v) for n, v in self.results(s, ran.named, True) if v.status.is_finding]
            self.compared += len(ran.foreign)
            self.judged_alone(ran.name, ran.place, found)
            return
        ours = None
        if any(r.storage not in self.known for r in ran.results):
            got = func(*tree_map(cloned, given_[0]), **tree_map(cloned, given_[1]))
            ours = [t.detach() for t in tree_leaves(got) if isinstance(t, Tensor)]
        theirs = tuple(self._theirs(r, ours[k] if ours is not None else None) for k, r in enumerate(ran.results))
        with torch.no_grad():
            self.function(func, ran.name, given_, theirs, ran.place)

    def _tensor(self, r: Ref) -> Tensor:
        return r.over(self.known[r.storage]).values.clone().requires_grad_(r.grad)

    def results(self, s: Subject, named: Mapping[str, Ref], backward: bool) -> list[tuple[str, Verdict]]:
        """The verdicts of a function's named results."""

        def theirs(ours: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return {n: self._theirs(r, ours.get(n)) for n, r in named.items()}

        return list(judged_results(s, self.capture.machine.device, backward, theirs))


def _whole(search: _Replay, s: Subject, made: Capture) -> str:
    """What differs in the results as a whole; empty if nothing does, or if they cannot be compared (random numbers)."""
    assert made.whole is not None
    wanted = {n: r for n, r in made.whole.items() if search.backward or not n.startswith("grad[")}
    try:
        found = search.results(s, wanted, search.backward and made.backward)
    except ParityError:
        return ""
    wrong = [f"{n or 'the call'} ({v.status}: {v.reason})" for n, v in found if v.status.is_finding]
    return ", ".join(wrong[:SHOWN]) + (f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")
