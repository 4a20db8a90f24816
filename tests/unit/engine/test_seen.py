"""What a run does not look into again, because it knows the cause."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity import tolerance
from parity.checks.trial import Result
from parity.core import notation
from parity.core.results import STRIDED_DESTINATION, UNSEARCHED, Aspect, Cause, Record, Status, Verdict
from parity.devices import Call, Fault, resolve
from parity.engine import findings, known_cases, suite
from parity.engine.cases import ItemTally
from parity.engine.checking import ItemRun
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.known_cases import recognition
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.rounds import CLOSELY, Seen, TimeLimit
from parity.findings import cause_search
from parity.generation.generate import Drawn

EXP = Cause("aten::exp", "values")


def found(case: str, op: str = "exp") -> Record:
    return Record(case, op, "float32", "forward", "wrong", shrunk=case)


def test_a_cause_is_known_to_all_processes_from_its_first_plain_case_on(tmp_path: Path) -> None:
    """From the third on where none is plain; not in the item that found it, and never what nobody looked into."""
    one, other = Seen(tmp_path), Seen(tmp_path)
    one.add(replace(EXP, properties=(UNSEARCHED,)), found("exp(float32[2])"))
    for k in range(CLOSELY):
        other.read()
        assert not other.has(EXP)
        one.add(EXP, found(f'exp(float32[{k}].at(0, "nan"))'))
    assert not other.has(EXP)
    other.read()
    assert other.has(EXP)
    plain = Cause("torch.exp", "values", ("half types",))
    one.add(plain, found("exp(float32[2])"))
    other.read()
    assert other.has(plain)
    assert not other.has(Cause("aten::cos", "values"))


def test_what_a_full_disk_left_of_a_line_is_no_cause(tmp_path: Path) -> None:
    """Nor is what no program wrote; the lines around it count."""
    seen = Seen(tmp_path)
    seen.add(EXP, found("exp(float32[2])"))
    with (tmp_path / "causes").open("ab") as f:
        f.write(b"cos-54\n\xff\xfe \x00\n\n")
    assert seen.read()
    assert seen.has(EXP)
    assert not seen.has(Cause("aten::cos", "values"))


def test_writes_beside_strided_destinations_are_one(tmp_path: Path) -> None:
    """Whichever operator they are of."""
    seen = Seen(tmp_path)
    for op in ("sort", "mode", "topk"):
        seen.add(Cause(f"aten::{op}", "memory", (STRIDED_DESTINATION,)), found(f'{op}(float32[2]).into("columns")', op))
    seen.read()
    assert seen.has(Cause("aten::pdist", "memory", (STRIDED_DESTINATION,)))
    assert not seen.has(Cause("aten::pdist", "memory"))


def test_without_a_folder_or_with_a_full_disk_nothing_is_known(tmp_path: Path) -> None:
    """It costs time, not the finding."""
    for seen in (Seen(), Seen(tmp_path / "gone")):
        seen.add(EXP, found("exp(float32[2])"))
        assert not seen.read()
        assert not seen.has(EXP)


def test_what_promises_most_is_looked_into_first_in_an_item_too() -> None:
    """In whatever order it came: the time may not suffice for the rest."""

    def wrong(call: Call) -> Any:
        if call.args[0].dim() == 1:
            raise RuntimeError("no kernel for vectors")
        return call.run() * 1.5

    plan = RunPlan(resolve("sim", (Fault("exp", ("exp",), wrong),)), resolve("cpu"), tolerance.load("sim"),
                   suite.profile("quick"), RunOptions(examples=8, power=0), later=True)  # fmt: skip
    item = suite.Item(replace(suite.row("exp"), grad=()), "float32")  # derivatives take most of the time
    held = examine(item, plan, NoJournal()).held
    assert held is not None
    run = ItemRun(item, plan, NoJournal())
    for kinds in ([*held.failing], [*held.failing][::-1]):
        tally = ItemTally(item)
        tally.failing.update({k: held.failing[k] for k in kinds})
        made = findings.by_kind(run, tally, recognition(run), findings.Looks(0, True))
        first, *_, last = (f.result.verdict.status for f in made)
        assert (first, last) == (Status.WRONG, Status.ERROR)


def test_a_small_case_is_looked_into_before_a_large_one_of_fewer_choices() -> None:
    """All that follows runs it hundreds of times: a recurrent kernel of 32,769 steps took seconds each time."""
    plan = RunPlan(resolve("sim", (Fault("exp", ("exp",), lambda call: call.run() * 1.5),)), resolve("cpu"),
                   tolerance.load("sim"), suite.profile("quick"), RunOptions(examples=3, power=0), later=True)  # fmt: skip
    (item,) = suite.select(("exp",), dtypes=("float32",))
    held = examine(item, plan, NoJournal()).held
    assert held is not None
    run, (key, seen) = ItemRun(item, plan, NoJournal()), next(iter(held.failing.items()))
    large = Drawn(notation.parse("exp(float32[32769])"), ()), seen[0][1]
    small = [(one, r) for one, r in seen if one.case.numel < findings.FEW]
    assert small
    for kept, first in (([large, *small], min((len(one.picks), one.picks) for one, _ in small)[1]), ([large], ())):
        tally = ItemTally(item)
        tally.failing[key] = kept
        (found,) = findings.by_kind(run, tally, recognition(run), findings.Looks(0, False))
        assert next(one.picks for one, _ in kept if one.case == found.first) == first


def test_a_least_case_that_shows_other_kinds_is_theirs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault shows in several passes: it is searched for once. Another one is searched for by itself."""

    def wrong(call: Call) -> Any:
        if call.args[0].dim() == 1:
            raise RuntimeError("no kernel for vectors")
        return call.run() * 1.5

    searched, least = list[Drawn](), vars(findings)["least"]

    def noted(*given: Any) -> Any:
        searched.append(given[3])
        return least(*given)

    monkeypatch.setattr(findings, "least", noted)
    for fault, statuses in ((lambda call: call.run() * 1.5, {Status.WRONG}), (wrong, {Status.WRONG, Status.ERROR})):
        searched.clear()
        plan = RunPlan(resolve("sim", (Fault("exp", ("exp",), fault),)), resolve("cpu"), tolerance.load("sim"),
                       suite.profile("quick"), RunOptions(examples=8, power=0), later=True)  # fmt: skip
        (item,) = suite.select(("exp",), dtypes=("float32",))
        held = examine(item, plan, NoJournal()).held
        assert held is not None
        run, tally = ItemRun(item, plan, NoJournal()), ItemTally(item)
        passes = Aspect.FORWARD, Aspect.BACKWARD
        tally.failing.update({k: seen for k, seen in held.failing.items() if seen[0][1].aspect in passes})
        made = [*findings.by_kind(run, tally, recognition(run), findings.Looks(99, False))]
        assert len(made) > 1
        assert {f.result.verdict.status for f in made} == statuses
        assert len(searched) == len(statuses)


@pytest.mark.parametrize("knows", [True, False])
def test_a_finding_of_a_cause_that_is_known_is_not_shrunk(knows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size: it only loses what it does not need. Another cause of the op is looked at closely."""

    def wrong(call: Call) -> Any:
        if call.args[0].dtype.itemsize == 8:
            raise RuntimeError("no kernel for eight bytes")
        return call.run() * 1.5

    shrunk = list[str]()
    whole = findings.shrink

    def noted(run: Any, *more: Any) -> Any:
        shrunk.extend([run.item.dtype] if more[2] else [])
        return whole(run, *more)

    monkeypatch.setattr(findings, "shrink", noted)
    options = RunOptions(examples=2, power=0)
    plan = RunPlan(resolve("sim", (Fault("exp", ("exp",), wrong),)), resolve("cpu"), tolerance.load("sim"),
                   suite.profile("quick"), options, seen=Seen(tmp_path if knows else None))  # fmt: skip
    made = {i.dtype: examine(i, plan, NoJournal()) for i in suite.select(("exp",), dtypes=("int16", "int32", "complex64"))}
    assert all(m.findings for m in made.values())
    assert set(shrunk) == ({"int16", "complex64"} if knows else set(made))
    assert {f.cause.symptom.partition(":")[0] for f in made["int32"].findings if f.cause is not None} == {"values"}


def test_a_case_that_shrinking_left_as_it_was_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it was asked whether its cause is known, the same experiments would say the same."""
    looked, whole = list[str](), vars(findings)["_cause"]

    def noted(run: Any, case: Any, *more: Any) -> Any:
        looked.append(notation.case_text(case))
        return whole(run, case, *more)

    monkeypatch.setattr(findings, "_cause", noted)
    seen = Seen(tmp_path)
    (tmp_path / "causes").write_text("another-1a2b3c A\n")
    options, device = RunOptions(examples=8, power=0), resolve("sim", (Fault("exp", ("exp",), lambda call: call.run() * 1.5),))
    plan = RunPlan(device, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), options, later=True, seen=seen)
    (item,) = suite.select(("exp",), dtypes=("float32",))
    held = examine(item, plan, NoJournal()).held
    assert held is not None
    for kinds, times in ((0, 1), (9, 2)):  # without and with shrinking
        run, tally = ItemRun(item, plan, NoJournal()), ItemTally(item)
        key = next(k for k, some in held.failing.items() if some[0][1].aspect is Aspect.FORWARD)
        tally.failing[key] = [s for s in held.failing[key] if s[0].case.numel > kinds]
        (found,) = findings.by_kind(run, tally, recognition(run), findings.Looks(kinds, True))
        assert found.cause == Cause("aten::exp", "values")
        assert len(looked) == times, looked
        looked.clear()
        (tmp_path / "causes").write_text("another-1a2b3c A\n")


def test_a_finding_comes_and_goes_if_one_of_its_tries_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be tried by itself does not."""
    shown, agrees = (Result(Aspect.FORWARD, Verdict(s, "")) for s in (Status.WRONG, Status.AGREE))
    for tries, expected in (([shown] * 3, False), ([shown, shown, agrees], True), ([agrees], True), ([], False)):
        results = iter([*tries, None])
        monkeypatch.setattr(findings, "_again", lambda *_, results=results: (r,) if (r := next(results)) else ())
        case = notation.parse("exp(float32[2])")
        assert findings.comes_and_goes(SimpleNamespace(), case, shown, 3, 60.0) is expected  # type: ignore[arg-type]


def test_a_known_case_that_may_have_stopped_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replayed and drawn behind it would compare nothing."""
    reasons = list[str]()
    monkeypatch.setattr(known_cases, "end_unless_alive", lambda plan, journal, why: reasons.append(why))
    odd = Result(Aspect.FORWARD, Verdict(Status.ERROR, "device-side assert"))
    run: Any = SimpleNamespace(recheck=lambda *_: (odd,), notes=[], plan=None, journal=None)
    text = "forward: exp(float32[2])"
    known_cases._results_of_known(run, SimpleNamespace(aspects=()), text, notation.parse("exp(float32[2])"))  # type: ignore[arg-type]
    assert reasons == ["device-side assert"]


@pytest.mark.parametrize("seconds", [0.0, 601.0])
def test_no_cause_is_looked_for_after_the_time_of_a_run(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that draws all has no other limit, and a process that goes on is ended with all that it found. seconds: that
    go by once the search has begun, of 600."""
    fault = Fault("exp", ("exp",), lambda c: c.run() * 1.5)
    profile = replace(suite.profile("quick"), source="all")
    plan = RunPlan(resolve("sim", (fault,)), resolve("cpu"), tolerance.load("sim"), profile, RunOptions(examples=1, power=0))
    (item,) = suite.select(("exp",), dtypes=("float32",))
    held = examine(item, replace(plan, later=True), NoJournal()).held
    assert held is not None
    run = ItemRun(item, replace(plan, limit=TimeLimit(time.monotonic() + 600.0)), NoJournal())
    whole = cause_search.cause_of

    def begun(*asked: Any) -> Cause:
        monkeypatch.setattr(findings, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds))
        return whole(*asked)

    monkeypatch.setattr(findings, "cause_of", begun)
    tally = ItemTally(item)
    tally.failing.update([*held.failing.items()][:1])
    (made,) = findings.by_kind(run, tally, recognition(run), findings.Looks(0, True))
    assert made.cause is not None
    assert (UNSEARCHED in made.cause.properties) is (seconds > 600.0)
