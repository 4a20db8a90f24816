"""The process that checks cases of an item apart from the worker: `python -m parity.engine.alone_worker FOLDER` with a pickled
`Asked` on its standard input.

It appends each result to FOLDER/results, and records in FOLDER/journal what it is about to do.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from parity.core import notation
from parity.core.errors import CaseError
from parity.devices.fallbacks import listening
from parity.engine import suite
from parity.engine.alone import DONE, Asked, Checked, packed
from parity.engine.cases import drawn
from parity.engine.checking import check_case
from parity.engine.journal import Journal
from parity.engine.planning import RunPlan, run_plan
from parity.engine.rounds import Part
from parity.engine.suite import Item
from parity.generation.generate import Drawn


def main() -> None:
    """Check the cases in their order."""
    asked: Asked = pickle.load(sys.stdin.buffer)
    folder, notes = Path(sys.argv[1]), list[str]()
    plan = run_plan(asked.options, asked.power, None)
    item = Item(suite.row(asked.op), asked.dtype)
    part = None if asked.part is None else Part(item, *asked.part)
    journal = Journal(folder / "journal")
    with (folder / "results").open("ab", buffering=0) as results, plan.device.active(), listening(notes):
        for ordinal, pinned, one in _asked_for(asked, item, plan, part):
            text = notation.case_text(one.case)
            journal.begin(ordinal, item.id, text, plan.patience(one.case))
            try:
                checked = check_case(item, plan, ordinal, pinned, one, journal.stage, notes)
            except CaseError as e:
                checked = Checked(void=str(e))
            odd = [r.verdict.reason for r in checked.results if r.verdict.status.is_doubtful]
            if (odd or checked.void or one.case.refused) and not plan.device.answers():
                journal.lost((odd or [checked.void or "a call that is to be refused"])[0])
            results.write(packed(ordinal, checked))
            if asked.last is not None:
                time.sleep(asked.linger)  # while the journal still names the case
            journal.end()
        results.write(packed(DONE, Checked()))


def _asked_for(asked: Asked, item: Item, plan: RunPlan, part: Part | None) -> Iterator[tuple[int, bool, Drawn]]:
    for ordinal, pinned, one in drawn(item, plan, part):
        if asked.last is not None and ordinal > asked.last:
            return
        if ordinal >= asked.first and ordinal not in asked.skip:
            yield ordinal, pinned, one


if __name__ == "__main__":
    main()
