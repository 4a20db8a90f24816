"""Cases that are aimed at a feature of calls which random choices hardly ever meet."""

from __future__ import annotations

import pytest
import torch

from parity import catalog
from parity.catalog.draw import Sizes
from parity.checks.trial import values
from parity.core.case import Case
from parity.core.notation import case_text, parse
from parity.generation import generate


def drawn(name: str, dtype: str = "float32", seed: str = "1", count: int = 32) -> list[Case]:
    return [d.case for d in generate.search(catalog.row(name), dtype, Sizes(), seed, count)]


@pytest.mark.parametrize("name", ["conv2d", "layer_norm", "embedding", "sum"])
@pytest.mark.parametrize("word", ["nonfinite", "huge", "tiny"])
def test_each_row_with_gradients_meets_incoming_gradients_that_are_not_ordinary(name: str, word: str) -> None:
    assert any(c.cotangent.values == word for c in drawn(name))


@pytest.mark.parametrize(("name", "why"), [("cholesky", "factors"), ("dropout", "a law"), ("gru", "formulas of gates")])
def test_rows_whose_gradients_have_conditions_do_not(name: str, why: str) -> None:
    assert {c.cotangent.values for c in drawn(name)} <= {"ones", "normal", "zero"}, why


def test_pinned_cases_stay_as_they_were() -> None:
    pinned = [generate.nth(catalog.row("sum"), "float32", Sizes(), "pinned", k, mixes=False).case for k in range(64)]
    assert {c.cotangent.values for c in pinned} <= {"ones", "normal", "zero"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_extreme_gradients_are_finite_and_the_others_hold_a_few_that_are_not(dtype: torch.dtype) -> None:
    for seed in range(20):
        assert 1 <= int((~values("nonfinite", dtype, 50, seed, 0).isfinite()).sum()) <= 3
        for word in ("huge", "tiny"):
            x = values(word, dtype, 50, seed, 0)
            assert bool((x.isfinite() & (x != 0)).all())
    assert float(values("huge", dtype, 50, 0, 0).abs().max()) > 1e3 > 1e-1 > float(values("tiny", dtype, 50, 0, 0).abs().max())


def test_a_text_keeps_the_incoming_gradient() -> None:
    text = 'relu(float32[3]).cotangent("nonfinite", "expanded", 3)'
    assert case_text(parse(text)) == text
