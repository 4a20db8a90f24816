"""The suite: every op in every dtype, on the device of this run against the CPU."""

from typing import Any

import pytest

pytestmark = pytest.mark.parity


def test_operator(parity_item: Any, parity_checker: Any) -> None:
    """All cases of one op in one dtype agree with the float64 truth inside the tolerance."""
    parity_checker.examine(parity_item)
