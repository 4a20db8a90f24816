"""The gaps of a run, where it compared nothing or judged less sharply: each matter in one line for a screen, and in full for
-v.

The caveats that stand before a run's findings: a report without findings says little if the run was cut, or compared
nothing. Every report of a whole run gives these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

from parity.core.dtypes import DEFAULT
from parity.core.results import COMPARED, Record, Status
from parity.engine import suite
from parity.engine.doctor import suspicion
from parity.engine.options import STRICT
from parity.engine.rounds import Timed
from parity.findings.verdict import Shortfall, poorly_judged, shortfalls
from parity.report import power, words
from parity.report.words import listed, plural
from parity.store.marginal import decides
from parity.store.rows import Death, Header, ItemRow, Power, Run, counted

INDENT = 11  # columns of labels
FAILING = 3  # lines of each reason for which a run without findings fails
NO_KERNEL, SOME_CALLS = "no kernel in any dtype", "some calls only (arguments, backward, out=)"
REFUSED = 400  # most characters of the names of ops of one refusal
NAMED = 600  # characters for the names of items without their pinned cases
REASON = 110  # most characters of a reason
UNJUDGED = 0.9  # items of which a smaller fraction was judged are listed


@dataclass(frozen=True, slots=True)
class Part:
    """What a summary says of one matter. label, brief: in one line; an empty `brief` leaves it to -v. title, lines: with -v.
    fails: whether the run fails for it, and its first lines are shown."""

    label: str
    brief: str
    title: str
    lines: Sequence[str]
    fails: bool = False

    def short(self) -> list[str]:
        """The part without -v."""
        more = [f"  ... and {len(self.lines) - FAILING} more (-v)"] if len(self.lines) > FAILING else []
        first = [f"{self.label:<{INDENT}}{self.brief}"] if self.brief else []
        return [*first, *((self.title, *self.lines[:FAILING], *more) if self.fails else ())]


def narrow(profile: str) -> list[Part]:
    """What the profile of a run draws too little of, and what it found of planted faults."""
    known = suite.PROFILES.get(profile)
    if known is None or not known.excludes:
        return []
    text = f"{profile} profile, without {known.excludes}"
    made = [Part("narrow", text, "narrow: what the profile does not draw", [f"  {text}"])]
    if known.scores:
        seen = f"this profile found {'; '.join(map(str, known.scores))}"
        runs = [f"  {s}: {s.command} (at {s.commit})" for s in known.scores]
        made.append(Part("planted", seen, "planted: what the profile found of faults on a simulated device", runs))
    return made


def near(header: Header, records: Sequence[Record]) -> list[Part]:
    """What a shard found that may be marginal in the whole run."""
    lines = [f"  {r.op} {r.dtype} {r.aspect}: {r.reason}: {r.shrunk}" for r in records if r.near and r.shrunk and r.counts]
    if decides(header) or not lines:
        return []
    said = "just outside an estimated budget; the run that parity merge makes of all shards says if it is marginal"
    return [Part("near", f"{plural(len(lines), 'finding')} {said}: {_first(lines)}", f"near: {said}", lines)]


def not_compared(
    items: Sequence[ItemRow], deaths: Sequence[Death], unchecked: Sequence[str], lost: Sequence[str]
) -> list[Part]:
    """What was left out, and why. deaths: those that the device is not blamed for; unchecked, lost: names of items."""
    fell = {i.op: n for i in items if (n := sum(c.get(Status.FALLBACK, 0) for c in i.counts.values()))}
    acquitted = [d for d in deaths if d.acquitted]
    again = [f"  {d.case} ({d.signal})" for d in deaths if not d.acquitted]
    return [
        Part("refused", _refused_in_short(_refusals(items)), "unsupported", refused(items)),
        Part(
            "fallback",
            f"{_fallen(items)} ran on the CPU unasked: {listed(fell)}",
            "fallback: ran on the CPU unasked, in so many checks; a case of each pass is in the run file",
            fallbacks(items),
        ),
        Part("void", _void(_voids(items)), f"void: {Status.VOID.meaning}", voids(items)),
        Part(
            "CPU",
            f"died or hung itself in {plural(len(acquitted), 'case')}: {listed(f'{d.op} {d.dtype}' for d in acquitted)}",
            "the CPU itself died or hung in",
            [f"  {d.case} ({d.signal}; {d.why})" for d in acquitted],
        ),
        Part("", "", "killed from outside, and run again since", again),
        Part(
            "NOT WHOLE",
            f"the pinned cases of {plural(len(unchecked), 'item')} were not checked: {listed(unchecked)}",
            "NOT WHOLE: the time was over before the pinned cases of these items",
            _unchecked_lines(unchecked) if unchecked else [],
        ),
        Part(
            "not run",
            "cases that ended or hung the process, are like those, or come behind many of them: "
            + listed(f"{i.op} {i.dtype} ({len(i.not_run)})" for i in items if i.not_run),
            "not run, because they or others of their item ended or hung the process",
            not_run(items),
        ),
        Part(
            "given up",
            f"{plural(len(lost), 'item')} after several deaths: {listed(lost)}",
            "given up after several deaths: not compared",
            [f"  {item}" for item in lost],
        ),
    ]


def judged_less(items: Sequence[ItemRow], records: Sequence[Record], errors: Sequence[Power]) -> list[Part]:
    """What makes an agreement say less, and what is not counted. errors: put into results, and whether the judge saw them."""
    few, leaking, near = power.left(poorly_judged(items, UNJUDGED)), leaks(items), dropped(records)
    little = marginal(records)
    return [
        Part(
            "unjudged",
            f"more than a tenth of the elements of {plural(len(few), 'op x dtype pair')}: {_first(few)}",
            "of more than a tenth of their elements nothing was judged",
            few,
        ),
        Part(
            "",
            "",
            "the CPU's own results are farther from the truth than the budget, by so many times at worst, in these ops; there "
            "the device's budget is wider, up to 8 times",
            worse_reference(records),
        ),
        Part(
            "leaks",
            f"every repeat of a call leaves memory on the device in {plural(len(leaking), 'call')}: {_first(leaking)}",
            "leaks: every repeat of a call leaves memory on the device (no failure)",
            leaking,
        ),
        Part("", "", "power: errors put into results that agree, and seen by the judge", power.lines(errors)),
        Part("", "", words.metadata_title(items), words.metadata_lines(items)),
        Part(
            "dropped",
            f"{plural(len(near), 'finding')} near the budget, not reproduced in a fresh process",
            "dropped: drift near its budget, not reproduced in a fresh process",
            near,
        ),
        Part(
            "marginal",
            f"{plural(len(little), 'finding')} just outside an estimated budget, in few elements and cases: {_first(little)}; "
            "another --seed looks again, and with --fail-on marginal they fail",
            f"marginal: {Status.MARGINAL.meaning} (no failure)",
            little,
        ),
    ]


def excluded(run: Run) -> list[str]:
    """What an agreement of this run does not speak of, a line for each matter."""
    end, deaths = run.end, counted(run.deaths, run.items)
    blameless = [d for d in run.deaths if d not in deaths]
    parts = [
        *narrow(run.header.profile),
        *not_compared(run.items, blameless, end.lacking if end else (), end.lost if end else ()),
        *judged_less(run.items, run.records, run.power),
    ]
    return [f"{p.label}: {p.brief}" for p in parts if p.lines and p.brief]


def _refusals(items: Sequence[ItemRow]) -> dict[str, list[str]]:
    """The ops that the device refused, by where: in every dtype in which they were tried, in some, in some calls only."""
    tried: dict[str, set[str]] = defaultdict(set)
    refusing: dict[str, set[str]] = defaultdict(set)
    partly: set[str] = set()
    for item in items:
        forward = next(iter(item.counts.values()), {})
        tried[item.op].add(item.dtype)
        if forward.get(Status.UNSUPPORTED) and not any(forward.get(s) for s in COMPARED):
            refusing[item.op].add(item.dtype)
        elif any(c.get(Status.UNSUPPORTED) for c in item.counts.values()):
            partly.add(item.op)
    by: dict[str, list[str]] = {NO_KERNEL: [op for op, d in refusing.items() if d == tried[op]]}
    for op, d in refusing.items():
        if d != tried[op]:
            by.setdefault(f"not in {', '.join(x for x in DEFAULT if x in d)}", []).append(op)
    by[SOME_CALLS] = sorted(partly - set(refusing))
    return {where: ops for where, ops in by.items() if ops}


def _refused_in_short(by: dict[str, list[str]]) -> str:
    """The refusals in one line: those of some dtypes together if they are of several."""
    some = [where for where in by if where not in (NO_KERNEL, SOME_CALLS)]
    if len(some) > 1:
        together = {op: None for where in some for op in by[where]}
        by = {NO_KERNEL: by.get(NO_KERNEL, []), "not in some dtypes": [*together], SOME_CALLS: by.get(SOME_CALLS, [])}
    return "; ".join(f"{plural(len(ops), 'op')}, {where}: {listed(ops)}" for where, ops in by.items() if ops)


def refused(items: Sequence[ItemRow]) -> list[str]:
    """The ops that were refused in every dtype they were tried in, and those refused in some."""
    return [f"  {where}: {listed(ops, REFUSED)}" for where, ops in _refusals(items).items()]


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


def _voids(items: Sequence[ItemRow]) -> list[tuple[int, ItemRow]]:
    """Items with cases that compared nothing, the worst first, with the number of these."""
    rows = [(sum(i.void.values()), i) for i in items if i.void]
    return sorted(rows, key=lambda r: -r[0] / max(1, r[1].cases))


def _why_void(i: ItemRow) -> str:
    return shorten(next(iter(i.void)), REASON, placeholder=" ...")


def voids(items: Sequence[ItemRow]) -> list[str]:
    """Items with cases that compared nothing, the worst first."""
    return [f"  {i.op} {i.dtype}: {n} of {plural(i.cases, 'case')} ({_why_void(i)})" for n, i in _voids(items)[:6]]


def _void(rows: Sequence[tuple[int, ItemRow]]) -> str:
    """The items whose cases compared nothing in one line, with the first reason."""
    if not rows:
        return ""
    return (
        f"{plural(sum(n for n, _ in rows), 'case')} compared nothing: {_named([i for _, i in rows])}; {_why_void(rows[0][1])}"
    )


def worse_reference(records: Sequence[Record]) -> list[str]:
    """Ops whose reference exceeds the budget itself, by its largest measured error ratio."""
    worst: dict[str, float] = {}
    for r in records:
        for m in r.measures:
            if m.measured and m.reference_share is not None and m.reference_share > 1.0:
                worst[r.op] = max(worst.get(r.op, 0.0), m.reference_share)
    order = sorted(worst, key=lambda op: -worst[op])
    return [f"  {listed([f'{op} ({worst[op]:.3g})' for op in order], 600)}"] if order else []


def leaks(items: Sequence[ItemRow]) -> list[str]:
    """The items whose repeats leave memory on the device, with the bytes of each call."""
    found = [(n, i, case) for i in items for case, n in i.leaks.items()]
    return [f"  {i.op} {i.dtype}: {n:,} bytes per call of {case}" for n, i, case in sorted(found, key=lambda f: -f[0])]


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


def marginal(records: Sequence[Record]) -> list[str]:
    """The findings that are marginal: what their worst case showed, of each kind."""
    worst: dict[tuple[str, ...], Record] = {}
    for r in records:
        if r.status == Status.MARGINAL and (r.kind not in worst or _share(r) > _share(worst[r.kind])):
            worst[r.kind] = r
    return [f"  {r.op} {r.dtype} {r.aspect}: {r.reason}: {r.case}" for r in worst.values()]


def _share(r: Record) -> float:
    return r.measures[0].share or 0.0 if r.measures else 0.0


def _fallen(items: Sequence[ItemRow]) -> str:
    """The number of checks that ran on the CPU."""
    return plural(sum(c.get(Status.FALLBACK, 0) for i in items for c in i.counts.values()), "check")


def _named(items: Sequence[ItemRow]) -> str:
    return listed(f"{i.op} {i.dtype}" for i in items)


def _first(lines: Sequence[str]) -> str:
    """The items of lines that begin with them."""
    return listed(line.strip().partition(":")[0] for line in lines)


def reached(t: Timed, cases: int) -> str:
    """What a run with a limit of time reached. cases: of the whole run."""
    pinned, *rounds = t.rounds or (0,)
    whole = sum(n == len(t.items) for n in rounds)
    said = f"the pinned cases of {pinned:,} of {plural(len(t.items), 'item')}"
    if rounds and whole == len(rounds):
        said += f", {plural(whole, 'whole round')} of exploration"
    elif rounds:
        said += f", {plural(whole, 'whole round')} of exploration" if whole else ""
        said += f", {plural(rounds[whole], 'item')} of round {whole + 1}"
        said += f" and {plural(sum(rounds[whole + 1 :]), 'part')} of later ones" if len(rounds) > whole + 1 else ""
    return f"{said}; {plural(cases, 'case')}"


def _unchecked_lines(items: Sequence[str]) -> list[str]:
    """The items whose pinned cases were not checked, and what to do."""
    return [
        f"  {listed(items, NAMED)}",
        "  give more --time, more workers (-n), or fewer items (--shard, --family); the run file's last row names all of them",
    ]


SIMULATED = "a simulated device"
LOST = 200  # most characters of the names of items


def caveat_failures(run: Run) -> Iterator[tuple[str, str]]:
    """(what is missing, more about it) of everything that keeps a run without findings from being a success."""
    return ((str(s), _more(s, run)) for s in shortfalls(run))


def _more(s: Shortfall, run: Run) -> str:
    end = run.end
    if s is Shortfall.NOTHING:
        return "this is no success" + ("; widen the selection" if end is not None and not end.stopped else "")
    if end is None:
        return "it has no end row, so findings may be missing"
    if s is Shortfall.STOPPED:
        return f"{end.stopped}: what it did not reach is missing"
    if s is Shortfall.MISSING:
        lost = f": {listed(end.lost, LOST)}" if end.lost else ""
        return f"{end.expected - len(run.items):,} of {end.expected:,} were not compared{lost}"
    return "; ".join(end.failed) if s is Shortfall.FAILED else end.broken[0]


def caveat_notes(run: Run) -> Iterator[tuple[str, str]]:
    """(title, text) of what makes an agreement say less than it seems."""
    if weak := power.weak(run.power):
        yield "low power", f"an agreement says less than it seems in {'; '.join(weak)}"
    if near := len(dropped(run.records)):
        yield "dropped", f"{plural(near, 'finding')} near the budget was not reproduced in a fresh process, and does not count"
    if lines := marginal(run.records):
        said = listed([x.strip().partition(": ")[0] for x in lines], LOST)
        yield "marginal", f"{plural(len(lines), 'finding')} just outside an estimated budget, not counted: {said}"
    if lines := leaks(run.items):
        said = listed([x.strip() for x in lines], LOST)
        yield "memory leaks", f"every repeat of a call leaves memory on the device in {plural(len(lines), 'item')}: {said}"
    if line := words.metadata_line(run.items, 2 * LOST):
        yield "metadata", f"{line}; torch promises little there, so it is no finding ({STRICT} makes it one)"
    if suspect := suspicion(run.header.fingerprint):
        yield "the device is suspect", f"findings may be this machine's own; the doctor found wrong {suspect}"
    if run.header.fingerprint.simulated:
        yield SIMULATED, "this says nothing about any hardware"


def caveat_sentences(run: Run) -> list[str]:
    return [f"{title[:1].upper()}{title[1:]}: {text}." for title, text in (*caveat_failures(run), *caveat_notes(run))]
