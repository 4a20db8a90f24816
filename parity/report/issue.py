"""A cause as a bug report in Markdown, in the order of PyTorch's issue template, with what its script printed here."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from parity import catalog
from parity.core import notation
from parity.core.errors import CaseError
from parity.core.results import Fingerprint, Record, Status
from parity.findings.causes import Gathered
from parity.judging.rules import rule_of
from parity.report.causes import amount, code, inert, sentence_of
from parity.report.short_script import DIES, DRAWN, is_long, minimal
from parity.report.words import listed, reproduced
from parity.store.rows import Death, Header

SECONDS = 120
LONGEST = 6000  # most characters of an output
TRIED = 3  # findings of a cause whose scripts are run until one shows the difference
SAME = "the same on both sides, so the difference is elsewhere (in memory outside the result) or was not there:"
ONCE = "It was seen once, and not reproduced: neither in fresh processes nor after the cases before it."
LATER = "It comes only after other cases in the same process: those in `.history(...)`, which `parity replay` runs first."


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script that was run. code: its exit code, None if it did not end within `SECONDS`; out, err: what it printed."""

    code: int | None
    out: str = ""
    err: str = ""


RunScript: TypeAlias = Callable[[str, str], ScriptRun]  # runs the text of a script for a device, at most `SECONDS` long


def render(c: Gathered, header: Header, run: RunScript) -> str:
    """The whole report. The script runs on the run's device, or on the CPU alone if that is simulated; the text says which."""
    f = header.fingerprint
    parts = ["### Describe the bug", f"{inert(_capital(sentence_of(c)))}. {inert(_where(c))}"]
    shown: list[str] = []
    for r in c.records[:TRIED]:
        if shown := _shown(r, header, run):
            break
    parts += shown or (_shown(c.records[0], header, run, anyhow=True) if c.records else _of_death(c.deaths[0], f))
    parts += [f"Least case, in parity's notation: {code(c.case)}"]
    parts += [f"Workaround: {inert(c.workaround)}."] if c.workaround else []
    if c.records and not any(r.shows_alone for r in c.records):
        parts.append(ONCE if c.records[0].status == Status.NOT_REPRODUCED else LATER)
    return "\n\n".join([*parts, "### Versions", _versions(f)]) + "\n"


def _capital(text: str) -> str:
    return text if "::" in text.split()[0] or "." in text.split()[0] else text[:1].upper() + text[1:]


def _where(c: Gathered) -> str:
    return f"It shows in {amount(c, ' of findings', ' of the process')}: {listed(c.ops, 300)}; dtypes {listed(c.dtypes, 120)}."


def _of_death(d: Death, f: Fingerprint) -> list[str]:
    """A script that is not run here, and how the process ended."""
    aspect, text, case = d.shrunk_aspect or d.aspect or "forward", "", None
    with contextlib.suppress(CaseError):
        case = notation.parse(d.least)
    for shown, drawn in itertools.product((aspect, "forward"), (False, True)):  # one may die late
        if case is not None and (not text or (is_long(text) and shown == aspect)):
            text = minimal(case, shown, f.device, DIES, tried=drawn) or text
    parts = ["There are no few lines of torch for it: it takes many, or ends the process that would write them, too."]
    if text:
        other = "; its numbers are drawn anew, and those of the case may matter" if re.search(DRAWN, text) else ""
        parts = [_fenced(text, "python"), f"It was not run for this report, because it ends the process{other}."]
    return [*parts, f"How it ended: {inert(d.how)}, {inert(d.signal)}, at stage {inert(d.stage or 'unknown')}. {inert(d.why)}"]


def _shown(r: Record, header: Header, run: RunScript, anyhow: bool = False) -> list[str]:
    """Script, output, and the worst element. Empty if no script of a few lines shows the difference here, unless anyhow."""
    f, m = header.fingerprint, r.measures[0] if r.measures else None
    made: dict[str, tuple[str, str]] = {}
    for tried in (True, False):  # a shorter script that does not show it gives way to the exact one
        with contextlib.suppress(CaseError):
            case = notation.parse(r.shrunk or r.case)
            if tried and f.simulated and (case.history or case.after):  # a script that runs on the CPU alone shows nothing
                continue
            text = minimal(case, r.aspect, f.device, m.problem if m is not None else "", tried=tried)
            if text is not None and text not in made:
                made[text] = _run(text, header, run)
                if not made[text][0].endswith(SAME):
                    break
    if not made:
        if not anyhow:
            return []
        shows = r.script if r.script and r.shows_alone else reproduced(r.shrunk or r.case, header).partition(": ")[2]
        parts = [f"{why_not(r)}; `{shows}` shows it."]
    else:
        text, (how, output) = [*made.items()][-1]
        if how.endswith(SAME) and not anyhow:
            return []
        parts = [_fenced(text, "python"), f"{how}\n\n{_fenced(output, 'text')}"]
    if m is not None and m.device:
        worst = f"device {m.device}, CPU {m.reference}" + (f", float64 {m.truth}" if m.truth else "")
        parts.append(f"When it was found ({r.aspect}), the worst element was {list(m.index)}: {inert(worst)}.")
    elif r.reason:
        parts.append(f"When it was found ({r.aspect}): {inert(r.reason)}")
    return parts


def why_not(r: Record) -> str:
    """Why a finding has no script of a few lines."""
    if r.op in catalog.ROWS and not rule_of(catalog.ROWS[r.op]).has_values:
        return "Random results have no few lines of torch that show what is wrong with their law"
    if not r.shows_alone:
        return "It does not show in a process of its own"
    return "The case takes more than a few lines of torch"


def _fenced(text: str, language: str) -> str:
    """A block of code that no backticks in it can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _run(text: str, header: Header, run: RunScript) -> tuple[str, str]:
    """(a sentence on where it was run, what it printed)."""
    f = header.fingerprint
    here = "Run here" if torch.__version__ == f.torch else f"Run here (torch {torch.__version__}, not the run's {f.torch})"
    if f.simulated:
        text = re.sub(r"^for device in \(.*?\):", 'for device in ("cpu",):', text, flags=re.MULTILINE)
    device = "cpu" if f.simulated else f.device
    done = run(text, device)
    if done.code is None:
        return f"{here} with `{device}`, it did not end within {SECONDS} s.", ""
    output = (done.out + (done.err if done.code else ""))[-LONGEST:]
    if done.code and (f.simulated or run(text, "cpu").code):
        return f"{here}, it raises {SAME}", output
    if f.simulated:
        return f"{here} on the CPU alone, because the finding is a simulated device's:", output
    cpu, _, other = done.out.partition(f"\n{device} ")
    if done.code == 0 and cpu.removeprefix("cpu ").split() == other.replace(f", device='{device}'", "").split():
        return f"{here}, it prints {SAME}", output
    ended = "" if done.code == 0 else f" It ended with {done.code}."
    return f"{here}, it prints:{ended}", output


def _versions(f: Fingerprint) -> str:
    rows = [
        ("PyTorch version", f"{f.torch} ({f.torch_git})" if f.torch_git else f.torch),
        ("OS", f.os),
        ("Python version", f.python),
        ("Machine", f.machine),
        ("Device", f"{f.device} ({f.device_name})" if f.device_name else f.device),
        ("Driver", f.driver),
        *((k, v) for k, v in f.facts if k not in ("chip",)),
        ("parity", f.parity),
    ]
    return _fenced("\n".join(f"{k}: {v}" for k, v in rows if v), "text")
