"""Random: dropout, rand_like. A law says what may be drawn (`parity.judging.laws`)."""

from __future__ import annotations

from typing import ClassVar

from parity.judging.rule import Rule


class Random(Rule):
    """No value is promised; only a distribution, one stream per seed, and the form of results."""

    has_values: ClassVar[bool] = False
    is_random: ClassVar[bool] = True
