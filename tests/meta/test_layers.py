"""The package reads from top to bottom: a folder imports only folders that stand above it, and no modules form a cycle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "parity"
# The folders in the order of a check. Modules of one folder may import one another, as long as no cycle comes of it.
ORDER = (
    *("core", "catalog", "tolerance", "devices", "execution", "oracle", "judging", "checks", "generation"),
    *("runs", "assertion", "zoo", "report", "faces", "prove"),
)
ENTRIES = 18  # the folders, __init__, __main__ and py.typed
# The faces, the proof and `parity` itself load what they need when it is asked for; nobody else hides an import.
LAZY = ("faces", "prove", "")


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it; a folder by its own name."""
    paths = (p for p in PACKAGE.rglob("*.py") if "_data" not in p.parts)
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): p for p in paths}


MODULES = modules()


def own_imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(imported module below the package, whether the import stands at the top of the file) of every import of parity."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        for name in (n.removeprefix("parity.") for n in names if n.startswith("parity.")):
            yield name if name in MODULES else name.rpartition(".")[0], id(node) in top


def folder(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", [m for m in MODULES if folder(m) not in ("", "__main__")])
def test_imports_point_upward(module: str) -> None:
    """Every own import names something in a folder above, or in the same folder."""
    here = folder(module)
    assert here in ORDER, f"{here} has no place in the order: add it to tests/meta/test_layers.py where it belongs"
    below = [other for other, _ in own_imports(MODULES[module]) if other and ORDER.index(folder(other)) > ORDER.index(here)]
    assert not below, f"{module} imports {below}, which stand below it"


@pytest.mark.parametrize("module", [m for m in MODULES if folder(m) not in LAZY])
def test_no_own_import_hides(module: str) -> None:
    """Only these import parity's modules inside functions or under TYPE_CHECKING."""
    hidden = [name for name, at_top in own_imports(MODULES[module]) if not at_top]
    assert not hidden, f"{module} hides imports of {hidden}"


def test_no_modules_form_a_cycle() -> None:
    """The modules have an order in which each is loaded after what it imports."""
    graph = {m: {other for other, at_top in own_imports(path) if at_top and other != m} for m, path in MODULES.items()}
    assert tuple(TopologicalSorter(graph).static_order())


def test_the_top_level_is_small() -> None:
    """The folders of the order and little else, each with a sentence on what is in it."""
    entries = {p.name for p in PACKAGE.iterdir() if p.name not in ("__pycache__", "_data")}
    assert entries >= set(ORDER)
    assert len(entries) <= ENTRIES
    silent = [name for name in ORDER if not ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text()))]
    assert not silent
