"""What is left of a run that is killed at a random moment? `python -m tests.bench survival kills [N] [-n WORKERS] [--seed S]`.

Each of N runs of a few ops is hit once, at a random moment from its first second on: its main process or a worker by SIGKILL,
its main process by SIGINT or SIGTERM, or a run of pytest itself by SIGKILL. Then no process of it may live five seconds later,
no folder may be left, and `parity run --resume` must make the run file and the summary of a run that nobody disturbed. A run
whose worker was killed must do so by itself. The exit code is 1 where one of these failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import front

OPS = ("sin", "svd", "conv2d", "lstm", "softmax", "add", "stft", "neg")
MAIN_KILL, MAIN_INT, MAIN_TERM, WORKER_KILL, PYTEST_KILL = "main KILL", "main INT", "main TERM", "worker KILL", "pytest KILL"
KINDS = (MAIN_KILL, WORKER_KILL, MAIN_INT, MAIN_TERM, PYTEST_KILL)
SIGNALS = {MAIN_INT: signal.SIGINT, MAIN_TERM: signal.SIGTERM}
GRACE = 5.0  # seconds in which every process has to end
SUITE = Path(__file__).parents[1] / "conformance"


def rows(path: Path) -> list[str]:
    """Every row but for the deaths that the kills are."""
    return front.texts([row for row in front.rows(path) if row.get("kind") != "death"])


def summary(text: str) -> list[str]:
    """The summary of a run without times and names of files."""
    lines = text[text.index("\ndevice ") + 1 :].splitlines() if "\ndevice " in text else []
    kept = [line for line in lines if line.strip() and not re.match(r" *\d+%|device sim \(SIM", line)]
    return [re.sub(r", in [\d:.]+( s)?;", ";", re.sub(r"\S+\.jsonl", "RUN", line)) for line in kept]


def processes(mark: str) -> list[int]:
    """The living processes that carry a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            carries = int(folder.name) != os.getpid() and mark.encode() in (folder / "environ").read_bytes()
            if carries and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(folder.name))
    return found


def command(run: Path, n: int, of_pytest: bool = False) -> list[str]:
    """A run of the ops, or the same by pytest."""
    if of_pytest:
        given = [*(f"--parity-op={op}" for op in OPS), "--parity-device=sim", "--parity-dtype=float32", "--parity-examples=40"]
        return [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SUITE), *given, "-n", str(n)]
    asked = ("--device", "sim", "--dtype", "float32", "--examples", "40", "-n", str(n), "--output", str(run))
    return [*front.PARITY, "run", *OPS, *asked]


def worker(main: int) -> list[int]:
    """A worker of a run: a process below its main one that is a Python of execnet."""
    found = []
    for number in front.descendants(main):
        with contextlib.suppress(OSError):
            if b"exec(eval" in Path(f"/proc/{number}/cmdline").read_bytes():
                found.append(number)
    return found[:1]


def one(k: int, kind: str, moment: float, o: argparse.Namespace, whole: tuple[list[str], list[str]]) -> list[str]:
    """Hit one run; what was wrong afterwards."""
    mark, wrong = f"PARITY_KILLS={os.getpid()}-{k}-", []
    with tempfile.TemporaryDirectory() as home:
        folder, temporary, run = Path(home, "work"), Path(home, "tmp"), Path(home, "work/run.jsonl")
        folder.mkdir()
        temporary.mkdir()
        env = {**os.environ, "TMPDIR": str(temporary), mark.partition("=")[0]: mark.partition("=")[2]}
        process = subprocess.Popen(
            command(run, o.n, kind == PYTEST_KILL), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        time.sleep(moment)
        over = process.poll() is not None
        hit = [process.pid] if kind != WORKER_KILL else worker(process.pid)
        for number in hit:
            with contextlib.suppress(ProcessLookupError):  # it was over
                os.kill(number, SIGNALS.get(kind, signal.SIGKILL))
        text = process.communicate(timeout=600)[0]
        if kind == WORKER_KILL and not over:
            wrong += [] if rows(run) == whole[0] else ["a worker's death has changed the run file"]
            wrong += [] if process.returncode == 0 else [f"a worker's death ended the run with {process.returncode}"]
        until = time.monotonic() + GRACE
        while (left := processes(mark)) and time.monotonic() < until:
            time.sleep(0.1)
        wrong += [f"{len(left)} processes live on"] if left else []
        wrong += [f"left behind: {p.name}" for p in temporary.iterdir()]
        done = 0
        if kind not in (PYTEST_KILL, WORKER_KILL) and run.exists():
            done = sum('"kind":"item"' in line for line in run.read_text().splitlines())
            wrong += resumed(o.n, run, env, whole)
        mark = "WRONG " if wrong else ""
        late = " (it was over)" if over else ""
        said = f": {'; '.join(wrong)}" if wrong else ""
        print(f"{mark}{k}: {kind} after {moment:.1f} s{late}, {done} items done{said}", flush=True)
        if wrong:
            print(text[-800:])
    return wrong


def resumed(n: int, run: Path, env: dict[str, str], whole: tuple[list[str], list[str]]) -> list[str]:
    """Finish a run; what was wrong."""
    before = {line for line in run.read_text().split("\n") if '"kind":"item"' in line}
    again = front.ran("run", "--resume", str(run), "-n", str(n), folder=run.parent, env=env, codes=())
    wrong = [] if before <= set(run.read_text().splitlines()) else ["an item that was done was lost"]
    wrong += [] if rows(run) == whole[0] else ["the resumed run file is another one"]
    if "nothing is left to run" not in again.stderr:
        wrong += [] if summary(again.stdout) == whole[1] else ["the resumed summary is another one"]
        wrong += [] if again.returncode == 0 else [f"resumed: exit code {again.returncode} {again.stderr[-300:]}"]
    return wrong


def main() -> int:
    """Kill; the exit code."""
    p = front.parser(__doc__)
    p.add_argument("count", nargs="?", type=int, default=10)
    p.add_argument("-n", type=int, default=1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    o = p.parse_args()
    drawn = random.Random(o.seed)
    with tempfile.TemporaryDirectory() as home:
        run = Path(home, "run.jsonl")
        began = time.monotonic()
        done = subprocess.run(command(run, o.n), cwd=home, capture_output=True, text=True, check=True)
        took = time.monotonic() - began
        whole = rows(run), summary(done.stdout)
    print(f"a run takes {took:.1f} s, {len(whole[0])} rows", flush=True)
    moments = [drawn.uniform(0.3, took) for _ in range(o.count)]
    with ThreadPoolExecutor(o.jobs) as pool:
        said = pool.map(lambda k: one(k, KINDS[k % len(KINDS)], moments[k], o, whole), range(o.count))
        wrong = [w for some in said for w in some]
    print(f"{o.count} kills, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
