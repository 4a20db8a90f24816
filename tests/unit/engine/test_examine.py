"""One item, examined: counts, findings by kind, shrinking, and what is left out."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parity import tolerance
from parity.checks.check import Result
from parity.core import notation
from parity.core.errors import CaseError, DeviceError
from parity.core.results import Aspect, Measure, Status, Verdict
from parity.devices import Call, Fault, resolve
from parity.engine import cases as cases_of_items
from parity.engine import checking, suite
from parity.engine import examine as examining
from parity.engine.alone import Checked
from parity.engine.cases import CaseChecked, CaseDrawn, CaseLeftOut, drawn
from parity.engine.examine import Event, Examination, Examined, FirstFound, examine
from parity.engine.findings import Finding
from parity.engine.journal import Journal, NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.rounds import TimeLimit
from parity.findings.recognition import outline


def plan(*faults: Fault, device: str = "sim", **more: Any) -> RunPlan:
    options = RunOptions(**{"examples": 12, **more})
    return RunPlan(resolve(device, faults), resolve("cpu"), tolerance.load(device), suite.profile("quick"), options)


def item(name: str, dtype: str = "float32", derived: bool = False) -> suite.Item:
    """derived: with derivatives, which take most of the time."""
    row = suite.row(name)
    return suite.Item(row if derived else replace(row, grad=()), dtype)


def statuses(done: Examined) -> set[str]:
    return {s for counts in done.summary.counts.values() for s in counts}


def test_a_healthy_item_has_records_of_its_pinned_cases_and_no_finding() -> None:
    """Pinned cases are recorded with measures; explored ones are counted."""
    done = examine(item("exp", derived=True), plan(), NoJournal())
    assert not done.findings
    assert statuses(done) == {Status.AGREE}
    assert {r.aspect for r in done.records} == {"forward", "backward", "out=", "in-place"}
    assert all(r.pinned and r.digest and r.measures for r in done.records)
    assert done.summary.cases == 14


def test_an_op_that_torch_lacks_says_nothing_and_why() -> None:
    """It is no failure of parity, and no agreement."""
    gone = suite.Item(replace(suite.row("exp"), call="torch.no_such_function"), "float32")
    done = examine(gone, plan(), NoJournal())
    assert (done.summary.counts, done.records, done.findings) == ({}, (), ())
    assert done.summary.void == {"this torch does not have torch.no_such_function, which a row of the catalog calls": 14}


def test_each_kind_of_difference_is_one_finding_with_its_least_case() -> None:
    """Many cases, one finding per aspect, each shrunk to one element."""
    fault = Fault("off", ("exp",), lambda c: c.run() * 1.01)
    done = examine(item("exp"), plan(fault), NoJournal())
    forward = [f for f in done.findings if f.result.aspect == "forward"]
    assert len(forward) == 1
    assert forward[0].count > 5
    assert notation.case_text(forward[0].case) == "exp(float32[()].between(-10, 10))"


def test_cases_that_killed_a_process_are_left_out() -> None:
    """By their ordinal."""
    seen: list[int] = []

    class Watch(NoJournal):
        def begin(self, ordinal: int, item: str, case: str, allowed: float) -> None:
            seen.append(ordinal)

    examine(item("exp"), plan(), Watch(), frozenset({0, 3}))
    assert 0 not in seen
    assert 3 not in seen
    assert 1 in seen


@pytest.mark.parametrize("needs", ["size", "words"])
def test_cases_like_one_that_hung_are_left_out_and_told(needs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are as large, or have its layout or whatever else it has and are as large; all others are run."""
    monkeypatch.setattr(cases_of_items, "PLAIN_NUMEL", 4)
    one, healthy = item("exp"), plan(examples=60)
    drawn_cases = list(drawn(one, healthy))
    outlines = [outline(d.case) for _, _, d in drawn_cases]
    able = [o for o in outlines if (o.words if needs == "words" else not o.words and o.numel > cases_of_items.PLAIN_NUMEL)]
    most = max(able, key=lambda o: sum(map(o.stands_for, outlines)))
    at = outlines.index(most)
    texts = [notation.case_text(d.case) for _, _, d in drawn_cases]
    left = {t for t, o in zip(texts, outlines) if most.stands_for(o)} - {texts[at]}
    assert left
    row = examine(one, healthy, NoJournal(), frozenset({drawn_cases[at][0]}), hung=[drawn_cases[at][2].case]).summary
    assert set(row.alike) == left
    assert set(row.not_run) == {*left, texts[at]}
    assert row.cases == len(texts) - len(row.not_run)


def test_two_that_hung_leave_out_what_has_all_that_both_have() -> None:
    """One plain small call that hung says nothing, two of them say that all others hang."""
    one, healthy = item("exp"), plan(examples=20)
    cases = [d.case for _, _, d in drawn(one, healthy)]
    plain = [c for c in cases if not outline(c).words and c.numel <= cases_of_items.PLAIN_NUMEL][:1] * 2
    assert not examine(one, healthy, NoJournal(), hung=plain[:1]).summary.not_run
    row = examine(one, healthy, NoJournal(), hung=plain).summary
    assert set(row.alike) == {notation.case_text(c) for c in cases if c.numel >= plain[0].numel}
    assert row.cases + len(row.not_run) == len(cases)


def test_an_op_that_is_always_refused_is_given_up_early() -> None:
    """Twelve refusals are enough."""
    done = examine(
        item("erfinv"), RunPlan(resolve("sim:mps"), resolve("cpu"), tolerance.load("mps"), suite.profile("quick")), NoJournal()
    )
    refused = examine(item("heaviside"), plan(device="sim:mps"), NoJournal())
    assert statuses(done) == {Status.AGREE}
    assert statuses(refused) == {Status.UNSUPPORTED}
    assert refused.summary.cases == 12
    assert refused.records[0].reason.startswith("NotImplementedError")


def test_an_unstable_device_is_told_as_unstable() -> None:
    """Every second call is wrong."""
    calls = [0]

    def flicker(call: Any) -> Any:
        calls[0] += 1
        return call.run() * (1.5 if calls[0] % 2 else 1.0)

    done = examine(item("exp"), plan(Fault("flicker", ("exp",), flicker), skip=("shrink",)), NoJournal())
    assert Status.UNSTABLE in statuses(done)


def test_a_device_that_computes_nothing_any_more_ends_the_item() -> None:
    """Without a worker to sacrifice, it is one clear error."""
    broken = [False]

    def poison(call: Any) -> Any:
        broken[0] = True
        raise RuntimeError("device-side assert")

    def dead(call: Any) -> Any:
        if broken[0]:
            raise RuntimeError("device-side assert")
        return call.run()

    faults = Fault("poison", ("sin",), poison), Fault("dead", ("add",), dead)
    with pytest.raises(DeviceError, match="computes nothing any more"):
        examine(item("sin"), plan(*faults), NoJournal())


def test_no_thread_of_the_engine_is_left_switched() -> None:
    """The suite switches autograd to the calling thread for the whole process; a check leaves grad mode as it was."""
    before = torch.is_grad_enabled()
    examine(item("neg"), plan(), NoJournal())
    assert torch.is_grad_enabled() is before


def test_a_device_that_a_refused_call_stopped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that the CPU refuses too may stop a device for good: what follows would all be void, and nothing tested."""
    used = plan(examples=200)
    monkeypatch.setattr(type(used.device), "answers", lambda self: False)
    with pytest.raises(DeviceError, match=r"computes nothing any more after: a call that is to be refused"):
        examine(item("index_select"), used, NoJournal())


def test_a_call_that_was_to_be_refused_is_named_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by what the check says of a plan that the CPU did not keep."""
    void = SimpleNamespace(verdict=Verdict(Status.VOID, "drawn to be refused, but the reference computes it"))
    monkeypatch.setattr(checking, "check_case", lambda *a: SimpleNamespace(results=(void,), void=""))
    reasons: list[str] = []
    monkeypatch.setattr(checking, "end_unless_alive", lambda plan, journal, why: reasons.append(why))
    drawn: Any = SimpleNamespace(
        ordinal=0, pinned=False, one=SimpleNamespace(case=notation.parse("sin(float32[1]).refused('dtype')"))
    )
    run: Any = SimpleNamespace(item=None, plan=None, notes=[], journal=NoJournal())
    checking.checked_here(run, drawn)
    assert reasons == ["a call that is to be refused (dtype)"]


def test_a_device_that_stopped_without_a_word_is_told_at_the_end_of_its_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next items would find nothing that computes, call that void, and the run would be green."""
    used = plan(examples=0)
    monkeypatch.setattr(type(used.device), "answers", lambda self: False)
    with pytest.raises(DeviceError, match="computes nothing any more after: the last case"):
        examine(item("neg"), used, NoJournal())


def test_samples_that_a_stopped_device_cannot_make_are_no_void(monkeypatch: pytest.MonkeyPatch) -> None:
    used = plan()

    def none(*_: object) -> Any:
        raise CaseError("cannot make its samples: misaligned address")
        yield

    monkeypatch.setattr(examining, "drawn", none)
    assert examine(item("neg"), used, NoJournal()).summary.void, "a device that computes has no such samples, and says why"
    monkeypatch.setattr(type(used.device), "answers", lambda self: False)
    with pytest.raises(DeviceError, match="misaligned address"):
        examine(item("neg"), used, NoJournal())


def test_a_case_of_the_shrinker_that_stops_the_device_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [False]

    def poison(call: Call) -> Any:
        return call.run() + 1.0

    def unable(*_: object) -> Any:
        broken[0] = True
        return ()

    class Ending(NoJournal):
        def lost(self, why: str) -> None:
            raise SystemExit(why)

    used = plan(Fault("off", ("sin",), poison))
    monkeypatch.setattr(checking, "recheck", unable)
    monkeypatch.setattr(type(used.device), "answers", lambda self: not broken[0])
    with pytest.raises(SystemExit, match="could not be built"):
        examine(item("sin"), used, Ending())


def test_results_of_a_dtype_that_is_not_judged_are_compared() -> None:
    """complex of float16 gives complex32, for which no cotangents are made from a table."""
    done = examine(item("opinfo:complex", "float16", derived=True), plan(), NoJournal())
    assert done.summary.counts["forward"][Status.AGREE] >= 10


def test_what_the_cpus_own_kernels_do_once_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy simulated device computes with them; one with planted faults is accused at once."""
    first, calls = examine(item("exp"), plan(Fault("off", ("exp",), lambda call: call.run() + 1.0)), NoJournal()), [0]
    assert first.findings
    real = vars(checking)["check"]

    def once(*args: Any) -> Any:
        results, digest = real(*args)
        calls[0] += 1
        if calls[0] != 1:
            return results, digest
        bad = replace(results[0], verdict=replace(results[0].verdict, status=Status.WRONG))
        return (bad, *results[1:]), digest

    monkeypatch.setattr(checking, "check", once)
    assert not examine(item("exp"), plan(), NoJournal()).findings


def test_a_first_finding_is_none_that_the_run_may_call_marginal() -> None:
    sent: list[str] = []
    first = FirstFound(item("exp"), lambda r: sent.append(r.status))
    one = CaseDrawn(0, True, next(drawn(item("exp"), plan()))[2], "exp(float32[40])")
    of_many = Measure("out", total=40)
    near, far = (Result(Aspect.FORWARD, Verdict(Status.DRIFT, "", of_many, near=near)) for near in (True, False))
    for result, said in ((near, []), (far, ["drift"]), (far, ["drift"])):
        first.hear(CaseChecked(one, Checked((result,))))
        assert sent == said


def test_a_finding_knows_the_cases_before_its_first_one(tmp_path: Path) -> None:
    """Of the item before, too."""
    notes = Journal(tmp_path / "journal")
    notes.begin(0, "cos-float32", "cos(float32[3])", 1.0)
    done = examine(item("exp"), plan(Fault("off", ("exp",), lambda call: call.run() + 1.0), skip=("shrink",)), notes)
    notes.close()
    cases = [notation.case_text(one.case) for _, _, one in drawn(item("exp"), plan())]
    assert done.findings
    for f in done.findings:
        assert f.before == ("cos(float32[3])", *cases[: cases.index(notation.case_text(f.first))])


def test_the_events_of_an_item_come_in_order() -> None:
    """Its cases first, each as it is drawn and as it ended, and then what was found; a case that is left out is never drawn."""
    used = plan(Fault("off", ("exp",), lambda call: call.run() * 1.01), examples=3, skip=("shrink",))
    it = Examination(item("exp"), used, NoJournal(), frozenset({1}), None, None)
    told: list[Event] = []
    with used.device.active():
        for event in it.events(frozenset({1, 2})):
            told.append(event)
            it.tally.hear(event)
            if isinstance(event, CaseDrawn):
                assert it.tally.texts[-1] == event.text, "a listener has heard of a case before it is checked"
    assert [type(e) for e in told[:6]] == [CaseDrawn, CaseChecked, CaseLeftOut, CaseLeftOut, CaseDrawn, CaseChecked]
    assert [e.tried for e in told if isinstance(e, CaseLeftOut)] == [True, False]
    first = next(k for k, e in enumerate(told) if isinstance(e, Finding))
    assert {type(e) for e in told[:first]} == {CaseDrawn, CaseChecked, CaseLeftOut}
    assert {type(e) for e in told[first:]} == {Finding}
    assert len(told[first:]) == len(it.tally.failing)


def test_a_case_that_ends_another_process_is_an_event() -> None:
    """It counts as not run, and the cases after it are checked."""

    class Isolated:
        deaths: tuple[()] = ()

        def checked(self, ordinal: int, text: str, allowed: float, skip: frozenset[int]) -> Checked | None:
            return None if ordinal == 1 else Checked(void="nothing to check")

        def close(self) -> None:
            """Nothing is open."""

    isolated: Any = Isolated()
    row = examine(item("exp"), plan(examples=1), NoJournal(), alone=isolated).summary
    texts = [notation.case_text(one.case) for _, _, one in drawn(item("exp"), plan(examples=1))]
    assert row.not_run == (texts[1],)
    assert row.void == {"nothing to check": len(texts) - 1}


def test_the_seconds_that_go_into_causes_are_counted() -> None:
    limit = TimeLimit(time.monotonic() + 600.0, causes=1.0)
    faulty = plan(Fault("larger", ("exp",), lambda c: c.run() * 1.01), examples=1)
    examine(item("exp"), replace(faulty, limit=limit), NoJournal())
    assert 1.0 < limit.causes < 600.0
