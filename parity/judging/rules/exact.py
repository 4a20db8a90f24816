"""Exact: data movement, comparisons, integers. Results are promised to the bit."""

from __future__ import annotations

from typing import ClassVar

from parity.judging.rule import Rule


class Exact(Rule):
    """No rounding and no addition."""

    exact: ClassVar[bool] = True
    rounds: ClassVar[bool] = False
    adds_terms: ClassVar[bool] = False
    by_element: ClassVar[bool] = True
