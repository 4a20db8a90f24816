"""The formats in which a whole run is reported, to which files outside of the package add theirs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from parity.core import extensions
from parity.core.errors import UsageError, described, mending, near
from parity.store.rows import Run

OF_CAUSES = ("text", "markdown", "json")  # of a run, of one of its causes, and of its matrix


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report is made of. name: of the run's file; before: an earlier run to compare with."""

    run: Run
    name: str = ""
    before: Run | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format. render: its text; suffix: of a file that is written in it unasked; page: it goes to a file; compares: it shows
    an earlier run as well."""

    name: str
    render: Callable[[Reported], str]
    suffix: str = ""
    page: bool = False
    compares: bool = False


def _html(r: Reported) -> str:
    text: str = importlib.import_module("parity.report.html").render(r.run, r.before, r.name)
    return text


def _of(module: str) -> Callable[[Reported], str]:
    """What a module of this folder makes of a run; it is imported when it is asked for."""
    return lambda r: str(importlib.import_module(f"parity.report.{module}").render(r.run))


OURS = (
    Format("html", _html, "html", page=True, compares=True),
    Format("junit", _of("junit"), "xml"),
    Format("github", _of("github")),
)
FORMATS = {f.name: f for f in OURS}


def add(made: Format) -> None:
    """Add a format. Raises UsageError for a name that is taken."""
    if made.name in (*OF_CAUSES, *FORMATS):
        raise UsageError(f"there is a format '{made.name}' already; name yours otherwise")
    FORMATS[made.name] = made
    extensions.note("format", made.name)


def added_by(run: Callable[[], None], given: str) -> str:
    """The name of the format that a file adds. run: runs it; given: how it was named. Raises UsageError unless it adds one."""
    before = set(FORMATS)
    run()
    added = [name for name in FORMATS if name not in before]
    if len(added) != 1:
        names = f"the formats {', '.join(added)}; name one: --format {given}:{added[0]}" if added else "no format"
        raise UsageError(f"{given} adds {names}")
    return added[0]


def find(name: str) -> Format | None:
    """The format of a whole run with this name; None for one of causes. Raises UsageError for an unknown one."""
    if name in OF_CAUSES:
        return None
    if name not in FORMATS:
        extensions.load()
    if name not in FORMATS:
        known = (*OF_CAUSES, *FORMATS)
        raise UsageError(f"unknown format '{name}'; {near(name, known) or 'allowed: ' + ', '.join(known)}")
    return FORMATS[name]


def suffixes(asked: str) -> dict[str, str]:
    """The names of formats by the suffix of a file; those that others added if this suffix is none of ours."""
    if asked and all(f.suffix != asked for f in OURS):
        extensions.load()
    return {f.suffix: f.name for f in reversed(FORMATS.values()) if f.suffix}


def rendered(made: Format, of: Reported) -> str:
    """A report. Raises UsageError, with the line, for what somebody's own format raises, or if it makes no text."""
    if made in OURS:
        return made.render(of)
    try:
        text: object = made.render(of)
    except Exception as e:  # it may do anything
        what = "what a run holds is in parity/store/rows.py"
        raise UsageError(f"the format '{made.name}' raises {described(e)}; {mending(e)}; {what}") from e
    if not isinstance(text, str):
        raise UsageError(f"the format '{made.name}' makes {type(text).__name__}; its render has to return a text")
    return text
