"""The cases of known findings: run again before an item, and taken out of what it found; and deaths that are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from parity.checks.check import Result
from parity.core import notation, untrusted
from parity.core.case import Case
from parity.core.results import Aspect, Json, Record, Status
from parity.engine import inquest, suite
from parity.engine.cases import ItemTally, record
from parity.engine.checking import ItemRun, end_unless_alive
from parity.engine.findings import comes_and_goes
from parity.engine.journal import REPLAYING, SHRINKING
from parity.engine.options import RunOptions
from parity.engine.planning import BASE_SECONDS, RunPlan
from parity.findings import known_file
from parity.findings.known import Entry, aspect_and_case, parsed_case
from parity.findings.recognition import Recognition, known_death
from parity.store.rows import AGREES, CPU, NOTHING, OUTSIDE, Death
from parity.store.run_file import encode

ASKED, OFTEN = 3, 30  # so many cases of what is known to come and go are run again so often, to see one go
REPLAYS = 3  # how often a known case must agree, one time after the other, to count as fixed
USUAL = [Aspect.FORWARD, Aspect.BACKWARD, Aspect.OUT, Aspect.INPLACE]  # aspects of a known case that names none


def recognition(run: ItemRun) -> Recognition:
    """What recognizes the known findings of an item."""
    item, plan = run.item, run.plan
    entries = plan.known.entries if plan.known is not None else ()
    return Recognition(item.row.name, item.dtype, entries, date.today(), plan.options.strict_known)


def replay_known(run: ItemRun, known: Recognition, dead: frozenset[int]) -> None:
    """Run the least cases of the known findings of this item; those that end the process, in one of their own."""
    item, plan = run.item, run.plan
    for k, (entry, text, case) in enumerate(cases_of(known.entries, item.row.name, item.dtype), REPLAYING):
        if entry.dies and dead:  # the item was begun before, and each of these takes a process and its patience
            known.skipped(entry, text, "not run again after another death")
        elif entry.dies and plan.left < (seconds := BASE_SECONDS + plan.patience(case)):
            known.skipped(entry, text, f"less than {seconds:.0f} s of the time were left")
        elif plan.left <= 0:
            known.note(entry, NOTHING, text, "the time was over")
        elif entry.dies:
            _replay_deadly(plan, known, entry, text, case)
        elif k in dead:  # the controller reports this death
            known.note(entry, NOTHING, text, "it ends the process now")
        else:
            run.begin(k, case)
            known.replayed(entry, text, _results_of_known(run, entry, text, case))
            run.journal.end()


def cases_of(entries: Collection[Entry], op: str, dtype: str) -> Iterator[tuple[Entry, str, Case]]:
    """(entry, its text, case) of every least case of an op in a dtype."""
    for e in entries:
        for text in e.cases if op in e.ops else ():
            case = parsed_case(text)
            if (case.op, case.dtype) == (op, dtype):
                yield e, text, case


def _results_of_known(run: ItemRun, entry: Entry, text: str, case: Case) -> tuple[Result, ...]:
    """The results of a known case in its aspect, or in those of its entry: of the first time that it does not agree, or of the
    last."""
    named = aspect_and_case(text)[0]
    aspects = [Aspect(a) for a in ((named,) if named else entry.aspects)] or USUAL
    results: tuple[Result, ...] = ()
    for _ in range(REPLAYS):
        again = ((a, run.recheck(case, a)) for a in aspects)
        results = tuple(r for a, some in again for r in some if r.aspect is a)
        run.notes.clear()
        if odd := [r.verdict.reason for r in results if r.verdict.status.is_doubtful]:
            end_unless_alive(run.plan, run.journal, odd[0])
        if any(r.verdict.status is not Status.AGREE for r in results):
            break
    return results


def _replay_deadly(plan: RunPlan, known: Recognition, entry: Entry, text: str, case: Case) -> None:
    o = plan.options
    how = inquest.How(plan.device.name, o.faults, o.setup)
    ended = inquest.attempt(notation.case_text(case), how, BASE_SECONDS + plan.patience(case), quiet=True)
    if ended.died:
        known.died(entry, text)
    elif ended.code == 0:
        known.note(entry, AGREES, text)
    else:
        known.note(entry, NOTHING, text, "it does not end the process any more, and does not agree")


def take_out_known(run: ItemRun, tally: ItemTally, known: Recognition) -> list[Record]:
    """Take the cases of known findings out of `tally.failing`, so that they are not shrunk. Their records: one for each kind
    and entry, with the known case that stands for it. What is known to come and go must not come every time."""
    made: list[Record] = []
    for key, seen in list(tally.failing.items()):
        hits = [(s, known.explaining(s[1], s[0].case)) for s in seen]
        chance = [s for s, hit in hits if hit is not None and hit[0].by_chance]
        if not all(comes_and_goes(run, s[0].case, s[1], OFTEN) for s in chance[:ASKED]):
            hits = [(s, None if hit is None or hit[0].by_chance else hit) for s, hit in hits]
        accepted: dict[str, Entry] = {}
        for (one, result), hit in sorted(hits, key=lambda h: (len(h[0][0].picks), h[0][0].picks)):
            if hit is not None and hit[0].id not in accepted:
                entry, drawn = accepted.setdefault(hit[0].id, hit[0]), notation.case_text(one.case)
                known.saw(entry, result.aspect, hit[1] or drawn)
                finding = record(run.item, result, drawn, "", False, hit[1] or drawn)
                count = sum(h is not None and h[0].id == entry.id for _, h in hits)
                made.append(replace(finding, cause=entry.cause, known=entry.id, count=count))
        if new := [s for s, hit in hits if hit is None]:
            tally.failing[key] = new
        elif accepted:
            del tally.failing[key]
            tally.mark(key, next(iter(accepted)))
    return made


def of_death(row: Json, o: RunOptions) -> Json:
    """Whether a death is known: the entry's id, whether it fails all the same, and the row to store. row: as a worker or the
    controller reports a death."""
    nothing = {"known": "", "fails": False, "sighting": ""}
    if not o.known or row["blame"] in (CPU, OUTSIDE):
        return nothing
    op, _, dtype = row["item"].rpartition("-")
    death = Death(op, dtype, row["case"], "", row["how"], untrusted.printable(row["signal"]), row["stage"])
    ordinal = row["ordinal"]
    pinned = ordinal < suite.profile(o.profile).pinned or REPLAYING <= ordinal < SHRINKING
    seen = known_death(known_file.read(Path(o.known)).entries, death, pinned, date.today(), o.strict_known)
    return nothing if seen is None else {"known": seen.id, "fails": seen.fails, "sighting": encode(seen)}
