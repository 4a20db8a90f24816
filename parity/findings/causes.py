"""The causes of a run: findings whose facts are equal, gathered, weighed and put in an order.

`parity.findings.cause_search` finds the facts of each finding by experiment. Findings with equal facts have one cause, and one
kernel is one cause whatever it is called by (`Cause.facts`). Errors with equal words are one, unless any operator may say them,
and so are the errors of one kernel: what it refuses is one check after another. What nobody looked into is no cause: it is
kept by kernel, after the causes (`Gathered.searched`), but for errors whose words say all. A death by a call that shows a
finding, too, belongs to that one's cause. Of what comes and goes, experiments with settings and operators say nothing.
Several operators have one cause if the deciding property is of a kind that they handle by one convention: operands on the
CPU, empty operands, destinations with gaps or of another dtype; and operators of elements if it is a layout or a kind of
number (NaN and Inf, the ends of the range, half types), for which they share code: a sort and a norm treat NaN each by their
own. Where an operator gives wrong values without any deciding property, its findings with one belong to that cause, and so
does drift of a function in which no operator differs by itself; so are its wrong values that need several things each by
itself. A setting that explains a finding is a class of its own, and drift of less than twice the budget counts as rare:
neither sends anybody to an editor first.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from parity.core import notation
from parity.core.case import entry_of
from parity.core.errors import CaseError
from parity.core.results import (
    CPU_OPERAND,
    EMPTY_OPERAND,
    EXTREME_VALUES,
    HALF_TYPES,
    LAZY_OPERAND,
    NARROW_INTEGERS,
    NON_FINITE,
    OTHER_DESTINATION,
    STRIDED_DESTINATION,
    UNSEARCHED,
    Aspect,
    Cause,
    Record,
    Status,
)
from parity.findings.weights import WEIGHTS, is_near, weight
from parity.findings.wording import LOOKING, LOST, bare_symptom, death_words, function_of
from parity.findings.workaround import NAMED, best
from parity.store.rows import Death

OPERATORS = "several operators"
SHARED = (CPU_OPERAND, EMPTY_OPERAND, EXTREME_VALUES, NON_FINITE, OTHER_DESTINATION, NARROW_INTEGERS, HALF_TYPES)
OF_NUMBERS = (EXTREME_VALUES, NON_FINITE, NARROW_INTEGERS, HALF_TYPES)  # which kernels of elements handle by shared code
RESULTS = ("values", "metadata", "memory")  # symptoms of one fault of a kernel, if it is so however it is called
SHARED_ENDINGS = (" operand", " destination")  # of layouts
SELDOM = 10  # a pass that has less than one in so many of a cause's findings is not the one that is shown
DETERMINISTIC = "under deterministic"  # algorithms, where operators that write by indices are one other operator
FAMILY = 3  # operators whose causes differ in nothing else are reported as one
A_COPY = "a copy"


@dataclass(frozen=True, slots=True)
class Gathered:
    """A cause with its findings. records: those with a least case, the plainest first; deaths: if it ended processes; members:
    the causes of the single findings, if they were joined, and of deaths among them."""

    cause: Cause
    weight: str
    records: tuple[Record, ...] = ()
    deaths: tuple[Death, ...] = ()
    members: tuple[Cause, ...] = ()

    @property
    def searched(self) -> bool:
        """Whether it is a cause: not findings of one kernel that nobody looked into."""
        return UNSEARCHED not in self.cause.properties

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that show it, each once."""
        return tuple(dict.fromkeys([*(r.op for r in self.records), *(d.op for d in self.deaths)]))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that show it, each once."""
        return tuple(dict.fromkeys([*(r.dtype for r in self.records), *(d.dtype for d in self.deaths)]))

    @property
    def workaround(self) -> str:
        """The cheapest way around that agreed wherever it was tried, in one line; "" if there is none."""
        found = best(r.ways for r in self.records if r.shows_alone)
        return NAMED[found.way].text(found, entry_of(self.ops[0]) if len(self.ops) == 1 else "the call") if found else ""

    @property
    def case(self) -> str:
        """The least case."""
        return (self.records[0].shrunk or self.records[0].case) if self.records else self.deaths[0].least


def gather(records: Iterable[Record], deaths: Iterable[Death] = ()) -> tuple[Gathered, ...]:
    """The causes of a run: by weight, and within a weight wrong metadata last, and those first that most ops show; what was not
    looked into is last."""
    found = [r for r in records if r.shrunk and r.counts]
    by_cause: dict[Cause, list[Record]] = defaultdict(list)
    chance = _by_chance(found)
    for r in found:
        by_cause[chance.get(id(r)) or said_of(r)].append(r)
    causes = [_gathered(c, rs) for c, rs in _families(by_cause).items()]
    return tuple(sorted(_with_deaths(causes, deaths), key=_place))


def apart(records: Iterable[Record], deaths: Iterable[Death]) -> tuple[Gathered, ...]:
    """The causes of a run that is compared with another one, in which the same death may come without the finding: none of the
    deaths has the cause of a finding."""
    return *gather(records), *gather((), deaths)


def _by_chance(records: Sequence[Record]) -> dict[int, Cause]:
    """What findings of an op say that comes and goes, by their ids: that they went without a setting was chance, and an error
    in some calls is the fault by which others give wrong values."""
    restless = {(r.op, r.dtype) for r in records if r.by_chance}
    of: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in records:
        if (r.op, r.dtype) in restless and (r.by_chance or said_of(r).symptom == "flag"):
            of[r.op, r.dtype].append(r)
    said: dict[int, Cause] = {}
    for (op, _), some in of.items():
        flags = [r for r in some if said_of(r).symptom == "flag"]
        values = [c for r in some if (c := said_of(r)).symptom == "values" and UNSEARCHED not in c.properties]
        whole = Cause(function_of(op), "values") if flags else values[0] if values else None
        said |= {id(r): whole for r in some if whole is not None and (r in flags or r.status == Status.ERROR)}
    return said


def _with_deaths(causes: Sequence[Gathered], deaths: Iterable[Death]) -> list[Gathered]:
    """The causes with the deaths: with the cause of the finding that the same call shows, or a call of the same op that must be
    refused for the same reason; if nobody looked into that finding, with the one cause of its kernel's wrong results. Of the
    others those with equal words are one cause, which is that of a death of the same op that a finding's call shows."""
    order = sorted(range(len(causes)), key=lambda k: _place(causes[k]), reverse=True)  # of several that a call shows, the first
    shown = {key: (k, said_of(r)) for k in order for r in causes[k].records for key in _calls(r, r.also)}
    own = [(k, m) for k, c in enumerate(causes) if c.searched and c.cause.subject != OPERATORS for m in c.members]
    known = {(m.kernel, m.symptom): k for k, m in own}
    of: dict[int, list[Death]] = defaultdict(list)
    left: list[Death] = []
    for d in deaths:
        k, said = next((shown[key] for key in _calls(d) if key in shown), (None, None))
        if k is not None and said is not None and not causes[k].searched:
            k = known.get((said.kernel, said.symptom))
        if k is not None and causes[k].searched:
            of[k].append(d)
        else:
            left.append(d)
    alike = {(d.op, death_words(d)): k for k, some in of.items() for d in some}
    by_words: dict[str, list[Death]] = defaultdict(list)
    for d in left:
        k = alike.get((d.op, death_words(d)))
        (by_words[death_words(d)] if k is None else of[k]).append(d)
    made = [_joined(c, of[k]) if k in of else c for k, c in enumerate(causes)]
    return [*made, *(_joined(Gathered(Cause(words, "dies"), "R"), ds) for words, ds in by_words.items())]


def _calls(x: Record | Death, also: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """The calls that show a finding or a death, and what is refused in them."""
    for case in (x.shrunk, x.case, *also):
        yield x.op, x.dtype, case
    with suppress(CaseError):  # of another version
        if refused := notation.parse(x.case).refused:
            yield x.op, x.dtype, "", refused


def _joined(c: Gathered, deaths: Iterable[Death]) -> Gathered:
    """A cause with deaths: as heavy as the heaviest of them; the call of a finding that was only looked into did not end it."""
    order = tuple(sorted(deaths, key=lambda d: (not d.shrunk, len(d.least))))
    weights = [c.weight] if c.records else []
    weights += [_weight_of_death(d) for d in order if not (c.records and d.signal.startswith(f"{LOST} after {LOOKING}"))]
    dying = dict.fromkeys(Cause(death_words(d), "dies") for d in order) if c.records else ()
    return replace(c, weight=min(weights, key=[*WEIGHTS].index), deaths=order, members=(*c.members, *dying))


def _place(c: Gathered) -> tuple[bool, int, bool, int, int, str]:
    weight = [*WEIGHTS].index(c.weight)
    return not c.searched, weight, c.cause.symptom == "metadata", -len(c.ops), -len(c.records), c.cause.id


def said_of(r: Record) -> Cause:
    """The cause of a record, or what it says by itself where nobody looked for one, or where that was the copy of a lazy view
    of the drawn case that the least case is without."""
    lost = r.cause is not None and r.cause.subject == A_COPY and _is_lazy(r.case) and not _is_lazy(r.shrunk or r.case)
    if r.cause is not None and not lost:
        return r.cause
    return Cause(function_of(r.op), bare_symptom(r), () if lost and r.status != Status.ERROR else (UNSEARCHED,))


def _is_lazy(case: str) -> bool:
    return ".neg()" in case or ".conj()" in case


def _needed(c: Cause, records: Sequence[Record]) -> Cause:
    """The cause with what all of its least cases hold: shrinking has left an operand on the CPU or without elements, or NaN and
    Inf, where nothing shows without them."""
    words = (CPU_OPERAND, EMPTY_OPERAND) if c.symptom.startswith("raises: ") else (NON_FINITE,) if c.symptom == "values" else ()
    held = [w for w in words if not c.properties and all(_holds(r, w) for r in records)]
    return replace(c, properties=(held[0],)) if held else c


def _holds(r: Record, word: str) -> bool:
    with suppress(CaseError):  # of another version
        specs = notation.parse(r.shrunk).operands()
        rare = any(w.lstrip("-") in ("nan", "inf") for s in specs for _, w in s.values.specials)
        if word == EMPTY_OPERAND:
            return any(s.numel == 0 for s in specs)
        return any(s.on_cpu for s in specs) if word == CPU_OPERAND else rare and not r.by_chance
    return False


def _families(by_cause: dict[Cause, list[Record]]) -> dict[Cause, list[Record]]:
    """The causes, joined where several kernels share a mechanism, or one kernel has several names, or equal words name it."""
    by_cause = _of_one(by_cause)
    # The words of an operator's own check say all, though nobody has looked into the error.
    by_cause = {
        replace(c, properties=()) if c.says_all and UNSEARCHED in c.properties else c: rs for c, rs in _by_id(by_cause).items()
    }
    otherwise = [c for c in by_cause if c.symptom in RESULTS and c.properties not in ((UNSEARCHED,), (NON_FINITE,))]
    wrong = Counter(c.kernel for c in otherwise)
    needed: dict[Cause, list[Record]] = defaultdict(list)
    for c, records in by_cause.items():
        needed[_needed(c, records) if wrong[c.kernel] <= 1 else c] += records
    by_cause = needed
    mechanisms = {c: _mechanism(c) for c in by_cause}
    kernels: dict[Cause, set[str]] = defaultdict(set)
    for c, shared in mechanisms.items():
        kernels[shared] |= {said_of(r).kernel for r in by_cause[c]}
    near = {c for c, rs in by_cause.items() if not c.properties and all(map(is_near, rs))}
    plain = [c for c in by_cause if c.symptom in RESULTS and not c.properties and c not in near]
    wrong_anyway = {c.kernel: c for c in sorted(plain, key=lambda c: RESULTS.index(c.symptom), reverse=True)}
    unknown = {c.kernel: c for c in by_cause if UNSEARCHED in c.properties}  # kept by kernel
    # A kernel that is wrong by what it shares with no other one is one cause, with what it shares.
    values = [c for c in by_cause if c.symptom == "values" and UNSEARCHED not in c.properties]
    alone = {c.kernel for c in values if mechanisms[c] is c and c not in near}
    joined: dict[Cause, list[Record]] = defaultdict(list)
    for c, records in by_cause.items():
        same = unknown if UNSEARCHED in c.properties else wrong_anyway if c.symptom == "values" or c in plain else {}
        whole = same.get(c.kernel, c)
        own = whole is not c or (c in values and c.kernel in alone)
        joined[mechanisms[c] if not own and len(kernels[mechanisms[c]]) >= _least(mechanisms[c]) else whole] += records
    return _by_id(_errors_by_kernel(_by_id(_values_by_kernel(joined))))


def _of_one(by_cause: Mapping[Cause, list[Record]]) -> dict[Cause, list[Record]]:
    """The causes, with all copies of lazy views as one, and with drift of a public function of which no operator differs by
    itself as that of the operator that does in other findings of the same ops, if there is one alone. What an operator gives
    wrongly in a strided destination, and nowhere else, is what it gives wrongly elsewhere, if it does."""
    lazy, joined = Cause(A_COPY, "values", (LAZY_OPERAND,)), defaultdict[Cause, list[Record]](list)
    misplaced = {c.kernel for c, records in by_cause.items() if c.symptom == "memory" for r in records if _is_misplaced(r)}
    values = {c.kernel: c for c in by_cause if c.symptom == "values" and c.subject != A_COPY and UNSEARCHED not in c.properties}
    wrong = {c: {r.op for r in rs} for c, rs in by_cause.items() if c.symptom == "values" and not c.properties}
    for c, records in by_cause.items():
        drifts = c in wrong and not c.subject.startswith("aten::") and all(r.status == Status.DRIFT for r in records)
        of = [k for k in wrong if k.subject.startswith("aten::") and wrong[c] <= wrong[k]] if drifts else []
        c = values.get(c.kernel, c) if c.properties == (STRIDED_DESTINATION,) and c.kernel not in misplaced else c
        for r in records:
            joined[lazy if c.subject == A_COPY and _is_lazy(r.shrunk) else of[0] if len(of) == 1 else c].append(r)
    return joined


def _is_misplaced(r: Record) -> bool:
    """Whether something was written outside a destination, or not in it."""
    return any(m.problem in ("beside", "missing") for m in r.measures)


def _values_by_kernel(by_cause: Mapping[Cause, list[Record]]) -> dict[Cause, list[Record]]:
    """The causes, with the wrong values of one kernel as one, if they need several things each by itself."""
    searched = [c for c in by_cause if c.symptom == "values" and UNSEARCHED not in c.properties and c.subject != A_COPY]
    often = Counter(c.kernel for c in searched if c.subject != OPERATORS)
    joined: dict[Cause, list[Record]] = defaultdict(list)
    for c, records in by_cause.items():
        joined[replace(c, properties=()) if c in searched and often[c.kernel] > 1 else c] += records
    return _by_id(joined)


def _errors_by_kernel(by_cause: Mapping[Cause, list[Record]]) -> dict[Cause, list[Record]]:
    """The causes, with the errors of one kernel as one, and with them what else says one of their words, also of the same op
    where nobody looked."""
    named = {c: set(map(said_of, records)) for c, records in by_cause.items()}
    raising = (c for c in named if c.symptom.startswith("raises: ") and UNSEARCHED not in c.properties)
    errors = {c: {x.kernel for x in named[c]} for c in raising}
    messages = Counter(kernel for some in errors.values() for kernel in some)
    of: dict[str, list[Cause]] = defaultdict(list)
    for c, some in errors.items():
        of[max(sorted(some), key=messages.__getitem__)].append(c)
    joined = {c: records for c, records in by_cause.items() if c not in errors}
    for kernel, alike in of.items():
        subjects = sorted(x.subject for c in alike for x in named[c] if x.kernel == kernel)
        words = {c.symptom.removeprefix("raises: ").partition(": ")[2] for c in alike}  # in whatever pass
        often = max(alike, key=lambda c: len(by_cause[c]))
        whole = often if len(words) == 1 else Cause(subjects[0], "raises")
        joined[whole] = [r for c in alike for r in by_cause[c]]
    saying = {(r.op, said_of(r).symptom): c for c in joined if UNSEARCHED not in c.properties for r in joined[c]}
    placed: dict[Cause, list[Record]] = defaultdict(list)
    for c, records in joined.items():
        for r in records:
            of_op = (r.op, said_of(r).symptom) if r.status == Status.ERROR and UNSEARCHED in c.properties else None
            placed[saying.get(of_op, c) if of_op else c].append(r)
    return {Counter(map(said_of, rs)).most_common(1)[0][0] if UNSEARCHED in c.properties else c: rs for c, rs in placed.items()}


def _least(shared: Cause) -> int:
    """How many kernels must show a mechanism, so that it is one cause."""
    return 2 if set(shared.properties) <= {OTHER_DESTINATION, STRIDED_DESTINATION, EMPTY_OPERAND, DETERMINISTIC} else FAMILY


def _by_id(by_cause: Mapping[Cause, list[Record]]) -> dict[Cause, list[Record]]:
    """The causes, those with equal ids as one: with the properties of all that its findings need, and without a subject if
    these differ."""
    alike: dict[str, list[Cause]] = defaultdict(list)
    for c in by_cause:
        alike[c.id].append(c)
    joined = {}
    for some in alike.values():
        records = [r for c in some for r in by_cause[c]]
        named = [c for c in some if UNSEARCHED not in c.properties] or some
        one = max(named, key=lambda c: len(by_cause[c]))
        one = one if len({c.kernel for c in named}) == 1 else replace(one, subject=OPERATORS)
        noted = [p for r in records for p in (r.cause.properties if r.cause is not None else ())]
        kinds = set.intersection(*(set(c.kinds) for c in some))
        properties = [p for p in (*noted, *some[0].properties) if kinds.issuperset(replace(one, properties=(p,)).kinds)]
        joined[replace(one, properties=tuple(dict.fromkeys(properties)))] = records
    return joined


def _mechanism(c: Cause) -> Cause:
    """The facts of a cause without its subject, if others may share them; else the cause. What kernels of elements read or
    write wrongly by its strides is shared code; another kernel reads by its own."""
    symptom = "raises" if c.symptom.startswith("raises") else c.symptom
    if c.subject == A_COPY or c.properties in ((), (UNSEARCHED,)):  # what goes wrong between the devices is no kernel's
        return c
    if re.match(r"raises: (Attribute|Type)Error in", c.symptom):  # what Python says of a result is no check of a kernel
        return c
    if c.symptom.startswith("raises") and c.properties == (DETERMINISTIC,):
        return Cause(OPERATORS, symptom, c.properties)
    if c.says_all and CPU_OPERAND not in c.properties:
        return c
    if named := [p for p in SHARED if p in c.properties]:
        own = c.symptom == "values" and named[0] in OF_NUMBERS and not _is_elementwise(c.subject)
        return c if own else Cause(OPERATORS, symptom, tuple(named[:1]))
    if all(p.endswith(SHARED_ENDINGS) for p in c.properties) and (
        _is_elementwise(c.subject) or STRIDED_DESTINATION in c.properties
    ):
        return Cause(OPERATORS, symptom, c.kinds)
    return c


@functools.cache
def _is_elementwise(subject: str) -> bool:
    """Whether torch says of an operator, or of the one that a function is called like, that it computes element by element."""
    import torch  # only here: a run's main process is without it, and asks this only where such findings are joined

    packet = getattr(torch.ops.aten, subject.rpartition("::")[2].rpartition(".")[2], None)
    return packet is not None and any(torch.Tag.pointwise in getattr(packet, o).tags for o in packet.overloads())


def _gathered(cause: Cause, records: Sequence[Record]) -> Gathered:
    weights = {id(r): weight(r if cause.symptom == "flag" else replace(r, cause=None)) for r in records}
    often = Counter(r.aspect for r in records)
    order = sorted(
        records,
        key=lambda r: (
            weights[id(r)], SELDOM * often[r.aspect] < len(records), r.dtype != "float32", r.aspect != Aspect.FORWARD,
            len(r.shrunk), r.shrunk,
        ),
    )  # fmt: skip
    members = [*map(said_of, order)]
    if cause.symptom == "values":  # what was given in a strided destination, and nowhere else
        members = [replace(m, symptom="values") if STRIDED_DESTINATION in m.properties else m for m in members]
    return Gathered(cause, weights[id(order[0])], tuple(order), members=tuple(dict.fromkeys(members)))


def _weight_of_death(d: Death) -> str:
    return weight(Record(d.case, d.op, d.dtype, d.shrunk_aspect or d.aspect or "forward", d.how, shrunk=d.least))
