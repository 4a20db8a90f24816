"""What pytest shows of a comparison that failed: where it was called, and at most so many lines of what differs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

MOST = 20  # lines of a failure without -vv
OF_FRAME = 3  # of these for each frame: its line, an empty one and the place
ALL = 2  # verbosity from which on all is shown


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Begin the line of the short summary with what failed, and cut the failure."""
    report = yield
    error: Any = call.excinfo.value if call.excinfo is not None else None
    text = report.longrepr
    # By name: a test that does not use parity must not load it.
    if (type(error).__module__, type(error).__name__) != ("parity", "ParityFailure") or not hasattr(text, "chain"):
        return report
    if text.reprcrash is not None:
        text.reprcrash.message = f"ParityFailure: {error.comparison.headline}"
    if item.config.get_verbosity() < ALL:
        _cut(text)
    return report


def _cut(text: Any) -> None:
    """Of each frame the line that was called, and the first lines of the message; not what the device raised before."""
    text.chain = text.chain[-1:]
    text.reprtraceback, text.reprcrash, _ = text.chain[0]
    entries = text.reprtraceback.reprentries
    room = max(MOST - OF_FRAME * len(entries), OF_FRAME)
    for entry in entries:
        entry.reprfuncargs = None
        source = [line for line in entry.lines if not line.startswith("E ")]
        message = [line for line in entry.lines if line.startswith("E ")]
        if len(message) > room:
            left = len(message) - room + 1
            message = [*message[: room - 2], f"E       ... {left} more lines (-vv)", message[-1]]
        entry.lines = [*source[-1:], *message]
