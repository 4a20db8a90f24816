"""Old names of commands and options do what the new ones do, and say which those are."""

from __future__ import annotations

import pytest

from parity.faces import cli, commandline, old_names


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("zoo pt-1 --seed 3", "prove zoo pt-1 --seed 3"),
        ("coverage run.jsonl pooling -v", "prove coverage run.jsonl pooling -v"),
        ("trace exp(float32[2]) --device sim:mps", "prove trace exp(float32[2]) --device sim:mps"),
        (
            "first softmax --device mps --minutes 3 -n 1 --output x.zip",
            "doctor --archive softmax --device mps --minutes 3 -n 1 --output x.zip",
        ),
        ("run add --count --source modules -n 2 -v", "prove counts add --source modules -n 2 -v"),
        ("run --reach --device mps --output run.jsonl", "run --study reach --device mps --output run.jsonl"),
        ("audit --reach --run run.jsonl -o a.json", "prove reach --run run.jsonl -o a.json"),
        ("audit --reach --wheel torch.whl --seed 1", "prove reach --wheel torch.whl --seed 1"),
        ("audit --model m.py --wheel=torch.whl", "audit --model m.py --torch=torch.whl"),
        ("audit --model m.py --wheel torch.whl", "audit --model m.py --torch torch.whl"),
    ],
)  # fmt: skip
def test_an_old_name_stands_for_a_new_one(old: str, new: str) -> None:
    """What comes of it is a command line of this version."""
    given, warnings = old_names.renamed(old.split())
    assert given == new.split()
    assert len(warnings) == 1
    assert warnings[0].endswith("; the old name works in this version only")
    commandline.parser(given[0]).parse_args(given)


@pytest.mark.parametrize(
    "line", ["run add --device sim", "prove zoo", "doctor", "audit --model m.py --torch x", "report first", ""]
)
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
    assert given == ["run", "add", "--device", "sim", *words]
    assert "'--faults parity.zoo.honest' is now '--device sim:honest'" in warnings[0]
