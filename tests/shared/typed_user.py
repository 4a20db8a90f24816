"""What somebody may write by mistake, for mypy: `strict` refuses a comment below that hides no mistake. Nobody runs it."""

from __future__ import annotations

import torch

import parity as p


def test_block(parity: p.Fixture) -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    p.assert_partiy(model, x)  # type: ignore[attr-defined]
    p.assert_parity(model, x, effort="fast")  # type: ignore[arg-type]
    parity(model, x, effort="ful")  # type: ignore[arg-type]
    parity(x.shape, x)  # type: ignore[arg-type]
    print(parity(model, x).headlin)  # type: ignore[attr-defined]
    print(p.locate(model, x).frist)  # type: ignore[attr-defined]
    p.compare_training(lambda: model, [x], steps="ten")  # type: ignore[arg-type]


def test_block_as_it_is_right(parity: p.Fixture) -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    p.assert_parity(model, x, effort="full")
    print(parity(model, x, effort="full", fail_on="fallback", mask=x).headline)
    first = p.locate(model, x).first
    print("" if first is None else first.operator)
