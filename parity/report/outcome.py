"""What a summary of an item says in one sentence, and the script of a finding."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from parity.checking import operands
from parity.devices.base import Device
from parity.errors import OutputError
from parity.examine import Finding
from parity.report.script import standalone
from parity.store import Item


def told(item: Item, statuses: Collection[str]) -> str:
    """Which of these statuses the item has, in words; empty where none."""
    parts = [f"{aspect}: {n} {s}" for aspect, counts in item.counts.items() for s, n in counts.items() if s in statuses]
    reason = next(iter(item.void), "") if "void" in statuses else ""
    return f"{item.op} {item.dtype}: " + ", ".join(parts) + (f" ({reason})" if reason else "") if parts or reason else ""


def write_script(f: Finding, device: Device, folder: Path) -> Path | None:
    """Write the script that reproduces a finding; its path, or None where it cannot be told in torch alone.

    Raises OutputError where the folder cannot be written.
    """
    title = f"{f.item.row.name} {f.item.dtype} on {device.name}: {f.result.verdict.status} in {f.result.aspect}"
    m = f.result.verdict.measure
    made = standalone(f.case, f.result.aspect, device.name, title, m is not None and m.problem == operands.PROBLEM)
    if made is None:
        return None
    words = (f.item.row.name, f.item.dtype, f.result.aspect, f.result.verdict.tensor)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(w for w in words if w)).strip("-")
    path = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(made, encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another folder with --findings") from None
    return path
