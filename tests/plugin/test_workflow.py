"""The workflow to copy and the composite action: every script of theirs is run, on the simulated device, from a checkout of
another project. What only GitHub can show (its runners, its permissions, that caches of pull requests stay apart) is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workflow import ROOT, Runner, machine

from parity.store import run_file

WORKFLOW = ROOT / ".github/workflows/parity.yml"
ACTION = ROOT / ".github/actions/parity/action.yml"
FEW = {"device": "sim", "ops": "exp", "profile": "quick", "time": "", "seed": "0"}
FEW |= {"arguments": "--examples 2 --dtype float32 -n 1 --power 0 --skip again"}
FAULTS = """
from parity.devices import Fault

FAULTS = [Fault("halved", ops=("exp",), effect=lambda call: call.run() * 0.5, level="kernel")]
"""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A machine with a checkout of somebody's project, which is no copy of parity."""
    made = machine(tmp_path, FEW)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q", "--bare", tmp_path / "origin"], check=True)
    subprocess.run([*git, "init", "-q", "-b", "main", made.folder], check=True)
    subprocess.run([*git, "remote", "add", "origin", tmp_path / "origin"], cwd=made.folder, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "begin"], cwd=made.folder, check=True)
    return made


def faulty(runner: Runner) -> None:
    """From here on the device halves what exp gives."""
    (runner.folder / "faults.py").write_text(FAULTS)
    runner.inputs = FEW | {"arguments": FEW["arguments"] + " --setup faults.py"}


def saved(runner: Runner) -> list[str]:
    return sorted(p.name for p in (runner.store / "caches").glob("*"))


@pytest.mark.slow
def test_shards_gate_and_baseline(runner: Runner) -> None:
    """A push to main passes and becomes the baseline; a pull request with a fault fails, with its causes, and does not."""
    jobs = runner.run(WORKFLOW, leave_out=("second-lane",))
    assert jobs == dict.fromkeys(("shards", "gate"), "success") | dict.fromkeys(
        ("self-hosted", "explore", "propose", "upgrade"), "skipped"
    ), runner.output
    baseline = "parity-baseline-parity-gate-macos15-ARM64-1-1"
    assert saved(runner) == [baseline]
    kept = run_file.read(runner.store / "caches" / baseline)
    assert (len(kept.items), kept.header.shard) == (1, "")
    assert {p.name for p in (runner.store / "artifacts").iterdir()} == {"parity-shard-1", "parity-shard-2", "parity-gate"}
    log = (runner.store.parent / "pip.log").read_text()
    assert len(re.findall(rf"-m pip install -q -c \S+/constraints.txt {ROOT}\n", log)) == 3

    assert "nothing was compared" in runner.output, "one of the shards is empty, which is for the gate to judge"
    faulty(runner)
    runner.event, runner.ref, runner.run_id, runner.output = "pull_request", "7/merge", 2, ""
    jobs = runner.run(WORKFLOW, leave_out=("second-lane",))
    assert (jobs["shards"], jobs["gate"]) == ("failure", "failure"), runner.output
    assert saved(runner) == [baseline]
    assert re.search(r"^::error title=parity A exp-\w+::aten::exp gives wrong values;", runner.output, re.M)
    assert "regressed" in runner.output
    summary = (runner.store / "summary.md").read_text()
    assert "no accepted run of the default branch to compare with" in summary
    assert "aten::exp" in summary
    names = {p.name for p in (runner.store / "artifacts/parity-shard-1").iterdir()}
    names |= {p.name for p in (runner.store / "artifacts/parity-shard-2").iterdir()}
    assert names >= {"run.jsonl", "junit.xml", "run.log", "findings"}
    assert (runner.store / "artifacts/parity-gate/report.html").exists()


@pytest.mark.slow
def test_a_shard_without_a_run_file_fails_the_gate(runner: Runner) -> None:
    """Its machine was lost: what is there is no whole run."""
    kept = runner.store / "artifacts/parity-shard-1/run.jsonl"
    asked = ["run", *FEW["ops"].split(), *FEW["arguments"].split(), "--device", "sim", "--shard", "1/2", "--output", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "parity", *asked], cwd=runner.folder, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode in (0, 3)
    runner.inputs = FEW | {"merge": "parity-shards"}
    download = {"uses": "actions/download-artifact@v4", "with": {"pattern": "parity-shard-*", "path": "parity-shards"}}
    action = {"uses": "OWNER/parity/.github/actions/parity@v0"}
    assert runner.job("gate", [download, action], runner.given())["result"] == "failure"
    assert "parity: shard 2 of 2 missing" in runner.output
    assert saved(runner) == []


@pytest.mark.slow
def test_a_night_proposes_what_it_found(runner: Runner) -> None:
    """As a pull request of the file of known findings, from a branch of its own; the night itself is red."""
    faulty(runner)
    runner.event, runner.run_id = "schedule", 77
    jobs = runner.run(WORKFLOW)
    assert jobs["explore"] == "failure", runner.output
    assert jobs["propose"] == "success", runner.output
    assert saved(runner) == []
    log = subprocess.run(
        ["git", "log", "-1", "--format=%s", "--stat", "parity-known-77"],
        cwd=runner.store.parent / "origin", text=True, capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert "Add the causes that parity found last night" in log
    assert "parity-known.toml" in log
    given = FEW["ops"].split() + runner.inputs["arguments"].split()
    again = [sys.executable, "-m", "parity", "run", *given, "--device", "sim", "--known", "parity-known.toml"]
    done = subprocess.run(again, cwd=runner.folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, "it is green once a person has agreed"
    asked = (runner.store.parent / "gh.log").read_text()
    assert asked.startswith("pr create --base main --head parity-known-77 --title parity: causes found last night --body-file ")


@pytest.mark.slow
def test_an_upgrade_is_compared_on_one_machine(runner: Runner) -> None:
    """Both torches are installed as they were asked for, one after the other, and without the tested version's pin."""
    runner.event = "workflow_dispatch"
    runner.dispatch = {"old-torch": "torch==2.12.0", "new-torch": "--pre torch --index-url https://example.org/nightly"}
    jobs = runner.run(WORKFLOW)
    assert {k for k, v in jobs.items() if v == "success"} == {"upgrade"}, runner.output
    assert "nothing changed" in runner.output
    log = (runner.store.parent / "pip.log").read_text()
    assert "python -m pip install -q torch==2.12.0\n" in log
    assert "python -m pip install -q --pre torch --index-url https://example.org/nightly\n" in log


@pytest.mark.slow
def test_a_lane_with_its_own_python(runner: Runner) -> None:
    """No environment is made, and the torch that is there stays; the set-up file reaches the examination and the run."""
    (runner.folder / "flags.py").write_text("print('flags are set')\n")
    runner.inputs = FEW | {"python-version": "", "setup": "flags.py", "ops": "exp", "baseline": "replace"}
    result = runner.job("lane", [{"uses": "OWNER/parity/.github/actions/parity@v0"}], runner.given())
    assert result["result"] == "success", runner.output
    log = (runner.store.parent / "pip.log").read_text()
    assert re.fullmatch(rf"\S+/bin/python3 -m pip install -q {ROOT}\n", log)
    assert run_file.read(runner.folder / "parity-out/run.jsonl").header.setup.name.endswith("flags.py")
    assert saved(runner) == ["parity-baseline-parity-macos15-ARM64-1-1"]


# ------------------------------------------------------------------------------------------------------- what they say


def files() -> list[tuple[str, dict[str, object]]]:
    workflow, action = (yaml.safe_load(p.read_text()) for p in (WORKFLOW, ACTION))
    steps = [(name, s) for name, job in workflow["jobs"].items() for s in job["steps"]]
    return [*steps, *(("action", s) for s in action["runs"]["steps"])]


def test_every_action_is_pinned_and_named_by_its_tag() -> None:
    """By the forty digits of a commit; the same one everywhere."""
    pins: dict[str, set[str]] = {}
    for path in (WORKFLOW, ACTION):
        for uses in re.findall(r"uses: (.+)", re.sub(r"^#.*", "", path.read_text(), flags=re.M)):
            if uses.startswith("./"):
                continue
            found = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", uses)
            assert found, uses
            pins.setdefault("/".join(found[1].split("/")[:2]), set()).add(found[2])
    assert {name: len(p) for name, p in pins.items() if len(p) > 1} == {}


def test_only_the_nightly_proposal_may_write() -> None:
    """And nothing runs with the rights of the repository on what a stranger sends."""
    text = WORKFLOW.read_text()
    workflow = yaml.safe_load(text)
    assert "pull_request_target" not in text
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "permissions" in job] == ["propose"]
    assert workflow["jobs"]["explore"]["if"] == "${{ github.event_name == 'schedule' }}"
    assert workflow["jobs"]["propose"]["needs"] == "explore"
    for name, step in files():
        if "actions/checkout" in str(step.get("uses")) and name != "propose":
            assert step["with"] == {"persist-credentials": False}


def test_no_expression_stands_in_a_script() -> None:
    """Whoever writes the value of one could write the script."""
    assert [name for name, step in files() if "${{" in str(step.get("run", ""))] == []


def test_the_call_from_another_repository_is_six_lines() -> None:
    """In the action's own comment and in the manual, and it is a workflow."""
    lines = [line.removeprefix("#   ") for line in ACTION.read_text().splitlines() if line.startswith("#   ")]
    assert len(lines) == 6
    assert yaml.safe_load("\n".join(lines))["jobs"]["parity"]["runs-on"] == "macos-15"
    assert "\n".join(lines) in (ROOT / "parity/manual/ci.md").read_text()
