"""The public function that a row calls."""

from __future__ import annotations

import pytest

from parity.catalog import ROWS
from parity.catalog.lookup import called_by


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("softmax", "torch.nn.functional.softmax"),
        ("attention_packed", "torch.nn.functional.scaled_dot_product_attention"),
        ("attention_autocast", "torch.nn.functional.scaled_dot_product_attention"),  # given to a function that casts
        ("attention_dropout", "torch.nn.functional.scaled_dot_product_attention"),  # and a factory next to it
        ("conv1d_of", "torch.nn.functional.conv1d"),
        ("lstm_packed", "torch.lstm"),
        ("reflection_pad1d", "torch.ops.aten.reflection_pad1d"),
        ("cholesky_solve", ""),  # two
        ("add_with_itself", ""),  # none of torch's
    ],
)
def test_a_row_names_the_function_that_it_calls(op: str, function: str) -> None:
    assert called_by(ROWS[op]) == function
