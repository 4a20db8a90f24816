"""Reads the text of an option: each function gives its value, or raises ArgumentTypeError with what is allowed instead."""

from __future__ import annotations

import ast
import os
from argparse import Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from parity.core import untrusted
from parity.core.errors import UsageError
from parity.store.code import LARGEST_CODE

FAULTY = frozenset({"FAULTS", "BUGS", "Fault"})  # names that a file with faults has, and one that sets flags has not
HANG_AFTER = "PARITY_HANG_AFTER"  # the variable with the seconds after which one call counts as hung
MOST_WORKERS = 64  # or four per core, on machines with more than 16 cores
DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MOST_COUNT = 10**9
QUOTED = 30  # most characters of a value in a message
LONGEST_RUN = 7 * 24 * 3600.0
# The studies of `parity prove` -> the module that has its class as STUDY, which only a run with this study loads.
STUDIES = {"counts": "parity.prove.counts", "reach": "parity.prove.dispatched"}


def read_text(given: str) -> str:
    """A text that is not blank. Raises ArgumentTypeError, as all functions here do."""
    if not given.strip():  # usually an unset variable of a script
        raise ArgumentTypeError("it is empty; name something, or leave the option out")
    return given


def read_input(given: str) -> str:
    """A tensor in parity's notation, without spaces: the header of a run file has its options as words."""
    return "".join(read_text(given).split())


def read_path(given: str) -> Path:
    """A path that is not blank."""
    return Path(read_text(given))


def read_count(given: str) -> int:
    """A whole number of 1 or more."""
    if not given.isdecimal() or not given.strip("0"):
        raise ArgumentTypeError(f"'{_cut(given)}' is not a number of 1 or more")
    return _not_too_large(given)


def read_size(given: str) -> int:
    """A number of bytes, like 64M or 2G."""
    unit = {"K": 10, "M": 20, "G": 30}.get(given[-1:].upper(), 0)
    digits = given[:-1] if unit else given
    if not digits.isdecimal() or not digits.strip("0") or (bytes_ := _not_too_large(digits) << unit) > 1 << 40:
        raise ArgumentTypeError(f"'{_cut(given)}' is no size; give one like 64M or 2G, and at most 1024G")
    return bytes_


def read_amount(given: str) -> int:
    """A whole number of 0 or more."""
    if not given.isdecimal():
        raise ArgumentTypeError(f"'{_cut(given)}' is not a number of 0 or more")
    return _not_too_large(given)


def _not_too_large(digits: str) -> int:
    if len(digits) > len(str(MOST_COUNT)) or int(digits) > MOST_COUNT:
        raise ArgumentTypeError(f"'{_cut(digits)}' is too large a number; give at most {MOST_COUNT}")
    return int(digits)


def read_workers(given: str) -> int:
    """A number of processes that this machine can use."""
    n = read_count(given)
    if n > (most := max(MOST_WORKERS, 4 * (os.cpu_count() or 1))):
        what = f"{n} processes are more than this machine can use"
        raise ArgumentTypeError(f"{what}; give at most {most}, or leave it out")
    return n


def read_place(given: str) -> int | str:
    """A number of processes here, or a worker's place, which `machines.read_specs` reads."""
    return given if "=" in given or "popen" in given else read_workers(given)


def read_share(given: str) -> float:
    """A number between 0 and 1."""
    value = _number(given)
    if value is None or not 0.0 <= value <= 1.0:
        raise ArgumentTypeError(f"'{_cut(given)}' is no share between 0 and 1, such as 0.9")
    return value


def read_seconds(given: str) -> float:
    """Seconds: a number above 0, up to a week."""
    value = _number(given)
    if value is None or not 0.0 < value <= LONGEST_RUN:
        raise ArgumentTypeError(f"'{_cut(given)}' is not a number of seconds above 0; give at most {LONGEST_RUN:.0f}, a week")
    return value


def read_study(given: str) -> str:
    """The name of a study."""
    if given not in STUDIES:
        raise ArgumentTypeError(f"'{_cut(given)}' is no study; allowed: {', '.join(STUDIES)}")
    return given


def read_words(what: str, *allowed: str) -> Callable[[str], str]:
    """How to read one of these words, or several, separated by commas. what: a word in messages, such as "step"."""

    def read(given: str) -> str:
        if not all(w.strip() in allowed for w in given.split(",")):
            raise ArgumentTypeError(f"'{_cut(given)}' is no {what}; allowed: {', '.join(allowed)}")
        return given

    return read


def read_day(given: str) -> date:
    """A day, as ISO 8601 writes it."""
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise ArgumentTypeError(f"'{given}' is no day; write it as 2027-01-31") from None


def read_duration(given: str) -> float:
    """Seconds, from a text such as 90s, 5m or 1h."""
    value = _number(given[:-1])
    if value is None or given[-1:] not in DURATIONS or not 0.0 < value * DURATIONS[given[-1]] <= LONGEST_RUN:
        how = "give seconds, minutes or hours, such as 90s, 5m or 1h, a week at most"
        raise ArgumentTypeError(f"'{_cut(given)}' is no time; {how}")
    return value * DURATIONS[given[-1]]


class Code(Action):
    """`--setup`: keeps a file with faults as `faults`, any other one as `setup`."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, given: Any, option: str | None = None) -> None:
        """Keep one file. Raises ArgumentError for the second of a kind."""
        faults = plants_faults(given)
        dest, kind = (self.dest.replace("setup", "faults"), "with faults") if faults else (self.dest, "without faults")
        if getattr(namespace, dest, None) is not None:
            raise ArgumentError(self, f"{getattr(namespace, dest)} and {given} are both {kind}; give one of each at most")
        setattr(namespace, dest, given)


class Workers(Action):
    """`-n`: keeps a number as `workers`, and places as `tx`."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, given: Any, option: str | None = None) -> None:
        """Keep one of them."""
        if isinstance(given, int):
            namespace.workers = given
        else:
            namespace.tx = (*(getattr(namespace, "tx", None) or ()), given)


def plants_faults(place: str) -> bool:
    """Whether a file, or an installed module by its name, plants faults, as far as reading shows it: nothing is run."""
    path = Path(place)
    if not os.path.isfile(path):  # no file either where the system takes no such name
        return path.suffix != ".py" and all(part.isidentifier() for part in place.split("."))
    try:
        tree = ast.parse(untrusted.content(path, LARGEST_CODE))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):  # whoever runs it says what is wrong
        return False
    return any(_name(node) in FAULTY for node in ast.walk(tree))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.alias):
        return node.asname or node.name
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _cut(given: str) -> str:
    """A value as messages quote it."""
    return given if len(given) <= QUOTED else f"{given[:QUOTED]}..."


def _number(given: str) -> float | None:
    try:
        return float(given)
    except ValueError:
        return None


def holds(values: tuple[str, ...], word: str) -> bool:
    """Whether a repeatable option, whose values may be separated by commas, has this word."""
    return any(word == w.strip() for v in values for w in v.split(","))


def hang_after() -> float | None:
    """Seconds after which one call counts as hung, of the variable PARITY_HANG_AFTER; None for the default. Raises
    UsageError."""
    if not (given := os.environ.get(HANG_AFTER, "")).strip():
        return None
    try:
        return read_seconds(given)
    except ArgumentTypeError as e:
        raise UsageError(f"{HANG_AFTER}: {e}") from None
