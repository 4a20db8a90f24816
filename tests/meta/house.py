"""How large the house is, and how many of each idea it holds.

    python tests/meta/house.py            print the figures next to their limits in house.toml
    python tests/meta/house.py --write    lower the limits to today's figures; a raised one needs a sentence in `why` by hand

Lines are those of `wc -l`; code leaves out blank lines, comments, docstrings and imports. Figures with a limit are those that a
change may only improve, and `tests/meta/test_house.py` holds them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import layers
import tomlkit

LIMITS = Path(__file__).parent / "house.toml"
TESTS = Path(__file__).parents[1]
SMALL, LARGE, LONG, MANY = 60, 400, 50, 8
MODES = ("TorchDispatchMode", "TorchFunctionMode")
STATUSES = frozenset(
    {"agree", "drift", "wrong", "malformed", "unsupported", "error", "fallback", "unstable", "crash", "hang", "killed", "oom"}
    | {"void", "not reproduced", "marginal"}
)
STARTS = re.compile(r"\bprocesses\.command\(|\bmultiprocessing\.(?!popen_fork|parent_process)\w|from multiprocessing\b")


@dataclass(frozen=True, slots=True)
class Module:
    """A source file, parsed. name: dotted, below the package."""

    name: str
    text: str
    tree: ast.Module


@cache
def modules() -> tuple[Module, ...]:
    """All modules of the package."""
    return tuple(Module(name, path.read_text(), layers.tree(path)) for name, path in layers.MODULES.items())


def functions() -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions and methods."""
    for m in modules():
        for node in ast.walk(m.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield m, node


def lines() -> int:
    """Lines of the package."""
    return sum(m.text.count("\n") for m in modules())


def code() -> int:
    """Lines that hold code."""
    return sum(len(_code_lines(m)) for m in modules())


def _code_lines(m: Module) -> set[int]:
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    held: set[int] = set()
    for t in tokenize.generate_tokens(io.StringIO(m.text).readline):
        if t.type not in skipped:
            held.update(range(t.start[0], t.end[0] + 1))
    for node in ast.walk(m.tree):
        docs = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if docs or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return held


def small_modules() -> list[str]:
    """Modules of fewer than 60 lines that hold code."""
    return [m.name for m in modules() if m.text.count("\n") < SMALL and _code_lines(m)]


def large_modules() -> list[str]:
    """Modules of more than 400 lines."""
    return [m.name for m in modules() if m.text.count("\n") > LARGE]


def long_functions() -> list[str]:
    """Functions of more than 50 lines."""
    return [f"{m.name}.{f.name}" for m, f in functions() if (f.end_lineno or 0) - f.lineno + 1 > LONG]


def wide_functions() -> list[str]:
    """Functions with 8 arguments or more, `self` and `cls` left out."""
    return [f"{m.name}.{f.name}" for m, f in functions() if _arguments(f) >= MANY]


def _arguments(f: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    named = [a.arg for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
    return len([a for a in named if a not in ("self", "cls")])


def interceptors() -> list[str]:
    """Classes that torch calls for each operator or public function."""
    classes = [(f"{m.name}.{c.name}", c.name, {_last(b) for b in c.bases}) for m, c in _classes()]
    known = set(MODES)
    while more := {name for _, name, bases in classes if bases & known} - known:
        known |= more
    return sorted(full for full, _, bases in classes if bases & known)


def _classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    for m in modules():
        yield from ((m, node) for node in ast.walk(m.tree) if isinstance(node, ast.ClassDef))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def protocols() -> list[str]:
    """Modules that start processes of parity."""
    return [m.name for m in modules() if STARTS.search(m.text)]


def status_lists() -> list[str]:
    """Literal collections of two statuses or more."""
    found = []
    for m in modules():
        inner = {id(n) for node in ast.walk(m.tree) if _is_list(node) for n in ast.walk(node) if n is not node}
        lists = [n for n in ast.walk(m.tree) if isinstance(n, ast.expr) and _is_list(n) and id(n) not in inner]
        found += [f"{m.name}:{n.lineno}" for n in lists]
    return found


def _is_list(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return len(node.elts) > 1 and all(map(_is_status, node.elts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _is_list(node.left) or _is_list(node.right)
    return False


def _is_status(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in STATUSES
    return isinstance(node, ast.Attribute) and _last(node.value) == "Status" and node.attr.lower().replace("_", " ") in STATUSES


def named_cycles() -> list[str]:
    """Cycles of imports, in whatever form."""
    return layers.cycles()


def upward_arrows() -> list[str]:
    """Imports of a folder that comes later in the order."""
    return layers.upward()


def commands() -> dict[str, list[str]]:
    """The options of each command, and those of all commands, without --help."""
    from parity.faces import commandline

    found: dict[str, list[str]] = {}

    def walk(parser: object, name: str) -> None:
        actions = getattr(parser, "_actions")  # noqa: B009  # argparse has no public list
        below = [a for a in actions if type(a).__name__ == "_SubParsersAction"]
        for sub in below:
            seen: dict[int, tuple[str, object]] = {}
            for word, p in sub.choices.items():
                seen.setdefault(id(p), (word, p))
            for word, p in seen.values():
                walk(p, f"{name} {word}".strip())
        if actions:
            found[name or "parity"] = [
                a.option_strings[-1] for a in actions if a.option_strings and "--help" not in a.option_strings
            ]

    walk(commandline.parser("prove"), "")
    return found


def tests() -> int:
    """Lines of the tests and benches."""
    return sum(p.read_text().count("\n") for p in TESTS.rglob("*.py"))


FIGURES: dict[str, tuple[str, Callable[[], object]]] = {
    "lines": ("lines of parity/", lines),
    "code": ("lines of code", code),
    "modules": ("modules", lambda: [m.name for m in modules()]),
    "small-modules": ("modules under 60 lines", small_modules),
    "large-modules": ("modules over 400 lines", large_modules),
    "long-functions": ("functions over 50 lines", long_functions),
    "wide-functions": ("functions with 8 arguments or more", wide_functions),
    "commands": ("commands", lambda: sorted({c.partition(" ")[0] for c in commands()} - {"parity"})),
    "options": ("options of all commands", lambda: [f"{c} {o}" for c, options in commands().items() for o in options]),
    "run-options": ("options of parity run", lambda: commands()["run"]),
    "protocols": ("modules that start processes of parity", protocols),
    "interceptors": ("classes that intercept torch's calls", interceptors),
    "status-lists": ("literal lists of statuses", status_lists),
    "cycles": ("cycles of imports", named_cycles),
    "upward-arrows": ("upward arrows", upward_arrows),
    "tests": ("lines of tests and benches", tests),
}


def figure(name: str) -> tuple[int, list[str]]:
    """A figure, and what it counts where that has names."""
    value = FIGURES[name][1]()
    return (value, []) if isinstance(value, int) else (len(list(value)), list(value))  # type: ignore[call-overload]


def limits() -> tomlkit.TOMLDocument:
    """The limits: `[name]` with `limit`, `lowest` (the lowest that was ever reached) and `why` where the limit is higher."""
    return tomlkit.parse(LIMITS.read_text())


def write() -> None:
    """Lower each limit to today's figure."""
    document = limits()
    for name, table in document.items():
        now, _ = figure(name)
        table["lowest"] = min(now, int(table["lowest"]))
        if now < int(table["limit"]):
            table["limit"] = now
    LIMITS.write_text(tomlkit.dumps(document))


def main() -> None:
    """Print the figures; with a name after it, what that figure counts."""
    if sys.argv[1:] == ["--write"]:
        write()
    document = limits()
    for name, (words, _) in FIGURES.items():
        value, counted = figure(name)
        limit = f"  limit {document[name]['limit']}" if name in document else ""
        print(f"{name:<16} {words:<40} {value:>7,}{limit}")
        for one in counted if name in sys.argv[1:] else ():
            print(f"    {one}")


if __name__ == "__main__":
    main()
