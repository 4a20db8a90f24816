"""The last line of a command: PASS, FAIL or INCONCLUSIVE, what was compared, how long it took, the file, the next command."""

from __future__ import annotations

import os
import re
from typing import TextIO

from parity.core.status import Conclusion
from parity.report.words import clock

COLOURS = {Conclusion.PASS: 32, Conclusion.FAIL: 31, Conclusion.INCONCLUSIVE: 33}  # of a terminal: green, red, yellow
VERDICT = re.compile(rf"({'|'.join(Conclusion)})(?=  )")


def last_line(verdict: Conclusion, said: str, seconds: float | None = None, stored: str = "", following: str = "") -> str:
    """A verdict in one line. said: what was compared and what came of it; stored: the file; following: the next command."""
    parts = [f"{verdict}  {said}" + (f", in {clock(seconds)}" if seconds is not None else "")]
    parts += [f"stored in {stored}"] if stored else []
    return "; ".join([*parts, f"next: {following}"] if following else parts)


def coloured(line: str, stream: TextIO) -> str:
    """The line with its verdict in colour, on a terminal. NO_COLOR leaves colours out, FORCE_COLOR asks for them elsewhere."""
    asked = bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
    if os.environ.get("NO_COLOR") or not asked:
        return line
    if (m := VERDICT.match(line)) is None:
        return line
    return f"\033[1;{COLOURS[Conclusion(m[1])]}m{m[1]}\033[0m{line[m.end() :]}"
