"""The parser and the options that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from parity.core import project
from parity.core.errors import UsageError, brief
from parity.core.results import statuses
from parity.engine.options import ACTIONS, ALSO, DEVICE_HELP, INPUT_HELP, MIXED, MIXED_HELP, PARTIAL, SETUP_HELP, RunOptions
from parity.engine.reading import plants_faults, read_input, read_path, read_text, read_words

if TYPE_CHECKING:
    from parity.engine.suite import Item

PARTIAL_HELP = f"{PARTIAL}: what is there of a file that is truncated"
EVERYWHERE = """\
-v, --verbose (with every command): leave nothing out
--json (with every command that answers a question): print the answer as JSON (parity help schema-answer)"""
EXIT_CODES = """\
Exit codes: 0 nothing to report, 1 findings or regressions, 2 usage,
3 nothing was compared, 4 device absent or unusable, 130 interrupted."""
WAYS = ("terminal", "markdown", "json", "junit", "html")  # of a diff


class Mistake(SystemExit):
    """A command line is wrong, which was said. Any other SystemExit in a command comes from a person's file. said: in words."""

    def __init__(self, said: str) -> None:
        super().__init__(UsageError.exit_code)
        self.said = said


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with 2."""
        said = brief(f"{message}; see {self.prog} --help")
        print(f"parity: {said}", file=sys.stderr)
        raise Mistake(said)


def add_device(to: argparse.ArgumentParser, by_default: str = "auto by default") -> None:
    """The device of a command. Its default is none, so that `fill` knows whether one was named."""
    to.add_argument("--device", help=f"{DEVICE_HELP} ({by_default})")


def add_model(to: argparse.ArgumentParser, dest: str, returns: str) -> None:
    """The models of a command, and their inputs. returns: what the functions of a file return, in words."""
    how = f"functions that return {returns}; or a model by its name: timm:resnet18, hf:BertModel ... (parity help models)"
    to.add_argument(dest, type=read_text, metavar="MODEL", help=f"FILE.py[:FUNCTION]: {how}")
    add_input(to)


def add_input(to: argparse.ArgumentParser) -> None:
    """The inputs of a model."""
    to.add_argument("--input", action="append", default=[], type=read_input, metavar="INPUT", help=INPUT_HELP)


def add_code(to: argparse.ArgumentParser) -> None:
    """The person's own code, which every process runs."""
    to.add_argument("--setup", metavar="FILE", type=read_text, help=SETUP_HELP, action=ACTIONS["setup"])
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


def as_run(words: Sequence[str], verbose: bool = False, keys: Iterable[str] = ()) -> RunOptions:
    """What was handed on, as `parity run` takes it. keys: see `fill`. Ends the process for what it does not take."""
    from parity.faces.commands import run

    return run.options([*words, *(["-v"] if verbose else [])], keys)


def fill(o: argparse.Namespace, keys: Iterable[str]) -> None:
    """Fill in what no option gives from `[tool.parity]`. keys: of the settings that the command takes; `o.settings` has those
    that were taken, with their values. A run that is resumed takes none: its file says how it was begun. Raises UsageError."""
    o.settings = taken = dict[str, str]()
    if getattr(o, "resume", None):
        return
    asked = project.found() if keys else project.Project()
    for key in keys:
        value, dest = getattr(asked, key.replace("-", "_")), key.replace("-", "_")
        if not value or not _is_open(o, key, asked):
            continue
        if key == "known":
            asked.checked_known()
        if key == "fail-on":
            statuses(value, asked.where(key), ALSO)
        if key == "models":
            value, dest = ["*", *map(near_by, value)], "op"
        if key == "setup" and not getattr(o, "faults", None) and plants_faults(value):  # as --setup takes it
            dest = "faults"
        setattr(o, dest, [*value] if isinstance(value, (list, tuple)) else near_by(value))
        taken[key] = ", ".join(value[1:] if key == "models" else value) if isinstance(value, (list, tuple)) else near_by(value)


def _is_open(o: argparse.Namespace, key: str, asked: project.Project) -> bool:
    """Whether nothing that was typed decides what a setting is for."""
    if key == "models":  # they are compared with all ops, where no op is named
        return not (o.op or o.family or o.source)
    if key == "device" and getattr(o, "against", None):  # a capture is judged on the CPU, and on a device that is named
        return False
    if key == "faults" and not (getattr(o, "device", "") or asked.device or "auto").startswith(("auto", "sim")):
        return False
    return not getattr(o, key.replace("-", "_"), None)


def near_by(value: str) -> str:
    """A path as a person writes it in the current folder; any other text as it is."""
    path = Path(value)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else value


def chosen(o: RunOptions, source: str) -> tuple[Item, ...]:
    """The items of a run. Raises UsageError for rows of others that cannot run."""
    from parity import catalog
    from parity.engine import suite

    items = suite.shard(suite.select(o.op, o.family, o.dtype, source), o.shard)
    if catalog.ADDED:
        from parity.engine.planning import check  # with torch, which whoever added a row has loaded

        check(items)
    return items


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
