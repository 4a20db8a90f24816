"""How much the causes of a run weigh, by the least cases of their findings: what a reader should see first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from parity.core import notation
from parity.core.case import Case, TensorSpec
from parity.core.dtypes import HALF
from parity.core.errors import CaseError
from parity.core.results import Aspect, Record, Status
from parity.findings.wording import bare_symptom
from parity.store.rows import is_own

RARE_ASPECTS = (Aspect.DOUBLE, Aspect.TANGENT, Aspect.TRANSFER, Aspect.REFUSAL, Aspect.REPEAT)
ORDINARY_VALUES = ("uniform", "normal", "between", "inside", "index", "unique", "sample", "conditioned", "symmetric", "any")
# Words of layouts that ordinary programs make without asking for them.
ORDINARY_LAYOUTS = ("transpose", "permute", "channels_last", "slice", "select", "step", "flat", "expand")
NEAR = 2.0  # budgets, within which drift is of little weight
USUAL_SIZE = 1 << 16  # elements of a case's operands together

WEIGHTS = {
    "A": "ordinary calls: contiguous operands, finite values, default arguments, forward or first gradient",
    "B": "the same with a layout, dtype or argument that models use",
    "C": "rare calls: special values, odd destinations, second derivatives, error inputs; and drift within twice the budget",
    "S": "settings that are in force, without which the device agrees",
    "R": "errors and refusals in words, which are not silent",
}


def weight(r: Record) -> str:
    """The class of a finding by its least case: a key of `WEIGHTS`."""
    if r.cause is not None and r.cause.symptom == "flag":
        return "S"
    if Status(r.status).raised:
        return "R"
    if is_own(r.op):
        return "A"
    with suppress(CaseError):  # of another version
        case = notation.parse(r.shrunk or r.case)
        return "C" if _is_rare(case, r) or is_near(r) else "A" if _is_ordinary(case, r) else "B"
    return "C"


def is_near(r: Record) -> bool:
    """Whether it is drift of less than twice the budget, which sends nobody to an editor."""
    share = r.measures[0].share if r.measures else None
    return r.status == Status.DRIFT and share is not None and share < NEAR


def _is_rare(case: Case, r: Record) -> bool:
    called = bool(case.after or case.refused) or case.under == "deterministic" or case.cotangent.values in ("zero", "nonfinite")
    into = r.aspect == Aspect.OUT and case.into != "contiguous"
    return r.aspect in RARE_ASPECTS or called or into or any(map(_is_rare_operand, case.operands()))


def _is_rare_operand(s: TensorSpec) -> bool:
    v = s.values
    odd = any(str(step[0]) not in ORDINARY_LAYOUTS for step in s.layout)
    return odd or s.on_cpu or s.numel == 0 or bool(v.specials) or (v.literal is None and v.family not in ORDINARY_VALUES)


def _is_ordinary(case: Case, r: Record) -> bool:
    specs = case.operands()
    plain = all(not s.layout for s in specs) and case.cotangent.layout == "contiguous"
    numbers = not case.kwargs and not any(isinstance(a, (bool, str, float)) for a in case.args)
    numbers &= r.aspect != Aspect.INPLACE or len({s.dtype for s in specs}) <= 1
    usual = case.dtype not in HALF and not case.dtype.startswith("complex") and case.numel <= USUAL_SIZE
    return plain and numbers and usual and r.aspect in (Aspect.FORWARD, Aspect.BACKWARD, Aspect.INPLACE)


@dataclass(frozen=True, slots=True)
class Promise:
    """What looking for the cause of an item's findings may bring, by what was drawn. weight: of the plainest of them, a key of
    `WEIGHTS`; far: the order of magnitude by which it is outside of its budget; sign: what findings of other ops share with it
    where one kernel or one setting is their cause; little: whether it is an error in words, or rare and hardly more once it is
    shrunk."""

    weight: str = "R"
    far: int = 0
    sign: str = ""
    little: bool = True

    @property
    def order(self) -> tuple[bool, str, int]:
        """Of two, the lesser promises more."""
        return self.little, self.weight, -self.far


BEYOND = 99  # `Promise.far` of what no budget judges: shapes, NaN, writes


def promise(found: Iterable[Record]) -> Promise:
    """Of the plainest finding of an item, and of several the one that is farthest outside."""
    return min(map(_promise, found), key=lambda p: p.order, default=Promise())


def _promise(r: Record) -> Promise:
    """Half of the rare cases that were outside in a plain pass on an H100 had a plain least case; of others one in ten."""
    plain, far = weight(r), _far(r)
    little = plain in "CR" and (plain == "R" or far == BEYOND or r.aspect not in (Aspect.FORWARD, Aspect.BACKWARD))
    return Promise(plain, far, f"{r.aspect} {r.status} {bare_symptom(r)}", little)


def _far(r: Record) -> int:
    share = r.measures[0].share if r.measures else None
    return math.floor(math.log10(share)) if share and 0.0 < share < math.inf else BEYOND
