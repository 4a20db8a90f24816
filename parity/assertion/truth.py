"""The oracle of a caller's function: the function itself in float64."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from parity import execute as ex
from parity.assertion.subject import SEED, Put, Subject, forward, gradients, tracked_outputs, word
from parity.dtypes import FACTS
from parity.truth.oracle import Oracle
from parity.truth.rounding import Rounding, extremes, perturbed
from parity.truth.shaken import PERTURBATIONS
from parity.truth.wide import widen
from parity.vocabulary import Raised

# How many roundoffs the inputs of a function are moved by that cannot run in float64: well above its own rounding.
COARSE = 8.0


class Truth(Oracle):
    """The subject in float64, with the sensitivity of its results. Where it cannot run there, the reference stands in."""

    def __init__(self, s: Subject, backward: bool, cotangents: Sequence[Tensor], reference: Mapping[str, Tensor]) -> None:
        # Nothing of the base class is kept: it knows cases of the catalog, this knows functions. The judge asks both alike.
        self._s, self._backward, self._fed, self._reference = s, backward, cotangents, reference
        self._found: dict[str, Tensor] | None = None
        self._moved: dict[float, tuple[dict[str, Tensor], tuple[float, float]]] = {}
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
        moved = self._by(max(u, between))[0]
        return moved.get(name, torch.zeros(self._found[name].shape, dtype=torch.float64))

    def extremes(self, u: float, between: float) -> tuple[float, float]:
        """(smallest magnitude but 0 that goes in, largest that goes in or that a kernel gave on the way)."""
        return self._by(max(u, between))[1]

    def rounded_once(self, name: str) -> None:
        """A function has no kernels of its own: half types are rounded after every step of it."""

    @property
    def fed(self) -> int:
        """Derivatives beyond the first are not asked for."""
        return 0

    def look_closer(self, most: int = 0) -> bool:
        """The samples are what they are."""
        return False

    def unsettled(self, name: str, u: float, between: float) -> None:
        """A NaN counts as it comes."""

    def holds(self, what: str) -> bool:
        """NaN and Inf count as they come."""
        return False

    def coarsest(self) -> float:
        """Every step is moved by the inputs' coarsest roundoff already."""
        return 0.0

    def magnitudes(self, name: str) -> None:
        """Nobody knows what a function sums."""

    def flushed(self, name: str, flushes: Callable[[str], bool], result: str) -> None:
        """Subnormals count as they are."""

    def _by(self, u: float) -> tuple[dict[str, Tensor], tuple[float, float]]:
        u = max(u, FACTS[word(self._s.coarsest)].unit_roundoff)
        if u not in self._moved:
            self._moved[u] = self._measured(u)
        return self._moved[u]

    def _measured(self, u: float) -> tuple[dict[str, Tensor], tuple[float, float]]:
        assert self._found is not None
        factor = COARSE if self.refused else 1.0
        moved: dict[str, Tensor] = {}
        low, high = math.inf, 0.0
        for k in range(PERTURBATIONS):
            count = itertools.count(101 * k)

            def put(t: Tensor, count: Iterator[int] = count) -> Tensor:
                nonlocal low, high
                if t.is_floating_point() or t.is_complex():
                    least, most = extremes(t)
                    low, high = min(low, least), max(high, most)
                made = perturbed(_fresh_wide(t), factor * u, next(count))
                return made.to(t.dtype) if self.refused else made

            fed = [perturbed(widen(c, None), factor * u, 101 * k + 50) for c in self._fed]
            with Rounding(factor * u, k) as mode:
                got = ex.attempt(functools.partial(self._all, put, fed), "run")
            high = max(high, mode.largest)
            for n, t in {} if isinstance(got, Raised) else got.items():
                at = self._found.get(n)
                if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                    change = torch.nan_to_num((widen(t, None) - at).abs().to(torch.float64) / factor, 0.0, 0.0, 0.0)
                    moved[n] = torch.maximum(moved[n], change) if n in moved else change
        return moved, (low, high)


def _fresh_wide(t: Tensor) -> Tensor:
    made = widen(t, None)
    return made.clone() if made is t else made


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """The CPU's generator at a fixed state, and full precision; both as before afterwards."""
    with torch.random.fork_rng(devices=[]), ex.full_precision():
        torch.default_generator.manual_seed(seed)
        yield
