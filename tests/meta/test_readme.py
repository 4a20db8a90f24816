"""The README is a door: short, with a first answer on its first page, and its commands are those of the manual."""

from __future__ import annotations

import re
import tomllib

import pages

from parity.core.results import Status

README = pages.REPO / "README.md"
TEXT = pages.text_of(README)
PROJECT = tomllib.loads((pages.REPO / "pyproject.toml").read_text())["project"]


def test_it_is_short() -> None:
    assert 150 <= TEXT.count("\n") <= 200
    assert len(TEXT.split()) <= 1400


def test_the_first_screen_holds_two_commands() -> None:
    """One command for the main job, one for the tests; the gate reads them from here."""
    assert len(re.findall(r"^python3 -m venv", TEXT, re.M)) == 2


def test_its_commands_are_explained_in_the_manual() -> None:
    """Each one in its text is a command of a block of some chapter, where a test runs it."""
    explained = {c.line for p in (README, *pages.CHAPTERS) for b in pages.blocks(p) for c in pages.commands(b)}
    given = [s for s in pages.spans(README) if re.match(r"parity \w+ [^A-Z]", s)]
    assert len(given) > 8
    assert [s for s in given if s not in explained and not s.startswith("parity help")] == []


def test_it_leads_to_every_chapter() -> None:
    linked = {file for file, _ in pages.links(README)}
    assert {str(p.relative_to(pages.REPO)) for p in pages.CHAPTERS} <= linked


def test_the_table_of_statuses_is_the_vocabulary() -> None:
    """Each status is in the chapter with its meaning, and whether it fails."""
    rows = re.findall(r"^\| `([\w ]+)` \| (.+?) \| (yes)? ?\|$", pages.text_of(pages.MANUAL / "judging.md"), re.M)
    assert [(s, m, y == "yes") for s, m, y in rows] == [(str(s), s.meaning, s.is_finding) for s in Status]


def test_the_licence_is_said_everywhere() -> None:
    licence = (pages.REPO / "LICENSE").read_text()
    assert licence.startswith("BSD 3-Clause License\n")
    assert "the parity authors" in licence
    assert (PROJECT["license"], PROJECT["license-files"]) == ("BSD-3-Clause", ["LICENSE"])
    assert "BSD-3-Clause" in TEXT.splitlines()[-1]
