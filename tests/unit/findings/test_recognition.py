"""Known findings on a simulated device: what a run finds and a person accepts is known, what is worse or other is not."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parity import tolerance
from parity.core import notation
from parity.core.results import UNSEARCHED, Cause, Fingerprint, Measure, Record
from parity.devices import Call, Fault, resolve
from parity.engine import findings, suite
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.findings import known_entries, known_file
from parity.findings.extents import Measured
from parity.findings.known import Entry, Environment, Known
from parity.findings.recognition import Recognition, known_death, outline, uncovered
from parity.findings.verdict import FIXED, KNOWN, NOT_SEEN, standings
from parity.generation import shrink
from parity.store.code import Code
from parity.store.rows import AGREES, EXPIRED, GROWN, NOTHING, SEEN, Death, Header, Run

PRINT = Fingerprint("0", "2.13.0", "", "3.11", "Linux 6.8", "x86_64", "sim", "simulated", simulated=True)
TODAY = date.today()


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small case is recognized as well as the least one; nobody asks here for a way around a finding."""
    monkeypatch.setattr(shrink, "WALK_TRIES", 100)
    monkeypatch.setattr(shrink, "PICK_TRIES", 20)
    monkeypatch.setattr(findings, "_ways", lambda *_: ())


def run(
    faults: Iterable[Fault], ops: Iterable[str], entries: Iterable[Entry] = (), derived: bool = False, **more: Any
) -> list[Examined]:
    """Some ops examined on a device with these faults. derived: with their derivatives, which take four fifths of the time."""
    dtypes = more.pop("dtypes", ("float32",))
    held = Known(Code("known.toml"), Environment(), tuple(entries))
    profile = replace(suite.profile("quick"), source=more.pop("source", "native"))
    options = RunOptions(**{"examples": 10, "power": 0, **more})
    plan = RunPlan(resolve("sim", tuple(faults)), resolve("cpu"), tolerance.load("sim"), profile, options)
    plan = replace(plan, known=held)
    items = suite.select(tuple(ops), dtypes=dtypes)
    return [examine(i if derived else replace(i, row=replace(i.row, grad=())), plan, NoJournal()) for i in items]


def accepted(done: Iterable[Examined], until: date | None = None) -> tuple[Entry, ...]:
    """The entries that `parity known add` would write, through the file and back."""
    some = Run(Header(PRINT), tuple(r for d in done for r in d.records), tuple(d.summary for d in done))
    made = [e for c in known_entries.causes_of(some) for e in known_entries.of_cause(c, some, "planted", "", until)]
    text = known_file.updated("", [(e, "it is wrong") for e in made], Environment.of(PRINT))
    return known_file.parse(Path("known.toml"), text).entries


def states(done: Iterable[Examined]) -> set[tuple[str, bool]]:
    return {(s.state, s.fails) for d in done for s in d.known}


def new(done: Iterable[Examined]) -> list[Any]:
    return [f for d in done for f in d.findings if f.known is None]


def wrong(factor: float = 1.01, op: str = "exp", when: Any = None) -> Fault:
    return Fault(op, (op,), lambda c: c.run() * factor, when or (lambda c: True))


@functools.cache
def of_exp() -> list[Examined]:
    """A run that finds exp 1 % too large, from which many tests begin: shrinking takes seconds."""
    return run([wrong()], ["exp"])


def test_what_was_found_is_known_and_is_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same seed; nothing of it fails, and neither the shrinker nor the search for causes runs."""
    first = [d for op, n in (("exp", 10), ("log_softmax", 24)) for d in run([wrong()], [op], derived=True, examples=n)]
    entries = accepted(first)
    assert [e.cause for e in entries] == [Cause("aten::exp", "values")]
    assert set(entries[0].ops) == {"exp", "log_softmax"}
    monkeypatch.setattr(findings, "shrink", None)
    monkeypatch.setattr(findings, "_cause", None)
    again = [d for op, n in (("exp", 10), ("log_softmax", 24)) for d in run([wrong()], [op], entries, True, examples=n)]
    assert states(again) == {(SEEN, False)}
    assert not any(d.findings for d in again)
    held = [r for d in again for r in d.records if r.status in ("drift", "wrong")]
    assert held
    assert {r.known for r in held} == {entries[0].id}
    assert [d.summary.counts for d in again] == [d.summary.counts for d in first]


@pytest.mark.slow
def test_another_seed_shows_the_same_finding() -> None:
    entries = accepted(of_exp())
    for seed in ("1", "2"):
        done = run([wrong()], ["exp"], entries, seed=seed)
        assert not new(done)
        assert not any(fails for _, fails in states(done))


@pytest.mark.slow
def test_a_finding_in_plain_calls_does_not_hide_behind_one_of_strided_ones() -> None:
    """It does not have what the known one needs."""
    strided = wrong(when=lambda c: not c.operands[0].is_contiguous())
    entries = accepted(run([strided], ["exp"]))
    assert entries[0].cause == Cause("aten::exp", "values", ("non-contiguous operand",))
    assert not new(run([strided], ["exp"], entries))
    assert new(run([wrong()], ["exp"], entries))


def test_an_error_of_plain_calls_does_not_hide_behind_its_words_in_strided_ones() -> None:
    """They name one check, and the device refuses much more now."""

    def fails(call: Call) -> Any:
        raise RuntimeError("no such kernel here")

    entries = accepted(run([Fault("exp", ("exp",), fails, lambda c: not c.operands[0].is_contiguous())], ["exp"]))
    assert entries[0].cause == Cause(
        "aten::exp", "raises: RuntimeError in run: no such kernel here", ("non-contiguous operand",)
    )
    done = run([Fault("exp", ("exp",), fails)], ["exp"], entries)
    assert (GROWN, True) in states(done)
    assert any("in a plainer call" in s.why and "(in a pinned case)" in s.why for d in done for s in d.known)
    again = [*entries, *accepted(done)]
    assert states(run([Fault("exp", ("exp",), fails)], ["exp"], [known_entries.merged(*again)])) == {(SEEN, False)}


@pytest.mark.slow
def test_another_tensor_or_symptom_is_another_finding() -> None:
    """Wrong values are known, an error is not; and neither is another operator."""
    entries = accepted(of_exp())

    def fails(call: Call) -> Any:
        raise RuntimeError("no room for the result")

    done = run([Fault("exp", ("exp",), fails)], ["exp"], entries)
    assert (GROWN, True) in states(done)  # of the case that is replayed: now an error
    assert [f for d in done for f in d.findings if f.known is None or f.known.fails]
    assert new(run([wrong(), wrong(op="cos")], ["exp", "cos"], entries))


def test_a_known_case_that_is_worse_by_a_class_fails() -> None:
    """Drift that became wrong."""
    entries = accepted(run([wrong(1 + 3e-6)], ["exp"]))
    assert entries[0].status == "drift"
    done = run([wrong(1.5)], ["exp"], entries)
    (why,) = {s.why.partition(":")[0] for d in done for s in d.known if s.state == GROWN and s.fails and ":" in s.why}
    assert why == "now wrong, was drift"
    assert not new(done)


@pytest.mark.slow
def test_growth_in_a_pinned_case_fails_and_by_exploration_only_a_strict_run() -> None:
    """A further dtype, and a further op."""
    entries = accepted(of_exp())
    pinned = run([wrong()], ["exp"], entries, dtypes=("float16",))
    assert (GROWN, True) in states(pinned)
    assert any("now in float16 (in a pinned case)" in s.why for d in pinned for s in d.known)
    rare = wrong(when=lambda c: c.operands[0].dtype.itemsize == 4 or not c.operands[0].is_contiguous())
    explored = run([rare], ["exp"], entries, dtypes=("float16",), examples=30)
    assert states(explored) == {(GROWN, False)}
    assert not new(explored)
    assert (GROWN, True) in states(run([rare], ["exp"], entries, dtypes=("float16",), examples=30, fail_on=("known",)))


NAN_LOST = Fault("exp-nan", ("exp",), lambda c: c.run().nan_to_num(0.0), lambda c: c.operands[0].numel() > 8)
PLAIN = Fault("exp-3-percent", ("exp",), lambda c: c.run() * 1.03)


@pytest.mark.slow
def test_lost_nan_hides_no_error_of_3_percent_everywhere() -> None:
    """Though no property says what the finding needs: some of its cases hold numbers of a family that gives Inf."""
    entries = accepted(run([NAN_LOST], ["exp"], dtypes=("float32", "float16"), examples=30))
    assert not new(run([NAN_LOST], ["exp"], entries, examples=30))
    done = run([PLAIN], ["exp"], entries)
    assert new(done) or (GROWN, True) in states(done)
    assert not any(s.state == SEEN for d in done for s in d.known)


@pytest.mark.slow
def test_an_error_that_is_larger_or_shows_at_other_values_fails() -> None:
    """Also by exploration; and one that is smaller, or needs more, is the same."""

    def negative(factor: float) -> Fault:
        return Fault("exp", ("exp",), lambda c: c.run() * torch.where(c.operands[0] < 0, factor, 1.0))

    entries = accepted(run([negative(1.03)], ["exp"]))
    for same in (negative(1.06), negative(1.01), wrong(1.03, when=lambda c: bool((c.operands[0] < 0).all()))):
        done = run([same], ["exp"], entries, seed="1")
        assert not new(done)
        assert not any(fails for _, fails in states(done))
    why = [s.why for f in (negative(3.0), wrong(1.03)) for d in run([f], ["exp"], entries) for s in d.known if s.fails]
    assert any("times the budget at values" in w and "was" in w for w in why)
    assert any("at values above 1" in w or "at values 0 to 1" in w for w in why)


@pytest.mark.slow
def test_an_error_of_smaller_or_other_calls_fails() -> None:
    """What no property of a cause says: sizes, and flags among the arguments."""
    large = wrong(1.03, when=lambda c: c.operands[0].numel() > 64)
    entries = accepted(run([large], ["exp"], examples=20))
    assert not new(run([large], ["exp"], entries, examples=20))
    assert (GROWN, True) in states(run([PLAIN], ["exp"], entries))


@pytest.mark.parametrize(
    ("case", "properties", "fails"),
    [
        ("exp(float32[2].step(0, 2, 0))", ("non-contiguous operand",), True),
        ('exp(float32[1].at(0, "nan"))', ("NaN or Inf",), True),
        ("exp(float32[2])", (), False),
        ("exp(float32[65].step(0, 2, 0))", ("non-contiguous operand",), False),
    ],
)
def test_of_two_findings_that_each_need_what_the_other_does_not_neither_hides_one(
    case: str, properties: tuple[str, ...], fails: bool
) -> None:
    """The known one shows in calls with 65 elements. In fewer, but otherwise alike, it may be the same."""
    known_one = Entry(
        "exp-1", "planted", ("exp",), "wrong", Cause("aten::exp", "values"), dtypes=("float32",), aspects=("forward",),
        cases=("forward: exp(float32[65])",), extent=(Measured("float32", "exp", "out", (("0 to 1", 9e4),)),),
    )  # fmt: skip
    found = Record(case, "exp", "float32", "forward", "wrong", shrunk=case, cause=Cause("aten::exp", "values", properties))
    measure = Measure("out", 9e4, problem="value")
    found = replace(found, measures=(measure,), extent=(("0 to 1", 9e4),))
    seen = Recognition("exp", "float32", [known_one], TODAY).matching(found, pinned=False)
    assert seen is not None
    assert seen.fails is fails


@pytest.mark.slow
def test_known_errors_of_many_elements_hide_neither_strided_ones_nor_a_lost_nan() -> None:
    """With the least cases that a run finds."""
    many, strided = (
        wrong(1.03, when=lambda c: c.operands[0].numel() > 64),
        wrong(when=lambda c: not c.operands[0].is_contiguous()),
    )
    nan_lost = Fault("nan", ("exp",), lambda c: c.run().nan_to_num(0.0))
    entries = accepted(run([many], ["exp"], examples=20))
    for also in (strided, nan_lost):
        assert any(fails for _, fails in states(run([many, also], ["exp"], entries, examples=40)))


@pytest.mark.slow
def test_an_error_of_the_gradient_is_not_hidden_by_one_of_the_forward() -> None:
    """Which is larger in budgets; the known one itself is known with another seed."""
    gradient = Fault("gradient", ("exp",), lambda c: c.run_with_gradient(lambda g: g * 1.5), level="function")
    entries = accepted(run([wrong(1.02)], ["exp"], derived=True, examples=20))
    twin = run([wrong(1.02)], ["exp"], entries, derived=True, examples=20, seed="1")
    assert not new(twin)
    assert not any(fails for _, fails in states(twin))
    assert (GROWN, True) in states(run([wrong(1.02), gradient], ["exp"], entries, derived=True, examples=20))


@pytest.mark.slow
def test_a_joined_entry_accepts_the_operators_that_it_names() -> None:
    def strided(op: str) -> Fault:
        return wrong(1.03, op, when=lambda c: not c.operands[0].is_contiguous())

    ops = ("exp", "sin", "tanh")
    faults = [strided(op) for op in ops]
    (entry,) = entries = accepted(run(faults, ops))
    assert entry.cause is not None
    assert entry.cause.subject == "several operators"
    twin = run(faults, ops, entries, seed="1")
    assert not new(twin)
    assert not any(fails for _, fails in states(twin))
    assert new(run([*faults, strided("cos")], ["cos"], entries))


@pytest.mark.slow
def test_what_comes_and_goes_hides_nothing_that_comes_each_time() -> None:
    draw = random.Random(3)
    flaky = wrong(1.03, when=lambda c: draw.random() < 0.5)
    entries = accepted(run([flaky], ["exp"], derived=True))
    assert not any(fails for _, fails in states(run([flaky], ["exp"], entries, derived=True)))
    assert new(run([PLAIN], ["exp"], entries))


@pytest.mark.slow
def test_what_was_not_investigated_is_marked_and_matches_its_own_kind_of_case_alone() -> None:
    strided = wrong(when=lambda c: not c.operands[0].is_contiguous())
    entries = accepted(run([strided], ["exp"], skip=("shrink",)))
    assert entries
    assert all("-unsearched-" in e.id and e.cause is not None and e.cause.properties == (UNSEARCHED,) for e in entries)
    assert not new(run([strided], ["exp"], entries, skip=("shrink",)))
    assert new(run([wrong()], ["exp"], entries)), "its cause is not that of plain calls"
    assert new(run([strided], ["exp"], accepted(of_exp()), skip=("shrink",), dtypes=("float16",))), "nor any other's"


@pytest.mark.parametrize("limit", ["CAUSE_SECONDS", "FINDING_SECONDS"])
def test_the_time_for_causes_ends_only_where_nothing_is_known(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an item, and of a single finding, and with a profile of which no file of known findings is made: what nobody
    looked into is no known finding."""
    monkeypatch.setattr(findings, limit, 0.0)
    few: dict[str, Any] = {"examples": 1}
    other = Entry("other", "of another kernel", ("exp",), "wrong", Cause("aten::cos", "values"))
    for entries, source, searched in (((), "native", False), ((other,), "native", True), ((), "all", True)):
        found = new(run([wrong()], ["exp"], entries, source=source, **few))
        assert found
        assert {UNSEARCHED in f.cause.properties for f in found} == {not searched}


@pytest.mark.slow
def test_an_entry_of_an_older_file_matches_its_own_cases_alone() -> None:
    entries = [replace(e, extent=None) for e in accepted(of_exp())]
    assert all(e.older for e in entries)
    done = run([wrong()], ["exp"], entries)
    assert (SEEN, False) in states(done), "of the case that is replayed"
    assert new(done)
    (warning,) = Known(Code("known.toml"), Environment(), tuple(entries)).warnings(PRINT)
    assert "1 of the entries of known.toml do not say at which values they show" in warning
    assert "parity known add RUN" in warning


def test_what_agrees_now_is_fixed_and_what_was_not_run_is_not_seen() -> None:
    faults = [wrong(), wrong(op="cos")]
    entries = accepted(run(faults, ["exp", "cos"]))
    done = run([wrong(op="cos")], ["exp"], entries)
    by_op = {s.entry.ops[0]: s.state for s in standings(entries, [s for d in done for s in d.known])}
    assert by_op == {"exp": FIXED, "cos": NOT_SEEN}
    assert states(done) == {(AGREES, False)}
    done = run(faults, ["exp", "cos"], entries)
    assert {s.state for s in standings(entries, [s for d in done for s in d.known])} == {KNOWN}


@pytest.mark.slow
def test_an_entry_is_fixed_only_if_all_of_its_cases_were_run() -> None:
    entries = accepted(run([wrong()], ["exp", "log_softmax"], derived=True, examples=24))
    (one,) = standings(entries, [s for d in run([], ["exp"], entries) for s in d.known])
    assert one.state == NOT_SEEN
    assert one.why == ("1 of its 2 cases agree, the others were not run",)
    (one,) = standings(entries, [s for d in run([], ["exp", "log_softmax"], entries, True, examples=24) for s in d.known])
    assert one.state == FIXED


def test_an_expired_entry_fails_with_its_reason() -> None:
    entries = accepted(of_exp(), until=TODAY - timedelta(1))
    done = run([wrong()], ["exp"], entries)
    assert states(done) == {(EXPIRED, True)}
    assert {s.why for d in done for s in d.known} == {f"accepted until {TODAY - timedelta(1)}: planted"}
    assert not new(done)
    assert states(run([], ["exp"], entries)) == {(AGREES, False)}


@pytest.mark.slow
def test_a_finding_that_comes_and_goes_is_known_whatever_case_shows_it() -> None:
    """It is written down as such, and a pinned case proves nothing about it."""
    draw = random.Random(3)
    flaky = Fault("flaky", ("exp",), lambda c: c.run() * (1.5 if draw.random() < 0.5 else 1.0))
    entries = accepted(run([flaky], ["exp"]))
    assert {e.id for e in entries if e.by_chance} == {"exp-comes-and-goes"}
    for seed in "0123":
        done = run([flaky], ["exp"], entries, seed=seed)
        assert not new(done)
        assert not any(fails for _, fails in states(done))
    done = run([], ["exp"], entries)
    assert {s.state for s in standings(entries, [s for d in done for s in d.known]) if s.entry.by_chance} == {NOT_SEEN}


def test_refusals_and_fallbacks_are_known_by_hand() -> None:
    """Where --fail-on fails them."""

    def refuses(call: Call) -> Any:
        raise NotImplementedError("The operator 'aten::exp' is not currently implemented for the MPS device")

    fault = Fault("exp", ("exp",), refuses)
    entry = Entry("no-exp", "not yet", ("exp",), "unsupported", dtypes=("float32",))
    (done,) = run([fault], ["exp"], [entry], fail_on=("unsupported",))
    assert done.summary.counts["forward"] == {"unsupported": 12}
    assert done.unknown is not None
    assert done.unknown.counts["forward"] == {}
    assert states([done]) == {(SEEN, False)}
    (done,) = run([fault], ["exp"], [replace(entry, until=TODAY - timedelta(1))], fail_on=("unsupported",))
    assert done.unknown is not None
    assert done.unknown.counts["forward"] == {"unsupported": 12}
    assert states([done]) == {(EXPIRED, True)}
    (done,) = run([fault], ["exp"], [replace(entry, dtypes=("int8",))], fail_on=("unsupported",))
    assert done.unknown == done.summary


def test_a_known_death_is_tried_in_a_process_of_its_own_and_is_gone_only_where_it_agrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cause = Cause("crash: SIGABRT in exp", "dies")
    entry = Entry("dies", "r", ("exp",), "crash", cause, dtypes=("float32",), cases=("exp(float32[2])",))
    for died, code, state in ((True, None, SEEN), (False, 0, AGREES), (False, 1, NOTHING)):
        ended = SimpleNamespace(died=died, code=code)
        monkeypatch.setattr("parity.engine.inquest.attempt", lambda *_, ended=ended, **more: ended)
        assert {s for s, _ in states(run([], ["exp"], [entry], examples=1))} == {state}


def test_a_death_is_known_by_its_case_or_its_words() -> None:
    cause = Cause("crash: SIGABRT in sin", "dies")
    e = Entry("dies", "r", ("sin",), "crash", cause, dtypes=("float32",), cases=("sin(float32[2, 2])",))

    def state(case: str, how: str = "crash", words: str = "SIGABRT", op: str = "sin", pinned: bool = False) -> Any:
        seen = known_death([e], Death(op, "float32", case, "", how, words), pinned, TODAY)
        return (seen.state, seen.fails) if seen else None

    assert state("sin(float32[2, 2])", "hang", "ended by parity after 5 s", pinned=True) == (SEEN, False)
    assert state("sin(float32[9, 9])", pinned=True) == (SEEN, False)
    assert state("sin(float32[9, 9])", words="SIGSEGV", pinned=True) == (SEEN, False), "in any way"
    assert state("sin(float32[1, 1])") == (GROWN, True), "in a smaller case"
    assert state("sin(float32[9])") == (GROWN, True), "in fewer dimensions"
    assert state("sin(float32[1, 1])", words="SIGSEGV") is None
    assert state("cos(float32[9, 9])", op="cos") is None


def test_a_case_stands_for_those_that_have_all_that_it_has() -> None:
    def text(case: str) -> Any:
        return notation.parse(case)

    plain, strided, larger = text("exp(float32[2])"), text("exp(float32[2].step(0, 2, 0))"), text("exp(float32[5])")
    assert outline(plain).stands_for(outline(larger))
    assert outline(plain).stands_for(outline(text("exp(float32[2].expand(0)).into('stepped')".replace("'", '"'))))
    assert not outline(strided).stands_for(outline(larger))
    assert not outline(larger).stands_for(outline(plain))
    assert not outline(text("sum(float32[2], dim=0, keepdim=True)")).stands_for(outline(text("sum(float32[9], dim=0)")))
    assert uncovered([plain], [larger, strided]) == []
    assert uncovered([strided], [larger, plain, strided]) == [plain]
    assert uncovered([], [larger, plain]) == [plain]
