"""Every answer about a user's function has a table, and agrees exactly if all lines of it do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import parity
from parity.comparing.comparison import Answer, Comparison, Line
from parity.comparing.compiled import CompiledSide
from parity.comparing.places import Place
from parity.core.results import Measure, Status, Verdict
from parity.devices import Call, Device, Fault, resolve
from parity.locating.located import Divergence, Located
from parity.training.generation import GeneratedToken, Generation
from parity.training.trained import Departure, Point, Training

GOOD, BAD = Verdict(Status.AGREE, measure=Measure("out", 0.25)), Verdict(Status.WRONG, "too far", Measure("out", 40.0))
RAISED = Verdict(Status.ERROR, "RuntimeError in run: no kernel")


def planted(op: str = "exp") -> Device:
    """A simulated device that doubles the results of an op."""

    def doubled(call: Call) -> Tensor:
        result: Tensor = call.run() * 2
        return result

    return resolve("sim", [Fault("doubled", (op,), doubled)])


def refusing() -> Device:
    def refused(call: Call) -> Tensor:
        raise RuntimeError("no kernel for this")

    return resolve("sim", [Fault("refused", ("exp",), refused)])


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x.exp()


def lines_of(answer: Answer) -> dict[str, Status]:
    """The statuses by place, where all lines agree exactly if the answer does."""
    assert answer.agrees == all(line.status is Status.AGREE for line in answer.table)
    return {line.where: line.status for line in answer.table}


def test_a_comparison_has_a_line_for_each_tensor() -> None:
    x = torch.randn(6)
    good = parity.compare(two, two(x), two(x), x)
    assert lines_of(good) == {"out[0]": Status.AGREE, "out[1]": Status.AGREE}
    assert good.first is None
    with pytest.raises(parity.ParityFailure) as failed:
        parity.assert_parity(two, x, device=planted())
    found = failed.value.comparison
    assert lines_of(found) == {"out[0]": Status.AGREE, "out[1]": Status.WRONG}
    assert found.first is not None
    assert found.first == found.table[1]
    assert found.first.error is not None
    assert found.first.error > 1


def test_what_the_device_raises_is_a_line_of_the_call() -> None:
    x = torch.randn(6)
    with pytest.raises(parity.ParityFailure) as failed:
        parity.assert_parity(two, x, device=refusing())
    (line,) = failed.value.comparison.table
    assert (line.where, line.status, line.error) == ("the call", Status.ERROR, None)
    assert "no kernel for this" in line.reason
    (line,) = parity.locate(two, x, device=refusing()).table  # which knows the operator
    assert line.where.endswith("aten::exp")
    assert line.status is Status.ERROR


def test_what_is_located_has_a_line_for_each_operator_that_differs() -> None:
    x = torch.randn(6)
    assert lines_of(parity.locate(nn.Sequential(nn.Linear(6, 3), nn.Tanh()), x, device="sim")) == {}
    found = parity.locate(two, x, device=planted())
    assert [line.status for line in found.table] == [Status.WRONG]
    assert found.table[0].where.endswith("aten::exp")
    assert found.first is not None
    assert found.table[0] == Line.of(f"{found.first.title}: aten::exp", found.first.verdict)


def test_all_else_that_a_search_finds_has_a_line() -> None:
    agreeing = Located("f float32 on sim", "float32", "sim", compared=3)
    compiled = CompiledSide("inductor", 1, (("out", GOOD), ("grad[0]", BAD)))
    here = replace(agreeing, divergences=(Divergence("aten::exp", "forward", Place(), BAD),))
    cases: tuple[tuple[Located, dict[str, Status]], ...] = (
        (agreeing, {}),
        (replace(agreeing, broken="RuntimeError: no"), {"the call": Status.ERROR}),
        (replace(agreeing, whole="out (wrong: too far)"), {"the results": Status.WRONG}),
        (replace(agreeing, compiled=compiled), {"compiled: grad[0]": Status.WRONG}),
        (replace(agreeing, compiled=replace(compiled, verdicts=compiled.verdicts[:1])), {}),
        (replace(agreeing, here=here), {f"here: {here.table[0].where}": Status.WRONG}),
        (replace(agreeing, here=agreeing), {}),
    )
    for answer, lines in cases:
        assert lines_of(answer) == lines


def test_a_generation_has_a_line_for_each_step_and_for_the_cache() -> None:
    steps = tuple(GeneratedToken(k, v, (1,), (1,)) for k, v in ((1, GOOD), (2, BAD)))
    logits = tuple((f"out['logits'][{k}]", s.verdict) for k, s in enumerate(steps))
    cache = "out['cache']['cache[0][0]']"
    whole = Generation("net on sim", steps, Comparison("net on sim", (*logits, (cache, GOOD))))
    assert lines_of(whole) == {"step 1": Status.AGREE, "step 2": Status.WRONG, "cache[0][0]": Status.AGREE}
    late = Generation("net on sim", steps[:1], Comparison("net on sim", (logits[0], (cache, BAD))))
    assert lines_of(late) == {"step 1": Status.AGREE, "cache[0][0]": Status.WRONG}
    assert late.first is None  # no step differs
    broken = Generation("net on sim", (), Comparison("net on sim", (("", RAISED),)))
    assert lines_of(broken) == {"the call": Status.ERROR}


def test_a_training_has_a_line_for_each_step_and_for_the_one_that_raised() -> None:
    curve = tuple(Point(k, 1.0, 1.0, 0.0, 0.1, ratio) for k, ratio in ((1, 0.5), (2, 9.0)))
    whole = Training("net on sim", 2, curve=curve[:1])
    assert whole.table == (Line("step 1", Status.AGREE, 0.5),)
    assert lines_of(whole) == {"step 1": Status.AGREE}
    departures = Departure(2, "loss", "", 9.0, "a"), Departure(2, "gradient", "w", 3.0, "b")
    found = replace(whole, curve=curve, departures=departures)
    assert found.table[1] == Line("step 2", Status.WRONG, 9.0, "loss: a; gradient of w: b")
    assert lines_of(found) == {"step 1": Status.AGREE, "step 2": Status.WRONG}
    raised = replace(whole, broken="raises at step 2 of 2 (RuntimeError: no)")
    assert lines_of(raised) == {"step 1": Status.AGREE, "step 2": Status.ERROR}
