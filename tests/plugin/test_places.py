"""Odd places: each run ends as anywhere else, or in one clear line with exit code 2."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.faces import commandline, running
from parity.store import run_file

SHORT = ("run", "exp", "--device", "sim", "--dtype", "float32", "--examples", "1", "--power", "0", "-n", "1")
posix = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")


def shell(folder: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of bash that calls parity by $parity, in a folder."""
    env = {k: v for k, v in {**os.environ, **variables}.items() if v}
    env["parity"] = f"{sys.executable} -P -m parity"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=folder, env=env)


@posix
def test_a_run_needs_little_of_its_surroundings(tmp_path: Path) -> None:
    """No standard input, hardly any files, no home, an ASCII locale, foreign options and a foreign plugin that fails."""
    (tmp_path / "fails.py").write_text("raise RuntimeError('a foreign plugin')")
    foreign = {"PYTEST_PLUGINS": "fails", "PYTEST_ADDOPTS": "--nonsense -k nothing"}
    bare = {"HOME": "", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TMPDIR": "/nonexistent"}
    path = os.pathsep.join(p for p in (str(tmp_path), os.environ.get("PYTHONPATH", "")) if p)
    line = f"ulimit -n 64; exec $parity {' '.join(SHORT)} --output run.jsonl <&-"
    done = shell(tmp_path, line, PYTHONPATH=path, **foreign, **bare)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert len(run_file.read(tmp_path / "run.jsonl").items) == 1


@posix
def test_too_few_files_are_told_in_one_line(tmp_path: Path) -> None:
    """So few that the device is not examined any more, before torch is imported."""
    done = shell(tmp_path, f"ulimit -n 7; exec $parity {' '.join(SHORT)}")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "parity: the system lets this process open no more files (Too many open files); raise the limit: ulimit -n 1024"
    ]
    assert "Traceback" not in done.stdout


@posix
def test_a_folder_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    done = shell(tmp_path, f"mkdir gone && cd gone && rmdir ../gone && exec $parity {' '.join(SHORT)}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("parity: the current folder is not there any more")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such name")
def test_a_path_that_is_no_utf8_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers are sent paths in UTF-8."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    odd.mkdir()
    assert commandline.main([*SHORT, "--findings", str(odd / "f")]) == 2
    assert f"parity: --findings '{tmp_path}/d\\xff/f' is not UTF-8" in capsys.readouterr().err
    monkeypatch.chdir(odd)
    assert commandline.main(SHORT) == 2
    said = capsys.readouterr().err
    why = "is not UTF-8, so that it cannot be sent to a worker; take a path that is"
    assert said == f"parity: the current folder '{tmp_path}/d\\xff' {why}\n"
    assert not list(odd.iterdir())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "raise the limit: ulimit -n 1024"),
        (errno.EAGAIN, "take fewer workers: -n 1"),
        (errno.ENOSPC, "cannot read or write there: No space left on device; free the disk or name another place"),
    ],
)
def test_what_the_system_refuses_is_told_with_a_remedy(
    number: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object) -> int:
        raise OSError(number, os.strerror(number), "there")

    monkeypatch.setattr(commandline.COMMANDS["doctor"], "run", refuses)
    assert commandline.main(["doctor"]) == 2
    assert words in capsys.readouterr().err


def test_two_runs_of_one_second_have_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [str(running.fresh("parity-run-1")) for _ in range(3)] == [f"parity-run-1{k}.jsonl" for k in ("", "-2", "-3")]
