"""Words and tables that all reports share.

Fresh results that lie otherwise in memory than the CPU's, in words.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from parity import catalog
from parity.core import processes
from parity.core.results import MetadataNote
from parity.engine.options import STRICT, is_strict
from parity.store.rows import Header, ItemRow, is_own

NAMES = 60  # most characters of a list of ops


def plural(n: int, word: str) -> str:
    """`1 op`, `2 ops`, `2 processes`."""
    return f"{n:,} {word}" + ("" if n == 1 else "es" if word.endswith("ss") else "s")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}" if seconds >= 60 else f"{seconds:.1f} s"


def reproduced(case: str, h: Header) -> str:
    """The command that runs a case of a run again, in the environment of that run."""
    return reproduce(case, h.fingerprint.device, h.faults.name, h.setup.name, h.options, called_in(h))


def called_in(h: Header) -> str:
    """How parity is called in the environment of a run. Only what lies on this machine is named: a run file may come from
    anywhere, and a person types what a report says."""
    here = len(h.command) == 2 and Path(h.command[0]).is_file() and Path(h.command[1], "parity", "__main__.py").is_file()
    return shlex.join(h.command) if here else "parity"


def reproduce(case: str, device: str, faults: str = "", setup: str = "", options: str = "", command: str = "") -> str:
    """The command that runs a case again. faults, setup: the files that the run was given; options: those of its header;
    command: how parity is called in its environment, by default as here."""
    parity = command or processes.called()
    if is_own(case):
        tool, dashes, planted = ("pytest", "--parity-", "faults") if "::" in case else (f"{parity} run", "--", "setup")
        given = "".join(
            f" {dashes}{k}={shlex.quote(x)}" for k, x in (("device", device), (planted, faults), ("setup", setup)) if x
        )
        inputs = [word.partition("=")[2] for word in options.split() if word.startswith("--input=")]
        given += "".join(f" {dashes}input={shlex.quote(i)}" for i in inputs)
        where = f"; where it diverges: {parity} locate {shlex.quote(case)}{given}" if tool != "pytest" else ""
        return f"reproduce: {tool} {shlex.quote(case)}{given}{where}"
    named = f" --device {shlex.quote(device)}" + (f" --setup {shlex.quote(faults)}" if faults else "")
    named += (f" --setup {shlex.quote(setup)}" if setup else "") + (f" {STRICT}" if is_strict(options) else "")
    return f"reproduce: {parity} replay {shlex.quote(case)}{named}"


def script_line(script: object, simulated: bool, command: str = "", op: str = "") -> str:
    """How to run the script of a finding. command: as in `reproduce`; op: whose it is, for what it needs."""
    module, file = catalog.registers(op)
    needs = f"parity and {module or Path(file).name}" if file else "torch only"
    python = shlex.split(command or processes.called())[0]
    there = "" if python == "parity" else f"{shlex.quote(python)} "
    return f"or run {there}{script} (needs {needs}{', and a real device to show it on' if simulated else ''})"


def code_options(header: Header, *more: str) -> str:
    """The options that name the files that a run was given again, because parity takes no code that a run file names. more:
    names of such options besides --setup."""
    named = (("setup", "faults"), ("setup", "setup"), *((o, o) for o in more))
    given = ((o, getattr(header, field).name) for o, field in named)
    return "".join(f" --{o} {shlex.quote(name)}" for o, name in given if name)


def listed(names: Iterable[str], room: int = NAMES) -> str:
    """Names in a row, cut if there are too many."""
    text, left = "", list(dict.fromkeys(names))
    while left and len(text) + len(left[0]) < room:
        text += (", " if text else "") + left.pop(0)
    return text + (f" and {len(left)} more" if left and text else "") if text else f"{len(left)} names"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column left-aligned, all others right-aligned."""
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return [
        "  " + "  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(r, widths))).rstrip() for r in rows
    ]


NAMES_ROOM = 200  # most characters of the names of ops, with how their results lie


def metadata_line(items: Sequence[ItemRow], room: int = NAMES_ROOM) -> str:
    """How many ops give other strides than the CPU, and which, with the most frequent way; "" if none does. room: most
    characters of the names."""
    by: dict[str, list[MetadataNote]] = {}
    for i in items:
        by.setdefault(i.op, []).extend(i.metadata)
    said = [f"{op} ({max(notes, key=lambda n: n.count).words})" for op, notes in by.items() if notes]
    verb = "gives" if len(said) == 1 else "give"
    return f"{plural(len(said), 'op')} {verb} other strides than the CPU: {listed(said, room)}" if said else ""


def metadata_title(items: Sequence[ItemRow]) -> str:
    """The title of this part of a summary."""
    return f"metadata: {metadata_line(items)} (no failure; {STRICT} makes findings of them)"


def metadata_lines(items: Sequence[ItemRow]) -> list[str]:
    """Every note of the items, with the first case that showed it."""
    return [f"  {i.op} {i.dtype}: {metadata_sentence(n)}" for i in items for n in i.metadata]


def metadata_sentence(n: MetadataNote) -> str:
    often = f", in {plural(n.count, 'check')}" if n.case else ""
    case = f": {n.case}" if n.case else ""
    return f"{n.tensor} {n.words}{often}: strides {n.device}, the CPU's {n.reference}{case}"
