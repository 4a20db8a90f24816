"""Which programs are here? `python -m tests.bench` lists each with its question, and its last figures with their commit."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
FIGURES = HERE / "figures.toml"


def programs() -> dict[str, str]:
    """The first sentence of each program's docstring, by name."""
    first = {}
    for file in sorted(HERE.glob("[!_]*.py")):
        text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
        first[file.stem] = re.split(r": `(?:python|parity) |(?<=[.?])\s", text, maxsplit=1)[0]
    return first


def listed() -> str:
    """A paragraph for each program."""
    figures = tomllib.loads(FIGURES.read_text())
    lines = []
    for name, question in programs().items():
        lines.append(f"{name:13} {question}")
        if of := figures.get(name):
            lines.append(f"{'':13} {of['figures']} ({of['commit']})")
    return "\n".join(lines)


if __name__ == "__main__":
    print(listed())
