"""Shortens what pytest shows of a comparison that failed: where it was called, and at most so many lines of what differs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator, Sequence
from itertools import chain
from typing import Any

import pytest

MOST = 20  # lines of a failure without -vv
OF_FRAME = 3  # of these for each frame: its line, an empty one and the place
ALL = 2  # verbosity from which on all is shown
CUT = re.compile(r"\.\.\. (\d+) more lines \(-vv\)")


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


class Folded:
    """On the controller: keeps the lines of a comparison that failed within the terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Fold them, where the report is of one and goes to a terminal."""
        text: Any = report.longrepr
        crash = getattr(text, "reprcrash", None)
        on_terminal = getattr(self._config.pluginmanager.get_plugin("terminalreporter"), "isatty", False)
        if not on_terminal or not getattr(crash, "message", "").startswith("ParityFailure: "):
            return
        entries, everything = text.reprtraceback.reprentries, self._config.get_verbosity() >= ALL
        for entry in entries:
            source, message = _apart(entry.lines, shutil.get_terminal_size().columns)
            entry.lines = [*source, *(chain(*message) if everything else _first(message, _room(entries)))]


def _apart(lines: Sequence[str], columns: int | None = None) -> tuple[list[str], list[list[str]]]:
    """The lines of source of a frame, and those of the message, each folded to so many columns."""
    source, message = ([x for x in lines if x.startswith("E ") == is_message] for is_message in (False, True))
    if columns is None or not message:
        return source, [[line] for line in message]
    from parity.report.output import fitted

    margin = message[0][: len(message[0]) - len(message[0][1:].lstrip())]
    return source, [[f"{margin}{x}" for x in fitted(line[len(margin) :], columns - len(margin))] for line in message]


def _room(entries: Sequence[Any]) -> int:
    """Lines for the message of a failure with so many frames."""
    return max(MOST - OF_FRAME * len(entries), OF_FRAME)


def _first(message: Sequence[list[str]], room: int) -> list[str]:
    """The first lines of a message and its last one, in so many lines of the screen."""
    if sum(map(len, message)) <= room:
        return [*chain(*message)]
    *others, last = message
    left = 0
    while others and sum(map(len, others)) + 1 + len(last) > room:
        cut = CUT.search(others.pop()[0])
        left += int(cut[1]) if cut else 1
    margin = last[0][: len(last[0]) - len(last[0][1:].lstrip())]
    return [*chain(*others), f"{margin}... {left} more lines (-vv)", *last]


def _cut(text: Any) -> None:
    """Of each frame the line that was called, and the first lines of the message; not what the device raised before."""
    text.chain = text.chain[-1:]
    text.reprtraceback, text.reprcrash, _ = text.chain[0]
    entries = text.reprtraceback.reprentries
    for entry in entries:
        entry.reprfuncargs = None
        source, message = _apart(entry.lines)
        entry.lines = [*source[-1:], *_first(message, _room(entries))]
