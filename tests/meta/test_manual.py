"""README and manual keep their promises: every block runs, every command exists, every link leads somewhere."""

from __future__ import annotations

import argparse
import ast
import contextlib
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import golden
import pages
import pytest
from pages import Command

from parity import catalog
from parity.checks import further
from parity.core import extensions
from parity.devices.resolve import ADDED as DEVICES
from parity.engine import journal
from parity.faces import commandline, manual
from parity.judging import rules
from parity.report import formats
from parity.tolerance import reading

# What a command needs that a test has not; such a command is only parsed.
ONLY_PARSED = {
    r"parity upgrade ": "two environments with a torch each",
    r"parity audit --between ": "two environments with a torch each",
    r"parity prove reach": "several minutes",
    r"parity prove counts": "a minute",
    r"parity doctor --archive": "several minutes",
    r"parity prove cost": "a minute",
    r"parity prove zoo$": "several minutes",
    r"parity prove mutants( .*)?$": "half an hour; minutes for some ops",
    r"parity run .*-n ssh": "another machine",
    r"parity run .*standin.py": "a file of the checkout and a C++ compiler; tests/standin has it",
    r"parity run --device cuda": "an NVIDIA GPU",
    r"parity run --resume ": "a run that was interrupted on this machine",
    r"parity merge ": "runs of all shards; tests/unit/engine/test_merging.py has them",
    r"parity \w+ .*(timm|torchvision|hf|hf-small):": "packages that not everybody has; test_named.py has stubs",
    r"parity locate .*--compile inductor": "a C++ compiler and a minute",
}
SHORT = {"run": ("--list",), "train": ("--steps", "1")}
OUTSIDE = r"python3 -m venv|\.venv/bin/pip install|pytest -n 4 |python -m pytest -q tests/|\. \.venv/bin/activate"  # the gate's
OTHERS = ("--index-url", "--runs", "--write")  # of pip and of programs in tests
PLAIN_TEXT = {"code.md", "reports.md"}  # chapters with a drawing, or with a report of another machine
# Words that only parity uses, as patterns: report, next to, diverge, missing and reproduced are everybody's.
PRIVATE = (
    "told",
    "beside",
    "part(s|ed)? from",
    "lack(s|ed|ing)?",
    "in so many words",
    "(come|came|comes) again",
    "is no number",
)
IN_CODE = re.compile(rf"(?<![a-z])({'|'.join((*PRIVATE, 'tells?', 'telling', 'parted', 'partings?'))})(?![a-z])", re.IGNORECASE)
# Names that run files, files of known findings and JSON reports have, or had, which go on being read.
STORED = re.compile(
    r'"(lacks|lacking|beside|beside NaN or Inf|this torch lacks)"|\| beside \||\.lacking\b|\blacking(?=:|\(self\))'
)


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """What blocks add to parity in this process, such as rows, is taken out again: later tests read the same lists."""
    dicts: tuple[dict[Any, Any], ...] = (
        catalog.ROWS,
        catalog.ADDED,
        rules.RULES,
        formats.FORMATS,
        DEVICES,
        commandline.COMMANDS,
    )
    lists: tuple[list[Any], ...] = (further.CHECKS, reading.ADDED, extensions.added)
    before = [d.copy() for d in dicts], [x.copy() for x in lists]
    yield
    for words, kept in zip(dicts, before[0], strict=True):
        words.clear()
        words.update(kept)
    for entries, noted in zip(lists, before[1], strict=True):
        entries[:] = noted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the runs and models that chapters speak of, whose modules are forgotten afterwards."""
    for name, stored in (("run", "faulty"), ("after", "faulty"), ("before", "healthy")):
        (tmp_path / f"{name}.jsonl").write_bytes((golden.GOLDEN / f"{stored}.jsonl").read_bytes())
    (tmp_path / "models.py").write_text("import torch\n\n\ndef net():\n    return torch.nn.Linear(2, 2), torch.ones(2)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(journal.NOTES, str(tmp_path / "notes"))  # locate, train and capture run in this process
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.usefixtures("examined_once", "nothing_stays")
@pytest.mark.parametrize("page", pages.RUN, ids=lambda p: p.stem)
def test_every_block_of_a_page_runs(page: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In an empty folder, as somebody who follows the page does it: commands end well, and print what the page shows."""
    blocks = pages.blocks(page)
    for block in blocks:
        if block.file:
            (folder / block.file).write_text(block.text)
    for block in blocks:
        if block.language == "python" and not block.file:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(block.text, f"{page.name}: a block", "exec"), {"__name__": "__main__"})
        for command in pages.commands(block):
            code, said = _run(command, capfd)
            assert code in (0, 1), f"{command.line} ended with {code}: {said}"
            if command.shown is not None:
                assert pages.matches(command.shown, said), f"the page shows something else for {command.line}:\n{said}"
        assert block.language != "text" or block.text.startswith("$ ") or page.name in PLAIN_TEXT, block.text


def _run(command: Command, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and output of a command; one whose output the page does not show is shortened by `SHORT`."""
    line, (program, *words) = command.line, [w for w in command.words if not re.match(r"PARITY_[A-Z_]+=", w)]
    if program == "parity":
        _parse(words)
        if any(re.match(pattern, line) for pattern in ONLY_PARSED):
            return 0, ""
        code, out, err = commands.said(capfd, *words, *(SHORT.get(words[0], ()) if command.shown is None else ()))
        return code, out if code in (0, 1) else err
    if program == "pytest" and words[0] != "-n":
        pytest_here = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
        done = subprocess.run([*pytest_here, *words], text=True, capture_output=True)
        return done.returncode, done.stdout
    if program == "python" and words[0] in ("-c", *(p.name for p in Path().glob("*.py"))):
        capfd.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if words[0] == "-c":
                exec(words[1], {})
            else:
                runpy.run_path(words[0], run_name="__main__")
        return 0, capfd.readouterr().out
    assert re.match(OUTSIDE, line), f"a test does not know how to run {line}"
    return 0, ""


def _parse(words: list[str]) -> None:
    with contextlib.suppress(SystemExit):
        commandline.parser(words[0]).parse_args(words)
        return
    raise AssertionError(f"parity {' '.join(words)} does not parse")


def test_what_blocks_of_pages_add_does_not_stay() -> None:
    """No row, class, check, format or device of a chapter is left in a process that ran it."""
    assert [w for w in extensions.added if "mine" in w] == []
    assert [r for r in catalog.ROWS if r.startswith("mine.")] == []


def test_what_is_only_parsed_is_on_some_page() -> None:
    every = [c.line for page in pages.RUN for b in pages.blocks(page) for c in pages.commands(b)]
    assert [p for p in ONLY_PARSED if not any(re.match(p, line) for line in every)] == []


def test_a_transcript_matches_but_for_numbers_and_what_it_leaves_out() -> None:
    said = "device sim\n 15% 2/13 items\n 30% 4/13 items\nworst at [20, 14]: device -0.12\nnext: parity run gelu --device sim\n"
    assert pages.matches(("device sim", "...", "worst at [1, 2]: device 3e-05", "next: parity run ..."), said)
    assert not pages.matches(("device sim", "worst at [1, 2]: device 3e-05", "next: parity run ..."), said)
    assert not pages.matches(("device sim", "...", "worst at [1, 2]: CPU 3e-05", "next: parity run ..."), said)


@pytest.mark.parametrize("page", [p for p in pages.PAGES if p.stem != "CHANGELOG"], ids=lambda p: p.parent.name + "/" + p.stem)
def test_commands_and_options_in_the_text_exist(page: Path, pytestconfig: pytest.Config) -> None:
    """In backquotes: `parity ...` parses, or is a command's name, and each option is one of some command or of pytest."""
    every = commandline.parser("prove")
    names = {f"{above}{name}" for above, name in _names(every)}
    options = {*_options(every), *(f"--{dest.replace('_', '-')}" for dest in vars(pytestconfig.option)), *OTHERS}
    for span in pages.spans(page):
        if span.startswith("parity ") and "..." not in span:
            words = Command(span).words[1:]
            if " ".join(words) not in {*names, "--help"}:
                _parse(words)
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", span)) <= options, f"{page.name}: {span}"


def _names(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, str]]:
    """(what stands before it, name) of each command, and of each action of one."""
    for name, _, one in manual.subcommands(parser):
        yield above, name
        yield from _names(one, f"{above}{name} ")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (o for a in parser._actions for o in a.option_strings)
    for _, _, one in manual.subcommands(parser):
        yield from _options(one)


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda p: p.relative_to(pages.REPO).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, or to a heading of it."""
    for file, heading in pages.links(page):
        if not file.startswith("http"):
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name} links to {file}"
            assert not heading or heading in pages.slugs(target), f"{page.name} links to {file}#{heading}"


@pytest.mark.parametrize("page", pages.CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_begins_with_its_question_and_its_command(page: Path) -> None:
    text = pages.text_of(page)
    contents = dict(re.findall(r"^- \[(\w+)\]\(\1\.md\): (.+)$", pages.text_of(pages.MANUAL / "README.md"), re.M))
    question = text.partition("\n")[0].removeprefix("# ")
    assert contents[page.stem] == question
    assert question.endswith("?")
    assert text.split("\n## ")[0].count("```") >= 2, "it has no command above its first section"
    assert text.count("\n") <= 200
    assert text.isascii(), "a terminal may not show it"


@pytest.mark.parametrize("page", pages.READ, ids=lambda p: "README" if p.parent == pages.REPO else p.stem)
def test_pages_are_in_plain_words(page: Path) -> None:
    """Not in those that only parity uses."""
    text = " ".join(re.sub(r"`[^`]+`", "", pages.prose(page)).split()).lower()
    assert [w for w in PRIVATE if re.search(rf"\b({w})\b", text)] == []


def test_code_is_in_plain_words() -> None:
    """In messages, docstrings, comments and names, so that what is written there needs no dictionary."""
    package = pages.REPO / "parity"
    lines = {p.relative_to(package).as_posix(): p.read_text(encoding="utf-8").split("\n") for p in package.rglob("*.py")}
    private = {
        (f, n): line for f, some in lines.items() for n, line in enumerate(some, 1) if IN_CODE.search(STORED.sub("", line))
    }
    assert [f"{f}:{n}: {line.strip()}" for (f, n), line in private.items()] == []


def test_tests_and_tables_say_in_plain_words_what_they_hold() -> None:
    """Docstrings of tests, and all of the tables of tolerances."""
    said = {p.name: p.read_text(encoding="utf-8") for p in (pages.REPO / "tolerances").glob("*.toml")}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for p in (pages.REPO / "tests").rglob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(p.read_text(encoding="utf-8"))) if isinstance(n, documented)]
        said[p.name] = "\n".join(ast.get_docstring(n) or "" for n in nodes)
    found = {f: IN_CODE.findall(re.sub(r"`[^`]+`", "", text)) for f, text in said.items()}
    assert {f: words for f, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("line", "is_private"),
    [
        ("    found = self._may_be_told(x)", True),
        ("class Told:", True),
        ('raise UsageError(f"the run lacks {n} items")', True),
        ("# float32 beside halves", True),
        ("    theirs = told.render(x)", True),
        ("    lacking = [k for k in keys if k not in known]", True),
        ("besides the black slacks, parts of a folder stay untold", False),
        ("    lacking: tuple[str, ...] = ()", False),
        ('if problem in ("beside", "missing"):', False),
    ],
)
def test_private_words_are_seen_in_names_and_sentences(line: str, is_private: bool) -> None:
    assert bool(IN_CODE.search(STORED.sub("", line))) is is_private
