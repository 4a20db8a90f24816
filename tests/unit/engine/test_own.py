"""Names of a user's own functions and models."""

from __future__ import annotations

import pytest

from parity.core.errors import UsageError
from parity.engine import own


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("tim:resnet18", "tim:resnet18: there is no module tim; did you mean 'timm'?"),
        ("nowhere.py", "nowhere.py: there is no file nowhere.py"),
        ("nowhere.txt", "nowhere.txt: give "),
    ],
)
def test_what_is_not_there_is_named(place: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        own.names([place])
    assert str(raised.value).startswith(says)
