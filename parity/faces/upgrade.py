"""`parity upgrade`: the same cases in two environments on one machine, and what changed between them."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from parity.core.errors import UsageError
from parity.report import diff as told
from parity.runs import change, diff, environments, run_file
from parity.runs.environments import Environment

USABLE = (0, 1, 3)  # exit codes of a run that came to its end


def upgrade(o: argparse.Namespace, groups: Sequence[change.Group]) -> int:
    """Run both sides, and print the diff with a verdict; the exit code is that of the diff.

    Raises UsageError if an environment cannot run parity, or if a run does not come to its end.
    """
    o.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="parity-upgrade-") as scratch:
        sides = []
        for word in ("before", "after"):
            place = getattr(o, word) or sys.executable
            sides.append((word, environments.prepared(place, Path(scratch, word), lambda text: print(text, flush=True))))
        files = [_run(word, there, o) for word, there in sides]
    before, after = (run_file.read(path) for path in files)
    d = diff.compare(before, after)
    text = told.FORMATS[o.format](d, groups, o.verbose)
    if o.output:
        o.output.write_text(text, encoding="utf-8")
    if not o.output:
        print(text if o.format != "terminal" else f"\n{text}", flush=True)
    screen = sys.stdout if o.format == "terminal" else sys.stderr
    print(told.verdict(d, groups), file=screen)
    stored = f"the runs are stored in {files[0]} and {files[1]}" + (f", the diff in {o.output}" if o.output else "")
    print(stored, file=screen)
    return d.exit_code(groups)


def _run(word: str, there: Environment, o: argparse.Namespace) -> Path:
    """The run of one side, shown as it goes on."""
    path = Path(o.folder) / f"{word}.jsonl"
    screen = None if o.format == "terminal" else sys.stderr  # the standard output is the document's
    print(f"\n{word}: torch {there.torch} ({there.name})", flush=True, file=screen)
    given = [*o.patterns, "--output", str(path), "--findings", str(o.folder / f"{word}-findings")]
    for name in ("device", "profile", "seed", "time", "known", "faults", "setup", "examples", "workers"):
        if (value := getattr(o, name)) is not None:
            given += ["-n" if name == "workers" else f"--{name}", str(value)]
    given += [x for name in ("dtype", "family", "model") for value in getattr(o, name) for x in (f"--{name}", value)]
    # In the process group of this one, so that Ctrl-C reaches both.
    code = subprocess.call(there.command("run", *given), env=there.variables, stdout=screen)
    if code not in USABLE:
        raise UsageError(f"the run {word} ended with {code}, see above; nothing was compared with it")
    return path
