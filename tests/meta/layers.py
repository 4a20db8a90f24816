"""The order of the package's folders, and the imports between its modules."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "parity"
# The folders in the order of a check. Modules of one folder may import one another, as long as no cycle comes of it.
ORDER = (
    *("core", "catalog", "tolerance", "devices", "execution", "oracle", "judging", "checks", "generation"),
    *("store", "findings", "history", "engine", "comparing", "locating", "training", "zoo", "report", "faces", "prove"),
)
ROOF = ("", "__main__")  # parity itself and its entry import everything, so that nothing below may import them
LAZY = ("faces", "prove", *ROOF)  # these load what they need when it is asked for; nobody else hides an import


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it; a folder by its own name."""
    paths = (p for p in PACKAGE.rglob("*.py") if "_data" not in p.parts)
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): p for p in paths}


MODULES = modules()


def folder(module: str) -> str:
    """The folder of a module."""
    return module.partition(".")[0]


@cache
def tree(path: Path) -> ast.Module:
    """A file, parsed. The collector stands still: a tree is no garbage, and to look through all of them takes seconds."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def own_imports(module: str) -> tuple[tuple[str, bool], ...]:
    """(imported module below the package, whether the import is at the top of the file) of every import of parity, in every
    form: `import parity.a`, `from parity.a import b`, `from parity import a`, and relative ones."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[tuple[str, bool]]:
    path, parsed = MODULES[module], tree(MODULES[module])
    top = set(map(id, parsed.body))
    for node in ast.walk(parsed):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            start = _absolute(path, node)
            names = [f"{start}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        for name in names:
            if name == "parity" or name.startswith("parity."):
                yield _module_of(name.removeprefix("parity").lstrip(".")), id(node) in top


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    here = ("parity", *path.relative_to(PACKAGE).parts[:-1])
    return ".".join((*here[: len(here) - node.level + 1], *([node.module] if node.module else [])))


def _module_of(name: str) -> str:
    """The module that an imported name belongs to: itself, or the one that holds it."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def upward() -> list[str]:
    """Imports of something in a later folder, or of parity itself."""
    found = []
    for module in MODULES:
        if folder(module) in ROOF:
            continue
        for other, _ in own_imports(module):
            if folder(other) in ROOF or ORDER.index(folder(other)) > ORDER.index(folder(module)):
                found.append(f"{module} -> {other or 'parity'}")
    return found


DECIDES = frozenset({"argparse", "multiprocessing", "pytest", "subprocess"})  # imports of what decides or runs something
ENDS = frozenset({"sys.exit", "os._exit", "os.kill", "Conclusion.of", "Conclusion.of_run"})


def deciding(tree: ast.Module) -> list[str]:
    """What in a module starts or ends a process, is a plugin of pytest, or concludes something of a device."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [n for n in names if n.partition(".")[0] in DECIDES]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ENDS:
            found.append(ast.unparse(node.func))
    return found


def cycles() -> list[str]:
    """A cycle of modules, if there is one: imports at the top of a file, in whatever form."""
    graph = {m: {other for other, at_top in own_imports(m) if at_top and other != m} for m in MODULES}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as e:
        return [" -> ".join(m or "parity" for m in e.args[1])]
    return []
