"""`parity replay`: check a case again with all aspects and the oracle."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from parity.core import notation
from parity.core.case import Case
from parity.core.child import Given, Job
from parity.core.errors import CaseError, ParityError
from parity.core.results import COMPARED, FINDINGS
from parity.devices.setup import run_setup
from parity.engine import suite
from parity.engine.checking import replay
from parity.engine.journal import Journal
from parity.engine.options import METADATA, RunOptions
from parity.engine.planning import run_plan
from parity.engine.tally import record
from parity.execution.execute import said
from parity.generation.room import refuse_giants
from parity.report import explanation, metadata, output
from parity.report.finding import body, place

LINGER = 0.3  # seconds to wait after the last case, because kernels may fail later than they are called


def run(
    cases: Sequence[Case],
    device: str,
    faults: str | None,
    explain: bool = False,
    journal: Path | None = None,
    fail_on_metadata: bool = False,
) -> int:
    """Print what each case does on the device; returns 1 for a finding, 3 if nothing was compared, else 0.

    explain: also print why each result was judged so. journal: a file that records the current case, for the process that
    outlives this one. fail_on_metadata: as in `RunOptions`.

    Raises CaseError for a case that cannot be rebuilt here, DeviceError and UsageError as resolving a device does.
    """
    plan = run_plan(RunOptions(device=device, faults=faults, fail_on=(METADATA,) if fail_on_metadata else ()), 0.0, None)
    findings = compared = 0
    watch = Journal(journal) if journal else None
    for case in cases:
        row = suite.row(case.op)
        item, text = suite.Item(row, case.dtype), notation.case_text(case)
        refuse_giants(row, case)
        print(text)
        try:
            results = replay(item, plan, case, watch)
        except ParityError:
            raise
        except Exception as e:  # a person may type any arguments
            raise CaseError(f"the case cannot be built: {said(e)}") from e
        for r in results:
            findings += r.verdict.status in FINDINGS
            compared += r.verdict.status in COMPARED
            more = [*(body(r) if r.verdict.status in FINDINGS else []), *map(metadata.sentence, r.notes)]
            if explain:
                print("\n".join(f"  {line}" for line in explanation.lines(record(item, r, text, "", True), row)))
            else:
                print("  " + "\n    ".join([place(r, case.op, case.dtype, plan.device.name), *more]))
    time.sleep(LINGER)
    if not compared:
        return 1 if findings else 3
    return 1 if findings else 0


def job(given: Given) -> Job:
    """One case, which may end the process; its exit code. given: case, device, faults, setup, explain, fail_on_metadata."""
    a = given.asked
    with output.patient():
        try:
            if a["setup"]:
                run_setup(a["setup"])
            case, device = notation.parse(a["case"]), a["device"] or "auto"
            code = run([case], device, a["faults"], a["explain"], given.journal, a["fail_on_metadata"])
            sys.stdout.flush()
        except ParityError as e:
            print(f"parity: {e}", file=sys.stderr)
            code = e.exit_code
    yield {"code": code}
