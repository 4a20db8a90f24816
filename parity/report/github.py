"""The causes of a run as GitHub's annotations: workflow commands that a step prints, shown with the job and the pull request.

GitHub shows ten errors and ten warnings of a step, so there are ten lines at most: the worst causes first, and in the last line
how many more there are. Causes of weight A, B and C are errors; what the device says in words is a warning. Known findings
that are accepted are left out.
"""

from __future__ import annotations

from parity.findings.causes import Gathered, gather
from parity.findings.verdict import known_of, new_of
from parity.report import gaps
from parity.report.causes import amount, count_text, letter, more_text, sentence_of, shortened
from parity.report.gaps import dropped
from parity.report.words import listed, plural, reproduced
from parity.store.rows import Header, Run

MOST = 10  # annotations of a kind that GitHub takes from one step
TITLE, CASE = 120, 1000  # most characters
WARNINGS = ("R",)  # weights whose causes are not silent


def render(run: Run) -> str:
    """The lines, each of which ends with its newline; at most `MOST` in all."""
    causes = gather(*new_of(run))
    first = [command("error", f"parity: {what}", shortened(more, CASE)) for what, more in gaps.caveat_failures(run)]
    notes = [(what, more) for what, more in gaps.caveat_notes(run) if what != gaps.SIMULATED]  # which each cause says
    first += [command("warning", f"parity: {what}", more) for what, more in notes]
    room = MOST - len(first)
    shown = causes if len(causes) <= room else causes[: room - 1]
    lines = [*first, *(_line(c, run.header) for c in shown)]
    if len(shown) < len(causes):
        rest = causes[len(shown) :]
        title = f"parity: {more_text(rest)}"
        lines.append(command("warning", title, f"{count_text(rest)}: parity report RUN shows all {len(causes)}"))
    if not lines:
        device, near = run.header.fingerprint.device, len(dropped(run.records))
        but = f"; {plural(near, 'finding')} near the budget was not reproduced in a fresh process" if near else ""
        known = ", or is known" if known_of(run) else ""
        lines = [command("notice", "parity", f"everything that counts agrees on {device}{known}{but}")]
    return "".join(f"{line}\n" for line in lines)


def command(kind: str, title: str, message: str) -> str:
    """One workflow command, escaped as GitHub's runner takes it back."""
    return f"::{kind} title={_property(shortened(title, TITLE))}::{_data(message)}"


def _data(text: str) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace("##[", "#\\#[")  # the runner's older commands begin anywhere in a line


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _line(c: Gathered, header: Header) -> str:
    f = header.fingerprint
    message = [
        f"{sentence_of(c)}; {amount(c)} in {listed(c.ops, 200)} ({listed(c.dtypes, 80)})",
        shortened(reproduced(c.case, header), CASE),
    ]
    if f.simulated:
        message.append("a simulated device: this says nothing about any hardware")
    return command("warning" if c.weight in WARNINGS else "error", f"parity {letter(c)} {c.cause.id}", "\n".join(message))
