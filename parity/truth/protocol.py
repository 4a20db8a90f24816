"""What the judge may ask of a truth, whatever the truth is made of: a case of the catalog, or somebody's own function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from parity.truth.limited import Range
from parity.truth.shaken import Changes


class Oracle(ABC):
    """Truths by the names of the results, and how they are conditioned. What is not abstract has an answer for an oracle that
    knows results alone: nothing more is known, so nothing more is excused."""

    @abstractmethod
    def truth(self, name: str) -> Tensor | None:
        """The truth of one result in float64 or complex128; None where there is none."""

    @abstractmethod
    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """float64, of the result's shape: how much each element moves when operands move by u and intermediate results by
        `between`. Only for results that have a truth."""

    @abstractmethod
    def changes(self, name: str, u: float, between: float) -> Changes | None:
        """How the result moved in each sample of that sensitivity; None where it has none."""

    @abstractmethod
    def largest(self, u: float, between: float) -> float:
        """The largest finite magnitude that goes in, or that a kernel gave on the way."""

    @abstractmethod
    def limited(self, name: str, inside: Range, between: Range) -> Tensor | None:
        """The result where every number on the way keeps within these ranges (`truth.limited`); None where nothing leaves
        them, or the result does not come about."""

    def differentiate(self, cotangents: Sequence[Tensor]) -> None:
        """Ask for gradients too, with these cotangents (CPU tensors of the outputs' shapes)."""
        return

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All operands, without cotangents or tangents among them."""
        return ()

    @property
    def fed(self) -> int:
        """How many operands are cotangents or tangents of the function's own: 0 but for derivatives beyond the first."""
        return 0

    @property
    def chains(self) -> bool:
        """Whether results pass from kernel to kernel in the dtype, whatever the row says."""
        return self.fed > 0

    def look_closer(self, most: int = 0) -> bool:
        """Take more samples of every sensitivity from now on, `most` at most; False where there are no more."""
        return False

    def holds(self, what: str) -> bool:
        """Whether an operand or a cotangent holds NaN ("nan"), or NaN or Inf ("nonfinite")."""
        return False

    def spread(self, name: str) -> Tensor | None:
        """Which elements an operand's NaN or Inf may reach; None where that is not known."""
        return None

    def undefined(self, truth: Tensor) -> Tensor:
        """Where the truth is NaN though no operand that it comes from holds NaN."""
        return torch.zeros(truth.shape, dtype=torch.bool)

    def unsettled(self, name: str, u: float, between: float) -> Tensor | None:
        """Where rounding on the way decides whether a result is NaN; None where it nowhere does."""
        return None

    def amplified(self, name: str, u: float, between: float, times: float) -> Tensor | None:
        """How much that result moves where every rounding is so many times as large: more than in proportion, where one of
        them decides which way a kink goes. None where that is not known."""
        return None

    def small(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """Which elements an operand's subnormal number reaches, where the device flushes its dtype; None without one."""
        return None

    def flushed(self, name: str, flushes: Callable[[str], bool], result: str) -> Tensor | None:
        """The truth when subnormal operands count as zero; None where no operand holds one."""
        return None

    def rounded_once(self, name: str) -> Tensor | None:
        """The result from kernels that compute in float32 and round once; None where it does not run so."""
        return None

    def magnitudes(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(S, n) of a sum of products: the same sum over magnitudes, and how many terms it has; None where it is no sum."""
        return None

    def with_each_as(self, name: str, size: float) -> list[Tensor]:
        """What a sum over magnitudes gains where one floating operand after the other is `size` throughout instead of 0."""
        return []

    def grown(self, name: str) -> Tensor | None:
        """The magnitude of the result where no factor is smaller than 1: what a product comes to on the way."""
        return None

    def bias(self) -> float | None:
        """The largest magnitude that a sum of products adds at its end; 0 without one, None where that is not known."""
        return None

    def repeats(self) -> bool:
        """Whether an operand or a cotangent is one number throughout, so that roundings are no chance."""
        return False

    def alike(self) -> bool:
        """Whether every operand and cotangent of more than one element is one number throughout."""
        return False

    def of_one(self) -> bool:
        """Whether a single operand moves."""
        return False

    def coarsest(self) -> float:
        """The largest unit roundoff among the floating operands, 0 where all operands have the result's dtype."""
        return 0.0

    def beneath(self, index: int) -> Sequence[Tensor]:
        """The operands whose elements the derivative of this number belongs to."""
        return ()

    def beside(self, truth: Tensor) -> Sequence[Tensor]:
        """The floating operands but the first that have the result's shape."""
        return ()

    def ignores_a_product(self) -> bool:
        """Whether a factor of 0 lets a device leave a product out, with the NaN in it."""
        return False
