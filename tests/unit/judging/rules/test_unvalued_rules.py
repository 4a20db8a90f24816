"""Classes of which not every number is promised: selections, random draws, and results that are only form."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benches import bench_of

from parity import catalog
from parity.checks.power import probe
from parity.core.results import Status
from parity.judging.destination import Part
from parity.judging.judge import judge
from parity.judging.relations import Bound
from parity.judging.rules import Metadata, Random, Selection, rule_of


@pytest.mark.parametrize(("op", "kind"), [("sort", Selection), ("rand_like", Random), ("empty_like", Metadata)])
def test_rows_have_these_rules(op: str, kind: type) -> None:
    assert type(rule_of(catalog.row(op))) is kind


def test_destinations_of_what_has_no_values_are_held_to_their_form() -> None:
    """And those of all others to the numbers."""
    before, other = torch.zeros(3), torch.tensor([1.0, 5.0, 2.0])
    parts = {"base[out]": Part(before, (), (3,))}
    for text, status in (("empty_like(float32[3])", Status.AGREE), ("exp(float32[3])", Status.WRONG)):
        said = judge(bench_of(text), {"base[out]": other}, {"base[out]": before + 1}, "forward", parts)[0]
        assert said.status is status, text
        short = judge(bench_of(text), {"base[out]": other[:2]}, {"base[out]": before + 1}, "forward", parts)[0]
        assert short.status is Status.MALFORMED


def test_a_result_that_is_only_form_may_hold_anything() -> None:
    bench = replace(bench_of("empty_like(float32[3])"), bound=Bound(catalog.row("empty_like"), (torch.zeros(3),), {}))
    said = judge(bench, {"out": torch.full((3,), torch.nan)}, {"out": torch.zeros(3)}, "forward")[0]
    assert (said.status, said.reason) == (Status.AGREE, "only the form is promised")


def test_no_errors_are_put_into_what_has_no_values() -> None:
    x = {"out": torch.ones(3)}
    for text in ("empty_like(float32[3])", "rand_like(float32[3])"):
        assert probe(bench_of(text), x, x, "forward", None, "forward", "key") is None
    exp = {"out": torch.exp(bench_of("exp(float32[3])").oracle.operands[0]).float()}
    assert probe(bench_of("exp(float32[3])"), exp, exp, "forward", None, "forward", "key") is not None


def test_selections_round_nothing_and_add_nothing() -> None:
    assert not Selection.rounds
    assert not Selection.adds_terms
    assert not Selection.exact  # values are compared by their budget
