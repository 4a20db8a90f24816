"""`parity replay`: a case again, all its aspects, nothing left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from parity import notation, suite, tolerance
from parity.devices import load_faults, resolve
from parity.errors import CaseError, ParityError
from parity.examine import Plan, replay
from parity.execute import said
from parity.report.finding import body, place
from parity.vocabulary import COMPARED, FINDINGS, Case


def run(cases: Sequence[Case], device: str, faults: str | None) -> int:
    """Print what each case does on the device; 1 if any is a finding, 3 if nothing was compared, else 0.

    Raises CaseError for a case that cannot be rebuilt here, DeviceError and UsageError as resolving a device does.
    """
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    there = resolve(device, load_faults(faults) if faults else ())
    tables = tolerance.load(there.name, known_ops={r.name for r in suite.rows("all")})
    found = compared = 0
    for case in cases:
        row = suite.row(case.op)
        plan = Plan(there, resolve("cpu"), tables, suite.profile("quick"))
        print(notation.case_text(case))
        try:
            results = replay(suite.Item(row, case.dtype), plan, case)
        except (TypeError, AttributeError, IndexError, ValueError, RuntimeError, AssertionError) as e:
            raise CaseError(f"the case cannot be built: {said(e)}") from e
        for r in results:
            found += r.verdict.status in FINDINGS
            compared += r.verdict.status in COMPARED
            worst = body(r) if r.verdict.status in FINDINGS else []
            print("  " + "\n    ".join([place(r, case.op, case.dtype, there.name), *worst]))
    if not compared:
        print("nothing was compared")
        return 1 if found else 3
    return 1 if found else 0


def main(argv: Sequence[str]) -> int:
    """`python -m parity.report.replay CASE DEVICE [FAULTS]`: the process that `parity replay` can lose."""
    try:
        return run([notation.parse(argv[0])], argv[1], argv[2] if len(argv) > 2 else None)
    except ParityError as e:
        print(f"parity: {e}", file=sys.stderr)
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
