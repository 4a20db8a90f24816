"""The text of an option: what it gives, and what is refused with what is allowed instead."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from parity.core.errors import UsageError
from parity.engine.options import RunOptions
from parity.engine.reading import HANG_AFTER, hang_after, plants_faults, read_count, read_duration, read_size
from parity.faces import commandline


@pytest.mark.parametrize(
    ("text", "plants"),
    [
        ("from parity.devices import Fault\nFAULTS = []\n", True),
        ("from there import FAULTS\n", True),
        ("import parity.devices as d\nslow = d.Fault('slow', ('exp',), None)\n", True),
        ("BUGS: list = []\n", True),
        ("import torch\n# no FAULTS\ntorch.set_flush_denormal(True)\n", False),
        ("def broken(:\n", False),
    ],
)
def test_a_file_with_faults_is_told_from_one_that_sets_flags(text: str, plants: bool, tmp_path: Path) -> None:
    """By reading it: nothing of it is run."""
    file = tmp_path / "code.py"
    file.write_text(text)
    assert plants_faults(str(file)) is plants
    o = RunOptions.of_command_line(commandline.parser().parse_args(["run", "--setup", str(file)]))
    assert (o.faults, o.setup) == ((str(file), None) if plants else (None, str(file)))


def test_a_name_that_is_no_file_is_that_of_a_module() -> None:
    assert plants_faults("parity.zoo")
    assert not plants_faults("missing.py")
    assert not plants_faults("folder/missing")
    assert not plants_faults("a/" + "a" * 300)  # no name of a file


@pytest.mark.parametrize("given", ["soon", "0", "nan", "-1"])
def test_a_variable_that_is_no_time_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HANG_AFTER, given)
    with pytest.raises(UsageError, match=f"PARITY_HANG_AFTER: '{given}' is not a number of seconds above 0"):
        hang_after()


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90.0), ("5m", 300.0), ("1.5h", 5400.0)])
def test_a_time_has_a_unit(given: str, seconds: float) -> None:
    assert read_duration(given) == seconds


@pytest.mark.parametrize("given", ["5", "", "m", "-5m", "0s", "nanm", "infs", "8d", "1000h", "5 minutes"])
def test_what_is_no_time_is_refused(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time; give seconds, minutes or hours, such as 90s, 5m or 1h"):
        read_duration(given)


NUMBERS = {
    "--examples": ("run", "3"), "--power": ("run", "3"), "-n": ("run", "2"), "--time": ("run", "5m"),
    "--min-judged": ("run", "0.25"), "--steps": ("train", "2"), "--limit": ("locate", "2M"),
}  # fmt: skip


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "1e999", "-1", "9" * 5000, "\u00b2", "", "x"])
def test_what_is_no_number_for_an_option_is_refused_in_one_line(
    option: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the value and what is allowed; every command ends with 2."""
    name, good = NUMBERS[option]
    parser, words = commandline.parser(name), [name, *(["m.py"] if name != "run" else [])]
    parser.parse_args([*words, f"{option}={good}"])
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([*words, f"{option}={given}"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert said.startswith(f"parity: argument {option}")
    assert f"'{given[:30]}" in said
    assert len(said) < 200


@pytest.mark.parametrize("option", [o for o in NUMBERS if o not in ("--min-judged", "--power")])
def test_nothing_is_no_number_either(option: str) -> None:
    name = NUMBERS[option][0]
    words = [name, *(["m.py"] if name != "run" else [])]
    with pytest.raises(SystemExit):
        commandline.parser(name).parse_args([*words, f"{option}=0"])


def test_a_value_is_quoted_whole_where_it_is_short_enough() -> None:
    for given, quoted in ("x" * 30, "x" * 30), ("x" * 31, f"{'x' * 30}..."):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{quoted}' is not a number of 1 or more"):
            read_count(given)


@pytest.mark.parametrize(
    ("words", "workers", "places"),
    [
        (("-n", "4"), 4, ()),
        (("-n", "2*popen", "-n", "ssh=mac2//python=p"), None, ("2*popen", "ssh=mac2//python=p")),
        (("-n", "popen", "-n", "2"), 2, ("popen",)),
    ],
)
def test_workers_are_a_number_or_places(words: tuple[str, ...], workers: int | None, places: tuple[str, ...]) -> None:
    o = RunOptions.of_command_line(commandline.parser("run").parse_args(["run", *words]))
    assert (o.workers, o.tx) == (workers, places)


def test_a_size_may_be_as_large_as_the_message_says() -> None:
    assert read_size("1024G") == 1 << 40
    with pytest.raises(argparse.ArgumentTypeError, match="at most 1024G"):
        read_size("1025G")
