"""Operators that end their process, in whatever way: each costs its own cases, is named, and changes nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parity.engine import inquest, shrinking
from parity.engine.reading import HANG_AFTER
from parity.store import run_file
from parity.store.rows import OUTSIDE, UNKNOWN, Death, Run

pytestmark = pytest.mark.slow

TIMES = ("seconds", "device_seconds", "device_spread", "started", "ids")
ODD = """
import os, signal, sys
from parity.devices import Fault

class Silent(RuntimeError):
    def __str__(self):
        raise ValueError("no words")

def raises(error):
    def effect(call):
        raise error
    return effect

def flat(call):
    return call.operands[0].dim() < 2

def forks(call):
    os.fork()
    return call.run()

FAULTS = [
    Fault("interrupts", ("sin",), raises(KeyboardInterrupt()), flat),
    Fault("exits", ("cos",), raises(SystemExit(3)), flat),
    Fault("ends", ("tan",), lambda call: os._exit(0), lambda call: call.operands[0].dim() > 2),
    Fault("forks", ("exp",), forks, flat),
    Fault("silent", ("log",), raises(Silent()), flat),
    Fault("talks", ("sqrt",), raises(RuntimeError("long " * 1_000_000)), flat),
]
"""
OPS = ("sin", "cos", "tan", "exp", "log", "sqrt", "neg", "abs")
HURT = OPS[:6]


def run(folder: Path, name: str, *more: str) -> tuple[subprocess.CompletedProcess[str], Run]:
    """A run of the command, and its run file."""
    path = folder / f"{name}.jsonl"
    asked = (*OPS, "--device", "sim", "--dtype", "float32", "--examples", "6", "--skip", "shrink,again", "--power", "20")
    command = (sys.executable, "-P", "-m", "parity", "run", *asked, *more, "--output", str(path))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done, run_file.read(path)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a quiet run."""
    folder = tmp_path_factory.mktemp("healthy")
    done, _ = run(folder, "healthy", "-n", "1")
    assert done.returncode == 0, done.stdout
    return folder / "healthy.jsonl"


def rows(path: Path, without: tuple[str, ...] = ()) -> list[str]:
    """Every row of a run file but for times, deaths and those of these ops, in an order of their own."""
    kept = []
    for line in path.read_text().splitlines()[1:]:
        row: dict[str, Any] = json.loads(line)
        if row["kind"] in ("item", "record", "figures", "power") and row["op"] not in without:
            kept.append(json.dumps({k: v for k, v in row.items() if k not in TIMES}, sort_keys=True))
    return sorted(kept)


def test_what_an_operator_does_to_its_process_costs_its_own_cases(tmp_path: Path, healthy: Path) -> None:
    """Exceptions that are none of a device's, a quiet end, a fork, five megabytes of words: named, and nothing else changes."""
    (tmp_path / "faults.py").write_text(ODD)
    done, hurt = run(tmp_path, "hurt", "-n", "1", "--setup", "faults.py")
    assert done.returncode == 1, done.stdout
    assert rows(tmp_path / "hurt.jsonl", HURT) == rows(healthy, HURT)
    assert {i.op for i in hurt.items} == set(OPS)
    told = {op: {r.reason for r in hurt.records if r.op == op and r.status == "error"} for op in OPS}
    for op, word in {"sin": "KeyboardInterrupt", "cos": "SystemExit", "exp": "forked its process", "sqrt": "long"}.items():
        assert told[op], op
        assert all(word in reason for reason in told[op]), told[op]
    assert all("its message cannot be made" in reason for reason in told["log"])
    assert max(len(reason) for reasons in told.values() for reason in reasons) < 1000
    deaths = [d for d in hurt.deaths if d.blame != OUTSIDE]
    assert {(d.op, d.how, d.signal) for d in deaths} == {("tan", "crash", "exit code 0")}
    (tan,) = (i for i in hurt.items if i.op == "tan")
    assert set(tan.not_run) == {d.case for d in deaths}
    assert tan.cases + len(tan.not_run) == next(i for i in hurt.items if i.op == "neg").cases
    assert len(tan.not_run) > 3  # after three deaths the other cases run in processes of their own
    assert re.search(
        r"^not run +cases that ended or hung .*, or come behind many of them: tan float32 \(\d+\)", done.stdout, re.M
    )


def test_workers_that_are_killed_lose_nothing(tmp_path: Path, healthy: Path) -> None:
    """Before the first case, in a case and between two: the item is run again, and the run file is that of a quiet run."""
    (tmp_path / "kills.py").write_text(
        "import os, signal\nfrom parity.engine.journal import IDLE, Journal\n"
        "here, real, began = os.environ.get('PYTEST_XDIST_WORKER'), Journal.begin, [0]\n"
        "def kill():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def begin(self, ordinal, item, case, allowed):\n"
        "    began[0] += 1\n"
        "    real(self, ordinal, item, case, allowed)\n"
        "    if here == 'gw2' and began[0] == 5:\n        kill()\n"
        "def end(self):\n"
        "    closed.extend([1] if self._map[0] == IDLE else [])\n"  # after its cases, the end of the item
        "    kill() if len(closed) == {'gw1': 1, 'gw3': 3}.get(here) else None\n"
        "    shut(self)\n"
        "def start(self, path):\n    init(self, path)\n    kill() if here == 'gw0' else None\n"
        "closed, shut, init, Journal.__init__, Journal.begin = [], Journal.end, Journal.__init__, start, begin\n"
        "Journal.end = end\n"
    )
    done, killed = run(tmp_path, "killed", "-n", "1", "--setup", "kills.py")
    assert len(killed.deaths) == 4, done.stdout
    assert {d.blame for d in killed.deaths} == {OUTSIDE}
    assert done.returncode == 0, done.stdout
    assert rows(tmp_path / "killed.jsonl") == rows(healthy)


DEADLY = """
import os, threading, time
from parity.devices import Fault

def later(call):
    out = call.run()
    threading.Thread(target=lambda: (time.sleep(0.02), os._exit(7)), daemon=True).start()
    return out

def hangs(call):
    time.sleep(1000)

FAULTS = [
    Fault("aborts", ("sin",), lambda call: os.abort(), lambda call: call.operands[0].dim() == 2),
    Fault("aborts-backward", ("sigmoid_backward",), lambda call: os.abort(), lambda call: call.operands[0].dim() == 4),
    Fault("later", ("cos",), later, lambda call: call.operands[0].dim() == 3),
    Fault("hangs", ("tan",), hangs, lambda call: call.operands[0].dim() > 1),
]
"""
RUN_SCRIPT = """
import runpy, sys, torch
from parity.devices import load_faults, resolve

torch.autograd.set_multithreading_enabled(False)
device, script = resolve("sim", load_faults(sys.argv[1])), sys.argv[2]
sys.argv = [script, str(device.torch_device)]
with device.active():
    runpy.run_path(script, run_name="__main__")
"""


def dies(folder: Path, script: Path, seconds: float) -> int | None:
    """The exit code of a script on the simulated device with its faults; None if it hangs."""
    line = (sys.executable, "script.py", "faults.py", str(script))
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(line, cwd=folder, capture_output=True, timeout=seconds, check=False).returncode
    return None


def test_deaths_are_shrunk_and_get_scripts_that_die(tmp_path: Path) -> None:
    """In the backward, and later than the call: one least case for each kind of death."""
    (tmp_path / "faults.py").write_text(DEADLY)
    (tmp_path / "script.py").write_text(RUN_SCRIPT)
    asked = ("sigmoid", "cos", "--device", "sim", "--dtype", "float32", "--examples", "8", "--setup", "faults.py")
    command = (sys.executable, "-P", "-m", "parity", "run", *asked, "--power", "0", "-n", "2", "--output", "run.jsonl")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    deaths = run_file.read(tmp_path / "run.jsonl").deaths
    # By the op of the least case: the late one may strike while a worker is already at the other op's cases, and is then found
    # behind that op's death, in a third kind of death.
    least = {d.shrunk.partition("(")[0]: d for d in deaths if d.shrunk}
    assert sorted(least) == ["cos", "sigmoid"]
    # The late one strikes by chance, so that its least case may be larger than it need be.
    assert least["sigmoid"].shrunk.startswith("sigmoid(float32[1, 1, 1, 1]")
    assert least["cos"].shrunk.startswith("cos(float32[")
    shrunk = len([d for d in deaths if d.shrunk])
    assert shrunk in {2, 3}
    assert least["sigmoid"].shrunk_aspect == "backward"  # when the late one strikes is chance
    assert re.search(rf"{shrunk} of [234] kinds of deaths shrunk in", done.stdout), done.stdout
    assert f"or run {least['sigmoid'].script}" in done.stdout
    assert dies(tmp_path, tmp_path / least["sigmoid"].script, 60) == -6
    assert sum("features" in line for line in (tmp_path / "run.jsonl").read_text().splitlines()) == 2


def test_a_hang_is_shrunk_with_few_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predicate is that nothing is said in time; what does not hang is no least case."""
    (tmp_path / "faults.py").write_text(DEADLY)
    monkeypatch.setattr(shrinking, "HUNG", 1.0)
    hang = Death("tan", "float32", "tan(float32[3, 4].uniform(seed=7))", "", "hang", "ended by parity after 3.0 s", "device")
    other = Death("exp", "float32", "exp(float32[3])", "", "crash", "SIGSEGV", "device")
    how = inquest.How("sim", str(tmp_path / "faults.py"))
    one, two = shrinking.Shrinking(how, 1, hang_after=3.0).done([hang, other, other])
    assert one.death.shrunk == "tan(float32[1, 1])"
    assert one.died <= shrinking.HANGS
    assert (two.death, two.died, two.why) == (other, 0, "it was not reproduced")
    (late,) = shrinking.Shrinking(how, 1).done([hang], seconds=0.0)
    assert late.why == "the time of the run was over"
    monkeypatch.setattr(shrinking, "ALL", 0.0)
    (late,) = shrinking.Shrinking(how, 1).done([hang], seconds=600.0)
    assert late.why == "the 0 s for shrinking deaths were over"


def test_a_run_does_not_wait_for_an_inquest(tmp_path: Path) -> None:
    """Where the CPU hangs, six processes hang once more, three at a time: all items are done meanwhile, Ctrl-C ends the
    processes, and the death is kept."""
    (tmp_path / "setup.py").write_text(
        "import time, torch\nreal = torch.sin\n"
        "def sin(x, **more):\n"
        "    if x.is_cpu and x.dtype is torch.float32 and x.dim() == 2:\n        time.sleep(10000)\n"
        "    return real(x, **more)\n"
        "torch.sin = sin\n"
    )
    asked = ("sin", "cos", "--device", "sim", "--dtype", "float32", "--examples", "3", "-n", "1")
    command = (sys.executable, "-P", "-m", "parity", "run", *asked, "--setup", "setup.py", "--output", "run.jsonl")
    env = os.environ | {HANG_AFTER: "3"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with process:
        assert process.stdout is not None
        said = list(itertools.takewhile(lambda line: not line.startswith("finding out"), process.stdout))
        assert any(line.startswith("100%  2/2 items") for line in said), said
        process.send_signal(signal.SIGINT)
        asked_at = time.monotonic()
        rest = process.stdout.read()
        assert time.monotonic() - asked_at < inquest.STARTING / 4, rest
    kept = run_file.read(tmp_path / "run.jsonl")
    assert {d.op for d in kept.deaths} == {"sin"}
    assert {(d.how, d.blame, d.why) for d in kept.deaths} == {("hang", UNKNOWN, inquest.NOT_DONE)}
