"""Processes on the stand-in, for its tests: torch looks for MPS once in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import standin_library

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 550  # one command, on a machine that has other things to do
needs_standin = pytest.mark.skipif(bool(standin_library.missing()), reason=standin_library.missing() or "there is one")


def python(program: str, setup: str = "standin.py", **env: str) -> subprocess.CompletedProcess[str]:
    """A program after one of the set-up files, or after none; plain torch besides."""
    before = f"import runpy, sys\nsys.path.append({str(HERE)!r})\nrunpy.run_path({str(HERE / setup)!r})\n" if setup else ""
    return _run([sys.executable, "-c", before + program], ROOT, env)


def parity(
    *argv: str, setup: str = "standin.py", cwd: Path = ROOT, device: str = "mps", **env: str
) -> subprocess.CompletedProcess[str]:
    """A command of parity on the stand-in. device: another one to run on, without a set-up file."""
    options = ["--device", device] + (["--setup", str(HERE / setup)] if device == "mps" else [])
    return _run([sys.executable, "-m", "parity", *argv, *options], cwd, env)


def plain(*argv: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A command of parity as it stands."""
    return _run([sys.executable, "-m", "parity", *argv], cwd, {})


def environment(**env: str) -> dict[str, str]:
    """This process's, with this very parity, one thread and no fallback but one that is asked for."""
    standin_library.built()  # here, where nobody's patience is counted
    kept = {k: v for k, v in os.environ.items() if k != "PYTORCH_ENABLE_MPS_FALLBACK"}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PARITY_HANG_AFTER": "120", **env}


def _run(command: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=SECONDS, check=False
    )
