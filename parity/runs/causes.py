"""The cause of a finding, from experiments with its least case, and the causes of a run: findings whose facts are equal.

The least case runs once more with every operator compared (`parity.checks.operators`). The operator that first differs is the
subject, and `parity.checks.deciding` says which properties of its call matter. An error is named by the operator that raised it
and by its message without the numbers. Where no operator differs by itself (drift that adds up, functions that are wrong above
the operators, random laws), the subject is the public function of the row, and the properties are those of the least case.

Findings with equal facts have one cause. So have findings of three operators or more in which nothing but the operator differs
and the same layouts decide: a device reads strided operands, copies and writes destinations by code that its operators share.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from parity.catalog.row import Row
from parity.checks import deciding, inputs_unchanged
from parity.checks.operators import Followed, following
from parity.checks.trial import Result
from parity.core import layout as layouts
from parity.core import notation
from parity.core.case import Case, TensorSpec
from parity.core.dtypes import HALF
from parity.core.errors import CaseError
from parity.core.results import FINDINGS, Aspect, Cause, Record, Status
from parity.devices import flags
from parity.devices.base import Device
from parity.judging.rules import rule_of
from parity.runs.rows import Death

DESTINATION_WORD = "strided destination"
OPERATORS = "several operators"
A_COPY = "a copy"
ATEN_COPIES = ("_to_copy", "copy", "clone", "contiguous", "_copy_from", "_copy_from_and_resize", "to")
LAYOUT_WORDS = (" operand", " destination")
LOOKED_AT = 1000  # characters of a message that are looked at
SKELETON = 100  # most characters of an error's message in a symptom
RARE_ASPECTS = (Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER, Aspect.REFUSAL, Aspect.REPEAT)
DERIVATIVES = (Aspect.BACKWARD, Aspect.DOUBLE, Aspect.TANGENT)
COMPARED_CAUSES = 200  # of one weight, the most frequent ones, are put in an order; the rest follow
FAMILY = 3  # operators whose causes differ in nothing else are told as one
ORDINARY_VALUES = ("uniform", "normal", "between", "inside", "index", "unique", "sample", "conditioned", "symmetric", "any")
# Words of layouts that ordinary programs make without asking for them.
ORDINARY_LAYOUTS = ("transpose", "permute", "channels_last", "slice", "select", "step", "flat", "expand")
USUAL_SIZE = 1 << 16  # elements of a case's operands together


# ------------------------------------------------------------------------------------------------------ of one finding


def cause_of(
    row: Row, case: Case, result: Result, device: Device, again: Callable[[Case, Aspect], bool], least: bool = True
) -> Cause:
    """The cause of a finding. case: its least case, or with least=False the one that was drawn; again: checks a case once
    more, in the one aspect.

    Errors of a simulated device are not followed: torch 2.13 ends the process if a dispatch mode lets an exception of a
    backward pass through.
    """
    symptom = symptom_of(result)
    if symptom == "values" and (flag := _explaining_flag(case, result.aspect, device, again)):
        return Cause(flag, symptom)
    if symptom not in ("law", "accepts", "operands"):
        # An error of a backward pass often follows from a wrong result of the forward.
        only = Aspect.FORWARD if result.verdict.status is Status.ERROR and result.aspect in DERIVATIVES else result.aspect
        with following(device) as seen:
            again(replace(case, after=""), only)  # without the calls before it, which would be followed, too
        located = _of_operator(seen, symptom, device)
        if located is not None and (only is result.aspect or located.symptom == "metadata" or "raises" in located.symptom):
            return located
    oddities = tuple(dict.fromkeys(_oddities(case, result))) if least else ()
    properties = tuple(w for w in oddities if w.endswith(LAYOUT_WORDS)) or oddities
    public = row.call if row.call.startswith("torch.") else row.name
    if DESTINATION_WORD in properties:
        return Cause(public, "memory", (DESTINATION_WORD,))
    return Cause(public, _usual(symptom, row), properties)


def _usual(symptom: str, row: Row) -> str:
    """The symptom, with one word where one fault shows in several ways."""
    if symptom in ("values", "unstable", "law"):
        return "law" if rule_of(row).is_random else "values"
    return symptom


def _explaining_flag(case: Case, aspect: Aspect, device: Device, again: Callable[[Case, Aspect], bool]) -> str:
    """The name of the flag in force without which the case agrees, or ""."""
    candidates = flags.in_force(device.torch_device.type)
    if not candidates or not again(case, aspect):
        return ""
    for flag in candidates:
        with flag.off():
            if not again(case, aspect):
                return flag.name
    return ""


def symptom_of(result: Result) -> str:
    """What is wrong, in a word of `SYMPTOMS`; for an error, also its message without numbers."""
    v = result.verdict
    problem = v.measure.problem if v.measure is not None else ""
    if v.status is Status.ERROR:
        return f"raises: {skeleton(v.reason)}"
    if v.status is Status.OOM:
        return "memory exhausted"
    if v.status is Status.UNSTABLE:
        return "unstable"
    if problem == inputs_unchanged.PROBLEM:
        return "operands"
    if problem == "law":
        return "law"
    if result.aspect is Aspect.REFUSAL:
        return "accepts"
    if problem in ("beside", "missing"):
        return "memory"
    return "metadata" if v.status is Status.MALFORMED else "values"


def skeleton(message: str) -> str:
    """An error's first sentence without numbers, addresses, quoted names and shapes, so that equal errors read alike."""
    text = message.strip()[:LOOKED_AT].splitlines()[0] if message.strip() else ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\[[^\[\]]*\]|\([\d\s,x.]*\)", "", text)
    text = re.sub(r"\b(Half|BFloat16|Float|Double|ComplexFloat|Int|Long|Short|Char|Byte|Bool)\b", "T", text)
    text = re.sub(r"0x[0-9a-fA-F]+|[-+]?\d[\d.,]*(e[-+]?\d+)?", "N", text)
    return " ".join(text.split())[:SKELETON].rstrip(" .,:;")


def _of_operator(seen: Followed, symptom: str, device: Device) -> Cause | None:
    first = seen.first(symptom)
    if first is None:
        return None
    name = first.base_name
    if first.unknown or first.symptom == "raises":
        return Cause(f"aten::{name}", symptom)
    properties = deciding.properties(first, device)
    subject = A_COPY if name in ATEN_COPIES else f"aten::{name}"
    if DESTINATION_WORD in properties:
        return Cause(subject, "memory", (DESTINATION_WORD,))
    return Cause(subject, first.symptom, properties)


def _oddities(case: Case, result: Result) -> Iterator[str]:
    """What is unusual about a least case: by construction of the shrinker it is needed."""
    for spec in case.operands():
        yield from (f"{WORDS[str(step[0])]} operand" for step in spec.layout)
        yield from (word.lstrip("-") for _, word in spec.values.specials if word.lstrip("-") in ("nan", "inf"))
        if spec.on_cpu:
            yield "operand on the CPU"
        if spec.numel == 0:
            yield "empty operand"
    if result.aspect is Aspect.OUT and case.into != "contiguous":
        yield DESTINATION_WORD if case.into in layouts.WORDS else f"{case.into} destination"
    if result.aspect in (Aspect.BACKWARD, Aspect.DOUBLE) and case.cotangent.layout != "contiguous":
        yield f"{case.cotangent.layout} cotangent"
    if case.under != "grad":
        yield f"under {case.under}"
    if case.after:
        yield f"after {case.after}"
    if case.refused:
        yield f"error in {case.refused}"


WORDS = {
    "transpose": "non-contiguous", "permute": "non-contiguous", "channels_last": "non-contiguous", "slice": "non-contiguous",
    "step": "non-contiguous", "expand": "non-contiguous", "select": "offset", "flat": "offset", "conj": "conj", "neg": "neg",
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- of a run


WEIGHTS = {
    "A": "ordinary calls: contiguous operands, finite values, default arguments, forward or first gradient",
    "B": "the same with a layout, dtype or argument that models use",
    "C": "rare calls: special values, odd destinations, second derivatives, error inputs",
    "R": "errors and refusals in words, which are not silent",
}


@dataclass(frozen=True, slots=True)
class Gathered:
    """A cause with its findings. records: those with a least case, the plainest first; deaths: if it ended processes; members:
    the causes of the single findings, if they were joined."""

    cause: Cause
    weight: str
    records: tuple[Record, ...] = ()
    deaths: tuple[Death, ...] = ()
    members: tuple[Cause, ...] = ()

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that show it, each once."""
        return tuple(dict.fromkeys([*(r.op for r in self.records), *(d.op for d in self.deaths)]))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that show it, each once."""
        return tuple(dict.fromkeys([*(r.dtype for r in self.records), *(d.dtype for d in self.deaths)]))

    @property
    def case(self) -> str:
        """The least case."""
        return (self.records[0].shrunk or self.records[0].case) if self.records else self.deaths[0].case


def gather(records: Iterable[Record], deaths: Iterable[Death] = ()) -> tuple[Gathered, ...]:
    """The causes of a run: by weight, and within a weight each next one as unlike those before it as possible (furthest point
    first: Chen et al., Taming Compiler Fuzzers, PLDI 2013), so that a reader who stops early has met the most kinds."""
    by_cause: dict[Cause, list[Record]] = defaultdict(list)
    for r in records:
        if r.shrunk and r.status in FINDINGS:
            by_cause[r.cause or Cause(r.op, _older(r))].append(r)
    causes = [_gathered(c, rs) for c, rs in _families(by_cause).items()]
    by_words: dict[str, list[Death]] = defaultdict(list)
    for d in deaths:
        by_words[death_words(d)].append(d)
    for words, ds in by_words.items():
        cause = Cause(words, "dies")
        causes.append(Gathered(cause, min(map(_weight_of_death, ds)), (), tuple(sorted(ds, key=lambda d: len(d.case)))))
    return tuple(c for w in WEIGHTS for c in _furthest_first([c for c in causes if c.weight == w]))


def _families(by_cause: dict[Cause, list[Record]]) -> dict[Cause, list[Record]]:
    """The causes, with those of several subjects as one if the same layouts decide in all (such operators share the code that
    reads their operands, copies, or writes their destinations), or if they raise with the same words."""
    by_facts: dict[Cause, list[Cause]] = defaultdict(list)
    for c in by_cause:
        if c.symptom.startswith("raises"):
            by_facts[Cause(OPERATORS, c.symptom)].append(c)
        elif c.properties and all(p.endswith(LAYOUT_WORDS) for p in c.properties):
            by_facts[Cause(OPERATORS, c.symptom, c.properties)].append(c)
        else:
            by_facts[c].append(c)
    joined: dict[Cause, list[Record]] = {}
    for facts, members in by_facts.items():
        if len(members) >= (2 if facts.symptom.startswith("raises") else FAMILY):
            joined[facts] = [r for c in members for r in by_cause[c]]
        else:
            joined |= {c: by_cause[c] for c in members}
    return joined


def death_words(d: Death) -> str:
    """How a process ended, without numbers: deaths with equal words count as one cause. The op is one of the words where there
    is no message."""
    words = skeleton(d.signal)
    says_nothing = d.how == "hang" or " " not in words  # a signal's name alone
    return f"{d.how}: {words} in {d.op}" if says_nothing else f"{d.how}: {words}"


def _older(r: Record) -> str:
    """The symptom of a record without a cause, from an older run file."""
    return f"raises: {skeleton(r.reason)}" if r.status == Status.ERROR else "values"


def _gathered(cause: Cause, records: Sequence[Record]) -> Gathered:
    weights = {id(r): weight(r) for r in records}
    order = sorted(
        records, key=lambda r: (weights[id(r)], r.dtype != "float32", r.aspect != Aspect.FORWARD, len(r.shrunk), r.shrunk)
    )
    members = tuple(dict.fromkeys(r.cause for r in order if r.cause is not None))
    return Gathered(cause, weights[id(order[0])], tuple(order), members=members)


def _weight_of_death(d: Death) -> str:
    return weight(Record(d.case, d.op, d.dtype, d.aspect or "forward", d.how, shrunk=d.case))


def weight(r: Record) -> str:
    """The class of a finding by its least case: a key of `WEIGHTS`."""
    if r.status in (Status.ERROR, Status.OOM):
        return "R"
    try:
        case = notation.parse(r.shrunk or r.case)
    except CaseError:  # of another version
        return "C"
    if _is_rare(case, r):
        return "C"
    return "A" if _is_ordinary(case, r) else "B"


def _is_rare(case: Case, r: Record) -> bool:
    specs = case.operands()
    return (
        r.aspect in RARE_ASPECTS
        or bool(case.after or case.refused)
        or case.under == "deterministic"
        or (r.aspect == Aspect.OUT and case.into != "contiguous")
        or case.cotangent.values == "zero"
        or any(_is_rare_operand(s) for s in specs)
    )


def _is_rare_operand(s: TensorSpec) -> bool:
    v = s.values
    odd = any(str(step[0]) not in ORDINARY_LAYOUTS for step in s.layout)
    return odd or s.on_cpu or s.numel == 0 or bool(v.specials) or (v.literal is None and v.family not in ORDINARY_VALUES)


def _is_ordinary(case: Case, r: Record) -> bool:
    specs = case.operands()
    plain = all(not s.layout for s in specs) and case.cotangent.layout == "contiguous"
    numbers = not case.kwargs and not any(isinstance(a, (bool, str, float)) for a in case.args)
    usual = case.dtype not in HALF and not case.dtype.startswith("complex") and case.numel <= USUAL_SIZE
    return plain and numbers and usual and r.aspect in (Aspect.FORWARD, Aspect.BACKWARD, Aspect.INPLACE)


def _tokens(c: Gathered) -> frozenset[str]:
    return frozenset((c.cause.subject, c.cause.symptom, *c.cause.properties, *(f"in {op}" for op in c.ops)))


def _distance(a: Gathered, b: Gathered) -> float:
    """1 minus the Jaccard similarity of the facts."""
    one, other = _tokens(a), _tokens(b)
    return 1.0 - len(one & other) / len(one | other)


def _furthest_first(causes: list[Gathered]) -> list[Gathered]:
    left = sorted(causes, key=lambda c: (-len(c.ops), -len(c.records), c.cause.id))
    order, rest = left[:1], left[COMPARED_CAUSES:]
    left = left[1:COMPARED_CAUSES]
    nearest = [_distance(c, order[0]) for c in left] if order else []
    while left:
        k = max(range(len(left)), key=lambda i: (round(nearest[i], 6), -i))
        taken = left.pop(k)
        nearest.pop(k)
        order.append(taken)
        nearest = [min(n, _distance(c, taken)) for n, c in zip(nearest, left)]
    return [*order, *rest]
