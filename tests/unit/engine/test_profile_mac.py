"""The profile for a runner with MPS: few shapes, and what it still finds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from parity import tolerance
from parity.core.results import Fingerprint
from parity.core.status import Conclusion
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.report import causes, gaps
from parity.store import run_file
from parity.store.rows import End, Header


def strided(call: Call) -> bool:
    return not all(t.is_contiguous() for t in call.operands)


def examined(op: str, *faults: Fault) -> Examined:
    """An op in float32, at the profile, on a device with faults."""
    plan = RunPlan(
        resolve("sim", faults),
        resolve("cpu"),
        tolerance.load("sim"),
        suite.profile("mac"),
        RunOptions(device="sim", profile="mac", skip=("shrink",)),
    )
    return examine(suite.Item(suite.row(op), "float32"), plan, NoJournal())


def wrong(call: Call) -> Any:
    return call.run() * 1.01


@pytest.mark.parametrize(
    ("op", "kernel", "when"), [("exp", "exp", strided), ("tanh", "tanh", lambda call: True), ("mm", "mm", strided)]
)
def test_a_fault_that_needs_no_other_shape_is_found(op: str, kernel: str, when: Any) -> None:
    """By layout, and in every call; a healthy device gives no finding in as many cases."""
    ill, well = examined(op, Fault("planted", (kernel,), wrong, when=when)), examined(op)
    assert ill.findings
    assert not well.findings
    assert well.summary.cases == ill.summary.cases >= 30


def test_the_summary_of_a_job_says_what_its_agreement_excludes(tmp_path: Path) -> None:
    """In the Markdown of a run with this profile, and not in that of another."""
    path = tmp_path / "run.jsonl"
    for profile in ("mac", "quick"):
        with run_file.Writer(path) as writer:
            device = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "")
            writer.write(Header(device, profile=profile))
            writer.write(End())
        ran = run_file.read(path)
        text = causes.as_markdown((), ran.header, Conclusion.PASS, excluded=gaps.excluded(ran))
        assert ("- narrow: mac profile, without most shapes, scalars and flags besides one set" in text) == (profile == "mac")
        assert all((f"{score}" in text) == (profile == "mac") for score in suite.profile("mac").scores)


def test_a_run_says_what_the_profile_leaves_out() -> None:
    """In a line of its own; no other profile has one, and neither has a profile that this version does not know."""
    narrow, planted = gaps.narrow("mac")
    assert narrow.short() == [f"narrow     mac profile, without {suite.profile('mac').excludes}"]
    assert planted.brief.startswith("this profile found ")
    assert not any(gaps.narrow(name) for name in ("quick", "full", "deep", "tests", ""))


def test_scores_say_how_they_can_be_had_again() -> None:
    """Each of the two kinds of planted faults, with a command that names the profile and a commit."""
    for name, profile in suite.PROFILES.items():
        assert bool(profile.scores) == bool(profile.excludes)
        for score in profile.scores:
            assert score.found <= score.of >= score.quick > 0
            assert score.command.startswith("parity prove ")
            assert f"--profile {name}" in score.command
            assert re.fullmatch("[0-9a-f]{7,}", score.commit)
    assert {s.command.split()[2] for s in suite.profile("mac").scores} == {"zoo", "mutants"}
