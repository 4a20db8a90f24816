"""`parity help` prints the manual, and `parity --help` the commands under its questions."""

from __future__ import annotations

import re
import shlex
import subprocess

import commands
import pytest

from parity.core.results import Status
from parity.faces import commandline, manual

PARSER = commandline.parser("prove")
COMMANDS = [name for name, _, _ in manual.subcommands(PARSER)]


def test_help_lists_every_chapter_with_its_question(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands.said(capfd, "help")
    assert code == 0
    listed = dict(re.findall(r"^- `parity help (\w+)`: (.+)$", out, re.M))
    assert set(listed) == {p.stem for p in manual.FOLDER.glob("*.md")} - {manual.CONTENTS}
    assert all(question.endswith("?") for question in listed.values())
    assert "](" not in out, "no link is left as the web writes it"


@pytest.mark.parametrize("name", ["upgrade", "diff", "upgrades"])
def test_help_prints_a_chapter_by_its_name_or_by_a_command(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, error = commands.said(capfd, "help", name)
    if name == "upgrades":
        assert (code, out) == (2, "")
        assert error == f"parity: the manual has no chapter '{name}'; did you mean 'upgrade'? parity help lists them\n"
    else:
        assert code == 0
        assert out.startswith("# What changes with another torch, macOS or machine?\n\n```sh\nparity upgrade")


def test_links_become_commands_addresses_or_words() -> None:
    text = "[models](models.md), [a layer](models.md#the-layer), [report](https://example.org/1), [tests](../../tests/x.py)"
    shown = "`parity help models`, a layer (`parity help models`), report (https://example.org/1), tests"
    assert manual.LINK.sub(manual._shown, text) == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_chapter_that_begins_with_it(command: str) -> None:
    assert command in manual.homes()
    assert command in commandline.COMMANDS


def test_the_help_has_each_command_once_with_examples_that_parse(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands.said(capfd, "--help")
    assert code == 0
    assert sorted(re.findall(r"^  (\w+) +\S", out, re.M)) == sorted(COMMANDS)
    examples = re.findall(r"^    \$ parity (.+)$", out, re.M)
    assert len(examples) >= len(manual.chapters()) // 4
    for line in examples:
        commandline.parser(shlex.split(line)[0]).parse_args(shlex.split(line))
    assert all(question in out for question, paths in manual.sections() if set(paths) & set(manual.homes().values()))


def test_the_help_of_a_run_begins_with_examples_and_ends_with_statuses(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands.said(capfd, "run", "--help")
    assert code == 0
    assert "the first accelerator" in "".join(out.splitlines()[:8])
    for line in re.findall(r"^  (parity run.*?)(?:  .*)?$", out.partition("\noptions:")[0], re.M):
        PARSER.parse_args(shlex.split(line)[1:])
    options, _, end = out.partition("\nStatuses:\n")
    assert "--profile" in options
    assert all(f"\n  {s}  " in f"\n{end}" for s in Status)
    assert "130 interrupted.\n" in end
    assert "--verbose" in end


@pytest.mark.parametrize("shell", manual.SHELLS)
def test_a_shell_completes_commands_and_options(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands.said(capfd, "help", shell)
    assert code == 0
    assert all(word in out for word in (*COMMANDS, "no-backward", "drop"))
    if shell == "completion-bash":
        asked = "\nCOMP_WORDS=(parity locate --com); COMP_CWORD=2; _shtab_parity; echo answer ${COMPREPLY[@]}\n"
        done = subprocess.run(["bash", "-c", out + asked], capture_output=True, text=True, check=True)
        assert "answer --compile" in done.stdout


def test_the_reference_has_every_option_of_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = commands.said(capfd, "help", "reference")
    assert code == 0
    parts = dict(re.findall(r"^(parity[ \w]*) \(.*\n((?:(?!parity).*\n)*)", out, re.M))
    assert "--known" in parts["parity run"]
    for name, _, parser in manual.subcommands(PARSER):
        options = {o for a in parser._actions for o in a.option_strings if "help" not in o and o != "-h"}
        assert {o for o in options if o not in parts[f"parity {name}"]} == set(), name
    assert "parity known add" in parts
