"""What is kept of the cases that were checked, and when a process ends because the device computes nothing any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from parity.checks.trial import Result
from parity.core import notation
from parity.core.results import Aspect, Status, Verdict
from parity.engine import checking
from parity.engine.alone import Checked
from parity.engine.cases import CaseChecked, CaseDrawn
from parity.generation.generate import Drawn


def test_leaks_are_looked_for_in_the_largest_case_that_agrees() -> None:
    """Of at most so many elements."""
    run: Any = SimpleNamespace()
    leaks = checking.Leaks(run)
    sizes = {2: Status.AGREE, 1001: Status.AGREE, 9: Status.WRONG, checking.KEPT_NUMEL: Status.AGREE, 3: Status.AGREE}
    for k, (size, status) in enumerate(sizes.items()):
        case = notation.parse(f"exp(float32[{size}])")
        drawn = CaseDrawn(k, False, Drawn(case, ()), notation.case_text(case))
        leaks.hear(CaseChecked(drawn, Checked((Result(Aspect.FORWARD, Verdict(status)),))))
    assert leaks._kept is not None
    assert leaks._kept.ordinal == 3


def test_a_process_ends_where_the_device_refuses_a_dtype_that_it_took() -> None:
    """Though it answers: what comes next would compare nothing."""
    lost = list[str]()
    journal: Any = SimpleNamespace(lost=lost.append)
    item: Any = SimpleNamespace(dtype="float32")
    for took, takes, ends in (({"float32"}, True, 0), (set[str](), False, 0), ({"float32"}, False, 1)):
        device = SimpleNamespace(answers=lambda: True, takes=lambda dtype, takes=takes: takes)
        plan: Any = SimpleNamespace(device=device, takes=took)
        checking.end_unless_able(item, plan, journal, "")
        assert len(lost) == ends
    assert "refuses tensors of float32" in lost[0]
