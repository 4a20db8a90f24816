"""Least cases lose what the shrinker leaves in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parity.core import notation
from parity.core.case import Case
from parity.core.results import Aspect
from parity.generation.plainer import plainest

FULL = (
    'add(float32[2, 3].transpose(0, 1).step(-1, 2, 0).uniform(seed=7).at(0, "nan").at(1, "inf").frozen(), '
    'float32[()].on_cpu(), alpha=2).cotangent("normal", "stepped", 3).into("transposed").under("inference").after("larger")'
)


@pytest.mark.parametrize(
    ("needs", "aspect", "expected"),
    [
        (lambda _: True, Aspect.FORWARD, "add(float32[2, 3], float32[()])"),
        (lambda c: ".at(1" in c, Aspect.FORWARD, 'add(float32[2, 3].at(1, "inf"), float32[()])'),
        (lambda c: "step(" in c, Aspect.FORWARD, "add(float32[2, 3].step(-1, 2, 0), float32[()])"),
        (lambda c: "normal" in c, Aspect.BACKWARD, 'add(float32[2, 3], float32[()]).cotangent("normal", "contiguous", 0)'),
        (lambda c: "into" in c, Aspect.OUT, 'add(float32[2, 3], float32[()]).into("transposed")'),
        (lambda c: "alpha" in c and "on_cpu" in c, Aspect.FORWARD, "add(float32[2, 3], float32[()].on_cpu(), alpha=2)"),
    ],
)
def test_what_a_finding_does_not_need_is_gone(needs: Callable[[str], bool], aspect: Aspect, expected: str) -> None:
    """One thing after another, as long as it shows."""
    case = notation.parse(FULL)
    assert notation.case_text(plainest(case, aspect, lambda c: needs(notation.case_text(c)))) == expected


def test_a_case_that_never_fails_again_stays() -> None:
    """Also where the time is over."""
    case = notation.parse(FULL)
    tried = list[Case]()

    def fails(c: Case) -> bool:
        tried.append(c)
        return False

    assert plainest(case, Aspect.FORWARD, fails) == case
    assert len(set(tried)) > 8
