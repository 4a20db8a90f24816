"""Old names of commands and options do what the new ones do, and say which those are."""

from __future__ import annotations

import os

import pytest

from parity.engine.options import HANG_AFTER
from parity.faces import cli, commandline, old_names

LINES = (
    ("zoo pt-1 --seed 3", "prove zoo pt-1 --seed 3"),
    ("coverage run.jsonl pooling -v", "prove coverage run.jsonl pooling -v"),
    ("trace exp(float32[2]) --device sim:mps", "prove trace exp(float32[2]) --device sim:mps"),
    ("run add --count --source modules -n 2 -v", "prove counts add --source modules -n 2 -v"),
    ("run --reach --device mps --output run.jsonl", "run --study reach --device mps --output run.jsonl"),
    ("audit --reach --wheel torch.whl", "prove reach --wheel torch.whl"),
    ("audit m.py --wheel=torch.whl", "audit m.py --torch=torch.whl"),
    ("run add --faults f.py -n 1", "run add --setup f.py -n 1"),
    ("locate m.py --faults=f.py", "locate m.py --setup=f.py"),
    ("doctor --faults a.module", "doctor --setup a.module"),
    ("prove power exp --faults f.py", "prove power exp --setup f.py"),
    ("run add --no-shrink", "run add --skip shrink"),
    ("run add --no-screens", "run add --skip screens"),
    ("prove power exp --no-again", "prove power exp --skip again"),
    ("run add --no-power -v", "run add --power 0 -v"),
    ("run add --fail-on-metadata", "run add --fail-on metadata"),
    ("replay exp(float32[2]) --fail-on-metadata", "replay exp(float32[2]) --fail-on metadata"),
    ("run --known k.toml --strict-known", "run --known k.toml --fail-on known"),
    ("run --tx popen --mixed", "run --tx popen --accept mixed"),
    ("merge a b --mixed -o c", "merge a b --accept mixed -o c"),
    ("merge a b --partial -o c", "merge a b --accept partial -o c"),
    ("diff a b --partial", "diff a b --accept partial"),
    ("diff a b --ops exp --format json --ops=sin*", "diff a b --format json exp sin*"),
    ("upgrade --bisect p q --case run.jsonl exp-1", "upgrade run.jsonl exp-1 --bisect p q"),
    ("upgrade --after p --format html -o d.html", "upgrade --after p -o d.html"),
    ("upgrade --after p --model m.py --model n.py", "upgrade * m.py n.py --after p"),
    ("upgrade --after p exp --dtype int8 --model m.py", "upgrade m.py --after p exp --dtype int8"),
    ("run --model m.py -n 2", "run * m.py -n 2"),
    ("run exp --model m.py", "run m.py exp"),
    ("run --device sim exp --model=m.py:net", "run m.py:net --device sim exp"),
    ("locate m.py --script call.py", "locate m.py --output call.py"),
    ("capture m.py -o c --device sim", "locate m.py --capture c --device sim"),
    ("capture m.py --output=c --limit 2M", "locate m.py --capture=c --limit 2M"),
    ("capture m.py -oc", "locate m.py --capture=c"),
    ("report run.jsonl exp-1 --issue", "report run.jsonl exp-1 --format issue"),
    ("report --schema run", "help schema-run"),
    ("report run.jsonl --format ops --setup mine.py -v", "report run.jsonl -v --format=mine.py:ops"),
    ("report run.jsonl --setup=mine.py", "report run.jsonl"),
    ("audit --model m.py --shapes", "audit m.py --shapes"),
    ("audit m.py --run=a.jsonl --shapes --run b.jsonl", "audit m.py --shapes a.jsonl b.jsonl"),
    ("audit m.py --format json", "audit m.py --json"),
    ("audit m.py --pytest -o t.py", "audit m.py -o t.py"),
    ("doctor --format=text --device cpu", "doctor --device cpu"),
    ("doctor --archive exp --minutes 2.5 -n 1", "doctor --archive exp -n 1 --time 2.5m"),
    ("doctor --import a.zip", "report a.zip"),
    ("prove reach --run a.jsonl --run b.jsonl -o c", "prove reach -o c a.jsonl b.jsonl"),
    ("prove coverage a.jsonl --partial", "prove coverage a.jsonl"),
    ("prove zoo exp --repeat 3 --seed 7", "prove zoo exp --seed=7,8,9"),
    ("prove zoo --repeat 2", "prove zoo --seed=0,1"),
    ("prove zoo --seed night --repeat 2", "prove zoo --seed=night,night.1"),
    ("prove zoo --include-beyond", "prove zoo beyond *"),
    ("prove zoo exp --include-beyond", "prove zoo beyond exp"),
)


@pytest.mark.parametrize(("old", "new"), LINES)
def test_an_old_name_stands_for_a_new_one(old: str, new: str) -> None:
    """What comes of it is a command line of this version."""
    given, warnings = old_names.renamed(old.split())
    assert given == new.split()
    assert len(warnings) == 1
    assert warnings[0].endswith("; the old name works in this version only")
    commandline.parser(given[0]).parse_args(given)


def test_each_old_name_has_a_line_here() -> None:
    typed = [old.split() for old, _ in LINES] + [["first"], ["run", "--hang-after", "3"]]
    assert [o for o in old_names.OLD if not any(o.applies(words) for words in typed)] == []


def test_several_old_names_are_all_replaced() -> None:
    typed = "first softmax --device mps --minutes 3 -n 1 --faults f.py --output x.zip"
    given, warnings = old_names.renamed(typed.split())
    assert " ".join(given) == "doctor --archive softmax --device mps -n 1 --setup f.py --output x.zip --time 3m"
    assert len(warnings) == 3


def test_the_time_of_a_call_is_a_variable_of_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HANG_AFTER, raising=False)
    monkeypatch.setattr(commandline.COMMANDS["run"], "run", lambda o: round(10 * float(os.environ[HANG_AFTER])))
    assert cli.main(["run", "add", "--hang-after", "2.5"]) == 25
    assert HANG_AFTER not in os.environ


@pytest.mark.parametrize("line", ["run add --device sim", "prove zoo", "doctor", "audit m.py --torch x", "report first", ""])
def test_what_is_no_old_name_is_left_alone(line: str) -> None:
    assert old_names.renamed(line.split()) == (line.split(), [])


def test_the_new_name_is_told_on_stderr_and_the_command_does_its_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "exp(float32[2])"]) == 0
    said = capsys.readouterr()
    assert said.err == "parity: 'parity trace' is now 'parity prove trace'; the old name works in this version only\n"
    assert "kernel    exp" in said.out
    assert cli.main(["prove", "trace", "exp(float32[2])"]) == 0
    assert capsys.readouterr() == (said.out, "")


@pytest.mark.parametrize("words", [["--faults", "parity.zoo.honest"], ["--faults=parity.zoo.honest"]])
def test_the_old_name_of_the_honest_device_works_too(words: list[str]) -> None:
    """It names a module, which is still there."""
    given, warnings = old_names.renamed(["run", "add", "--device", "sim", *words])
    assert given == ["run", "add", "--device", "sim", *(w.replace("--faults", "--setup") for w in words)]
    assert "'--faults parity.zoo.honest' is now '--device sim:honest'" in warnings[1]
