"""The request for a comparison of a user's function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch

from parity.comparing.subject import Subject, Wrap, original, subject
from parity.core.errors import UsageError
from parity.core.results import Status
from parity.devices import Device

Effort: TypeAlias = Literal["default", "full"]
DEFAULT: Effort = "default"
FULL: Effort = "full"
EFFORTS = DEFAULT, FULL


def effort_of(word: object) -> Effort:
    """The effort that a caller names. Raises UsageError."""
    for effort in EFFORTS:
        if effort == word:
            return effort
    raise UsageError(f"effort is {word!r}; allowed: {', '.join(EFFORTS)}")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A function with its arguments, and how it is to be compared, in the words of `assert_parity`. fail_on, keep_on_cpu: taken
    apart already; wrap: makes what the device runs of the function (a compiler); alone: whether nothing else is compared in
    addition; proof: asked where a result is far outside, whether an operator is wrong by itself on the device."""

    fn: Callable[..., Any]
    inputs: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: str | torch.device | Device = "auto"
    backward: bool = True
    atol: float | None = None
    fail_on: tuple[Status, ...] = ()
    keep_on_cpu: tuple[str, ...] = ()
    detail: bool = False
    effort: Effort = DEFAULT
    wrap: Wrap | None = None
    alone: bool = True
    proof: Callable[[], bool] | None = None

    @property
    def closely(self) -> bool:
        """Whether the truth decides on every result, with all samples of its sensitivity."""
        return self.detail or self.effort == FULL

    def check(self) -> None:
        """Raise UsageError for a word or a number that cannot be meant so."""
        number = self.atol is None or (isinstance(self.atol, Real) and not isinstance(self.atol, bool))
        if not number or (self.atol is not None and not 0 <= self.atol < math.inf):
            raise UsageError(f"atol is {self.atol!r}; give a number that is 0 or more, or None for the tolerance tables alone")
        effort_of(self.effort)

    def subject(self) -> Subject:
        """The function with its arguments. Raises UsageError as `parity.comparing.subject.subject` does."""
        return subject(self.fn, self.inputs, self.kwargs, self.keep_on_cpu)

    def eager(self) -> Subject:
        """The same with the eager code of a compiled function."""
        return subject(original(self.fn), self.inputs, self.kwargs, self.keep_on_cpu)
