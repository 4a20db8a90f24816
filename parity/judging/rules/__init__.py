"""One rule per class of ops, each in its own file: the differences from `parity.judging.rule.Rule`.

A new class is a member of `OpClass`, a file here, a section of `tolerances/default.toml` if it has its own numbers, and a test.
"""

from __future__ import annotations

from parity.catalog.row import Row
from parity.core import extensions
from parity.core.case import OpClass
from parity.core.errors import UsageError
from parity.judging.rule import Rule
from parity.judging.rules.composite import Composite
from parity.judging.rules.contraction import Contraction
from parity.judging.rules.decomposition import Decomposition
from parity.judging.rules.elementwise import Elementwise
from parity.judging.rules.exact import Exact
from parity.judging.rules.metadata import Metadata
from parity.judging.rules.random import Random
from parity.judging.rules.selection import Selection
from parity.judging.rules.solver import Solver

__all__ = ["RULES", "Rule", "add", "rule_of", "rule_of_pass"]

RULES: dict[OpClass, Rule] = {
    OpClass.EXACT: Exact(),
    OpClass.ELEMENTWISE: Elementwise(),
    OpClass.CONTRACTION: Contraction(),
    OpClass.COMPOSITE: Composite(),
    OpClass.SELECTION: Selection(),
    OpClass.DECOMPOSITION: Decomposition(),
    OpClass.SOLVER: Solver(),
    OpClass.RANDOM: Random(),
    OpClass.METADATA: Metadata(),
}


def add(op_class: OpClass, rule: Rule) -> None:
    """Add a class of ops of a file outside of the package: `OpClass("own-...")`. Raises UsageError for one that is there."""
    if op_class in RULES:
        raise UsageError(f"there is a class '{op_class}' already; name yours otherwise: OpClass('own-...')")
    RULES[op_class] = rule
    extensions.note("class", op_class)


def rule_of(row: Row) -> Rule:
    """The rule of the op's class."""
    return RULES[row.rule]


def rule_of_pass(row: Row, pass_: str) -> Rule:
    """The rule that judges results of this pass: the op's own "forward", that of its gradients "backward"."""
    return RULES[row.rule if pass_ == "forward" else row.rule.of_gradients]
