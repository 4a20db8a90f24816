"""The house reads from top to bottom: a module imports only what stands above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "parity"
# The sentence. A package that is named as a whole stands for all its modules, which may import one another.
ORDER = (
    "errors", "untrusted", "interruption", "output", "processes", "dtypes", "swift", "vocabulary", "room", "features",
    "layout", "notation",
    "catalog", "resources", "tolerance", "operators", "devices", "values", "inputs", "store", "journal", "listening", "execute",
    "truth.formulas", "truth.chains", "truth.rounding", "truth.single", "truth.wide", "truth.shaken", "truth.limited",
    "truth.steps",
    "truth.protocol", "truth.spread", "truth.oracle",
    "judging.budget", "judging.tails", "judging.outliers", "judging.shared_error", "judging.measures", "judging.limits",
    "judging.leaning", "judging.destination",
    "judging.laws", "judging.uniformity",
    "judging.relations", "judging.randomness", "judging.promises", "judging.bench", "judging.allowance",
    "judging.excuses", "judging.exact", "judging.numeric", "judging.judge", "checking.power",
    "checking.trial", "reached", "checking.gauge", "checking.derivatives", "checking.prelude", "checking.refusal",
    "checking.transfer", "checking.operands", "checking.writes", "checking.check", "pairs",
    "generation.forbidden", "generation.flaws", "generation.planting", "generation.mixing", "generation.generate",
    "generation.plainer", "generation.shrink",
    "naming", "suite", "examine", "diff", "audit", "assertion", "zoo", "report",
    "inquest", "diagnosis", "again", "commandline", "fixture", "plugin", "cli", "__main__",
)  # fmt: skip
# The faces load lazily, so that naming a command costs nothing; nobody else hides an import.
FACES = ("fixture", "plugin", "cli", "__init__")


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_data" not in p.parts)


def place(path: Path) -> str:
    """The name of a module's place in the order."""
    return seat(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def seat(module: str) -> str:
    """The place of a module by its dotted name below the package: its own, or that of the package it lies in."""
    one, _, rest = module.partition(".")
    return one if one in ORDER or not rest else f"{one}.{rest.partition('.')[0]}"


def own_imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(place of the imported module, whether the import stands at the top of the file) of every import of parity."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        for name in names:
            if name.startswith("parity."):
                yield seat(name.removeprefix("parity.")), id(node) in top


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upward(path: Path) -> None:
    """Every own import names something that stands above, or lies in the same package."""
    here = place(path)
    if here.endswith("__init__"):
        return
    assert here in ORDER, f"{here} has no place in the order: add it to tests/meta/test_layers.py where it belongs"
    for other, _ in own_imports(path):
        if other == here or other == "__version__":
            continue
        assert ORDER.index(other) < ORDER.index(here), f"{here} imports {other}, which stands below it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_own_import_hides(path: Path) -> None:
    """Only the faces import parity's modules inside functions or under TYPE_CHECKING."""
    if place(path) in FACES:
        return
    hidden = [name for name, at_top in own_imports(path) if not at_top]
    assert not hidden, f"{path.name} hides imports of {hidden}"


def test_the_order_names_nothing_that_is_not_there() -> None:
    """A place in the order is a module or a package."""
    assert not [n for n in ORDER if not (at := PACKAGE.joinpath(*n.split("."))).with_suffix(".py").exists() and not at.is_dir()]
