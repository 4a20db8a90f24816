"""Interpreters and operator tables of another torch: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parity.core import processes
from parity.core.errors import UsageError
from parity.devices.operator_table import Table, between
from parity.history.environments import operator_table, prepared
from parity.report.needs import kernels

TABLE = """
- func: exp(Tensor self) -> Tensor
  dispatch:
    CPU, CUDA, MPS: exp
- func: {name}(Tensor self) -> Tensor
  dispatch:
    CPU{more}: {name}
"""


def script(folder: Path, answer: str) -> str:
    """An interpreter that answers every question so."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n", errors="surrogateescape")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(os.name == "nt", reason="the interpreters of the test are shell scripts")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"python": [3, 9, 1]}', "is Python 3.9.1; parity needs 3.11 or later"),
        ('{"python": [3, 12, 1], "why": "it has none", "missing": "torch"}', r"import torch: it has none; install it there: "),
        ('{"python": [3, 12, 1], "why": "OSError: no", "missing": ""}', r"\(Python 3.12.1\) cannot import parity: OSError: no"),
        ("hello", "does not answer as a Python does"),
        ("[3]", "does not answer as a Python does"),
        ("[" * 500, "does not answer as a Python does"),
    ],
)
def test_an_interpreter_that_cannot_is_refused(tmp_path: Path, answer: str, why: str) -> None:
    """Before anything is run there."""
    with pytest.raises(UsageError, match=why):
        prepared(script(tmp_path, answer), tmp_path / "made", print)


@pytest.mark.skipif(os.name == "nt", reason="the interpreters of the test are shell scripts")
def test_one_that_can_gets_parity_with_its_tables_and_its_suite(tmp_path: Path) -> None:
    there = prepared(script(tmp_path, '{"python": [3, 12, 1], "torch": "2.14.1"}'), tmp_path / "made", print)
    lent = tmp_path / "made" / "lent"
    assert (there.torch, there.variables({})[processes.PATH]) == ("2.14.1", str(lent))
    assert (lent / "parity" / "_data" / "tolerances" / "default.toml").is_file()
    assert (lent / "parity" / "_data" / "conformance").is_dir()


@pytest.mark.skipif(os.name == "nt", reason="has no pipes in folders")
@pytest.mark.parametrize("name", ["torch.whl", "python"])
def test_a_pipe_is_refused_before_anything_is_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip would wait for somebody who writes to it."""
    os.mkfifo(tmp_path / name)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(UsageError, match=f"{name} is no file and no folder; give the path of a Python"):
        prepared(str(tmp_path / name), tmp_path / "lent", lambda _: None)


def test_what_pip_takes_is_installed_and_all_else_is_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements, options, wheels, folders with a wheel or a source; for the Python that a wheel names."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, int("pip" in command), "", "note\nERROR: none fits\n[notice] new pip")

    monkeypatch.setattr("parity.history.environments.subprocess.run", run)
    wheels, source, empty = (tmp_path / name for name in ("wheels", "source", "empty"))
    for folder in (wheels, source, empty):
        folder.mkdir()
    wheel = wheels / "torch-2.14.1-cp311-cp311-linux_x86_64.whl"
    wheel.touch()
    (source / "setup.py").touch()
    for place, words in {
        "torch==2.14.*": ["torch==2.14.*"],
        "torch >= 2.14": ["torch", ">=", "2.14"],
        "torch --pre --index-url https://x/nightly": ["torch", "--pre", "--index-url", "https://x/nightly"],
        str(wheel): [str(wheel)],
        str(wheels): [str(wheel), "--find-links", str(wheels)],
        str(source): [str(source)],
    }.items():
        with pytest.raises(UsageError, match=r"cannot install .*: ERROR: none fits; make an environment with it"):
            prepared(place, tmp_path / "made", lambda text: None)
        assert commands[-1][-len(words) - 1 :] == ["--upgrade", *words]
    for place in ("python9.9", "torchvision==1", str(empty)):
        with pytest.raises(UsageError, match="there is no Python at"):
            prepared(place, tmp_path / "made", print)
    with pytest.raises(UsageError, match=r"is for Python 3\.99, which is not here"):
        prepared("torch-2.14.1-cp399-cp399-linux_x86_64.whl", tmp_path / "made", print)
    (wheels / "torch-2.15.0-cp311-cp311-linux_x86_64.whl").touch()
    with pytest.raises(UsageError, match="holds 2 wheels of torch"):
        prepared(str(wheels), tmp_path / "made", print)


@pytest.mark.parametrize("uv", [None, "uv"])
def test_an_environment_that_an_interrupted_upgrade_left_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: str | None
) -> None:
    """Its Python may be there, and pip not yet. What pip says last of versions that clash is only where to read of that."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        said = "ERROR: Cannot install torch==99.\nERROR: ResolutionImpossible: for help visit URL"
        return subprocess.CompletedProcess(command, int("install" in command), "", said)

    monkeypatch.setattr("parity.history.environments.subprocess.run", run)
    monkeypatch.setattr("parity.history.environments._uv", lambda: uv)
    folder = tmp_path / "python{}.{}".format(*sys.version_info)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    python.parent.mkdir(parents=True)
    python.touch()
    with pytest.raises(UsageError, match=r"cannot install torch==99: ERROR: Cannot install torch==99; make an environment"):
        prepared("torch==99", tmp_path, lambda text: None)
    assert [c[1:3] for c in commands[:-1]] == ([] if uv else [["-m", "venv"]])


def test_kernels_between_two_tables(tmp_path: Path) -> None:
    """Gained, lost and new operators; a file that is no table is refused."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(TABLE.format(name="sin", more=""))
    new.write_text(TABLE.format(name="sin", more=", MPS"))
    made = between(operator_table(str(old)), operator_table(str(new)))
    assert (made.gained, made.lost, made.kept) == ({"sin": False}, {}, 1)
    back = kernels(between(operator_table(str(new)), operator_table(str(old))))
    assert back.endswith("lost (1)\n  sin\n\n1 kept, 0 gained, 1 lost")
    fresh = between(Table("1", {}), operator_table(str(new)))
    assert fresh.gained == {"exp": True, "sin": True}
    for text, why in (
        ("nothing", "it holds no operator"),
        ("  dispatch:\n    MPS: x\n", "line 1: 'dispatch:' comes before any"),
        ("- func: add(x)\n- func: \x1b[2J(x)\n", r"line 2: no operator is called '\\x1b\[2J'"),
    ):
        old.write_text(text)
        with pytest.raises(UsageError, match=why):
            operator_table(str(old))
    (tmp_path / "pipe.yaml").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="not an ordinary file but a device"):
        operator_table(str(tmp_path / "pipe.yaml"))
    for answer in ("None", "/", "\udcff"):  # a torch folder without __init__.py; odd bytes
        with pytest.raises(UsageError, match=r"has no torch|does not answer as a Python does"):
            operator_table(script(tmp_path, answer))
    with pytest.raises(UsageError, match="there is no Python at"):
        operator_table(str(tmp_path / "none"))


def test_the_table_of_an_interpreter_is_that_of_its_torch() -> None:
    """Read as data."""
    table = operator_table(sys.executable)
    assert table.torch == torch.__version__
    assert "MPS" in table.keys["add.out"]
