"""An item's statuses in one sentence, and the script of a finding."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from parity.checks import inputs_unchanged
from parity.core.errors import OutputError
from parity.devices.base import Device
from parity.report.script import standalone
from parity.runs.examine import Finding
from parity.runs.rows import ItemRow


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
    script = standalone(f.case, f.result.aspect, device.name, title, m is not None and m.problem == inputs_unchanged.PROBLEM)
    if script is None:
        return None
    words = (f.item.row.name, f.item.dtype, f.result.aspect, f.result.verdict.tensor)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(w for w in words if w)).strip("-")
    path = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another folder with --findings") from None
    return path
