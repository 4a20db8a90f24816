"""`parity upgrade`: the same cases in two environments on one machine, and what changed between them."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from parity.core import notation
from parity.core.errors import UsageError, near
from parity.findings.causes import gather
from parity.history import bisection, change, diff, environments
from parity.history.environments import Environment
from parity.report import diff as told
from parity.report.finding import said
from parity.report.last_line import FAIL, PASS, last_line
from parity.store import run_file
from parity.store.rows import counted

USABLE = (0, 1, 3)  # exit codes of a run that came to its end


def upgrade(o: argparse.Namespace, groups: Sequence[change.Group]) -> int:
    """Run both sides, and print the diff with a verdict; the exit code is that of the diff.

    Raises UsageError if an environment cannot run parity, or if a run does not come to its end.
    """
    o.folder.mkdir(parents=True, exist_ok=True)
    screen = sys.stdout if o.format == "terminal" else sys.stderr  # the standard output is the document's
    sides = {word: _side(word, getattr(o, word), o, screen) for word in ("before", "after")}
    files = [_run(word, there, o, screen) for word, there in sides.items()]
    before, after = (run_file.read(path) for path in files)
    d = diff.compare(before, after)
    text = told.FORMATS[o.format](d, groups, o.verbose)
    if o.format == "terminal":
        text = text.rpartition(told.verdict_line(d, groups))[0]  # the verdict of the upgrade takes its place
    if o.output:
        o.output.write_text(text, encoding="utf-8")
    if not o.output:
        print(text if o.format != "terminal" else f"\n{text}", flush=True)
    stored = f"{files[0]} and {files[1]}" + (f", the diff in {o.output}" if o.output else "")
    following = f"parity diff {shlex.quote(str(files[0]))} {shlex.quote(str(files[1]))} -v"
    print(last_line(told.judged(d, groups), told.verdict(d, groups), stored=stored, following=following), file=screen)
    return d.exit_code(groups)


def bisect(o: argparse.Namespace) -> int:
    """Replay one case in environments from the oldest to the newest, and name the first one that differs; the exit code is 1 if
    one does. Raises UsageError as `upgrade` does."""
    case, device = _case(o)
    places = o.bisect if len(o.bisect) > 1 else bisection.versions(o.bisect[0])
    given = ((f"--{name}", value) for name, value in (("device", device), ("faults", o.faults), ("setup", o.setup)))
    options = [x for option, value in given if value is not None for x in (option, value)]

    def answer(place: str) -> str:
        there = environments.prepared(place, o.folder / "bisect", lambda text: print(text, flush=True))
        done = subprocess.run(there.command("replay", case, *options), capture_output=True, text=True, check=False)
        text = said(done.stdout) or (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        print(f"torch {there.torch} ({place}): {text}", flush=True)
        return text

    found = bisection.bisected(places, answer)
    for place, why in found.skipped.items():
        print(f"not asked: {place}: {why}")
    if not found.differs:
        print(last_line(PASS, f"{case}: nothing differs from {places[0]} to {found.last}: {found.answers[found.last]}"))
        return 0
    before, after = found.answers[found.last], found.answers[found.first]
    sides = f"--before {shlex.quote(found.last)} --after {shlex.quote(found.first)}"
    following = f"parity upgrade {sides} {notation.parse(case).op}{''.join(f' {shlex.quote(x)}' for x in options)}"
    named = f"{case}: {found.first} is the first that differs: {after}; {found.last}: {before}"
    print(last_line(FAIL, named, following=following))
    return 1


def _case(o: argparse.Namespace) -> tuple[str, str | None]:
    """The case of --case, and the device on which it is replayed."""
    if len(o.case) == 1:
        return notation.case_text(notation.parse(o.case[0])), o.device
    run = run_file.read(Path(o.case[0]), partial=True)
    causes = {c.cause.id: c.case for c in gather(run.records, counted(run.deaths, run.items))}
    if len(o.case) > 2 or o.case[1] not in causes:
        raise UsageError(
            f"--case {' '.join(o.case)}: give a case, or a run file and one of its causes; {near(o.case[-1], causes)}"
        )
    return causes[o.case[1]], run.header.fingerprint.device if o.device in (None, "auto") else o.device


def _side(word: str, place: str | None, o: argparse.Namespace, screen: TextIO) -> Environment:
    """The environment of one side. One that is not this one is tried before the minutes of the other are spent."""
    if place is None:
        return environments.this()
    there = environments.prepared(place, o.folder / word, lambda text: print(text, flush=True, file=screen))
    given = ((f"--{name}", getattr(o, name)) for name in ("device", "faults", "setup"))
    environments.examine(there, *(x for option, value in given if value is not None for x in (option, value)))
    return there


def _run(word: str, there: Environment, o: argparse.Namespace, screen: TextIO) -> Path:
    """The run of one side, shown as it goes on."""
    path = Path(o.folder) / f"{word}.jsonl"
    print(f"\n{word}: torch {there.torch} ({there.name})", flush=True, file=screen)
    given = [*o.patterns, "--output", str(path), "--findings", str(o.folder / f"{word}-findings")]
    for name in ("device", "profile", "seed", "time", "known", "faults", "setup", "examples", "workers"):
        if (value := getattr(o, name)) is not None:
            given += ["-n" if name == "workers" else f"--{name}", str(value)]
    given += [x for name in ("dtype", "family", "model") for value in getattr(o, name) for x in (f"--{name}", value)]
    # In the process group of this one, so that Ctrl-C reaches both.
    code = subprocess.call(there.command("run", *given), stdout=screen)
    if code not in USABLE:
        raise UsageError(f"the run {word} ended with {code}, see above; nothing was compared with it")
    return path
