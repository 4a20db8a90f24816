"""Metadata: empty_like. Only shape, dtype and layout are promised."""

from __future__ import annotations

from typing import ClassVar

from parity.judging.rule import Rule


class Metadata(Rule):
    """The values of results are unspecified."""

    has_values: ClassVar[bool] = False
    form_only: ClassVar[bool] = True
