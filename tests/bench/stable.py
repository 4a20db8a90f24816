"""How often does a diff of two runs of an unchanged device report something? Every such line is a false alarm.

    python -m tests.bench honest stable --runs 20                       # a few ops on sim, another seed each time
    python -m tests.bench honest stable --runs 20 --same-seed           # explored cases pair: errors and times are tested
    python -m tests.bench honest stable 'nn.*' --device mps --runs 5    # a real device

Each run is compared with the one before it. It ends with 1 if a diff has a regression, a death, lost support, a drift, or a
change of speed, and says what was reported; with a device that errs by chance that is a figure to be read, not a test.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import front

from parity.history.change import Group
from parity.history.diff import Diff, compare
from parity.report.diff import about
from parity.store import run_file

OPS = ("exp", "add", "softmax", "layer_norm", "mm", "cumsum", "sort", "conv2d")
ALARMS = (
    Group.DYING, Group.REGRESSED, Group.LOST, Group.FALLBACK, Group.WORSE, Group.BETTER, Group.SLOWER, Group.FASTER,
)  # fmt: skip


def alarms(diff: Diff) -> list[str]:
    """What a diff of equal devices should not report."""
    return [f"{g.words}: {about(t)}" for g in ALARMS for t in diff.groups.get(g, ())]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs, compare them, and print the alarms."""
    parser = front.parser(__doc__)
    parser.add_argument("ops", nargs="*", default=list(OPS), help="ops by name")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how many pairs of runs (20)")
    parser.add_argument("--same-seed", action="store_true", help="the same cases in every run")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--faults", default="")
    parser.add_argument("-n", default="", help="worker processes")
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="further options of parity run, last")
    o = parser.parse_args(argv)
    asked = ["run", *o.ops, "--device", o.device, "--power", "0", "--skip", "shrink"]
    asked += [*(["--setup", str(Path(o.faults).absolute())] if o.faults else []), *(["-n", o.n] if o.n else []), *o.more]
    told: Counter[str] = Counter()
    tested = errors = 0
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch, f"{k}.jsonl") for k in range(o.runs + 1)]
        for k, path in enumerate(paths):
            front.ran(*asked, "--seed", "0" if o.same_seed else str(k), "--output", str(path), folder=Path(scratch))
        for a, b in pairwise(paths):
            diff = compare(run_file.read(a), run_file.read(b))
            tested, errors = tested + diff.drift.tests, errors + diff.drift.pairs
            found = alarms(diff)
            told["diffs with an alarm"] += bool(found)
            for line in found:
                told[line] += 1
    print(
        f"{o.runs} diffs, {errors:,} errors paired, {tested:,} tests of drift; {told.pop('diffs with an alarm')} with an alarm"
    )
    for line, n in told.most_common():
        print(f"  {n} times {line}")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
