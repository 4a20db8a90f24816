"""Users' own models and tests as items of a run file, and two environments compared: as a person would type it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import commands
import pytest

from parity.engine import own
from parity.engine.inquest import How
from parity.store import run_file
from parity.store.rows import ItemRow, Run

MODELS = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(8, 16)


def of_sine():
    return lambda x: x.sin().sum(), torch.randn(5, requires_grad=True)


def three():
    return 3


def _helper():
    raise AssertionError
"""
FAULTS = """
import os
from parity.devices import Fault

FAULTS = [Fault("sin", ("sin",), lambda c: c.run() * 1.01, lambda c: os.environ.get("SIDE", "after") == "after")]
"""
DEADLY = """
import os
from parity.devices import Fault

FAULTS = [Fault("gelu", ("gelu",), lambda c: os.abort())]
"""
Parity = Callable[..., tuple[int, str]]


@pytest.fixture
def parity_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Parity:
    """A command of parity in a folder with models and faults: (exit code, everything it said)."""
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "faults.py").write_text(FAULTS)
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    return lambda *argv: commands.told(capfd, *argv)


def of(run: Run, op: str) -> dict[str, str]:
    """aspect -> status of the records of an item."""
    return {r.aspect: r.status for r in run.records if r.op == op}


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once")
def test_own_functions_are_items_of_a_run(parity_in: Parity, tmp_path: Path) -> None:
    """One that is wrong is reported with its name and can be accepted; one that says nothing fails the run; one that ends its
    process costs no other."""
    (tmp_path / "models.py").write_text(MODELS.replace("def three", "def _three"))
    faulty = shlex.split("run sinh models.py --dtype float32 --device sim --setup faults.py -n 1")
    code, said = parity_in(*faulty, "--output", "faulty.jsonl")
    assert code == 1
    assert "] models.py:of_sine gives wrong values" in said
    assert "reproduce: parity run models.py:of_sine --device=sim --setup=" in said
    run = run_file.read(tmp_path / "faulty.jsonl")
    assert {i.op for i in run.items} == {"sinh", "models.py:mlp", "models.py:of_sine"}
    assert of(run, "models.py:mlp") == {"forward": "agree", "backward": "agree"}
    assert of(run, "models.py:of_sine") == {"forward": "drift", "backward": "agree"}

    assert parity_in("known", "add", "faulty.jsonl", "--reason", "planted")[0] == 0
    code, said = parity_in(*faulty, "--known", "parity-known.toml", "--output", "known.jsonl")
    assert (code, "1 known, 0 new, 0 fixed" in said) == (0, True), said

    (tmp_path / "models.py").write_text(MODELS)
    code, said = parity_in("run", "models.py", "--device", "sim", "--setup", "deadly.py", "--output", "dead.jsonl")
    assert code == 1
    assert "models.py:three returns 3; return a model or a function, and its inputs after it" in said
    assert "your own functions that compared nothing" in said
    assert "please report" not in said
    assert "models.py:mlp on sim: crash (SIGABRT)" in said
    run = run_file.read(tmp_path / "dead.jsonl")
    assert [d.op for d in run.deaths] == ["models.py:mlp"]
    assert of(run, "models.py:of_sine") == {"forward": "agree", "backward": "agree"}


ENDING = """
import os
import torch


def sine():
    return torch.sin, torch.ones(3)
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", []),
        ("os._exit(0)", ["models.py: the process that compares them ended before it was done (exit code 0)"]),
        ("def words():\n    return str, torch.ones(3)", ["models.py:words str float32 on sim: no tensor with elements"]),
    ],
)
def test_a_file_whose_functions_are_not_all_compared_says_so(
    more: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends with 0 has not said that it is done."""
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(ENDING + more)
    heard = [*own.compared(["models.py"], How("sim"))]
    texts = [x for x in heard if isinstance(x, str)]
    assert len(texts) == len(said)
    assert all(text.startswith(beginning) for text, beginning in zip(texts, said))
    assert [x.op for x in heard if isinstance(x, ItemRow)] == ([] if "_exit" in more else ["models.py:sine"])


def test_a_model_by_its_name_is_an_item_with_the_inputs_that_were_given_or_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(MODELS + "\n\ndef bare():\n    return nn.Linear(16, 4)\n")
    said: list[str] = []
    for name, inputs in (("nets:mlp", ["float32[3,16]"]), ("nets:mlp", []), ("nets:bare", [])):
        assert said == []
        heard = own.compared([name], How("sim"), inputs=inputs, say=said.append)
        (item,) = (x for x in heard if isinstance(x, ItemRow))
        assert (item.op, item.counts["forward"]) == (name, {"agree": 1})
    assert said == ["nets:bare: inputs float32[2, 16].normal(), from its first layer"], "as parity locate says it"


TESTS = """
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import parity as p


def test_plain(parity):
    parity(torch.cos, torch.randn(3))


@settings(max_examples=3, deadline=None, derandomize=True)
@given(n=st.integers(1, 6))
def test_drawn(parity, n):
    parity(torch.sin, torch.full((n,), 0.5))


def test_without_the_fixture():
    p.assert_parity(torch.nn.Linear(4, 2), torch.randn(3, 4), device="sim")


def test_never_called(parity):
    pass
"""


def test_what_tests_compare_is_a_run_file(pytester: pytest.Pytester) -> None:
    """Under the tests' ids, whether they pass or fail; @given works with the fixture; the settings name the device."""
    pytester.makepyfile(test_net=TESTS)
    faults = pytester.makepyfile(faults=FAULTS)
    pytester.makepyprojecttoml('[tool.parity]\ndevice = "sim"\n')
    done = pytester.runpytest_subprocess("--parity-output", "healthy.jsonl")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(["*the test takes the `parity` fixture and never called it*"])
    done.stdout.fnmatch_lines(["*the comparisons of 3 tests are stored in healthy.jsonl*"])
    done = pytester.runpytest_subprocess(f"--parity-faults={faults}", "--parity-output=faulty.jsonl", "-n", "1")
    done.assert_outcomes(passed=2, failed=2)
    before, after = (run_file.read(pytester.path / name) for name in ("healthy.jsonl", "faulty.jsonl"))
    assert before.header.fingerprint.device == "sim"
    names = [f"test_net.py::{name}" for name in ("test_plain", "test_drawn", "test_without_the_fixture")]
    assert [i.op for i in before.items] == [i.op for i in after.items] == names
    assert [r.op for r in after.records if r.counts] == names[1:2]
    assert after.items[2].counts == before.items[2].counts == {"forward": {"agree": 1}, "backward": {"agree": 2}}


def test_a_run_file_of_tests_holds_comparisons_and_replaces_nothing_else(pytester: pytest.Pytester) -> None:
    """Where tests compare nothing, pytest does not end with 0; a test or JUnit's XML is not overwritten."""
    pytester.makepyfile(test_none="def test_none():\n    pass\n")
    done = pytester.runpytest_subprocess("--parity-output=run.jsonl")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    done.stdout.fnmatch_lines(["*nothing was compared, so run.jsonl was not written: this is no success*"])
    for given, why in (("test_none.py", "is no report of parity"), ("x.xml", "is named twice")):
        done = pytester.runpytest_subprocess(f"--parity-output={given}", "--junit-xml=x.xml")
        assert (done.ret, why in done.stderr.str() + done.stdout.str()) == (2, True)
    assert (pytester.path / "test_none.py").read_text().startswith("def test_none")


def test_a_moved_root_folder_is_refused(pytester: pytest.Pytester) -> None:
    """pytest takes the value of an option that it does not know yet for a test, and looks for its ini file there."""
    project, elsewhere = pytester.mkdir("project"), pytester.mkdir("elsewhere")
    (project / "pytest.ini").write_text("[pytest]\nparity_device = sim\n")
    (project / "test_one.py").write_text("def test_one():\n    pass\n")
    (elsewhere / "faults.py").write_text(FAULTS)
    os.chdir(project)
    done = pytester.runpytest_subprocess("--parity-faults", "../elsewhere/faults.py")
    assert done.ret == 2
    assert "write --parity-faults=../elsewhere/faults.py" in done.stdout.str() + done.stderr.str()
    pytester.runpytest_subprocess("--parity-faults=../elsewhere/faults.py").assert_outcomes(passed=1)
