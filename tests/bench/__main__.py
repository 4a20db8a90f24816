"""Ten programs that measure. `python -m tests.bench` lists them with their last figures and the commit that gave these.

    python -m tests.bench honest silent -n 8           # a part of a program, with options of its own (--help)
    python -m tests.bench --save honest silent -n 8    # the last line that it prints becomes its figures, with the commit

A program asks one question. Its parts ask it of something each: of rows, functions, networks, runs.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
REPO = HERE.parents[1]
FIGURES = HERE / "figures.toml"
HEAD = "# The last figures of a part, and the commit that gave them; `python -m tests.bench` shows them.\n"
# Program -> its question, and its parts: each is a file of this folder.
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cost": ("What does checking cost, in times of the plain calls?", ("speed", "models")),
    "sharp": ("How small an error is reported?", ("yardstick",)),
    "honest": ("Is a device blamed that rounds as hardware may?", ("controls", "silent", "stable")),
    "networks": (
        "Does each tool name the one fault that is planted in a network?",
        ("functions", "real_models", "locating", "training", "generation"),
    ),
    "mps": ("Is what parity says of MPS so?", ("audit_models", "mac_wheel")),
    "same": ("What do two versions of parity, or of torch, say otherwise?", ("same", "upgrade")),
    "survival": ("What do runs and readers survive?", ("hostile", "kills", "deaths")),
    "green": ("Can a run end green although something is wrong?", ("acquitted", "known")),
    "causes": ("Does each planted bug come out as one cause?", ("causes",)),
    "mutated": ("How many changes of parity's code do its tests see?", ("mutated",)),
}


def question(part: str) -> str:
    """The first sentence of a part's docstring."""
    text = " ".join((ast.get_docstring(ast.parse((HERE / f"{part}.py").read_text())) or "").split())
    return re.split(r": `(?:python|parity) |(?<=[.?])\s", text, maxsplit=1)[0]


def listed(only: str = "") -> str:
    """A paragraph for each program."""
    figures = tomllib.loads(FIGURES.read_text())
    lines = []
    for name, (asks, parts) in PROGRAMS.items():
        if only in ("", name):
            lines.append(f"{name:14}{asks}")
            for part in parts:
                lines.append(f"  {part:14}{question(part)}")
                lines += [f"{'':18}{figures[part]['figures']} ({figures[part]['commit']})"] if part in figures else []
    return "\n".join(lines)


def commit() -> str:
    """The commit of the tree. Ends the program where the tree has changes that no commit has."""
    git = ["git", "-C", str(REPO)]
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True).stdout
    if [x for x in changed.splitlines() if not x.endswith(FIGURES.name)]:
        sys.exit(f"the figures would be of no commit: commit these changes first, or leave out --save:\n{changed}")
    return subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def save(part: str, line: str, of: str) -> None:
    """Keep a line as the figures of a part, with a commit."""
    figures = tomllib.loads(FIGURES.read_text()) | {part: {"figures": line, "commit": of}}
    tables = ("\n".join((f"[{p}]", *(f"{k} = {_quoted(v)}" for k, v in f.items()), "")) for p, f in sorted(figures.items()))
    FIGURES.write_text("\n".join((HEAD, *tables)))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(argv: Sequence[str]) -> int:
    """List, or run a part of a program with the rest of the arguments; its exit code."""
    keep, rest = argv[:1] == ["--save"], [a for a in argv if a != "--save"]
    name = rest.pop(0) if rest else ""
    if name not in PROGRAMS:
        print(f"there is no program '{name}'; there are {', '.join(PROGRAMS)}" if name else listed())
        return 2 * bool(name)
    parts = PROGRAMS[name][1]
    if len(parts) > 1 and not (rest and rest[0] in parts):
        print(f"{name} has no part '{rest[0]}'; it has {', '.join(parts)}" if rest else listed(name))
        return 2 * bool(rest)
    part = rest.pop(0) if rest[:1] and rest[0] in parts else parts[0]
    path = os.pathsep.join(filter(None, (str(REPO), os.environ.get("PYTHONPATH"))))
    command, last, of = [sys.executable, str(HERE / f"{part}.py"), *rest], "", commit() if keep else ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    if of and process.returncode in (0, 1):
        save(part, last, of)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
