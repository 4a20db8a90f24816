"""Interpreters and operator tables of another torch: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from parity.core.errors import UsageError
from parity.devices.operator_table import Table, between
from parity.report.needs import kernels
from parity.runs.environments import REQUIREMENT, operator_table, prepared

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
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_this_interpreter_can_run_parity(tmp_path: Path) -> None:
    """It gets a copy of this parity with its tables and its suite, and of nothing that it has."""
    heard: list[str] = []
    there = prepared(sys.executable, tmp_path, heard.append)
    assert there.torch == torch.__version__
    assert not heard
    lent = Path(there.lent)
    assert [p.name for p in lent.iterdir()] == ["parity"]
    assert (lent / "parity" / "_data" / "tolerances" / "default.toml").is_file()
    assert (lent / "parity" / "_data" / "conformance").is_dir()
    assert there.variables["PYTHONPATH"] == there.lent


@pytest.mark.skipif(os.name == "nt", reason="the interpreters of the test are shell scripts")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"python": [3, 9, 1], "modules": {}}', "is Python 3.9.1; parity needs 3.11 or later"),
        ('{"python": [3, 12, 1], "modules": {"torch": null}}', r"cannot import torch \(has none\); install it there"),
        ('{"python": [3, 12, 1], "modules": {"torch": "raises OSError: no"}}', "cannot import torch .raises OSError: no"),
        ("hello", "does not answer as a Python does"),
    ],
)
def test_an_interpreter_that_cannot_is_refused(tmp_path: Path, answer: str, why: str) -> None:
    """Before anything is run there."""
    with pytest.raises(UsageError, match=why):
        prepared(script(tmp_path, answer), tmp_path / "made", print)


def test_requirements_and_paths_are_told_apart() -> None:
    """A requirement names torch and a version."""
    assert all(REQUIREMENT.fullmatch(x) for x in ("torch==2.14.*", "torch >= 2.14", "torch@file:///x.whl"))
    assert not any(REQUIREMENT.fullmatch(x) for x in ("torch", ".venv", "python3.13", "torchvision==1"))


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
    old.write_text("nothing")
    with pytest.raises(UsageError, match="holds no operator"):
        operator_table(str(old))
    with pytest.raises(UsageError, match="there is no Python at"):
        operator_table(str(tmp_path / "none"))


def test_the_table_of_an_interpreter_is_that_of_its_torch() -> None:
    """Read as data."""
    table = operator_table(sys.executable)
    assert table.torch == torch.__version__
    assert "MPS" in table.keys["add.out"]
