"""The workflow to copy and the composite action: every script of theirs is run, on the simulated device, from a checkout of
another project. What only GitHub can show (its runners, its permissions, that caches of pull requests stay apart) is not."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import golden
import pytest
import yaml
from workflow import ROOT, Runner, machine, wanted

from parity.core import project
from parity.store import run_file

WORKFLOW = ROOT / ".github/workflows/parity.yml"
MAC = ROOT / ".github/workflows/mac.yml"
ACTION = ROOT / ".github/actions/parity/action.yml"
GATE = ACTION.with_name("gate.sh")
MANUAL = ROOT / "parity/manual/ci.md"
FILES = (ACTION, *sorted(WORKFLOW.parent.glob("*.yml")))
TORCH, VERSION = importlib.metadata.version("torch").replace("+", "_"), ".".join(map(str, sys.version_info[:2]))
LANE = f"sim-torch{TORCH}-py{VERSION}-macos15-ARM64"
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
    subprocess.run(["git", "push", "-q", "origin", "main"], cwd=made.folder, check=True)
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
        ("self-hosted", "explore", "support", "propose", "upgrade"), "skipped"
    ), runner.output
    baseline = f"parity-baseline-parity-gate-{LANE}-1-1"
    assert saved(runner) == [baseline]
    kept = run_file.read(runner.store / "caches" / baseline)
    assert (len(kept.items), kept.header.shard) == (1, "")
    shards = [f"parity-{LANE}-shard-{n}-of-2" for n in (1, 2)]
    assert {p.name for p in (runner.store / "artifacts").iterdir()} == {*shards, f"parity-gate-{LANE}"}
    log = (runner.store.parent / "pip.log").read_text()
    assert len(re.findall(rf"-m pip install -q -c \S+ {ROOT}\n", log)) == 3

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
    names = {p.name for shard in shards for p in (runner.store / "artifacts" / shard).iterdir()}
    assert names >= {"run.jsonl", "junit.xml", "run.log", "findings"}
    assert (runner.store / f"artifacts/parity-gate-{LANE}/report.html").exists()


@pytest.mark.slow
def test_a_shard_without_a_run_file_fails_the_gate(runner: Runner) -> None:
    """Its machine was lost: what is there is no whole run."""
    kept = runner.store / "artifacts/parity-sim-shard-1-of-2/run.jsonl"
    given = [*FEW["ops"].split(), *FEW["arguments"].split(), "--device", "sim", "--shard", "1/2", "--output", str(kept)]
    assert parity(runner, "run", *given).returncode in (0, 3)
    runner.inputs = FEW | {"merge": "parity-shards"}
    download = {"uses": "actions/download-artifact@v4", "with": {"pattern": "parity-*-shard-*", "path": "parity-shards"}}
    action = {"uses": "OWNER/parity/.github/actions/parity@v0"}
    assert runner.job("gate", [download, action], runner.given())["result"] == "failure"
    assert "parity: shard 2 of 2 missing" in runner.output
    assert saved(runner) == []


@pytest.mark.slow
def test_a_night_proposes_what_it_found(runner: Runner) -> None:
    """As a pull request of the file of known findings, from one branch for all nights; the night itself is red. Where main has
    accepted others since, the entries of both stay."""
    faulty(runner)
    origin, opened = runner.store.parent / "origin", runner.store.parent / "open-proposal"
    runner.event, runner.run_id = "schedule", 77
    jobs = runner.run(WORKFLOW)
    assert jobs["explore"] == "failure", runner.output
    assert (jobs["support"], jobs["propose"]) == ("success", "success"), runner.output
    page = runner.store / "artifacts/parity-support"
    assert 'data-is="wrong"' in (page / "index.html").read_text(), "exp, in the night's run"
    assert [p.name for p in page.glob("*.jsonl")] == ["night.jsonl"]
    assert saved(runner) == []
    asked = (runner.store.parent / "gh.log").read_text().splitlines()
    assert asked[-1].startswith("pr create --base main --head parity-known --title parity: causes found at night --body-file ")
    assert "TOKEN" not in (runner.folder / ".git/config").read_text()
    first = git(origin, "show", "parity-known:parity-known.toml")
    given = [*FEW["ops"].split(), *runner.inputs["arguments"].split(), "--device", "sim", "--known", "parity-known.toml"]
    done = parity(runner, "run", *given)
    assert done.returncode == 0, "it is green once a person has agreed"

    # The next night finds one more cause, while somebody pushed to main and nobody has judged the proposal.
    git(runner.folder, "switch", "-q", "main")
    (runner.folder / "parity-known.toml").write_text(first.replace("exp", "neg"))
    git(runner.folder, "add", "parity-known.toml")
    git(runner.folder, "commit", "-q", "-m", "accept another one")
    git(runner.folder, "push", "-q", "origin", "main")
    opened.write_text("5\n")
    (night,) = (runner.store / "artifacts").glob("parity-night-*")
    (night / "run.jsonl").write_bytes((golden.GOLDEN / "faulty.jsonl").read_bytes())
    propose = yaml.safe_load(WORKFLOW.read_text())["jobs"]["propose"]["steps"]
    assert runner.job("propose", propose, runner.given())["result"] == "success", runner.output
    second = git(origin, "show", "parity-known:parity-known.toml")
    ids = [re.findall(r'^id = "(\S+)"', text, re.M) for text in (first, second)]
    assert [sorted(found) for found in ids] == [["exp-b4c8f1"], ["add-080c22", "exp-b4c8f1", "neg-b4c8f1"]]
    assert git(origin, "branch", "--format=%(refname:short)").split() == ["main", "parity-known"]
    assert git(origin, "merge-base", "main", "parity-known") == git(origin, "rev-parse", "main")
    asked = (runner.store.parent / "gh.log").read_text().splitlines()
    assert asked[-1].startswith("pr edit 5 --body-file ")


def git(folder: Path, *command: str) -> str:
    asked = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command]
    return subprocess.run(asked, cwd=folder, text=True, capture_output=True, check=True).stdout


def parity(runner: Runner, *command: str) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "parity", *command]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(asked, cwd=runner.folder, env=env, text=True, capture_output=True, check=False)


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
    """No environment is made, and the torch that is there stays; the set-up file reaches the examination and the run. A
    scheduled run can become the baseline."""
    (runner.folder / "flags.py").write_text("print('flags are set')\n")
    runner.inputs = FEW | {"python-version": "", "setup": "flags.py", "ops": "exp", "baseline": "replace"}
    runner.event = "schedule"
    result = runner.job("lane", [{"uses": "OWNER/parity/.github/actions/parity@v0"}], runner.given())
    assert result["result"] == "success", runner.output
    log = (runner.store.parent / "pip.log").read_text()
    assert re.fullmatch(rf"\S+/bin/python3 -m pip install -q {ROOT}\n", log)
    assert run_file.read(runner.folder / "parity-out/run.jsonl").header.setup.name.endswith("flags.py")
    assert saved(runner) == [f"parity-baseline-parity-{LANE}-1-1"]


# --------------------------------------------------------------------- the script, with a parity that notes what it is asked

STUB = """#!/bin/bash
[ "$1 $2" = "-m parity" ] || exec {python} "$@"
shift 2
printf '%q ' "$@" >> {folder}/asked; echo >> {folder}/asked
[ "$1" != run ] || {{ echo "the run began"; touch parity-out/run.jsonl parity-out/junit.xml; }}
[ "$1" != diff ] || echo "nothing changed"
if [ "$1" = run ] && [ -f slow ]; then
  trap 'echo "the run was stopped"; exit 130' TERM
  touch {folder}/began
  for _ in {{1..600}}; do sleep 0.05; done
fi
[ "$1" != run ] || exit "$(cat code 2> /dev/null || echo 0)"
[ "$1" != report ] || [ "$5" != -o ] || echo "a report" > "$6"
[ "$1" != report ] || exit "$(cat code 2> /dev/null || echo 0)"
"""


@pytest.fixture
def stub(tmp_path: Path) -> Runner:
    """A machine whose parity notes its arguments, and ends as the project's file `code` says."""
    program = tmp_path / "stub"
    program.write_text(STUB.format(python=sys.executable, folder=tmp_path))
    program.chmod(0o755)
    return machine(tmp_path, {"device": "sim"}, str(program))


def asked(stub: Runner) -> list[list[str]]:
    return [shlex.split(line) for line in (stub.folder.parent / "asked").read_text().splitlines()]


def on_mac(stub: Runner, event: str = "push", ref: str = "main", **inputs: str) -> str:
    """The result of the workflow of one job, called with these inputs."""
    defaults = yaml.safe_load(MAC.read_text())[True]["workflow_call"]["inputs"]
    stub.event, stub.ref, stub.run_id, stub.output = event, ref, stub.run_id + 1, ""
    stub.dispatch = {k: v["default"] for k, v in defaults.items()} | {k.replace("_", "-"): v for k, v in inputs.items()}
    return stub.run(MAC)["mac"]


def test_arguments_with_blanks_arrive_whole(stub: Runner) -> None:
    assert (
        on_mac(stub, ops="'my models.py' 'lin*'", arguments='--dtype float32 --setup "a b.py"', install="-e '.[a b]'")
        == "success"
    )
    _, run, *_ = asked(stub)
    assert run[:3] == ["run", "my models.py", "lin*"]
    assert run[-4:] == ["--dtype", "float32", "--setup", "a b.py"]
    assert "-m pip install -q -e .[a b]\n" in (stub.folder.parent / "pip.log").read_text()
    assert on_mac(stub, arguments="it's") == "failure"
    assert "parity: a quote is not closed in: it's" in stub.output


def test_a_run_draws_few_shapes_and_their_number_of_cases_by_default(stub: Runner) -> None:
    """The profile mac without a limit of time, from the workflow, from the action alone and from the script alone."""
    assert on_mac(stub) == "success"
    _, run, *_ = asked(stub)
    assert run[run.index("--profile") + 1] == "mac"
    assert "--time" not in run
    assert on_mac(stub, profile="quick", time="5m") == "success"
    again = [words for words in asked(stub) if words[0] == "run"][1]
    assert again[again.index("--profile") + 1 : again.index("--profile") + 2] == ["quick"]
    assert again[again.index("--time") + 1] == "5m"
    assert yaml.safe_load(ACTION.read_text())["inputs"]["profile"]["default"] == ""
    assert "PARITY_PROFILE=mac" in GATE.read_text()


def test_a_known_file_that_is_named_must_be_there(stub: Runner) -> None:
    """The usual one is taken where it is, and its absence is no error."""
    assert on_mac(stub) == "success"
    (stub.folder / "parity-known.toml").touch()
    assert on_mac(stub) == "success"
    first, second = (line for line in asked(stub) if line[0] == "run")
    assert "--known" not in first
    assert second[second.index("--known") + 1] == "parity-known.toml"
    assert on_mac(stub, known="other.toml") == "failure"
    assert "parity: there is no file of known findings 'other.toml'" in stub.output
    assert len([line for line in asked(stub) if line[0] == "run"]) == 2


def test_settings_of_the_project_count_where_an_input_is_empty(stub: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an input gives decides, and what nobody gives is the action's own."""
    monkeypatch.delenv(project.FILE, raising=False)  # the job is somebody else's, who begins
    stub.inputs = {}
    known = [stub.folder / "parity-known.toml", stub.folder / "mine.toml"]
    for path in known:
        path.touch()
    assert on_mac(stub) == "success", stub.output
    doctor, run = asked(stub)[:2]
    assert doctor == ["doctor", "--device", "mps"]
    assert run[1:7] == ["--device", "mps", "--profile", "mac", "--seed", "0"]
    assert run[7:9] == ["--known", "parity-known.toml"]
    assert saved(stub) == [f"parity-baseline-parity-{LANE.replace('sim', 'mps', 1)}-2-1"]

    settings = ('device = "cuda"', 'profile = "full"', 'known = "mine.toml"', 'fail-on = ["unsupported"]')
    (stub.folder / "pyproject.toml").write_text("\n".join(("[tool.parity]", *settings)))
    assert on_mac(stub) == "success", stub.output
    doctor, run = [line for line in asked(stub) if line[0] in ("doctor", "run")][2:]
    assert doctor == ["doctor"]
    assert run[1:3] == ["--seed", "0"]
    assert not {"--device", "--profile", "--known", "--fail-on"} & {*run}
    assert f"parity-baseline-parity-{LANE.replace('sim', 'cuda', 1)}-3-1" in saved(stub)

    stub.inputs = {"device": "sim", "profile": "deep", "known": "parity-known.toml", "strict-known": "true"}
    assert on_mac(stub) == "success", stub.output
    doctor, run = [line for line in asked(stub) if line[0] in ("doctor", "run")][4:]
    assert doctor == ["doctor", "--device", "sim"]
    assert run[1:5] == ["--device", "sim", "--profile", "deep"]
    assert run[7:11] == ["--known", "parity-known.toml", "--fail-on", "known,unsupported"]

    (stub.folder / "pyproject.toml").write_text("[tool.parity]\ndevise = 'sim'\n")
    stub.inputs = {}
    assert on_mac(stub) == "failure"
    assert "[tool.parity] has no key 'devise'" in stub.output
    assert "Traceback" not in stub.output


def test_a_night_is_strict_about_known_findings_where_there_are_any(stub: Runner) -> None:
    """The option is refused without a file of them, and the first file is what a night proposes."""
    stub.event = "schedule"
    assert stub.run(WORKFLOW)["explore"] == "success", stub.output
    (stub.folder / "parity-known.toml").touch()
    assert stub.run(WORKFLOW)["explore"] == "success", stub.output
    strict = [" ".join(line).partition("--known parity-known.toml ")[2][:15] for line in asked(stub) if line[0] == "run"]
    assert strict == ["", "--fail-on known"]


@pytest.mark.parametrize("left", [("shard 1", "shard 2"), ()])
def test_shards_are_merged_where_there_are_any(left: tuple[str, ...], stub: Runner) -> None:
    """Also on macOS, whose xargs does nothing without a name; and a code of 0 without a run file is no success."""
    for name in left:
        (stub.folder / "shards" / name).mkdir(parents=True)
        (stub.folder / "shards" / name / "run.jsonl").touch()
    (stub.folder / "shards").mkdir(exist_ok=True)
    assert subprocess.run(["bash", GATE, "install"], cwd=stub.folder, env={"PATH": stub.path}, check=False).returncode == 0
    env = {"PATH": stub.path, "PARITY_MERGE": "shards"}
    done = subprocess.run(["bash", GATE, "run"], cwd=stub.folder, env=env, text=True, capture_output=True, check=False)
    merges = [sorted(line[3:]) for line in asked(stub) if line[0] == "merge"] if left else []
    assert merges == ([sorted(f"shards/{name}/run.jsonl" for name in left)] if left else [])
    assert (done.returncode, "there is no run.jsonl in 'shards'" in done.stderr) == ((0, False) if left else (2, True))
    done = subprocess.run(["bash", GATE, "report"], cwd=stub.folder, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert ("there is no run file in 'parity-out'" in done.stderr) == bool(left)


def test_which_run_becomes_the_baseline(stub: Runner) -> None:
    """The last one that passed on the default branch, whatever its owner did to start it, and of its own lane."""
    (stub.folder / "code").write_text("1")
    assert on_mac(stub) == "failure"
    assert saved(stub) == [], "the first day was red"
    (stub.folder / "code").write_text("0")
    assert on_mac(stub, name="lane two") == "success"
    assert saved(stub) == [f"parity-baseline-lane_two-{LANE}-3-1"]
    assert "no accepted run of the default branch to compare with" in stub.output
    assert on_mac(stub, "pull_request", name="lane two") == "success"
    assert asked(stub)[-1][0] == "diff"
    (step,) = (s for _, s in steps() if s.get("id") == "accepted")
    given = {"inputs": {"run": "true", "shard": "", "baseline": "compare"}}

    def accepted(event: str, ref: str = "main") -> bool:
        stub.event, stub.ref = event, ref
        return wanted(str(step["if"]), stub.given() | given, failed=False)

    assert [e for e in ("push", "schedule", "workflow_dispatch") if not accepted(e)] == []
    assert [e for e in ("pull_request", "pull_request_target", "merge_group", "workflow_run") if accepted(e)] == []
    assert not accepted("push", "topic")


def test_no_lane_passes_without_an_exit_code(stub: Runner) -> None:
    """A run that was killed wrote none."""
    (stub.folder / "parity-out").mkdir()
    env = {"PATH": stub.path, "PARITY_OWN_PYTHON": "true"}
    done = subprocess.run(["bash", GATE, "report"], cwd=stub.folder, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "parity run ended with no exit code: it did not end" in done.stdout


def test_a_cancelled_job_stops_the_run_and_shows_what_it_did(stub: Runner) -> None:
    """Its output comes as the run writes it, and the signal that only the shell gets reaches the run."""
    (stub.folder / "slow").touch()
    assert subprocess.run(["bash", GATE, "install"], cwd=stub.folder, env={"PATH": stub.path}, check=False).returncode == 0
    began, log = stub.folder.parent / "began", stub.folder / "parity-out/run.log"
    job = subprocess.Popen(["bash", GATE, "run"], cwd=stub.folder, env={"PATH": stub.path}, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (began.exists() and log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    assert log.read_text() == "the run began\n"
    job.send_signal(signal.SIGINT)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert output.endswith("the run began\nthe run was stopped\n")
    assert (stub.folder / "parity-out/code").read_text() == "130\n"


def test_an_environment_without_pip(stub: Runner) -> None:
    """Of uv, for example: uv installs into it; without both, the message says so."""
    programs = stub.folder.parent / "bin"
    python = (programs / "python3").read_text().replace("case", '[[ "$*" != *find_spec* ]] || exit 1\ncase', 1)
    (programs / "python3").write_text(python)
    env = {"PATH": stub.path, "PARITY_OWN_PYTHON": "true", "PARITY_TORCH": "torch==2.12.0"}
    done = subprocess.run(["bash", GATE, "install"], cwd=stub.folder, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"parity: {programs}/python3 has no pip, and there is no uv; install one of them before this step\n"
    for name, text in {"uv": f'echo "$*" >> {stub.folder.parent}/uv.log', "parity": ""}.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    assert subprocess.run(["bash", GATE, "install"], cwd=stub.folder, env=env, check=False).returncode == 0
    into = f"pip install -q --python {programs}/python3"
    assert (stub.folder.parent / "uv.log").read_text() == f"{into} torch==2.12.0\n{into} {ROOT}\n"


def test_the_example_for_gitlab(stub: Runner) -> None:
    """Its script, with a git and a curl that bring the checkout and no baseline: green, and red for a finding."""
    job = yaml.safe_load(example("parity:"))["parity"]
    programs = {
        "git": f'[ "$1" != init ] || {{ mkdir -p .parity; ln -sfn {ROOT} "$3"; }}',
        "curl": '[ "${@: -1}" = "/projects//jobs/artifacts/main/raw/parity-out/run.jsonl?job=parity" ] && exit 22',
    }
    for name, text in programs.items():
        (stub.folder.parent / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (stub.folder.parent / "bin" / name).chmod(0o755)
    env = {"PATH": stub.path, "CI_DEFAULT_BRANCH": "main", "CI_JOB_NAME": "parity", "CI_API_V4_URL": "", "CI_PROJECT_ID": ""}
    env |= {"CI_JOB_TOKEN": "", **job["variables"], "PARITY_DEVICE": "sim"}
    for code in (0, 1):
        (stub.folder / "code").write_text(str(code))
        script = "\n".join(job["script"])
        done = subprocess.run(["bash", "-euc", script], cwd=stub.folder, env=env, text=True, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
    assert "no accepted run of the default branch to compare with" in done.stdout
    _, run, *_ = asked(stub)
    assert run[run.index("--time") + 1] == "20m"
    assert (stub.folder / job["artifacts"]["reports"]["junit"]).exists()


def example(first: str) -> str:
    """The block of the manual that begins so."""
    (found,) = (b for b in re.findall(r"```yaml\n(.*?)```", MANUAL.read_text(), re.DOTALL) if b.startswith(first))
    return str(found)


# ------------------------------------------------------------------------------------------------------- what they say


def steps() -> list[tuple[str, dict[str, object]]]:
    """(job or action, step) of all files."""
    trees = [yaml.safe_load(p.read_text()) for p in FILES]
    return [
        (name, step)
        for tree in trees
        for name, job in {"action": tree.get("runs"), **tree.get("jobs", {})}.items()
        if job
        for step in job["steps"]
    ]


def test_every_action_is_pinned_and_named_by_its_tag() -> None:
    """By the forty digits of a commit; the same one everywhere. Those of this repository are of the commit that runs."""
    pins: dict[str, set[str]] = {}
    for path in FILES:
        for uses in re.findall(r"uses: (.+)", re.sub(r"^#.*", "", path.read_text(), flags=re.M)):
            if uses.startswith("$/"):
                continue
            found = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40})  # v\d+\.\d+\.\d+", uses)
            assert found, uses
            pins.setdefault("/".join(found[1].split("/")[:2]), set()).add(found[2])
    assert {name: len(p) for name, p in pins.items() if len(p) > 1} == {}


def test_only_a_proposal_may_write() -> None:
    """And nothing runs with the rights of the repository on what a stranger sends. No checkout leaves a token behind."""
    for path in WORKFLOW.parent.glob("*.yml"):
        text = path.read_text()
        workflow = yaml.safe_load(text)
        assert "pull_request_target" not in text
        assert workflow["permissions"] == {"contents": "read"}
        given = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
        writes = {name: some for name, some in given.items() if "write" in some.values()}
        assert writes.keys() <= {"propose"} or (path.stem, writes) == ("release", {"publish": {"id-token": "write"}})
        assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["jobs"]["explore"]["if"] == "${{ github.event_name == 'schedule' }}"
    assert workflow["jobs"]["propose"]["needs"] == "explore"
    checkouts = [step["with"] for _, step in steps() if "actions/checkout" in str(step.get("uses"))]
    assert len(checkouts) > 6
    assert all(isinstance(given, dict) and given["persist-credentials"] is False for given in checkouts)


def test_no_expression_stands_in_a_script() -> None:
    """Whoever writes the value of one could write the script."""
    assert [name for name, step in steps() if "${{" in str(step.get("run", ""))] == []


def test_the_call_from_another_repository_is_six_lines() -> None:
    """It is a workflow, which names its commit and may only read."""
    lines = example("on:")
    assert lines.count("\n") == 6
    call = yaml.safe_load(lines)
    assert call["permissions"] == {"contents": "read"}
    assert call["jobs"]["parity"]["uses"] == f"OWNER/parity/.github/workflows/{MAC.name}@COMMIT"


def test_every_input_reaches_the_script() -> None:
    """An input that no step reads would be without effect; so would one of the workflow that is not handed on."""
    action, workflow = yaml.safe_load(ACTION.read_text()), yaml.safe_load(MAC.read_text())
    text = ACTION.read_text().partition("\nruns:")[2]
    assert [name for name in action["inputs"] if f"inputs.{name} " not in text] == []
    given = workflow["jobs"]["mac"]["steps"][-1]["with"]
    offered = set(workflow[True]["workflow_call"]["inputs"]) - {"runs-on"}
    assert given == {name: f"${{{{ inputs.{name} }}}}" for name in offered}
    read = set(re.findall(r"\bPARITY_\w+", GATE.read_text()))
    assert read == set(re.findall(r"\bPARITY_\w+(?=:)", text)) | {"PARITY_TORCH"}
