"""`--json`: one envelope for every command that answers a question, as the schema describes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import jsonschema  # type: ignore[import-untyped]  # check-jsonschema brings it
import pytest

from parity.core.errors import LONGEST
from parity.engine.child import End as Ended
from parity.faces import commandline, upgrading
from parity.history import environments
from parity.history.environments import Environment
from parity.report import answers, run_answers, schema
from parity.store import run_file
from parity.store.rows import End, Run

GOLDEN = Path(__file__).parents[2] / "golden"
FAULTY, HEALTHY = (str(GOLDEN / f"{name}.jsonl") for name in ("faulty", "healthy"))
MODELS = "import torch\n\n\ndef net():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
FAULTS = "from parity.devices import Fault\nFAULTS = [Fault('a', ('linear',), lambda call: call.run() * 1.01)]\n"
SCHEMA = schema.of_answer()


def asked_in_json(capfd: pytest.CaptureFixture[str], *argv: str, command: str = "") -> tuple[int, Any, str]:
    """The exit code, what is on standard output, which must be one valid answer, and what is on standard error."""
    code = commandline.main([*argv, "--json"])
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
        (("report", FAULTY), 1, "FAIL", run_answers.Causes),
        (("report", HEALTHY), 0, "PASS", run_answers.Causes),
        (("report", FAULTY, "--matrix"), 1, "FAIL", run_answers.Matrix),
        (("report", HEALTHY, "--matrix"), 0, "PASS", run_answers.Matrix),
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
    got, answer, err = asked_in_json(capfd, *argv)
    assert (got, answer["verdict"], answer["error"]) == (code, verdict, "")
    assert answer["data"].keys() == set(kind.__dataclass_fields__)
    assert err or argv[0] == "run"


@pytest.mark.slow
def test_a_run_and_a_training_are_answers(capfd: pytest.CaptureFixture[str]) -> None:
    """With the report of the run, and what is to be said of each function."""
    small = ("exp", "--dtype", "float32", "--examples", "1", "-n", "1", "--power", "0", "-o", "run.jsonl")
    code, answer, err = asked_in_json(capfd, "run", *small, "--device", "sim")
    assert (code, answer["verdict"], answer["data"].keys()) == (0, "PASS", set(run_answers.Ran.__dataclass_fields__))
    assert Path(answer["data"]["file"]).name == "run.jsonl"
    assert "PASS" in err
    code, answer, err = asked_in_json(capfd, "train", "models.py", "--device", "sim", "--steps", "3")
    assert (code, answer["verdict"], len(answer["data"]["functions"])) == (0, "PASS", 1)
    code, answer, err = asked_in_json(capfd, "train", "models.py", "--device", "sim", "--setup", "faults.py", "--steps", "3")
    assert (code, answer["verdict"]) == (1, "FAIL")


def test_where_a_function_diverges_is_in_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a function that cannot be run, why."""
    Path("models.py").write_text(MODELS + "\n\ndef bad():\n    raise ValueError('no weights')\n")
    code, answer, err = asked_in_json(capfd, "locate", "models.py", "--device", "sim", "--setup", "faults.py", "--no-backward")
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
    got, answer, err = asked_in_json(capfd, *argv)
    assert (got, answer["verdict"], answer["data"]) == (code, "INCONCLUSIVE", None)
    assert error in answer["error"]
    assert answer["error"] in err


@pytest.mark.parametrize(
    ("argv", "command", "error"),
    [
        (("run", "--nosuch"), "run", "unrecognized arguments: --nosuch; see parity run --help"),
        (
            ("run", "exp", "--examples", "0"),
            "run",
            "argument --examples: '0' is not a number of 1 or more; see parity run --help",
        ),
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
    code, answer, err = asked_in_json(capfd, *argv, command=command)
    assert (code, answer["verdict"], answer["data"]) == (2, "INCONCLUSIVE", None)
    assert error in answer["error"]
    assert err == f"parity: {answer['error']}\n"
    if argv != ("help",):
        with pytest.raises(SystemExit):
            commandline.main([*argv, "--", "--json"])
        assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "names"), [(("diff",), "BEFORE, AFTER"), (("known", "add"), "RUN"), (("replay",), "CASE|RUN")]
)
def test_only_what_is_required_is_named(words: tuple[str, ...], names: str, capfd: pytest.CaptureFixture[str]) -> None:
    _, answer, _ = asked_in_json(capfd, *words, command=words[0])
    assert answer["error"] == f"the following arguments are required: {names}; see parity {' '.join(words)} --help"


def test_wrong_settings_are_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text("[tool.parity]\ndevise = 'sim'\n")
    code, answer, err = asked_in_json(capfd, "run", "exp")
    assert (code, answer["verdict"]) == (2, "INCONCLUSIVE")
    assert "devise" in answer["error"]
    assert err == f"parity: {answer['error']}\n"


@pytest.mark.parametrize(
    "words", [("run", "exp", "--nosuch" + 10_000 * "x"), ("run", "--source", 10_000 * "x"), (10_000 * "x",)]
)
def test_a_refusal_has_500_characters_at_most(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """A long value is cut in its middle; what was refused, and the next step stay."""
    with suppress(SystemExit):
        commandline.main([*words])
    err = capfd.readouterr().err
    assert len(err) <= len("parity: ") + LONGEST + 1
    assert "xxx ... xxx" in err


def test_merged_shards_are_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    """What was merged, what is missing of it, and that nothing was compared."""
    whole = run_file.read(Path(HEALTHY))
    empty = Run(whole.header, (), (), (), End(expected=0))
    for name, run, shard in (("1", whole, "1/2"), ("2", empty, "2/2"), ("none", empty, "1/2")):
        run_file.write(Path(f"{name}.jsonl"), replace(run, header=replace(run.header, shard=shard)))
    code, answer, err = asked_in_json(capfd, "merge", "1.jsonl", "2.jsonl", "-o", "run.jsonl")
    assert (code, answer["verdict"], answer["error"]) == (0, "PASS", "")
    held = {"items": len(whole.items), "records": len(whole.records)}
    merged = {"file": "run.jsonl", "shards": 2, **held, "machines": [], "stopped": "", "known": []}
    assert answer["data"] == merged
    assert "2 shards: " in err
    code, answer, _ = asked_in_json(capfd, "merge", "1.jsonl", "--accept", "partial", "-o", "part.jsonl")
    assert (code, answer["verdict"]) == (0, "PASS")
    assert answer["data"]["stopped"] == "merged without all of its shards: without shard 2 of 2"
    code, answer, err = asked_in_json(capfd, "merge", "1.jsonl", "-o", "no.jsonl")
    assert (code, answer["verdict"], answer["data"]) == (2, "INCONCLUSIVE", None)
    assert err == f"parity: {answer['error']}\n"
    code, answer, _ = asked_in_json(capfd, "merge", "none.jsonl", "2.jsonl", "-o", "none-2.jsonl")
    assert (code, answer["verdict"], answer["data"]["items"]) == (3, "INCONCLUSIVE", 0)
    assert "the 2 shards compared nothing" in answer["error"]


@pytest.mark.parametrize(("after", "code", "verdict"), [(HEALTHY, 0, "PASS"), (FAULTY, 1, "FAIL")])
def test_an_upgrade_is_an_answer(
    after: str, code: int, verdict: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its two run files and their difference. Its runs are those of a former day."""
    kept = {"before": HEALTHY, "after": after}
    monkeypatch.setattr(upgrading, "_side", lambda *_: environments.this())
    monkeypatch.setattr(upgrading, "_run", lambda word, there, o, left="": shutil.copy(kept[word], o.folder / f"{word}.jsonl"))
    got, answer, err = asked_in_json(capfd, "upgrade", "exp", "--after", "other", "--device", "sim")
    assert (got, answer["verdict"], answer["error"]) == (code, verdict, "")
    data = answer["data"]
    assert (data["before"], data["after"]) == ("parity-upgrade/before.jsonl", "parity-upgrade/after.jsonl")
    assert data["diff"]["exit_code"] == code
    assert verdict in err


def test_since_when_a_case_differs_is_an_answer(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And that an environment cannot be asked."""
    said = {"a": "agree", "b": "agree", "c": "wrong", "d": ""}

    def command(there: Environment, argv: Sequence[str], out: IO[str]) -> Ended:
        out.write(f"{said[there.torch]}\n")
        return Ended("" if said[there.torch] else "SIGSEGV", True, 0)

    monkeypatch.setattr(environments, "prepared", lambda place, *_: Environment(place, "python", "", place))
    monkeypatch.setattr(upgrading, "_command", command)
    code, answer, err = asked_in_json(capfd, "upgrade", "exp(float32[2])", "--device", "sim", "--bisect", "a", "b", "c")
    assert (code, answer["verdict"], answer["error"]) == (1, "FAIL", "")
    data = answer["data"]
    assert (data["case"], data["differs"], data["last"], data["first"]) == ("exp(float32[2])", True, "b", "c")
    assert data["answers"] == {"a": "agree", "b": "agree", "c": "wrong"}
    assert "FAIL" in err
    code, answer, _ = asked_in_json(capfd, "upgrade", "exp(float32[2])", "--device", "sim", "--bisect", "a", "b", "d")
    assert (code, answer["verdict"], answer["data"]["differs"]) == (0, "PASS", False)
    assert list(answer["data"]["skipped"]) == ["d"]
    code, answer, err = asked_in_json(capfd, "upgrade", "exp(float32[2])", "--device", "sim", "--bisect", "a", "d")
    assert (code, answer["verdict"], answer["data"]) == (2, "INCONCLUSIVE", None)
    assert "only 1 can be asked" in answer["error"]


def test_only_commands_that_answer_take_it() -> None:
    assert answers.ANSWERS.keys() == commandline.COMMANDS.keys() - {"help", "prove"}


def test_numbers_that_json_does_not_have_are_strings() -> None:
    assert answers.tree(answers.Compared("out", "wrong", float("nan"), ""))["error"] == "nan"
