"""What is loaded into every pytest run, and into a command that only names things, loads neither torch nor hypothesis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "module",
    [
        *("parity", "parity.faces.plugin", "parity.faces.cli", "parity.runs.suite", "parity.catalog", "parity.runs.run_file"),
        *("parity.report.progress", "parity.report.diff", "parity.report.causes"),  # the main process of a run
        *("parity.faces.replay", "parity.report.explanation"),
    ],
)
def test_module_loads_nothing_heavy(module: str) -> None:
    """Importing it imports neither torch nor hypothesis nor numpy."""
    program = f"import sys, {module}; print([m for m in ('torch', 'hypothesis', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_plugin_loads_no_op() -> None:
    """It stands in every pytest run of a machine with parity, and the catalog takes a tenth of a second."""
    program = "import sys, parity.faces.plugin; print('parity.catalog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_public_names_are_listed_before_they_are_used() -> None:
    """For a prompt that completes names, and for Python's own "did you mean"."""
    program = "import parity; print(set(parity._HOMES) ^ set(parity.__all__), set(parity.__all__) - set(dir(parity)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set() set()"


def test_the_main_process_of_a_run_loads_no_torch(tmp_path: Path) -> None:
    """Its workers do, at the same time; a run of a few ops would take half as long again."""
    options = "'--device', 'sim', '--dtype', 'float32', '--examples', '1', '-n', '1', '--output', 'run.jsonl'"
    program = f"import sys; from parity.faces import cli; print(cli.main(['run', 'add', {options}]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
