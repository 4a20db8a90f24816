"""The pages for contributors name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import layers

REPO = Path(__file__).parents[2]
PAGE = (REPO / ".github" / "CONTRIBUTING.md").read_text()
README = (REPO / "README.md").read_text()


def test_paths_exist() -> None:
    """Every path in the text, up to its first placeholder."""
    paths = re.findall(r"(?:parity|tests|tolerances)/[\w/.<>*-]+", PAGE)
    assert len(paths) > 20
    missing = [p for p in paths if not (REPO / re.split("[<*]", p)[0]).exists()]
    assert not missing


def test_links_lead_somewhere() -> None:
    """To a file, or to a heading of the README."""
    headings = {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", README, re.M)}
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        path, _, anchor = link.partition("#")
        assert (REPO / ".github" / path).is_file()
        assert not anchor or anchor in headings


def test_the_architecture_lists_the_folders_in_their_order() -> None:
    """As `layers` has it."""
    section = README.partition("## Architecture")[2]
    named = [name for line in re.findall(r"^- (`.+?): ", section, re.M) for name in re.findall(r"`(\w+)`", line)]
    assert tuple(named) == layers.ORDER
