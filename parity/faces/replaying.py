"""The process of `parity replay` that checks cases again with all aspects and the oracle, and prints what it does."""

from __future__ import annotations

import functools
import sys
import time

from parity.core import notation
from parity.core.case import Case
from parity.core.child import BEGIN, Given, Job
from parity.core.errors import CaseError, ParityError
from parity.core.results import FINDINGS, Record
from parity.devices.setup import run_setup
from parity.engine import suite
from parity.engine.cases import record
from parity.engine.checking import replay
from parity.engine.inquest import How
from parity.engine.journal import Journal
from parity.engine.options import METADATA, RunOptions
from parity.engine.planning import RunPlan, run_plan
from parity.execution.execute import said
from parity.findings.verdict import of_cases
from parity.generation.room import refuse_giants
from parity.report import explanation, output, words
from parity.report.finding import body, place
from parity.store import run_file

LINGER = 0.3  # seconds to wait after the last case, because kernels may fail later than they are called


@functools.lru_cache(maxsize=1)
def _plan(how: How) -> RunPlan:
    fail_on = (METADATA,) if how.fail_on_metadata else ()
    return run_plan(RunOptions(device=how.device or "auto", faults=how.faults, fail_on=fail_on), 0.0, None)


def run(case: Case, how: How, journal: Journal | None = None, linger: float = 0.0) -> tuple[int, list[Record]]:
    """Print what the case does on the device; the exit code (`of_cases`), and what was measured. journal: records the case, for
    the process that outlives this one; that one prints a case that ends this one, which has printed nothing of it. linger:
    seconds to wait before.

    Raises CaseError for a case that cannot be rebuilt here, DeviceError and UsageError as resolving a device does.
    """
    plan = _plan(how)
    row = suite.row(case.op)
    item, text = suite.Item(row, case.dtype), notation.case_text(case)
    refuse_giants(row, case)
    try:
        results = replay(item, plan, case, journal)
        time.sleep(linger)
    except ParityError:
        raise
    except Exception as e:  # a person may type any arguments
        raise CaseError(f"the case cannot be built: {said(e)}") from e
    finally:
        print(text)
    records = [record(item, r, text, "", True) for r in results]
    for r, stored in zip(results, records):
        more = [*(body(r) if r.verdict.status in FINDINGS else []), *map(words.metadata_sentence, r.notes)]
        if how.explain:
            print("\n".join(f"  {line}" for line in explanation.lines(stored, row)))
        else:
            print("  " + "\n    ".join([place(r, case.op, case.dtype, plan.device.name), *more]))
    return of_cases([r.verdict.status for r in results]), records


def job(given: Given) -> Job:
    """Cases one after another, each of which may end the process; the exit code of each, and its records as rows of a run file.
    given: the cases, and the fields of `How`."""
    asked = dict(given.asked)
    cases, how = asked.pop("cases"), How(**asked)
    given.of = len(cases)
    journal = Journal(given.journal)
    with output.patient():
        for text in cases:
            yield {BEGIN: text}
            code, records = _answer(text, how, journal, text is cases[-1])
            yield {"code": code, "records": [run_file.encode(r) for r in records]}


def _answer(text: str, how: How, journal: Journal, last: bool) -> tuple[int, list[Record]]:
    """Run a case; its exit code, or that of what it raised, and what was measured."""
    records: list[Record] = []
    try:
        if how.setup:
            run_setup(how.setup)
        code, records = run(notation.parse(text), how, journal, LINGER if last else 0.0)
        sys.stdout.flush()
    except ParityError as e:
        sys.stdout.flush()  # what was printed before comes first, also where both go to one file
        print(f"parity: {e}", file=sys.stderr)
        code = e.exit_code
    return code, records
