"""A case at its bench, for the tests of rules."""

from __future__ import annotations

from parity import catalog, tolerance
from parity.core.notation import parse
from parity.execution import execute
from parity.execution.inputs import build
from parity.judging.bench import Bench
from parity.oracle.oracle import CaseOracle


def bench_of(text: str) -> Bench:
    """The bench of a case, given as text, with the default tables."""
    case = parse(text)
    row, inputs = catalog.row(case.op), build(case)
    oracle = CaseOracle(execute.program(row), case, inputs, None)
    return Bench(row, tolerance.load("cpu"), oracle, None, True, whole=True)
