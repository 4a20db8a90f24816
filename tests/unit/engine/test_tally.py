"""What is counted of the cases of an item."""

from __future__ import annotations

from parity.checks.trial import Result
from parity.core import notation
from parity.core.results import Aspect, Measure, Status, Verdict
from parity.engine import suite
from parity.engine.alone import Checked
from parity.engine.cases import CaseChecked, CaseDrawn
from parity.engine.tally import ItemTally
from parity.generation.generate import Drawn


def test_elements_that_may_hold_anything_are_counted_by_the_reason() -> None:
    """And not among the judged."""
    tally, case = ItemTally(suite.Item(suite.row("exp"), "float32")), notation.parse("exp(float32[8])")
    measures = Measure("out", total=8, unjudged=3, why="unspecified"), Measure("out", total=8)
    result = Result(Aspect.FORWARD, Verdict(Status.AGREE), measures)
    tally.hear(CaseChecked(CaseDrawn(0, False, Drawn(case, ()), "exp(float32[8])"), Checked((result,))))
    assert (tally.judged, dict(tally.left)) == (13, {"unspecified": 3})
