"""`parity upgrade`: the same cases in two environments on one machine, and what changed between them."""

from __future__ import annotations

import argparse
from pathlib import Path

from parity.core.errors import UsageError
from parity.core.outputs import writable
from parity.engine.options import OPTIONS, RunOptions
from parity.engine.reading import read_path, read_text
from parity.faces.commands.groups import add_fail_on, add_output, as_run, split, take_rest
from parity.faces.files import check_output

HELP = "the same cases with two versions of torch, and what changed"
ABOUT = """\
Run the same cases in two Python environments on this machine, one after the other, and report what changed, with a verdict in
one sentence. Patterns and options of parity run say which cases: --device, --dtype, --profile, --known ... parity need not be
installed in the environments. Where both cannot stand side by side (another macOS or chip), run parity run before and after,
and then parity diff. Ends with 0 where nothing got worse, with 1 where something did, or where too little could be compared to
say so. Both runs are in --folder: parity diff prints their difference in other formats.

  parity upgrade --after 'torch==2.14.*' 'conv*' --device mps

With --bisect it names the version since which one case gives another result: a case in quotes, or a run file and a cause of it.

  parity upgrade 'softmax(float32[1, 3], dim=-1)' --bisect 'torch>=2.10,<=2.15'"""
# Options of a run that are not handed on.
OURS = ("output", "resume", "findings", "junit_xml", "shard", "study", "list", "fail_on")


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
    asked = as_run(o.asked, keys=() if o.bisect else ("device", "setup", "faults"))
    case = [p for p in asked.op if "(" in p or p.endswith(".jsonl")]
    if bool(o.after) == bool(o.bisect) or (o.bisect and (o.before or not case)):
        how = "--after PLACE, or looks for a version: parity upgrade CASE --bisect PLACE ..."
        raise UsageError(f"upgrade compares with {how}")
    plain = RunOptions()
    if other := next((x for x in OPTIONS if x.name in OURS and getattr(asked, x.name) != getattr(plain, x.name)), None):
        raise UsageError(f"upgrade makes both runs itself; leave {other.flag} out")
    writable(o.folder, "--folder")
    if o.output:
        check_output(o.output, "--output", [o.folder / f"{side}.jsonl" for side in ("before", "after")])
    from parity.faces import upgrading  # it loads torch
    from parity.history.change import groups

    if o.bisect:
        return upgrading.bisect(o, asked)
    upgrading.check(asked)
    return upgrading.upgrade(o, asked, groups(split(o.fail_on), "--fail-on"))
