"""A finding as text, whose last line is the next command, and as a script; an item's statuses in one sentence."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from parity.checks import inputs_unchanged, metadata
from parity.checks.check import STATE, UNCOMPARED, Result
from parity.core import notation, outputs
from parity.core.errors import OutputError
from parity.core.extensions import NAME
from parity.core.results import Aspect, Status
from parity.devices.base import Device
from parity.engine.findings import Finding
from parity.report.script import standalone
from parity.report.words import reproduce, script_line
from parity.store.rows import Death, ItemRow

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


def statuses_text(item: ItemRow, statuses: Collection[str]) -> str:
    """Which of these statuses the item has, in words; empty if none."""
    parts = [f"{aspect}: {n} {s}" for aspect, counts in item.counts.items() for s, n in counts.items() if s in statuses]
    reason = next(iter(item.void), "") if "void" in statuses else ""
    return f"{item.op} {item.dtype}: " + ", ".join(parts) + (f" ({reason})" if reason else "") if parts or reason else ""


def write_script(f: Finding, device: Device, folder: Path) -> Path | None:
    """Write the script that reproduces a finding; returns its path, or None if it cannot be written in torch alone.

    Raises OutputError if the folder cannot be written.
    """
    title = f"{f.item.row.name} {f.item.dtype} on {device.name}: {f.result.verdict.status} in {f.result.aspect}"
    m = f.result.verdict.measure
    problem = m.problem if m is not None else ""
    if problem in (STATE, UNCOMPARED):
        return None
    kept, strides = problem == inputs_unchanged.PROBLEM, problem == metadata.PROBLEM
    script = standalone(f.case, f.result.aspect, device.name, title, kept, strides)
    if script is None:
        return None
    words = (f.item.row.name, f.item.dtype, f.result.aspect, f.result.verdict.tensor)
    return _write(script, words, folder)


def write_script_of_death(d: Death, device: str, folder: Path) -> Path | None:
    """Write the script that dies as a shrunk death did; None if it cannot be written in torch alone. Raises OutputError."""
    aspect = d.shrunk_aspect or Aspect.FORWARD
    title = f"{d.op} {d.dtype} on {device}: {d.how} ({d.signal}) in {aspect}; the process that runs this ends or hangs there"
    script = standalone(notation.parse(d.shrunk), aspect, device, title)
    return None if script is None else _write(script, (d.op, d.dtype, aspect, d.how), folder)


def _write(script: str, words: Sequence[str], folder: Path) -> Path:
    """Write a script in this folder, which is made if it is not there; its path. words: its name; a script of that name, which
    another run may be writing just now, is replaced.

    Raises OutputError.
    """
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(w for w in words if w)).strip("-")
    path = folder / f"{name}.py"
    outputs.write(path, script, "name another folder with --findings")
    return path
