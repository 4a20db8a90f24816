"""Files from others, deaths, and runs that compare nothing: what must not run, must not be acquitted, must not be green."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commands import said, told

from parity.core import untrusted
from parity.core.errors import CaseError
from parity.core.notation import parse
from parity.core.results import Fingerprint, Record
from parity.engine import inquest
from parity.faces import commandline
from parity.faces.commands import replay as replay_command
from parity.report import output
from parity.store import run_file
from parity.store.code import Code
from parity.store.rows import CPU, DEVICE, OUTSIDE, UNKNOWN, Death, End, Header, ItemRow, counted
from parity.store.run_file import Writer

PARITY = (sys.executable, "-P", "-m", "parity")
CASE = "exp(float32[2])"
PRINT = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim", "simulated", simulated=True)
EVIL = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').write_text('')\nraise ImportError('evil ran')\n"
MODULES = ("random", "json", "typing", "runpy", "dataclasses", "pathlib2", "numpy", "torch", "hypothesis", "execnet", "xdist")
SIGNS = "\x1b[2J\x07\u202e\n::error::pwned\n<script>alert(1)</script>"


def command(folder: Path, *argv: str, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
    """A command of parity in a folder. Never a traceback, never a control character."""
    done = subprocess.run((*PARITY, *argv), capture_output=True, text=True, check=False, cwd=folder, timeout=seconds)
    told = done.stdout + done.stderr
    assert "Traceback" not in told
    assert not [c for c in told if not (c.isprintable() or c in "\n\t")]
    assert not [line for line in told.splitlines() if line.lstrip().startswith("::")]
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of an attacker: modules with the names of others, and a run file that names code."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(EVIL)
    (tmp_path / "evil.py").write_text(EVIL)
    header = Header(PRINT, f"0{SIGNS}", "quick", f"exp{SIGNS}", faults=Code("evil"), setup=Code("evil.py", "00"))
    rows = (
        Record(CASE, "exp", "float32", "forward", "wrong", reason=f"because{SIGNS}", shrunk=CASE),
        ItemRow("exp", "float32", 1, {"forward": {"wrong": 1}}, void={f"void{SIGNS}": 1}),
        Death("sin", "float32", "sin(float32[2])", "", "crash", f"SIG{SIGNS}", "device", blame="device", why=SIGNS),
        End(1.0, {"wrong": 1}, "", 1, (f"lost{SIGNS}",), (f"broken{SIGNS}",)),
    )
    with Writer(tmp_path / "run.jsonl") as writer:
        for row in (header, *rows):
            writer.write(row)
    return tmp_path


@pytest.mark.cold  # a forked process would take no module of the folder, because it has them all
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("replay run.jsonl", 2),
        ("diff run.jsonl run.jsonl", 1),
        ("explain run.jsonl", 0),
        ("explain run.jsonl wrong", 0),
        ("prove coverage run.jsonl", 2),
        ("prove reach --run run.jsonl", 2),
        ("replay exp(float32[2]) --device sim", 0),
        ("run exp --device sim --dtype float32 --examples 1 -n 1 --output own.jsonl", 0),
    ],
)
def test_nothing_of_an_attackers_folder_runs_or_is_printed_raw(folder: Path, line: str, code: int) -> None:
    done = command(folder, *line.split())
    assert done.returncode == code, done.stdout + done.stderr
    assert not list(folder.glob("*.ran"))


def test_code_that_a_person_names_runs(folder: Path) -> None:
    """The attacker's file does where it is named, so that the test above could fail."""
    assert command(folder, "doctor", "--device", "sim", "--setup", "evil.py").returncode == 2
    assert list(folder.glob("*.ran"))


def test_a_file_that_is_named_can_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "flags.py").write_text("VALUE = 3\n")
    (tmp_path / "setup.py").write_text("import flags\nprint('set', flags.VALUE)\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = command(elsewhere, "replay", CASE, "--device", "sim", "--setup", str(tmp_path / "setup.py"))
    assert "set 3" in done.stdout


# ------------------------------------------------------------------------------------------------------------- text, files


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\tand é\n", "plain\n\tand é\n"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\rb\x85c\u2028d\u202e\ud800", r"a\rb\x85c\u2028d\u202e\ud800"),
        ("  ::error::x\nat::native\n##[error]", "  :\\:error::x\nat::native\n#\\#[error]"),
    ],
)
def test_what_is_printed_is_text_alone(text: str, shown: str) -> None:
    assert untrusted.shown(text) == shown
    assert untrusted.printable(text).isprintable()


def test_a_stream_shows_text_and_moves_the_cursor_when_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    with output.patient():
        print("\x1b[2J")
        output.control(sys.stdout, "\r\033[K")
    assert capsys.readouterr().out == "\\x1b[2J\n\r\033[K"


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"kind":"end","seconds":' + "9" * 5000 + "}", '{"kind":"end","totals":' + '{"a":' * 100 + "1" + "}" * 101,
     '{"kind":"' + "A" * 100_000 + '"}', '{"kind":"coverage","family":"f","counts":{"x":1}}',
     '{"kind":"death","op":"a","dtype":"b","case":"c","how":"agree"}',
     '{"kind":"end","seconds":true}', '{"kind":"end","lost":[1]}', '{"kind":"end","totals":{"agree":-1}}'],
)  # fmt: skip
def test_a_row_that_is_no_row_is_one_error(tmp_path: Path, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    with Writer(path) as writer:
        writer.write(Header(PRINT))
        writer.write_line(line)
    code, _, error = said(capfd, "diff", str(path), str(path))
    assert (code, len(error.splitlines()), error.strip().isprintable()) == (2, 1, True)
    assert len(error) < 1000


@pytest.mark.parametrize("text", ["add({[]: 1})", "add(" + "9" * 500 + ")", "add(float32[" + "9" * 300 + "])",
                                  "add(" + "-" * 3000 + "1)", "(" * 3000, "add(\udcff)", "x" * 100_000,
                                  "add(" + "1+" * 5000 + "1)", "add" + ".a" * 5000])  # fmt: skip
def test_a_notation_that_is_none_is_one_error(text: str) -> None:
    with pytest.raises(CaseError) as e:
        parse(text)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 1000


@pytest.mark.parametrize("text", ["add(float32[99999999999])", 'exp(float32[2].at(0, "\x1b[2J"))'])
def test_a_case_that_nobody_can_build_is_one_error(tmp_path: Path, text: str) -> None:
    done = command(tmp_path, "replay", text, "--device", "sim")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("device", ["sim; touch pwned", "--setup=evil.py", "sim --setup x", "$(id)"])
def test_a_device_is_a_name(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends up in commands: in those that are printed, and in those that are started."""
    with Writer(folder / "named.jsonl") as writer:
        for row in (Header(replace(PRINT, device=device)), Record(CASE, "exp", "float32", "forward", "wrong"), End()):
            writer.write(row)
    monkeypatch.chdir(folder)
    for line in ("replay named.jsonl", "diff named.jsonl named.jsonl", "explain named.jsonl"):
        assert commandline.main(line.split()) == 2
        assert "no device is called" in capsys.readouterr().err
    assert not list(folder.glob("*.ran"))
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("what", ["fifo", "device", "folder"])
def test_only_ordinary_files_are_read(tmp_path: Path, what: str) -> None:
    import os

    path = tmp_path / "run.jsonl"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    done = command(tmp_path, "diff", str(path), str(path), seconds=30)
    assert done.returncode == 2
    assert "not an ordinary file" in done.stderr


# ------------------------------------------------------------------------------------------------------------------- deaths


def planted(folder: Path, act: str) -> Path:
    """A fault that does something after the call."""
    (folder / "faults.py").write_text(
        "import os, threading, time\nfrom parity.devices import Fault\n"
        "def effect(call):\n    out = call.run()\n"
        f"    threading.Thread(target=lambda: (time.sleep(0.004), {act})).start()\n    return out\n"
        "FAULTS = [Fault('dies', ops=('exp',), effect=effect, level='kernel')]\n"
    )
    return folder / "faults.py"


@pytest.mark.slow
def test_a_death_after_the_call_is_the_devices(tmp_path: Path) -> None:
    """It comes at whatever stage is under way, and again in processes with the device alone."""
    faults = planted(tmp_path, "os.abort()")
    assert inquest.held(CASE, inquest.How("sim", str(faults)), 60.0)[0] == DEVICE
    done = command(tmp_path, "replay", CASE, "--device", "sim", "--setup", "faults.py")
    assert done.returncode == 1
    assert "crash" in done.stdout


def test_a_process_that_ends_itself_in_silence_has_died(tmp_path: Path) -> None:
    faults = planted(tmp_path, "os._exit(0)")
    ended = inquest.attempt(CASE, inquest.How("sim", str(faults)), 60.0, quiet=True)
    assert ended.died == "exit code 0"


@pytest.mark.slow
def test_a_death_that_does_not_come_again_is_acquitted_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquest, "TRIES", 1)
    blame, why = inquest.held(CASE, inquest.How("sim"), 60.0)
    assert blame == UNKNOWN
    assert "was not reproduced" in why
    assert counted([Death("exp", "float32", CASE, blame=blame)], [])


@pytest.mark.parametrize(
    "ended", [("SIGKILL", False, ""), ("exit code 1", False, ""), ("no answer in 60 s", True, "build"), ("SIGSEGV", False, "")]
)
def test_what_proves_nothing_convicts_nobody(ended: tuple[str, bool, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes on the CPU that were killed before they began, never began, or had too little time."""
    monkeypatch.setattr("parity.engine.inquest.attempt", lambda *_: inquest.Attempt(1, *ended))
    assert inquest.held(CASE, inquest.How("sim"), 1.0)[0] == DEVICE


def test_three_equal_deaths_on_the_cpu_alone_convict_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.engine.inquest.attempt", lambda *_: inquest.Attempt(1, "SIGSEGV", False, "reference"))
    assert inquest.held(CASE, inquest.How("sim"), 1.0)[0] == CPU


def test_a_case_that_is_killed_with_the_device_and_without_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process after the other, because several at a time take more memory yet."""
    running, most = 0, 0

    def killed(*_: object) -> inquest.Attempt:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return inquest.Attempt(1, "SIGKILL", False, "device")

    monkeypatch.setattr("parity.engine.inquest.attempt", killed)
    blame, why = inquest.held(CASE, inquest.How("sim"), 1.0, "SIGKILL")
    assert blame == CPU
    assert "more memory than this machine has" in why
    assert most == 1


@pytest.mark.parametrize("lives", ["cpu", "sim"])
def test_a_case_that_lives_on_one_side_is_not(lives: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(case: str, how: inquest.How, *_: object) -> inquest.Attempt:
        return inquest.Attempt(0) if how.device == lives else inquest.Attempt(1, "SIGKILL", False, "device")

    monkeypatch.setattr("parity.engine.inquest.attempt", ended)
    assert inquest.held(CASE, inquest.How("sim"), 1.0, "SIGKILL")[0] == (DEVICE if lives == "cpu" else UNKNOWN)


@pytest.mark.slow
def test_a_real_case_that_is_killed_on_both_sides_is_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A kernel that takes more memory than there is: a stand-in that ends its process as the system does."""
    monkeypatch.setattr(inquest, "TRIES", 1)
    (tmp_path / "greedy.py").write_text(
        "import os, signal, torch\nplain = torch.exp\n"
        "torch.exp = lambda x, **more: os.kill(os.getpid(), signal.SIGKILL) if x.numel() > 1000 else plain(x, **more)\n"
    )
    greedy = ("--device", "sim", "--setup", str(tmp_path / "greedy.py"))
    code, text = told(capfd, "replay", "exp(float32[2000])", *greedy)
    assert "more memory than this machine has" in text
    assert code == 3
    assert told(capfd, "replay", "exp(float32[20])", *greedy)[0] == 0


def test_the_first_kill_from_outside_counts_until_the_item_was_examined_again() -> None:
    killed = Death("exp", "float32", CASE, "", "killed", "SIGKILL", "compare", blame=OUTSIDE)
    assert counted([killed], []) == [killed]
    assert not counted([killed], [ItemRow("exp", "float32", 3)])


# ----------------------------------------------------------------------------------------------------------- green nothing


REFUSES = """
from parity.devices import Fault
def refuse(call):
    raise NotImplementedError("Could not run 'aten::exp' with arguments from the 'SIM' backend")
FAULTS = [Fault("refuses", ops=("exp",), effect=refuse, level="kernel")]
"""


@pytest.mark.slow
def test_a_suite_in_which_everything_is_refused_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(REFUSES)
    suite = Path(__file__).parents[1] / "conformance"
    options = ("--parity-device", "sim", "--parity-op", "exp", "--parity-dtype", "float32", "--parity-examples", "2")
    faults = str(tmp_path / "faults.py")
    for more in ((), ("-n", "1")):
        arguments = (str(suite), "-q", "-p", "no:cacheprovider", *options, "--parity-faults", faults, *more)
        done = subprocess.run((sys.executable, "-m", "pytest", *arguments), capture_output=True, text=True, check=False)
        assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
        assert "parity: nothing was compared in 1 items: this is no success" in done.stdout


@pytest.mark.slow
def test_a_device_that_starts_refusing_is_lost(tmp_path: Path) -> None:
    """It takes no tensor any more from the middle on: what comes then is refused, and not done."""
    (tmp_path / "setup.py").write_text(
        "from parity.devices.sim.device import SimDevice\nreal, calls = SimDevice.upload, [0]\n"
        "def upload(self, *args, **more):\n    calls[0] += 1\n"
        "    if calls[0] > 60:\n        raise NotImplementedError('not implemented for SIM')\n"
        "    return real(self, *args, **more)\nSimDevice.upload = upload\n"
    )
    options = ("--device", "sim", "--dtype", "float32", "-n", "1", "--output", "run.jsonl", "--skip", "shrink")
    done = command(tmp_path, "run", "exp", "--examples", "16", *options, "--setup", "setup.py")
    assert done.returncode == 1, done.stdout
    assert "the device computes nothing any more" in done.stdout


def test_runs_that_refuse_all_have_nothing_in_common(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    with Writer(path) as writer:
        writer.write(Header(PRINT))
        writer.write(ItemRow("exp", "float32", 1, {"forward": {"unsupported": 1}}))
        writer.write(End(1.0, {"unsupported": 1}, "", 1))
    code, _, error = said(capfd, "diff", str(path), str(path))
    assert (code, "the first run compared nothing" in error) == (3, True)


@pytest.mark.parametrize("end", [End(1.0, {"agree": 1}, "", 2, ("sin-float32",)), End(1.0, {"agree": 1}, "interrupted", 2),
                                 End(1.0, {"agree": 1}, "", 1, (), ("it broke",))])  # fmt: skip
def test_a_run_that_lacks_a_part_is_no_success(tmp_path: Path, end: End, capfd: pytest.CaptureFixture[str]) -> None:
    whole, part = (tmp_path / f"{name}.jsonl" for name in ("whole", "part"))
    for path, last in ((whole, End(1.0, {"agree": 1}, "", 1)), (part, end)):
        with Writer(path) as writer:
            for row in (Header(PRINT), ItemRow("exp", "float32", 1, {"forward": {"agree": 1}}), last):
                writer.write(row)
    assert told(capfd, "diff", str(whole), str(whole))[0] == 0
    code, text = told(capfd, "diff", str(whole), str(part))
    assert (code, "incomplete: " in text) == (1, True)
    assert told(capfd, "diff", str(whole), str(part), "--accept", "partial")[0] == 0


def test_the_end_row_says_what_was_lost(tmp_path: Path) -> None:
    row = json.loads(run_file.encode(End(1.0, {}, "", 3, ("sin-float32",), ("it broke",))))
    assert (row["expected"], row["lost"], row["broken"]) == (3, ["sin-float32"], ["it broke"])


SWEEPS = """
import os, pathlib, shutil, tempfile
from parity.devices import Fault

def sweep(call):
    shutil.rmtree(tempfile.gettempdir())
    pathlib.Path({swept!r}).touch()
    return call.run()

FAULTS = [Fault("sweeps", ("exp",), sweep, lambda call: os.path.isdir(tempfile.gettempdir()))]
"""


@pytest.mark.slow
def test_a_temporary_folder_that_goes_away_costs_no_summary(tmp_path: Path) -> None:
    """In the examination of the device, before there is a run, and in its items."""
    (tmp_path / "faults.py").write_text(SWEEPS.format(swept=str(tmp_path / "swept")))
    options = ("--device", "sim", "--dtype", "float32", "-n", "1", "--output", "run.jsonl", "--examples", "2")
    done = command(tmp_path, "run", "exp", "sin", *options, "--setup", "faults.py", "--power", "0", "--skip", "again")
    assert (tmp_path / "swept").exists()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  everything that was compared agrees (2 ops" in done.stdout


@pytest.mark.parametrize("died", ["SIGABRT", ""])
def test_a_death_that_needs_the_cases_before_it_is_no_agreement(
    died: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases of a run share a process; of what ends that and no process of its own nothing is known to agree."""
    both, alone = [CASE, CASE], inquest.Attempt(0)
    monkeypatch.setattr(inquest, "several", lambda cases, *_: ([], died) if died else ([alone] * len(cases), ""))
    monkeypatch.setattr(inquest, "attempt", lambda *_: alone)
    done = replay_command._replayed(both, (), inquest.How("sim"))
    assert [r.code for r in done] == [0, 1 if died else 0]
    assert ("the process died (SIGABRT), and it does not die of this case alone" in capsys.readouterr().out) is bool(died)


def test_what_one_process_has_printed_another_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case before a death is tried alone, because it may have died late, and has been printed."""
    quiet: list[tuple[str, bool]] = []

    def attempt(case: str, how: inquest.How, seconds: float, still: bool) -> inquest.Attempt:
        quiet.append((case, still))
        return inquest.Attempt(0)

    cases = [f"exp(float32[{n}])" for n in range(1, 5)]
    monkeypatch.setattr(inquest, "several", lambda cases, *_: ([inquest.Attempt(0)] * min(2, len(cases)), "SIGABRT"))
    monkeypatch.setattr(inquest, "attempt", attempt)
    assert [r.case for r in replay_command._replayed(cases, (), inquest.How("sim"))] == cases
    assert quiet == [(cases[1], True), (cases[2], False), (cases[3], False)]
