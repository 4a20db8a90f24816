"""Each class of ops has a rule of its own, and what all rules share."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parity import catalog
from parity.catalog.row import ROUNDED, Judged
from parity.core.case import OpClass
from parity.core.dtypes import FACTS
from parity.core.results import Measure, Status, Tolerance
from parity.judging.rule import DRIFT_LIMIT, Rule
from parity.judging.rules import RULES, rule_of, rule_of_pass

TOL = Tolerance("composite", 16.0, 1.0, None, "a rule")
OUT = Measure("out", 5.0, measured=True, problem="value", device="2", truth="1")


def test_every_class_has_a_rule_of_its_own() -> None:
    assert {name: type(RULES[name]).__name__.lower() for name in OpClass} == {name: name.value for name in OpClass}


@pytest.mark.parametrize(
    ("op", "forward", "backward"),
    [
        ("exp", OpClass.ELEMENTWISE, OpClass.COMPOSITE),
        ("transpose", OpClass.EXACT, OpClass.COMPOSITE),
        ("mm", OpClass.CONTRACTION, OpClass.CONTRACTION),
        ("solve", OpClass.SOLVER, OpClass.COMPOSITE),
        ("softmax", OpClass.COMPOSITE, OpClass.COMPOSITE),
    ],
)
def test_gradients_of_sums_are_sums_and_all_others_composites(op: str, forward: OpClass, backward: OpClass) -> None:
    row = catalog.row(op)
    assert rule_of(row) is rule_of_pass(row, "forward") is RULES[forward]
    assert rule_of_pass(row, "backward") is RULES[backward]


def test_half_types_are_computed_in_float32_unless_the_row_rounds_between() -> None:
    plain, rounds = catalog.row("softmax"), replace(catalog.row("softmax"), judged=ROUNDED)
    half, single = FACTS["float16"].unit_roundoff, FACTS["float32"].unit_roundoff
    assert Rule().roundoff(plain, FACTS["float16"], "forward") == (single, half / 8.0)
    assert Rule().roundoff(rounds, FACTS["float16"], "forward") == (half, half)
    assert Rule().roundoff(plain, FACTS["float32"], "forward") == (single, single)
    adds = replace(plain, judged=Judged(accumulates=("backward",)))
    assert Rule().roundoff(adds, FACTS["float16"], "backward") == (half, half)
    assert Rule().roundoff(adds, FACTS["float16"], "forward")[0] == single


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_drift_ends_where_no_coarser_rounding_explains_the_error(dtype: str) -> None:
    limit = DRIFT_LIMIT[dtype]
    for share, status in ((1.0, Status.AGREE), (limit, Status.DRIFT), (math.nextafter(limit, math.inf), Status.WRONG)):
        assert Rule().verdict(replace(OUT, share=share), TOL, dtype).status is status
    assert Rule().verdict(OUT, TOL, dtype).reason == "5 times the budget"
    assert Rule().verdict(replace(OUT, share=1.0), TOL, dtype).reason == ""
    assert Rule().verdict(replace(OUT, share=1e5), TOL, dtype).reason.endswith(": more than a coarser rounding explains")


def test_an_error_of_the_reference_widens_what_is_allowed() -> None:
    said = Rule().verdict(replace(OUT, reference_share=2.0), TOL, "float32")
    assert (said.status, said.reason) == (
        Status.AGREE,
        "inside the budget only as widened 8 times by the reference's own error",
    )
    assert Rule().verdict(replace(OUT, share=9.0, reference_share=2.0), TOL, "float32").status is Status.DRIFT


@pytest.mark.parametrize(
    ("m", "status", "reason"),
    [
        (replace(OUT, problem="class"), Status.WRONG, "2 where the truth is 1"),
        (replace(OUT, problem="alone"), Status.DRIFT, "5 times what the errors of all other elements explain: it errs alone"),
        (
            replace(OUT, spread=5.0),
            Status.DRIFT,
            "5 times the budget of the root mean square error: precision is lost everywhere",
        ),
    ],
)
def test_kinds_of_differences_have_verdicts_of_their_own(m: Measure, status: Status, reason: str) -> None:
    for rule in RULES.values():
        said = rule.verdict(m, TOL, "float32")
        assert (said.status, said.reason) == (status, reason)


def test_a_verdict_can_be_given_of_another_tensor() -> None:
    """Its reason then names that tensor's error, where it names one."""
    other = replace(OUT, tensor="out[1]", share=7.0)
    said = Rule().verdict(OUT, TOL, "float32").of(other)
    assert (said.tensor, said.reason) == ("out[1]", "7 times the budget")
    kept = Rule().verdict(replace(OUT, problem="class"), TOL, "float32").of(other)
    assert (kept.tensor, kept.reason) == ("out[1]", "2 where the truth is 1")
