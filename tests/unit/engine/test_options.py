"""The options of a run: both faces offer every field, and what one is given reaches the other."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

import pytest

from parity.engine.options import IN_HEADER, OPTIONS, PRESENTATION, Option, RunOptions, is_strict
from parity.engine.reading import HANG_AFTER
from parity.faces import commandline

GIVEN = (
    *("run", "ad*", "mul", "--device", "sim", "--dtype", "int8", "--dtype", "bool", "--family", "unary", "--profile", "full"),
    *("--source", "all", "--examples", "3", "--seed", "-1", "-n", "2", "--setup", "an.installed.module", "--setup", "s.py"),
    *("--skip", "screens", "--skip", "shrink,again", "--power", "9", "--fail-on", "void", "--min-judged", "0.25"),
    *("--known", "k.toml", "--output", "run.jsonl", "--findings", "there", "--junit-xml", "x.xml", "--study", "reach", "-v"),
    *("--list", "--shard", "3/7", "--time", "5m", "-n", "popen", "--accept", "mixed", "--input", "float32[2]"),
)
ASKED = RunOptions(
    op=("ad*", "mul"), device="sim", dtype=("int8", "bool"), family=("unary",), profile="full", source="all", examples=3,
    seed="-1", workers=2, faults="an.installed.module", skip=("screens", "shrink,again"), power=9, hang_after=1.5, setup="s.py",
    fail_on=("void",), known="k.toml", min_judged=0.25, output="run.jsonl", findings="there", junit_xml="x.xml", study="reach",
    verbose=True, list=True, shard="3/7", time=300.0, tx=("popen",), accept=("mixed",), model=("m.py",), resume="old.jsonl",
    input=("float32[2]",),
)  # fmt: skip


def by_pytest(arguments: list[str]) -> RunOptions:
    """The options that pytest would read from these arguments."""
    parser = argparse.ArgumentParser()
    for option in OPTIONS:
        if option.in_pytest:
            name, keywords = option.for_pytest()
            parser.add_argument(name, **keywords)
    return RunOptions.of_pytest(parser.parse_args(arguments))


def test_every_field_is_an_option_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its value, and with its default where it is not given."""
    parser = commandline.parser()
    monkeypatch.setenv(HANG_AFTER, "1.5")
    given = RunOptions.of_command_line(parser.parse_args(GIVEN))
    assert replace(given, model=("m.py",), resume="old.jsonl") == ASKED
    assert RunOptions.of_command_line(parser.parse_args(["run", "--resume", "old.jsonl"])) == RunOptions(resume="old.jsonl")
    monkeypatch.delenv(HANG_AFTER)
    assert RunOptions.of_command_line(parser.parse_args(["run"])) == RunOptions()
    assert RunOptions.of_command_line(parser.parse_args(["run", "-o", "a.jsonl"])).output == "a.jsonl", "as with every command"
    assert not [f.name for f in fields(RunOptions) if getattr(ASKED, f.name) == f.default], "ASKED lacks a new field"


def test_pytest_is_given_what_the_command_line_was() -> None:
    """All but what pytest has options of its own for, and nothing for a default."""
    back = by_pytest(list(ASKED.pytest_arguments()))
    own = {o.name for o in OPTIONS if not o.in_pytest}
    assert own == {"workers", "output", "junit_xml", "verbose", "list", "tx", "accept", "resume"}
    for f in fields(RunOptions):
        assert getattr(back, f.name) == (f.default if f.name in own else getattr(ASKED, f.name)), f.name
    assert list(RunOptions().pytest_arguments()) == []
    assert by_pytest([]) == RunOptions()


def test_a_power_of_none_reaches_pytest() -> None:
    assert by_pytest(list(RunOptions(power=0).pytest_arguments())).power == 0


def test_words_of_one_option_are_asked_for_one_by_one() -> None:
    """Whether they were separated by commas or given one after the other."""
    for skip in (("screens", "again"), ("screens,again",), (" screens , again",)):
        o = RunOptions(skip=skip, fail_on=("void", "known"), accept=("mixed",))
        assert (o.no_screens, o.no_shrink, o.no_again) == (True, False, True)
        assert (o.fail_on_metadata, o.strict_known, o.mixed) == (False, True, True)
    assert not RunOptions().mixed
    assert is_strict(RunOptions(fail_on=("void,metadata",)).for_header())
    assert is_strict("--fail-on-metadata --power=9")
    assert not is_strict(RunOptions(fail_on=("void",)).for_header())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--skip", "power"), "'power' is no step; allowed: screens, shrink, again"),
        (("--accept", "partial"), "'partial' is no thing to accept; allowed: mixed"),
        (("--setup", "a.py", "--setup", "b.py"), "a.py and b.py are both without faults; give one of each at most"),
        (("--setup", "a", "--setup", "b"), "a and b are both with faults; give one of each at most"),
    ],
)
def test_a_word_that_an_option_does_not_take_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        commandline.parser().parse_args(["run", *words])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_every_option_says_what_it_does(option: Option) -> None:
    assert option.help
    assert option.name in RunOptions.__slots__


COMPARED, ENDS, SHOWN = "what is compared", "how the run ends", "where it is made, written and shown"
DECIDES = {
    COMPARED: (
        *("op", "device", "dtype", "family", "profile", "source", "examples", "time", "seed", "faults", "setup", "model"),
        *("shard", "skip", "power", "study", "input"),
    ),
    ENDS: ("hang_after", "fail_on", "known", "min_judged"),
    SHOWN: ("workers", "tx", "accept", "output", "resume", "findings", "junit_xml", "verbose", "list"),
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_every_option_is_part_of_a_run_unless_it_only_shows_it(option: Option) -> None:
    """What decides the comparisons or the exit code is in the header of the run file, in its options or a field of its own."""
    (decides,) = (what for what, names in DECIDES.items() if option.name in names)
    in_options = RunOptions(**{option.name: getattr(ASKED, option.name)}).for_header().startswith(option.flag)
    assert [in_options, option.name in IN_HEADER, option.name in PRESENTATION].count(True) == 1
    assert (option.name in PRESENTATION) == (decides == SHOWN)


def test_the_header_of_a_run_of_no_options_has_none() -> None:
    assert RunOptions().for_header() == RunOptions(device="sim", shard="1/2", output="x").for_header() == ""


@pytest.mark.parametrize("name", ["examples", "time", "hang-after", "min-judged", "power"])
@pytest.mark.parametrize("given", ["nan", "inf", "-1"])
def test_pytest_refuses_the_same(name: str, given: str) -> None:
    with pytest.raises(SystemExit):
        by_pytest([f"--parity-{name}={given}"])
