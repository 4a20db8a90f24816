"""The questions that the judge may ask an oracle, for a case of the catalog or for a user's own function."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from parity.catalog.row import Row
from parity.oracle.limited_range import Range
from parity.oracle.nonfinite_reach import Reach
from parity.oracle.sensitivity import Changes


class Oracle(ABC):
    """Truths by the names of the results, and their conditioning.

    Methods that are not abstract have defaults for an oracle that knows only results: nothing more is known, so nothing is
    excused. proven: whether the device is known to be wrong, so that only the size of errors is asked.
    """

    proven = False

    def ask_again(self) -> None:
        """Ask all results as closely as any from now on."""
        return

    @abstractmethod
    def truth(self, name: str) -> Tensor | None:
        """The truth of one result in float64 or complex128; None if there is none."""

    @abstractmethod
    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """float64, of the result's shape: how far each element moves if operands move by u and intermediate results by
        `between`.

        Only for results with a truth.
        """

    @abstractmethod
    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample of that sensitivity; None if there are no samples."""

    @abstractmethod
    def largest(self, u: float, between: float) -> float:
        """The largest finite magnitude of an operand or an intermediate result."""

    @abstractmethod
    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result with every intermediate number limited to these ranges; None if nothing leaves them or the call fails."""

    def lost_by_rounding(self, name: str, ends: tuple[Range, Range], u: float, between: float) -> Tensor | None:
        """Where a result becomes NaN or Inf if numbers on the way are rounded, and then limited to the ranges (inside of
        kernels, between them) `ends`: what cancels leaves a rounding, which a small divisor takes past the range."""
        return None

    def row(self, name: str) -> Row | None:
        """The row of the one operator whose result this is, in place of the case's own row; None if there is none."""
        return None

    def differentiate(self, cotangents: Sequence[Tensor]) -> None:
        """Compute gradients too, with these cotangents (CPU tensors of the shapes of the outputs)."""
        return

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All operands, without cotangents and tangents."""
        return ()

    @property
    def fed(self) -> int:
        """Number of operands that are cotangents or tangents: 0 except for derivatives beyond the first."""
        return 0

    @property
    def chains(self) -> bool:
        """Whether kernels pass results in the dtype to each other, whatever the row says."""
        return self.fed > 0

    @property
    def rounds_to_half(self) -> bool:
        """Whether these results are in a half type, so that a rounding may turn a step behind it."""
        return False

    @property
    def may_branch_by_dtype(self) -> bool:
        """Whether the call is a caller's own code, which may ask for its dtype and compute something else in float64."""
        return False

    @property
    def is_dear(self) -> bool:
        """Whether each sample takes so long that none is taken which changes no verdict."""
        return False

    def take_more_samples(self, most: int = 0) -> bool:
        """Use more samples of every sensitivity from now on, at most `most`; False if there are no more."""
        return False

    def sampled(self, first: int) -> AbstractContextManager[bool]:
        """Inside, so many first samples of every sensitivity stand for all. Gives whether that saves runs."""
        return nullcontext(False)

    def holds(self, what: str) -> bool:
        """Whether an operand or a cotangent holds NaN ("nan"), Inf ("inf"), or either ("nonfinite")."""
        return False

    def spread(self, name: str) -> Reach | None:
        """Which elements the NaN and Inf of operands and cotangents reach; None if unknown."""
        return None

    def undefined(self, truth: Tensor) -> Tensor:
        """Where the truth is NaN though the operands it depends on hold none."""
        return torch.zeros(truth.shape, dtype=torch.bool)

    def unsettled(self, name: str, u: float, between: float) -> Tensor | None:
        """Where rounding on the way decides whether a result is NaN or Inf; None if nowhere."""
        return None

    def turned(self, name: str, u: float, between: float) -> Tensor | None:
        """Where rounding on the way decides which of NaN, Inf and -Inf a result is; None if nowhere."""
        return None

    def amplified(self, name: str, u: float, between: float, times: float, most: int = 0) -> Tensor | None:
        """How far the result moves if every rounding is `times` as large; None if unknown: more than in proportion where a
        rounding decides the side of a kink. most: samples that are enough, 0 for as many as of a sensitivity."""
        return None

    def amplified_changes(self, name: str, times: float) -> Changes | None:
        """How the result moved in each sample of `amplified`; None where what all elements share moves in proportion."""
        return None

    def small(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """Which elements an operand's subnormal number reaches, if the device flushes its dtype; None without one."""
        return None

    def flushed(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """The truth with subnormal operands as zero; None if no operand holds one."""
        return None

    def rounded_once(self, name: str) -> Tensor | None:
        """The result of kernels that compute in float32 and round once; None if the call fails."""
        return None

    def magnitudes(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(S, n) of a sum of products: the same sum over magnitudes, and its number of terms; None if it is no sum."""
        return None

    def wander(self, name: str) -> Tensor | None:
        """How far the partial sums of a sum of products stray from their share of the whole, in any order that does not follow
        the terms; None if unknown."""
        return None

    def gain_per_operand(self, name: str) -> list[Tensor]:
        """For each floating operand, the change of a sum of products over magnitudes if it is 1 throughout instead of 0."""
        return []

    def grown(self, name: str) -> Tensor | None:
        """The result from magnitudes of at least 1: a bound on the partial results of a product; None if unknown."""
        return None

    def shrunk(self, name: str) -> Tensor | None:
        """The result from magnitudes of at most 1: a lower bound on the partial results of a product; None if unknown."""
        return None

    def shrunk_with_inf(self, name: str) -> Tensor | None:
        """For a sum of products, a lower bound on the partial products of the terms that hold an Inf; None if unknown."""
        return None

    def bias(self) -> float | None:
        """Max of the absolute bias; 0 if absent, None if unknown."""
        return None

    def different_numbers(self) -> float:
        """How many different numbers the operand or cotangent with the fewest holds: 1 if it is one number, so that its
        roundings are not random; infinite if unknown."""
        return math.inf

    def runs_of_equals(self) -> int:
        """How many long runs of equal numbers an operand or cotangent holds at most, 1 if each is one number; 0 if some is
        short."""
        return 0

    def has_one_operand(self) -> bool:
        """Whether there is a single floating operand."""
        return False

    def coarsest(self) -> float:
        """The largest unit roundoff among the floating operands; 0 if all have one dtype."""
        return 0.0

    def operands_of_derivative(self, index: int) -> Sequence[Tensor]:
        """The operands that the derivative with this index belongs to."""
        return ()

    def operands_of_shape(self, truth: Tensor) -> Sequence[Tensor]:
        """The floating operands, except the first, that have the result's shape."""
        return ()

    def ignores_a_product(self) -> bool:
        """Whether a factor of 0 lets a device skip a product, with the NaN in it."""
        return False
