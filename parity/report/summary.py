"""The summary at the end of a run: what was compared, what was found, what the device does not have, what compared nothing."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from parity import tolerance
from parity.core.devices import backend_of
from parity.core.dtypes import DEFAULT, HALF
from parity.core.errors import NothingCompared
from parity.core.results import COMPARED, FINDINGS, Fingerprint, Record, Status
from parity.core.status import Conclusion
from parity.engine import suite
from parity.engine.doctor import named, suspicion
from parity.findings import causes
from parity.findings.known import Known
from parity.findings.verdict import FAILED, RunResult, kinds, standings
from parity.report import causes as causes_text
from parity.report import gaps, power
from parity.report import known as known_text
from parity.report.output import fitted, last_line
from parity.report.words import clock, plural, table
from parity.store.features import Coverage
from parity.store.rows import Death, Header, ItemRow, Power, is_own, totals

SCREEN = 30  # most lines without -v, with those of `opening` and the verdict
OPENING = 3  # of these before a run, on a narrow screen
LEAST_ROOM = 8  # lines for causes, however long the other parts are
KNOWN_LINES = 5  # of the known findings
EVERYTHING = 1 << 30  # lines with -v
ALL_AGREES = "everything that was compared agrees"


def opening(fingerprint: Fingerprint, asked_for: str, more: str = "") -> str:
    """The first lines of a run: what is compared, and on what. asked_for: in words; more: of how."""
    how = f", {more}" if more else ""
    return f"parity {fingerprint.parity}, torch {fingerprint.torch}: {asked_for}{how}\ndevice {named(fingerprint)}"


def by_dtype(items: Sequence[ItemRow], extra: Counter[tuple[str, str]]) -> list[str]:
    """A table of checks, dtype by status. extra: deaths by (dtype, how)."""
    cells: dict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        for by_status in item.counts.values():
            cells[item.dtype].update(by_status)
    for (dtype, how), n in extra.items():
        cells[dtype][how] += n
    seen = [s for s in Status if any(c[s] for c in cells.values())]
    dtypes = [d for d in DEFAULT if d in cells] + sorted(set(cells) - set(DEFAULT))
    ops = Counter(i.dtype for i in items)
    head = ["dtype", "ops", *map(str, seen)]
    rows = [[d, str(ops[d]), *(f"{cells[d][s]:,}" if cells[d][s] else "." for s in seen)] for d in dtypes]
    total = ["all", str(len({i.op for i in items})), *(f"{sum(c[s] for c in cells.values()):,}" for s in seen)]
    return table([head, *rows, total])


def tables_line(header: Header, items: Sequence[ItemRow]) -> str:
    """How many exceptions the tables make for this device, and for how many ops they declare that half types are rounded
    inside."""
    fast = backend_of(header.fingerprint.device).has_fast_math and dict(header.fingerprint.facts).get("math") == "fast"
    tables = tolerance.load(header.fingerprint.device, fast=fast)
    names = {i.op for i in items if i.dtype in HALF and not is_own(i.op)}
    rows = [suite.row(op) for op in names]
    between = sum(r.judged.rounds_between for r in rows)
    adds = sum(bool(r.judged.accumulates) for r in rows)
    said = f"{', '.join(f.removeprefix('tolerances/') for f in tables.files)}; {plural(tables.exceptions, 'exception')}"
    if not rows:
        return said
    return f"{said}; of {plural(len(rows), 'op')} in half types {between} round between stages and {adds} add in the dtype"


@dataclass(frozen=True, slots=True)
class SummaryData:
    """The input of a summary. run_file: where the run is stored; lost: items that were given up; verbose: leave nothing out;
    reached: what a run with a limit of time came to, in words; memory: of the workers, in words; unexplained: for which
    findings no cause was looked for, in words; go_on: the command that goes on with a run that was cut."""

    header: Header
    result: RunResult
    power: Sequence[Power] = ()
    coverage: Sequence[Coverage] = ()
    seconds: float = 0.0
    run_file: str = "RUN"
    lost: Sequence[str] = ()
    verbose: bool = False
    reached: str = ""
    memory: str = ""
    unexplained: str = ""
    go_on: str = ""


def render(t: SummaryData, width: int | None = None) -> str:
    """The whole summary: the causes, then what limits the agreement. width: columns of the screen, None for a
    file."""
    r = t.result
    deaths = r.counted_deaths

    def on_screen(lines: Sequence[str], indent: int = 2) -> list[str]:
        return [part for line in lines for part in (fitted(line, width, indent) if width else [line])]

    blameless = [d for d in r.deaths if d not in deaths]
    parts = [
        *gaps.narrow(t.header.profile),
        *gaps.not_compared(r.items, blameless, r.unchecked, t.lost),
        *gaps.judged_less(r.items, r.records, t.power),
        *gaps.near(t.header, r.records),
        *_failing(r),
    ]  # fmt: skip
    parts = [p for p in parts if p.lines]
    head = on_screen(_head(t), gaps.INDENT)
    if t.verbose:
        table = by_dtype(r.items, Counter((d.dtype, d.how) for d in deaths)) if r.items or deaths else []
        rest = [line for p in parts for line in ("", p.title, *p.lines)]
        body = on_screen([*_known(t, EVERYTHING), *rest])
        return "\n".join(["", *_findings(t, deaths, EVERYTHING, width), *head, "", *on_screen(table), *body])
    rest = [*head, *on_screen(_known(t, KNOWN_LINES)), *on_screen([x for p in parts for x in p.short()], gaps.INDENT)]
    if r.conclusion(r.exit_code) is Conclusion.PASS:
        return "\n".join(rest)
    room = max(SCREEN - OPENING - len(rest) - len(on_screen([verdict(t, r.exit_code)])) - 1, LEAST_ROOM)
    return "\n".join(["", *_findings(t, deaths, room, width), *rest])


def _is_theirs(broken: str) -> bool:
    """Whether an item failed for a user's own function or row, by its line."""
    return is_own(broken.partition(" ")[0]) or ": UsageError: " in broken


def _failing(r: RunResult) -> list[gaps.Part]:
    """For what a run without findings fails."""
    own, ours = ([f"  {b}" for b in r.broken if _is_theirs(b) == whose] for whose in (True, False))
    reasons = (
        ("your own functions that compared nothing", own),
        ("failed in parity itself: please report", ours),
        ("failed by --fail-on", [f"  {u.status}: {plural(u.checks, 'check')}; one of them: {u.one}" for u in r.unwanted]),
        ("failed by --min-judged", power.left(r.unjudged)),
    )
    return [gaps.Part("", "", title, lines, fails=True) for title, lines in reasons]


def agreed(records: Sequence[Record]) -> str:
    """What is to be said of a run in which nothing else counts."""
    near, little = len(gaps.dropped(records)), len(gaps.marginal(records))
    but = [f"{plural(near, 'finding')} near the budget, not reproduced"] if near else []
    but += [f"{plural(little, 'marginal finding')}"] if little else []
    return "; ".join([*but, "everything else agrees"]) if but else ALL_AGREES


def _head(t: SummaryData) -> list[str]:
    """What was run, on what, and how much of it was compared."""
    done = t.result.compared
    checks = sum(n for s, n in totals(t.result.items).items() if s in COMPARED)
    weak = power.weak(t.power)
    repeated = t.verbose or t.result.conclusion(t.result.exit_code) is not Conclusion.PASS  # `opening` has named it
    aspects = f" ({_aspects(t.result.items)})" if t.verbose else ""
    lines = [
        *([f"LOW POWER  an agreement says less than it seems in {'; '.join(weak)}"] if weak else []),
        *([f"device     {named(t.header.fingerprint)}"] if repeated else []),
        *([f"SUSPECT    the doctor found wrong {suspect}"] if (suspect := suspicion(t.header.fingerprint)) else []),
        *(f"machines   MIXED {text}" for text in t.header.machines),
        f"compared   {plural(len({i.op for i in done}), 'op')}, {plural(len(done), 'op x dtype pair')}, "
        f"{plural(checks, 'check')}{aspects}{_judged(t.result.items, t.verbose)}",
        *([f"reached    {t.reached}"] if t.reached else []),
        *([f"NO CAUSE   {t.unexplained}"] if t.unexplained else []),
    ]
    return lines + (_how(t) if t.verbose else [])


def _how(t: SummaryData) -> list[str]:
    """What the run was judged by, drew and took."""
    return [
        f"reference  cpu, torch {t.header.fingerprint.torch}; truth: float64 on the CPU",
        *_drawn(t.coverage, t.run_file),
        f"tables     {tables_line(t.header, t.result.items)}",
        f"took       {clock(t.seconds)}, {t.header.profile} profile, seed {t.header.seed}",
        *([f"memory     {t.memory}"] if t.memory else []),
    ]


def _judged(items: Sequence[ItemRow], verbose: bool) -> str:
    """The fraction of all elements that was judged; with -v also the dtypes in which not all were."""
    judged, total = sum(i.judged for i in items), sum(i.judged + i.unjudged for i in items)
    if not total:
        return ""
    by: dict[str, list[ItemRow]] = defaultdict(list)
    for i in items if verbose else ():
        by[i.dtype].append(i)
    shares = {d: sum(i.judged for i in of) / max(1, sum(i.judged + i.unjudged for i in of)) for d, of in by.items()}
    partly = ", ".join(f"{d} {shares[d]:.2%}" for d in (*DEFAULT, *sorted(set(by) - set(DEFAULT))) if 0 < shares.get(d, 1) < 1)
    return f"; {judged / total:.2%} of {total:,} elements judged" + (f" ({partly})" if partly else "")


def _new(x: RunResult) -> tuple[causes.Gathered, ...]:
    """The causes that are not known."""
    return causes.gather([r for r in x.records if not r.known], [d for d in x.counted_deaths if not d.known])


def _known(t: SummaryData, most: int) -> list[str]:
    """What became of the known findings, in so many lines."""
    if t.result.known is None:
        return []
    head = known_text.count_line(t.result.known, t.result.sightings, len(_new(t.result)))
    return ["", head, *known_text.lines(t.result.known, t.result.sightings, most)]


def _findings(t: SummaryData, deaths: Sequence[Death], room: int, width: int | None) -> list[str]:
    """The causes of what was found, by weight, in so many lines."""
    gathered = _new(t.result)
    if not gathered:
        return []
    checks = sum(n for s, n in totals(t.result.items).items() if s in FINDINGS)
    deaths, found = [d for d in deaths if not d.known], kinds([r for r in t.result.records if not r.known])
    where = "" if any(r.known for r in t.result.records) else f" in {plural(checks, 'check')}"  # checks count the known ones
    kinds_text = f"{plural(len(found), 'kind')} of findings{where}" if found else ""
    died = plural(len(deaths), "death") + " of the process" if deaths else ""
    of = " and ".join(x for x in (kinds_text, died) if x)
    head = causes_text.count_text(gathered, of)
    first = fitted(head, width) if width else [head]
    return [*first, *causes_text.lines(gathered, room - 2 - len(first), t.header, width), ""]


def _drawn(coverage: Sequence[Coverage], run_file: str) -> list[str]:
    """How many pairs of features the families drew, and the command that lists the missing ones."""
    drawn = sum(1 for c in coverage for _ in c.drawn())
    if not drawn:
        return []
    return [f"drawn      {plural(drawn, 'pair')} of features; missing ones: parity prove coverage {shlex.quote(run_file)}"]


def _aspects(items: Sequence[ItemRow]) -> str:
    per: Counter[str] = Counter()
    for item in items:
        for aspect, counts in item.counts.items():
            per[aspect] += sum(n for s, n in counts.items() if s in COMPARED)
    return ", ".join(f"{a} {n:,}" for a, n in per.items()) or "none"


def verdict(t: SummaryData, code: int) -> str:
    """The last line. code: with which the run ends."""
    run_file, known = shlex.quote(t.run_file), t.result.known
    parts = _found_with_known(t.result, known) if known is not None else _found(t.result)
    done, conclusion = t.result.compared, t.result.conclusion(code)
    stopped = f"; the run was {t.result.stopped}" if t.result.stopped else ""
    if parts:
        said = " and ".join(parts)
        said = said if known is None else f"findings: {', '.join(parts)}"
        following = f"parity report {run_file}"
        if known is not None:
            following += f"; to accept them: parity known add {run_file} --reason TEXT --file {shlex.quote(known.code.name)}"
        return last_line(conclusion, said + stopped, t.seconds, run_file, t.go_on or following)
    if code == NothingCompared.exit_code or not done:
        why = "nothing was compared" + ("" if stopped else ": this is no success; widen the selection or see why above")
        return last_line(conclusion, why + stopped, t.seconds, run_file, t.go_on)
    checks = sum(n for s, n in totals(t.result.items).items() if s in COMPARED)
    said = agreed(t.result.records) + (", or is known" if known is not None else "")
    said += f", but {_failed(t.result)}: see above" if code == FAILED else ""
    said += f" ({plural(len({i.op for i in done}), 'op')}, {plural(checks, 'check')}){stopped}"
    return last_line(conclusion, said, t.seconds, run_file, t.go_on or f"parity diff {run_file} OTHER")


def _found(r: RunResult) -> list[str]:
    """How much was found."""
    found, deaths = kinds(r.records), r.counted_deaths
    n = sum(v for s, v in totals(r.items).items() if s in FINDINGS) if found or not any(x.gone for x in r.records) else 0
    checks = sum(v for s, v in totals(r.items).items() if s in COMPARED)
    parts = [f"{plural(max(1, len(found)), 'finding')} in {n:,} of {plural(checks, 'check')}"] if n else []
    return parts + ([f"{plural(len(deaths), 'case')} that ended or hung the process"] if deaths else [])


def _found_with_known(r: RunResult, known: Known) -> list[str]:
    """How much was found that is not in the file of known findings."""
    some, gathered = standings(known.entries, r.sightings), _new(r)
    failing = [f"{len(s)} {word}" for word in ("grown", "expired") if (s := [x for x in some if x.fails and x.state == word])]
    failing += [f"{n} fixed"] if (n := r.fixed) else []
    return [*([f"{len(gathered)} new"] if gathered else []), *failing]


def _failed(r: RunResult) -> str:
    """Why a run without findings fails."""
    if r.failed:
        return " and ".join(r.failed)
    if r.unchecked:
        return f"the pinned cases of {plural(len(r.unchecked), 'item')} were not checked"
    whose = bool(r.broken) and all(is_own(b.partition(" ")[0]) for b in r.broken)
    return f"{plural(len(r.broken), 'function')} of yours compared nothing" if whose else "parity itself failed in some items"
