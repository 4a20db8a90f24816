"""Runs side by side: what became of each op in each dtype, by device, torch and system, as text, Markdown, JSON and a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from parity.core.dtypes import DEFAULT
from parity.core.results import Record
from parity.core.status import Status
from parity.findings.causes import apart
from parity.history.cells import without_gone
from parity.report import answers, gaps
from parity.report.causes import COMMENT, code, inert, sentence_of
from parity.report.matrix import PASSES, worst_of
from parity.report.run_answers import SUPPORTED, Cell, Support, SupportedOp, Where
from parity.report.words import plural
from parity.store.rows import Death, Run, counted

FOLDER = Path(__file__).with_name("page")
WORKS, IN_PART, DRIFTS, WRONG, FAILS, REFUSED, FALLS_BACK, NOT_JUDGED = SUPPORTED
NOT_TESTED = "not tested"
MEANING = {
    WORKS: "forward and backward agree with the CPU in all cases that were drawn",
    IN_PART: "some calls are refused or run on the CPU, the others agree",
    DRIFTS: "less precise than rounding explains",
    WRONG: "no rounding explains it",
    FAILS: "raises, dies, hangs or runs out of memory",
    REFUSED: "the device says that it does not have it",
    FALLS_BACK: "runs on the CPU",
    NOT_JUDGED: "neither the CPU nor the truth could run it",
    NOT_TESTED: "the run did not draw it",
}
WORST_FIRST = (WRONG, FAILS, DRIFTS, REFUSED, FALLS_BACK, IN_PART, NOT_JUDGED, WORKS, NOT_TESTED)
USUAL = (WORKS, NOT_JUDGED, NOT_TESTED)  # what is left out where an op has nothing else, unless everything is asked for


@dataclass(frozen=True, slots=True)
class Group:
    """The dtypes of an op that have one answer in one run, with the causes of what was found in them."""

    answer: str
    dtypes: tuple[str, ...]
    causes: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = f" [{', '.join(self.causes)}]" if self.causes else ""
        return f"{self.answer}{': ' if self.dtypes else ''}{', '.join(self.dtypes)}{found}"


def answer(runs: Sequence[tuple[str, Run]]) -> Support:
    """What the runs say. runs: each with the name of its file."""
    ops: dict[str, list[Cell]] = {}
    sentences: dict[str, str] = {}
    for k, (_, run) in enumerate(runs):
        kept = without_gone(run)
        deaths = counted(kept.deaths, kept.items)
        found: dict[tuple[str, str], list[str]] = {}
        for c in apart(kept.records, deaths):
            sentences[c.cause.id] = sentence_of(c)
            members: list[Record | Death] = [*c.records, *c.deaths]
            for where in dict.fromkeys((x.op, x.dtype) for x in members):
                found.setdefault(where, []).append(c.cause.id)
        agreeing = {(i.op, i.dtype) for i in kept.items if i.counts.get("forward", {}).get(Status.AGREE)}
        for (op, dtype), worst in worst_of(kept.items, deaths).items():
            if any(s is not None for s in worst):
                passes = {name: str(s) for (name, _), s in zip(PASSES, worst) if s is not None}
                word = _answer(worst, (op, dtype) in agreeing)
                ops.setdefault(op, []).append(Cell(k, dtype, word, passes, (*found.get((op, dtype), ()),)))
    rows = tuple(
        SupportedOp(op, tuple(sorted(cells, key=lambda c: (c.where, _place(c.dtype))))) for op, cells in sorted(ops.items())
    )
    return Support(1, tuple(_where(name, run) for name, run in runs), rows, dict(sorted(sentences.items())))


def _answer(worst: Sequence[Status | None], agrees: bool) -> str:
    """What passes say together. agrees: whether any forward call agrees."""
    seen = [s for s in worst if s is not None]
    if found := [s for s in seen if s.is_finding]:
        s = max(found, key=lambda s: s.severity)
        return FAILS if s.is_death or s.raised else DRIFTS if s is Status.DRIFT else WRONG
    if absent := [s for s in worst[:2] if s is not None and s.is_absence]:  # forward and backward
        return IN_PART if agrees else FALLS_BACK if Status.FALLBACK in absent else REFUSED
    return WORKS if any(s.is_comparison for s in seen) else REFUSED if Status.UNSUPPORTED in seen else NOT_JUDGED


def _where(name: str, run: Run) -> Where:
    f = run.header.fingerprint
    said = tuple(gaps.caveat_sentences(run))
    return Where(name, f.device, f.device_name, f.torch, f.os, f.simulated, f.parity, run.header.started, said)


def _place(dtype: str) -> tuple[int, str]:
    return (DEFAULT.index(dtype) if dtype in DEFAULT else len(DEFAULT)), dtype


def groups(op: SupportedOp, where: int) -> list[Group]:
    """What an op does in a run, the worst first; last the dtypes that another run has and this one has not."""
    here = {c.dtype: c for c in op.cells if c.where == where}
    by: dict[str, list[Cell]] = {}
    for c in here.values():
        by.setdefault(c.answer, []).append(c)
    made = [
        Group(word, tuple(c.dtype for c in by[word]), tuple(dict.fromkeys(x for c in by[word] for x in c.causes)))
        for word in WORST_FIRST
        if word in by
    ]
    if not made:
        return [Group(NOT_TESTED, ())]
    others = sorted({c.dtype for c in op.cells} - here.keys(), key=_place)
    return [*made, *([Group(NOT_TESTED, tuple(others))] if others else [])]


def label(w: Where) -> list[str]:
    """A run in a few words: device and chip, torch, system, file."""
    chip = f" ({w.chip})" if w.chip not in ("", w.device) else ""
    return [f"{w.device}{chip}", f"torch {w.torch.partition('+')[0]}", w.os, f"{w.file}, {w.started[:10]}"]


def chosen(s: Support, everything: bool) -> list[SupportedOp]:
    """The ops of which something is to be said."""
    return [op for op in s.ops if everything or any(c.answer not in USUAL for c in op.cells)]


def render(s: Support, everything: bool = False) -> str:
    """As text: for each op a line for the runs that say the same of it."""
    lines = [f"{plural(len(s.wheres), 'run')} side by side"]
    lines += [f"  [{k}] {'; '.join(label(w))}" for k, w in enumerate(s.wheres, 1)]
    some = chosen(s, everything)
    for op in some:
        lines += ["", op.op]
        for said, which in _alike(op, len(s.wheres)):
            lines.append(f"  {which} {'; '.join(map(str, said))}")
    lines += ["", *(f"[{id}] {text}" for id, text in s.causes.items())] if s.causes else []
    left = len(s.ops) - len(some)
    return "\n".join(
        [*lines, *([f"\nwork in all runs that have them: {plural(left, 'more op')}; -v lists them"] if left else [])]
    )


def _alike(op: SupportedOp, wheres: int) -> Iterator[tuple[list[Group], str]]:
    """What is said of an op, with the numbers of the runs of which it is said."""
    said = sorted(((groups(op, k), k + 1) for k in range(wheres)), key=lambda x: (str([*map(str, x[0])]), x[1]))
    for _, some in groupby(said, key=lambda x: [*map(str, x[0])]):
        kept = [*some]
        yield kept[0][0], "".join(f"[{k}]" for _, k in kept)


def as_markdown(s: Support, everything: bool = False) -> str:
    """As a table for GitHub, cut to the length of a comment."""
    heads = ["op", *(" / ".join(inert(x) for x in label(w)) for w in s.wheres)]
    text = f"**parity on {plural(len(s.wheres), 'device and version')}**\n\n"
    text += "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads)))
    some = chosen(s, everything)
    for k, op in enumerate(some):
        cells = ["; ".join(inert(str(g)) for g in groups(op, w)) for w in range(len(s.wheres))]
        line = f"| {code(op.op.replace('|', ' '))} | {' | '.join(cells)} |\n"
        if len(text) + len(line) > COMMENT - 200:
            return text + f"\n... and {plural(len(some) - k, 'more op')}: `parity report A.jsonl B.jsonl`\n"
        text += line
    left = len(s.ops) - len(some)
    return text + (f"\n{plural(left, 'more op')} work in all runs that have them.\n" if left else "")


def as_html(s: Support) -> str:
    """As one page that loads nothing. It can be searched by op, dtype and answer."""
    loader = FileSystemLoader(FOLDER, encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader, undefined=StrictUndefined)
    rows = [(op.op, [groups(op, w) for w in range(len(s.wheres))]) for op in s.ops]
    return environment.get_template("support.html").render(
        wheres=[label(w) for w in s.wheres],
        caveats=_caveats(s),
        rows=rows,
        causes=s.causes,
        meaning=MEANING,
        dtypes=sorted({c.dtype for op in s.ops for c in op.cells}, key=_place),
        used=[word for word in WORST_FIRST if any(g.answer == word for _, by in rows for some in by for g in some)],
        style={word: word.replace(" ", "-") for word in MEANING},
    )


def _caveats(s: Support) -> Mapping[str, str]:
    """What a reader must know before -> of which runs."""
    said: dict[str, list[int]] = {}
    for k, w in enumerate(s.wheres, 1):
        for text in w.caveats:
            said.setdefault(text, []).append(k)
    every = len(s.wheres)
    return {text: "" if len(ks) == every else f"{', '.join(s.wheres[k - 1].file for k in ks)}: " for text, ks in said.items()}


def as_json(s: Support) -> str:
    """For other programs, as `parity help schema-report` describes it."""
    return f"{answers.text(s)}\n"
