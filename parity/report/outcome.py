"""An item's statuses in one sentence, and the script of a finding."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from parity.checks import inputs_unchanged, metadata
from parity.checks.check import STATE, UNCOMPARED
from parity.core import notation, outputs
from parity.core.results import Aspect
from parity.devices.base import Device
from parity.engine.findings import Finding
from parity.report.script import standalone
from parity.store.rows import Death, ItemRow


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
