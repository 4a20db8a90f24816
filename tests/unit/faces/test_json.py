"""`--json`: one envelope for every command that answers a question, as the schema describes it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # check-jsonschema brings it
import pytest

from parity.core.errors import LONGEST
from parity.faces import cli, commandline
from parity.report import answers, run_answers, schema

GOLDEN = Path(__file__).parents[2] / "golden"
FAULTY, HEALTHY = (str(GOLDEN / f"{name}.jsonl") for name in ("faulty", "healthy"))
MODELS = "import torch\n\n\ndef net():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
FAULTS = "from parity.devices import Fault\nFAULTS = [Fault('a', ('linear',), lambda call: call.run() * 1.01)]\n"
SCHEMA = schema.of_answer()


def told(capfd: pytest.CaptureFixture[str], *argv: str, command: str = "") -> tuple[int, Any, str]:
    """The exit code, what is on standard output, which must be one valid answer, and what is on standard error."""
    code = cli.main([*argv, "--json"])
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert [e.message for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(answer)] == []
    assert (answer["command"], answer["code"]) == (command or argv[0], code)
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


@pytest.mark.parametrize(
    ("argv", "command", "error"),
    [
        (("run", "--nosuch"), "run", "unrecognized arguments: --nosuch; see parity --help"),
        (
            ("run", "exp", "--examples", "0"),
            "run",
            "argument --examples: '0' is not a number of 1 or more; see parity run --help",
        ),
        (("diff",), "diff", "the following arguments are required"),
        (("upgrade", "exp", "--after", ".", "--examples", "x"), "upgrade", "'x' is not a number of 1 or more"),
        (("-v", "known", "nosuch"), "known", "invalid choice: 'nosuch'"),
        (("runn",), "parity", "invalid choice: 'runn'"),
        ((), "parity", "the following arguments are required: COMMAND; see parity --help"),
        (("help",), "parity", "help takes no --json; these do: run, report"),
    ],
)
def test_a_wrong_command_line_is_an_answer(
    argv: tuple[str, ...], command: str, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the same text on standard error, alone where nobody asks for JSON."""
    code, answer, err = told(capfd, *argv, command=command)
    assert (code, answer["verdict"], answer["data"]) == (2, "INCONCLUSIVE", None)
    assert error in answer["error"]
    assert err == f"parity: {answer['error']}\n"
    if argv != ("help",):
        with pytest.raises(SystemExit):
            cli.main([*argv, "--", "--json"])
        assert capfd.readouterr().out == ""


def test_wrong_settings_are_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text("[tool.parity]\ndevise = 'sim'\n")
    code, answer, err = told(capfd, "run", "exp")
    assert (code, answer["verdict"]) == (2, "INCONCLUSIVE")
    assert "devise" in answer["error"]
    assert err == f"parity: {answer['error']}\n"


@pytest.mark.parametrize(
    "words", [("run", "exp", "--nosuch" + 10_000 * "x"), ("run", "--source", 10_000 * "x"), (10_000 * "x",)]
)
def test_a_refusal_has_500_characters_at_most(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """A long value is cut in its middle; what was refused, and the next step stay."""
    with suppress(SystemExit):
        cli.main([*words])
    err = capfd.readouterr().err
    assert len(err) <= len("parity: ") + LONGEST + 1
    assert "xxx ... xxx" in err


def test_only_commands_that_answer_take_it() -> None:
    assert answers.ANSWERS.keys() == commandline.COMMANDS.keys() - {"help", "prove"}


def test_numbers_that_json_does_not_have_are_strings() -> None:
    assert answers.tree(answers.Compared("out", "wrong", float("nan"), ""))["error"] == "nan"
