"""The pages for contributors name what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import layers
import pages
import pytest

CONTRIBUTING = pages.REPO / ".github" / "CONTRIBUTING.md"
CODE = pages.MANUAL / "code.md"


@pytest.mark.parametrize(("page", "least"), [(CONTRIBUTING, 20), (CODE, 15)], ids=lambda p: getattr(p, "stem", ""))
def test_paths_exist(page: Path, least: int) -> None:
    """Every path in the text, up to its first placeholder."""
    paths = re.findall(r"(?:parity|tests|tolerances)/[\w/.<>*-]+", re.sub(r"\]\([^)]*\)", "", pages.text_of(page)))
    assert len(paths) > least
    missing = [p for p in paths if not (pages.REPO / re.split("[<*]", p)[0]).exists()]
    assert not missing


def test_it_is_short() -> None:
    assert pages.text_of(CONTRIBUTING).count("\n") <= 120


def test_the_architecture_lists_the_folders_in_their_order() -> None:
    """As `layers` has it."""
    lists = re.findall(r"^- (`.+?): ", pages.text_of(CODE), re.M)
    named = [name for line in lists for name in re.findall(r"`(\w+)`", line)]
    assert tuple(named) == layers.ORDER


def test_every_dependency_has_a_sentence_of_why_and_a_tested_version() -> None:
    """Those of the package on the page, those of the extra `dev` where they are listed, and no others; what ships has its
    hashes, except for torch."""
    text = (pages.REPO / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    ships, dev = (
        [re.split("[<>=]", d)[0] for d in of] for of in (project["dependencies"], project["optional-dependencies"]["dev"])
    )
    section = pages.text_of(CONTRIBUTING).partition("## Dependencies")[2]
    assert re.findall(r"^- `([\w-]+)`: \w.+", section, re.M) == ships
    assert re.findall(r'^  "([\w-]+)[^"]*",  # \w', text.partition("\ndev = [")[2], re.M) == dev
    tested = dict(re.findall(r"^([\w-]+)==(\S+)$", (pages.REPO / "constraints.txt").read_text(), re.M))
    assert list(tested) == [*ships, *dev]
    hashed = dict(re.findall(r"^([\w-]+)==(\S+) \\$", (pages.REPO / ".ci/hashes.txt").read_text(), re.M))
    assert {d: hashed.get(d.lower()) for d in ships if d != "torch"} == {d: tested[d] for d in ships if d != "torch"}
