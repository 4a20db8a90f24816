"""A finding as text. The last line is the next command."""

from __future__ import annotations

import re
from pathlib import Path

from parity.checks.check import Result
from parity.core import notation
from parity.core.errors import OutputError
from parity.core.extensions import NAME
from parity.core.results import Aspect, Status
from parity.engine.findings import Finding
from parity.report.words import reproduce, script_line

# A line that begins as `place` does.
ASPECTS = "|".join((*(re.escape(str(a)) for a in Aspect), NAME.pattern))
PLACE = re.compile(rf"^  .+? on \S+: ({'|'.join(Status)})(?: in .+?)?, ({ASPECTS})(?=[,:]|$)", re.M)


def place(result: Result, op: str, dtype: str, device: str) -> str:
    """The first line: op, dtype, device, status, tensor, error ratio, and the tolerance row that judged."""
    v = result.verdict
    tensor = f" in {v.tensor}" if v.tensor else ""
    m = v.measure
    measured = m is not None and m.share is not None and m.share not in (0.0, float("inf"))
    how = f", {m.share:.3g} times the budget" if m is not None and measured else (f": {v.reason}" if v.reason else "")
    origin = f" ({v.tolerance.origin})" if v.tolerance is not None and measured else ""
    return f"{op} {dtype} on {device}: {v.status}{tensor}, {result.aspect}{how}{origin}"


def said(text: str) -> str:
    """The statuses in what `parity replay` printed of a case: "forward wrong, backward agree"; "crash" or "hang" if its process
    ended so."""
    ended = re.search(r"^  (crash|hang): ", text, re.M)
    return ended[1] if ended else ", ".join(dict.fromkeys(f"{aspect} {status}" for status, aspect in PLACE.findall(text)))


def body(result: Result) -> list[str]:
    """The lines about the worst element."""
    v, m = result.verdict, result.verdict.measure
    if m is None or not m.device:
        return []
    worst = f"worst at {list(m.index)}: device {m.device}"
    worst += f", reference {m.reference}" if m.reference else ""
    worst += f", truth {m.truth}" if m.truth and m.truth != m.reference else ""
    if m.reference_share is not None and m.share is not None and m.share != float("inf"):
        worst += f" (reference's own share {m.reference_share:.2g})"
    lines = [v.reason, worst] if m.problem in ("shared", "lean") else [worst]
    counted = f"{m.mismatched} of {m.total} elements are outside" if m.mismatched > 1 else ""
    if m.share is not None and m.share not in (0.0, float("inf")) and v.reason and v.status is not Status.DRIFT:
        counted = "; ".join(x for x in (v.reason.split(" times the budget: ")[-1], counted) if x)
    return [*lines, counted] if counted else lines


def text(
    f: Finding, device: str, script: Path | OutputError | None, faults: str = "", setup: str = "", options: str = ""
) -> str:
    """The whole finding. script: the path of the script that shows it, the error that prevented writing it, or None if it needs
    more than torch; faults, setup: the files that the run was given; options: as in the run's header."""
    op, dtype = f.item.row.name, f.item.dtype
    case = notation.case_text(f.case)
    lines = [place(f.result, op, dtype, device), *body(f.result), f"smallest case: {case}"]
    if f.count > 1:
        lines[-1] += f"   (of {f.count} cases that show it)"
    lines.append(reproduce(case, device, faults, setup, options))
    if isinstance(script, OutputError):
        lines.append(f"no script: {script}")
    elif script is not None:
        lines.append(script_line(script, device.startswith("sim"), op=op))
    return "\n  ".join(lines)
