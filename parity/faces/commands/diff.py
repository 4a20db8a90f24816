"""`parity diff`: what changed between two runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from parity.core import outputs
from parity.core.errors import UsageError
from parity.engine.options import PARTIAL
from parity.engine.reading import holds
from parity.faces.commands.groups import WAYS, add_accept, add_fail_on, add_output, format_of, split, take_rest
from parity.report import output
from parity.store import run_file

HELP = "what changed between two runs"
ABOUT = (
    "Compare two run files, by cause, the worst first: newly-dying, regressed, lost-support, other-signature, refused-by-both, "
    "drifted-worse, fallback-changed, not-made, not-comparable, removed, slower, more-memory, eased, added, newly-supported, "
    "drifted-better, faster, less-memory, fixed. Findings pair by case "
    "or, where the cases are others, by op, dtype and aspect; errors and times pair by case, explored ones too where both "
    "runs have the same seed. Ends with 1 where the second run has a finding that the first one had not, or had as another "
    "kind (crash, then wrong), where support was lost or moved to the CPU, where an op is compared no longer, for the "
    f"groups of --fail-on, where a run was interrupted or is missing items (--accept {PARTIAL} takes it), and where a run has "
    "fewer ops than the other, or is a shard of it (patterns name what to compare); with 2 for a file that is damaged; with 3 "
    "where a run compared nothing, or both nothing in common."
)
FORMATS = {"md": "markdown", "json": "json", "xml": "junit", "html": "html"}  # by the suffix of a file


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    to.add_argument("before", type=Path, metavar="BEFORE", help="the run file of the earlier run")
    to.add_argument("after", type=Path, metavar="AFTER", help="the run file of the later run")
    how = "compare these ops alone, by name, with * and ?, whatever else one of the runs has"
    to.add_argument("ops", nargs="*", default=[], metavar="PATTERN", help=how)
    add_accept(to)
    to.add_argument(
        "--format", choices=WAYS, help="terminal by default, or as the file of -o is called (.md, .json, .xml, .html)"
    )
    add_output(to, "write to this file")
    add_fail_on(to)
    take_rest(to, "ops")


def run(o: argparse.Namespace) -> int:
    """Print or write the diff; its exit code."""
    partial, form = holds(tuple(o.accept), PARTIAL), format_of(o.format, o.output, FORMATS, "terminal")
    runs = run_file.read(o.before, partial), run_file.read(o.after, partial)
    from parity.history import diff
    from parity.history.change import groups
    from parity.report import (
        diff as diff_report,  # torch is imported only by a command that needs it, and after the files were read
    )

    fail_on = groups(split(o.fail_on), "--fail-on")
    if form == "html" and not o.output:
        raise UsageError("a page is written to a file: parity diff BEFORE AFTER -o diff.html")
    made = diff.compare(*runs, partial, split(o.ops))
    o.answer, o.verdict = diff_report.answer(made, fail_on), made.conclusion(fail_on)
    text = diff_report.FORMATS[form](made, fail_on, o.verbose)
    if o.output:
        outputs.write(o.output, text)
        print(diff_report.verdict_line(made, fail_on, str(o.output)))
    elif form == "terminal":
        print(text, end="")
    else:
        output.document(text)
    return made.exit_code(fail_on)
