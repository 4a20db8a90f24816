"""`parity audit --model`: the answers, as a person would type the commands."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from stored import run as stored_run

from parity.core.errors import UsageError
from parity.faces import commandline
from parity.store import run_file

MODELS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x).exp()


class Lacking(Net):
    def forward(self, x):
        return torch.special.log_ndtr(super().forward(x)).double().float()


def net():
    return Net(), torch.randn(3, 4)


def lacking():
    return Lacking(), torch.randn(3, 4)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of models, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the file that is written adds the folder
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    (tmp_path / "nets.py").write_text(MODELS)
    return tmp_path


def audit(*argv: str) -> int:
    return commandline.main(["audit", *argv])


def test_a_model_that_runs_ends_with_0(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("nets.py:net") == 0
    first, *_, operators, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("nets.py:net: Net will run on MPS (torch 2.")
    assert operators.startswith("operators in all: ")
    assert verdict.startswith("PASS  MPS has all that nets.py:net needs, in ")


def test_what_is_lacking_ends_with_1_and_has_line_and_remedy(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("nets.py") == 1
    out = capsys.readouterr().out
    assert "Lacking needs 1 operator missing on MPS: aten::special_log_ndtr.out; float64, which MPS does not have" in out
    assert "in Lacking: torch.special.log_ndtr at nets.py:17, in forward" in out
    assert "do: PYTORCH_ENABLE_MPS_FALLBACK=1" in out
    assert "do: use float32" in out
    assert "nets.py:net: Net will run on MPS" in out


def test_all_operators_are_listed(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("nets.py:net", "-v") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  aten::")]
    assert ["aten::linear", "float32", "1", "0", "kernel"] in rows
    assert ["aten::linear_backward", "float32", "0", "1", "kernel"] in rows


def test_shapes_alone(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = "\n\ndef huge():\n    with torch.device('meta'):\n        return nn.Linear(30000, 30000), torch.ones(2, 30000)\n"
    (models / "huge.py").write_text("import torch\nfrom torch import nn" + meta)
    assert audit("huge.py", "--shapes") == 0
    assert "huge.py:huge: Linear will run on MPS" in capsys.readouterr().out


def test_json(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("nets.py:lacking", "--json", "-o", "needs.json") == 1
    (made,) = json.loads(capsys.readouterr().out)["data"]["functions"]
    assert made["lacking"]["operators"] == ["aten::special_log_ndtr.out"]
    assert made["lacking"]["dtypes"] == ["float64"]
    assert {"aten::linear", "aten::linear_backward"} <= {n["operator"] for n in made["needs"]}
    assert json.loads((models / "needs.json").read_text())["functions"] == [made]


def test_findings_of_a_run_that_concern_it(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stored run has findings in exp, one of which is of class A."""
    run_file.write(models / "run.jsonl", stored_run())
    assert audit("nets.py:net", "run.jsonl") == 1
    out = capsys.readouterr().out
    assert "; 1 operator of it with findings of class A in run.jsonl" in out.splitlines()[0]
    assert "it calls 1 operator with findings of class A in run.jsonl:" in out
    assert "  [exp-" in out
    (models / "nets.py").write_text(MODELS.replace(".exp()", ".tanh()"))
    assert audit("nets.py:net", "run.jsonl") == 0
    assert "no finding of run.jsonl concerns its operators" in capsys.readouterr().out


def test_a_test_is_written_that_fails_where_something_is_lacking(models: Path) -> None:
    assert audit("nets.py", "-o", "test_on_mps.py") == 0
    written = runpy.run_path("test_on_mps.py")
    (mark,) = written["test_runs_on_mps"].pytestmark
    assert [*mark.args[1]] == ["nets.py:net", "nets.py:lacking"]
    written["test_runs_on_mps"]("nets.py:net")
    with pytest.raises(pytest.fail.Exception, match=r"Lacking needs 1 operator missing on MPS: aten::special_log_ndtr\.out"):
        written["test_runs_on_mps"]("nets.py:lacking")
    assert audit("nets.py", "-o", "test_on_mps.py") == UsageError.exit_code  # never over a file


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nothere.py",), "there is no file nothere.py"),
        (("nets.py:other",), "nets.py has no function 'other'; it has net, lacking"),
        (("nets.py", "models.py"), "audit answers for one model"),
        (("run.jsonl",), "audit answers for one model"),
        (("nets.py", "--torch", "2.12"), "there is no 2.12; name a Python, the folder of a virtual environment, a wheel"),
        (("nets.py", "none.jsonl"), "none.jsonl"),
    ],
)
def test_mistakes(argv: tuple[str, ...], says: str, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(*argv) == UsageError.exit_code
    assert says in capsys.readouterr().err


def test_options_of_models_go_with_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert commandline.main(["audit", "--between", "a", "b", "--shapes"]) == UsageError.exit_code
    assert "--shapes goes with a model: parity audit FILE.py --shapes" in capsys.readouterr().err


def test_a_function_that_does_not_run_is_told_and_the_others_are_audited(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (models / "nets.py").write_text(MODELS + "\n\ndef bad():\n    return Net(), torch.randn(3, 5)\n")
    assert audit("nets.py") == UsageError.exit_code
    said = capsys.readouterr()
    assert "nets.py:bad: not audited: Net raises on the CPU" in said.err
    assert "nets.py:net: Net will run on MPS" in said.out
