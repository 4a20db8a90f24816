"""Functions of single elements."""

from __future__ import annotations

from benches import bench_of

from parity import catalog
from parity.core.dtypes import FACTS
from parity.core.results import Tolerance
from parity.judging.rules import Elementwise

RULE = Elementwise()
TOL = Tolerance("elementwise", 16.0, 1.0, None, "a rule")


def test_of_one_operand_what_float32_cannot_invert_may_vanish() -> None:
    bench = bench_of("exp(bfloat16[1].normal(seed=1))")
    truth = bench.oracle.truth("out")
    assert truth is not None
    bfloat = FACTS["bfloat16"]
    one = dict(RULE.budget(bench, truth, "out", bfloat, "forward", TOL, False).at(0))["floor"]
    assert one == FACTS["float32"].tiny
    two = bench_of("add(bfloat16[1].normal(seed=1), bfloat16[1].normal(seed=2))")
    truth = two.oracle.truth("out")
    assert truth is not None
    assert dict(RULE.budget(two, truth, "out", bfloat, "forward", TOL, False).at(0))["floor"] < one


def test_a_table_s_bound_is_all_that_a_function_owes() -> None:
    bench = bench_of("exp(float32[1].normal(seed=1))")
    truth = bench.oracle.truth("out")
    assert truth is not None
    b = RULE.budget(bench, truth, "out", FACTS["float32"], "forward", Tolerance("elementwise", 0.0, 0.0, 2.0, "a table"), False)
    assert [name for name, _ in b.terms] == ["2 + 0.5 ULP of the function", "floor"]
    assert b.rounding is None


def test_destinations_are_cast_to_but_for_what_is_made_from_numbers() -> None:
    assert RULE.casts_destination(catalog.row("exp"))
    assert not RULE.casts_destination(catalog.row("full"))
