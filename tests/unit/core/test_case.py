"""One order of the operands of a case, whatever asks for them."""

from __future__ import annotations

from dataclasses import replace

from parity.core import notation
from parity.core.case import TensorSpec, operands_in
from parity.execution.inputs import build

NESTED = notation.parse('f((float32[1], (float32[2], 3)), None, float32[3], "sum", weight=float32[4], others=(float32[0], 1))')


def sizes(specs: list[TensorSpec]) -> list[int]:
    return [s.shape[0] for s in specs]


def test_operands_stand_in_the_order_of_the_text() -> None:
    """Through nested tuples, keyword arguments last; in this order their tensors are built, too."""
    assert sizes(NESTED.operands()) == [1, 2, 3, 4, 0]
    assert NESTED.numel == 10
    assert [tuple(o.view.shape) for o in build(NESTED).operands] == [s.shape for s in NESTED.operands()]
    assert sizes(operands_in(NESTED.args)) == [1, 2, 3]
    assert notation.parse("f(2, dim=1)").operands() == []


def test_operands_are_changed_in_their_places() -> None:
    """One after the other, and nothing else."""
    asked: list[TensorSpec] = []

    def longer(s: TensorSpec) -> TensorSpec:
        asked.append(s)
        return replace(s, shape=(s.shape[0] + 10,))

    changed = NESTED.map_operands(longer)
    assert sizes(asked) == [1, 2, 3, 4, 0]
    assert notation.case_text(changed) == (
        "f((float32[11], (float32[12], 3)), None, float32[13], 'sum', weight=float32[14], others=(float32[10], 1))"
    )
    assert NESTED.map_operands(lambda s: s) == NESTED


def test_other_operands_take_their_places() -> None:
    """The first of them in the place of the first."""
    assert sizes(NESTED.with_operands(NESTED.operands()[::-1]).operands()) == [0, 4, 3, 2, 1]
