"""The parser and the options that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from parity.core.errors import UsageError
from parity.engine.options import (
    CODE,
    DEVICE_HELP,
    MIXED,
    MIXED_HELP,
    PARTIAL,
    SETUP_HELP,
    RunOptions,
    read_path,
    read_text,
    read_words,
)

PARTIAL_HELP = f"{PARTIAL}: what is there of a file that is truncated"
EVERYWHERE = """\
-v, --verbose (with every command): leave nothing out
--json (with every command that answers a question): print the answer as JSON (parity help schema-answer)"""
EXIT_CODES = """\
Exit codes: 0 nothing to report, 1 findings or regressions, 2 usage,
3 nothing was compared, 4 device absent or unusable, 130 interrupted."""
WAYS = ("terminal", "markdown", "json", "junit", "html")  # of a diff


class Mistake(SystemExit):
    """A command line is wrong, which was said. Any other SystemExit in a command comes from a person's file."""


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with 2."""
        print(f"parity: {message}; see {self.prog} --help", file=sys.stderr)
        raise Mistake(UsageError.exit_code)


def add_device(to: argparse.ArgumentParser, default: str | None = "auto", by_default: str = "auto by default") -> None:
    """The device of a command."""
    to.add_argument("--device", default=default, help=f"{DEVICE_HELP} ({by_default})")


def add_code(to: argparse.ArgumentParser) -> None:
    """The person's own code, which every process runs."""
    to.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP, **CODE)
    to.set_defaults(faults=None)


def add_output(to: argparse.ArgumentParser, how: str, required: bool = False) -> None:
    """The file that a command writes."""
    to.add_argument("-o", "--output", type=read_path, required=required, metavar="FILE", help=how)


def add_accept(to: argparse.ArgumentParser, partial: str = PARTIAL_HELP, mixed: bool = False) -> None:
    """What a command refuses otherwise. partial: the help of the word; mixed: whether machines may differ, too."""
    words, how = ((PARTIAL, MIXED), f"{partial}; {MIXED_HELP}") if mixed else ((PARTIAL,), partial)
    more = " (repeatable, or separated by commas)" if mixed else ""
    read = read_words("thing to accept", *words)
    to.add_argument("--accept", action="append", default=[], type=read, metavar="WHAT", help=how + more)


def add_fail_on(to: argparse.ArgumentParser) -> None:
    """When a diff fails."""
    how = "also fail on this group of changes, such as slower or drifted-worse (repeatable, or separated by commas)"
    to.add_argument("--fail-on", action="append", default=[], metavar="GROUP", help=how)


def take_rest(to: argparse.ArgumentParser, dest: str, options: bool = False) -> None:
    """Words that no argument takes go to `dest`: a list, such as that of the last argument, which argparse fills once only.
    options: unknown options as well, for a command that hands them on to `parity run`, so that none is shortened."""
    to.set_defaults(rest=dest, rest_options=options)
    to.allow_abbrev = to.allow_abbrev and not options
    if options:
        to.set_defaults(**{dest: []})


def as_run(words: Sequence[str], verbose: bool = False) -> RunOptions:
    """What was handed on, as `parity run` takes it. Ends the process for what it does not take."""
    from parity.faces.commands import run

    return run.options([*words, *(["-v"] if verbose else [])])


def split(values: Sequence[str]) -> tuple[str, ...]:
    """The parts of repeatable options that take commas. Raises UsageError for one that is given and empty."""
    for v in values:
        if not v.strip(", "):
            raise UsageError(f"an option was given with the empty value '{v}'; name something, or leave the option out")
    return tuple(part.strip() for v in values for part in v.split(",") if part.strip())


def format_of(given: str | None, output: object, by_suffix: dict[str, str], default: str) -> str:
    """The format that was asked for, else that of the file's suffix."""
    suffix = str(output or "").rpartition(".")[2]
    return given or by_suffix.get(suffix, default)
