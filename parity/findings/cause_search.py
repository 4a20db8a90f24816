"""Find the cause of one finding, by experiments with its least case.

The least case runs once more with every operator compared (`parity.checks.following`). The operator that first differs is the
subject, and `parity.checks.deciding` says which properties of its call matter. An error is named by the operator that raised it
and by its message without the numbers. Where no operator differs by itself (drift that adds up, functions that are wrong above
the operators, random laws), the subject is the public function that was called, and the properties are those that the case
itself cannot lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from parity.catalog.row import Row
from parity.checks import deciding, inputs_unchanged, repeat
from parity.checks.check import STATE, UNCOMPARED
from parity.checks.following import Followed, following
from parity.checks.operators import titled
from parity.checks.trial import Result
from parity.core import layout as layouts
from parity.core.case import Case, Cotangent, TensorSpec
from parity.core.devices import Flag
from parity.core.dtypes import FACTS
from parity.core.results import (
    CPU_OPERAND,
    DERIVATIVES,
    EMPTY_OPERAND,
    EXTREME_VALUES,
    LAZY_OPERAND,
    NON_FINITE,
    OTHER_DESTINATION,
    STRIDED_DESTINATION,
    Aspect,
    Cause,
    Status,
)
from parity.devices.base import Device
from parity.findings.causes import A_COPY
from parity.findings.wording import function_of, skeleton
from parity.judging.rules import rule_of

ATEN_LAZY = ("_conj", "_neg_view", "conj", "resolve_conj", "resolve_neg")
Outcomes = Callable[[Case, Aspect], tuple[Result, ...]]
Again = Callable[[Case, Aspect], bool]


def cause_of(row: Row, case: Case, result: Result, device: Device, found: Outcomes) -> Cause:
    """The cause of a finding. case: its least case, or the one that was drawn; found: checks a case once more, in the one
    aspect, and returns what is wrong.

    Errors of a simulated device are not followed: torch 2.13 ends the process if a dispatch mode lets an exception of a
    backward pass through.
    """
    raised = result.verdict.status is Status.ERROR

    def again(case: Case, aspect: Aspect) -> bool:
        """Whether an error is still one, and a wrong result still is one."""
        return any((r.verdict.status is Status.ERROR) is raised for r in found(case, aspect))

    symptom = symptom_of(result)
    if symptom == "values" and (flag := _explaining_flag(case, result.aspect, device, again)):
        return Cause(flag, "flag")
    function = ""
    if symptom.partition(": ")[0] not in ("law", "accepts", "operands", STATE, UNCOMPARED):
        # An error of a backward pass often follows from a wrong result of the forward.
        only = Aspect.FORWARD if raised and result.aspect in DERIVATIVES else result.aspect
        with following(device) as seen:
            again(replace(case, after=""), only)  # without the calls before it, which would be followed, too
        located = _of_operator(seen, symptom, device)
        if located is not None and (only is result.aspect or "raises" in located.symptom):
            return _of_the_route(located, case, result.aspect, again)
        function = seen.function
    if rule_of(row).is_random and symptom in ("values", "unstable", "law"):
        with following(device) as seen:
            again(case, result.aspect)
        if len(seen.draws) == 1:  # the public functions that draw by one operator share its faults
            return Cause(titled(seen.draws.pop()), "law", _properties(case, result.aspect, again))
    return unlocated(row, result, _properties(case, result.aspect, again), function)


def unlocated(row: Row, result: Result, properties: tuple[str, ...] = (), function: str = "") -> Cause:
    """The cause of a finding that no operator explains, or with which nothing was tried."""
    own = function_of(row.name)  # which its helpers, such as a torch.cat, are not
    public = row.call if row.call.startswith("torch.") else own if own.startswith("torch.") else function or own
    if STRIDED_DESTINATION in properties:
        return Cause(public, "memory", (STRIDED_DESTINATION,))
    symptom = symptom_of(result)
    if symptom in ("values", "unstable", "law"):  # one fault shows in several of these ways
        symptom = "law" if rule_of(row).is_random else "values"
    return Cause(public, symptom, properties)


def _explaining_flag(case: Case, aspect: Aspect, device: Device, again: Again) -> str:
    """The name of the flag in force without which the case agrees, twice, and with which it does not; "" if there is none."""
    dtypes = {case.dtype, *(s.dtype for s in case.operands())}
    candidates = [f for f in device.backend.flags if f.in_force() and (not f.dtypes or not dtypes.isdisjoint(f.dtypes))]
    if not candidates or not again(case, aspect):
        return ""

    def agrees_without(flag: Flag) -> bool:
        with flag.without():
            return not again(case, aspect)

    explains = (f for f in candidates if agrees_without(f) and again(case, aspect) and agrees_without(f))
    return next((f.name for f in explains), "")


def symptom_of(result: Result) -> str:
    """What is wrong, in a word of `SYMPTOMS`; for an error, also its message without numbers."""
    v = result.verdict
    problem = v.measure.problem if v.measure is not None else ""
    if problem in (STATE, UNCOMPARED):
        return problem
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
        return f"accepts: {skeleton(v.reason.partition('refuses: ')[2])}"
    if problem in ("beside", "missing", repeat.OVERWRITTEN):
        return "memory"
    return "metadata" if v.status is Status.MALFORMED else "values"


def _of_operator(seen: Followed, symptom: str, device: Device) -> Cause | None:
    first = seen.first(symptom)
    if first is None:
        return None
    name = first.base_name
    properties = deciding.properties(first, device)
    if first.operator.is_view and first.is_copy and not properties:
        properties = (LAZY_OPERAND,) if name in ATEN_LAZY else ()
    subject = A_COPY if first.is_copy else titled(name)
    if first.symptom == "raises":
        return Cause(titled(name), symptom, properties)
    if first.unknown:
        return Cause(titled(name), symptom)
    if STRIDED_DESTINATION in properties:
        return Cause(subject, "memory", (STRIDED_DESTINATION,))
    return Cause(subject, first.symptom, properties)


def _of_the_route(c: Cause, case: Case, aspect: Aspect, again: Again) -> Cause:
    """The cause of an operator that differs however it is called, with what of the case around it is needed: a destination of
    another dtype, and torch's other way with deterministic algorithms."""
    if (
        c.symptom == "values"
        and not c.properties
        and case.into in FACTS
        and not again(replace(case, into="contiguous"), aspect)
    ):
        return replace(c, properties=(OTHER_DESTINATION,))
    if "raises" in c.symptom and case.under == "deterministic" and not again(replace(case, under="grad"), aspect):
        return replace(c, properties=(f"under {case.under}",))
    return c


# -------------------------------------------------------------------------------------------------- properties of a case


LAYOUTS = {
    "transpose": "non-contiguous", "permute": "non-contiguous", "channels_last": "non-contiguous", "slice": "non-contiguous",
    "step": "non-contiguous", "expand": "non-contiguous", "select": "offset", "flat": "offset",
}  # fmt: skip
FINITE_WORDS = ("min", "max")  # special values that are not NaN or Inf, but at the ends of the range


def _properties(case: Case, aspect: Aspect, again: Again) -> tuple[str, ...]:
    """What the case cannot lose without losing the finding: each kind is taken away in turn, and stays away if the finding
    does not need it."""
    if case.refused:
        return (f"error in {case.refused}",)
    needed = list[str]()
    if all(change(case) == case for change in TAKEN.values()) or not again(case, aspect):
        return _empty(case)
    for name, change in TAKEN.items():
        plainer = change(case)
        if plainer == case:
            continue
        if again(plainer, aspect):
            case = plainer
        else:
            needed.append(name)
    words = (*_empty(case), *(w for name in WORDS if name in needed for w in WORDS[name](case, aspect, again)))
    layouts_only = tuple(w for w in words if w.endswith((" operand", " destination")) and w not in (CPU_OPERAND, EMPTY_OPERAND))
    return tuple(dict.fromkeys(layouts_only or words))


def _empty(case: Case) -> tuple[str, ...]:
    return (EMPTY_OPERAND,) if any(s.numel == 0 for s in case.operands()) else ()


def _without_specials(s: TensorSpec) -> TensorSpec:
    return replace(s, values=replace(s.values, specials=()))


# In this order kinds of properties are taken away from a case.
TAKEN: dict[str, Callable[[Case], Case]] = {
    "history": lambda c: replace(c, after=""),
    "mode": lambda c: replace(c, under="grad"),
    "values": lambda c: c.map_operands(_without_specials),
    "places": lambda c: c.map_operands(lambda s: replace(s, on_cpu=False)),
    "cotangent": lambda c: replace(c, cotangent=replace(c.cotangent, layout=Cotangent().layout)),
    "destination": lambda c: replace(c, into="contiguous"),
    "layouts": lambda c: c.map_operands(lambda s: replace(s, layout=())),
}


def _layout_words(case: Case, aspect: Aspect, again: Again) -> Iterator[str]:
    """The layouts of the operands that the finding needs, one by one; of all if it does not need any single one."""
    specs = case.operands()
    laid = [k for k, s in enumerate(specs) if s.layout]

    def plain(k: int) -> Case:
        return case.with_operands(replace(s, layout=()) if i == k else s for i, s in enumerate(specs))

    needed = laid if len(laid) == 1 else [k for k in laid if not again(plain(k), aspect)]
    for k in needed or laid:
        steps = [str(step[0]) for step in specs[k].layout]
        yield from (f"{LAYOUTS[s]} operand" if s in LAYOUTS else LAZY_OPERAND for s in steps)


def _value_words(case: Case, _aspect: Aspect, _again: Again) -> Iterator[str]:
    words = {word.lstrip("-") for s in case.operands() for _, word in s.values.specials}
    if words & {"nan", "inf"}:
        yield NON_FINITE
    elif words & set(FINITE_WORDS):
        yield EXTREME_VALUES


def _destination_words(case: Case, _aspect: Aspect, _again: Again) -> Iterator[str]:
    yield (
        STRIDED_DESTINATION
        if case.into in layouts.WORDS
        else "empty destination"
        if case.into == "empty"
        else OTHER_DESTINATION
    )


# The most informative first.
WORDS: dict[str, Callable[[Case, Aspect, Again], Iterator[str]]] = {
    "places": lambda _c, _a, _again: iter((CPU_OPERAND,)),
    "layouts": _layout_words,
    "values": _value_words,
    "destination": _destination_words,
    "cotangent": lambda c, _a, _again: iter((f"{c.cotangent.layout} cotangent",)),
    "mode": lambda c, _a, _again: iter((f"under {c.under}",)),
    "history": lambda c, _a, _again: iter((f"after {c.after}",)),
}
