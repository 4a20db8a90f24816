"""Annotations of a GitHub workflow: the worst causes, few enough to be shown, and nothing in them that is a command itself."""

from __future__ import annotations

from parity.core.results import Cause, Fingerprint, Measure, Record
from parity.report.annotations import MOST, render
from parity.runs import causes
from parity.runs.rows import End, Header, Run

RUN = Run(Header(Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "")), end=End())


def found(*ops: str, reason: str = "") -> tuple[causes.Gathered, ...]:
    return causes.gather(
        Record(f"{op}(float32[2])", op, "float32", "forward", "wrong", reason=reason, measures=(Measure("out"),),
               shrunk=f"{op}(float32[2])", cause=Cause(f"aten::{op}", "values"))
        for op in ops
    )  # fmt: skip


def test_one_error_for_each_cause_and_its_command() -> None:
    lines = render(found("exp"), RUN, "run.jsonl").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::error title=parity exp-")
    assert "aten::exp gives wrong values" in lines[0]
    assert "%0Aparity report run.jsonl exp-" in lines[0]


def test_no_more_than_github_shows_and_the_rest_is_counted() -> None:
    some = found(*(f"op{k}" for k in range(MOST)))
    assert len(render(some, RUN, "r").splitlines()) == MOST
    lines = render(found(*(f"op{k}" for k in range(MOST + 5))), RUN, "r").splitlines()
    assert len(lines) == MOST
    assert lines[-1] == "::error title=parity::6 more causes: parity report r"


def test_a_run_that_is_not_whole_is_an_error() -> None:
    """Though nothing was found in it; one that is whole gives no line."""
    assert render((), RUN, "r") == ""
    cut = Run(RUN.header, end=End(stopped="cut by --time: the pinned cases of 3 items were not checked"))
    assert render((), cut, "r").startswith("::error title=parity%3A not the whole run::cut by --time")
    assert "has no end row" in render((), Run(RUN.header), "r")
    assert "parity itself failed: x" in render((), Run(RUN.header, end=End(broken=("x",))), "r")


def test_a_text_cannot_be_a_command() -> None:
    """Neither by its line ends, nor by per cent signs, nor within its line."""
    evil = Run(RUN.header, end=End(stopped="x\r::set-output name=a::b%0A::error::c ##[group]\x1b[31m"))
    text = render((), evil, "r")
    assert text.count("\n") == 1
    assert "%0A::" not in text
    assert "##[" not in text
    assert "\x1b" not in text
    assert "\r" not in text
