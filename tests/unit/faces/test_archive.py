"""`parity doctor --archive`: every step is survived, and the archive names nobody."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from parity.core import processes, stored
from parity.core.errors import OutputError
from parity.devices import Fault, resolve
from parity.devices.costs import Costs
from parity.engine import suite
from parity.faces import archive, commandline
from parity.faces.archive import Asked
from parity.report import archive as words
from parity.report.archive import Step
from parity.zoo import reported
from parity.zoo.bug import Bug

SETUP = """\
import os, sys
print("HOME is", os.environ["HOME"], "of", os.environ["USER"], "with", os.environ["API_TOKEN"], file=sys.stderr)
print("MTL_DEBUG" in os.environ, os.environ.get("PYTORCH_MPS_FAST_MATH"), file=sys.stderr)
"""


JOBS = """
import json, os, signal, sys, time
from parity.core.child import BEGIN


def dies(given):
    print("before", flush=True)
    os.abort()
    yield


def sleeps(given):
    time.sleep(60)
    yield


def deaf(given):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield from sleeps(given)


def stores(given):
    try:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        print("stored")
    yield {}


def reported(given):
    for k in range(given.asked[-1], 4):
        yield {BEGIN: {"id": f"bug-{k}", "ordinal": k}}
        if k in (1, 2):
            os.abort()
        yield {"id": f"bug-{k}", "ordinal": k, "state": "same"}


def one(given):
    yield {"id": "x", "ordinal": 0, "state": given.asked[0]}
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs above, for children to import."""
    (tmp_path / "played.py").write_text(JOBS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(processes.__file__).parents[2])]))


def quiet(text: str) -> None:
    """Hear nothing."""


def steps_of(*steps: Step | type[BaseException]) -> object:
    """In place of the steps: these are taken, or this is raised."""

    def take(asked: Asked, folder: Path, until: float) -> Iterator[Step]:
        for step in steps:
            if not isinstance(step, Step):
                raise step
            (folder / f"{step.name}.txt").write_text(step.said)
            yield step

    return take


# ------------------------------------------------------------------------------------------------------------- survival


@pytest.mark.usefixtures("jobs")
def test_a_step_that_dies_has_a_code_and_a_last_line(tmp_path: Path) -> None:
    step = archive._ran("run", ("played.dies", None), tmp_path / "log", 60.0, [])
    assert (step.code, step.said, step.late) == (-6, "before", False)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("PASS  everything agrees, in 2 s; stored in /tmp/f/run.jsonl; next: parity diff", "PASS  everything agrees, in 2 s"),
        ("the run was interrupted; to go on: parity run --resume /tmp/f/r", "the run was interrupted"),
        ("parity: no op matches 'x'; see parity run --list", "parity: no op matches 'x'; see parity run --list"),
    ],
)  # fmt: skip
def test_no_command_is_told_with_a_file_that_is_gone(said: str, told: str) -> None:
    assert archive._here(said, Path("/tmp/f")) == told


@pytest.mark.usefixtures("jobs")
def test_a_step_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked first, and killed where it does not listen."""
    monkeypatch.setattr(archive, "GRACE", 0.5)
    started = time.monotonic()
    late = [archive._ran("run", (f"played.{name}", None), tmp_path / "log", 2.0, []).late for name in ("sleeps", "deaf")]
    assert late == [True, True]
    assert time.monotonic() - started < 30


@pytest.mark.usefixtures("jobs")
def test_a_case_that_ends_its_process_is_followed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death stands with its case, and the process after it starts behind."""
    monkeypatch.setattr(archive, "REPORTED", "played.reported")
    step = archive._reported(("sim", "", ""), tmp_path, 60.0)
    records = map(json.loads, (tmp_path / "reported.jsonl").read_text().splitlines())
    assert {r["id"]: r["state"] for r in records} == {
        "bug-0": "same", "bug-1": reported.DIED, "bug-2": reported.DIED, "bug-3": "same",
    }  # fmt: skip
    assert (step.code, step.said) == (1, "2 died, 2 same")


def test_a_device_that_compiles_graphs_is_measured(tmp_path: Path) -> None:
    """Another one is not, which is no failure."""
    assert archive._costs(("sim", "", ""), tmp_path, 60.0).said == "it compiles no graphs, so none were timed"
    assert not (tmp_path / "costs.json").exists()
    late = archive._costs(("sim:mps", "", ""), tmp_path, 0.0)
    assert (late.late, late.said) == (True, "the time was too short for it")
    step = archive._costs(("sim:mps", "", ""), tmp_path, 60.0)
    assert (step.code, step.said[:14], step.said[-3:]) == (0, "a graph takes ", " ms")
    held = stored.convert(json.loads((tmp_path / "costs.json").read_text()), Costs)
    assert (held.device, held.simulated) == ("sim:mps", True)


@pytest.mark.usefixtures("jobs")
def test_a_case_that_differs_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal does not: an operator without a kernel is no bug."""
    monkeypatch.setattr(archive, "REPORTED", "played.one")
    for state, expected in ((reported.DIFFERS, 1), (reported.RAISED, 0)):
        assert archive._reported((state, "", ""), tmp_path, 60.0).code == expected
    assert words.DIED == reported.DIED
    assert words.DIFFERS == reported.DIFFERS


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ((Step("doctor", 0, 1.0, ""), Step("run", 0, 1.0, "")), 0),
        ((Step("doctor", 0, 1.0, ""), Step("run", 130, 1.0, "", late=True)), 0),
        ((Step("doctor", 0, 1.0, ""), Step("run", -11, 1.0, "")), 1),
        ((Step("doctor", 4, 1.0, "no such device"),), 4),
        ((Step("doctor", 0, 1.0, ""), KeyboardInterrupt), 130),
    ],
)
def test_whatever_happens_there_is_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Sequence[Step | type[BaseException]], code: int
) -> None:
    """With what every step wrote until then, and how it ended."""
    monkeypatch.setattr(archive, "_steps", steps_of(*steps))
    path = tmp_path / "first.zip"
    assert archive.written(Asked("sim", path), quiet) == code
    with zipfile.ZipFile(path) as opened:
        about = json.loads(opened.read("first.json"))
        assert about["interrupted"] is (code == 130)
        assert [s["name"] for s in about["steps"]] == [s.name for s in steps if isinstance(s, Step)]
        assert "doctor.txt" in opened.namelist()


@pytest.mark.usefixtures("jobs")
def test_ctrl_c_in_a_step_ends_it_and_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes to this process alone; the step is asked to stop, and what it wrote then is in the archive."""

    def take(asked: Asked, folder: Path, until: float) -> Iterator[Step]:
        yield archive._ran("run", ("played.stores", None), folder / "run.txt", 60.0, [])

    monkeypatch.setattr(archive, "_steps", take)
    path = tmp_path / "first.zip"
    assert archive.written(Asked("sim", path), quiet) == 130
    with zipfile.ZipFile(path) as opened:
        assert opened.read("run.txt").decode().strip() == "stored"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_steps", steps_of(Step("doctor", 0, 1.0, "")))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="name another file with --output"):
        archive.written(Asked("sim", tmp_path / "file" / "first.zip"), quiet)


# --------------------------------------------------------------------------------------------------- what the steps are


def test_the_spread_has_ops_of_every_family() -> None:
    ops = archive.spread()
    families = {i.row.family for i in suite.select()}
    assert {i.row.family for i in suite.select(ops)} == families
    assert len(ops) <= archive.PER_FAMILY * len(families)


def bug(trigger: object, kind: str = "silent_wrong_forward") -> Bug:
    fault = Fault("exp-doubles", ops=("exp",), effect=lambda call: call.run() * 2, level="kernel", source="https://x")
    return Bug(fault=fault, kind=kind, triggers=("x",), trigger=trigger, neighbour=trigger)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_reported_case_on_a_device() -> None:
    """The device that has the bug differs, a healthy one does not; what raises is reported; random numbers are not compared."""
    exp = bug(lambda device: torch.ones(3, device=device).exp())
    assert reported.outcome(exp, resolve("sim")) == (reported.SAME, "")
    state, how = reported.outcome(exp, resolve("sim", [exp.fault]))
    assert state == reported.DIFFERS
    assert how.startswith("result 0: Tensor-likes are not close!")
    state, how = reported.outcome(bug(lambda device: torch.ones(3, device=device).frexp()), resolve("sim:mps"))
    assert (state, how[:19]) == (reported.RAISED, "NotImplementedError")
    assert reported.outcome(bug(lambda device: torch.rand(3, device=device), "rng"), resolve("sim"))[0] == reported.RANDOM
    assert reported.outcome(bug(lambda device: torch.ones(3).view(2)), resolve("sim"))[0] == reported.VOID


@pytest.mark.slow
def test_a_whole_run_in_seconds_names_nobody_and_can_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a simulated device, with a person's names planted in the environment, and a setup that prints them."""
    home = tmp_path / "home" / "jane.doe"
    home.mkdir(parents=True)
    (home / "setup.py").write_text(SETUP)
    planted = {"HOME": str(home), "USER": "jane.doe", "LOGNAME": "jane.doe", "API_TOKEN": "tok-83nf93kd02"}
    planted |= {"MTL_DEBUG": "janes-layer", "PYTORCH_MPS_FAST_MATH": "0"}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "first.zip"
    options = ["exp", "--device", "sim:mps", "--time", "12s", "-n", "1", "--setup", str(home / "setup.py")]
    assert commandline.main(["doctor", "--archive", *options, "--output", str(path)]) in (0, 1)
    with zipfile.ZipFile(path) as opened:
        texts = {n: opened.read(n).decode() for n in opened.namelist()}
    about = json.loads(texts["first.json"])
    assert about["steps"][0]["name"] == "doctor"
    assert not [s["said"] for s in about["steps"] if "parity-archive-" in s["said"]]
    assert about["environment"]["PYTORCH_MPS_FAST_MATH"] == "0"
    assert "HOME is ~ of USER with $API_TOKEN" in "".join(texts.values())
    assert "False 0" in "".join(texts.values())  # only PYTORCH_... reaches the steps, of what a run file would tell
    for secret in (str(home), "jane.doe", "tok-83nf93kd02", "janes-layer", str(tmp_path)):
        assert not [n for n, text in texts.items() if secret in n + text], secret
    capsys.readouterr()
    assert commandline.main(["report", str(path)]) == 0
    said = capsys.readouterr().out
    assert "0.2 minutes on sim:mps" in said
    assert f"verdict  {json.loads(texts['doctor.json'])['verdict']}: " in said
    for name in ("costs.json", "reported.jsonl", "run.jsonl", "audit.json"):  # a busy machine does not come to all of them
        assert (f"it holds no {name}" in said) is (name not in texts)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["softmax"], "'softmax' goes with --archive: parity doctor --archive; a device is named by --device"),
        (["a.zip", "--json"], "'a.zip' goes with --archive"),
        (["a.zip", "b.zip"], "a.zip and b.zip are two machines; name one archive"),
        (["a.zip", "--output", "b"], "'a.zip' goes with --archive"),
        (["a.zip"], "cannot read a.zip: No such file or directory; name a file that parity doctor --archive wrote"),
        (
            ["a.zip", "--device", "cpu"],
            "an archive is of its own machine, and nothing of this one is examined; leave --device out",
        ),
        (["a.zip", "--setup", "faults.py"], "nothing of this one is examined; leave --setup out"),
        (["--time", "3m"], "'--time' goes with --archive"),
        (["--output", "x.zip"], "'--output' goes with --archive"),
        (["--archive", "--json"], "--archive writes an archive; leave --json out"),
        (["--archive", "--seed", "3"], "--archive takes patterns, --time and -n of parity run, and not --seed"),
    ],
)
def test_mistakes_are_one_sentence(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commandline.main(["doctor", *argv]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
