"""The table of factors: every row has a source and a user, and what it shares with the tolerance tables is the same number."""

from __future__ import annotations

import ast
from pathlib import Path

import parity
from parity import tolerance
from parity.core.case import OpClass
from parity.oracle import yardstick

FILE = Path(yardstick.__file__)


def assigned() -> dict[str, str]:
    """Constant -> name of its row."""
    calls = [n for n in ast.parse(FILE.read_text()).body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    return {n.targets[0].id: n.value.args[0].value for n in calls}  # type: ignore[attr-defined]


def test_every_factor_is_a_row_with_a_unit_and_a_source() -> None:
    constants = assigned()
    assert list(constants.values()) == list(yardstick.TABLE)
    for constant, name in constants.items():
        row = yardstick.TABLE[name]
        assert getattr(yardstick, constant) == row.value > 0.0
        assert row.unit
        assert row.source


def test_every_factor_is_used() -> None:
    used: set[str] = set()
    for path in Path(parity.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if "yardstick" in path.read_text() else ():
            used |= {a.name for a in node.names} if isinstance(node, ast.ImportFrom) else set()
            used |= {node.attr} if isinstance(node, ast.Attribute) else set()
            used |= {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else set()
    assert set(assigned()) <= used


def test_scales_are_those_of_the_tables() -> None:
    tables = tolerance.load("cpu")
    assert tables.find("a function", OpClass.COMPOSITE, "float32", "forward").scale == yardstick.SCALE
    assert tables.find("a function", OpClass.CONTRACTION, "float32", "forward").scale == yardstick.SUM_SCALE


def test_a_verdict_names_its_row() -> None:
    row = yardstick.tolerance_by("own movement")
    assert row.origin == "oracle/yardstick.py: own movement"
    assert row.reason == yardstick.TABLE["own movement"].source
