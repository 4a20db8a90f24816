"""How a run ends: interrupted, cancelled, with nobody reading. What is done is said and stored, and the exit code speaks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import commands
import pytest

from parity.core.errors import OutputError
from parity.core.results import Fingerprint, Record
from parity.faces import commandline
from parity.faces.commands import replay
from parity.store import run_file
from parity.store.code import code_of
from parity.store.rows import End, Header, ItemRow, Run
from parity.store.run_file import Writer

PARITY = (sys.executable, "-m", "parity")
TWICE = 'from parity.devices import Fault\nFAULTS = [Fault("twice", ops=("exp",), effect=lambda call: call.run() * 2 + 1)]\n'
CASE = "exp(float32[2])"


def stopped(folder: Path, number: int, at: str, ops: tuple[str, ...]) -> tuple[int, str, Run]:
    """Exit code, output and run file of a run that gets a signal as soon as it says `at`."""
    path = folder / "run.jsonl"
    asked = (*ops, "--device", "sim", "--dtype", "float32", "--examples", "3", "-n", "1", "--output", str(path))
    one = {"stderr": subprocess.STDOUT, "text": True, "cwd": folder, "start_new_session": True}
    with subprocess.Popen((*PARITY, "run", *asked), stdout=subprocess.PIPE, **one) as run:  # type: ignore[call-overload]
        told = ""
        for line in run.stdout or ():
            told += line
            if at in line:
                run.send_signal(number)
                at = "once is enough"
    return run.wait(), told, run_file.read(path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_keeps_what_is_done(number: int, tmp_path: Path) -> None:
    """Ctrl-C, or the cancelled job of a CI."""
    code, told, run = stopped(tmp_path, number, "%  1/", ("exp", "svd", "conv3d", "lstm", "stft"))
    assert code == 130
    assert "interrupted: keeping the" in told
    assert "stored in" in told
    assert re.match(r"(INCONCLUSIVE|FAIL)  .*; the run was interrupted after \d+ of ", told.splitlines()[-1])
    assert not any(word in told for word in ("Traceback", "Warning", "crash"))
    assert run.end is not None
    assert run.end.stopped == "interrupted"
    assert run.items


@pytest.mark.slow
def test_a_signal_after_the_last_item_leaves_a_whole_run(tmp_path: Path) -> None:
    """While the workers are sent home."""
    code, told, run = stopped(tmp_path, signal.SIGINT, "100%", ("exp",))
    assert code == 130
    assert re.search("^INCONCLUSIVE  everything that was compared agrees .*; stored in", told, re.M)
    assert "Traceback" not in told
    assert run.end is not None
    assert run.end.stopped == ""
    assert len(run.items) == 1


def test_a_signal_before_the_first_item_ends_the_run_file_too(tmp_path: Path) -> None:
    """While pytest and the worker start; on a slow machine the first items may be done when the signal comes."""
    code, told, run = stopped(tmp_path, signal.SIGTERM, "device sim", ("svd", "conv3d", "lstm", "stft"))
    assert code == 130
    assert run.items or "nothing was compared" in told
    assert run.end is not None
    assert run.end.stopped == "interrupted"


def plain(path: Path) -> list[str]:
    """The rows of a run file without times, in an order of their own."""
    times = ("seconds", "started", "device_seconds", "device_spread")
    trees = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(json.dumps({k: v for k, v in t.items() if k not in times}, sort_keys=True) for t in trees)


def marked(mark: str) -> list[str]:
    """The processes that carry a mark in their environment, where the system says."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() and ") Z " not in (folder / "stat").read_text():
                found.append(folder.name)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a signal that nobody can catch")
def test_a_run_that_is_killed_leaves_nothing_and_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No process and no folder after five seconds; the file that --resume finishes is that of a quiet run, and so is what it
    says at the end. Options that would make it another run are refused."""
    monkeypatch.chdir(tmp_path)
    ops = ("exp", "svd", "conv3d", "lstm", "stft")
    asked = ("run", *ops, "--device", "sim", "--dtype", "float32", "--examples", "3", "-n", "1", "--power", "40")
    code, quiet, _ = commands.said(capfd, *asked, "--output", "quiet.jsonl")
    assert code == 0
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PARITY_MARK": str(tmp_path)}
    one: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": env, "start_new_session": True}
    with subprocess.Popen((*PARITY, *asked, "--output", "run.jsonl"), **one) as run:
        assert any("%  " in line for line in run.stdout or ())
        run.kill()
    until = time.monotonic() + 5
    while time.monotonic() < until and (marked(str(tmp_path)) or any((tmp_path / "tmp").iterdir())):
        time.sleep(0.1)
    assert not marked(str(tmp_path))
    assert not any((tmp_path / "tmp").iterdir())
    done = len(run_file.read(tmp_path / "run.jsonl", partial=True).items)
    assert 0 < done < len(ops)
    code, _, err = commands.said(capfd, "run", "--resume", "run.jsonl", "--seed", "1")
    assert (code, "leave --seed out" in err) == (2, True)
    code, resumed, err = commands.said(capfd, "run", "--resume", "run.jsonl", "-n", "1")
    assert code == 0, err
    assert f"{done} item{'s' if done > 1 else ''} of 5 are whole in run.jsonl; the rest is run" in resumed
    assert plain(tmp_path / "run.jsonl") == plain(tmp_path / "quiet.jsonl")
    ends = [text[text.rindex("\ncompared ") :].splitlines() for text in (quiet, resumed)]
    ends = [[re.sub(r", in [\d:.]+( s)?;", ";", line) for line in lines] for lines in ends]  # what differs each time
    assert ends[0] == [line.replace("run.jsonl", "quiet.jsonl") for line in ends[1]]
    code, _, err = commands.said(capfd, "run", "--resume", "run.jsonl")
    assert (code, "holds a whole run" in err) == (2, True)


def cut(path: Path, op: str) -> None:
    """Take an op's rows and the end from a run file, as if the run had been killed before it came to the op."""
    lines = path.read_text().splitlines(keepends=True)
    rows = [(json.loads(line), line) for line in lines]
    path.write_text("".join(line for row, line in rows if row.get("op") != op and row.get("kind") not in ("end", "coverage")))


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
@pytest.mark.parametrize(("gate", "code"), [(("--fail-on", "unsupported"), 1), ((), 0)])
def test_the_rest_of_a_run_passes_the_gate_of_the_whole(
    gate: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("run", "heaviside", "exp", "--device", "sim:mps", "--dtype", "float32", "--examples", "3", "-n", "1")
    assert commands.said(capfd, *asked, *gate, "--output", "run.jsonl")[0] == code
    cut(tmp_path / "run.jsonl", "exp")
    assert commands.said(capfd, "run", "--resume", "run.jsonl", "-n", "1")[0] == code
    assert [i.op for i in run_file.read(tmp_path / "run.jsonl").items] == ["heaviside", "exp"]


def written(path: Path, faults: str = "", status: str = "wrong") -> Path:
    """A run file with one record, of a run with these faults."""
    f = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True)
    with Writer(path) as writer:
        writer.write(Header(f, "0", "quick", faults=code_of(faults)))
        writer.write(Record(CASE, "exp", "float32", "forward", status))
        writer.write(End())
    return path


def command(folder: Path, *argv: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, run in a folder."""
    done = subprocess.run((*PARITY, *argv), capture_output=True, text=True, check=False, cwd=folder)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("examined_once")
def test_a_full_disk_ends_the_run_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the workers compare from then on would be lost."""
    written = Writer.write_line

    def write_line(self: Writer, line: str) -> None:
        if self.path.stat().st_size > 20_000:
            raise OutputError(f"cannot write the run file {self.path}: No space left on device; free the disk")
        written(self, line)

    monkeypatch.setattr(Writer, "write_line", write_line)
    monkeypatch.chdir(tmp_path)
    asked = ("run", "--family", "unary", "--device", "sim", "--dtype", "float32", "--examples", "1", "-n", "1")
    assert commandline.main([*asked, "--output", "run.jsonl"]) == 2
    said = capfd.readouterr()
    found = re.search(r"stopped after (\d+) of (\d+) items: the run file cannot be written", said.out)
    assert found, said.out
    assert int(found[1]) < int(found[2]) / 2
    assert said.err.splitlines()[-1].endswith("No space left on device; free the disk")
    assert run_file.read(Path("run.jsonl"), partial=True).items


def test_a_reader_who_goes_away_changes_no_exit_code(tmp_path: Path) -> None:
    """`| head -1`: a difference stays a difference, also where nobody reads its first line."""
    (tmp_path / "faults.py").write_text(TWICE)
    written(tmp_path / "before.jsonl", status="agree")
    written(tmp_path / "after.jsonl", str(tmp_path / "faults.py"))
    for argv in ("replay after.jsonl --setup faults.py", "diff before.jsonl after.jsonl"):
        reader, out = os.pipe()
        os.close(reader)
        command = (*PARITY, *argv.split())
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
        os.close(out)
        assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.usefixtures("examined_once")
def test_a_run_file_names_code_and_never_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its faults and its setup are used where the person names them; another one than the run had is said first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faults.py").write_text(TWICE)
    (tmp_path / "setup.py").write_text("print('set up')\n")
    short = ("--dtype", "float32", "--examples", "1", "--power", "0", "--skip", "again", "-n", "1")
    asked = ("exp", "--device", "sim", *short, "--output", "run.jsonl")
    given = ("--setup", "faults.py", "--setup", "setup.py")
    assert commands.said(capfd, "run", *asked, *given)[0] == 1
    header = run_file.read(tmp_path / "run.jsonl").header
    assert header.faults == code_of(str(tmp_path / "faults.py"))
    assert header.setup == code_of(str(tmp_path / "setup.py"))
    for more in ("", "--setup faults.py"):
        code, out, err = commands.said(capfd, "replay", "run.jsonl", *more.split())
        assert (code, len(err.splitlines())) == (2, 1)
        assert "set up" not in out + err
        assert "parity runs no code because a run file names it" in err
    told = err.rpartition("then type: parity ")[2].strip()
    assert told == f"replay run.jsonl --setup faults.py --setup {tmp_path / 'setup.py'}"
    code, out, err = commands.said(capfd, *shlex.split(told))
    assert (code, err) == (1, "")
    assert "set up" in out
    assert "note:" not in out
    (tmp_path / "setup.py").write_text("print('another')\n")
    code, out, _ = commands.said(capfd, *shlex.split(told))
    assert out.startswith(f"note: --setup {code_of(str(tmp_path / 'setup.py'))} is not what run.jsonl was run with: ")
    for line in ("explain run.jsonl", "diff run.jsonl run.jsonl", "prove coverage run.jsonl"):
        code, out, err = commands.said(capfd, *line.split())
        assert code == 0
        assert "set up" not in out + err
        assert "another" not in out + err


DEADLY = """
import os
from parity.devices import Fault

FAULTS = [
    Fault("ends", ("sin",), lambda call: os.abort()),
    Fault("wrong", ("exp", "cos"), lambda call: call.run() * 2 + 1),
]
"""


@pytest.mark.slow
def test_a_case_of_a_replay_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also one that ends the process that others share, and the one before it, which is tried again."""
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(DEADLY)
    asked = ("--device", "sim", "--setup", "faults.py")
    code, out, _ = commands.said(capfd, "replay", "sin(float32[2])", *asked)
    assert (code, out.count("sin(float32[2])\n")) == (1, 1)
    cases = [f"{op}(float32[2])" for op in ("exp", "sin", "cos")]
    fingerprint = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "")
    with Writer(Path("run.jsonl")) as writer:
        writer.write(Header(fingerprint, faults=code_of("faults.py")))
        for case in cases:
            op = case.partition("(")[0]
            writer.write(Record(case, op, "float32", "forward", "wrong", shrunk=case))
            writer.write(ItemRow(op, "float32", 1, {"forward": {"wrong": 1}}))
        writer.write(End(1.0, {"wrong": 3}, "", 3))
    code, out, _ = commands.said(capfd, "replay", "run.jsonl", *asked)
    assert [out.count(f"{case}\n") for case in cases] == [1, 1, 1], out
    assert (code, "3 of 3 cases differ" in out) == (1, True)


def test_findings_of_a_run_are_replayed_once_each() -> None:
    """By their least cases; an item that never ended has none, so that its records are replayed as they were drawn."""
    drawn = Record("exp(float32[9])", "exp", "float32", "forward", "wrong")
    least = Record("exp(float32[9])", "exp", "float32", "forward", "wrong", shrunk=CASE)
    other = Record("log(float32[3])", "log", "float32", "forward", "drift")
    good = Record("log(float32[4])", "log", "float32", "forward", "agree")
    header = Header(Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", ""))
    assert replay.findings(Run(header, (drawn, other, good, least))) == ("log(float32[3])", CASE)


def test_an_interruption_while_source_text_is_executed_ends_with_130_too(tmp_path: Path) -> None:
    """Python ends `-m` by SIGINT where a KeyboardInterrupt has passed through one, caught or not: dataclasses are made so."""
    (tmp_path / "stopped.py").write_text(
        "import parity.__main__ as m\n"
        "def main():\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        return 130\n"
        "m.main = main\n"
        "m.run()\n",
        encoding="utf-8",
    )
    assert subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, check=False).returncode == 130


@pytest.mark.cold
def test_ctrl_c_while_parity_is_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it comes in the first module that parity imports."""
    (tmp_path / "dataclasses.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    done = subprocess.run((*PARITY, "--version"), capture_output=True, text=True, cwd=tmp_path.parent, check=False)
    assert (done.returncode, done.stderr) == (130, "parity: interrupted\n")
