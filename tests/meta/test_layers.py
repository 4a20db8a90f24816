"""The package reads from top to bottom: a folder imports only folders that come before it, and no modules form a cycle."""

from __future__ import annotations

import ast
from pathlib import Path

import layers
import pytest
from layers import LAZY, MODULES, ORDER, PACKAGE, folder

ENTRIES = 24  # the folders, the manual, __init__, __main__ and py.typed


def test_every_folder_has_a_place_in_the_order() -> None:
    assert {folder(m) for m in MODULES} - {"", "__main__"} == set(ORDER)


def test_imports_point_to_earlier_folders() -> None:
    assert layers.upward() == []


def test_no_own_import_hides() -> None:
    """Only the faces import parity's modules inside functions or under TYPE_CHECKING."""
    hidden = {m: [name for name, at_top in layers.own_imports(m) if not at_top] for m in MODULES if folder(m) not in LAZY}
    assert {m: names for m, names in hidden.items() if names} == {}


def test_no_modules_form_a_cycle() -> None:
    assert layers.cycles() == []


@pytest.mark.parametrize(
    "text",
    [
        "import parity.faces.commandline",
        "from parity.faces import commandline as cli",
        "from parity.faces.commandline import main",
        "from parity import faces",
        "from ..faces import cli",
        "from .. import faces",
        "from parity import __version__",
        "def f():\n    from parity import faces",
    ],
)
def test_every_form_of_import_is_seen(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arrow to a later folder, or to parity itself, is found however it is written."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "low.py").write_text(text + "\n")
    monkeypatch.setattr(layers, "PACKAGE", tmp_path)
    monkeypatch.setattr(
        layers, "MODULES", {"core.low": tmp_path / "core/low.py", "faces": Path(), "faces.commandline": Path(), "": Path()}
    )
    monkeypatch.setattr(layers, "own_imports", lambda m: tuple(layers._imports(m)) if m == "core.low" else ())
    assert len(layers.upward()) == 1


def test_the_top_level_is_small() -> None:
    """The folders of the order and little else, each with a sentence on what is in it."""
    entries = {p.name for p in PACKAGE.iterdir() if p.name not in ("__pycache__", "_data")}
    assert entries >= set(ORDER)
    assert len(entries) <= ENTRIES
    silent = [name for name in ORDER if not ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text()))]
    assert not silent


def test_reports_put_into_words_what_was_decided() -> None:
    """They start and end no process, are no plugins, and conclude nothing: that is done in the folders before and after."""
    decided = {m: layers.deciding(layers.tree(MODULES[m])) for m in MODULES if folder(m) == "report"}
    assert {m: found for m, found in decided.items() if found} == {}


@pytest.mark.parametrize(
    "text",
    [
        *("import pytest", "from subprocess import run", "import multiprocessing.pool", "def f():\n    import argparse"),
        *("sys.exit(1)", "def f(x):\n    return Conclusion.of_run(x, True)"),
    ],
)
def test_a_report_that_decides_is_seen(text: str) -> None:
    assert len(layers.deciding(ast.parse(text))) == 1
