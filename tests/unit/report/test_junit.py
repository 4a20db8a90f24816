"""A stored run as JUnit's XML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import stored

from parity.report import junit
from parity.store.rows import End, Run


def cases(run: Run) -> dict[str, ElementTree.Element]:
    """The test cases by name."""
    return {str(c.get("name")): c for c in ElementTree.fromstring(junit.render(run)).iter("testcase")}


def test_each_op_and_dtype_is_a_test_case() -> None:
    """Failed, ended, skipped or passed, with short properties."""
    made = cases(stored.run())
    assert list(made) == ["exp float32", "exp int64", "cos float32", "mode int64", "pinv float32", "sin float32"]
    outcomes = {name: [child.tag for child in c if child.tag != "properties"] for name, c in made.items()}
    assert outcomes == {
        "exp float32": ["failure"], "exp int64": [], "cos float32": [], "mode int64": ["skipped"], "pinv float32": [],
        "sin float32": ["error"],
    }  # fmt: skip
    exp = made["exp float32"]
    assert exp.get("classname") == "parity.unary"
    properties = {p.get("name"): p.get("value") for p in exp.iter("property")}
    assert (properties["cases"], properties["findings"]) == ("4", "2")
    assert str(properties["causes"]).startswith("exp-")
    failure = exp.find("failure")
    assert failure is not None
    assert failure.get("type") == "wrong"
    assert failure.get("message") == "1 wrong, 1 drift of 4 checks: 37.2 times"
    assert "reproduce: parity replay 'exp(float32[2])' --device sim --setup faults.py" in str(failure.text)
    skipped = made["mode int64"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "nothing was compared: 1 unsupported"


def test_the_numbers_of_the_suite_are_those_of_its_cases() -> None:
    root = ElementTree.fromstring(junit.render(stored.run()))
    for element in (root, root.find("testsuite")):
        assert element is not None
        assert [element.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["6", "1", "1", "1"]


def test_what_a_file_holds_stays_text() -> None:
    """Quotes, brackets and tags, and lines of a message."""
    made = cases(stored.run(stored.EVIL))
    assert f"cos{stored.EVIL} float32" in made
    assert len(made) == 6


@pytest.mark.parametrize(
    ("end", "name", "said"),
    [
        (None, "the run file is cut", "it has no end row"),
        (End(1.0, stopped="interrupted", expected=9), "the run did not end", "interrupted: what it did not reach is missing"),
        (End(1.0, expected=9, lost=("sin-float32",)), "items are missing", "4 of 9 were not compared: sin-float32"),
        (End(1.0, expected=5, broken=("it broke",)), "parity itself failed", "it broke"),
    ],
)
def test_what_did_not_end_is_an_error(end: End | None, name: str, said: str) -> None:
    healthy = replace(stored.run(), records=(), deaths=(), items=stored.run().items[1:], end=end)
    whole = replace(healthy, items=(*healthy.items, replace(healthy.items[0], dtype="int8")))
    error = cases(whole)[name].find("error")
    assert error is not None
    assert said in str(error.get("message"))


def test_a_run_that_compared_nothing_fails() -> None:
    idle = replace(stored.run(), records=(), deaths=(), items=stored.run().items[3:4], end=End(1.0, expected=1))
    assert cases(idle)["nothing was compared"].find("error") is not None


def test_findings_that_did_not_come_again_fail_nothing() -> None:
    """A note says that there were some."""
    whole = stored.run()
    gone = replace(whole, records=tuple(replace(r, gone=bool(r.shrunk)) for r in whole.records))
    exp = cases(gone)["exp float32"]
    assert exp.find("failure") is None
    assert "was not reproduced" in str(exp.findtext("system-out"))


def test_failures_that_did_not_come_again_are_taken_back(tmp_path: Path) -> None:
    """In the file that pytest wrote before; those of other items stay."""
    path, items = tmp_path / "x.xml", ("exp-float32", "exp-float16", "cos-float32")
    path.write_text(
        '<testsuites><testsuite name="pytest" tests="3" failures="3" skipped="0" errors="0">'
        + "".join(f'<testcase name="test_operator[{i}]"><failure message="wrong"/></testcase>' for i in items)
        + "</testsuite></testsuites>"
    )
    junit.acquit(path, items[:1])
    suite = ElementTree.parse(path).getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "1")
    assert [c.get("name") for c in suite if c.find("failure") is not None] == [f"test_operator[{i}]" for i in items[1:]]
    junit.acquit(path, (), little=items[1:2])
    suite = ElementTree.parse(path).getroot()[0]
    assert [str(x.get("message")).partition(",")[0] for x in suite.iter("skipped")] == [
        junit.GONE.partition(",")[0],
        "marginal",
    ]
    assert suite.get("failures") == "1"


def test_an_item_and_the_part_that_explains_it_are_one_test_case(tmp_path: Path) -> None:
    """With the least case of the latter, and without a failure if all that was found is known."""
    drawn, least, broken = (f"<{x}</{x.partition('>')[0]}>" for x in ("failure>drawn", "failure>least", "error>broken"))
    cases = {"a-f": drawn, "a-f causes": least, "b-f": drawn, "b-f causes": "", "c-f": "", "d-f": drawn, "d-f causes": broken}
    inside = "".join(f'<testcase name="t[{n}]">{x}</testcase>' for n, x in cases.items())
    path = tmp_path / "j.xml"
    path.write_text(f'<testsuites><testsuite tests="7" failures="4" skipped="0">{inside}</testsuite></testsuites>')
    junit.join_causes(path)
    (suite,) = ElementTree.parse(path).iter("testsuite")
    told = {str(c.get("name"))[2:-1]: c.findtext("failure") for c in suite}
    assert told == {"a-f": "least", "b-f": None, "c-f": None, "d-f": "drawn", "d-f causes": None}
    assert [c.get("name") for c in suite if c.find("skipped") is not None] == ["t[b-f]"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "1")
