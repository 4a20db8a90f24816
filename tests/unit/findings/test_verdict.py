"""What a run fails for, and with which exit code and first word it ends: each fact alone decides, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from parity.core.devices import HEALTHY, SUSPECT, UNUSABLE, conclusion, exit_code
from parity.core.results import Fingerprint, Record, Status
from parity.core.status import Conclusion
from parity.findings.causes import gather
from parity.findings.known import Entry, Known
from parity.findings.verdict import RunResult, Shortfall, compared, kinds, marks, of_cases, of_causes, shortfalls
from parity.report import causes as causes_text
from parity.report import gaps, github
from parity.store import run_file
from parity.store.code import Code
from parity.store.rows import AGREES, CPU, EXPIRED, GROWN, OUTSIDE, SEEN, Death, End, Header, ItemRow, Run, Sighting

ITEM = ItemRow("exp", "float32", 4, {"forward": {"agree": 3, "unsupported": 1}}, judged=90, left={"why": 10})
AGREEING = RunResult([ITEM])
FOUND = Record("exp(float32[2])", "exp", "float32", "forward", Status.WRONG, shrunk="exp(float32[1])")
DEATH = Death("neg", "float32", "neg(float32[2])", "", "crash", "SIGABRT", "device")
ENTRY = Entry("k", "filed", ("exp",), "wrong", dtypes=("float32",), aspects=("forward",), cases=("exp(float32[1])",))
KNOWN = Known(Code("known.toml"), entries=(ENTRY,))


def seen(state: str, fails: bool = False) -> Sighting:
    return Sighting("k", "exp", "float32", state, "forward", "exp(float32[1])", fails=fails)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"records": [FOUND]}, True),
        ({"records": [replace(FOUND, gone=True)]}, False),
        ({"records": [replace(FOUND, known="k")]}, False),
        ({"records": [replace(FOUND, status=Status.UNSUPPORTED)]}, False),
        ({"records": [replace(FOUND, shrunk="")]}, False),  # it was drawn, and its kind has another record
        ({"records": [replace(FOUND, shrunk="")], "failing": [replace(FOUND, shrunk="")]}, True),
        ({"records": [FOUND], "failing": []}, False),
        ({"deaths": [DEATH]}, True),
        ({"deaths": [replace(DEATH, known="k")]}, False),
        ({"deaths": [replace(DEATH, blame=CPU)]}, False),
        ({"deaths": [replace(DEATH, blame=OUTSIDE)]}, True),  # and its item was not examined again
        ({"deaths": [replace(DEATH, op="exp", blame=OUTSIDE)]}, False),
        ({"known": KNOWN, "sightings": [seen(SEEN)]}, False),
        ({"known": KNOWN, "sightings": [seen(GROWN, True)]}, True),
        ({"known": KNOWN, "sightings": [seen(GROWN)]}, False),
        ({"known": KNOWN, "sightings": [seen(EXPIRED, True)]}, True),
        ({"known": KNOWN, "sightings": [seen(AGREES)]}, False),
        ({"known": KNOWN, "sightings": [seen(AGREES)], "strict": True}, True),
        ({"known": KNOWN, "sightings": [seen(SEEN)], "strict": True}, False),
    ],
)
def test_what_is_found(facts: dict[str, Any], found: bool) -> None:
    result = replace(AGREEING, **facts)
    assert result.found == found
    assert result.exit_code == int(found)
    assert result.conclusion(result.exit_code) is (Conclusion.FAIL if found else Conclusion.PASS)
    assert result.conclusion(130) is (Conclusion.FAIL if found else Conclusion.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({}, 0),
        ({"broken": ["exp-float32: no"]}, 1),
        ({"broken": ["net.py:net raises on the CPU"]}, 1),
        ({"failures": 1}, 1),
        ({"unchecked": ["neg-float32"]}, 1),
        ({"fail_on": [Status.UNSUPPORTED]}, 1),
        ({"fail_on": [Status.FALLBACK]}, 0),  # which did not occur
        ({"min_judged": 0.9}, 0),
        ({"min_judged": 0.91}, 1),
    ],
)
def test_what_fails_a_run_without_findings(facts: dict[str, Any], code: int) -> None:
    result = replace(AGREEING, **facts)
    assert not result.found
    assert result.exit_code == code
    assert result.conclusion(code) is Conclusion.of(code)


def test_nothing_compared_is_no_success() -> None:
    """Nor is it where both sides refuse every call."""
    for items in ([], [replace(ITEM, counts={"forward": {"unsupported": 4}, "refusal": {"agree": 4}})]):
        assert not any(map(compared, items))
        assert RunResult(items).exit_code == 3
        assert RunResult(items, broken=["net.py:net raises on the CPU"]).exit_code == 3
        assert RunResult(items, broken=["exp-float32: no"]).exit_code == 1  # parity itself
        assert [RunResult(items).conclusion(code) for code in (3, 0, 1)] == [
            *(Conclusion.INCONCLUSIVE, Conclusion.INCONCLUSIVE, Conclusion.FAIL)
        ]
    assert compared(ITEM)


def test_a_run_that_was_cut_is_green_for_nobody() -> None:
    """A finding is one however the run ended."""
    cut = replace(AGREEING, stopped="interrupted after 1 of 4 items")
    assert cut.conclusion(0) is Conclusion.INCONCLUSIVE
    assert replace(cut, records=[FOUND]).conclusion(130) is Conclusion.FAIL


def test_what_fails_on_demand_is_told_with_one_of_them_unless_it_is_known() -> None:
    item = replace(ITEM, void={"the reference refuses: size": 2})
    refused = replace(FOUND, status=Status.UNSUPPORTED, shrunk="")
    result = RunResult([item], [refused], fail_on=[Status.UNSUPPORTED, Status.VOID, Status.WRONG])
    assert [(u.status, u.checks, u.one) for u in result.unwanted] == [
        ("unsupported", 1, "exp(float32[2])"), ("void", 2, "exp float32: the reference refuses: size")
    ]  # fmt: skip
    assert result.failed == ("--fail-on fails the run for 1 check unsupported and 2 checks void",)
    assert replace(result, fail_on=[Status.FALLBACK], min_judged=0.9).failed == ()
    assert replace(AGREEING, min_judged=0.91, known=KNOWN, sightings=[seen(AGREES)], strict=True).failed == (
        "--fail-on fails the run for 1 known finding that is fixed", "--min-judged fails 1 op x dtype pair"
    )  # fmt: skip
    accepting = Known(Code("known.toml"), entries=(replace(ENTRY, status="unsupported"),))
    assert [u.status for u in replace(result, known=accepting).unwanted] == ["void"]
    late = Known(Code("known.toml"), entries=(replace(ENTRY, status="unsupported", until=date.today() - timedelta(1)),))
    assert [u.status for u in replace(result, known=late).unwanted] == ["unsupported", "void"]


def test_junit_hears_which_items_nothing_counts_in() -> None:
    """All of it was dropped, or never was reproduced."""
    gone, once = replace(FOUND, gone=True), replace(FOUND, op="neg", status=Status.NOT_REPRODUCED)
    result = RunResult([], [gone, once, replace(gone, op="add"), replace(FOUND, op="add")])
    assert result.acquitted == ("exp-float32",)
    assert result.not_reproduced == ("neg-float32",)
    assert replace(result, records=[*result.records, replace(FOUND, op="neg")]).not_reproduced == ()
    assert kinds([FOUND, gone, replace(FOUND, shrunk="")]) == [FOUND]


def test_a_conclusion_follows_from_what_fails_and_what_is_whole() -> None:
    assert [Conclusion.of_run(fails, whole) for fails in (True, False) for whole in (True, False)] == [
        *(Conclusion.FAIL, Conclusion.FAIL, Conclusion.PASS, Conclusion.INCONCLUSIVE)
    ]
    assert [Conclusion.of(code) for code in (0, 1, 2, 3, 4, 130)] == ["PASS", "FAIL", *["INCONCLUSIVE"] * 4]
    assert [exit_code(verdict) for verdict in (HEALTHY, SUSPECT, UNUSABLE)] == [0, 1, 4]
    assert [conclusion(verdict) for verdict in (HEALTHY, SUSPECT, UNUSABLE)] == ["PASS", "FAIL", "FAIL"]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["agree", "unsupported"], 0),
        (["agree", "wrong"], 1),
        (["unsupported", "error"], 1),
        (["unsupported", "void"], 3),
        ([], 3),
    ],
)
def test_replayed_cases_fail_for_a_finding_and_pass_only_if_compared(statuses: list[str], code: int) -> None:
    assert of_cases([Status(s) for s in statuses]) == code


FINGERPRINT = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "", simulated=True)
WHOLE = Run(Header(FINGERPRINT), items=(ITEM,), end=End(1.0, {}, "", 1))


@pytest.mark.parametrize(
    ("facts", "short"),
    [
        ({}, ()),
        ({"items": ()}, (Shortfall.NOTHING, Shortfall.MISSING)),
        ({"end": None}, (Shortfall.CUT,)),
        ({"end": End(1.0, {}, "interrupted", 2)}, (Shortfall.STOPPED,)),
        ({"end": End(1.0, {}, "", 2)}, (Shortfall.MISSING,)),
        ({"end": End(1.0, {}, "", 1, broken=("exp-float32: boom",))}, (Shortfall.BROKEN,)),
        ({"end": End(1.0, {}, "", 1, broken=("net.py:Net compared nothing",))}, (Shortfall.OWN,)),
    ],
)
def test_a_stored_run_passes_only_if_nothing_is_missing(facts: dict[str, Any], short: tuple[Shortfall, ...]) -> None:
    run = replace(WHOLE, **facts)
    assert shortfalls(run) == short
    assert of_causes(run, (), {}) == (Conclusion.INCONCLUSIVE if short else Conclusion.PASS)


def test_only_a_run_that_ended_is_to_be_widened() -> None:
    """One that was stopped is to go on."""
    for stopped in ("", "interrupted"):
        said = gaps.caveat_sentences(replace(WHOLE, items=(), end=End(1.0, {}, stopped, 1)))
        assert ("widen the selection" in said[0]) is (not stopped)


def test_a_stored_run_fails_for_what_it_was_asked_to_fail_on() -> None:
    """Its end says so; an older file does not."""
    words = "--fail-on fails the run for 1 check unsupported"
    run = replace(WHOLE, end=End(1.0, {}, "", 1, failed=(words,)))
    assert of_causes(run, (), {}) is Conclusion.FAIL
    assert gaps.caveat_sentences(run)[0] == f"The run was asked to fail: {words}."
    assert "error title=parity%3A the run was asked to fail" in github.render(run)
    text = causes_text.render((), run.header, Conclusion.FAIL, caveats=gaps.caveat_sentences(run))
    assert text.endswith("FAIL  no finding, but the run was asked to fail: see above")
    assert run_file.decode(run_file.encode(run.end)) == run.end  # type: ignore[arg-type]
    assert run_file.decode('{"kind": "end", "seconds": 1.0, "expected": 1}') == WHOLE.end


def test_a_cause_fails_unless_all_of_it_is_known() -> None:
    """An entry that has grown or expired accepts its cause no more."""
    accepted = replace(WHOLE, records=(replace(FOUND, known="k"),), known=(seen(SEEN),))
    for run, whole in ((accepted, True), (replace(accepted, known=(replace(seen(GROWN, True), why="more"),)), False)):
        causes = gather(run.records)
        known = marks(run, causes)
        assert [m.whole for m in known.values()] == [whole]
        assert of_causes(run, causes, known) == (Conclusion.PASS if whole else Conclusion.FAIL)
    assert of_causes(accepted, gather(accepted.records), {}) == Conclusion.FAIL
