"""`parity merge`: the run files of shards as one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from parity.core.errors import NothingCompared, UsageError
from parity.engine import merging, suite
from parity.engine.options import MIXED, PARTIAL
from parity.engine.reading import holds
from parity.faces.commands import known
from parity.faces.commands.groups import add_accept, add_output
from parity.report.words import plural
from parity.store import marginal, run_file

HELP = "join the run files of shards"
ABOUT = (
    "Merge the run files of all shards of a run (parity run --shard K/N) into the one that a run of all items would have "
    "written. It judges nothing: each shard has ended with its own exit code. Ends with 0, with 3 where the shards compared "
    "nothing, and with 2 where they do not belong together: other seeds, options or machines, a shard twice, one missing."
)


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    to.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the run files of all shards, in any order")
    add_output(to, "the run file to write", required=True)
    add_accept(to, f"{PARTIAL}: what is there of a run with missing or truncated shards", mixed=True)


def run(o: argparse.Namespace) -> int:
    """Write the merged run; the exit code."""
    from parity.findings.verdict import compared  # it loads torch
    from parity.report.run_answers import Merged

    if len(o.runs) > suite.MOST_SHARDS:
        raise UsageError(f"{len(o.runs)} files are more shards than a run has; name at most {suite.MOST_SHARDS}")
    mixed, partial = holds(tuple(o.accept), MIXED), holds(tuple(o.accept), PARTIAL)
    made = merging.merged([(path, run_file.read(path, partial)) for path in o.runs], mixed, partial, known.given)
    run_file.write(o.output, made)
    for text in made.header.machines:
        print(f"parity: of different machines: {text}", file=sys.stderr)
    if made.end is not None and made.end.stopped:
        print(f"parity: not the whole run: {made.end.stopped}", file=sys.stderr)
    held = f"{plural(len(made.items), 'item')}, {plural(len(made.records), 'record')}"
    o.answer = Merged(
        str(o.output), len(o.runs), len(made.items), len(made.records), made.header.machines,
        "" if made.end is None else made.end.stopped, tuple(known.of_merged(marginal.of_run(made))),
    )  # fmt: skip
    for text in o.answer.known:
        print(text)
    if not any(compared(i) for i in made.items):
        raise NothingCompared(f"the {plural(len(o.runs), 'shard')} compared nothing ({held}); stored in {o.output}")
    print(f"{plural(len(o.runs), 'shard')}: {held}; stored in {o.output}; its findings: parity report {o.output}")
    return 0
