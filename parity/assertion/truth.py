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
from parity.dtypes import FACTS
from parity.truth.limited import Limited, Range
from parity.truth.oracle import SAMPLES
from parity.truth.protocol import Oracle
from parity.truth.rounding import Rounding, extremes, perturbed
from parity.truth.shaken import Changes, Shaken, changes_of, kept_of, least_of
from parity.truth.wide import widen
from parity.vocabulary import Raised

# How many roundoffs the inputs of a function are moved by that cannot run in float64: well above its own rounding.
COARSE = 8.0


class Truth(Oracle):
    """The subject in float64, with the sensitivity of its results. Where it cannot run there, the reference stands in."""

    def __init__(self, s: Subject, backward: bool, cotangents: Sequence[Tensor], reference: Mapping[str, Tensor]) -> None:
        self._s, self._backward, self._fed, self._reference = s, backward, cotangents, reference
        self._found: dict[str, Tensor] | None = None
        self._samples = SAMPLES[0]
        self._shaken: dict[tuple[float, int], Shaken] = {}
        self._limits: dict[tuple[Range, Range], dict[str, Tensor]] = {}
        self.refused = ""

    def _all(self, put: Put, fed: Sequence[Tensor]) -> dict[str, Tensor]:
        with seeded():
            run = forward(self._s, put, self._backward)
            grads = gradients(run, tracked_outputs(run), fed) if fed else ()
        return {n: t.detach() for n, t in (*run.outputs, *run.written, *grads)}

    @property
    def known(self) -> Mapping[str, Tensor]:
        """All truths, if anybody asked for one."""
        return self._found or {}

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result; the reference's, widened, where the subject does not run in float64."""
        if self._found is None:
            got = ex.attempt(lambda: self._all(_fresh_wide, self._fed), "run")
            if isinstance(got, Raised):
                self.refused = f"{got.type}: {got.message}"
                got = {n: widen(t, None) for n, t in self._reference.items()}
            self._found = got
        return self._found.get(name)

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """Largest change where everything that goes in, and every step, is moved by u or the inputs' coarser roundoff."""
        assert self._found is not None
        moved = self._by(max(u, between)).moved
        return moved.get(name, torch.zeros(self._found[name].shape, dtype=torch.float64))

    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample."""
        return self._by(max(u, between)).changes.get(name)

    def largest(self, u: float, between: float) -> float:
        """The largest magnitude that goes in or that a kernel gave on the way."""
        return self._by(max(u, between)).largest

    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result where every number on the way keeps within these ranges."""
        if self.refused:
            return None
        if (inside, between) not in self._limits:
            with Limited(inside, between) as mode:
                got = ex.attempt(lambda: self._all(_fresh_wide, self._fed), "run")
            self._limits[inside, between] = got if mode.met and not isinstance(got, Raised) else {}
        return self._limits[inside, between].get(name)

    def look_closer(self, most: int = SAMPLES[-1]) -> bool:
        """Take more samples from now on, `most` at most; False where that is done already."""
        more = [n for n in SAMPLES if self._samples < n <= most]
        self._samples = more[0] if more else self._samples
        return bool(more)

    def _by(self, u: float) -> Shaken:
        u = max(u, FACTS[word(self._s.coarsest)].unit_roundoff)
        if (u, self._samples) not in self._shaken:
            self._shaken[u, self._samples] = self._sampled(u)
        return self._shaken[u, self._samples]

    def _sampled(self, u: float) -> Shaken:
        assert self._found is not None
        factor = COARSE if self.refused else 1.0
        moved: dict[str, Tensor] = {}
        changes: dict[str, list[Tensor]] = {}
        high = 0.0
        leasts = least_of(FACTS[word(self._s.coarsest)]), least_of(FACTS["float32"])
        for k in range(self._samples):
            count = itertools.count(101 * k)

            def put(t: Tensor, count: Iterator[int] = count) -> Tensor:
                nonlocal high
                if t.is_floating_point() or t.is_complex():
                    high = max(high, extremes(t)[1])
                made = perturbed(_fresh_wide(t), factor * u, next(count))
                return made.to(t.dtype) if self.refused else made

            fed = [perturbed(widen(c, None), factor * u, 101 * k + 50) for c in self._fed]
            with Rounding(factor * u, k, None, *leasts) as mode:
                got = ex.attempt(functools.partial(self._all, put, fed), "run")
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
