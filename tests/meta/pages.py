"""The pages of README and manual: their blocks, their commands and their links, for the tests that run them.

What a block is, by its language: `python` or `toml` beginning with `# NAME` is a file, and any other `python` is a script. `sh`
holds commands.
`text` is a transcript: `$ COMMAND`, then its output, where a line `...` stands for any lines and ` ...` for the rest of one.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPO = Path(__file__).parents[2]
MANUAL = REPO / "parity" / "manual"
CHAPTERS = tuple(sorted(p for p in MANUAL.glob("*.md") if p.stem != "README"))
READ = (REPO / "README.md", MANUAL / "README.md", *CHAPTERS)  # by people who use parity
RUN = (READ[0], *CHAPTERS)  # whose blocks are run; the contents have none
PAGES = (*READ, *sorted((REPO / ".github").glob("*.md")))
FENCED = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.M | re.S)
FILE = re.compile(r"# ([\w.-]+\.(?:py|toml|ini))\b")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The name of the file that it is, or ""."""
        if self.language == "ini":
            return "pytest.ini"
        found = FILE.match(self.text) if self.language in ("python", "toml") else None
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page, and the lines of its output if the page shows them."""

    line: str
    shown: tuple[str, ...] | None = None

    @property
    def words(self) -> list[str]:
        """Its words, as a shell splits them."""
        return shlex.split(self.line)


@cache
def text_of(path: Path) -> str:
    """The text of a page."""
    return path.read_text(encoding="utf-8")


@cache
def blocks(path: Path) -> tuple[Block, ...]:
    """The fenced blocks of a page, in their order."""
    return tuple(Block(m[2], textwrap.dedent(m[3])) for m in FENCED.finditer(text_of(path)))


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return FENCED.sub("", text_of(path))


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block, with their outputs where it is a transcript."""
    if block.language == "sh":
        yield from (Command(line) for line in (without_comment(x) for x in block.text.splitlines()) if line)
    elif block.language == "text":
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            line, *shown = part.splitlines()
            yield Command(line, tuple(shown))


def without_comment(line: str) -> str:
    """A line of a shell without the comment at its end."""
    return re.sub(r"\s+#.*|^#.*", "", line).strip()


def spans(path: Path) -> Iterator[str]:
    """What stands in single backquotes outside of blocks."""
    yield from (" ".join(s.split()) for s in re.findall(r"`([^`]+)`", prose(path)))


def matches(shown: tuple[str, ...], said: str) -> bool:
    """Whether an output is what a page shows, but for its numbers."""
    lines = [r"(?:[^\n]*\n)*?" if line == "..." else _line(line) + r"\n" for line in shown]
    return re.fullmatch("".join(lines), _numbered(said).rstrip("\n") + "\n") is not None


def _line(text: str) -> str:
    head = text.removesuffix("...").rstrip() if text.endswith(" ...") else text
    return re.escape(_numbered(head).rstrip()) + (r"[^\n]*" if head is not text else r"[ ]*")


def _numbered(text: str) -> str:
    return re.sub(r" +", " ", NUMBER.sub("#", text))


# --------------------------------------------------------------------------------------------------------------- links


def links(path: Path) -> Iterator[tuple[str, str]]:
    """(file or address, heading or "") of every link of a page."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        file, _, heading = target.partition("#")
        yield file, heading


def slugs(path: Path) -> set[str]:
    """The headings of a page as its links name them."""
    return {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", prose(path), re.M)}
