"""The oracle of a caller's function: the function itself in float64."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from parity.catalog.row import Row
from parity.comparing.choices import Choices
from parity.comparing.direct import Direct, magnitudes, terms
from parity.comparing.draws import streams
from parity.comparing.meter import Meter
from parity.comparing.subject import SEED, Put, Subject, forward, gradients, tracked_outputs, word
from parity.core.dtypes import FACTS, HALF
from parity.core.observer import Operators
from parity.core.results import Raised
from parity.execution import execute as ex
from parity.oracle.float64 import widen
from parity.oracle.kernels import UNSETTLED
from parity.oracle.limited_range import ADDS, Limited, Range, range_of
from parity.oracle.oracle import SAMPLES
from parity.oracle.protocol import Oracle
from parity.oracle.rounding import Rounding, whole_numbers
from parity.oracle.roundoffs import extremes, perturbed_in_place, unit_roundoff
from parity.oracle.sensitivity import PERTURBATIONS, Changes, Movements, among_neighbours, kept_of, least_of
from parity.oracle.step_dtypes import Given, Recorded, Steps, finfo_recorded, finfo_replayed, in_double, with_autocast
from parity.oracle.yardstick import BETWEEN_KERNELS, COARSE, STANDARD, STEP

ALL = SAMPLES[-1]
WAYS = 20  # in which inputs are moved before a function counts as one that takes no others than it was given
FEW_KERNELS, FEW_ELEMENTS = 64, 1 << 18  # of a function that is not dear; with more elements few samples make its estimate


class FunctionTruth(Oracle):
    """The subject in float64, with the sensitivity of its results. Every step is rounded as in the dtype in which it ran on the
    CPU, or under autocast on the device (cast) if that is coarser. If it cannot run in float64, the reference is the truth.
    most: take all samples from the beginning."""

    def __init__(
        self,
        s: Subject,
        backward: bool,
        cotangents: Sequence[Tensor],
        reference: Mapping[str, Tensor],
        cast: Mapping[str, list[str]] | None = None,
        meter: Meter | None = None,
        most: bool = False,
    ) -> None:
        self._cast = cast or {}
        self._s, self._backward, self._fed, self._reference = s, backward, cotangents, reference
        self._truths: dict[str, Tensor] | None = None
        self._first = ALL if most else SAMPLES[0]
        self._samples = self._first
        self._effects: dict[float, _Samples] = {}
        self._limits: dict[tuple[Range, Range], dict[str, Tensor]] = {}
        self._meter = meter or Meter(s.name)
        self.refused = ""
        self._whole: list[Tensor | None] = []  # operands of what jumps at numbers, those that are whole numbers on all sides
        self._as_given = False  # whether inputs are not moved

    def _run(self, put: Put, fed: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """All results of a run, and where it left the CPU's random numbers if it draws some."""
        with seeded():
            run = forward(self._s, put, self._backward, self.around())
            grads = gradients(run, tracked_outputs(run), fed) if fed else ()
        stream = run.handed.stream if run.handed is not None else None
        return {n: t.detach() for n, t in (*run.outputs, *run.written, *grads)}, stream

    def around(self) -> AbstractContextManager[Any]:
        """What surrounds each call of the subject."""
        return nullcontext()

    def _in_double(self, put: Put, fed: Sequence[Tensor]) -> dict[str, Tensor]:
        """All results of a run in float64, even if the function casts to other dtypes. Raises RuntimeError if it draws other
        random numbers there: what it computes is then another function, and no rounding of it."""
        own, given = self._own, Given(zip(fed, self._fed))
        with in_double(self._s.coarsest, given), finfo_replayed(own.limits):
            results, stream = self._run(lambda t: given.note(put(t), t), fed)
        if stream is not None and own.stream is not None and not torch.equal(stream, own.stream):
            raise RuntimeError("it draws other random numbers there")
        return results

    @functools.cached_property
    def _own(self) -> _Own:
        """What a run in the function's own dtypes shows that a run in float64 has to know."""
        streams_: list[Tensor | None] = [None]

        direct, rows, whole = Direct(), dict[str, Row](), list[Tensor | None]()

        def run() -> None:
            results, stream = self._run(direct.given, [direct.given(c) for c in self._fed])
            streams_.append(stream)
            rows.update(direct.rows(results))

        with Recorded() as ran, Operators(direct.observe), whole_numbers(whole), finfo_recorded() as limits:
            ex.attempt(run, "run")
        return _Own(
            with_autocast(ran.dtypes, self._cast), tuple(limits), streams_[-1], {} if self._cast else rows, whole, direct.picks
        )

    @property
    def chains(self) -> bool:
        """Always true: a function passes rounded numbers from kernel to kernel."""
        return True

    @property
    def may_branch_by_dtype(self) -> bool:
        """Always true: `if x.dtype is torch.float16` is asked in many models."""
        return True

    @functools.cached_property
    def rounds_to_half(self) -> bool:
        """Whether a step ran in a half type."""
        return any(d in HALF for dtypes in self._own.dtypes.values() for d in dtypes)

    @property
    def known(self) -> Mapping[str, Tensor]:
        """All truths that have been computed; empty before the first call of `truth`."""
        return self._truths or {}

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result; the reference's result, widened, if the subject does not run in float64."""
        if self._truths is None:
            _ = self._own  # before anything is rounded
            wide = list[Tensor | None]()
            with self._meter.run("a run in float64", self._samples), whole_numbers(wide):
                got = ex.attempt(lambda: self._in_double(_fresh_wide, self._fed), "run")
            pairs = list(zip(wide, self._own.whole)) if len(wide) == len(self._own.whole) else []
            self._whole = [
                None if w is None or o is None or w.shape != o.shape else w.where(w == o, torch.nan) for w, o in pairs
            ]
            if isinstance(got, Raised):
                self.refused = f"{got.type}: {got.message}"
                got = {n: widen(t, None) for n, t in self._reference.items()}
            self._truths = got
        return self._truths.get(name)

    def row(self, name: str) -> Row | None:
        """The row of the operator that gave this result of what the function was given; None without a truth in float64, and
        where equal runs differ, which a row knows nothing of."""
        return None if self.refused or name in self._s.spread else self._own.rows.get(name)

    def magnitudes(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(S, n) of a result that is one sum of products of what the function was given."""
        s, n = (results.get(name) for results in self._sums)
        return None if s is None or n is None or name in self._s.spread else (s.abs(), n.abs())

    @functools.cached_property
    def _sums(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """All results in float64 of magnitudes in place of the numbers that were given, and of ones; none where it raises."""

        def of(change: Put, call: Callable[..., Any]) -> Mapping[str, Tensor]:
            def put(t: Tensor) -> Tensor:
                wide = _fresh_wide(t)
                return change(wide) if t.is_floating_point() else wide

            with Operators(call), choices or nullcontext():
                got = ex.attempt(lambda: self._in_double(put, [put(c) for c in self._fed]), "run")
            return {} if isinstance(got, Raised) else got

        choices: Choices | None = None
        if self._own.picks:  # of magnitudes a pool would pick others
            choices = Choices()
            of(lambda t: t, lambda func, args, kwargs: func(*args, **kwargs))
            choices = Choices(choices.made, sure=True)
        return of(torch.abs, magnitudes), of(torch.ones_like, terms)

    def runs_of_equals(self) -> int:
        """Whether all terms of a sum of what was given are equal."""
        every = (*(t.detach() for _, t in self._s.tensors), *self._fed)
        given = [t for t in every if t.is_floating_point() and t.numel() > 1]
        return int(all(bool((t == t.reshape(-1)[0]).all()) for t in given))

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """By how much a result moves if every input and every step is moved by a roundoff, and between equal runs: `STANDARD`
        times the root mean square of its movements in all samples. Where these are few, an element moves as its neighbours
        usually do, at least; where they are many, no more than in any of them. Samples that are not taken count as 0, so that
        a budget by fewer lies inside the whole one, which is the same whatever the device gave."""
        assert self._truths is not None
        taken, usable = self._by(), self._usable(name)
        if name in taken.squares:
            mean = taken.squares[name] / usable
            few = self._all < ALL or self.proven
            moved = (torch.maximum(mean, among_neighbours(mean, usable)) if few else mean).sqrt_().mul_(STANDARD)
            moved = moved if few else torch.minimum(moved, taken.moved[name])
        else:
            moved = torch.zeros(self._truths[name].shape, dtype=torch.float64)
        return torch.maximum(moved, self._s.spread[name]) if name in self._s.spread else moved

    @functools.cached_property
    def _all(self) -> int:
        """How many samples make the estimate, whatever the device gave: each is a run of the whole function."""
        return PERTURBATIONS if self._elements > FEW_ELEMENTS else ALL

    @property
    def _elements(self) -> int:
        return sum(t.numel() for _, t in self._s.tensors)

    def _usable(self, name: str) -> int:
        """How many of all samples show a result: those that raised never will."""
        taken = self._by()
        return max(1, self._all - (taken.count - len(taken.changes.get(name, ()))))

    def amplified(self, name: str, u: float, between: float, times: float, most: int = 0) -> Tensor | None:
        """As `Oracle` has it. most: for a large function, or one of sums of products, which move in proportion."""
        return self._by(times, most if self.is_dear or self._own.dtypes.keys() <= ADDS else 0).moved.get(name)

    def amplified_changes(self, name: str, times: float) -> Changes | None:
        """As `Oracle` has it: of functions that round to half types, so coarsely that they leave variance where none was."""
        wanted = self._truths and self.rounds_to_half and not self.proven
        return self._by(times).of(name, self._truths[name].numel()) if wanted and self._truths else None

    def turned(self, name: str, u: float, between: float) -> Tensor | None:
        """As `Oracle` has it, by the samples; where NaN or Inf was given, all of the truth's behind one of `UNSETTLED`, too."""
        truth = self.truth(name)
        settled = truth is None or self._own.dtypes.keys().isdisjoint(UNSETTLED) or self._s.is_finite(self._fed)
        return self._by().turned.get(name) if settled or truth is None else ~truth.abs().isfinite()

    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample, 0 in those that are not taken."""
        assert self._truths is not None
        elements = self._truths[name].numel() * (1 + self._truths[name].is_complex())
        return self._by().of(name, elements, self._usable(name))

    def largest(self, u: float, between: float) -> float:
        """The largest magnitude among the inputs and the results of all kernels."""
        return self._by().largest

    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result if every intermediate number is kept within the range of its step's dtype."""
        if self.refused:
            return None
        if (inside, between) not in self._limits:
            steps = Steps(self._own.dtypes)

            def range_(step: str) -> Range:
                f = FACTS.get(steps.dtype(step), FACTS["float32"])
                own = range_of(f, between.least >= f.tiny)
                if between.least and between.most < math.inf:
                    return own
                return own.above if not between.least else own.upward if between.up else own.below

            with Limited(inside, between, range_) as mode:
                got = ex.attempt(lambda: self._in_double(_fresh_wide, self._fed), "run")
            self._limits[inside, between] = got if mode.left_range and not isinstance(got, Raised) else {}
        return self._limits[inside, between].get(name)

    def take_more_samples(self, most: int = ALL) -> bool:
        """Take more samples from now on, up to `_all` for any result; none where moved runs stand for them."""
        more = [n for n in SAMPLES if self._samples < n <= self._all]
        self._samples = more[0] if more and not self.proven else self._samples
        return bool(more) and not self.proven

    @functools.cached_property
    def is_dear(self) -> bool:
        """As `Oracle` has it: of a large function."""
        kernels = sum(map(len, self._own.dtypes.values()))
        return kernels > FEW_KERNELS or self._elements > FEW_ELEMENTS

    def sample_by_moved_runs(self, runs: Sequence[Mapping[str, Tensor]]) -> None:
        """Let moved runs, which cost a tenth, stand for the samples, because one of the operators is wrong by itself."""
        taken, by = _Samples(), STEP * (BETWEEN_KERNELS if self.rounds_to_half else 1.0)
        for n, t in ((n, t) for run in runs for n, t in run.items()):
            own = self._reference.get(n)
            if own is not None and own.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                taken.add(n, (_fresh_wide(t) - own).div_(by))
                taken.largest = max(taken.largest, float(own.abs().nan_to_num_(0.0, 0.0, 0.0).max()) if own.numel() else 0.0)
        taken.count, self._samples = self._all, self._all
        self._effects, self.proven = {1.0: taken}, True

    def ask_again(self) -> None:
        """As `Oracle` has it: by the function's own samples."""
        self._effects.clear()
        self._samples, self.proven = self._first, False

    def _by(self, times: float = 1.0, most: int = 0) -> _Samples:
        """The samples with so many roundoffs, at most so many of them; those that were taken before are kept."""
        taken, wanted = self._effects.setdefault(times, _Samples()), min(self._samples, most or ALL, self._all)
        while taken.count < wanted:
            with self._meter.run("a run in float64", wanted - taken.count - 1):
                ran = self._take_one(taken, taken.count, times)
                if not (ran or taken.count or self._as_given) and not self._finds_inputs(taken, times):
                    self._as_given = True  # a model may check that it is given what it knows already
                    self._as_given = self._take_one(taken, taken.count, times)
            taken.count += 1
        return taken

    def _finds_inputs(self, taken: _Samples, times: float) -> bool:
        """Run the first sample with inputs that are moved another way, until the function takes them: it may refuse a number
        that was moved out of the range that it checks. Whether it took any."""
        return any(self._take_one(taken, k, times) for k in range(ALL, ALL + WAYS))

    def _take_one(self, taken: _Samples, k: int, times: float) -> bool:
        """Run the function with everything rounded, and keep by how much its results moved; whether it ran."""
        assert self._truths is not None
        u, factor = FACTS["float32"].unit_roundoff, COARSE if self.refused else 1.0
        own = FACTS[word(self._s.coarsest)].unit_roundoff
        ran = [FACTS[d].unit_roundoff for dtypes in self._own.dtypes.values() for d in dtypes if d in FACTS]
        u = own if self.refused else min(u, own, max(ran, default=own))  # it may compute in float64 what is given in float32
        u, count = times * u, itertools.count(101 * k)

        def put(t: Tensor) -> Tensor:
            if not taken.count and (t.is_floating_point() or t.is_complex()):
                taken.largest = max(taken.largest, extremes(t)[1])
            with _disable_current_modes():  # what both sides are given is no result of a kernel
                moved_input = perturbed_in_place(_fresh_wide(t), 0.0 if self._as_given else factor * u, next(count))
            return moved_input.to(t.dtype) if self.refused else given(moved_input, t.dtype, t)

        def given(moved: Tensor, dtype: torch.dtype, before: Tensor | None = None) -> Tensor:
            mode.hold(moved, unit_roundoff(dtype), before)
            return moved

        run = (lambda put, fed: self._run(put, fed)[0]) if self.refused else self._in_double
        step = functools.partial(Steps(self._own.dtypes).rounding, u, times, 1 / BETWEEN_KERNELS)
        least = least_of(FACTS["float32"])
        steps = None if self.refused else step
        mode = Rounding(factor * u, k, u, inside_least=least, steps=steps, to_numbers=times != 1.0 and k % 4 < 2)
        fed = [given(perturbed_in_place(_fresh_wide(c), factor * u, 101 * k + 50), c.dtype) for c in self._fed]
        mode.jumps_from(() if self.refused else self._whole)
        with mode:
            got = ex.attempt(functools.partial(run, put, fed), "run")
        taken.largest = max(taken.largest, mode.largest)
        for n, t in {} if isinstance(got, Raised) else got.items():
            at = self._truths.get(n)
            if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                cpu = self._reference.get(n)
                if cpu is not None and mode.held(t) == unit_roundoff(cpu.dtype):
                    t = mode.unrounded(t)  # rounding the result itself has a term of its own
                signed = widen(t, None) - at
                taken.add(n, signed / factor if factor != 1.0 else signed)
                taken.turn(n, t, at)
        return not isinstance(got, Raised)


@dataclass(frozen=True, slots=True)
class _Own:
    """A run in a function's own dtypes. dtypes: those in which the operators ran; limits: those it asked `torch.finfo` for;
    stream: where it left the CPU's random numbers, None if it draws none; rows: see `FunctionTruth.row`; whole: the operands
    of what jumps at numbers, as `whole_numbers` notes them; picks: as `Direct` has it."""

    dtypes: Mapping[str, list[str]]
    limits: tuple[torch.dtype, ...]
    stream: Tensor | None
    rows: Mapping[str, Row]
    whole: Sequence[Tensor | None]
    picks: bool


@dataclass(slots=True)
class _Samples(Movements):
    """Those of a function. count: how many were taken; squares: name -> sum of the squares of each element's changes."""

    count: int = 0
    squares: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, signed: Tensor) -> None:
        """As `Movements` has it, with the squares; in as few passes over memory as can be."""
        self.changes.setdefault(name, []).append(kept_of(signed))
        change = signed.abs().nan_to_num_(0.0, 0.0, 0.0)
        if name not in self.moved:
            self.moved[name], self.squares[name] = change.clone(), change.square_()
            return
        torch.maximum(self.moved[name], change, out=self.moved[name])
        self.squares[name].add_(change.square_())


def _fresh_wide(t: Tensor) -> Tensor:
    wide = widen(t, None)
    return wide.clone() if wide is t else wide


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Seed the CPU's generator, Python's and numpy's, and use full precision; all are restored afterwards."""
    with torch.random.fork_rng(devices=[]), ex.full_precision(), streams(seed):
        torch.default_generator.manual_seed(seed)
        yield
