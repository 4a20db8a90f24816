"""Resumes an interrupted run: what is whole in its run file, and the options with which the rest is run.

An item is whole if its row is there, which is written last, and the causes of all that it found. Everything else of the file
is made again: rows of items without one, what was tried again, and what the end sums up.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parity.core import project
from parity.core.errors import RunFileError, UsageError
from parity.core.results import Fingerprint, Json, Record
from parity.engine.merging import difference
from parity.engine.options import OPTIONS, RunOptions
from parity.store import run_file
from parity.store.code import Code, code_of
from parity.store.features import DrawnFeatures
from parity.store.figures import Figures
from parity.store.rows import Death, Header, ItemRow, Power, Row, Sighting, is_own

CODE = ("faults", "setup", "known")
# Options that may be given with --resume; the file says all others.
WITH_RESUME = (*CODE, "resume", "workers", "findings", "verbose")


@dataclass(frozen=True, slots=True)
class Kept:
    """The whole items of a run. parts: op and dtype -> rows; deaths: of these items."""

    path: Path
    header: Header
    parts: dict[tuple[str, str], tuple[Row, ...]]

    @property
    def ids(self) -> tuple[str, ...]:
        """The items' ids."""
        return tuple(f"{op}-{dtype}" for op, dtype in self.parts)


def kept(path: Path) -> Kept:
    """What is whole in a run file. Raises RunFileError, and UsageError if there is nothing left to run."""
    run = run_file.read(path, partial=True)
    unexplained = {(r.op, r.dtype) for r in run.records if r.unexplained and not is_own(r.op)}
    if run.end is not None and not run.end.stopped and len(run.items) == run.end.expected and not unexplained:
        raise UsageError(f"{path} holds a whole run: nothing is left to run; compare it with another one: parity diff")
    whole = {(i.op, i.dtype) for i in run.items if not is_own(i.op)} - unexplained  # users' own functions are compared again
    parts: dict[tuple[str, str], list[Row]] = defaultdict(list)
    of_items = (Record, Power, Figures, Sighting, ItemRow, Death, DrawnFeatures)
    for row in run_file.rows_of(path):
        again = isinstance(row, Death) and bool(row.shrunk)  # it is shrunk once more at the end
        again |= isinstance(row, Record) and row.unexplained  # it is there once more, with its cause
        if isinstance(row, of_items) and (row.op, row.dtype) in whole and not again:
            parts[row.op, row.dtype].append(row)
    old = [k for k, rows in parts.items() if not any(isinstance(r, DrawnFeatures) for r in rows)]
    if old:
        raise RunFileError(f"{path} was written by a parity that could not resume: run it again")
    return Kept(path, run.header, {k: tuple(rows) for k, rows in parts.items()})


def options(header: Header, given: RunOptions) -> RunOptions:
    """The options of the run, with those that were given with --resume, and the files of `[tool.parity]` where it had some.
    Raises UsageError for what would make it another run."""
    path = given.resume
    for o in OPTIONS:
        if o.name not in WITH_RESUME and getattr(given, o.name) != o.default:
            why = "and writes into it" if o.name == "output" else "and runs the rest alike"
            raise UsageError(f"--resume takes the options of {path} {why}; leave {o.flag} out")
    then = dict(_said(header))
    if "time" in then:
        raise UsageError(f"{path} is a run with --time, which has no rest; run it again")
    asked = project.found()
    named: dict[str, Any] = {n: getattr(given, n) or getattr(asked, n) or None for n in CODE if getattr(header, n).name}
    given = replace(given, **named)
    for name in CODE:
        _check_code("--known" if name == "known" else "--setup", str(path), getattr(header, name), getattr(given, name))
    return replace(given, **then)


def selection(words: Iterable[str]) -> str:
    """Words as a header holds them, from which `options` has them again: what has a space or a quote is quoted, patterns are
    not."""
    return " ".join(shlex.quote(w) if re.search(r"""[\s'"\\]""", w) else w for w in words)


def check_same(path: Path, then: Fingerprint, now: Fingerprint) -> None:
    """Refuse another device, torch, parity or machine: the halves would not be one run. Raises UsageError."""
    if said := difference(then, now):
        raise UsageError(f"{path} cannot be finished here, it was begun elsewhere: {said}; run it again as a new one")


def _check_code(option: str, path: str, then: Code, given: str | None) -> None:
    if then.name and not given:
        raise UsageError(
            f"{path} was run with {option} {then}; parity takes no file because a run file names it. Look at it, then type: "
            f"parity run --resume {path} {option} {then.name}"
        )
    if given and not code_of(given).same(then):
        what = f"{option} {code_of(given)} is not what {path} was run with"
        raise UsageError(f"{what}: {then if then.name else 'none'}; the halves would not be one run")


def _said(header: Header) -> Iterator[tuple[str, Any]]:
    """The options that a header holds, by name."""
    yield from {"device": header.fingerprint.device, "seed": header.seed, "profile": header.profile}.items()
    yield "shard", header.shard or None
    try:
        words = shlex.split(header.selection)
    except ValueError as e:
        raise UsageError(f"the selection of the run file cannot be read ({e}): {header.selection}; run it again") from None
    for name in ("family", "dtype", "model"):
        yield name, tuple(w.partition("=")[2] for w in words if w.startswith(f"{name}="))
    yield "source", next((w.partition("=")[2] for w in words if w.startswith("source=")), None)
    yield "op", tuple(w for w in words if w.partition("=")[0] not in ("family", "dtype", "model", "source"))
    by_flag, given = {o.flag: o for o in OPTIONS}, defaultdict[str, list[str]](list)
    for word in header.options.split():
        flag, _, value = word.partition("=")
        given[flag].append(value)
    for flag, values in given.items():
        if (o := by_flag.get(flag)) is None:
            raise UsageError(f"the run file was run with {flag}, which this parity does not know; run it again")
        yield o.name, True if o.is_switch else tuple(values) if o.is_repeatable else o.plain(values[-1])


def as_part(rows: tuple[Row, ...]) -> Json:
    """The rows of an item as its worker sent them."""
    found = [r for r in rows if isinstance(r, Record) and r.shrunk and not r.known]
    features = next(r for r in rows if isinstance(r, DrawnFeatures))
    lines = [run_file.encode(r) for r in rows if not isinstance(r, (Death, DrawnFeatures))]
    return {"rows": lines, "findings": [""] * len(found), "features": features.packed}
