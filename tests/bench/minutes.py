"""Which share of the zoo a run on one core has found after 1, 2 and 5 minutes: `python tests/bench/minutes.py ZOO.json`.

    parity prove zoo --profile quick --output zoo.json && python -W ignore tests/bench/minutes.py zoo.json

The file says by which case each bug was found. This program runs the parts of `parity run --time` on the healthy simulated
device in one process (pinned cases of every item, then rounds of exploration), and notes after how many seconds of CPU time
each part was done, from the start of Python on. A bug counts as found when the part of that case is done. Another case may have
shown it earlier, so the shares are the least that a run finds. Within a round, items come in the order of the catalog, not the
most productive first, and a healthy device costs no time for causes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from parity import tolerance
from parity.core import notation
from parity.core.errors import CaseError
from parity.devices import resolve
from parity.engine import suite
from parity.engine.cases import drawn
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.engine.rounds import parts
from parity.engine.suite import Item

MINUTES = (0.5, 1, 2, 3, 4, 5)
SHARE = 0.9
Where = tuple[str, int]  # an item's id, and the ordinal of a case


def shown_by(faults: Sequence[Any], plan: RunPlan) -> dict[str, Where]:
    """Bug -> the case that showed it, of a file of `parity prove zoo`."""
    found = {}
    for fault in faults:
        for run in fault["runs"]:
            if run["generator"] != "suite" or not run["found"]:
                continue
            item = Item(suite.row(run["op"]), run["dtype"])
            try:
                for ordinal, _, one in drawn(item, plan):
                    if notation.case_text(one.case) == run["case"]:
                        found[fault["id"]] = item.id, ordinal
                        break
            except CaseError:  # samples of an entry that cannot be made
                continue
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the shares, and after how many minutes of CPU time 90 % are found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=MINUTES[-1])
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    profile = suite.profile("quick")
    faults = json.loads(given.file.read_text())["faults"]
    options = RunOptions(device="sim", skip=("shrink",), seed=faults[0]["runs"][0]["seed"])  # which its cases are drawn by
    plan = RunPlan(resolve("sim"), resolve("cpu"), tolerance.load("sim"), profile, options)
    since = time.process_time()
    found, bugs = shown_by(faults, plan), len(faults)
    lost = time.process_time() - since  # what a run does not do
    done: dict[str, list[tuple[int, int, float]]] = {}  # item -> (first and last ordinal, seconds) of its parts
    for part in parts(suite.select((), (), (), profile.source), profile, None, 60 * given.minutes, 1, False):
        own = profile.examples(part.item.row, part.item.dtype)
        if (
            time.process_time() - lost > 60 * given.minutes or part.start >= own
        ):  # no case behind the profile's own is asked for
            break
        examine(part.item, plan, NoJournal(), part=part)
        seconds = time.process_time() - lost
        low, high = (0, profile.pinned) if part.pinned else (profile.pinned + part.start, profile.pinned + part.stop)
        done.setdefault(part.item.id, []).append((low, high, seconds))
    times = sorted(s for item, k in found.values() for low, high, s in done.get(item, ()) if low <= k < high)
    print(f"{bugs} bugs, {len(found)} found by cases of the {profile.name} profile")
    for minutes in (m for m in MINUTES if m <= given.minutes):
        n = sum(s <= 60 * minutes for s in times)
        print(f"  after {minutes:g} min: {n} of {bugs}, {n / bugs:.0%}; of those that the profile finds {n / len(found):.0%}")
    for what, all_of in (("bugs", bugs), ("bugs that the profile finds", len(found))):
        k = -int(-SHARE * all_of // 1)
        print(f"{SHARE:.0%} of the {what}: " + (f"{times[k - 1] / 60:.1f} min" if k <= len(times) else "not within this time"))


if __name__ == "__main__":
    main()
