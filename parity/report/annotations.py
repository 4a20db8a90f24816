"""The causes of a run as annotations of a GitHub workflow: commands that its runner reads from the output of a step."""

from __future__ import annotations

from collections.abc import Sequence

from parity.core import untrusted
from parity.report import causes as causes_text
from parity.report.words import plural
from parity.runs.causes import Gathered
from parity.runs.rows import Run

MOST = 10  # errors of a step that GitHub shows


def render(gathered: Sequence[Gathered], run: Run, run_file: str) -> str:
    """One error for each of the worst causes, at most `MOST` with the last one for the rest, and for a run that is not whole.
    Empty if there is nothing to report. run_file: its name, for the next command."""
    errors = [("parity: not the whole run", why)] if (why := _cut(run)) else []
    room = MOST - len(errors)
    shown = gathered if len(gathered) <= room else gathered[: room - 1]
    for c in shown:
        errors.append((f"parity {c.cause.id}", f"{causes_text.line(c)}\nparity report {run_file} {c.cause.id}"))
    if rest := len(gathered) - len(shown):
        errors.append(("parity", f"{plural(rest, 'more cause')}: parity report {run_file}"))
    return "".join(f"::error title={_property(title)}::{_data(text)}\n" for title, text in errors)


def _cut(run: Run) -> str:
    """Why a run is not whole; empty if it is."""
    if run.end is None:
        return "the run file is cut: it has no end row"
    if run.end.broken:
        return f"parity itself failed: {run.end.broken[0]}"
    return run.end.stopped


def _data(text: str) -> str:
    """A text in which nothing but this annotation is a command."""
    lines = (untrusted.printable(line).replace("##[", "#\\#[") for line in text.split("\n"))
    return "\n".join(lines).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
