"""The process of `parity replay` that checks a case again with all aspects and the oracle, and prints what it does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from parity.core import notation
from parity.core.case import Case
from parity.core.child import Given, Job
from parity.core.errors import CaseError, ParityError
from parity.core.results import FINDINGS, Record
from parity.devices.setup import run_setup
from parity.engine import suite
from parity.engine.checking import replay
from parity.engine.inquest import How
from parity.engine.journal import Journal
from parity.engine.options import METADATA, RunOptions
from parity.engine.planning import run_plan
from parity.engine.tally import record
from parity.execution.execute import said
from parity.findings.verdict import of_cases
from parity.generation.room import refuse_giants
from parity.report import explanation, metadata, output
from parity.report.finding import body, place
from parity.store import run_file

LINGER = 0.3  # seconds to wait after the case, because kernels may fail later than they are called


def run(case: Case, how: How, journal: Path | None = None) -> tuple[int, list[Record]]:
    """Print what the case does on the device; the exit code (`of_cases`), and what was measured. journal: a file that records
    the case, for the process that outlives this one.

    Raises CaseError for a case that cannot be rebuilt here, DeviceError and UsageError as resolving a device does.
    """
    fail_on = (METADATA,) if how.fail_on_metadata else ()
    plan = run_plan(RunOptions(device=how.device or "auto", faults=how.faults, fail_on=fail_on), 0.0, None)
    row = suite.row(case.op)
    item, text = suite.Item(row, case.dtype), notation.case_text(case)
    refuse_giants(row, case)
    print(text)
    try:
        results = replay(item, plan, case, Journal(journal) if journal else None)
    except ParityError:
        raise
    except Exception as e:  # a person may type any arguments
        raise CaseError(f"the case cannot be built: {said(e)}") from e
    records = [record(item, r, text, "", True) for r in results]
    for r, stored in zip(results, records):
        more = [*(body(r) if r.verdict.status in FINDINGS else []), *map(metadata.sentence, r.notes)]
        if how.explain:
            print("\n".join(f"  {line}" for line in explanation.lines(stored, row)))
        else:
            print("  " + "\n    ".join([place(r, case.op, case.dtype, plan.device.name), *more]))
    time.sleep(LINGER)
    return of_cases([r.verdict.status for r in results]), records


def job(given: Given) -> Job:
    """One case, which may end the process; its exit code, and its records as rows of a run file. given: the case, and the
    fields of `How`."""
    asked = dict(given.asked)
    case, how, records = asked.pop("case"), How(**asked), list[Record]()
    with output.patient():
        try:
            if how.setup:
                run_setup(how.setup)
            code, records = run(notation.parse(case), how, given.journal)
            sys.stdout.flush()
        except ParityError as e:
            sys.stdout.flush()  # what was printed before comes first, also where both go to one file
            print(f"parity: {e}", file=sys.stderr)
            code = e.exit_code
    yield {"code": code, "records": [run_file.encode(r) for r in records]}
