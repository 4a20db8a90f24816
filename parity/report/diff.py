"""The changes between two runs as text for a screen, a pull request, a program, a CI server or a browser.

Every text says first what is new in the fingerprint, then what was compared, then the groups of changes from the worst on.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from xml.etree import ElementTree

from jinja2 import Environment

from parity.core.machine import IMAGE
from parity.core.status import Conclusion
from parity.core.untrusted import printable
from parity.history.cells import device_words, two_devices
from parity.history.change import MEANING, Change, Group, ReportedChange
from parity.history.diff import Diff
from parity.history.drift import ALARM, FACTOR, GENERAL, Cell, Pace, Shift
from parity.report import answers, run_answers
from parity.report.causes import COMMENT, code, inert, sentence
from parity.report.output import columns, fitted, last_line
from parity.report.words import called_in, listed, plural
from parity.store.rows import Header, is_own

SCREEN = 30  # most lines without -v
PARTS = (12, 8, 6, 4, 3, 2, 1, 0)  # entries of a group, the first number with which all fits
WARNINGS = 6  # lines of warnings without -v
CHANGED = 6  # fields in the first line without -v
VALUE = 48  # most characters of a value in the first line
REASON = 110  # most characters of a message
FIRST = ("torch", "os", "device_name", "device", *IMAGE, "parity", "known", "setup", "faults")  # of the fields that changed
CHIP = "device_name"
NAMES = {CHIP: "chip", "torch_git": "torch's commit", "ImageOS": "runner image", "ImageVersion": "version of the runner image"}
MOVED = ("torch", "os", "driver", CHIP, *IMAGE)  # what a verdict names
# What a verdict counts even if nothing of it fails.
COUNTED = (
    Group.UNMADE, Group.INCOMPARABLE, Group.REMOVED, Group.WORSE, Group.SLOWER, Group.LARGER, Group.FIXED, Group.SUPPORTED,
)  # fmt: skip
BETTER = frozenset({Group.ADDED, Group.SUPPORTED, Group.BETTER, Group.FASTER, Group.SMALLER, Group.FIXED})
NOTHING = "nothing to do"
TEMPLATE = Path(__file__).with_name("diff.html")


# ----------------------------------------------------------------------------------------------------- parts of all texts


def fingerprint_line(d: Diff, room: int = CHANGED) -> str:
    """What differs in the fingerprint, or what both runs have in common. room: most fields."""
    if not d.changed:
        f = d.after.fingerprint
        where = f"{f.device} ({f.device_name})" if f.device_name and f.device_name != f.device else f.device
        simulated = ", SIMULATED: this says nothing about any hardware" if f.simulated else ""
        return f"same fingerprint: {where}, torch {f.torch}, {f.os}, parity {f.parity}{simulated}"
    order = sorted(d.changed, key=lambda c: FIRST.index(c[0]) if c[0] in FIRST else len(FIRST))
    shown = [f"{NAMES.get(n, n)} {value(a)} -> {value(b)}" for n, a, b in order[:room]]
    more = [f"{len(order) - room} more"] if len(order) > room else []
    return "changed: " + "; ".join((*shown, *more))


def value(text: str) -> str:
    return text if len(text) <= VALUE else f"... {text[4 - VALUE :]}"


def compared_line(d: Diff) -> str:
    """What was compared with what."""
    before, after = d.checks
    alone = f"; {d.only_before:,} and {d.only_after:,} records have no partner" if d.only_before or d.only_after else ""
    return (
        f"compared: {plural(d.paired, 'record')} and {plural(d.drift.pairs, 'error')} of equal cases, and by count "
        f"{plural(d.cells, 'cell')} of op x dtype x aspect ({before:,} checks before, {after:,} after){alone}"
    )


def drift_line(d: Diff) -> str:
    """How many series of errors were tested, and how often equal devices would be reported to differ."""
    if not d.drift.pairs:
        return "drift: no case with equal inputs is in both runs"
    units = "; parity changed, and its budgets may have" if any(n == "parity" for n, _, _ in d.changed) else ""
    return (
        f"drift: errors differ in {d.drift.series:,} cells, ops and causes, {d.drift.tests:,} tested (paired sign test, "
        f"Holm); at most {ALARM:.0%} of diffs of equal devices report any{units}"
    )


def pace_line(d: Diff) -> str:
    """How many times were compared, and what all did."""
    p = d.paces
    if p.why:
        return f"speed: not compared, {p.why}"
    g = p.general
    general = ""
    if max(g, 1 / g) >= GENERAL:
        general = (
            f"; all are {max(g, 1 / g):.2g} times {'slower' if g > 1 else 'faster'}, as by a machine with other work to do"
        )
    limit = f"reported from {FACTOR:g} times on, in three quarters of equal cases"
    return f"speed: {p.series:,} times of op x dtype x pass compared, {limit}{general}"


def headline(d: Diff, fail_on: Collection[Group]) -> str:
    """How many of what changed, in one line."""
    counts = [f"{g.words} {len(entries)}" for g, entries in d.groups.items()]
    if d.incomplete:
        counts.append("a run is incomplete")
    if d.doubts:
        counts.append("INCONCLUSIVE")
    if not counts:
        partly = bool(d.warnings) and bool(d.only_before or d.only_after)
        return "nothing changed in what is in both runs" if partly else "nothing changed"
    failing = d.fails(fail_on)
    words = ", ".join(g.words for g in failing)
    why = "incomplete" if d.incomplete else "inconclusive" if d.doubts else ""
    return f"{', '.join(counts)}; {'fails for ' + words if failing else f'fails: {why}' if why else 'no failure'}"


def verdict_line(d: Diff, fail_on: Collection[Group], stored: str = "") -> str:
    """The last line. stored: where the diff was written."""
    word, (before, after) = d.conclusion(fail_on), d.checks
    changed = ", ".join(f"{g.words} {len(entries)}" for g, entries in d.groups.items())
    said = headline(d, fail_on) if word is Conclusion.FAIL else changed
    said = said or "nothing changed"
    if word is Conclusion.INCONCLUSIVE:
        said += f", but {'a run is incomplete' if d.incomplete else 'the runs do not compare well'}: see above"
    following = next_line(d).removeprefix("next: ")
    counts = f" ({before:,} checks before, {after:,} after)"
    return last_line(word, said + counts, stored=stored, following="" if following == NOTHING else following)


def next_line(d: Diff) -> str:
    """The next command: the worst of what changed, in the environment of the later run."""
    worst = next((t for g in d.groups if g not in BETTER for t in d.groups[g]), None)
    if worst is not None:
        case = worst.case or next((op for op in worst.ops if is_own(op)), "")
        if "::" in case and is_own(case):
            return f"next: pytest {shlex.quote(case)} --parity-device={shlex.quote(d.after.fingerprint.device)}"
        what = shlex.quote(case) if case else f"{shlex.quote(worst.ops[0])} --dtype {worst.dtypes[0]}"
        return f"next: {called_in(d.after)} {'replay' if case and not is_own(case) else 'run'} {what}{d.options}"
    partly = bool(d.warnings) and bool(d.only_before or d.only_after)
    return f"next: {'run both whole, with the same selection, profile and seed' if partly else NOTHING}"


def about(t: ReportedChange) -> str:
    """What changed, in one line without its case."""
    where = f"{listed(t.ops)} ({listed(t.dtypes, 40)})"
    passes = f", {listed(t.aspects, 60)}" if t.aspects else ""
    if t.shifts and not t.changes:
        s = max(t.shifts, key=lambda s: abs(s.median))
        subject = f"[{t.cause.id}] {sentence(t.cause)}; " if t.cause is not None else ""
        return f"{subject}{where}{passes}: {shift_words(s)}"
    if t.paces:
        p = max(t.paces, key=lambda p: max(p.factor, 1 / p.factor))
        return f"{where}{passes}: {pace_words(p)}"
    moves = listed(dict.fromkeys(f"{c.before} -> {c.after}" for c in t.changes), 60)
    if t.cause is not None:
        inside = f"; errors {'grew' if t.shifts[0].is_worse else 'shrank'} inside the tolerance, too" if t.shifts else ""
        cells = plural(len(t.cells), "cell")
        known = "; known to the second run" if t.known else ""
        return f"{t.weight} [{t.cause.id}] {sentence(t.cause)}; {cells} in {where}{passes}: {moves}{inside}{known}"
    reason = f" ({shorten(t.reason, REASON, placeholder=' ...')})" if t.reason else ""
    return f"{where}{passes}{': ' + moves if t.changes else ''}{reason}"


def verdict(d: Diff, fail_on: Collection[Group] = ()) -> str:
    """What to do about an upgrade, in one sentence."""
    two = two_devices(d.before, d.after)
    moved = [f"{NAMES.get(n, n)} {value(a)} -> {value(b)}" for n, a, b in d.changed if n in MOVED and not (two and n == CHIP)]
    devices = [f"two devices, {device_words(d.before)} and {device_words(d.after)}"] if two else []
    what = ", ".join((*devices, *moved)) or "the second environment"
    failing = d.fails(fail_on)
    rest = ", ".join(f"{len(d.groups[g])} {g.words}" for g in COUNTED if g in d.groups and g not in failing)
    also = f"; {rest}" if rest else ""
    if failing:
        count = " and ".join(f"{len(d.groups[g])} {g.words}" for g in failing)
        advice = "they differ" if two else "look before you upgrade"
        return f"{what}: {advice}, {count}{also}; the worst: {about(d.groups[failing[0]][0])}"
    if d.incomplete:
        return f"{what}: no verdict, because a run is incomplete: {d.incomplete[0]}"
    if d.doubts:
        return f"{what}: INCONCLUSIVE, {'; '.join(d.doubts)}{also}"
    return f"{what}: nothing that was compared {'is' if two else 'got'} worse ({d.checks[1]:,} checks){also}"


def shift_words(s: Shift) -> str:
    """By how much errors moved, and in how many cases."""
    many, few = (s.worse, s.better) if s.is_worse else (s.better, s.worse)
    word = "larger" if s.is_worse else "smaller"
    what, high, p = ("tensors", "most", "") if is_own(s.cells[0][0]) else ("cases", "the 99th percentile", f" (p = {s.p:.1g})")
    return (
        f"errors {_times(s.median)} {word} in the middle, {_times(s.high)} at {high}; {many} of {s.pairs} {what} "
        f"{'worse' if s.is_worse else 'better'}, {few} {'better' if s.is_worse else 'worse'}{p}"
    )


def _times(power: float) -> str:
    return f"{2.0 ** abs(power):.2g} times"


def pace_words(p: Pace) -> str:
    """How much slower or faster."""
    factor, word = (p.factor, "slower") if p.factor > 1.0 else (1.0 / p.factor, "faster")
    moved = f"{_time(p.before)} -> {_time(p.after)}, noise {p.noise:.2g} times"
    return f"{factor:.2g} times {word} in {plural(p.pairs, 'case')} ({moved})"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


# --------------------------------------------------------------------------------------------------------------- terminal


def terminal(d: Diff, fail_on: Collection[Group] = (), verbose: bool = False) -> str:
    """At most `SCREEN` lines, or everything; the last one is the verdict."""
    warnings = [f"warning: {w}" for w in d.warnings]
    if not verbose and len(warnings) > WARNINGS:
        warnings = [*warnings[: WARNINGS - 1], f"warning: {len(warnings) - WARNINGS + 1} more (-v)"]
    doubts = [f"INCONCLUSIVE: {x}" for x in d.doubts]
    head = [fingerprint_line(d, 1000 if verbose else CHANGED), compared_line(d), *doubts, *warnings]
    notes = [drift_line(d), pace_line(d)]
    tail = [verdict_line(d, fail_on)]
    if d.incomplete:
        how = "run it again, take what a damaged file holds with --accept partial, or name the ops to compare"
        tail.insert(0, f"incomplete: {'; '.join(d.incomplete)}; {how}")
    width = columns()

    def high(lines: Sequence[str]) -> int:
        return sum(len(fitted(line, width)) if width else 1 for line in lines)

    room = SCREEN - high([*head, *notes, *tail])
    parts = next((p for p in (_groups(d, n) for n in PARTS) if high(p) <= room), [])
    body = _groups(d, 1 << 30, members=True) if verbose else parts
    return "\n".join([*head, *body, *notes, *tail]) + "\n"


def _groups(d: Diff, most: int, members: bool = False) -> list[str]:
    lines: list[str] = []
    for group, entries in d.groups.items():
        shown = f", the first {most} here (-v for all)" if 0 < most < len(entries) else "" if most else " (-v names them)"
        lines.append(f"{group.words}: {len(entries)}{shown} ({MEANING[group]})")
        for t in entries[:most]:
            lines += [f"  {about(t)}", *([f"    {t.case}"] if t.case else [])]
            lines += [f"    workaround: {t.workaround}"] if t.workaround and group not in BETTER else []
            lines += [f"      {m}" for m in _members(t)] if members else []
    return lines


def _members(t: ReportedChange) -> list[str]:
    """Every check or series of an entry."""
    lines = [_change_line(c) for c in t.changes]
    lines += [f"{listed(map(_cell_words, s.cells), 200)}: {shift_words(s)}" for s in t.shifts]
    return lines + [f"{_cell_words(p.cell)}: {pace_words(p)}" for p in t.paces]


def _change_line(c: Change) -> str:
    where = f": {c.case}" if c.case else ""
    return f"{_cell_words(c.cell)} {c.before} -> {c.after}{'' if c.paired else ' (another case)'}{where}"


def _cell_words(c: Cell) -> str:
    return " ".join(c).strip()


# ----------------------------------------------------------------------------------------------------------- for programs


def as_markdown(d: Diff, fail_on: Collection[Group] = (), verbose: bool = False) -> str:
    """A comment for a pull request, within GitHub's limit."""
    text = f"**{inert(headline(d, fail_on))}**\n\n{inert(fingerprint_line(d, 1000 if verbose else CHANGED))}  \n"
    text += f"{inert(compared_line(d))}\n"
    text += "".join(f"\n> **INCONCLUSIVE**: {inert(x)}\n" for x in d.doubts)
    text += "".join(f"\n> {inert(w)}\n" for w in (d.warnings if verbose else d.warnings[:WARNINGS]))
    notes = f"\n<sub>{inert(drift_line(d))}. {inert(pace_line(d))}.</sub>\n\n{code(next_line(d).removeprefix('next: '))}\n"
    left, cut = COMMENT - len(text) - len(notes) - 200, 0
    for group, entries in d.groups.items():
        part = f"\n### {group.words}: {len(entries)}\n\n"
        for t in entries:
            entry = f"- {inert(about(t))}\n" + (f"  {code(t.case)}\n" if t.case else "")
            entry += "".join(f"  - {inert(m)}\n" for m in _members(t)) if verbose else ""
            if len(part) + len(entry) > left:
                cut += 1
                continue
            part += entry
        left -= len(part)
        text += part
    return text + (f"\n... and {cut} more: `parity diff BEFORE AFTER -v`\n" if cut else "") + notes


def answer(d: Diff, fail_on: Collection[Group] = ()) -> run_answers.Difference:
    """Everything, for other programs."""
    return run_answers.Difference(
        1,
        d.exit_code(fail_on),
        tuple(g.value for g in d.fails(fail_on)),
        headline(d, fail_on),
        _side(d.before),
        _side(d.after),
        tuple(run_answers.FieldChange(*x) for x in d.changed),
        d.warnings,
        d.incomplete,
        d.doubts,
        compared={"records": d.paired, "errors": d.drift.pairs, "cells": d.cells, "checks": d.checks},
        drift={"series": d.drift.series, "tests": d.drift.tests, "false_alarms": ALARM, "correction": "Holm, Tarone"},
        speed={"series": d.paces.series, "general": d.paces.general, "not_compared": d.paces.why},
        groups={g.value: tuple(map(_change, entries)) for g, entries in d.groups.items()},
        next=next_line(d).removeprefix("next: "),
    )


def as_json(d: Diff, fail_on: Collection[Group] = (), verbose: bool = False) -> str:
    """The same as text."""
    return f"{answers.text(answer(d, fail_on))}\n"


def _side(h: Header) -> run_answers.Side:
    f = h.fingerprint
    own = f.device, f.device_name, f.simulated, f.torch, f.os, f.parity
    return run_answers.Side(*own, h.seed, h.profile, h.selection, h.started)


def _change(t: ReportedChange) -> run_answers.Change:
    cause = None if t.cause is None else run_answers.ChangedCause(t.cause.id, t.weight, sentence(t.cause))
    changes = tuple(run_answers.CellChange(*c.cell, c.before, c.after, c.case, c.paired, c.reason) for c in t.changes)
    shifts = tuple(run_answers.Shift(s.cells, s.pairs, s.worse, s.better, 2.0**s.median, 2.0**s.high, s.p) for s in t.shifts)
    times = tuple(run_answers.Pace(*p.cell, p.pairs, p.factor, p.before, p.after, p.noise) for p in t.paces)
    return run_answers.Change(about(t), cause, t.ops, t.dtypes, t.aspects, t.case, changes, shifts, times)


def as_junit(d: Diff, fail_on: Collection[Group] = (), verbose: bool = False) -> str:
    """One test case for each group, which fails where the diff does, and one for each thing that a run is missing."""
    failing = d.fails(fail_on)
    suite = ElementTree.Element(
        "testsuite",
        name="parity diff",
        tests=str(len(Group) + len(d.incomplete) + len(d.doubts)),
        failures=str(len(failing)),
        errors=str(len(d.incomplete) + len(d.doubts)),
    )
    facts = ElementTree.SubElement(suite, "properties")
    for name, value in (("fingerprint", fingerprint_line(d, 1000)), ("compared", compared_line(d)), ("drift", drift_line(d))):
        ElementTree.SubElement(facts, "property", name=name, value=_in_xml(value))
    for group in Group:
        entries = d.groups.get(group, ())
        case = ElementTree.SubElement(suite, "testcase", classname="parity.diff", name=group.value)
        text = "\n".join(line for t in entries for line in (about(t), *([f"  {t.case}"] if t.case else [])))
        if group in failing:
            message = f"{group.words}: {len(entries)} ({MEANING[group]})"
            ElementTree.SubElement(case, "failure", message=message).text = _in_xml(text)
        elif entries:
            ElementTree.SubElement(case, "system-out").text = _in_xml(text)
    for name, why in [("incomplete", x) for x in d.incomplete] + [("inconclusive", x) for x in d.doubts]:
        case = ElementTree.SubElement(suite, "testcase", classname="parity.diff", name=name)
        ElementTree.SubElement(case, "error", message=_in_xml(why))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _in_xml(text: str) -> str:
    """Text without characters that XML forbids."""
    return "\n".join(map(printable, text.split("\n"))).encode("utf-8", "backslashreplace").decode()


def as_html(d: Diff, fail_on: Collection[Group] = (), verbose: bool = False) -> str:
    """A page that loads nothing."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    failing = d.fails(fail_on)
    groups = [
        {
            "words": g.words,
            "meaning": MEANING[g],
            "fails": g in failing,
            "entries": [{"about": about(t), "case": t.case, "members": _members(t)} for t in entries],
        }
        for g, entries in d.groups.items()
    ]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        headline=headline(d, fail_on),
        fingerprint=fingerprint_line(d, 1000),
        compared=compared_line(d),
        warnings=[*(f"INCONCLUSIVE: {x}" for x in d.doubts), *d.warnings],
        groups=groups,
        notes=[drift_line(d), pace_line(d)],
        next=next_line(d).removeprefix("next: "),
        runs=[("before", asdict(_side(d.before))), ("after", asdict(_side(d.after)))],
    )


Format = Callable[[Diff, Sequence[Group], bool], str]
FORMATS: Mapping[str, Format] = {
    "terminal": terminal, "markdown": as_markdown, "json": as_json, "junit": as_junit, "html": as_html,
}  # fmt: skip
