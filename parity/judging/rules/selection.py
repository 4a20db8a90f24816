"""Selection: sort, topk, argmax. Several answers can be right (`parity.judging.relations.selection`)."""

from __future__ import annotations

from typing import ClassVar

from parity.judging.rule import Rule


class Selection(Rule):
    """Elements are taken from the operands unchanged: nothing is rounded or added."""

    rounds: ClassVar[bool] = False
    adds_terms: ClassVar[bool] = False
