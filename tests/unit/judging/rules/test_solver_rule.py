"""Solvers and decompositions work on whole matrices."""

from __future__ import annotations

import pytest
import torch

from parity import catalog, tolerance
from parity.core.case import TensorSpec, Values
from parity.generation.planting import contents
from parity.judging.rules import Decomposition, Rule, Solver, rule_of


@pytest.mark.parametrize(("op", "kind"), [("solve", Solver), ("eigh", Decomposition)])
def test_matrices_lose_more_than_roundings_where_the_device_flushes(op: str, kind: type[Rule]) -> None:
    row, a = catalog.row(op), torch.eye(2)
    rule = rule_of(row)
    assert type(rule) is kind
    assert rule.vanishing(row, tolerance.load("mps"), (2, a)) == torch.finfo(torch.float32).tiny / 2.0**-24
    assert rule.vanishing(row, tolerance.load("cpu"), (a,)) == 0.0
    assert rule.vanishing(row, tolerance.load("mps"), ()) == 0.0


def test_samples_keep_their_numbers() -> None:
    """One NaN would end what the sample of a solver's matrix promises; a sum takes it."""
    spec = TensorSpec("float32", (4, 4), values=Values("sample", (0, 0)))

    def planted(op: str) -> set[int]:
        picks = [(lambda n, k=k: min(k, n - 1)) for k in range(20)]
        return {len(s.values.specials) for pick in picks for s in contents([spec], catalog.row(op), pick)}

    assert planted("solve") == planted("eigh") == {0}
    assert planted("sum") != {0}


def test_tangents_have_no_truth_in_reverse_mode() -> None:
    assert not Solver.has_tangents
    assert not Decomposition.has_tangents
    assert Solver.differentiated_often
