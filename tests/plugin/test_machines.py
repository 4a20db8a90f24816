"""One run over several machines: two environments here, one of which loses its worker, and a stand-in for ssh."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import threading
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from parity.core.errors import DeviceError, UsageError
from parity.core.results import Fingerprint
from parity.engine import machines
from parity.store import run_file
from parity.store.rows import OUTSIDE

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True)
ROOT = Path(__file__).parents[2]
TIMES = ("seconds", "started", "setup", "device_seconds", "device_spread")
ASKED = ("run", "exp", "log", "sin", "--dtype", "float32,int8", "--examples", "6", "--device", "sim", "--power", "40")
# In the worker gw1: the process is killed some time after it began.
KILL = """
import os, signal, threading, time

if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    def kill():
        while not os.path.exists("{sign}"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
"""
# A fault that gives the sign when gw1 comes to its second case, and changes nothing.
FAULTS = """
import os, time
from parity.devices import Fault

seen = []

def sign(call):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        seen.append(1)
        if len(seen) == 3:
            open("{sign}", "w").close()
            time.sleep(2)
    return call.run()

FAULTS = [Fault("sign", ops=("exp", "log", "sin"), effect=sign)]
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The Python of another environment, with the packages of this one."""
    venv.create(tmp_path / "other", with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "other")}))
    (packages / "same.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return tmp_path / "other/bin/python"


def parity(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parity", *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def rows(path: Path) -> list[str]:
    """Every row but for times, deaths and what depends on the process, in an order of their own."""
    trees = [json.loads(line) for line in path.read_text().splitlines()]
    keep = [{k: v for k, v in t.items() if k not in TIMES} for t in trees if t.get("kind") != "death"]
    return sorted(json.dumps(t, sort_keys=True) for t in keep)


@pytest.mark.slow
def test_two_environments_one_of_which_is_killed_are_one_run(tmp_path: Path, other: Path) -> None:
    """What the lost worker had begun is examined again; the run file is that of a run in one place."""
    sign = tmp_path / "sign"
    (tmp_path / "faults.py").write_text(FAULTS.format(sign=sign))
    (tmp_path / "kill.py").write_text(KILL.format(sign=sign))
    faults = ("--setup", "faults.py")
    whole = parity(tmp_path, *ASKED, *faults, "-n", "1", "--skip", "again", "--output", "whole.jsonl")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    both = ("-n", f"popen//python={sys.executable}", "-n", f"popen//python={other}")
    done = parity(tmp_path, *ASKED, *faults, "--setup", "kill.py", *both, "--output", "both.jsonl")
    run = run_file.read(tmp_path / "both.jsonl")
    assert sign.exists(), done.stdout + done.stderr
    assert [(d.how, d.blame) for d in run.deaths] == [("killed", OUTSIDE)], done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(tmp_path / "both.jsonl") == rows(tmp_path / "whole.jsonl")


HALVED = """
from parity.devices import Fault

FAULTS = [Fault("halved", ops=("exp",), effect=lambda call: call.run() * 0.5, level="kernel")]
"""
# Runs the command of the far side here, in a folder and with a folder for temporary files of its own.
SSH = """#!/bin/bash
while [ "$1" != mac2 ]; do shift; done
[ ! -e {gone} ] || exit 255
cd {home} && TMPDIR={home}/tmp exec bash -c "$2"
"""


def far(tmp_path: Path) -> tuple[str, str]:
    """(path of programs, gateway) of a machine that is reached by ssh."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home/tmp").mkdir(parents=True)
    ssh = tmp_path / "bin/ssh"
    ssh.write_text(SSH.format(home=tmp_path / "home", gone=tmp_path / "gone"))
    ssh.chmod(0o755)
    return f"{ssh.parent}{os.pathsep}{os.environ['PATH']}", f"ssh=mac2//python={sys.executable}"


@pytest.mark.slow
def test_findings_of_a_far_machine_come_home(tmp_path: Path) -> None:
    """Records, causes, and the scripts, which are written on the disk of the one who asked."""
    path, spec = far(tmp_path)
    (tmp_path / "faults.py").write_text(HALVED)
    asked = (*ASKED[:2], *ASKED[4:], "--dtype", "float32", "--setup", str(tmp_path / "faults.py"), "--output", "run.jsonl")
    done = parity(tmp_path, *asked, "-n", spec, PATH=path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "aten::exp gives wrong values" in done.stdout
    run = run_file.read(tmp_path / "run.jsonl")
    scripts = [r.script for r in run.records if r.script]
    assert scripts
    assert all((tmp_path / s).is_file() for s in scripts)
    assert not (tmp_path / "home/findings").exists()


@pytest.mark.slow
def test_a_machine_that_is_gone_costs_its_worker_and_not_the_run(tmp_path: Path) -> None:
    """The item that it had is examined by the other one."""
    path, spec = far(tmp_path)
    sign = tmp_path / "gone"
    (tmp_path / "faults.py").write_text(FAULTS.format(sign=sign))
    (tmp_path / "kill.py").write_text(KILL.format(sign=sign))
    both = ("-n", "popen", "-n", spec, "--setup", str(tmp_path / "faults.py"), "--setup", str(tmp_path / "kill.py"))
    done = parity(tmp_path, *ASKED, *both, "--output", "run.jsonl", PATH=path)
    assert sign.exists(), done.stdout + done.stderr
    run = run_file.read(tmp_path / "run.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(run.items) == 6
    assert [(d.case, d.blame) for d in run.deaths] == [("", OUTSIDE)]
    assert "is gone" in done.stderr


@pytest.mark.slow
def test_machines_that_differ_are_refused(tmp_path: Path, other: Path) -> None:
    """By name, with what differs, unless that is asked for; then the run file says so."""
    (tmp_path / "odd.sh").write_text(f'#!/bin/sh\nOMP_NUM_THREADS=3 exec {other} "$@"\n')
    (tmp_path / "odd.sh").chmod(0o755)
    odd = f"popen//python={tmp_path / 'odd.sh'}"
    asked = ("run", "exp", "--dtype", "float32", "--examples", "2", "--device", "sim", "-n", "popen", "-n", odd)
    done = parity(tmp_path, *asked)
    assert done.returncode == 2
    assert f"parity: machines popen and {odd} differ: OMP_NUM_THREADS" in done.stderr
    assert "take equal ones, or give --accept mixed" in done.stderr
    done = parity(tmp_path, *asked, "--accept", "mixed", "--output", "run.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MIXED machines: " in done.stdout
    (text,) = run_file.read(tmp_path / "run.jsonl").header.machines
    assert text.startswith(f"{odd}: OMP_NUM_THREADS")


def test_what_differs_is_told_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "fingerprint_of", lambda answer: replace(PRINT, os=answer["os"]))
    one, same, other = (machines.Machine(spec, 1, {"os": os}) for spec, os in (("a", "Linux"), ("b", "Linux"), ("c", "Mac")))
    assert machines.differences([one, same], False) == ()
    assert machines.differences([one, same, other], True) == ("c: os 'Linux' and 'Mac'",)
    with pytest.raises(UsageError, match="machines a and c differ: os 'Linux' and 'Mac'; take equal ones"):
        machines.differences([one, same, other], False)


def test_a_gateway_has_a_number_of_workers() -> None:
    assert machines.read_specs(["2*popen//python=a", "ssh=mac2", "popen//python=a"]) == {"popen//python=a": 3, "ssh=mac2": 1}


@pytest.mark.parametrize("text", ["banana", "0*popen", "popen//popen", "python=a", "ssh=a\nb", "*popen"])
def test_what_names_no_machine_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="-n"):
        machines.read_specs([text])


def test_a_port_of_another_server_is_no_machine() -> None:
    """execnet asserts what a server of its own says first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = f"socket=127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0")).start()
        with pytest.raises(DeviceError, match=f"machine {spec} cannot be reached"):
            machines.examine({spec: 1}, "sim", None, None)
