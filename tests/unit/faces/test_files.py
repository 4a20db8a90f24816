"""What a command must not overwrite: its own inputs and other outputs, and what parity did not write."""

from __future__ import annotations

import argparse
import errno
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest
import stored
import torch

import parity
from parity.core.errors import LONGEST, UsageError
from parity.core.results import Fingerprint
from parity.faces import commandline
from parity.faces.auditing import TEST
from parity.faces.commands import report
from parity.faces.files import check_output, in_words
from parity.report.script_text import HEAD
from parity.store import run_file
from parity.store.rows import End, Header

# The arguments that a command needs beside its output.
NEEDED = {
    "diff": ("a.jsonl", "b.jsonl"), "merge": ("a.jsonl",), "report": ("a.jsonl",), "locate": ("m.py",),
    "audit": ("m.py",), "upgrade": ("--after", "python"),
}  # fmt: skip
FOREIGN = {
    "notes.md": "precious notes",
    "net.py": '"""A test of parity."""',
    "data.json": '{"a": 1}',
    "pom.xml": "<?xml ?><a/>",
}


def outputs() -> list[tuple[str, str]]:
    """Every command with every option of it that names a file to write."""
    subparsers = next(a for a in commandline.parser()._actions if isinstance(a, argparse._SubParsersAction))
    options = {"output": "--output", "junit_xml": "--junit-xml", "capture": "--capture"}
    return [(c, options[a.dest]) for c, p in subparsers.choices.items() for a in p._actions if a.dest in options]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder with two run files."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        run_file.write(Path(name), stored.run())


def test_what_the_system_refused_is_one_short_line_too() -> None:
    """Its limit and the next step stay, whatever the file is called."""
    said = in_words(OSError(errno.ENAMETOOLONG, "File name too long", "x\x1b" * 2000))
    assert said.endswith("File name too long; free the disk or name another place")
    assert (len(said) <= LONGEST, said.isprintable()) == (True, True)


@pytest.mark.parametrize(("command", "option"), outputs())
def test_no_command_overwrites_what_is_not_parity_s(command: str, option: str, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in FOREIGN.items():
        Path(name).write_text(text)
        code, said = commands.told(capfd, command, *NEEDED.get(command, ()), option, name)
        assert (code, Path(name).read_text()) == (2, text)
        assert f"{name} is no report of parity, and {option} would overwrite it; name another file" in said


@pytest.mark.parametrize(
    "argv",
    [
        ("diff", "a.jsonl", "b.jsonl", "-o", "a.jsonl"),
        ("diff", "a.jsonl", "b.jsonl", "-o", "link.jsonl"),
        ("merge", "a.jsonl", "b.jsonl", "-o", "b.jsonl"),
        ("report", "a.jsonl", "-o", "a.jsonl"),
        ("report", "a.jsonl", "--format", "html", "--against", "b.jsonl", "-o", "b.jsonl"),
        ("prove", "reach", "a.jsonl", "-o", "a.jsonl"),
        ("locate", "m.py", "--against", "a.jsonl", "-o", "a.jsonl"),
        ("run", "exp", "--output", "new", "--junit-xml", "new"),
        ("locate", "m.py", "--output", "new.py", "--output", "./new.py"),
        ("upgrade", "--after", "python", "--folder", ".", "-o", "before.jsonl"),
    ],
)
def test_no_command_writes_into_another_file_of_its_own(argv: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    Path("link.jsonl").symlink_to("b.jsonl")
    before = Path("a.jsonl").read_text()
    code, said = commands.told(capfd, *argv)
    assert (code, "is named twice, and" in said) == (2, True), said
    assert [Path(name).read_text() for name in ("a.jsonl", "b.jsonl")] == [before] * 2
    assert not Path("new").exists()
    assert not Path("new.py").exists()


DOCUMENTS = (
    *(("diff", "a.jsonl", "b.jsonl", "--format", f) for f in ("terminal", "markdown", "json", "junit", "html")),
    *(("report", "a.jsonl", "--format", f) for f in ("text", "markdown", "json", "junit", "html", "github")),
    *(("report", "a.jsonl", "--matrix", "--format", f) for f in ("text", "markdown", "json")),
)


@pytest.mark.parametrize("command", DOCUMENTS, ids=" ".join)
def test_a_report_may_be_written_again(command: tuple[str, ...]) -> None:
    """Of a run with findings, and of one without."""
    run = stored.run()
    healthy = replace(run, records=(), deaths=(), power=(), items=run.items[1:2], end=End(totals={"agree": 2}, expected=1))
    for one in (run, healthy):
        run_file.write(Path("a.jsonl"), one)
        assert commandline.main([*command, "-o", "out"]) == commandline.main([*command, "-o", "out"]) != 2


def test_whatever_else_parity_writes_may_be_written_again() -> None:
    parity.capture(torch.sin, torch.ones(3), path="c.capture", device="cpu")
    Path("script.py").write_text(HEAD.format(title="t", case="c", default="d", imports=""))
    Path("test_models.py").write_text(
        TEST.format(models="m", command="parity audit", path="", place="'m.py'", given="", options="")
    )
    Path("page.html").write_text(
        Path(parity.__file__)
        .with_name("report")
        .joinpath("located.html")
        .read_text()
        .replace("{{ title }}", "parity locate: PASS")
    )
    Path("empty").touch()
    with zipfile.ZipFile("first.zip", "w") as archive:
        archive.writestr("first.json", "{}")
    for name in ("a.jsonl", "c.capture", "script.py", "test_models.py", "page.html", "empty", "first.zip", "/dev/null"):
        check_output(Path(name), "--output")


def test_another_zip_and_other_weights_are_not_parity_s() -> None:
    with zipfile.ZipFile("other.zip", "w") as archive:
        archive.writestr("thesis.txt", "{}")
    Path("weights").write_bytes(b"\x20\0\0\0\0\0\0\0" + b'{"__metadata__":{"format":"pt"}}')
    for name in ("other.zip", "weights"):
        with pytest.raises(UsageError, match=f"{name} is no report of parity"):
            check_output(Path(name), "--output")


def test_a_report_takes_no_place_of_a_run_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one that it does not read, either: its rows would be lost."""
    for name in ("a.jsonl", "b.jsonl"):
        run_file.write(Path(name), stored.run())
    before = Path("b.jsonl").read_bytes()
    assert commandline.main(["report", "a.jsonl", "-o", "b.jsonl"]) == 2
    assert "b.jsonl is a run file, and --output would overwrite its rows" in capsys.readouterr().err
    assert Path("b.jsonl").read_bytes() == before


EXPECTED = {"healthy": (0, "PASS"), "failing": (1, "FAIL"), "cut": (1, "INCONCLUSIVE"), "stopped": (1, "INCONCLUSIVE"),
            "empty": (3, "INCONCLUSIVE")}  # fmt: skip


@pytest.mark.parametrize("words", [*(c[2:] for c in DOCUMENTS if c[0] == "report"), ("b.jsonl",)], ids=" ".join)
@pytest.mark.parametrize("name", EXPECTED)
def test_a_report_ends_as_its_run_did(name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """In every format, and next to a healthy run: a verdict of FAIL or INCONCLUSIVE is never green."""
    run = stored.run()
    healthy = replace(run, records=(), deaths=(), power=(), items=run.items[1:2], end=End(totals={"agree": 2}, expected=1))
    run_file.write(Path("b.jsonl"), healthy)
    runs = {"failing": run, "cut": replace(healthy, end=None), "empty": replace(healthy, items=(), end=None),
            "stopped": replace(healthy, end=End(totals={"agree": 2}, stopped="interrupted", expected=2))}  # fmt: skip
    run_file.write(Path("a.jsonl"), runs.get(name, healthy))
    code, verdict = EXPECTED[name]
    assert commandline.main(["report", "a.jsonl", *words, "-o", "out"]) == code
    capsys.readouterr()
    assert commandline.main(["report", "a.jsonl", *words, "-o", "out", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_a_bug_report_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """It says nothing of the run."""
    run_file.write(Path("a.jsonl"), stored.run())
    commandline.main(["report", "a.jsonl"])
    cause = capsys.readouterr().out.partition("[")[2].partition("]")[0]
    assert commandline.main(["report", "a.jsonl", cause]) == 1
    assert commandline.main(["report", "a.jsonl", cause, "--format", "issue"]) == 0


def test_an_id_names_the_cause_of_that_id_before_one_that_has_a_member_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a progress line has named may have been joined into another cause since."""
    one, two, both = (SimpleNamespace(cause=SimpleNamespace(id=i), members=[]) for i in ("exp-1", "exp-2", "several-3"))
    both.members = [one.cause, two.cause]
    shown = list[object]()
    monkeypatch.setattr(report, "_gathered", lambda run: ((both, two), ()))
    monkeypatch.setattr("parity.report.issue.render", lambda cause, *_: shown.append(cause))
    for cause in ("exp-2", "exp-1"):
        run: Any = SimpleNamespace(header=Header(Fingerprint("0", "2", "", "3.11", "Linux", "x86_64", "sim", "a card")))
        report._causes(argparse.Namespace(cause=cause, issue=True, run="run.jsonl"), run)
    assert shown == [two, both]
