"""What depends on the class of an op stands in the class's rule: nothing else asks of which class an op is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import layers
import pytest

PACKAGE = Path(__file__).parents[2] / "parity"
# The rules; the rows, which name their class; the tables, whose sections are named by classes, and the device that reads its
# own bounds in them; and the classes themselves.
ALLOWED = ("judging/rules.py", "catalog", "zoo", "tolerance", "core/case.py", "devices/sim/honest")
MODULES = [
    path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    if "_data" not in path.parts and not path.relative_to(PACKAGE).as_posix().startswith(ALLOWED)
]


def branches(tree: ast.AST) -> Iterator[int]:
    """The lines that name a member of OpClass, other than to give a row its class (`rule=OpClass.SOLVER`), and those that
    compare a rule."""
    given = {id(k.value) for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "rule"}
    for node in ast.walk(tree):
        member = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "OpClass"
        compared = isinstance(node, ast.Compare) and any(
            isinstance(side, ast.Attribute) and side.attr == "rule" for side in (node.left, *node.comparators)
        )
        if (member and id(node) not in given) or compared:
            assert isinstance(node, ast.expr)
            yield node.lineno


def test_no_module_but_the_rules_branches_on_the_class() -> None:
    """Make it a flag or a method of the rule."""
    lines = {module: sorted(set(branches(layers.tree(PACKAGE / module)))) for module in MODULES}
    assert {module: found for module, found in lines.items() if found} == {}


@pytest.mark.parametrize(
    ("line", "is_branch"),
    [
        ("if row.rule is OpClass.EXACT: pass", True),
        ("ALONE = (OpClass.EXACT,)", True),
        ('sums = tol.rule == "contraction"', True),
        ("x = row.rule in ALONE", True),
        ("row = replace(row, rule=OpClass.SOLVER)", False),
        ("tables.flushes(dtype, row.name, row.rule)", False),
    ],
)
def test_a_branch_is_seen(line: str, is_branch: bool) -> None:
    assert bool(list(branches(ast.parse(line)))) is is_branch
