"""The screens of standard situations on terminals of three widths, for golden.py: stored runs as a run ends with them,
commands that take a second, and one failing test of pytest."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import golden

from parity.core.results import Record
from parity.engine import journal
from parity.findings.verdict import RunResult
from parity.report import archive, output, summary
from parity.store import run_file
from parity.store.rows import ItemRow, Run

FOLDER = golden.GOLDEN / "screens"
WIDTHS = (60, 80, 120)
NAMES = (
    "healthy-run",
    "run-with-2-causes",
    "run-with-60-causes",
    "run-with-refused-ops",
    "locate-found",
    "locate-not-found",
    "diff-equal",
    "diff-worse",
    "diff-unclear",
    "doctor",
    "audit",
    "bad-input",
    "failing-test",
)
RUN_FILE = "parity-run-20260102-030405.jsonl"  # as long as those of users
MODELS = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        for p in self.parameters():  # sums are exact, and so the same on every CPU
            p.data = (torch.arange(p.numel()) % 7 - 3.0).reshape(p.shape) / 8

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def net():
    return Net(), (torch.arange(256) % 5 - 2.0).reshape(32, 8) / 2
"""
FAULTS = """\
from parity.devices import Fault

FAULTS = [Fault("relu-twice", ops=("relu",), effect=lambda call: call.run() * 2)]
"""
TEST = """\
import models


def test_net(parity):
    parity(*models.net())
"""
# Pytest in a process of its own, once for all widths.
TESTED = f"""\
import os, pytest
for width in {WIDTHS}:
    os.environ["COLUMNS"] = str(width)
    pytest.main("-q --show-capture no -p no:cacheprovider --parity-device sim --parity-setup=faults.py test_net.py".split())
    print("\\f", end="")
"""
OPS = """
abs acos add amax amin argmax asin atan avg_pool2d baddbmm bmm cat ceil celu clamp conv1d cos cosh cross cummax cummin
cumprod cumsum diff div dot einsum elu erf exp expm1 fft_fft flip fmod gather gelu group_norm hypot index_select layer_norm lerp
linear log log1p logsumexp matmul max_pool2d mean median minimum mish mode mul norm pow prod roll softmax sort sum
"""
EXAMINED = {
    "verdict": "healthy",
    "reasons": [],
    "dtypes": ["float32", "float16", "bfloat16", "complex64", "int8", "int16", "int32", "int64", "uint8", "bool"],
    "machine": [["virtual machine", "no"], ["memory of the machine", "16.0 GB, 9.1 GB of it free"]],
}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(width: int, say: Callable[[], object]) -> str:
    """What is on a terminal of so many columns afterwards."""
    stream = Terminal()
    plain = {"COLUMNS": str(width), "LINES": "40", "NO_COLOR": "1", "TERM": "xterm"}
    with mock.patch.dict(os.environ, plain), redirect_stdout(stream), redirect_stderr(stream), output.patient():
        say()
    return golden.masked("\n".join(line.rpartition("\r\033[K")[2] for line in stream.getvalue().split("\n")).rstrip("\n"))


# ------------------------------------------------------------------------------------------------------------ stored runs


def stored(name: str) -> Run:
    """One of the stored runs."""
    return run_file.read(golden.GOLDEN / f"{name}.jsonl")


def with_sixty_causes() -> Run:
    """Wrong values of sixty operators."""
    run = stored("faulty")
    wrong = next(r for r in run.records if r.shrunk and r.aspect == "forward")
    records = [_as(wrong, op) for op in OPS.split()]
    items = [ItemRow(op, "float32", 20, {"forward": {"agree": 15, "wrong": 5}}, judged=2000) for op in OPS.split()]
    return replace(run, records=tuple(records), items=tuple(items))


def _as(r: Record, op: str) -> Record:
    assert r.cause is not None
    cause = replace(r.cause, subject=f"aten::{op}")
    return replace(r, op=op, case=r.case.replace(r.op, op), shrunk=r.shrunk.replace(r.op, op), cause=cause, script="")


def with_refusals() -> Run:
    """A healthy run in which some ops are refused, and one ran on the CPU unasked."""
    run = stored("healthy")
    refused = {"forward": {"unsupported": 4}}
    items = [ItemRow(op, "float32", 4, refused) for op in ("mode", "linalg_eig", "kthvalue")]
    items.append(ItemRow("linalg_svd", "float32", 4, {"forward": {"fallback": 3, "agree": 1}}, judged=40))
    return replace(run, items=(*run.items, *items))


def show(run: Run, asked_for: str) -> None:
    """Print the beginning and the end of a run."""
    result = RunResult(run.items, run.records, run.deaths)
    data = summary.SummaryData(run.header, result, run.power, run.coverage, 102.0, RUN_FILE)
    print(summary.opening(run.header.fingerprint, asked_for))
    print(summary.render(data, output.columns()))
    print(summary.verdict(data, result.exit_code))


def examined() -> None:
    """Print what the doctor found on a healthy device."""
    f = replace(stored("healthy").header.fingerprint, environment=())
    print(archive.doctor_text({"device": f.device, "fingerprint": asdict(f), **EXAMINED}, 3.0))


# ------------------------------------------------------------------------------------------------------------- situations


def _command(*words: str) -> Callable[[], object]:
    from parity.faces import commandline

    return lambda: print(f"exit code {commandline.main(words)}")


def _once(say: Callable[[], object], errors: bool = False) -> Callable[[], object]:
    """Says it again as it was said to no terminal: what takes a second and knows no width. errors: with the standard error,
    where a slow machine has progress."""
    with redirect_stdout(io.StringIO()) as stream, redirect_stderr(stream if errors else io.StringIO()):
        say()
    return lambda: print(stream.getvalue(), end="")


def situations() -> Mapping[str, Callable[[], object]]:
    """What prints each of them but the failing test, in a folder with `MODELS` and `FAULTS`."""
    healthy, honest, faulty = (str(golden.GOLDEN / f"{name}.jsonl") for name in ("healthy", "honest", "faulty"))
    unclear = Path("unclear.jsonl")
    unclear.write_text(Path(healthy).read_text().replace('["math","precise"]', '["math","fast"]', 1))
    locate = ("locate", "models.py:net", "--device", "sim")
    return {
        "healthy-run": lambda: show(stored("healthy"), "4 ops, 4 op x dtype pairs"),
        "run-with-2-causes": lambda: show(stored("faulty"), "4 ops, 4 op x dtype pairs"),
        "run-with-60-causes": lambda: show(with_sixty_causes(), "60 ops, 60 op x dtype pairs"),
        "run-with-refused-ops": lambda: show(with_refusals(), "8 ops, 8 op x dtype pairs"),
        "locate-found": _once(_command(*locate, "--setup", "faults.py")),
        "locate-not-found": _once(_command(*locate)),
        "diff-equal": _command("diff", healthy, honest),
        "diff-worse": _command("diff", healthy, faulty),
        "diff-unclear": _command("diff", healthy, str(unclear)),
        "doctor": examined,
        "audit": _once(_command("audit", "models.py:net")),
        "bad-input": _once(_command("locate", "models.py:nets", "--device", "sim"), errors=True),
    }


def outputs() -> Iterator[tuple[str, str]]:
    """(file name, text of all widths) of every situation."""
    with tempfile.TemporaryDirectory() as folder, _inside(Path(folder)):
        made = {name: [on_terminal(w, say) for w in WIDTHS] for name, say in situations().items()}
        made["failing-test"] = [golden.masked(_zeros(text)) for text in _tested().split("\f")[: len(WIDTHS)]]
        for name, texts in made.items():
            whole = "".join(f"{f' {w} columns ':#^{w}}\n{text}" for w, text in zip(WIDTHS, texts, strict=True))
            yield f"screens/{name}", whole.replace(folder, "FOLDER")


def apart(stored: str) -> list[tuple[int, str]]:
    """(width, text) of a golden file."""
    return [(int(w), text) for w, text in re.findall(r"^#+ (\d+) columns #+\n(.*?)(?=^#|\Z)", stored, re.M | re.S)]


def _zeros(text: str) -> str:
    """The text without what gradients are on this CPU, and without pytest's time; as long as it was."""
    figures = r"-?\d\.\d{5,}|[\d.]+e\+\d+(?= times)|(?<=share )[\d.]+|(?<=worst at )\[[\d, ]+\]"
    return re.sub(figures, lambda m: re.sub(r"\d", "0", m[0]), re.sub(r"[\d.]+s( \([\d:]+\))?$", "TIME", text, flags=re.M))


def _tested() -> str:
    """What pytest writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {n: v for n, v in os.environ.items() if n not in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")} | {"NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", TESTED], env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = b""
        with suppress(OSError), open(ours, "rb", buffering=0) as stream:  # reading past the end raises on Linux
            while part := stream.read(1 << 16):
                text += part
        process.wait()
    return re.sub(r"\033\[[\d;]*m", "", text.decode().replace("\r\n", "\n"))


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    for name, text in (("models.py", MODELS), ("faults.py", FAULTS), ("test_net.py", TEST)):
        (folder / name).write_text(text)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, {journal.NOTES: str(folder / "notes")}):  # commands run in this process
            yield
    finally:
        os.chdir(before)
        sys.modules.pop("models", None)
