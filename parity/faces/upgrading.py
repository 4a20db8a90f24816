"""Runs `parity upgrade`: two runs in two environments and their diff, or one case in many environments."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from parity.comparing import meter
from parity.core import notation, outputs
from parity.core.devices import UNUSABLE
from parity.core.errors import DeviceError, UsageError, near
from parity.core.status import Conclusion
from parity.engine import own, suite
from parity.engine.child import SHOWN, Child, End, Watch, surroundings
from parity.engine.doctor import examined_once
from parity.engine.options import RunOptions
from parity.faces.commands.diff import FORMATS
from parity.faces.commands.groups import format_of, split
from parity.faces.guarded import COMMAND
from parity.faces.interruption import Interruptions
from parity.findings import known_file
from parity.findings.causes import gather
from parity.history import diff, environments
from parity.history.change import Group
from parity.history.environments import Environment
from parity.report import diff as diff_report
from parity.report.finding import said
from parity.report.output import last_line
from parity.report.run_answers import Since, Upgraded
from parity.report.words import clock
from parity.store import run_file
from parity.store.rows import counted

USABLE = (0, 1, 3)  # exit codes of a run that came to its end
STORING = 120.0  # seconds in which a run that was asked to stop stores what it has


def check(asked: RunOptions) -> None:
    """Refuse a mistake now, and not after the minutes of the first run."""
    files = tuple(p for p in asked.op if own.are_models(p))
    own.names(files)
    patterns = tuple(p for p in asked.op if p not in files)
    suite.select(patterns, split(asked.family), split(asked.dtype), asked.source or suite.profile(asked.profile).source)
    if asked.known:
        known_file.read(Path(asked.known))


def upgrade(o: argparse.Namespace, asked: RunOptions, fail_on: Sequence[Group]) -> int:
    """Run both sides, and print the diff with a verdict; the exit code is that of the diff.

    Raises UsageError if an environment cannot run parity, or if a run does not come to its end.
    """
    o.folder.mkdir(parents=True, exist_ok=True)
    sides = {word: _side(word, getattr(o, word), o, asked) for word in ("before", "after")}
    began = time.monotonic()
    files = [_run("before", sides["before"], o, "the first of two runs: twice what its bar says is left")]
    took = f"the last of two runs: the first took {clock(time.monotonic() - began)}"
    files.append(_run("after", sides["after"], o, took))
    before, after = (run_file.read(path) for path in files)
    d = diff.compare(before, after)
    form = format_of(None, o.output, FORMATS, "terminal")
    text = diff_report.FORMATS[form](d, fail_on, o.verbose)
    if form == "terminal":
        text = text.rpartition(diff_report.verdict_line(d, fail_on))[0]  # the verdict of the upgrade takes its place
    if o.output:
        outputs.write(o.output, text)
    else:
        print(f"\n{text}", flush=True)
    stored = f"{files[0]} and {files[1]}" + (f", the diff in {o.output}" if o.output else "")
    following = f"parity diff {shlex.quote(str(files[0]))} {shlex.quote(str(files[1]))} -v"
    print(last_line(d.conclusion(fail_on), diff_report.verdict(d, fail_on), stored=stored, following=following))
    o.answer = Upgraded(str(files[0]), str(files[1]), diff_report.answer(d, fail_on))
    o.verdict = d.conclusion(fail_on)
    return d.exit_code(fail_on)


def bisect(o: argparse.Namespace, asked: RunOptions) -> int:
    """Replay one case in environments from the oldest to the newest, and name the first one that differs; the exit code is 1 if
    one does. Raises UsageError as `upgrade` does."""
    case, device = _case(asked)
    places = o.bisect if len(o.bisect) > 1 else environments.bisected_versions(o.bisect[0])
    options = [*_code(replace(asked, device=device))]

    def answer(place: str) -> str:
        there = environments.prepared(place, o.folder / "bisect", lambda text: print(text, flush=True))
        bar.at(len(replayed), most, f"the case with torch {there.torch}")
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            ended = _command(there, ("replay", case, *options), out)
            out.seek(0)
            printed = out.read()
        replayed.append(place)
        bar.wipe()
        text = said(printed) or (printed.strip().splitlines() or [f"it ended ({ended.died or 'without a word'})"])[-1]
        if ended.died or ended.code not in USABLE:
            raise UsageError(f"torch {there.torch}: {text}")
        print(f"torch {there.torch} ({place}): {text}", flush=True)
        return text

    replayed, most = list[str](), 2 + math.ceil(math.log2(max(2, len(places))))  # both ends, and halves
    with meter.shown() as bar:
        found = environments.bisected(places, answer)
    for place, why in found.skipped.items():
        print(f"not asked: {place}: {why}")
    o.answer = Since(case, found.differs, found.last, found.first, found.answers, found.skipped)
    if not found.differs:
        agrees = f"{case}: nothing differs from {places[0]} to {found.last}: {found.answers[found.last]}"
        print(last_line(Conclusion.PASS, agrees))
        return 0
    before, after = found.answers[found.last], found.answers[found.first]
    sides = f"--before {shlex.quote(found.last)} --after {shlex.quote(found.first)}"
    following = f"parity upgrade {sides} {notation.parse(case).op}{''.join(f' {shlex.quote(x)}' for x in options)}"
    named = f"{case}: {found.first} is the first that differs: {after}; {found.last}: {before}"
    print(last_line(Conclusion.FAIL, named, following=following))
    return 1


def _case(asked: RunOptions) -> tuple[str, str]:
    """The case that is asked for, and the device on which it is replayed."""
    first, *rest = asked.op
    if not rest and "(" in first:
        return notation.case_text(notation.parse(first)), asked.device
    if not first.endswith(".jsonl"):
        raise UsageError(f"--bisect replays one case, in quotes, or a cause of a run file, not {' '.join(asked.op)}")
    run = run_file.read(Path(first), partial=True)
    causes = {c.cause.id: c.case for c in gather(run.records, counted(run.deaths, run.items))}
    if len(rest) != 1 or rest[0] not in causes:
        raise UsageError(
            f"{' '.join(asked.op)}: give a case, or a run file and one of its causes; {near(asked.op[-1], causes)}"
        )
    return causes[rest[0]], run.header.fingerprint.device if asked.device == "auto" else asked.device


def _code(asked: RunOptions) -> Iterator[str]:
    """The options of the device and of the person's own code."""
    yield from ("--device", asked.device)
    yield from (word for given in (asked.faults, asked.setup) if given for word in ("--setup", given))


def _side(word: str, place: str | None, o: argparse.Namespace, asked: RunOptions) -> Environment:
    """The environment of one side. One that is not this one is tried before the minutes of the other are spent."""
    if place is None:
        return environments.this()
    there = environments.prepared(place, o.folder / word, lambda text: print(text, flush=True))
    print(f"examining torch {there.torch} ({place})", flush=True)
    try:
        answer = examined_once(asked.device, asked.faults, asked.setup, there.variables(surroundings()), there.python)
        if answer["verdict"] == UNUSABLE:
            raise DeviceError("; ".join(answer["reasons"]))
    except (DeviceError, UsageError) as e:
        raise type(e)(f"{there.name}: {e}") from None
    return there


def _run(word: str, there: Environment, o: argparse.Namespace, left: str = "") -> Path:
    """The run of one side, shown as it goes on. left: what is left of the upgrade, in words, for a terminal."""
    path = Path(o.folder) / f"{word}.jsonl"
    path.unlink(missing_ok=True)  # of an earlier upgrade: it must not be taken for this one's
    print(f"\n{word}: torch {there.torch} ({there.name})", flush=True)
    if left and sys.stderr.isatty():
        print(left, file=sys.stderr, flush=True)
    given = [*o.asked, "--output", str(path), "--findings", str(o.folder / f"{word}-findings")]
    ended = _command(there, ("run", *given))
    if ended.died or ended.code not in USABLE:
        raise UsageError(f"the run {word} ended with {ended.died or ended.code}, see above; nothing was compared with it")
    return path


def _command(there: Environment, argv: Sequence[str], out: str | IO[str] = SHOWN) -> End:
    """A command of parity there, with its own exit code where it did not die."""
    with Interruptions(), Child(COMMAND, (argv, None), Watch(math.inf), environment=there.variables(surroundings()),
                                python=there.python, out=out) as process:  # fmt: skip
        try:
            codes = [event["code"] for event in process]
        except KeyboardInterrupt:  # it ends its file
            process.stop(STORING)
            raise
        end = process.ending()
    return end if end.died else replace(end, code=codes[0])
