"""The last line of a command: PASS, FAIL or INCONCLUSIVE, what was compared, how long it took, the file, the next command."""

from __future__ import annotations

import os
import re
from typing import TextIO

from parity.report.words import clock

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
COLOURS = {PASS: 32, FAIL: 31, INCONCLUSIVE: 33}  # of a terminal: green, red, yellow
VERDICT = re.compile(rf"({PASS}|{FAIL}|{INCONCLUSIVE})(?=  )")


def of(code: int) -> str:
    """The verdict of a command that ends with this exit code."""
    return {0: PASS, 1: FAIL}.get(code, INCONCLUSIVE)


def last_line(verdict: str, said: str, seconds: float | None = None, stored: str = "", following: str = "") -> str:
    """A verdict in one line. said: what was compared and what came of it; stored: the file; following: the next command."""
    parts = [f"{verdict}  {said}" + (f", in {clock(seconds)}" if seconds is not None else "")]
    parts += [f"stored in {stored}"] if stored else []
    return "; ".join([*parts, f"next: {following}"] if following else parts)


def coloured(line: str, stream: TextIO) -> str:
    """The line with its verdict in colour, on a terminal. NO_COLOR leaves colours out, FORCE_COLOR asks for them elsewhere."""
    asked = bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
    if os.environ.get("NO_COLOR") or not asked:
        return line
    return VERDICT.sub(lambda m: f"\033[1;{COLOURS[m[1]]}m{m[1]}\033[0m", line, count=1) if VERDICT.match(line) else line
