"""The summary at the end of a run: what was compared, what was found, what the device lacks, what compared nothing."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from textwrap import shorten

from parity import tolerance
from parity.core.dtypes import DEFAULT, HALF
from parity.core.results import COMPARED, FINDINGS, Aspect, Record, Status
from parity.engine import suite
from parity.engine.doctor import suspicion
from parity.findings import causes
from parity.findings.known import Known
from parity.findings.standing import FIXED, standings, unaccepted
from parity.report import causes as causes_text
from parity.report import known as known_text
from parity.report import metadata, power
from parity.report.timed import lacking_lines
from parity.report.words import called_in, clock, code_options, folded, listed, plural, table
from parity.store.features import Coverage
from parity.store.rows import Death, Header, ItemRow, Power, Sighting, counted, is_own, totals

SCREEN = 56  # lines of a summary without -v; the last lines of the run come after it
EVERYTHING = 1 << 30  # lines of a summary with -v
LEAST_ROOM = 12  # lines for causes, however long the other parts are
KNOWN_LINES = 10  # lines of the known findings
PARTS = (6, 4, 2, 1)  # lines of each other part of the summary, the first that leaves room for the causes
REASON = 110  # most characters of a reason
UNJUDGED = 0.9  # items of which a smaller fraction was judged are listed
ALL_AGREES = "everything that was compared agrees"
INDENT = 11  # columns of the labels of the first lines


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
    """Whether any result of the item was compared. A call that both sides refuse does not count: a device that lacks the op
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


def refused(items: Sequence[ItemRow]) -> list[str]:
    """The ops that were refused in every dtype they were tried in, and those refused in some."""
    tried: dict[str, set[str]] = defaultdict(set)
    lacks: dict[str, set[str]] = defaultdict(set)
    partly: set[str] = set()
    for item in items:
        forward = next(iter(item.counts.values()), {})
        tried[item.op].add(item.dtype)
        if forward.get(Status.UNSUPPORTED) and not any(forward.get(s) for s in COMPARED):
            lacks[item.op].add(item.dtype)
        elif any(c.get(Status.UNSUPPORTED) for c in item.counts.values()):
            partly.add(item.op)
    whole = [op for op, d in lacks.items() if d == tried[op]]
    lines = [f"  no kernel in any dtype: {listed(whole, 400)}"] if whole else []
    by: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for op, d in lacks.items():
        if d != tried[op]:
            by[tuple(x for x in DEFAULT if x in d)].append(op)
    lines += [f"  not in {', '.join(d)}: {listed(ops, 200)}" for d, ops in by.items()]
    rest = sorted(partly - set(lacks))
    return lines + ([f"  some calls only (arguments, backward, out=): {listed(rest, 300)}"] if rest else [])


def voids(items: Sequence[ItemRow]) -> list[str]:
    """Items with cases that compared nothing, the worst first."""
    rows = [(sum(i.void.values()), i) for i in items if i.void]
    rows.sort(key=lambda r: -r[0] / max(1, r[1].cases))
    reasons = [shorten(next(iter(i.void)), REASON, placeholder=" ...") for _, i in rows[:6]]
    return [f"  {i.op} {i.dtype}: {n} of {plural(i.cases, 'case')} ({why})" for (n, i), why in zip(rows, reasons)]


def worse_reference(records: Sequence[Record]) -> list[str]:
    """Ops whose reference exceeds the budget itself, by its largest measured error ratio."""
    worst: dict[str, float] = {}
    for r in records:
        for m in r.measures:
            if m.measured and m.reference_share is not None and m.reference_share > 1.0:
                worst[r.op] = max(worst.get(r.op, 0.0), m.reference_share)
    order = sorted(worst, key=lambda op: -worst[op])
    return [f"  {listed([f'{op} ({worst[op]:.3g})' for op in order], 600)}"] if order else []


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
    cause was looked for, in words."""

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


def render(t: SummaryData, width: int | None = None) -> str:
    """The whole summary. width: columns of the screen, None for a file. Case ids are never wrapped, so that they can be
    copied."""
    deaths = counted(t.deaths, t.items)
    lines = ["", *folded(_head(t), width, INDENT), ""]
    if t.items or deaths:
        lines += by_dtype(t.items, Counter((d.dtype, d.how) for d in deaths))
    if t.verbose:
        return "\n".join(
            [*lines, *_findings(t, deaths, EVERYTHING), *_known(t, EVERYTHING), *_rest(t, deaths, width, EVERYTHING)]
        )
    for size in PARTS:
        rest = [*_known(t, KNOWN_LINES), *_rest(t, deaths, width, size)]
        if len(lines) + len(rest) + LEAST_ROOM <= SCREEN:
            break
    return "\n".join([*lines, *_findings(t, deaths, max(SCREEN - len(lines) - len(rest), LEAST_ROOM)), *rest])


def leaks(items: Sequence[ItemRow]) -> list[str]:
    """The items whose repeats leave memory on the device, with the bytes of each call."""
    found = [(n, i, case) for i in items for case, n in i.leaks.items()]
    return [f"  {i.op} {i.dtype}: {n:,} bytes per call of {case}" for n, i, case in sorted(found, key=lambda f: -f[0])]


def _rest(t: SummaryData, deaths: Sequence[Death], width: int | None, most: int) -> list[str]:
    """What comes after the findings. most: lines of each part."""
    acquitted = [d for d in t.deaths if d.acquitted]
    again = [d for d in t.deaths if d not in deaths and not d.acquitted]
    rest: list[str] = []
    for title, part in (
        ("unsupported", refused(t.items)),
        ("fallback: ran on the CPU unasked, in so many checks; a case of each pass is in the run file", fallbacks(t.items)),
        (f"void: {Status.VOID.meaning}", voids(t.items)),
        ("of more than a tenth of their elements nothing was judged", power.left(t.items, UNJUDGED)),
        (
            "the CPU's own results are farther from the truth than the budget, by so many times at worst, in these ops; there "
            "the device's budget is wider, up to 8 times",
            worse_reference(t.records),
        ),
        ("leaks: every repeat of a call leaves memory on the device (no failure)", leaks(t.items)),
        ("power: errors put into results that agree, and seen by the judge", power.lines(t.power)),
    ):
        rest += ["", title, *_cut(folded(part, width, 4), most)] if part else []
    rest += folded(metadata.part(t.items, t.verbose), width, 4)
    failing = unwanted(unaccepted_of(t.items, t.known, t.fail_on), t.records, t.fail_on).items()
    for title, part in (
        ("the CPU itself died or hung in", [f"  {d.case} ({d.signal}; {d.why})" for d in acquitted]),
        ("dropped: drift near its budget that did not come again in a fresh process", dropped(t.records)),
        ("killed from outside, and run again since", [f"  {d.case} ({d.signal})" for d in again]),
        ("NOT WHOLE: the time was over before the pinned cases of these items", lacking_lines(t.lacking) if t.lacking else []),
        ("not run, because they or others of their item ended or hung the process", not_run(t.items)),
        ("given up after several deaths: not compared", [f"  {item}" for item in t.lost]),
        ("your own functions that compared nothing", [f"  {b}" for b in t.broken if is_own(b.partition(" ")[0])]),
        ("failed in parity itself: please report", [f"  {b}" for b in t.broken if not is_own(b.partition(" ")[0])]),
        ("failed by --fail-on", [f"  {s}: {plural(n, 'check')}; one of them: {one}" for s, (n, one) in failing]),
        ("failed by --min-judged", power.left(t.items, t.min_judged)),
    ):
        rest += ["", title, *_cut(part, most)] if part else []
    return rest


def not_run(items: Sequence[ItemRow]) -> list[str]:
    """The cases that were left out, by item."""
    return [text for i in items if i.not_run for text in _left_out(i)]


def _left_out(i: ItemRow) -> list[str]:
    like = f", {len(i.alike)} of them untried, because they are like cases that hung" if i.alike else ""
    cases = (f"    {c}{' (like those that hung)' if c in i.alike else ''}" for c in i.not_run)
    return [f"  {i.op} {i.dtype}: {plural(len(i.not_run), 'case')}{like}", *cases]


def dropped(records: Sequence[Record]) -> list[str]:
    """The findings that do not count, with how many cases showed them in the run."""
    return [
        f"  {r.op} {r.dtype} {r.aspect} {r.status}, in {plural(r.count, 'case')} of the run: {r.shrunk}"
        for r in records
        if r.gone and r.shrunk
    ]


def agreed(records: Sequence[Record]) -> str:
    """What is to be said of a run in which nothing else counts."""
    near = len(dropped(records))
    return f"{plural(near, 'finding')} near the budget did not come again, everything else agrees" if near else ALL_AGREES


def _cut(lines: list[str], most: int) -> list[str]:
    """The first lines of a part."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"  ... {plural(len(lines) - most + 1, 'more line')}: parity run -v"]


def _head(t: SummaryData) -> list[str]:
    """What was run, on what, and how much of it was compared."""
    done = [i for i in t.items if compared(i)]
    checks = sum(n for s, n in totals(t.items).items() if s in COMPARED)
    weak = power.weak(t.power)
    return [
        *([f"LOW POWER  an agreement says less than it seems in {'; '.join(weak)}"] if weak else []),
        f"device     {device_line(t.header)}",
        *([f"SUSPECT    the doctor found wrong {suspect}"] if (suspect := suspicion(t.header.fingerprint)) else []),
        *(f"machines   MIXED {text}" for text in t.header.machines),
        f"reference  cpu, torch {t.header.fingerprint.torch}; truth: float64 on the CPU",
        f"compared   {plural(len({i.op for i in done}), 'op')}, {plural(len(done), 'op x dtype pair')}, "
        f"{plural(checks, 'check')} ({_aspects(t.items)})",
        *_judged(t.items),
        *_drawn(t.coverage, t.run_file),
        f"tables     {tables_line(t.header, t.items)}",
        *([f"reached    {t.reached}"] if t.reached else []),
        f"took       {clock(t.seconds)}, {t.header.profile} profile, seed {t.header.seed}",
        *([f"memory     {t.memory}"] if t.memory else []),
        *([f"NO CAUSE   {t.unexplained}"] if t.unexplained else []),
    ]


def _judged(items: Sequence[ItemRow]) -> list[str]:
    """The fraction of all elements that was judged, and the dtypes in which not all were."""
    judged, total = sum(i.judged for i in items), sum(i.judged + i.unjudged for i in items)
    if not total:
        return []
    by: dict[str, list[ItemRow]] = defaultdict(list)
    for i in items:
        by[i.dtype].append(i)
    shares = {d: sum(i.judged for i in of) / max(1, sum(i.judged + i.unjudged for i in of)) for d, of in by.items()}
    partly = ", ".join(f"{d} {shares[d]:.2%}" for d in (*DEFAULT, *sorted(set(by) - set(DEFAULT))) if 0 < shares.get(d, 1) < 1)
    return [f"judged     {judged / total:.2%} of {total:,} elements" + (f" ({partly})" if partly else "")]


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


def _findings(t: SummaryData, deaths: Sequence[Death], room: int) -> list[str]:
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
    return ["", head, *causes_text.lines(gathered, room - 3, t.header)]


def _drawn(coverage: Sequence[Coverage], run_file: str) -> list[str]:
    """How many pairs of features the families drew, and the command that lists the missing ones."""
    drawn = sum(1 for c in coverage for _ in c.drawn())
    if not drawn:
        return []
    return [
        f"drawn      {plural(drawn, 'pair')} of features; those that are lacking: parity prove coverage {shlex.quote(run_file)}"
    ]


def _aspects(items: Sequence[ItemRow]) -> str:
    per: Counter[str] = Counter()
    for item in items:
        for aspect, counts in item.counts.items():
            per[aspect] += sum(n for s, n in counts.items() if s in COMPARED)
    return ", ".join(f"{a} {n:,}" for a, n in per.items()) or "none"


def fallbacks(items: Sequence[ItemRow]) -> list[str]:
    """The ops that ran on the CPU, by pass and dtype, with the number of checks."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for i in items:
        for aspect, counts in i.counts.items():
            if n := counts.get(Status.FALLBACK, 0):
                found.setdefault(i.op, {}).setdefault(aspect, {})[i.dtype] = n
    return [
        f"  {op}: " + "; ".join(f"{aspect} {', '.join(f'{d} {n}' for d, n in dtypes.items())}" for aspect, dtypes in by.items())
        for op, by in found.items()
    ]


def last_line(t: SummaryData, code: int) -> str:
    """The verdict and the next command."""
    run_file = shlex.quote(t.run_file)
    found = kinds(t.records)
    n = sum(v for s, v in totals(t.items).items() if s in FINDINGS) if found or not any(r.gone for r in t.records) else 0
    if code == 3:
        return f"nothing was compared: this is no success; widen the selection or see why above; stored in {run_file}"
    if t.known is not None:
        return _last_line_with_known(t, t.known, code, run_file)
    parts = [f"{plural(max(1, len(found)), 'finding')} in {plural(n, 'check')}"] if n else []
    deaths = counted(t.deaths, t.items)
    parts += [f"{plural(len(deaths), 'case')} that ended or hung the process"] if deaths else []
    if not parts and not any(compared(i) for i in t.items):
        return f"nothing was compared; stored in {run_file}"
    said = " and ".join(parts) or agreed(t.records)
    if code == 1 and not parts:
        said += f", but {_failed(t)}: see above"
    if parts:
        replay = f"{called_in(t.header)} replay {run_file}{code_options(t.header)}"
        return f"{said}; stored in {run_file}; every cause in full: parity report {run_file}; all again: {replay}"
    return f"{said}; stored in {run_file}; compare with another run: parity diff {run_file} OTHER"


def _last_line_with_known(t: SummaryData, known: Known, code: int, run_file: str) -> str:
    """The verdict of a run that was given known findings."""
    some, gathered = standings(known.entries, t.sightings), _new(t)
    failing = [f"{len(s)} {word}" for word in ("grown", "expired") if (s := [x for x in some if x.fails and x.state == word])]
    failing += [f"{n} fixed"] if t.strict and (n := sum(s.state == FIXED for s in some)) else []
    parts = [*([f"{len(gathered)} new"] if gathered else []), *failing]
    if parts:
        add = f"accept them: parity known add {run_file} --reason TEXT --file {shlex.quote(known.code.name)}"
        return f"findings: {', '.join(parts)}; stored in {run_file}; all in full: parity report {run_file}; {add}"
    said = f"{agreed(t.records)}, or is known"
    if code == 1:
        said += f", but {_failed(t)}: see above"
    return f"{said}; stored in {run_file}; compare with another run: parity diff {run_file} OTHER"


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
