"""What messages and deaths say."""

from __future__ import annotations

from parity.findings.wording import skeleton


def test_a_message_loses_what_changes_from_call_to_call() -> None:
    text = "Expected size [2, 3] but got 17 at 0x7ffe12 for argument 'weight' (in op)\nmore"
    assert skeleton(text) == "Expected size but got N at N for argument '...' (in op)"


def test_the_names_are_all_that_a_missing_attribute_says() -> None:
    text = "AttributeError in run: 'NoneType' object has no attribute 'permute'"
    assert skeleton(text) == text


def test_a_long_message_costs_nothing() -> None:
    assert skeleton("[" * 200_000)
