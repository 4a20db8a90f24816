"""The end of a run, in one screen: what was compared, what was found, what the device lacks, what said nothing."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from textwrap import TextWrapper, shorten

from parity import suite, tolerance
from parity.dtypes import DEFAULT, HALF
from parity.features import Coverage
from parity.store import Death, Header, Item
from parity.vocabulary import COMPARED, FINDINGS, MEANING, Aspect, Record, Status

WORST = 8
NAMES = 60  # characters of a list of ops before it is cut
REASON = 110  # characters of a reason before it is cut
INDENT = 11  # columns of the words at the head of the first lines


def plural(n: int, word: str) -> str:
    """`1 op`, `2 ops`."""
    return f"{n:,} {word}" + ("" if n == 1 else "s")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}" if seconds >= 60 else f"{seconds:.1f} s"


def device_line(header: Header) -> str:
    """The device, and whether it is real."""
    f = header.fingerprint
    if f.simulated:
        return f"{f.device} (a SIMULATED device: these results say nothing about any hardware)"
    if f.device == "cpu":
        return "cpu (the reference itself: these results say whether the CPU agrees with itself and with the truth)"
    return f"{f.device} ({f.device_name})" if f.device_name and f.device_name != f.device else f.device


def reproduce(case: str, device: str, faults: str = "", setup: str = "") -> str:
    """The line that shows a case again. faults, setup: the files that the run was given."""
    named = f" --device {device}" + (f" --faults {shlex.quote(faults)}" if faults else "")
    return f"reproduce: parity replay {shlex.quote(case)}{named}" + (f" --setup {shlex.quote(setup)}" if setup else "")


def kinds(records: Sequence[Record]) -> list[Record]:
    """The findings: one record for each kind of difference of an op in a dtype, with its least case. Other records of a run
    hold checks of that kind as they were drawn."""
    return [r for r in records if r.shrunk and r.status in FINDINGS]


def unwanted(items: Sequence[Item], records: Sequence[Record], fail_on: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Of the statuses that fail on demand alone, which there are: how many checks, and one case or reason."""
    count, found = totals(items), dict[str, tuple[int, str]]()
    for status in fail_on:
        n = sum(sum(i.void.values()) for i in items) if status == Status.VOID else count[status]
        if n and status not in FINDINGS:
            one = next((r.case for r in records if r.status == status), "")
            reason = next((f"{i.op} {i.dtype}: {why}" for i in items for why in i.void), "") if status == Status.VOID else ""
            found[str(status)] = n, one or reason
    return found


def listed(names: Iterable[str], room: int = NAMES) -> str:
    """Names in a row, cut where there are too many."""
    text, left = "", list(dict.fromkeys(names))
    while left and len(text) + len(left[0]) < room:
        text += (", " if text else "") + left.pop(0)
    return text + (f" and {len(left)} more" if left and text else "") if text else f"{len(left)} names"


def totals(items: Sequence[Item]) -> Counter[str]:
    """Checks per status."""
    count: Counter[str] = Counter()
    for item in items:
        for by_status in item.counts.values():
            count.update(by_status)
    return count


def compared(item: Item) -> bool:
    """Whether a result of the item was compared. That both sides refuse a call is no result: a device that lacks the op refuses
    every one."""
    results = [counts for aspect, counts in item.counts.items() if aspect != Aspect.REFUSAL]
    return any(n for counts in results for status, n in counts.items() if status in COMPARED)


def folded(lines: Iterable[str], width: int | None, indent: int) -> list[str]:
    """Lines of words broken at spaces where they are wider than the screen; None for a file, which has room."""
    if width is None:
        return list(lines)
    deeper = " " * indent
    wrap = TextWrapper(max(width, 40), subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in (wrap.wrap(line) if len(line) > width else [line])]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, all others to the right."""
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return [
        "  " + "  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(r, widths))).rstrip() for r in rows
    ]


def by_dtype(items: Sequence[Item], extra: Counter[tuple[str, str]]) -> list[str]:
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


def refused(items: Sequence[Item]) -> list[str]:
    """Which ops were refused in every dtype they were tried in, and which in some."""
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


def voids(items: Sequence[Item]) -> list[str]:
    """Items in which cases said nothing, the worst first."""
    rows = [(sum(i.void.values()), i) for i in items if i.void]
    rows.sort(key=lambda r: -r[0] / max(1, r[1].cases))
    reasons = [shorten(next(iter(i.void)), REASON, placeholder=" ...") for _, i in rows[:6]]
    return [f"  {i.op} {i.dtype}: {n} of {i.cases} cases ({why})" for (n, i), why in zip(rows, reasons)]


def worse_reference(records: Sequence[Record]) -> list[str]:
    """Ops whose reference is outside the budget itself, by its worst measured share."""
    worst: dict[str, float] = {}
    for r in records:
        for m in r.measures:
            if m.measured and m.reference_share is not None and m.reference_share > 1.0:
                worst[r.op] = max(worst.get(r.op, 0.0), m.reference_share)
    order = sorted(worst, key=lambda op: -worst[op])
    return [f"  {listed([f'{op} ({worst[op]:.3g})' for op in order], 600)}"] if order else []


def tables_line(header: Header, items: Sequence[Item]) -> str:
    """How many exceptions the tables make for this device, and how many of the ops declare that half types round inside."""
    fast = header.fingerprint.device.startswith("mps") and dict(header.fingerprint.facts).get("math") == "fast"
    tables = tolerance.load(header.fingerprint.device, fast=fast)
    names = {i.op for i in items if i.dtype in HALF}
    rows = [suite.row(op) for op in names]
    between = sum(r.rounds_between for r in rows)
    adds = sum(bool(r.accumulates) for r in rows)
    said = f"{', '.join(f.removeprefix('tolerances/') for f in tables.files)}; {plural(tables.exceptions, 'exception')}"
    if not rows:
        return said
    return f"{said}; of {plural(len(rows), 'op')} in half types {between} round between stages and {adds} add in the dtype"


def render(
    header: Header,
    items: Sequence[Item],
    records: Sequence[Record],
    deaths: Sequence[Death],
    seconds: float,
    broken: Sequence[str] = (),
    coverage: Sequence[Coverage] = (),
    width: int | None = None,
    run_file: str = "RUN",
    fail_on: Sequence[str] = (),
) -> str:
    """The whole summary. broken: tests that failed for a reason of their own, which is parity's fault and not the device's.
    width: columns of the screen, None for a file. Case ids are never broken: they are there to be copied. fail_on: statuses
    that fail beside the findings."""
    lost = [d for d in deaths if not d.by_device]
    deaths = [d for d in deaths if d.by_device]
    count = totals(items)
    dead = Counter((d.dtype, d.how) for d in deaths)
    count.update(d.how for d in deaths)
    done = [i for i in items if compared(i)]
    checks = sum(n for s, n in count.items() if s in COMPARED)
    head = [
        f"device     {device_line(header)}",
        f"reference  cpu, torch {header.fingerprint.torch}; truth: float64 on the CPU",
        f"compared   {plural(len({i.op for i in done}), 'op')}, {plural(len(done), 'op x dtype pair')}, "
        f"{plural(checks, 'check')} ({_aspects(items)})",
        *_drawn(coverage, run_file),
        f"tables     {tables_line(header, items)}",
        f"took       {clock(seconds)}, {header.profile} profile, seed {header.seed}",
    ]
    lines = ["", *folded(head, width, INDENT), ""]
    if items or deaths:
        lines += by_dtype(items, dead)
    found = kinds(records)
    if found or deaths:
        checks = sum(n for s, n in totals(items).items() if s in FINDINGS)
        of = f": {plural(len(found), 'kind')} in {plural(checks, 'check')}, each by its least case" if found else ""
        lines += ["", f"findings{of}"]
        lines += [f"  {d.how} ({d.signal}) of {d.op} {d.dtype} at stage {d.stage}: {d.case}" for d in deaths]
        worst = sorted(found, key=lambda r: -(max((m.share or 0.0 for m in r.measures), default=0.0)))
        lines += [f"  {r.status} {r.op} {r.dtype} {r.aspect}: {r.shrunk or r.case}" for r in worst[:WORST]]
        lines += [f"  ... and {len(worst) - WORST} more kinds, told above"] if len(worst) > WORST else []
    for title, part in (
        ("unsupported", refused(items)),
        ("fallback (ran on the CPU unasked)", _with(items, Status.FALLBACK)),
        (f"void: {MEANING[Status.VOID]}", voids(items)),
        (
            "the CPU's own results are farther from the truth than the budget, by so many times at worst, in these ops; there "
            "the device's budget is wider, up to 8 times",
            worse_reference(records),
        ),
    ):
        lines += ["", title, *folded(part, width, 4)] if part else []
    for title, part in (
        ("the CPU itself died or hung in", [f"  {d.case} ({d.signal})" for d in lost]),
        ("failed in parity itself: please report", [f"  {b}" for b in broken]),
        (
            "failed by --fail-on",
            [f"  {s}: {plural(n, 'check')}; one of them: {one}" for s, (n, one) in unwanted(items, records, fail_on).items()],
        ),
    ):
        lines += ["", title, *part] if part else []
    return "\n".join(lines)


def _drawn(coverage: Sequence[Coverage], run_file: str) -> list[str]:
    """How many of the pairs of features that the families can draw were drawn."""
    able, drawn = sum(c.applicable for c in coverage), sum(c.drawn for c in coverage)
    if not able:
        return []
    told = f"drawn      {drawn:,} of {able:,} pairs of features ({drawn / able:.1%})"
    return [f"{told}; by family: parity coverage {shlex.quote(run_file)}"]


def _aspects(items: Sequence[Item]) -> str:
    per: Counter[str] = Counter()
    for item in items:
        for aspect, counts in item.counts.items():
            per[aspect] += sum(n for s, n in counts.items() if s in COMPARED)
    return ", ".join(f"{a} {n:,}" for a, n in per.items()) or "none"


def _with(items: Sequence[Item], status: Status) -> list[str]:
    ops = [i.op for i in items if any(c.get(status) for c in i.counts.values())]
    return [f"  {listed(ops, 400)}"] if ops else []


def last_line(
    items: Sequence[Item],
    deaths: Sequence[Death],
    run_file: str,
    code: int,
    records: Sequence[Record] = (),
    fail_on: Sequence[str] = (),
) -> str:
    """The verdict and the next command. fail_on: statuses that fail beside the findings."""
    run_file = shlex.quote(run_file)
    count = totals(items)
    n = sum(v for s, v in count.items() if s in FINDINGS)
    if code == 3:
        return f"nothing was compared: this is no success; widen the selection or see why above; stored in {run_file}"
    parts = [f"{plural(max(1, len(kinds(records))), 'finding')} in {plural(n, 'check')}"] if n else []
    deaths = [d for d in deaths if d.by_device]
    parts += [f"{plural(len(deaths), 'case')} that ended or hung the process"] if deaths else []
    if not parts and not any(compared(i) for i in items):
        return f"nothing was compared; stored in {run_file}"
    said = " and ".join(parts) or "everything that was compared agrees"
    if code == 1 and not parts:
        asked = [f"{plural(n, 'check')} {s}" for s, (n, _) in unwanted(items, records, fail_on).items()]
        why = f"--fail-on fails the run for {' and '.join(asked)}" if asked else "parity itself failed in some items"
        said += f", but {why}: see above"
    if parts:
        return f"{said}; stored in {run_file}; all of them again: parity replay {run_file}"
    return f"{said}; stored in {run_file}; compare with another run: parity diff {run_file} OTHER"
