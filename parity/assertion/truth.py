"""The oracle of a caller's function: the function itself in float64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from parity import execute as ex
from parity.assertion.subject import SEED, Put, Subject, forward, gradients, tracked_outputs, word
from parity.dtypes import FACTS, HALF
from parity.judging.promises import HANDED_ON
from parity.truth.limited import Limited, Range, range_of
from parity.truth.oracle import SAMPLES
from parity.truth.protocol import Oracle
from parity.truth.rounding import Rounding, extremes, perturbed
from parity.truth.shaken import Changes, Shaken, changes_of, kept_of, least_of
from parity.truth.steps import OwnEpsilon, Recorded, Steps, Widened
from parity.truth.wide import widen
from parity.vocabulary import Raised

# How many roundoffs the inputs of a function are moved by that cannot run in float64: well above its own rounding.
COARSE = 8.0


class Truth(Oracle):
    """The subject in float64, with the sensitivity of its results. Every step is rounded as in the dtype in which it ran on the
    CPU. Where the subject cannot run in float64, the reference stands in."""

    def __init__(self, s: Subject, backward: bool, cotangents: Sequence[Tensor], reference: Mapping[str, Tensor]) -> None:
        self._s, self._backward, self._fed, self._reference = s, backward, cotangents, reference
        self._found: dict[str, Tensor] | None = None
        self._samples = SAMPLES[0]
        self._shaken: dict[int, Shaken] = {}
        self._amplified: dict[tuple[int, float], Shaken] = {}
        self._limits: dict[tuple[Range, Range], dict[str, Tensor]] = {}
        self.refused = ""

    def _all(self, put: Put, fed: Sequence[Tensor]) -> dict[str, Tensor]:
        with seeded():
            run = forward(self._s, put, self._backward)
            grads = gradients(run, tracked_outputs(run), fed) if fed else ()
        return {n: t.detach() for n, t in (*run.outputs, *run.written, *grads)}

    def _in_double(self, put: Put, fed: Sequence[Tensor]) -> dict[str, Tensor]:
        """All results of a run in float64, whatever the function casts to."""
        kept = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with Widened(), OwnEpsilon(self._s.coarsest):
                return self._all(put, fed)
        finally:
            torch.set_default_dtype(kept)

    @property
    def chains(self) -> bool:
        """A function hands numbers from kernel to kernel."""
        return True

    @property
    def known(self) -> Mapping[str, Tensor]:
        """All truths, if anybody asked for one."""
        return self._found or {}

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result; the reference's, widened, where the subject does not run in float64."""
        if self._found is None:
            got = ex.attempt(lambda: self._in_double(_fresh_wide, self._fed), "run")
            if isinstance(got, Raised):
                self.refused = f"{got.type}: {got.message}"
                got = {n: widen(t, None) for n, t in self._reference.items()}
            self._found = got
        return self._found.get(name)

    @functools.cached_property
    def _dtypes(self) -> Mapping[str, list[str]]:
        """The dtypes in which the operators ran on the CPU."""
        with Recorded() as ran:
            ex.attempt(lambda: self._all(torch.clone, [] if self.refused else self._fed), "run")
        found: Mapping[str, list[str]] = ran.dtypes
        return found

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """Largest change where everything that goes in, and every step, is moved by a roundoff."""
        assert self._found is not None
        return self._by().moved.get(name, torch.zeros(self._found[name].shape, dtype=torch.float64))

    def amplified(self, name: str, u: float, between: float, times: float) -> Tensor | None:
        """Largest change where every step is moved by so many roundoffs."""
        if (self._samples, times) not in self._amplified:
            self._amplified[self._samples, times] = self._sampled(times)
        return self._amplified[self._samples, times].moved.get(name)

    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample."""
        return self._by().changes.get(name)

    def largest(self, u: float, between: float) -> float:
        """The largest magnitude that goes in or that a kernel gave on the way."""
        return self._by().largest

    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result where every number on the way keeps within the range of its step."""
        if self.refused:
            return None
        if (inside, between) not in self._limits:
            steps = Steps(self._dtypes)

            def range_(step: str) -> Range:
                f = FACTS.get(steps.dtype(step), FACTS["float32"])
                own = range_of(f, between.least >= f.tiny)
                return own.above if not between.least else own.upward if between.up else own.below

            with Limited(inside, between, range_) as mode:
                got = ex.attempt(lambda: self._in_double(_fresh_wide, self._fed), "run")
            self._limits[inside, between] = got if mode.met and not isinstance(got, Raised) else {}
        return self._limits[inside, between].get(name)

    def look_closer(self, most: int = SAMPLES[-1]) -> bool:
        """Take more samples from now on, `most` at most; False where that is done already."""
        more = [n for n in SAMPLES if self._samples < n <= most]
        self._samples = more[0] if more else self._samples
        return bool(more)

    def _by(self) -> Shaken:
        if self._samples not in self._shaken:
            self._shaken[self._samples] = self._sampled()
        return self._shaken[self._samples]

    def _sampled(self, times: float = 1.0) -> Shaken:
        assert self._found is not None
        u, factor = FACTS["float32"].unit_roundoff, COARSE if self.refused else 1.0
        if FACTS[word(self._s.coarsest)].unit_roundoff < u or self.refused:
            u = FACTS[word(self._s.coarsest)].unit_roundoff
        u, half = times * u, times / HANDED_ON
        moved: dict[str, Tensor] = {}
        changes: dict[str, list[Tensor]] = {}
        high = 0.0
        for k in range(self._samples):
            count, steps = itertools.count(101 * k), Steps(self._dtypes)

            def put(t: Tensor, count: Iterator[int] = count) -> Tensor:
                nonlocal high
                if t.is_floating_point() or t.is_complex():
                    high = max(high, extremes(t)[1])
                made = perturbed(_fresh_wide(t), factor * u, next(count))
                return made.to(t.dtype) if self.refused else made

            def step(name: str, steps: Steps = steps) -> tuple[float, float]:
                f = FACTS.get(steps.dtype(name), FACTS["float32"])
                return (half * f.unit_roundoff if f.name in HALF else u), least_of(f)

            fed = [perturbed(widen(c, None), factor * u, 101 * k + 50) for c in self._fed]
            run = self._all if self.refused else self._in_double
            least, steps_ = least_of(FACTS["float32"]), None if self.refused else step
            with Rounding(factor * u, k, u, inside_least=least, steps=steps_) as mode:
                got = ex.attempt(functools.partial(run, put, fed), "run")
            high = max(high, mode.largest)
            for n, t in {} if isinstance(got, Raised) else got.items():
                at = self._found.get(n)
                if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                    signed = (widen(t, None) - at) / factor
                    change = torch.nan_to_num(signed.abs().to(torch.float64), 0.0, 0.0, 0.0)
                    moved[n] = torch.maximum(moved[n], change) if n in moved else change
                    changes.setdefault(n, []).append(kept_of(signed))
        kept = {n: changes_of(rows, self._found[n].numel() * (1 + self._found[n].is_complex())) for n, rows in changes.items()}
        return Shaken(moved, {}, kept, high)


def _fresh_wide(t: Tensor) -> Tensor:
    made = widen(t, None)
    return made.clone() if made is t else made


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """The CPU's generator at a fixed state, and full precision; both as before afterwards."""
    with torch.random.fork_rng(devices=[]), ex.full_precision():
        torch.default_generator.manual_seed(seed)
        yield
