"""`parity upgrade`: the same cases in two environments on one machine, and what changed between them."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from parity.core import notation
from parity.core.errors import UsageError, near
from parity.engine import own, suite
from parity.engine.options import OPTIONS, RunOptions, read_path, read_text
from parity.faces.commands.diff import FORMATS
from parity.faces.commands.groups import add_fail_on, add_output, as_run, format_of, split, take_rest
from parity.faces.files import check_output, writable
from parity.findings import known
from parity.findings.causes import gather
from parity.history import bisection, diff, environments
from parity.history.change import Group, groups
from parity.history.environments import Environment
from parity.report import diff as told
from parity.report.finding import said
from parity.report.last_line import FAIL, PASS, last_line
from parity.store import run_file
from parity.store.rows import counted

HELP = "the same cases with two versions of torch, and what changed"
ABOUT = """\
Run the same cases in two Python environments on this machine, one after the other, and tell what changed, with a verdict in one
sentence. Patterns and options of parity run say which cases: --device, --dtype, --profile, --known ... parity need not be
installed in the environments. Where both cannot stand side by side (another macOS or chip), run parity run before and after,
and then parity diff. Ends with 0 where nothing got worse, with 1 where something did, or where too little could be compared to
say so. Both runs are in --folder: parity diff prints their difference in other formats.

  parity upgrade --after 'torch==2.14.*' 'conv*' --device mps

With --bisect it names the version since which one case gives another result: a case in quotes, or a run file and a cause of it.

  parity upgrade 'softmax(float32[1, 3], dim=-1)' --bisect 'torch>=2.10,<=2.15'"""
USABLE = (0, 1, 3)  # exit codes of a run that came to its end
OURS = (
    "output",
    "resume",
    "findings",
    "junit_xml",
    "shard",
    "study",
    "list",
    "fail_on",
)  # options of a run that are not handed on


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    how = (
        "a Python, the folder of an environment, or what pip takes, which is installed: 'torch==2.14.*', 'torch --pre', a wheel"
    )
    to.add_argument("--before", type=read_text, metavar="PLACE", help=f"{how}; by default this Python")
    to.add_argument("--after", type=read_text, metavar="PLACE", help="the same, for the other side")
    how = "replay a case in these, from the oldest to the newest, or in all versions of one requirement: 'torch>=2.10,<=2.15'"
    to.add_argument("--bisect", nargs="+", type=read_text, default=[], metavar="PLACE", help=how)
    where = "folder for the two run files and the scripts of findings (parity-upgrade by default)"
    to.add_argument("--folder", type=read_path, default=Path("parity-upgrade"), metavar="FOLDER", help=where)
    add_output(to, "write the diff to this file: .txt, .md, .json, .xml for JUnit, .html")
    add_fail_on(to)
    take_rest(to, "asked", options=True)


def run(o: argparse.Namespace) -> int:
    """Compare two environments, or look for the version that changed a case; the exit code."""
    asked = as_run(o.asked)
    case = [p for p in asked.op if "(" in p or p.endswith(".jsonl")]
    if bool(o.after) == bool(o.bisect) or (o.bisect and (o.before or not case)):
        how = "--after PLACE, or looks for a version: parity upgrade CASE --bisect PLACE ..."
        raise UsageError(f"upgrade compares with {how}")
    plain = RunOptions()
    if other := next((x for x in OPTIONS if x.name in OURS and getattr(asked, x.name) != getattr(plain, x.name)), None):
        raise UsageError(f"upgrade makes both runs itself; leave {other.flag} out")
    writable(o.folder, "--folder")
    if o.bisect:
        return _bisect(o, asked)
    if o.output:
        check_output(o.output, "--output", [o.folder / f"{side}.jsonl" for side in ("before", "after")])
    _check(asked)
    return _upgrade(o, asked, groups(split(o.fail_on), "--fail-on"))


def _check(asked: RunOptions) -> None:
    """Refuse a mistake now, and not after the minutes of the first run."""
    files = tuple(p for p in asked.op if ".py" in p)
    own.names(files)
    patterns = tuple(p for p in asked.op if p not in files)
    suite.select(patterns, split(asked.family), split(asked.dtype), asked.source or suite.profile(asked.profile).source)
    if asked.known:
        known.read(Path(asked.known))


def _upgrade(o: argparse.Namespace, asked: RunOptions, fail_on: tuple[Group, ...]) -> int:
    """Run both sides, and print the diff with a verdict; the exit code is that of the diff.

    Raises UsageError if an environment cannot run parity, or if a run does not come to its end.
    """
    o.folder.mkdir(parents=True, exist_ok=True)
    sides = {word: _side(word, getattr(o, word), o, asked) for word in ("before", "after")}
    files = [_run(word, there, o) for word, there in sides.items()]
    before, after = (run_file.read(path) for path in files)
    d = diff.compare(before, after)
    form = format_of(None, o.output, FORMATS, "terminal")
    text = told.FORMATS[form](d, fail_on, o.verbose)
    if form == "terminal":
        text = text.rpartition(told.verdict_line(d, fail_on))[0]  # the verdict of the upgrade takes its place
    if o.output:
        o.output.write_text(text, encoding="utf-8")
    else:
        print(f"\n{text}", flush=True)
    stored = f"{files[0]} and {files[1]}" + (f", the diff in {o.output}" if o.output else "")
    following = f"parity diff {shlex.quote(str(files[0]))} {shlex.quote(str(files[1]))} -v"
    print(last_line(told.judged(d, fail_on), told.verdict(d, fail_on), stored=stored, following=following))
    return d.exit_code(fail_on)


def _bisect(o: argparse.Namespace, asked: RunOptions) -> int:
    """Replay one case in environments from the oldest to the newest, and name the first one that differs; the exit code is 1 if
    one does. Raises UsageError as `_upgrade` does."""
    case, device = _case(asked)
    places = o.bisect if len(o.bisect) > 1 else bisection.versions(o.bisect[0])
    options = [*_code(replace(asked, device=device))]

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
    environments.examine(there, *_code(asked))
    return there


def _run(word: str, there: Environment, o: argparse.Namespace) -> Path:
    """The run of one side, shown as it goes on."""
    path = Path(o.folder) / f"{word}.jsonl"
    print(f"\n{word}: torch {there.torch} ({there.name})", flush=True)
    given = [*o.asked, "--output", str(path), "--findings", str(o.folder / f"{word}-findings")]
    # In the process group of this one, so that Ctrl-C reaches both.
    code = subprocess.call(there.command("run", *given))
    if code not in USABLE:
        raise UsageError(f"the run {word} ended with {code}, see above; nothing was compared with it")
    return path
