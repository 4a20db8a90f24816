"""Why a result agrees or does not, in words."""

from __future__ import annotations

import pytest

from parity.core.results import Measure
from parity.report.explanation import decided


@pytest.mark.parametrize(
    ("share", "budget", "words"),
    [
        (0.05, (("ulp", 2.0), ("floor", 0.0)), "'ulp' is the whole budget: the other terms allow nothing"),
        (0.5, (("ulp", 3.0), ("floor", 1.0)), "'ulp' saved it: without that term the share would be 2"),
        (0.1, (("ulp", 3.0), ("floor", 1.0)), "no single term decides: without the largest the share would be 0.4"),
        (3.0, (("ulp", 3.0), ("floor", 1.0)), "it would take 3.67 times 'ulp', the largest term, to cover the error"),
        (0.1, (), None),
    ],
)
def test_what_decided(share: float, budget: tuple[tuple[str, float], ...], words: str | None) -> None:
    """By the largest term of the budget; never by a share that is infinite only because nothing else is allowed."""
    assert decided(Measure("out", share, measured=True, budget=budget), share > 1.0) == words
