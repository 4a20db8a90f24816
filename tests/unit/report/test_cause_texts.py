"""Causes as text, Markdown, JSON and bug reports."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parity.core import notation
from parity.core.results import UNSEARCHED, Cause, Fingerprint, Measure, Record, Workaround
from parity.core.status import Conclusion
from parity.faces.commands.report import run_script
from parity.findings import known_entries
from parity.findings.causes import OPERATORS, Gathered, gather
from parity.report import answers, issue
from parity.report import causes as told
from parity.report.known import what
from parity.report.short_script import minimal
from parity.store.rows import Death, Header, Run

FAIL = Conclusion.FAIL


def header(device: str = "sim") -> Header:
    about = "cf30", "3.11.7", "Linux", "x86_64", device, "Apple M2"
    return Header(Fingerprint("0.1.0", str(torch.__version__), *about, simulated=device == "sim"))


def record(case: str, aspect: str = "forward", cause: Cause | None = None, status: str = "wrong") -> Record:
    parsed = notation.parse(case)
    m = Measure("out", 37.2, index=(0, 1), device="1.5", reference="1", truth="1.01")
    cause = cause or Cause("aten::exp", "values", ("NaN",))
    return Record(
        case, parsed.op, parsed.dtype, aspect, status, reason="37.2 times the budget", measures=(m,), shrunk=case, cause=cause
    )


def test_a_cause_is_told_with_its_worst_element_and_the_command() -> None:
    """In full where there is room, else in two lines."""
    made = gather([record("exp(float32[2])")])
    text = "\n".join(told.lines(made, 20, header()))
    assert "aten::exp gives wrong values, with NaN; 1 kind in exp (float32)" in text
    assert "wrong in out, forward: 37.2 times the budget" in text
    assert "worst at [0, 1]: device 1.5, reference 1, truth 1.01" in text
    assert "reproduce: parity replay 'exp(float32[2])' --device sim" in text
    assert len(told.lines(made, 4, header())) == 3
    assert "worst" not in "\n".join(told.lines(made, 4, header()))
    assert told.lines(made, 2, header()) == ["1 more cause"]
    assert "findings:\n      wrong exp float32 forward: exp(float32[2])" in told.render(made, header(), FAIL, members=True)
    assert told.render((), header(), Conclusion.PASS) == "PASS  no finding"
    assert told.render((), header(), Conclusion.INCONCLUSIVE) == "INCONCLUSIVE  no finding"


def test_no_fault_of_a_kernel_hides_behind_another_one() -> None:
    """Each error's words are in every report of their cause, and so is a wrong shape with wrong values; one fault has no
    such addition."""
    words = [f"RuntimeError in run: {x}" for x in ("no more than 8 dimensions", "no kernel for T")]
    errors = [
        record(f"exp(float32[{k}])", status="error", cause=Cause("aten::exp", f"raises: {w}")) for k, w in enumerate(words)
    ]
    shapes = [record("cos(float32[2])", cause=Cause("aten::cos", x)) for x in ("values", "metadata", "values")]
    made, conclusion = gather([*errors, *shapes]), Conclusion.FAIL
    both = f"aten::exp raises where the CPU computes, in 2 ways ({'; '.join(words)})"
    wrong = "aten::cos gives wrong values, and gives a wrong shape, dtype, stride or aliasing"
    assert [c.sentence for c in told.answer(made, header()).causes] == [wrong, both]
    issued = issue.render(made[1], header(), lambda *_: issue.ScriptRun(None))
    plain = told.render(made, header(), conclusion), "\n".join(told.lines(made, 9, header())), told.line(made[1])
    for text in (*plain, told.as_markdown(made, header(), conclusion).replace("\\", ""), issued.replace("\\", "")):
        assert both in text
    assert {what(e).partition(" (")[2][:-1] for e in known_entries.of_cause(made[1], Run(header()), "why")} == {*words}
    assert "ways" not in told.render(gather(errors[:1]), header(), conclusion)
    assert ", and " not in told.render(gather(shapes[:1]), header(), conclusion)


@pytest.mark.parametrize(("blame", "whose"), [("device", "the device"), ("unknown", "the device or the CPU")])
def test_a_death_that_was_not_looked_into_is_not_said_to_be_the_device_s(blame: str, whose: str) -> None:
    """And the page says what is known of it."""
    why = "not looked into: the run ended before"
    for how, signal, said in (
        ("hang", "ended by parity after 20.3 s", "hangs in exp"),
        ("crash", "SIGSEGV", "ends the process"),
    ):
        died = Death("exp", "float32", "exp(float32[3])", "", how, signal, "reference", blame=blame, why=why)
        text = told.render(gather([], [died]), header(), FAIL)
        assert f"{whose} {said}" in text
        assert (f"    {why}\n" in text) is (blame == "unknown")


def test_a_mode_is_told_without_a_with() -> None:
    assert told.sentence(Cause("aten::put", "raises: no", ("under deterministic",))).endswith(" (no), under deterministic")
    both = Cause("aten::put", "values", ("NaN", "under inference"))
    assert told.sentence(both).endswith(" gives wrong values, with NaN, under inference")


@pytest.mark.parametrize(("symptom", "verb"), [("values", "give"), ("accepts", "compute"), ("operands", "change")])
def test_several_operators_take_a_plural(symptom: str, verb: str) -> None:
    assert told.sentence(Cause(OPERATORS, symptom)).startswith(f"several operators {verb} ")


@pytest.mark.parametrize(("how", "ends"), [("crash", "end the process"), ("hang", "hang")])
def test_several_operators_end_in_a_plural(how: str, ends: str) -> None:
    dead = Cause(f"{how}: SIGSEGV", "dies")
    assert told.sentence(Cause(OPERATORS, "values"), [dead]).endswith(f", and {ends}")
    assert not told.sentence(Cause("aten::exp", "values"), [dead]).endswith(f", and {ends}")


def test_a_reference_that_was_not_kept_is_not_named() -> None:
    one = record("exp(float32[2])")
    made = gather([replace(one, measures=(replace(one.measures[0], reference=""),))])
    assert "worst at [0, 1]: device 1.5, truth 1.01" in "\n".join(told.lines(made, 20, header()))


def test_what_is_left_out_of_a_list_is_counted_by_kind() -> None:
    """What nobody looked into is no cause there, either, and has no weight in a line of its own."""
    made = gather(
        [
            record("exp(float32[2])"),
            *(record(f"{op}(float32[2])", cause=Cause(f"torch.{op}", "values", (UNSEARCHED,))) for op in ("cos", "sin")),
        ]
    )
    assert told.more_text(made) == "1 more cause, and 2 more operators not looked into"
    assert told.more_text(made[2:]) == "1 more operator not looked into"
    assert told.more_text(made[:1]) == "1 more cause"
    assert [told.line(c)[:3] for c in made] == ["A [", "? [", "? ["]


@pytest.mark.slow
def test_a_way_around_is_named_in_every_report_of_a_cause() -> None:
    """Once, with its counts; nowhere where none agreed, or where the case shows nothing alone."""
    ways = (Workaround("contiguous", 3, 4), Workaround("CPU", 4, 4))
    r = replace(record("exp(float32[2])"), ways=ways)
    line = "workaround: exp on the CPU agrees (4 of 4 cases); it copies operands and results"
    one = gather([r])
    assert told.render(one, header(), FAIL).count(f"    {line}\n") == 1
    assert answers.tree(told.answer(one, header()))["causes"][0]["workaround"] == line.removeprefix("workaround: ")
    assert "workaround: exp on the CPU agrees" in told.as_markdown(one, header(), FAIL)
    assert "\n\nWorkaround: exp on the CPU agrees" in issue.render(one[0], header(), run_script)
    for silent in (replace(r, ways=ways[:1]), replace(r, ways=()), replace(r, status="not reproduced")):
        assert "workaround" not in told.render(gather([silent]), header(), FAIL)


def test_markdown_is_inert_and_fits_a_comment() -> None:
    """What a file holds is shown as it is, and the worst come first."""
    evil = Cause("<script>alert(1)</script> [x](http://y)", "values")
    text = told.as_markdown(gather([record("exp(float32[2])", cause=evil)]), header(), FAIL)
    assert "<script>" not in text
    assert "](http" not in text
    many = [record(f"exp(float32[{k}])", cause=Cause(f"aten::{'x' * 200}{k}", "values")) for k in range(1, 900)]
    text = told.as_markdown(gather(many), header(), FAIL)
    assert len(text) <= 65_536
    assert re.search(r"and \d+ more causes", text)
    assert "0 causes\n\nEverything that counts agrees." in told.as_markdown((), header(), Conclusion.PASS)
    less = told.as_markdown((), header(), Conclusion.PASS, excluded=["fallback: 2 checks ran on the CPU unasked: <b>"])
    assert less.endswith("agrees.\n\nNot part of this verdict:\n\n- fallback: 2 checks ran on the CPU unasked: \\<b\\>\n")
    cut = told.as_markdown((), header(), Conclusion.INCONCLUSIVE, ["Nothing was compared: <b>."])
    assert "> Nothing was compared: \\<b\\>." in cut
    assert "agrees" not in cut


def test_json_holds_every_finding() -> None:
    """And the deaths."""
    made = gather(
        [record("exp(float32[2])"), record("exp(float16[2])")], [Death("sin", "float32", "sin(float32[2])", signal="SIGABRT")]
    )
    tree = answers.tree(told.answer(made, header()))
    assert tree["run"]["device"] == "sim"
    assert [len(c["findings"]) + len(c["deaths"]) for c in tree["causes"]] in ([2, 1], [1, 2])


@pytest.mark.parametrize(
    ("case", "aspect", "lines"),
    [
        ("softmax(float32[1, 3], dim=-1)", "forward", 13),
        ("softmax(float32[2, 3].transpose(0, 1), dim=-1)", "backward", 15),
        ('exp(float16[2, 2]).into("transposed")', "out=", 15),
        ("exp(float32[4].step(-1, 2, 0))", "in-place", 15),
        ('add(float32[2], int64[()].at(0, "max").on_cpu(), alpha=2)', "forward", 14),
        ('exp(float32[1].at(0, "nan")).under("no_grad")', "forward", 15),
        ("setitem(float32[2], (slice(None, None, None),), 1.0)", "forward", 30),
        ("max_pool2d(float32[1, 1, 4, 4], 2, return_indices=True)", "backward", 20),
        ("linear(complex64[1, 2].conj(), complex64[1, 2])", "backward", 15),
        ("sum(bool[2], dtype=float64)", "forward", 13),
        ("clone(bfloat16[2].neg())", "transfer", 20),
    ],
)
def test_a_minimal_script_is_short_and_runs_on_the_cpu(
    case: str, aspect: str, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With literal values and plain calls; the same is printed for the same device."""
    text = minimal(notation.parse(case), aspect, "mps")
    assert text is not None
    assert len(text.split("\n")) - text.split("\n").count("") <= lines, text
    assert "parity" not in text
    monkeypatch.setattr(sys, "argv", ["script", "cpu"])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "script", "exec"), {})
    half = len(out.getvalue()) // 2
    assert out.getvalue()[:half] == out.getvalue()[half:]
    assert "tensor(" in out.getvalue()


@pytest.mark.parametrize(
    "case", ['exp(float32[2]).after("smaller")', "exp(float32[4000])", "bernoulli(float32[2].inside(0, 1))"]
)
def test_what_takes_more_than_a_few_lines_has_none(case: str) -> None:
    """Calls before the case, large tensors, random results."""
    assert minimal(notation.parse(case), "forward", "mps") is None


@pytest.mark.slow
def test_a_bug_report_says_where_its_script_was_run() -> None:
    """On the CPU alone for a simulated device."""
    (one,) = gather([record("softmax(float32[1, 3], dim=-1)", cause=Cause("aten::_softmax", "values"))])
    text = issue.render(one, header(), run_script)
    for part in ("### Describe the bug", "```python", "Run here on the CPU alone", "cpu tensor([[", "### Versions", "Apple M2"):
        assert part in text
    assert text.count("cpu tensor([[") == 1


@pytest.mark.slow
def test_what_is_to_be_done_next_is_done_in_the_environment_of_the_run(tmp_path: Path) -> None:
    """If that is on this machine: a run file may name anything. A bug report says which torch ran its script."""
    (one,) = gather([replace(record("exp(float32[2])"), script="findings/exp.py")])
    lent = tmp_path / "lent"
    there = replace(header(), command=(sys.executable, str(lent)))
    assert "    reproduce: parity replay 'exp" in "\n".join(told.full(one, there))
    (lent / "parity").mkdir(parents=True)
    (lent / "parity" / "__main__.py").touch()
    text = "\n".join(told.full(one, there))
    assert f"    reproduce: {sys.executable} {lent} replay 'exp(float32[2])' --device sim" in text
    assert f"    or run {sys.executable} findings/exp.py (needs torch only" in text
    assert "parity replay" in "\n".join(told.full(one, replace(there, command=("rm -rf", str(lent)))))
    report = issue.render(one, replace(there, fingerprint=replace(there.fingerprint, torch="2.99.0")), run_script)
    assert f"Run here (torch {torch.__version__}, not the run's 2.99.0) on the CPU alone" in report
    assert "PyTorch version: 2.99.0 (cf30)" in report


@pytest.mark.slow
def test_an_absent_device_is_told_in_the_bug_report() -> None:
    (one,) = gather([record("exp(float32[2])")])
    text = issue.render(one, header("xpu"), run_script)
    assert "It ended with 1" in text
    assert isinstance(one, Gathered)


def test_a_hang_that_an_older_parity_noted_is_told_as_one_of_today() -> None:
    """Its words stand in files of known findings."""
    for words in ("ended by parity after N s in sin", "hang in sin"):
        assert told.sentence(Cause(f"hang: {words}", "dies")) == "the device hangs in sin"
