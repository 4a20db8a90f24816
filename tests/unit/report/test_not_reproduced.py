"""What was never reproduced has a status of its own, in every report of a run and of two."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import stored

from parity.core.results import Cause, Measure, Record, Status
from parity.core.status import Conclusion
from parity.engine import merging
from parity.faces.commands.report import run_script
from parity.findings import known, known_entries
from parity.findings.causes import gather
from parity.findings.known import known_once
from parity.findings.verdict import RunResult
from parity.history.change import Group
from parity.history.diff import compare
from parity.report import answers, github, html, issue, junit, matrix, summary
from parity.report import causes as texts
from parity.report import diff as diff_text
from parity.report.gaps import caveat_sentences
from parity.report.script_text import excused
from parity.store import run_file
from parity.store.marginal import FAR, is_far, marked
from parity.store.rows import Again, Run

EXP = "exp(float32[2])"
HISTORY = f"{EXP}.history(cos(float32[3]), exp(float32[4]))"


def stored_again(path: Path, **more: Any) -> Run:
    """The stored run, in which the forward of exp was tried once more, as its file is read."""
    whole = stored.run()
    again = Again(EXP, "forward", "exp", 4, **more)
    run_file.write(path, replace(whole, again=(again,)))
    return run_file.read(path, partial=True)


def test_drift_is_far_above_a_limit_and_not_at_it() -> None:
    """What has no number is, and so is any other status."""
    drift = Record(EXP, "exp", "float32", "forward", Status.DRIFT, measures=(Measure("out", FAR),))
    above = replace(drift, measures=(Measure("out", FAR * 1.01),))
    shown = [is_far(r) for r in (drift, above, replace(drift, measures=()), replace(drift, status=Status.WRONG))]
    assert shown == [False, True, True, True]


@pytest.fixture
def once(tmp_path: Path) -> Run:
    return stored_again(tmp_path / "once.jsonl", calls=8)


def finding(run: Run) -> Record:
    return next(r for r in run.records if r.shrunk and r.aspect == "forward")


def test_it_is_in_every_report_of_a_run(once: Run) -> None:
    assert finding(once).status == Status.NOT_REPRODUCED
    assert once.items[0].counts["forward"] == {"agree": 1, "not reproduced": 1}
    c = next(c for c in gather(once.records) if c.cause.symptom == "not reproduced")
    data = summary.SummaryData(once.header, RunResult(once.items, once.records), verbose=True)
    assert re.search(r"^ +dtype .* not reproduced$", summary.render(data), re.MULTILINE)
    for text in (summary.render(data), texts.render([c], once.header, Conclusion.FAIL)):
        assert "aten::exp was wrong once and never again" in text
        assert "not reproduced in out, forward: once wrong, and not again in 4 tries, nor after 8 of the cases before" in text
    assert answers.tree(texts.answer([c], once.header))["causes"][0]["findings"][0]["status"] == "not reproduced"
    assert "was wrong once and never again" in texts.as_markdown([c], once.header, Conclusion.FAIL)
    assert "It was seen once" in issue.render(c, once.header, run_script)
    assert "::error title=parity" in github.render(once)
    assert "was wrong once and never again" in github.render(once)
    failure = ElementTree.fromstring(junit.render(once)).find(".//testcase[@name='exp float32']/failure")
    assert failure is not None
    assert (failure.get("type"), str(failure.get("message"))[:31]) == ("not reproduced", "1 not reproduced, 1 drift of 4 ")
    assert matrix.letters(matrix.passes_of(once.items[0].counts))[:2] == "RD"
    assert "not reproduced" in html.render(once)


def test_it_is_a_regression_and_may_be_fixed(once: Run) -> None:
    whole = stored.run()
    exp = [replace(i, counts={"forward": {"agree": 4}}) if i.op == "exp" else i for i in whole.items]
    healthy = replace(whole, records=(), items=tuple(exp))
    diff = compare(healthy, once, partial=True)
    assert "not reproduced" in {c.after for t in diff.groups[Group.REGRESSED] for c in t.changes}
    assert "agree -> not reproduced" in diff_text.terminal(diff)
    assert "not reproduced" in {c.before for t in compare(once, healthy, partial=True).groups[Group.FIXED] for c in t.changes}


def test_a_known_one_accepts_what_never_comes_again_and_nothing_else(once: Run) -> None:
    c = next(c for c in gather(once.records) if c.cause.symptom == "not reproduced")
    (entry,) = known_entries.of_cause(c, once, "accepted", until=date(2098, 1, 1))
    assert (entry.status, entry.cases, entry.cause) == ("not reproduced", (), None)
    assert not known.covers(entry.status, "wrong")
    assert not known.covers("wrong", entry.status)
    now, later = (known_once([entry], finding(once), date(year, 1, 1)) for year in (2097, 2099))
    assert now is not None
    assert later is not None
    assert (now.id, now.state, now.fails, later.state, later.fails) == (entry.id, "seen", False, "expired", True)
    assert known_once([entry], replace(finding(once), aspect="out="), date(2097, 1, 1)) is None
    assert known_once([entry], finding(stored.run()), date(2097, 1, 1)) is None
    accepted = marked(stored.run().records, [Again(EXP, "forward", "exp", 4, known=entry.id)])
    assert {r.known for r in accepted if r.status == Status.NOT_REPRODUCED} == {entry.id}


def test_a_merged_file_says_the_same(once: Run, tmp_path: Path) -> None:
    shard = replace(once, header=replace(once.header, shard="1/1"))
    run_file.write(tmp_path / "merged.jsonl", merging.merged([(tmp_path / "once.jsonl", shard)]))
    again = run_file.read(tmp_path / "merged.jsonl", partial=True)
    assert (finding(again), again.items[0].counts) == (finding(once), once.items[0].counts)


def test_a_finding_with_a_history_is_told_with_it(tmp_path: Path) -> None:
    run = stored_again(tmp_path / "later.jsonl", came=True, history=HISTORY)
    r = finding(run)
    assert (r.status, r.shrunk, r.shows_alone) == ("wrong", HISTORY, False)
    c = next(c for c in gather([r]))
    text = texts.render([c], run.header, Conclusion.FAIL)
    assert "aten::exp gives wrong values, with earlier calls" in text
    assert f"parity replay '{HISTORY}' --device sim --setup faults.py" in text
    assert "or run" not in texts.render(
        [replace(c, records=(replace(r, script="findings/exp.py"),))], run.header, Conclusion.FAIL
    )
    said = issue.render(c, run.header, run_script)
    assert (
        f"It does not show in a process of its own; `parity replay '{HISTORY}' --device sim --setup faults.py` shows it" in said
    )
    assert "It comes only after other cases in the same process" in said


def test_its_script_says_that_it_may_show_nothing() -> None:
    once = Record(EXP, "exp", "float32", "forward", "not reproduced", shrunk=EXP, script="findings/exp.py")
    head = "# This may not show the finding: it was seen once, and not again.\n# reproduce: parity replay X\n"
    assert excused("print(1)\n", once, "reproduce: parity replay X") == head + "print(1)\n"
    later = replace(once, status="wrong", cause=Cause("aten::exp", "values", ("earlier calls",)))
    assert excused("1", later, "Y").startswith("# This may not show the finding: it comes only after other cases.\n# Y\n")


def test_what_was_near_its_budget_is_dropped_and_counted(tmp_path: Path) -> None:
    whole = stored.run()
    near = replace(finding(whole), status="drift", measures=(replace(stored.MEASURE, share=1.5),))
    records = [r for r in whole.records if r.op != "exp"]
    data = summary.SummaryData(whole.header, RunResult(whole.items, [*records, replace(near, gone=True)]))
    assert "\ndropped    1 finding near the budget, not reproduced in a fresh process" in summary.render(data)
    text = summary.render(replace(data, verbose=True))
    assert "dropped: drift near its budget, not reproduced in a fresh process\n  exp float32" in text
    assert summary.verdict(data, 0).startswith("PASS  1 finding near the budget, not reproduced; everything else agrees (")
    run = replace(whole, records=(replace(near, gone=True),), deaths=())
    assert any(s.startswith("Dropped: 1 finding near the budget") for s in caveat_sentences(run))


def test_the_failure_that_pytest_wrote_says_so(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    cases = "".join(f'<testcase name="test_op[{i}]"><failure message="it fails"/></testcase>' for i in ("a-f", "b-f", "c-f"))
    path.write_text(f'<testsuites><testsuite failures="3" skipped="0">{cases}</testsuite></testsuites>')
    junit.acquit(path, ("a-f",), ("b-f",))
    suite = ElementTree.parse(path).getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "1")
    assert [c.get("message") for case in suite for c in case] == [junit.GONE, "not reproduced: it fails", "it fails"]
