"""`--json`: one envelope for every command that answers a question, as the schema describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # check-jsonschema brings it
import pytest

from parity.faces import cli, commandline
from parity.report import answers, run_answers, schema

GOLDEN = Path(__file__).parents[2] / "golden"
FAULTY, HEALTHY = (str(GOLDEN / f"{name}.jsonl") for name in ("faulty", "healthy"))
MODELS = "import torch\n\n\ndef net():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
FAULTS = "from parity.devices import Fault\nFAULTS = [Fault('a', ('linear',), lambda call: call.run() * 1.01)]\n"
SCHEMA = schema.of_answer()


def told(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any, str]:
    """The exit code, what is on standard output, which must be one valid answer, and what is on standard error."""
    code = cli.main([*argv, "--json"])
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert [e.message for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(answer)] == []
    assert (answer["command"], answer["code"]) == (argv[0], code)
    return code, answer, err


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    Path("faults.py").write_text(FAULTS)


@pytest.mark.parametrize(
    ("argv", "code", "verdict", "kind"),
    [
        (("report", FAULTY), 0, "FAIL", run_answers.Causes),
        (("report", HEALTHY), 0, "PASS", run_answers.Causes),
        (("report", FAULTY, "--matrix"), 0, "PASS", run_answers.Matrix),
        (("diff", HEALTHY, FAULTY), 1, "FAIL", run_answers.Difference),
        (("diff", HEALTHY, HEALTHY), 0, "PASS", run_answers.Difference),
        (("explain", "softmax", "float16", "--device", "mps"), 0, "PASS", answers.Tolerance),
        (("explain", FAULTY, "float32"), 0, "PASS", answers.Replay),
        (("known", "add", FAULTY, "--reason", "it is old"), 0, "PASS", answers.KnownFile),
        (("run", "exp", "--list"), 0, "PASS", run_answers.Listed),
        (("audit", "models.py"), 0, "PASS", answers.Audited),
        pytest.param(("doctor", "--device", "sim"), 0, "PASS", answers.Examined, marks=pytest.mark.slow),
        pytest.param(("replay", "exp(float32[2])", "--device", "sim"), 0, "PASS", answers.Replay, marks=pytest.mark.slow),
    ],
    ids=lambda x: "-".join(Path(w).stem for w in x) if isinstance(x, tuple) else "",
)
def test_an_answer(argv: tuple[str, ...], code: int, verdict: str, kind: type[Any], capfd: pytest.CaptureFixture[str]) -> None:
    """What a person reads goes to standard error, of processes that the command starts as well."""
    got, answer, err = told(capfd, *argv)
    assert (got, answer["verdict"], answer["error"]) == (code, verdict, "")
    assert answer["data"].keys() == set(kind.__dataclass_fields__)
    assert err or argv[0] == "run"


def test_where_a_function_diverges_is_in_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a function that cannot be run, why."""
    Path("models.py").write_text(MODELS + "\n\ndef bad():\n    raise ValueError('no weights')\n")
    code, answer, err = told(capfd, "locate", "models.py", "--device", "sim", "--setup", "faults.py", "--no-backward")
    assert (code, answer["verdict"]) == (2, "FAIL")
    assert "models.py:net: Linear float32 on sim diverges" in err
    net, bad = answer["data"]["functions"]
    assert (net["agrees"], net["table"][0]["status"], net["next"][:10]) == (False, "drift", "parity run")
    assert "no weights" in bad["error"]


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (("report", "none.jsonl"), 2, "there is no run file none.jsonl"),
        (("explain", "sofmax", "float16"), 2, "no op matches 'sofmax'"),
        (("diff", HEALTHY, HEALTHY, "nosuchop"), 2, "nosuchop"),
    ],
)
def test_what_keeps_a_command_from_answering_is_an_answer(
    argv: tuple[str, ...], code: int, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    got, answer, err = told(capfd, *argv)
    assert (got, answer["verdict"], answer["data"]) == (code, "INCONCLUSIVE", None)
    assert error in answer["error"]
    assert answer["error"] in err


def test_only_commands_that_answer_take_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Behind `--` it is a word like any other."""
    assert answers.ANSWERS.keys() == commandline.COMMANDS.keys() - {"help", "prove"}
    with pytest.raises(SystemExit):
        cli.main(["help", "--json"])
    assert "help takes no --json; these do: run, report" in capfd.readouterr().err


def test_numbers_that_json_does_not_have_are_strings() -> None:
    assert answers.tree(answers.Compared("out", "wrong", float("nan"), ""))["error"] == "nan"
