"""What is composed of several roundings."""

from __future__ import annotations

from dataclasses import replace

from benches import bench_of

from parity import catalog
from parity.catalog.row import ROUNDED, Judged
from parity.core.dtypes import FACTS
from parity.core.results import Tolerance
from parity.judging.bias import bias_test_applies
from parity.judging.rules import Composite

RULE = Composite()


def test_the_budget_follows_from_the_sensitivity() -> None:
    f, tol = FACTS["float32"], Tolerance("composite", 16.0, 1.0, None, "a rule")
    bench = bench_of("softmax(float32[5].normal(seed=1), dim=0)")
    truth = bench.oracle.truth("out")
    assert truth is not None
    b = RULE.budget(bench, truth, "out", f, "forward", tol, False)
    moved = bench.oracle.sensitivity("out", f.unit_roundoff, f.unit_roundoff)
    assert [v for k in range(5) for n, v in b.at(k) if "sensitivity" in n] == (16.0 * moved).tolist()
    assert b.certain is None


def test_a_lean_tells_where_elements_share_sums_and_round_once() -> None:
    norm = replace(catalog.row("layer_norm"), judged=Judged())
    assert bias_test_applies(norm, "forward")
    assert not bias_test_applies(replace(norm, judged=ROUNDED), "forward")
    assert not bias_test_applies(replace(norm, family="activations"), "forward")
    assert not bias_test_applies(replace(norm, judged=Judged(stages=("backward",))), "backward")
