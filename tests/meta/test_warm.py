"""A forked Python is the process that was asked for."""

from __future__ import annotations

import ast
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked on this system")]
TOLD = """
import os, sys
leads = os.getsid(0) == os.getpid()
print(os.getppid(), leads, os.getcwd(), os.environ["GIVEN"], sys.argv, sys.path[0], "torch" in sys.modules)
print(input(), file=sys.stderr)
"""


def python(*args: str, **more: object) -> subprocess.CompletedProcess[str]:
    """A Python that has ended."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


def test_it_is_a_child_with_all_that_it_was_given(tmp_path: Path) -> None:
    """Its parent, session, folder, environment, arguments, path and streams; torch, which only a forked one has loaded."""
    more = {"cwd": tmp_path, "env": os.environ | {"GIVEN": "x", "PYTHONPATH": "/first"}, "input": "heard\n"}
    done = python("-P", "-c", TOLD, "a", start_new_session=True, **more)
    assert done.stdout == f"{os.getpid()} True {tmp_path} x ['-c', 'a'] /first True\n"
    assert (done.returncode, done.stderr) == (0, "heard\n")
    assert " False " in python("-c", TOLD, **more).stdout


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(4)", 4),
        ("os.abort()", -6),
        ("os.kill(os.getpid(), 9)", -9),
        ("os._exit(3)", 3),
        ("raise ValueError('why')", 1),
    ],
)
def test_it_ends_as_it_was_asked_to(program: str, code: int) -> None:
    """With an exit code, a signal or a traceback, and what it registered for its end."""
    done = python("-c", f"import atexit, os, sys; atexit.register(print, 'over'); {program}")
    assert done.returncode == code
    assert done.stdout == ("over\n" if code in (1, 4) else "")
    assert done.stderr.endswith("ValueError: why\n") == (code == 1)


def test_a_module_or_a_file_runs_as_the_program(tmp_path: Path) -> None:
    """Under the name `__main__`, from the folder that it lies in; one that is not there is refused as Python refuses it."""
    (tmp_path / "shown.py").write_text("import sys\nprint(__name__, sys.argv[0])\n")
    assert python("-m", "shown", cwd=tmp_path).stdout == f"__main__ {tmp_path / 'shown.py'}\n"
    assert "No module named shown" in python("-P", "-m", "shown", cwd=tmp_path).stderr
    (tmp_path / "file.py").write_text("import shown, sys\nprint(sys.argv, __file__, 'torch' in sys.modules)\n")
    for named in ("file.py", str(tmp_path / "file.py")):
        said = python(named, "a", cwd=tmp_path).stdout
        assert said == f"shown {named}\n['{named}', 'a'] {tmp_path / 'file.py'} True\n"


@pytest.mark.parametrize(
    ("args", "changed", "does"),
    [
        (("-P", "-u", "-m", "parity"), {}, True),
        (("-c", ""), {"PYTHONSAFEPATH": "1"}, True),
        (("-mpytest", "-q"), {}, True),
        (("-c", ""), {"PYTHONHASHSEED": "7"}, False),
        (("-c", ""), {"OMP_NUM_THREADS": "7"}, False),
        (("-c", ""), {"OMP_NUM_THREADS": "1"}, True),
        (("-I", "-c", ""), {}, False),
        (("script.py", "-q"), {}, True),
        (("-W", "ignore", "script.py"), {}, False),
        ((), {}, False),
    ],
)
def test_what_only_a_new_process_reads_makes_a_real_one(args: tuple[str, ...], changed: dict[str, str], does: bool) -> None:
    """Other options of Python, and variables that it or torch reads at the start."""
    assert warm.fits(warm.apart([sys.executable, *args]), os.environ | changed, os.environ) == does


def test_one_thread_can_be_asked_for_in_a_forked_one() -> None:
    """Which its own children have, too: the number is read when torch is imported."""
    program = "import torch; print(torch.get_num_threads())"
    within = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    assert [python("-c", p, env=env).stdout for p in (program, within)] == ["1\n", "1\n"]


@pytest.mark.parametrize("forked", [pytest.param(False, marks=pytest.mark.cold), True], ids=["cold", "any other"])
def test_a_test_that_is_marked_starts_real_ones(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does any other with a variable that torch has read by then, in whatever way it is set."""
    asked = ("-c", "import sys; print('torch' in sys.modules)")
    assert python(*asked).stdout == f"{forked}\n"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    assert python(*asked).stdout == "False\n"


def test_files_that_it_is_given_have_their_numbers(tmp_path: Path) -> None:
    """As the process has that is copied for workers: without it, each run of a test would import torch once more. No other
    file of ours stays open."""
    ends = os.pipe()
    high = fcntl.fcntl(ends[1], fcntl.F_DUPFD, 40)
    program = f"import os, sys; os.write({high}, b'torch' * ('torch' in sys.modules)); print(os.listdir('/proc/self/fd'))"
    done = python("-c", program, pass_fds=[high])
    assert os.read(ends[0], 9) == b"torch"
    assert {int(n) for n in ast.literal_eval(done.stdout)} - {high} <= {0, 1, 2, 3}, "3 lists them"
    for end in (*ends, high):
        os.close(end)
