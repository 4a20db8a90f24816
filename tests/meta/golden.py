"""Golden outputs: what parity prints about five stored runs, while it makes them, of a model, and in standard situations.

    python tests/meta/golden.py           say which outputs differ from those in tests/golden
    python tests/meta/golden.py --write   write them anew, the runs too (--outputs: leave the runs as they are)

A change of words rewrites them, and the diff of tests/golden shows what a person will read.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
FAULTS = '''"""What goes wrong in the stored runs."""
import os, time
from parity.devices import Fault
from parity.engine import findings
FAULTY = [
    Fault("exp-doubled", ("exp",), lambda call: call.run() * 2),
    Fault("add-strided", ("add",), lambda call: call.run() + 1, when=lambda call: not call.operands[0].is_contiguous()),
]
findings.WAY_SECONDS = 60.0  # a busy machine would try fewer cases
def die(call): os.abort()
def stop(call): open(os.environ["STOPPED"], "w").close(); time.sleep(60)
ENDS = {"dying": [Fault("neg-dies", ("neg",), die, when=lambda c: c.operands[0].numel() > 4)],
        "interrupted": [*FAULTY, Fault("sort-stops", ("sort",), stop, when=lambda c: "PYTEST_XDIST_WORKER" in os.environ)]}
FAULTS = ENDS.get(os.environ.get("GOLDEN", ""), FAULTY)
'''
OPS = ("exp", "sort", "add", "neg")
OPTIONS = ("--device", "sim", "--dtype", "float32", "--examples", "4", "-n", "1")
RUNS = {
    "healthy": OPTIONS,
    "honest": ("--device", "sim:honest", *OPTIONS[2:]),
    "faulty": (*OPTIONS, "--setup", "faults.py"),
    "dying": (*OPTIONS, "--setup", "faults.py", "--skip", "shrink"),
    "interrupted": (*OPTIONS, "--setup", "faults.py"),
}
REPORTS = {
    **{f"report.{f}": ("report", "{run}", "--format", f) for f in ("text", "markdown", "json", "junit", "github")},
    "matrix.text": ("report", "{run}", "--matrix"),
}
DIFFS = {f"diff.{f}": ("diff", "{before}", "{run}", "--format", f) for f in ("terminal", "markdown", "json", "junit")}
# Of additions and multiplications alone, which every machine rounds alike.
MODEL = '''"""A model whose device rounds once more, and is wrong where WRONG is set."""
import os
import torch
from parity.devices import Fault
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
    def forward(self, x):
        return x * self.weight + 0.1
def net(): return Net(), torch.linspace(-1.0, 2.0, 12).reshape(3, 4)
FACTOR = 1.01 if os.environ.get("WRONG") else 1 + 2.0**-23
FAULTS = [Fault("add-rounds", ("add",), lambda call: call.run() * FACTOR)]
'''
LOCATES = {"agrees": "", "diverges": "1"}  # WRONG
# What differs between two equal runs, or between two machines.
MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d)?"), "DATE"),
    (re.compile(r"(Linux|macOS) \d[-\w.]*"), "SYSTEM"),
    (re.compile(r"\b\d+:\d\d\b|\b\d+(\.\d+)? (s|ms|MB|GB|MiB|GiB)\b"), "TIME"),
    (re.compile(r"parity-run-\d{8}-\d{6}"), "parity-run-DATE"),
    (re.compile(r'(time|timestamp|hostname|"?seconds"?)([=:] ?)"?[-\w:.+]+"?'), r"\1\2X"),
)


def masked(text: str, folder: str = "") -> str:
    """A text without times, dates and the folder it was made in."""
    text = text.replace(folder, "FOLDER") if folder else text
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def made(name: str, folder: Path) -> tuple[Path, str]:
    """Make one of the runs in a folder: its file, and its screen with the exit code."""
    (folder / "faults.py").write_text(FAULTS)
    output = folder / f"{name}.jsonl"
    command = [sys.executable, "-m", "parity", "run", *OPS, *RUNS[name], "--output", str(output)]
    stopped = folder / "stopped"
    env = {**os.environ, "GOLDEN": name, "STOPPED": str(stopped), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:

        def interrupt() -> None:
            """Once the run's worker waits. It cannot do so itself: its parent may be a process that was copied."""
            while run.returncode is None and not stopped.exists():
                time.sleep(0.05)
            if run.returncode is None:
                run.send_signal(signal.SIGINT)

        (waiting := threading.Thread(target=interrupt)).start()
        out, error = run.communicate()
        waiting.join()
    return output, masked(f"{out}{error}exit code {run.returncode}", str(folder))


def outputs() -> Iterator[tuple[str, str]]:
    """(file name, text) of every output that is made from the stored runs."""
    for name in RUNS:
        run = GOLDEN / f"{name}.jsonl"
        for kind, argv in (*REPORTS.items(), *(DIFFS.items() if name != "healthy" else ())):
            words = [a.format(run=run, before=GOLDEN / "healthy.jsonl") for a in argv]
            yield f"{name}.{kind}", masked(_said(words), str(GOLDEN))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "models.py")
        model.write_text(MODEL)
        for name, wrong in LOCATES.items():
            os.environ["WRONG"] = wrong
            words = ["locate", f"{model}:net", "--device", "sim", "--setup", str(model)]
            done = subprocess.run([sys.executable, "-m", "parity", *words], capture_output=True, text=True, check=False)
            yield f"locate.{name}.terminal", masked(f"{done.stdout}{done.stderr}exit code {done.returncode}", folder)
    del os.environ["WRONG"]


def _said(argv: list[str]) -> str:
    from parity.faces import commandline

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = commandline.main(argv)
        except SystemExit as e:  # argparse's
            code = int(e.code or 0)
    return f"{out.getvalue()}{err.getvalue()}exit code {code}"


def difference(name: str, text: str) -> str:
    """How an output differs from the stored one."""
    path = GOLDEN / name
    before = path.read_text() if path.exists() else ""
    return "".join(difflib.unified_diff(before.splitlines(True), text.splitlines(True), f"golden/{name}", "now", n=1))


def main() -> int:
    """Compare, or write."""
    if "--write" in sys.argv and "--outputs" not in sys.argv:
        GOLDEN.mkdir(exist_ok=True)
        for name in RUNS:
            with tempfile.TemporaryDirectory() as folder:
                run, screen = made(name, Path(folder))
                text = run.read_text().replace(folder, "FOLDER").replace(platform.release(), "6.1")
                (GOLDEN / f"{name}.jsonl").write_text(text)
                (GOLDEN / f"{name}.screen").write_text(screen)
    import screens

    differing = 0
    for name, text in (*outputs(), *screens.outputs()):
        if "--write" in sys.argv:
            (GOLDEN / name).write_text(text)
        elif found := difference(name, text):
            differing += 1
            print(found)
    print(f"{differing} outputs differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
