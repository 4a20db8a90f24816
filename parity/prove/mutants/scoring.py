"""The jobs of a score: what rows call, which mutants their cases report, and which conditions their cases meet;
and the child processes that do them, which a mutant may end."""

from __future__ import annotations

import functools
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from parity.checks.check import check, quiet
from parity.checks.trial import Result, Settings
from parity.core import notation
from parity.core.child import BEGIN, Event, Given, Job
from parity.core.dtypes import DEFAULT
from parity.core.errors import CaseError
from parity.devices import Fault, resolve
from parity.devices.sim import SimDevice
from parity.devices.sim.call import Call
from parity.engine import suite
from parity.engine.cases import is_near
from parity.engine.checking import settings
from parity.engine.child import Child, Watch, surroundings
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan, run_plan
from parity.engine.suite import Item
from parity.execution.execute import said
from parity.generation.generate import Drawn
from parity.prove.mutants.mutant import Mutant, Witnessed, fault
from parity.prove.mutants.recording import frequencies, mutants_of, record, sample
from parity.prove.mutants.witness import search
from parity.prove.score import FOUND, rounds
from parity.store import marginal

WORK = 120.0  # CPU seconds of a row's cases under one mutant, after which it counts as not finished
OTHERS, ELSEWHERE = 6, 8.0  # other rows of a kernel, and the CPU seconds for all of them
SEARCH = 5.0  # CPU seconds of the search for a witness
KEPT_ROWS = 12  # rows whose drawn cases are kept
Tried = tuple[Item, int, bool, Drawn]


def _plan(profile: str) -> RunPlan:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return run_plan(RunOptions(device="sim", profile=profile), 0.0, None)


def recording(given: Given) -> Job:
    """What each of these rows calls."""
    plan = _plan("quick")
    for name in given.asked["names"]:
        yield {BEGIN: name}
        try:
            yield {"name": name, "facts": record(name, plan)}
        except Exception as e:  # a row whose calls cannot be recorded has no mutants
            yield {"name": name, "why": f"{type(e).__name__}: {said(e)}"}


def scoring(given: Given) -> Job:
    """The score of each of these mutants."""
    s = Scorer(given)
    for name, identity in given.asked["mutants"]:
        m = s.mutant(name, identity)
        yield {BEGIN: facts_of(m, s.recorded[name]["family"])}
        yield from s.score(m)


def meeting(given: Given) -> Job:
    """In how many cases of each of these rows the conditions of its mutants hold; nothing is planted."""
    s = Scorer(given)
    for name in given.asked["names"]:
        yield {BEGIN: name}
        yield {"name": name, "held": s.held(name)}


def facts_of(m: Mutant, family: str) -> Event:
    """A mutant as it is stored."""
    about = {"id": m.id, "row": m.row, "op": m.op, "direction": m.direction, "kind": m.kind, "word": m.word}
    return {**about, "family": family, "policy": m.policy, "killed": False}


@dataclass(slots=True)
class _Ran:
    """What came of the cases of a row. hit: the finding; seen: of the cases that the mutant changed unseen, the one that it
    changed most: by how much, its text, and what was said of it; late: whether the work was not finished; broken: why the
    mutant, or parity, failed; near: cases that say no more than what a run calls marginal."""

    hit: Event | None = None
    cases: int = 0
    fired: int = 0
    changed: int = 0
    seen: tuple[float, str, str] | None = None
    late: bool = False
    broken: str = ""
    near: list[str] = field(default_factory=list)

    @property
    def stored(self) -> Event:
        """All of it but the finding, as it is stored."""
        names = ("cases", "fired", "changed", "seen", "late", "broken", "near")
        return {n: getattr(self, n) for n in names} | ({"killed": True, "hit": self.hit} if self.hit else {})


class Scorer:
    """Scores mutants in this process. recorded: what rows call."""

    def __init__(self, given: Given) -> None:
        self.plan = _plan(given.asked["profile"])
        self.seed = given.asked["seed"]
        self.recorded = json.loads(Path(given.asked["recorded"]).read_text(encoding="utf-8"))
        self.often = frequencies(self.recorded)
        self.cases = functools.lru_cache(maxsize=KEPT_ROWS)(self._cases)

    def _cases(self, name: str) -> list[Tried]:
        row = suite.row(name)
        return list(rounds([Item(row, d) for d in DEFAULT if d in row.dtypes], self.plan))

    def mutant(self, name: str, identity: str) -> Mutant:
        """The mutant of a row with this name."""
        return next(m for m in mutants_of(name, self.recorded[name], self.often, self.seed) if m.id == identity)

    def score(self, m: Mutant) -> Iterator[Event]:
        """Its score; before a search for a witness, which may end the process, what is known so far."""
        known = facts_of(m, self.recorded[m.row]["family"])
        ran = self._ran(m, m.row, WORK)
        known |= ran.stored
        if ran.hit or ran.broken or ran.late:
            yield known
            return
        yield {BEGIN: known}
        seen = Witnessed()
        faulty = resolve("sim", (fault(m, seen),))
        healthy = self.plan.device
        assert isinstance(faulty, SimDevice)
        assert isinstance(healthy, SimDevice)
        known["witness"] = search(m, suite.row(m.row), faulty, healthy, seen, SEARCH, suite.profile("full").sizes)
        if known["witness"]:
            known["elsewhere"] = self._elsewhere(m)
        yield known

    def _ran(self, m: Mutant, name: str, seconds: float) -> _Ran:
        """The cases of a row on a device with this mutant, until one reports it."""
        seen, ran, until = Witnessed(), _Ran(), time.process_time() + seconds
        device = resolve("sim", (fault(m, seen),))
        plan = replace(self.plan, device=device)
        with device.active():
            for item, ordinal, pinned, one in self.cases(name):
                if time.process_time() > until:
                    ran.late = True
                    break
                fired, changed, seen.worst = seen.fired, seen.changed, 0.0
                how = settings(item, plan, ordinal, pinned)
                try:
                    results = check(item.row, one.case, device, plan.cpu, plan.tables, how, quiet, [])[0]
                except CaseError:
                    continue
                except Exception as e:  # of the mutant, or a bug of parity itself
                    ran.broken = f"{type(e).__name__}: {said(e)}"
                    break
                ran.cases += 1
                if seen.fired == fired:
                    continue
                ran.fired += 1
                ran.changed += seen.changed > changed
                hits = sorted((r for r in results if r.verdict.status in FOUND), key=is_near)
                if hits and "FaultError" in hits[0].verdict.reason:
                    ran.broken = hits[0].verdict.reason
                    break
                if hits and self._is_healthy(item, one, hits[0]):
                    r = hits[0].verdict
                    text = notation.case_text(one.case)
                    if is_near(hits[0]) and marginal.is_seldom({*ran.near, text}):  # a run would not count it
                        ran.near.append(text)
                        continue
                    ran.hit = {"case": text, "status": str(r.status), "aspect": str(hits[0].aspect), "at": ran.cases}
                    break
                if seen.changed > changed and (ran.seen is None or seen.worst > ran.seen[0]):
                    ran.seen = seen.worst, notation.case_text(one.case)[:400], _said(results)
        return ran

    def _is_healthy(self, item: Item, one: Drawn, result: Result) -> bool:
        """Whether the device without the mutant does not show this."""
        how = Settings(True, result.aspect == "repeat", None, frozenset({result.aspect}))
        again = check(item.row, one.case, self.plan.device, self.plan.cpu, self.plan.tables, how, quiet, [])[0]
        return not any(r.verdict.status in FOUND for r in again if r.aspect is result.aspect)

    def _elsewhere(self, m: Mutant) -> str:
        """The first other row that reports it, in either direction: raw rows of its kernel first, then those that call the
        fewest kernels; "" if none of a few does."""
        wide = replace(m, direction="any")

        def order(name: str) -> tuple[bool, int, str]:
            kernels = self.recorded[name]["kernels"]
            return not name.startswith(m.op.strip("_")) or f"{m.op}|forward" not in kernels, len(kernels), name

        def calls(name: str) -> bool:
            r = self.recorded[name]
            return m.op in r["functions"] if m.level == "function" else any(k.partition("|")[0] == m.op for k in r["kernels"])

        until = time.process_time() + ELSEWHERE
        for name in sorted((n for n in self.recorded if n != m.row and calls(n)), key=order)[:OTHERS]:
            if (left := until - time.process_time()) > 0.0 and self._ran(wide, name, left).hit:
                return str(name)
        return ""

    def held(self, name: str) -> dict[str, int]:
        """In how many cases of a row the condition of each of its mutants holds."""
        watched: dict[tuple[str, str], list[tuple[Mutant, dict[Any, Any]]]] = {}
        for m in mutants_of(name, self.recorded[name], self.often, self.seed):
            watched.setdefault((m.level, m.op), []).append((m, {}))
        now: set[str] = set()

        def looking(level: str, op: str) -> Fault:
            def look(call: Call) -> bool:
                for m, state in watched[level, op]:
                    if m.direction not in ("any", call.direction) or any(t.layout is not torch.strided for t in call.operands):
                        continue
                    if m.effect.when(call.handed_to(call._run, call.seen, state)):
                        now.add(m.id)
                return False

            return Fault(f"{level} {op}", (op,), lambda call: call.run(), look, level=level)

        device = resolve("sim", tuple(looking(*key) for key in watched))
        counts = {m.id: 0 for ms in watched.values() for m, _ in ms}
        plan = replace(self.plan, device=device)
        with device.active():
            for item, ordinal, pinned, one in self.cases(name):
                now.clear()
                try:
                    how = settings(item, plan, ordinal, pinned)
                    check(item.row, one.case, device, plan.cpu, plan.tables, how, quiet, [])
                except CaseError:
                    continue
                for identity in now:
                    counts[identity] += 1
        return counts


def _said(results: Sequence[Result]) -> str:
    """What was said of a case, aspect by aspect, with the largest part of its budget and what was not judged."""
    words = []
    for r in results:
        share = max([m.share or 0.0 for m in r.measures], default=0.0)
        unjudged = sum(m.unjudged for m in r.measures)
        words.append(f"{r.aspect} {r.verdict.status} share {share:.2g}" + (f" unjudged {unjudged}" if unjudged else ""))
    return "; ".join(words)


PLACE = "parity.prove.mutants.scoring."
SILENCE = 300.0  # seconds that one mutant may take before its process counts as hung
CHUNK = 12  # mutants, or rows, that one process is given
Hear = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Scores:
    """All that was found. mutants: the scores; met: row -> mutant -> cases in which its condition held; unknown: rows
    whose calls could not be recorded, with the reason."""

    profile: str
    seed: str
    mutants: tuple[Event, ...] = ()
    met: dict[str, dict[str, int]] | None = None
    unknown: tuple[str, ...] = ()


def score(patterns: Sequence[str], profile: str, seed: str, limit: int, workers: int, hear: Hear) -> Scores:
    """The scores of `limit` mutants of the rows that match; where that is 0, the map of the conditions that their cases
    meet, without planting. With patterns, other rows of a kernel are looked for among those that match."""
    wanted = tuple(dict.fromkeys(i.row.name for i in suite.select(patterns)))
    names = wanted if patterns else tuple(r.name for r in suite.rows("native"))
    environment = surroundings() | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def all_of(job: str, things: Sequence[Any], key: str, more: dict[str, Any]) -> Iterator[Event]:
            chunks = [list(things[k : k + CHUNK]) for k in range(0, len(things), CHUNK)]
            for k, events in enumerate(pool.map(lambda c: _done(PLACE + job, c, key, more, environment), chunks)):
                hear(job, min((k + 1) * CHUNK, len(things)), len(things))
                yield from events

        found = {e["name"]: e for e in all_of("recording", names, "names", {})}
        recorded = {n: e["facts"] for n, e in found.items() if "facts" in e}
        unknown = tuple(f"{n}: {found[n].get('why') or found[n].get('died')}" for n in names if n not in recorded)
        path = Path(folder) / "recorded.json"
        path.write_text(json.dumps(recorded), encoding="utf-8")
        recorded = json.loads(path.read_text(encoding="utf-8"))
        more = {"profile": profile, "seed": seed, "recorded": str(path)}
        able = [n for n in wanted if n in recorded]
        if not limit:
            met = {e["name"]: e["held"] for e in all_of("meeting", able, "names", more) if "held" in e}
            return Scores(profile, seed, met=met, unknown=unknown)
        chosen = [(m.row, m.id) for m in sample(recorded, able, limit, seed)]
        return Scores(profile, seed, tuple(all_of("scoring", chosen, "mutants", more)), unknown=unknown)


def _done(job: str, things: list[Any], key: str, more: dict[str, Any], environment: dict[str, str]) -> list[Event]:
    """What came of all of these things; a process that dies is started again for those that are left."""
    events: list[Event] = []
    while len(events) < len(things):
        given = {key: things[len(events) :], **more}
        with Child(job, given, Watch(SILENCE, SILENCE), environment=environment) as process:
            events += [e for e in process if BEGIN not in e]
            end = process.ending()
        if len(events) < len(things):  # of a mutant, what was known before
            at = things[len(events)]
            known = process.at if isinstance(process.at, dict) else {"name": at} if isinstance(at, str) else {"id": at[1]}
            events.append(known | ({"witness": ""} if "cases" in known else {"broken": f"its process ended ({end.died})"}))
            events[-1]["died"] = end.died
    return events
