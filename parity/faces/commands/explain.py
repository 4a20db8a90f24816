"""`parity explain`: which tolerance applies, and why a case is judged as it is."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from parity import tolerance
from parity.catalog import lookup
from parity.catalog.row import Row
from parity.core import project
from parity.core.devices import USUAL
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import UsageError, near
from parity.engine import suite
from parity.engine.doctor import examined
from parity.engine.inquest import How
from parity.faces.commands import replay
from parity.faces.commands.groups import add_code, add_device
from parity.report.answers import Tolerance, ToleranceRow
from parity.store import run_file

HELP = "which tolerance applies, and why a case is judged as it is"
SETTINGS = ("setup", "faults")
ABOUT = """\
Which tolerance applies:            parity explain softmax float16 --device mps
Why a case is judged as it is:      parity explain 'softmax(float16[1, 3], dim=-1)' --device mps
Why a run judged as it did:         parity explain run.jsonl 'softmax float16'"""


def add(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    to.add_argument("subject", metavar="OP|CASE|RUN", help="an op, a case id in quotes, or a run file")
    how = "the op's dtype; or which of the run's records, by a part of their text"
    to.add_argument("detail", nargs="?", default="", help=how)
    add_device(to, by_default="by default auto for a case, cpu for an op")
    add_code(to)


def run(o: argparse.Namespace) -> int:
    """Explain a case, records of a run, or the tolerance of an op; the exit code."""
    if "(" in o.subject:
        return replay.replay(o, o.subject, How(o.device or "", o.faults, o.setup, explain=True))
    path = Path(o.subject)
    if path.is_file() or path.suffix == ".jsonl" or any(s and s in o.subject for s in (os.sep, os.altsep)):
        o.answer = replay.explain_run(path, o.detail)
        return 0
    if o.setup:
        from parity.devices.setup import run_setup

        run_setup(o.setup)  # it may add the op, or a table
    row = _row(o.subject)
    _check_dtype(row, o.detail)
    o.answer = _tolerance(row, o.detail, _device(o.device or "cpu"))
    return 0


def _row(subject: str) -> Row:
    """The op of this name. Raises UsageError, and RunFileError for a folder."""
    try:
        rows: Sequence[Row] = list({i.row.name: i.row for i in suite.select([subject], source="all")}.values())
    except UsageError:
        if Path(subject).exists():  # a folder
            run_file.read(Path(subject))
        raise
    wanted = lookup.normalised(lookup.last_word(subject))  # the op itself before its other forms, which have names of their own
    exact = [r for r in rows if subject in lookup.names_of(r)]
    rows = [*exact, *(r for r in rows if wanted in map(lookup.normalised, lookup.names_of(r)))][:1] or rows
    if len(rows) > 1:
        names = ", ".join(r.name for r in rows[:5])
        raise UsageError(f"'{subject}' matches {len(rows)} ops ({names} ...); explain takes one: name it")
    return rows[0]


def _check_dtype(row: Row, dtype: str) -> None:
    takes = ", ".join(row.dtypes)
    if not dtype:
        raise UsageError(f"explain needs the dtype as well: parity explain {row.name} DTYPE, one of {takes}")
    if dtype not in FACTS:
        raise UsageError(f"unknown dtype '{dtype}'; {near(dtype, FACTS) or 'allowed: ' + ', '.join(DEFAULT)}")
    if dtype not in row.dtypes:
        raise UsageError(f"parity does not run {row.name} in {dtype}; allowed: {takes}")


def _device(name: str) -> str:
    """A device with a tolerance of its own or the default one; it need not be there. Raises UsageError."""
    known = {*USUAL, *(p.stem for p in project.resource_folder("tolerances").glob("*.toml"))} - {"default"}
    if name not in known and (name.partition(":")[0] not in known or not name.partition(":")[2].isdigit()):
        raise UsageError(f"no device '{name}'; {near(name, known)}")
    return name if name != "auto" else str(examined("auto")["device"])


def _tolerance(row: Row, dtype: str, device: str) -> Tolerance:
    from parity.judging.rules import rule_of_pass  # it loads torch

    tables = tolerance.load(device, known_ops={r.name for r in suite.rows("all")})
    print(f"{row.name} ({row.rule}) {dtype} on {device}")
    passes: dict[str, tuple[ToleranceRow, ...]] = {}
    for pass_ in ("forward", "backward") if dtype in row.grad else ("forward",):
        print(f"\n{pass_}")
        if rule_of_pass(row, pass_).exact:
            print("  exact: results are compared for equality, no tolerance applies")
            passes[pass_] = ()
            continue
        some = [*tables.explain(row.name, row.rule, dtype, pass_, row.judged.ulp)]
        passes[pass_] = tuple(ToleranceRow(e.verdict, e.place, str(e.row), e.why) for e in some)
        for e in some:
            print(f"  {e.verdict:<9} {e.place}: {e.row}" + (f"\n            {e.why}" if e.why else ""))
    return Tolerance(row.name, row.rule, dtype, device, passes)
