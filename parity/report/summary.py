"""The summary at the end of a run: what was compared, what was found, what the device does not have, what compared nothing."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from parity import tolerance
from parity.core.dtypes import DEFAULT, HALF
from parity.core.errors import NothingCompared
from parity.core.results import COMPARED, FINDINGS, Aspect, Record, Status
from parity.engine import suite
from parity.engine.doctor import suspicion
from parity.findings import causes
from parity.findings.known import Known
from parity.findings.standing import FIXED, standings, unaccepted
from parity.report import causes as causes_text
from parity.report import gaps, power
from parity.report import known as known_text
from parity.report.last_line import FAIL, INCONCLUSIVE, last_line, of
from parity.report.output import fitted
from parity.report.words import clock, plural, table
from parity.store.features import Coverage
from parity.store.rows import Death, Header, ItemRow, Power, Sighting, counted, is_own, totals

SCREEN = 28  # most lines without -v, with the verdict; two more come before a run
LEAST_ROOM = 8  # lines for causes, however long the other parts are
KNOWN_LINES = 5  # of the known findings
EVERYTHING = 1 << 30  # lines with -v
ALL_AGREES = "everything that was compared agrees"


def device_line(header: Header) -> str:
    """The device, and whether it is real."""
    f = header.fingerprint
    if f.simulated:
        return f"{f.device} (a SIMULATED device: these results say nothing about any hardware)"
    if f.device == "cpu":
        return "cpu (the reference itself: these results say whether the CPU agrees with itself and with the truth)"
    return f"{f.device} ({f.device_name})" if f.device_name and f.device_name != f.device else f.device


def kinds(records: Sequence[Record]) -> list[Record]:
    """The findings: one record for each kind of difference of an op in a dtype, with its least case. The other records hold
    cases of the same kinds as they were drawn."""
    return [r for r in records if r.shrunk and r.counts]


def unwanted(items: Sequence[ItemRow], records: Sequence[Record], fail_on: Sequence[str]) -> dict[str, tuple[int, str]]:
    """The statuses of `fail_on` that are not findings and that occurred: (number of checks, one case or reason)."""
    count, reasons = totals(items), dict[str, tuple[int, str]]()
    for status in fail_on:
        n = sum(sum(i.void.values()) for i in items) if status == Status.VOID else count[status]
        if n and status not in FINDINGS:
            one = next((r.case for r in records if r.status == status), "")
            reason = next((f"{i.op} {i.dtype}: {why}" for i in items for why in i.void), "") if status == Status.VOID else ""
            reasons[str(status)] = n, one or reason
    return reasons


def compared(item: ItemRow) -> bool:
    """Whether any result of the item was compared. A call that both sides refuse does not count: a device without the op
    refuses every call."""
    results = [counts for aspect, counts in item.counts.items() if aspect != Aspect.REFUSAL]
    return any(n for counts in results for status, n in counts.items() if status in COMPARED)


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
    fast = header.fingerprint.device.startswith("mps") and dict(header.fingerprint.facts).get("math") == "fast"
    tables = tolerance.load(header.fingerprint.device, fast=fast)
    names = {i.op for i in items if i.dtype in HALF and not is_own(i.op)}
    rows = [suite.row(op) for op in names]
    between = sum(r.rounds_between for r in rows)
    adds = sum(bool(r.accumulates) for r in rows)
    said = f"{', '.join(f.removeprefix('tolerances/') for f in tables.files)}; {plural(tables.exceptions, 'exception')}"
    if not rows:
        return said
    return f"{said}; of {plural(len(rows), 'op')} in half types {between} round between stages and {adds} add in the dtype"


@dataclass(frozen=True, slots=True)
class SummaryData:
    """The input of a summary. broken: tests that failed because of parity, not the device; run_file: where the run is stored;
    fail_on: statuses that fail in addition to the findings; min_judged: an item fails if a smaller fraction of its elements was
    judged; lost: items that were given up; verbose: leave nothing out; reached: what a run with a limit of time came to, in
    words; lacking: the items whose pinned cases it did not check; known: the file of known findings; sightings: what was seen
    of them; strict: whether those that are fixed fail; memory: of the workers, in words; unexplained: for which findings no
    cause was looked for, in words; stopped: how the run was cut, in words; go_on: the command that goes on with it."""

    header: Header
    items: Sequence[ItemRow] = ()
    records: Sequence[Record] = ()
    deaths: Sequence[Death] = ()
    power: Sequence[Power] = ()
    coverage: Sequence[Coverage] = ()
    broken: Sequence[str] = ()
    seconds: float = 0.0
    run_file: str = "RUN"
    fail_on: Sequence[str] = ()
    min_judged: float = 0.0
    lost: Sequence[str] = ()
    verbose: bool = False
    reached: str = ""
    lacking: Sequence[str] = ()
    known: Known | None = None
    sightings: Sequence[Sighting] = ()
    strict: bool = False
    memory: str = ""
    unexplained: str = ""
    stopped: str = ""
    go_on: str = ""


def render(t: SummaryData, width: int | None = None) -> str:
    """The whole summary: the causes, then what limits the agreement. width: columns of the screen, None for a
    file."""
    deaths = counted(t.deaths, t.items)

    def on_screen(lines: Sequence[str], indent: int = 2) -> list[str]:
        return [part for line in lines for part in (fitted(line, width, indent) if width else [line])]

    blameless = [d for d in t.deaths if d not in deaths]
    parts = [
        *gaps.not_compared(t.items, blameless, t.lacking, t.lost), *gaps.judged_less(t.items, t.records, t.power), *_failing(t)
    ]  # fmt: skip
    parts = [p for p in parts if p.lines]
    head = on_screen(_head(t), gaps.INDENT)
    if t.verbose:
        table = by_dtype(t.items, Counter((d.dtype, d.how) for d in deaths)) if t.items or deaths else []
        rest = [line for p in parts for line in ("", p.title, *p.lines)]
        body = on_screen([*_known(t, EVERYTHING), *rest])
        return "\n".join(["", *_findings(t, deaths, EVERYTHING, width), *head, "", *on_screen(table), *body])
    rest = [*head, *on_screen(_known(t, KNOWN_LINES)), *on_screen([x for p in parts for x in p.short()], gaps.INDENT)]
    room = max(SCREEN - len(rest) - 2, LEAST_ROOM)
    return "\n".join(["", *_findings(t, deaths, room, width), *rest])


def _failing(t: SummaryData) -> list[gaps.Part]:
    """For what a run without findings fails."""
    asked = unwanted(unaccepted_of(t.items, t.known, t.fail_on), t.records, t.fail_on).items()
    own, ours = ([f"  {b}" for b in t.broken if is_own(b.partition(" ")[0]) == whose] for whose in (True, False))
    reasons = (
        ("your own functions that compared nothing", own),
        ("failed in parity itself: please report", ours),
        ("failed by --fail-on", [f"  {s}: {plural(n, 'check')}; one of them: {one}" for s, (n, one) in asked]),
        ("failed by --min-judged", power.left(t.items, t.min_judged)),
    )
    return [gaps.Part("", "", title, lines, fails=True) for title, lines in reasons]


def agreed(records: Sequence[Record]) -> str:
    """What is to be said of a run in which nothing else counts."""
    near = len(gaps.dropped(records))
    return f"{plural(near, 'finding')} near the budget, not reproduced; everything else agrees" if near else ALL_AGREES


def _head(t: SummaryData) -> list[str]:
    """What was run, on what, and how much of it was compared."""
    done = [i for i in t.items if compared(i)]
    checks = sum(n for s, n in totals(t.items).items() if s in COMPARED)
    weak = power.weak(t.power)
    aspects = f" ({_aspects(t.items)})" if t.verbose else ""
    lines = [
        *([f"LOW POWER  an agreement says less than it seems in {'; '.join(weak)}"] if weak else []),
        f"device     {device_line(t.header)}",
        *([f"SUSPECT    the doctor found wrong {suspect}"] if (suspect := suspicion(t.header.fingerprint)) else []),
        *(f"machines   MIXED {text}" for text in t.header.machines),
        f"compared   {plural(len({i.op for i in done}), 'op')}, {plural(len(done), 'op x dtype pair')}, "
        f"{plural(checks, 'check')}{aspects}{_judged(t.items, t.verbose)}",
        *([f"reached    {t.reached}"] if t.reached else []),
        *([f"NO CAUSE   {t.unexplained}"] if t.unexplained else []),
    ]
    return lines + (_how(t) if t.verbose else [])


def _how(t: SummaryData) -> list[str]:
    """What the run was judged by, drew and took."""
    return [
        f"reference  cpu, torch {t.header.fingerprint.torch}; truth: float64 on the CPU",
        *_drawn(t.coverage, t.run_file),
        f"tables     {tables_line(t.header, t.items)}",
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


def unaccepted_of(items: Sequence[ItemRow], known: Known | None, fail_on: Sequence[str]) -> list[ItemRow]:
    """The items without the refusals and fallbacks that are known."""
    entries = known.entries if known is not None else ()
    return [unaccepted(i, entries, fail_on, date.today()) for i in items]


def _new(t: SummaryData) -> tuple[causes.Gathered, ...]:
    """The causes that are not known."""
    return causes.gather([r for r in t.records if not r.known], [d for d in counted(t.deaths, t.items) if not d.known])


def _known(t: SummaryData, most: int) -> list[str]:
    """What became of the known findings, in so many lines."""
    if t.known is None:
        return []
    head = known_text.count_line(t.known, t.sightings, len(_new(t)))
    return ["", head, *known_text.lines(t.known, t.sightings, most)]


def _findings(t: SummaryData, deaths: Sequence[Death], room: int, width: int | None) -> list[str]:
    """The causes of what was found, by weight, in so many lines."""
    gathered = _new(t)
    if not gathered:
        return []
    checks = sum(n for s, n in totals(t.items).items() if s in FINDINGS)
    deaths, found = [d for d in deaths if not d.known], kinds([r for r in t.records if not r.known])
    where = "" if any(r.known for r in t.records) else f" in {plural(checks, 'check')}"  # checks count the known ones
    kinds_text = f"{plural(len(found), 'kind')} of findings{where}" if found else ""
    died = plural(len(deaths), "death") + " of the process" if deaths else ""
    of = " and ".join(x for x in (kinds_text, died) if x)
    head = f"{plural(len(gathered), 'cause')} ({causes_text.counts_line(gathered)}) of {of}"
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
    """The last line."""
    run_file = shlex.quote(t.run_file)
    parts = _found_with_known(t, t.known) if t.known is not None else _found(t)
    done = [i for i in t.items if compared(i)]
    stopped = f"; the run was {t.stopped}" if t.stopped else ""
    if parts:
        said = " and ".join(parts)
        said = said if t.known is None else f"findings: {', '.join(parts)}"
        following = f"parity report {run_file}"
        if t.known is not None:
            following += f"; to accept them: parity known add {run_file} --reason TEXT --file {shlex.quote(t.known.code.name)}"
        return last_line(FAIL, said + stopped, t.seconds, run_file, t.go_on or following)
    if code == NothingCompared.exit_code or not done:
        why = "nothing was compared: this is no success; widen the selection or see why above"
        return last_line(of(code) if code else INCONCLUSIVE, why + stopped, t.seconds, run_file, t.go_on)
    checks = sum(n for s, n in totals(t.items).items() if s in COMPARED)
    said = agreed(t.records) + (", or is known" if t.known is not None else "")
    said += f", but {_failed(t)}: see above" if code == 1 else ""
    said += f" ({plural(len({i.op for i in done}), 'op')}, {plural(checks, 'check')}){stopped}"
    following = t.go_on or f"parity diff {run_file} OTHER"
    return last_line(INCONCLUSIVE if t.stopped else of(code), said, t.seconds, run_file, following)


def _found(t: SummaryData) -> list[str]:
    """How much was found."""
    found, deaths = kinds(t.records), counted(t.deaths, t.items)
    n = sum(v for s, v in totals(t.items).items() if s in FINDINGS) if found or not any(r.gone for r in t.records) else 0
    checks = sum(v for s, v in totals(t.items).items() if s in COMPARED)
    parts = [f"{plural(max(1, len(found)), 'finding')} in {n:,} of {plural(checks, 'check')}"] if n else []
    return parts + ([f"{plural(len(deaths), 'case')} that ended or hung the process"] if deaths else [])


def _found_with_known(t: SummaryData, known: Known) -> list[str]:
    """How much was found that is not in the file of known findings."""
    some, gathered = standings(known.entries, t.sightings), _new(t)
    failing = [f"{len(s)} {word}" for word in ("grown", "expired") if (s := [x for x in some if x.fails and x.state == word])]
    failing += [f"{n} fixed"] if t.strict and (n := sum(s.state == FIXED for s in some)) else []
    return [*([f"{len(gathered)} new"] if gathered else []), *failing]


def _failed(t: SummaryData) -> str:
    """Why a run without findings fails."""
    items = unaccepted_of(t.items, t.known, t.fail_on)
    asked = [f"{plural(n, 'check')} {s}" for s, (n, _) in unwanted(items, t.records, t.fail_on).items()]
    if asked:
        return f"--fail-on fails the run for {' and '.join(asked)}"
    if t.lacking:
        return f"the pinned cases of {plural(len(t.lacking), 'item')} were not checked"
    few = len(power.left(t.items, t.min_judged))
    if few:
        return f"--min-judged fails {plural(few, 'op x dtype pair')}"
    whose = bool(t.broken) and all(is_own(b.partition(" ")[0]) for b in t.broken)
    return f"{plural(len(t.broken), 'function')} of yours compared nothing" if whose else "parity itself failed in some items"
