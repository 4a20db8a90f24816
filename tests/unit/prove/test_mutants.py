"""Generic mutants: the same in each process, silent where their condition does not hold, and wrong where it does."""

from __future__ import annotations

import contextlib

import pytest
import torch

from parity.devices import resolve
from parity.engine.child import End
from parity.prove import board
from parity.prove.mutants import scoring
from parity.prove.mutants.mutant import Mutant, Witnessed, fault
from parity.prove.mutants.recording import classes, frequencies, mutants_of, record, sample
from parity.prove.mutants.scoring import Scores, _plan


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, object]]:
    plan = _plan("quick")
    return {name: record(name, plan) for name in ("mm", "relu")}


def of(recorded: dict[str, dict[str, object]], word: str) -> Mutant:
    return next(m for m in mutants_of("mm", recorded["mm"], frequencies(recorded), "7") if f"{m.kind}:{m.word}" == word)


def test_a_sample_is_the_same_again_and_another_with_another_seed(recorded: dict[str, dict[str, object]]) -> None:
    one, again, other = ([m.id for m in sample(recorded, ["mm", "relu"], 40, seed)] for seed in "112")
    assert one == again != other
    assert len(set(one)) == 40
    assert {m.kind for m in sample(recorded, ["mm", "relu"], 0, "1")} <= set(classes())


@pytest.mark.parametrize(
    ("name", "target"), [("getitem", "torch.Tensor.__getitem__"), ("mH", "torch.Tensor.mH"), ("int_mm", "_int_mm")]
)
def test_operators_attributes_and_rows_of_one_narrow_dtype_have_mutants(name: str, target: str) -> None:
    facts = record(name, _plan("quick"))
    assert {m.op for m in mutants_of(name, facts, frequencies({name: facts}), "7")} == {target}


def test_a_row_whose_process_dies_before_it_says_anything_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process(list[dict[str, object]]):
        at = None

        def ending(self) -> End:
            return End("SIGKILL", False, -9)

    def begun(job: str, given: dict[str, list[str]], *_: object, **__: object) -> contextlib.nullcontext[Process]:
        return contextlib.nullcontext(Process({"name": n, "facts": {}} for n in given["names"] if given["names"][0] != "mm"))

    monkeypatch.setattr(scoring, "Child", begun)
    events = scoring._done("recording", ["mm", "relu"], "names", {}, {})
    assert [e["name"] for e in events] == ["mm", "relu"]
    assert "facts" not in events[0]


@pytest.mark.parametrize(
    "word, shows, silent",
    [
        ("alias:any", lambda d: torch.mm(d, d), lambda d: torch.mm(d, d.clone())),
        ("mode:off", lambda d: torch.mm(d, d), lambda d: torch.mm(d.requires_grad_(), d)),
        ("lazy:neg_0", lambda d: torch.mm(torch._neg_view(d), d), lambda d: torch.mm(-d, d)),  # torch resolves it before
        ("nonfinite:nan_0", lambda d: torch.mm(d * float("nan"), d), lambda d: torch.mm(d, d)),
    ],
)
def test_a_mutant_is_wrong_where_its_condition_holds(recorded, word, shows, silent) -> None:  # type: ignore[no-untyped-def]
    for call, wrong in ((shows, True), (silent, False)):
        seen = Witnessed()
        device = resolve("sim", (fault(of(recorded, word), seen),))
        with device.active(), torch.set_grad_enabled(word != "mode:off" or not wrong):
            x = device.upload(torch.arange(1.0, 5.0).view(2, 2))
            call(x)
        assert (seen.changed > 0) is wrong


def test_a_stale_argument_does_not_look_into_lists_of_tensors() -> None:
    """To print them in a kernel runs kernels, and a list of other values is no other form of the call."""
    facts = {"cat": record("cat", _plan("quick"))}
    stale = next(m for m in mutants_of("cat", facts["cat"], frequencies(facts), "7") if f"{m.kind}:{m.word}" == "cache:dim")
    seen = Witnessed()
    device = resolve("sim", (fault(stale, seen),))
    with device.active():
        x = device.upload(torch.arange(1.0, 5.0).view(2, 2))
        torch.cat((x, x), 0)
        torch.cat((x + 1.0, x), 1)
    assert seen.fired == 1


def test_the_board_says_why_survivors_survived() -> None:
    about = {
        "row": "mm",
        "op": "mm",
        "direction": "forward",
        "family": "contractions",
        "policy": False,
        "cases": 3,
        "seen": None,
    }
    known = [
        about | {"id": "a", "kind": "alias", "word": "any", "killed": True, "fired": 1, "changed": 1},
        about | {"id": "b", "kind": "rank", "word": "2", "killed": False, "witness": "mm()", "fired": 0, "changed": 0},
        about | {"id": "c", "kind": "rank", "word": "3", "killed": False, "witness": "", "fired": 0, "changed": 0},
    ]
    text = board.render_mutants(Scores("quick", "0", tuple(known)))
    assert "2 count, 1 have no witness" in text
    assert "killed by their own row                      1 of 2 = 50.0 %" in text
    assert "never drawn: 0 of 3 cases" in text


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("forward agree share 0.056; backward agree share 0", "drawn, inside the budget"),
        ("forward agree share 0.001; backward agree share 0.002", "drawn, masked"),
        ("forward agree share 0.3 unjudged 2", "drawn, excused"),
    ],
)
def test_why_a_mutant_survived_that_a_case_met_in_several_aspects(said: str, why: str) -> None:
    """The largest part of a budget counts, of whichever aspect it is."""
    survivor = {"fired": 1, "changed": 1, "policy": "", "seen": [1.0, "", said]}
    assert board.reason(survivor) == why
