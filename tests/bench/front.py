"""What the programs share: a parser made of their docstring, commands of parity in a folder, and how rows are compared."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

PARITY = (sys.executable, "-P", "-m", "parity")
TIMES = ("seconds", "started", "device_seconds", "device_spread", "memory")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows the whole docstring as it is."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def chosen(names: Sequence[str], allowed: Sequence[str], to: argparse.ArgumentParser) -> list[str]:
    """The names that were given, or all. Ends the program at one that is not allowed."""
    if odd := [n for n in names if n not in allowed]:
        to.error(f"there is no '{odd[0]}'; allowed: {', '.join(allowed)}")
    return [*names] or [*allowed]


def in_one_thread() -> None:
    """Make times and results of torch those of one thread, without warnings."""
    import torch

    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    warnings.simplefilter("ignore")


def ran(
    *argv: str, folder: Path, codes: Sequence[int] = (0, 1), env: dict[str, str] | None = None, seconds: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command of parity in a folder. Ends the program if its exit code is none of `codes`, which may be none to allow
    all. env: variables besides those of this process."""
    done = subprocess.run(
        [*PARITY, *argv], cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=seconds
    )
    if codes and done.returncode not in codes:
        raise SystemExit(f"parity {' '.join(argv)} ended with {done.returncode}: {(done.stderr or done.stdout)[-3000:]}")
    return done


def plain(value: Any) -> Any:
    """A row of a run file, or what it holds, without times."""
    return {k: plain(v) for k, v in value.items() if k not in TIMES} if isinstance(value, dict) else value


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run file without times."""
    return [plain(json.loads(line)) for line in path.read_text().splitlines()]


def texts(found: Sequence[dict[str, Any]]) -> list[str]:
    """Rows as text, sorted, so that they can be compared."""
    return sorted(json.dumps(row, sort_keys=True) for row in found)


def descendants(pid: int) -> list[int]:
    """The processes below one, on Linux."""
    found = []
    for p in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(p.read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(p.parent.name), *descendants(int(p.parent.name))]
    return found


class Apart:
    """A process that does one task after the other. begin: called there first."""

    def __init__(self, begin: Callable[..., object] | None = None, *given: Any) -> None:
        self._begin, self._given = begin, given
        self.renew()

    def renew(self) -> None:
        """Another process in the place of one that broke."""
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), self._begin, self._given)

    def ask(self, task: Callable[..., Any], *given: Any) -> Future[Any]:
        """What the task will give; BrokenProcessPool where it ends the process."""
        return self._process.submit(task, *given)

    def end(self) -> None:
        """End the process."""
        self._process.shutdown(wait=False, cancel_futures=True)

    def kill(self) -> None:
        """End the process whatever it does."""
        for process in list((self._process._processes or {}).values()):
            process.kill()
        self.end()
