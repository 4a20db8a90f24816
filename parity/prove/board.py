"""The scoreboard as text and as JSON.

The score of mutants as text: by class, family and direction, with the survivors and why they survived.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parity.catalog.samples import torch_version
from parity.core import outputs
from parity.core.child import Event
from parity.core.version import __version__
from parity.prove.mutants.recording import classes
from parity.prove.mutants.scoring import Scores
from parity.prove.routes import Route
from parity.prove.score import MARGINAL, OPINFO, SUITE, Score
from parity.report.words import clock, plural
from parity.zoo.bug import KINDS
from parity.zoo.subjects import FaultSubject

TITLES = {SUITE: "parity's suite", OPINFO: "OpInfo + assert_close"}
NAMED = 4  # most faults to list for a text that they have in common
SMALL = 6  # most elements of a shrunk case that counts as small
HONEST = "Each fault stands alone on a SIMULATED device: shares of such bugs that the suite sees, no word about any hardware."
Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Board:
    """All scores, in the order of the faults. routes: where each fault was looked for. source: "" for the zoo. unknown: rows
    whose calls could not be recorded, so that faults are looked for in them by name only. left: number of scores missing
    because of an interruption; `subjects` are those that have scores."""

    profile: str
    generators: tuple[str, ...]
    seeds: tuple[str, ...]
    source: str
    workers: int
    seconds: float
    subjects: tuple[FaultSubject, ...]
    routes: dict[str, Route]
    scores: tuple[Score, ...]
    unknown: tuple[str, ...] = ()
    left: int = 0

    def of(self, generator: str, subjects: Iterable[FaultSubject] | None = None) -> list[Score]:
        """The scores of one generator, for all faults or for these."""
        ids = None if subjects is None else {s.id for s in subjects}
        return [s for s in self.scores if s.generator == generator and (ids is None or s.fault in ids)]


def wilson(seen: int, of: int) -> tuple[float, float]:
    """The 95 % confidence interval of a fraction. Wilson, JASA 22 (1927) 209: it stays inside [0, 1] and is valid near 0 and
    1."""
    if not of:
        return 0.0, 1.0
    p, z2 = seen / of, Z95 * Z95
    middle = (p + z2 / (2 * of)) / (1 + z2 / of)
    half = Z95 / (1 + z2 / of) * math.sqrt(p * (1 - p) / of + z2 / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def header(board: Board) -> list[str]:
    """What was scored, and how."""
    many = plural(len(board.seeds), "seed") if len(board.seeds) > 1 else f"seed {board.seeds[0]}"
    origin = f" of {board.source}" if board.source else " of the zoo"
    early = [f"INTERRUPTED: {board.left} of {board.left + len(board.scores)} were not scored."] if board.left else []
    return [
        f"parity {__version__} zoo: {plural(len(board.subjects), 'fault')}{origin}, {board.profile} profile, {many}, "
        f"{plural(board.workers, 'worker')}, torch {torch_version()}, took {clock(board.seconds)}",
        HONEST,
        *early,
    ]


def render(board: Board) -> str:
    """The whole table."""
    lines = [*header(board), ""]
    lines += _table(board, "kind", _kinds(board.subjects))
    lines += ["", *_table(board, "trigger class", _triggers(board.subjects))]
    for g in board.generators:
        lines += ["", *_figures(board, g)]
    for g in board.generators:
        lines += _section(f"misses of {TITLES[g]}", _misses(board, g))
    lines += _section("alarms: findings that are not the fault's", _each(board, lambda s: s.alarms))
    lines += _section(f"shrunk cases of more than {SMALL} elements", _large(board))
    lines += _section("shown too by ops that use the faulty one", _each(board, lambda s: s.composites))
    through = [s for s in board.of(SUITE) if s.through]
    lines += _section("found only through ops that use the faulty one", (f"{s.fault}: {s.op}" for s in through))
    lines += _section("notes", _each(board, lambda s: s.notes))
    absent = (f"{s.id}: {', '.join(board.routes[s.id].absent)}" for s in board.subjects if board.routes[s.id].absent)
    title = "rows of which is not known what they call, because recording it ended the process: looked at by name alone"
    lines += _section(title, board.unknown)
    lines += _section(f"rows named by a fault that the {board.profile} profile does not run", absent)
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------------- the table

Groups = list[tuple[str, list[FaultSubject]]]


def _kinds(subjects: Sequence[FaultSubject]) -> Groups:
    by: dict[str, list[FaultSubject]] = defaultdict(list)
    for s in subjects:
        by[s.kind].append(s)
    order = [k for k in KINDS if k in by] + sorted(k for k in by if k not in KINDS)
    groups: Groups = [(k, by[k]) for k in order]
    silent = [s for s in subjects if s.silent]
    if silent and len(silent) < len(subjects):
        groups.append(("all silent ones", silent))
    return [*groups, ("all", list(subjects))]


def _triggers(subjects: Sequence[FaultSubject]) -> Groups:
    by: dict[str, list[FaultSubject]] = defaultdict(list)
    for s in subjects:
        for t in s.triggers:
            by[t].append(s)
    return sorted(by.items(), key=lambda g: (-len(g[1]), g[0]))


def _table(board: Board, title: str, groups: Groups) -> list[str]:
    """Found of the finished ones for each group and generator, the last group with its interval; and the number of the others
    where there are any."""
    late = {g for g in board.generators if any(s.late for s in board.of(g))}
    rows = [[title, *(word for g in board.generators for word in (TITLES[g], *(["not finished"] if g in late else [])))]]
    for name, subjects in groups:
        cells = [name]
        for g in board.generators:
            scores = board.of(g, subjects)
            cells += [_found(scores, name.startswith("all")), *([str(sum(s.late for s in scores))] if g in late else [])]
        rows.append(cells)
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]


def _found(scores: Sequence[Score], with_interval: bool) -> str:
    count, of = sum(s.found for s in scores), sum(not s.late for s in scores)
    text = f"{count:3} of {of:3}  {100 * count / max(1, of):3.0f} %"
    low, high = wilson(count, of)
    return text + (f"  (95 %: {100 * low:.1f} to {100 * high:.1f} %)" if with_interval else "")


def _figures(board: Board, generator: str) -> list[str]:
    """Statuses, examples, seconds, sizes and firing fractions of the faults found."""
    scores = board.of(generator)
    hits = [s for s in scores if s.found]
    lines = [TITLES[generator]]
    if hits:
        lines += [f"  by status    {_counted(s.status for s in hits)}"]
        examples, seconds = [s.examples for s in hits], [s.seconds for s in hits]
        lines += [f"  until found  examples {_spread(examples)}; seconds {_spread(seconds)}"]
        sizes = [s.elements for s in hits if s.elements is not None]
        if sizes and generator == SUITE:
            large = sum(n > SMALL for n in sizes)
            lines += [f"  shrunk to    {_spread(sizes)} elements; {plural(large, 'case')} above {SMALL}"]
    little = sum(s.miss.startswith(MARGINAL) for s in scores)
    lines += [f"  marginal     {plural(little, 'score')} missed for it: nothing else was found"] if little else []
    drawn = [s for s in scores if s.examples]
    if drawn:
        share = statistics.median(s.share for s in drawn)
        lines += [f"  at work in   {100 * share:.3g} % of the cases drawn of its ops, in the middle of the faults"]
    checked = sum(s.bystanders for s in scores)
    if checked:
        alarms = sum(a.startswith("bystander") for s in scores for a in s.alarms)
        lines += [f"  bystanders   {plural(checked, 'case')} of ops that do not use the fault, {plural(alarms, 'finding')}"]
    return lines


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{w} {n}" for w, n in Counter(words).most_common())


def _spread(values: Sequence[float]) -> str:
    """Median, 90th percentile and maximum."""
    order = sorted(values)
    tenths = order[min(len(order) - 1, int(0.9 * len(order)))]
    return f"{statistics.median(order):.3g} (90 %: {tenths:.3g}, most {order[-1]:.3g})"


# --------------------------------------------------------------------------------------------------------------- the lists


def _section(title: str, rows: Iterable[str]) -> list[str]:
    lines = [f"  {r}" for r in rows]
    return ["", title, *lines] if lines else []


def _misses(board: Board, generator: str) -> Iterator[str]:
    """One line for each fault that was missed, with the seeds that missed it if there are several; and the cases where it fired
    without a report."""
    kinds = {s.id: s for s in board.subjects}
    missed: dict[str, list[Score]] = defaultdict(list)
    for s in board.of(generator):
        if not s.found:
            missed[s.fault].append(s)
    runs = Counter(s.fault for s in board.of(generator))
    wide = max((len(f) for f in missed), default=0)
    for fault, scores in missed.items():
        often = f" (in {len(scores)} of {runs[fault]} seeds)" if runs[fault] > 1 else ""
        subject = kinds[fault]
        yield f"{fault:<{wide}}  {subject.kind} [{', '.join(subject.triggers)}]: {scores[0].miss}{often}"
        if generator == SUITE:
            yield from (f"    {case}" for case in scores[0].unseen)


def _large(board: Board) -> Iterator[str]:
    """The least cases that are not small, the largest first; one seed of each fault."""
    least = {s.fault: s for s in reversed(board.of(SUITE)) if s.found and (s.elements or 0) > SMALL}
    for s in sorted(least.values(), key=lambda s: -(s.elements or 0)):
        yield f"{s.fault}: {s.elements}: {s.shrunk}"


def _each(board: Board, what: Callable[[Score], Sequence[str]]) -> Iterator[str]:
    """The texts of the scores, each once with the faults that it was said of."""
    under: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for s in board.scores:
        for text in what(s):
            under[s.generator, text][s.fault] = None
    for (generator, text), faults in under.items():
        names = ", ".join(list(faults)[:NAMED]) + (f" and {len(faults) - NAMED} more" if len(faults) > NAMED else "")
        yield f"{names}{'' if generator == SUITE else f' ({generator})'}: {text}"


# --------------------------------------------------------------------------------------------------------------- for programs


def tree(board: Board) -> dict[str, Any]:
    """The whole board as plain types."""
    return {
        "parity": __version__,
        "torch": torch_version(),
        "simulated": True,
        "profile": board.profile,
        "generators": board.generators,
        "seeds": board.seeds,
        "source": board.source or "parity.zoo",
        "workers": board.workers,
        "seconds": round(board.seconds, 1),
        "left": board.left,
        "recall": {g: _recall(board.of(g)) for g in board.generators},
        "silent": {g: _recall(board.of(g, [s for s in board.subjects if s.silent])) for g in board.generators},
        "kinds": {k: {g: _recall(board.of(g, s)) for g in board.generators} for k, s in _kinds(board.subjects)[:-1]},
        "triggers": {k: {g: _recall(board.of(g, s)) for g in board.generators} for k, s in _triggers(board.subjects)},
        "unknown": list(board.unknown),
        "faults": [_fault(board, s) for s in board.subjects],
    }


def _recall(scores: Sequence[Score]) -> dict[str, Any]:
    count, late = sum(s.found for s in scores), sum(s.late for s in scores)
    of = len(scores) - late
    return {"found": count, "of": of, "not finished": late, "interval": [round(x, 4) for x in wilson(count, of)]}


def _fault(board: Board, s: FaultSubject) -> dict[str, Any]:
    f = s.fault
    facts = {
        "id": f.id,
        "title": f.title,
        "source": f.source,
        "kind": s.kind,
        "triggers": s.triggers,
        "level": "+".join(f.levels),
    }
    runs = [{**asdict(x), "share": round(x.share, 4)} for x in board.scores if x.fault == s.id]
    facts |= {"level": "+".join(f.levels), "ops": f.ops, "scaled": f.scaled}
    return {**facts, "silent": s.silent, "route": asdict(board.routes[s.id]), "runs": runs}


def write(board: Board, path: Path) -> None:
    """Write the JSON. Raises OutputError with the path, the reason and the remedy."""
    outputs.write(path, json.dumps(tree(board), indent=1, default=str) + "\n", "name another file with --output")


SHOWN = 200  # most survivors to list
JUDGED = 1e-2, 0.02  # a change below, or a part of the budget above which a survivor was judged inside of it


def counts(d: Event) -> bool:
    """Whether a mutant counts: it is killed, or has a witness."""
    return bool(d["killed"] or d.get("witness"))


def reason(d: Event) -> str:
    """Why a mutant survived."""
    if d.get("near"):
        return "drawn, marginal"
    if not d["fired"]:
        return "never drawn"
    if not d["changed"]:
        return "drawn, changed nothing"
    if d["policy"]:
        return "drawn, allowed by policy"
    worst, _, said = d["seen"]
    if "agree" not in said:
        return "drawn, not compared"
    if "unjudged" in said:
        return "drawn, excused"
    share = max(map(float, re.findall(r"share ([^\s;]+)", said)), default=0.0)
    return "drawn, inside the budget" if worst < JUDGED[0] or share > JUDGED[1] else "drawn, masked"


def _share(killed: int, of: int) -> str:
    low, high = wilson(killed, of)
    return f"{killed} of {of} = {100 * killed / of if of else 0:.1f} % (95 %: {100 * low:.0f} to {100 * high:.0f})"


def _mutant_table(title: str, ds: Sequence[Event], key: Callable[[Event], str]) -> Iterator[str]:
    yield f"\n{title:46} own row                                  with others"
    groups: dict[str, list[Event]] = defaultdict(list)
    for d in ds:
        groups[key(d)].append(d)
    for name, group in sorted(groups.items()):
        own, also = (sum(bool(d["killed"] or (more and d.get("elsewhere"))) for d in group) for more in (False, True))
        yield f"  {name:44.44} {_share(own, len(group)):40} {100 * also / len(group):.0f} %"


def render_mutants(s: Scores) -> str:
    return "\n".join(_met(s) if s.met is not None else _scored(s))


def _scored(s: Scores) -> Iterator[str]:
    broken, late = [d for d in s.mutants if d.get("broken")], [d for d in s.mutants if d.get("late")]
    ds = [d for d in s.mutants if not d.get("broken") and not d.get("late") and counts(d)]
    without = len(s.mutants) - len(ds) - len(broken) - len(late)
    yield (
        f"{plural(len(s.mutants), 'mutant')} with seed {s.seed} in {s.profile}: {len(ds)} count, {without} have no witness, "
        f"{len(late)} are not finished, {len(broken)} are broken"
    )
    killed, also = (sum(bool(d["killed"] or (more and d.get("elsewhere"))) for d in ds) for more in (False, True))
    yield f"killed by their own row                      {_share(killed, len(ds))}"
    yield f"killed by it or another row of the kernel    {_share(also, len(ds))}"
    little = sum(bool(not d["killed"] and d.get("near")) for d in ds)
    yield f"survive because marginal is no finding          {_share(little, len(ds))}"
    strict = [d for d in ds if not d["policy"]]
    yield f"by their own row, without what policy allows {_share(sum(d['killed'] for d in strict), len(strict))}"
    titles = classes()
    yield from _mutant_table("class", ds, lambda d: f"{d['kind']}: {titles[d['kind']].title}")
    yield from _mutant_table("family", ds, lambda d: str(d["family"]))
    yield from _mutant_table("direction", ds, lambda d: "public function" if d["direction"] == "any" else str(d["direction"]))
    left = sorted((d for d in ds if not d["killed"]), key=lambda d: (d["kind"], d["word"], d["row"]))
    yield "\nwhy survivors survived"
    yield from (f"  {n:5} {why}" for why, n in Counter(map(reason, left)).most_common())
    yield "\nclass and reason"
    yield from (f"  {n:5} {kind}, {why}" for (kind, why), n in Counter((d["kind"], reason(d)) for d in left).most_common(30))
    yield "\nsurvivors" + (f" (the first {SHOWN} of {len(left)})" if len(left) > SHOWN else "")
    for d in left[:SHOWN]:
        other = f"; {d['elsewhere']} reports it" if d.get("elsewhere") else ""
        yield f"  {d['id']}\n    {reason(d)}: {d['fired']} of {d['cases']} cases{other}\n    witness: {d['witness']}"
        if d["seen"]:
            yield f"    in {d['seen'][1]}: {d['seen'][2]}"
    for d in (*broken, *late):
        yield f"  {'not finished' if d.get('late') else 'broken'}: {d['id']} {d.get('broken', '')[:200]}"
    yield from (f"  not recorded: {u}" for u in s.unknown)


def _met(s: Scores) -> Iterator[str]:
    """The conditions that were never met, by class and word."""
    assert s.met is not None
    of, never = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for held in s.met.values():
        for identity, n in held.items():
            _, direction, what = identity.rsplit("/", 2)
            kind, _, word = what.partition(":")
            key = f"{kind} {({'f': 'forward', 'b': 'backward', 'a': 'function'})[direction]}", word.rpartition("=")[2]
            of[key] += 1
            never[key] += not n
    yield f"conditions that the cases of {plural(len(s.met), 'row')} never met, in {s.profile}"
    yield f"in all {sum(never.values()):,} of {sum(of.values()):,} (one that nothing can meet among them)"
    for kind in sorted({k for k, _ in of}):
        words = sorted(((never[k, w], of[k, w], w) for k, w in of if k == kind), reverse=True)
        shown = ", ".join(f"{w} {n} of {m}" for n, m, w in words[:8] if n)
        yield f"  {kind:28} {sum(n for n, _, _ in words):6} of {sum(m for _, m, _ in words):6}  {shown}"
