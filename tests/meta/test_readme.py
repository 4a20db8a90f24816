"""The README and the workflow keep their promises."""

from __future__ import annotations

import re
from pathlib import Path

from parity.core.results import FINDINGS, MEANING, Status
from parity.faces import commandline

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text()


def test_the_table_of_statuses_is_the_vocabulary() -> None:
    """Each status stands in the README with its meaning, and whether it fails."""
    rows = re.findall(r"^\| `([\w ]+)` \| (.+?) \| (yes)? ?\|$", README, re.M)
    assert [(s, m, y == "yes") for s, m, y in rows] == [(str(s), MEANING[s], s in FINDINGS) for s in Status]


def test_every_command_of_the_readme_parses() -> None:
    """Each `parity ...` line is one that the command line understands."""
    parser = commandline.parser()
    page = (REPO / ".github" / "LIBRARIES.md").read_text(encoding="utf-8")
    lines = [re.sub(r"\s+#.*", "", x) for x in re.findall(r"^parity (.+)$", README + page, re.M)]
    assert len(lines) >= 9
    for line in lines:
        if re.match(r"(run|diff|upgrade|locate|train|replay|explain|audit|coverage|doctor|first|known)\b", line):
            parser.parse_args([part.strip("'") for part in re.findall(r"'[^']*'|\S+", line)])


def test_the_first_screen_holds_two_commands() -> None:
    """One command for the main job, one for the tests; the gate reads them from here."""
    assert len(re.findall(r"^python3 -m venv", README, re.M)) == 2


def test_constraints_name_every_dependency() -> None:
    """What pyproject declares has a tested version."""
    tested = {line.split("==")[0].lower() for line in (REPO / "constraints.txt").read_text().splitlines() if "==" in line}
    block = re.search(r"dependencies = \[(.*?)\]", (REPO / "pyproject.toml").read_text(), re.S)
    assert block is not None
    assert {n.lower() for n in re.findall(r'"([A-Za-z][\w-]*)', block.group(1))} <= tested
