"""The pytest plugin: options, and what passes, fails or skips."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from parity.core import project
from parity.devices.setup import run_setup
from parity.engine import inquest
from parity.faces import commandline
from parity.store import run_file
from parity.store.code import code_of
from parity.store.rows import CPU, DEVICE, UNKNOWN, counted

SUITE = project.resource_folder("conformance")
FAULTY = """
from parity.devices import Fault

FAULTS = [Fault("twice", ops=("{op}",), effect=lambda call: call.run() * 2 + 1)]
"""


def suite(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """The conformance suite in a process of its own, without the progress of `parity run`."""
    return pytester.runpytest_subprocess(str(SUITE), "-c", str(SUITE / "pytest.ini"), "-p", "no:cacheprovider", *options)


def test_agreeing_items_pass_and_are_named_by_op_and_dtype(pytester: pytest.Pytester) -> None:
    """One test per op and dtype."""
    done = suite(pytester, "--parity-device", "sim", "--parity-op", "add", "--parity-examples", "3", "-v")
    done.assert_outcomes(passed=10)
    done.stdout.fnmatch_lines(["*test_operator[[]add-float32[]] PASSED*"])


def test_nothing_of_an_item_stays_for_the_rest_of_the_run(pytester: pytest.Pytester) -> None:
    """A run of hours has thousands of items in a process."""
    pytester.makepyfile(
        counting="""
        import gc

        def pytest_runtest_logfinish(nodeid):
            gc.collect()
            kept = sum(type(o).__name__ == "SubRequest" for o in gc.get_objects())
            print(f"kept {kept} requests")
        """
    )
    done = suite(pytester, "--parity-device", "sim", "--parity-op", "add", "--parity-examples", "1", "-p", "counting", "-s")
    kept = [int(n) for n in re.findall(r"kept (\d+) requests", done.stdout.str())]
    assert len(kept) == 10, "after the last one, those of the session go, too"
    assert kept[1:-1] == kept[:1] * 8


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available() and not hasattr(torch, "sim"), reason="auto finds a real device here")
@pytest.mark.parametrize("asked", [(), ("--parity-device", "sim:mps")])
def test_the_header_names_the_device_and_says_that_it_is_simulated(pytester: pytest.Pytester, asked: tuple[str, ...]) -> None:
    """Where the suite runs; other people's runs are none of our business."""
    done = suite(pytester, *asked, "--parity-op", "add", "--collect-only")
    done.stdout.fnmatch_lines(["parity: device sim:mps (SIMULATED: *), quick profile, seed 0"])
    pytester.makepyfile("def test_nothing():\n    pass\n")
    assert "parity: device" not in pytester.runpytest_subprocess("-p", "no:cacheprovider").stdout.str()


def test_a_refused_op_is_a_skip_with_its_reason(pytester: pytest.Pytester) -> None:
    """Nothing compared is never a pass."""
    done = suite(pytester, "--parity-device", "sim:mps", "--parity-op", "heaviside", "--parity-dtype", "float32", "-rs")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["*heaviside float32: forward: * unsupported*"])


@pytest.mark.slow
def test_fail_on_makes_a_refusal_a_failure(pytester: pytest.Pytester) -> None:
    """--parity-fail-on unsupported."""
    options = ("--parity-device", "sim:mps", "--parity-op", "heaviside", "--parity-dtype", "float32")
    suite(pytester, *options, "--parity-fail-on", "unsupported").assert_outcomes(failed=1)


@pytest.mark.slow
def test_unknown_names_are_usage_errors(pytester: pytest.Pytester) -> None:
    """With near matches, and without a traceback."""
    done = suite(pytester, "--parity-op", "sofmax")
    assert done.ret == 2
    assert "no op matches 'sofmax'; did you mean 'softmax'" in done.stdout.str() + done.stderr.str()
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    assert "During handling" not in done.stdout.str()
    assert "_hookexec" not in done.stdout.str()


def test_a_status_that_is_none_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """In anybody's run, before anything is collected; several come with commas."""
    pytester.makepyfile("def test_own():\n    pass\n")
    done = pytester.runpytest_subprocess("--parity-fail-on", "fallback,banana", "-p", "no:cacheprovider")
    assert done.ret == 2
    assert "parity: unknown status 'banana' for --parity-fail-on; allowed: " in done.stderr.str()
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    pytester.runpytest_subprocess("--parity-fail-on", "fallback,void", "-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.slow
def test_an_absent_device_ends_the_run_with_4(pytester: pytest.Pytester) -> None:
    """Exit code of the device's absence."""
    assert suite(pytester, "--parity-device", "xpu", "--parity-op", "add").ret == 4


@pytest.mark.slow
def test_a_finding_without_room_for_its_script_is_told_all_the_same(pytester: pytest.Pytester) -> None:
    """A full disk costs the script, not the finding."""
    faults = pytester.makepyfile(faults=FAULTY.format(op="tanh"))
    options = ("--parity-device", "sim", "--parity-op", "tanh", "--parity-dtype", "float32", "--parity-examples", "3")
    done = suite(pytester, *options, "--parity-faults", str(faults), "--parity-findings", "/dev/null/findings")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*tanh float32 on sim: wrong in out, forward*", "*no script: cannot write /dev/null/findings/*"])


@pytest.mark.slow
def test_a_death_under_xdist_is_told_and_the_item_goes_on(pytester: pytest.Pytester) -> None:
    """The item of a dead worker is run again without the case that killed it."""
    faults = pytester.makepyfile(
        faults="""
        import os
        from parity.devices import Fault
        FAULTS = [Fault("abort", ("sin",), lambda c: os.abort(), lambda c: c.operands[0].dim() == 2)]
        """
    )
    done = suite(
        pytester, "--parity-device", "sim", "--parity-op", "sin", "--parity-dtype", "float32", "--parity-examples", "8",
        "--parity-faults", str(faults), "-n", "1", "--parity-rundir", str(pytester.path / "rundir"),
    )  # fmt: skip
    deaths = [json.loads(x) for x in (pytester.path / "rundir" / "deaths.jsonl").read_text().splitlines()]
    assert deaths
    assert all(d["how"] == "crash" and d["stage"] == "device" and d["signal"] == "SIGABRT" for d in deaths)
    assert done.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_a_reference_that_dies_is_no_crash_of_the_device(tmp_path: Path) -> None:
    """The CPU's own trouble: the run says so, goes on without the case, and ends well; a replay of it says the same."""
    setup = tmp_path / "setup.py"
    setup.write_text(
        "import os, torch\n"
        "real = torch.sin\n"
        "def sin(x, **more):\n"
        "    return os.abort() if x.is_cpu and x.dtype is torch.float32 and x.dim() == 2 else real(x, **more)\n"
        "torch.sin = sin\n"
    )
    command = [
        sys.executable, "-m", "parity", "run", "sin", "--device", "sim", "--dtype", "float32", "--examples", "3", "-n", "1",
        "--setup", str(setup), "--output", str(tmp_path / "run.jsonl"), "--findings", str(tmp_path / "findings"),
        "--junit-xml", str(tmp_path / "junit.xml"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    told = done.stdout + done.stderr
    tests = [*ElementTree.parse(tmp_path / "junit.xml").iter("testcase")]
    assert {str(t.get("name")) for t in tests} == {"test_operator[sin-float32]"}
    assert sum(t.find("error") is not None for t in tests) == len(tests) - 1
    assert "sin float32 on the CPU: crash, the process died (SIGABRT) at stage reference" in told
    assert re.search(r"^CPU +died or hung itself in 1 case: sin", told, re.M)
    assert done.returncode == 0, told
    run = run_file.read(tmp_path / "run.jsonl")
    assert run.header.setup == code_of(str(setup))
    assert {d.blame for d in run.deaths} == {CPU}
    assert {d.why for d in run.deaths} == {"it comes on the CPU alone, 3 of 3 times (SIGABRT)"}
    assert not counted(run.deaths, run.items)


@pytest.mark.parametrize("last, told", [
    ("raise RuntimeError('no such flag')", "RuntimeError: no such flag"),
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("def (", "SyntaxError: invalid syntax"),
])  # fmt: skip
def test_a_setup_that_raises_is_one_error(tmp_path: Path, last: str, told: str) -> None:
    """Before anything begins, with its file and line, and nothing is called agreement."""
    setup = tmp_path / "setup.py"
    setup.write_text(f"import torch\n{last}\n")
    command = [sys.executable, "-m", "parity", "run", "sin", "--device", "sim", "-n", "2", "--setup", str(setup)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        f"parity: --setup {setup} raises {told} ({setup}:2); mend it, or leave it away"
    )
    assert "agrees" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_setup_comes_before_the_device_is_looked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """So that what it sets is what the probe sees, and a replay and an explanation too."""
    setup = tmp_path / "setup.py"
    setup.write_text("import torch\ntorch.set_float32_matmul_precision('medium')\nprint('set up')\n")
    assert commandline.main(["doctor", "--device", "sim", "--setup", str(setup)]) == 0
    assert re.search(r"float32_matmul_precision +medium", capfd.readouterr().out)
    for command in ("replay", "explain"):
        assert commandline.main([command, "sin(float32[2])", "--device", "sim", "--setup", str(setup)]) == 0
        assert "set up" in capfd.readouterr().out


def test_what_a_setup_registers_stays(tmp_path: Path) -> None:
    """A torch.library.Library takes its operators with it when nobody holds it."""
    setup = tmp_path / "setup.py"
    setup.write_text(
        'import torch\nlib = torch.library.Library("parity_stays", "DEF")\nlib.define("one(Tensor x) -> Tensor")\n'
    )
    run_setup(str(setup))
    gc.collect()
    assert str(torch.ops.parity_stays.one.default) == "parity_stays.one.default"


@pytest.mark.parametrize(
    ("stage", "blame", "code"), [("reference", CPU, 3), ("reference", UNKNOWN, 1), ("compare", DEVICE, 1), ("device", "", 1)]
)
def test_a_replay_that_dies_says_whose_death_it_was(
    stage: str, blame: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the stage that its journal names where that is the device's, and by an inquest elsewhere."""
    monkeypatch.setattr("parity.engine.inquest.attempt", lambda *_: inquest.Attempt(1, "SIGSEGV", False, stage))
    monkeypatch.setattr("parity.engine.inquest.held", lambda *_: (blame, "why it is so"))
    assert commandline.main(["replay", "sin(float32[2])", "--device", "sim"]) == code
    out = capsys.readouterr().out
    assert f"crash: the process died (SIGSEGV) at stage {stage}" in out
    assert ("why it is so" in out) == bool(blame)


@pytest.mark.slow
def test_a_hang_is_ended_from_outside(pytester: pytest.Pytester) -> None:
    """The controller kills a worker whose case is overdue, also where native code would hold the interpreter."""
    faults = pytester.makepyfile(
        faults="""
        import ctypes
        from parity.devices import Fault
        FAULTS = [Fault("hang", ("sin",), lambda c: ctypes.PyDLL(None).sleep(1000), lambda c: c.operands[0].dim() == 2)]
        """
    )
    suite(
        pytester, "--parity-device", "sim", "--parity-op", "sin", "--parity-dtype", "float32", "--parity-examples", "8",
        "--parity-faults", str(faults), "-n", "1", "--parity-rundir", str(pytester.path / "rundir"), "--parity-hang-after", "1",
    )  # fmt: skip
    deaths = [json.loads(x) for x in (pytester.path / "rundir" / "deaths.jsonl").read_text().splitlines()]
    assert {d["how"] for d in deaths} == {"hang"}
    assert all(re.fullmatch(r"ended by parity after \d+\.\d s", d["signal"]) for d in deaths)
    assert len(deaths) <= 3  # then the cases run in processes of their own


def run(folder: Path, name: str, *arguments: str) -> list[dict[str, object]]:
    """The rows of the run file of `parity run`."""
    out = folder / f"{name}.jsonl"
    assert commandline.main(["run", *arguments, "--output", str(out), "--findings", str(folder)]) == 0
    return [json.loads(x) for x in out.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.cold  # a forked process has the hash seed of all others: an order that hangs on it would not show
@pytest.mark.usefixtures("examined_once")
def test_one_worker_and_two_give_the_same_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are a function of item and seed, not of order or worker: the ids of all of them, by the digest that each item
    reports, the records with theirs, and how often each feature was drawn."""
    asked: tuple[str, ...] = ("add", "softmax", "--source", "all", "--device", "sim", "--dtype", "float32,int64")
    asked += ("--examples", "4", "--power", "0")
    monkeypatch.setenv("PARITY_HANG_AFTER", "300")  # workers on a busy machine are slow to start
    few, many = (run(tmp_path, f"with {n}", "opinfo:sort", *asked, "-n", n) for n in ("1", "2"))
    for kind, *words in (
        ("item", "op", "dtype", "cases", "ids"),
        ("record", "case", "aspect"),
        ("coverage", "family", "counts"),
    ):
        told = [sorted(str([r[w] for w in words]) for r in rows if r.get("kind") == kind) for rows in (few, many)]
        assert told[0] == told[1]
        assert told[0]
