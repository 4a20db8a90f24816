"""Recognizes the known findings of an item, without shrinking them and without looking for their causes. `Entry.excess` says
what is contained in an entry; here cases are compared, and it is noted what was seen.

A least case holds nothing that its finding does not need. So a drawn case that has all that a known least case of the same op
has, and is not smaller, and that differs in a known way (aspect, tensor, kind and class of difference), at known values and not
by more (`extents.exceeds`), belongs to the known finding. A drawn case without some of it does not: it is shrunk, and
its cause is looked for, as that of a new finding. Where the cause turns out to be a known one, the finding has grown if it is
not contained in the entry, which fails where a pinned case shows it, or goes beyond all that the entry knows
(`extents.outgrows`), which always fails.

What a run found once, it finds again: `uncovered` gives the drawn cases of a finding that its least case does not stand for,
and the entry holds those as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from parity.checks.trial import Result
from parity.core import notation
from parity.core.case import Case, Word
from parity.core.errors import CaseError
from parity.core.results import EARLIER_CALLS, Aspect, Cause, Record, Status, Verdict
from parity.findings import cause_search, causes, known
from parity.findings.known import Entry, Excess, Found, accepting
from parity.findings.regions import extent
from parity.findings.wording import death_words
from parity.store.features import features
from parity.store.rows import AGREES, NOTHING, Death, ItemRow, Sighting

# The groups of features that a least case has only if its finding needs them. Values and shapes vary too much to say so.
NEEDED = ("layout", "special", "mode", "refused", "into", "cotangent-layout", "after")
ALSO_NEEDED = ("shape empty", "operand on the CPU", "operands of several dtypes")
SLACK = 4  # by which a least case may have fewer elements than a known one that is not plainer


def shown(r: Result) -> str:
    """How a finding shows: its symptom, and the tensor. Equal calls that differ are wrong values, too: whether they differ is
    chance."""
    symptom = cause_search.symptom_of(r)
    symptom = "values" if symptom == "unstable" else symptom
    if symptom.startswith("raises") or not r.verdict.tensor:
        return symptom
    return f"{symptom.partition(': ')[0]} in {r.verdict.tensor}"


def shown_of(r: Record) -> str:
    """The same of a stored finding."""
    measure = r.measures[0] if r.measures else None
    return shown(Result(Aspect(r.aspect), Verdict(Status(r.status), r.reason, measure)))


# ----------------------------------------------------------------------------------------------------- one case and another


@dataclass(frozen=True, slots=True)
class Outline:
    """What a case has that a finding may need. words: features; arguments: flags and words among its arguments; numel: elements
    of all operands."""

    words: frozenset[str]
    arguments: frozenset[str]
    numel: int

    def stands_for(self, other: Outline) -> bool:
        """Whether another case has all that this one has, and is not smaller."""
        return self.words <= other.words and self.arguments <= other.arguments and self.numel <= other.numel


def outline(case: Case) -> Outline:
    words = {_unplaced(w) for w in features(case) if w.partition(" ")[0].partition("[")[0] in NEEDED or w in ALSO_NEEDED}
    words -= {"layout contiguous", "layout stacked"}
    arguments = (*((str(k), a) for k, a in enumerate(case.args)), *case.kwargs)
    words |= {EARLIER_CALLS} if case.history else set()  # no drawn case has them
    flags = {f"{k}={v}" for k, v in arguments if isinstance(v, (bool, str))}
    flags |= {f"{k}={v.name}" for k, v in arguments if isinstance(v, Word)}
    return Outline(frozenset(words), frozenset(flags), case.numel)


def shared(cases: Sequence[Case]) -> Outline:
    """What all of these cases have, and the size of the smallest."""
    outlines = [outline(c) for c in cases]
    words, flags = ([getattr(o, which) for o in outlines] for which in ("words", "arguments"))
    return Outline(frozenset.intersection(*words), frozenset.intersection(*flags), min(o.numel for o in outlines))


def _unplaced(feature: str) -> str:
    """A feature of a layout without the operand's position, because operands may be interchangeable, and in the words of
    causes: kernels that misread one kind of strides misread others."""
    if not feature.startswith("layout["):
        return feature
    word = feature.partition("] ")[2]
    return f"layout {cause_search.LAYOUTS.get(word, word)}"


def uncovered(least: Iterable[Case], drawn: Iterable[Case]) -> list[Case]:
    """As few of the drawn cases as, together with the least ones, stand for all of them."""
    held, more = [outline(c) for c in least], list[Case]()
    for one, case in sorted(((outline(c), c) for c in drawn), key=lambda x: (len(x[0].words), x[0].numel)):
        if not any(h.stands_for(one) for h in held):
            held.append(one)
            more.append(case)
    return more


# ---------------------------------------------------------------------------------------------------------------- an item


@dataclass(slots=True)
class Recognition:
    """The known findings of one item, and what was seen of them. strict: fail on what has grown by exploration, too; deadly:
    texts of cases that must not be run, because they still end the process."""

    op: str
    dtype: str
    entries: Sequence[Entry]
    today: date
    strict: bool = False
    sightings: list[Sighting] = field(default_factory=list)
    deadly: set[str] = field(default_factory=set)
    _outlines: dict[str, list[tuple[Outline, str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for e in self.entries:
            parsed = [
                (known.parsed_case(text), known.aspect_and_case(text)[1])
                for text in (*e.cases, *e.also)
                if self.op in e.ops and not e.dies
            ]
            self._outlines[e.id] = [(outline(c), c.dtype, text) for c, text in parsed if c.op == self.op]

    # ------------------------------------------------------------------------------------------------ drawn cases

    def explaining(self, r: Result, case: Case) -> tuple[Entry, str] | None:
        """The entry that a finding of a drawn case belongs to, with the text of the known case that says so."""
        x = Found(self.op, self.dtype, r.verdict.status, r.aspect, shown(r), r.verdict.tensor)
        held = [e for e in accepting(self.entries, x) if not e.dies]
        if not held:
            return None
        x, mine = replace(x, extent=extent([(case, r.verdict.measure)], sure=1.0)), outline(case)
        for e in accepting(held, x):
            if e.cause is None:
                return e, ""
            for known_one, dtype, text in self._outlines[e.id]:
                if dtype == self.dtype and known_one.stands_for(mine) and (not e.older or text == notation.case_text(case)):
                    return e, text
        return None

    def saw(self, e: Entry, aspect: str, case: str, fails: bool = True) -> None:
        """Take note that a known finding is there. fails: whether it fails the run unless it is accepted."""
        self._add(e.sighting(Found(self.op, self.dtype, e.status, aspect, case=case), self.today, fails=fails))

    def matching(self, r: Record, pinned: bool) -> Sighting | None:
        """What a new finding is to the known ones, after its cause was looked for; None if it is none of them. pinned: whether
        a pinned case showed it. What comes by chance proves nothing about pinned cases."""
        (one,) = causes.gather((replace(r, shrunk=r.shrunk or r.case),))
        living = [e for e in self.entries if not e.dies and not e.older]
        same = [e for e in living if e.same_cause(one.cause) or (r.by_chance and e.by_chance and r.op in e.ops)]
        if not same:
            return None
        x = replace(Found.of(r), case=r.shrunk, pinned=pinned and not r.by_chance)
        mine = outline(notation.parse(r.shrunk or r.case))
        beyond = {e.id: self._excess(e, x, mine, one.cause) for e in same}
        # One that has not grown first.
        e = min(same, key=lambda e: (len(beyond[e.id].plainer), len(beyond[e.id].wider)))
        return self._add(e.sighting(x, self.today, beyond[e.id], self.strict))

    def _excess(self, e: Entry, x: Found, mine: Outline, cause: Cause) -> Excess:
        """How a finding of a known cause goes beyond the entry, in whatever pass: also by what its least case does not have
        though all known ones of its op have it and no property of a cause says so, or its words name the cause without one. Of
        two findings that each need what the other does not, neither is the other."""
        beyond, known = e.excess(replace(x, aspect="")), [] if e.by_chance else [o for o, *_ in self._outlines[e.id]]
        alike = [o for o in known if o.arguments <= mine.arguments and o.numel <= SLACK * mine.numel]
        if not known or (alike and not e.needs_more(cause)):
            return beyond
        plainer = f"in a plainer call: its cases have more elements or other {'operands' if alike else 'arguments'}"
        if e.needs_less(cause):
            return replace(beyond, plainer=f"{plainer}, and it needs what these do not: {', '.join(cause.properties)}")
        return replace(beyond, wider=", ".join(filter(None, (beyond.wider, plainer))))

    # ------------------------------------------------------------------------------------------------ replayed cases

    def replayed(self, e: Entry, text: str, results: Sequence[Result]) -> None:
        """Take note of what a known least case does now."""
        bad = [r for r in results if r.verdict.status.is_finding or r.verdict.status == e.status]
        if not bad:
            compared = any(r.verdict.status is Status.AGREE for r in results)
            self.note(e, AGREES if compared else NOTHING, text, "" if compared else "it compares nothing here")
            return
        for r in bad:
            case, status = known.parsed_case(text), r.verdict.status
            values = extent([(case, r.verdict.measure)], sure=1.0)
            x = Found(self.op, self.dtype, status, r.aspect, "", r.verdict.tensor, values, text, not e.by_chance)
            beyond = e.excess(replace(x, aspect=""))
            if not beyond:
                self._add(e.sighting(x, self.today, fails=status.is_finding))
            elif self.explaining(r, case) is None:
                grown = Excess(f"{beyond.wider or beyond.plainer}: {r.verdict.reason[:120]}")
                self._add(e.sighting(x, self.today, grown, self.strict))

    def died(self, e: Entry, text: str) -> None:
        """Take note that a case that is known to end the process does so."""
        self.deadly.update(e.texts)
        self.saw(e, "", text)

    def skipped(self, e: Entry, text: str, why: str) -> None:
        """Leave out the cases of a finding that ends the process."""
        self.deadly.update(e.texts)
        self.note(e, NOTHING, text, why)

    def leave_out_deadly(self) -> None:
        """Leave out the cases of all findings that end the process: another part of the item runs them."""
        self.deadly.update(text for e in self.entries if e.dies and self.op in e.ops for text in e.texts)

    # ------------------------------------------------------------------------------------------------ refusals

    def without_known(self, row: ItemRow, statuses: Collection[str]) -> ItemRow:
        """The row of the item without those of its refusals and fallbacks that are known. statuses: those that fail a run."""
        for aspect, some in row.counts.items():
            for e in (e for e in self.entries if not Status(e.status).is_finding and some.get(e.status)):
                if not e.excess(Found(self.op, self.dtype, e.status, aspect)):
                    self.saw(e, aspect, "", fails=e.status in statuses)
        return known.unaccepted(row, self.entries, statuses, self.today)

    def note(self, e: Entry, state: str, text: str, why: str = "") -> None:
        """Take note that a known case did not show its finding. state: AGREES, or NOTHING where it said nothing."""
        self._add(Sighting(e.id, self.op, self.dtype, state, "", text, why))

    def _add(self, one: Sighting) -> Sighting:
        if one not in self.sightings:
            self.sightings.append(one)
        return one


def known_death(entries: Sequence[Entry], d: Death, pinned: bool, today: date, strict: bool = False) -> Sighting | None:
    """What a death is to the known ones; None if it is none of them. A case that is known to end the process, or has all that
    one has, may do so in any way. Others have grown out of an entry whose cases end it in the same words."""
    deadly = [e for e in entries if e.dies]
    same = [e for e in deadly if d.case in e.texts or (d.op in e.ops and (e.cause is None or _stands_for(e, d)))]
    like = [e for e in deadly if e.cause is not None and e.cause.subject == death_words(d)]
    if not (same or like):
        return None
    e, x = (same or like)[0], Found(d.op, d.dtype, d.how, case=d.case, pinned=pinned)
    beyond = Excess() if d.case in e.texts else e.excess(x)
    if not same and d.op in e.ops:
        beyond = replace(beyond, plainer="in a plainer call")
    return e.sighting(x, today, beyond, strict)


def _stands_for(e: Entry, d: Death) -> bool:
    try:
        mine, known_ones = notation.parse(d.case), [notation.parse(text) for text in e.texts]
    except CaseError:  # a user's own function
        return False
    return any(c.op == mine.op and outline(c).stands_for(outline(mine)) and _rank(c) <= _rank(mine) for c in known_ones)


def _rank(case: Case) -> int:
    """The most dimensions of an operand, of which shrinking left what the death needs."""
    return max((len(s.shape) for s in case.operands()), default=0)
