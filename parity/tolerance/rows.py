"""The rows of the tables, and the choice of the row that applies: the most specific one.

The order of precedence: an exception over a rule; a device's table over the default one; a named dtype over "*"; a named class
over "*"; a named pass over "*"; the later row over the earlier one. An exception with `scale` and `output_ulp` replaces the
function's ULP bound too, unless it states `ulp` itself; one with `ulp` alone keeps the rule's scale. An exception for an op
also holds for its OpInfo row ("add" for "opinfo:add").
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from parity.catalog.opinfo_rules import FUNCTION_OF
from parity.core.case import OpClass, entry_of
from parity.core.dtypes import FACTS
from parity.core.errors import TableError
from parity.core.results import Tolerance

GRADIENT = "gradient"
# Special values, and the policy for each if no row gives one.
SPECIALS = dict.fromkeys(("nonfinite_spread", "subnormals", "at_nan", "at_negative_zero", "partial_overflow", "branch"), "kept")
SPECIALS["signed_zero"] = SPECIALS["gradient_zero"] = "any"


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: equal rows are still two rows
class TableRow:
    """One row of a table. rank: position of its file, 0 for the default one; order: position in the file.

    dtypes: () for any; numbers: those of scale, output_ulp, ulp and absolute that it gives. A [[ulp]] row becomes one TableRow
    per dtype.
    """

    kind: str
    file: str
    line: int
    rank: int
    order: int
    subject: str
    dtypes: tuple[str, ...]
    pass_: str
    numbers: dict[str, float]
    reason: str = ""

    @property
    def words(self) -> str:
        """The row as text: kind, subject, dtypes, pass."""
        named = "/".join(self.dtypes) or "any dtype"
        if self.kind == "ulp":
            return f"ulp {self.subject} {named}"
        when = "any pass" if self.pass_ == "*" else self.pass_
        subject = "any class" if self.subject == "*" else self.subject
        return f"{'exception ' if self.kind == 'exception' else ''}{subject} {named} {when}"

    def label(self, rule: OpClass, dtype: str, pass_: str) -> str:
        """The row as the origin of a tolerance: "composite float16 backward"."""
        if self.kind == "ulp":
            return f"ulp {self.subject} {dtype}"
        return f"{f'exception {self.subject}' if self.kind == 'exception' else rule.value} {dtype} {pass_}"

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"

    @property
    def specificity(self) -> tuple[bool, int, bool, bool, bool, int]:
        """Sort key; the larger one wins."""
        named = (bool(self.dtypes), self.subject != "*", self.pass_ != "*")
        return (self.kind == "exception", self.rank, *named, self.order)

    def is_exception_for(self, op: str) -> bool:
        """Whether the row is an exception for this op."""
        return self.kind == "exception" and self.subject in (op, entry_of(op))

    def applies_to(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str) -> bool:
        """Whether the row applies to this op, class, dtype, pass and ULP function."""
        if (self.dtypes and dtype not in self.dtypes) or self.pass_ not in ("*", pass_):
            return False
        if self.kind == "exception":
            return self.is_exception_for(op)
        if self.kind == "ulp":
            return rule is OpClass.ELEMENTWISE and self.subject == function
        return self.subject in ("*", rule.value) or (self.subject == GRADIENT and pass_ == "backward")


@dataclass(frozen=True, slots=True)
class Explanation:
    """One candidate row for a tensor. verdict: "applies", "beaten" or "elsewhere" (an exception for this op, but for another
    dtype or pass); why: the reason, one clause."""

    row: str
    place: str
    verdict: str
    why: str


class Tables:
    """The rows for one device. Caches the tolerances that `find` resolved."""

    def __init__(
        self,
        entries: list[TableRow],
        flushed: tuple[str, ...],
        files: tuple[str, ...],
        specials: dict[tuple[str, str], str] | None = None,
    ) -> None:
        self.files, self._flushed = files, frozenset(flushed)
        self._entries = sorted(entries, key=lambda e: e.specificity, reverse=True)
        self._specials = specials or {}
        self._resolved: dict[tuple[str, OpClass, str, str, str], Tolerance] = {}

    @property
    def exceptions(self) -> int:
        """Number of exceptions in the tables of this device."""
        return sum(1 for e in self._entries if e.kind == "exception")

    def special(self, op: str, rule: OpClass, value: str) -> str:
        """The policy for a special value in results of this op, one of POLICIES. A row for the op beats one for its class."""
        special = self._specials
        name = short(op)
        return special.get((value, name)) or special.get((value, rule.value)) or SPECIALS[value]

    def flushes(self, dtype: str, op: str = "", rule: OpClass = OpClass.EXACT) -> bool:
        """Whether the device may flush subnormals of this dtype to zero, in all ops or in this one."""
        dtype = {"complex64": "float32"}.get(dtype, dtype)
        if dtype in self._flushed or "*" in self._flushed:
            return True
        return bool(op) and FACTS[dtype].tiny < 1e-30 and self.special(op, rule, "subnormals") == "flushed"

    def find(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str = "") -> Tolerance:
        """The tolerance of a tensor of this op. pass_: "forward" or "backward"; function: the op's name in the ULP tables, if
        not its own. Raises TableError if no rule covers it."""
        key = (op, rule, dtype, pass_, function)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def _resolve(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str) -> Tolerance:
        matching = self._matching(op, rule, dtype, pass_, function)
        pair, ulp = _winners(matching)
        rule = rule if pass_ == "forward" else rule.of_gradients
        if pair is None:
            raise TableError(
                f"{' and '.join(self.files)}: no rule covers {rule.value} {dtype} {pass_} (op '{op}'); "
                f'add a [[rule]] with class = "{rule.value}" or class = "*"'
            )
        rows = list(dict.fromkeys(e for e in (ulp, pair) if e))
        return Tolerance(
            rule=rule.value,
            scale=pair.numbers["scale"],
            output_ulp=pair.numbers["output_ulp"],
            ulp=ulp.numbers["ulp"] if ulp else None,
            absolute=ulp.numbers.get("absolute", 0.0) if ulp else 0.0,
            origin="; ".join(f"{e.file}: {e.label(rule, dtype, pass_)}" for e in rows),
            reason="; ".join(e.reason for e in rows if e.reason),
        )

    def _matching(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str) -> list[TableRow]:
        return [e for e in self._entries if e.applies_to(op, rule, dtype, pass_, function or op)]

    def explain(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str = "") -> list[Explanation]:
        """All rows that match, most specific first, then the op's other exceptions."""
        matching = self._matching(op, rule, dtype, pass_, function)
        pair, ulp = _winners(matching)
        groups: dict[str, list[Explanation]] = {"applies": [], "beaten": [], "elsewhere": []}
        for e in matching:
            verdict, why = "applies", "gives " + ", ".join(f"{name} {number:g}" for name, number in e.numbers.items())
            if e is not pair and e is not ulp:
                better = pair if pair and ("scale" in e.numbers or pair.kind == "exception") else ulp
                verdict, why = "beaten", _why_beaten(e, better)
            groups[verdict].append(Explanation(e.words, e.place, verdict, why))
        for e in self._entries:
            if e.is_exception_for(op) and e not in matching:
                groups["elsewhere"].append(Explanation(e.words, e.place, "elsewhere", f"is not about {dtype} {pass_}"))
        return [t for group in groups.values() for t in group]


def _winners(matching: list[TableRow]) -> tuple[TableRow | None, TableRow | None]:
    """(Row that gives scale and output_ulp, row that gives the ULP bound), of rows sorted by specificity; None if no row
    does."""
    pair = next((e for e in matching if "scale" in e.numbers), None)
    ulp = next((e for e in matching if "ulp" in e.numbers), None)
    hidden = pair is not None and pair.kind == "exception" and ulp is not None and ulp.kind == "ulp"
    return pair, None if hidden else ulp


def _why_beaten(beaten: TableRow, better: TableRow | None) -> str:
    assert better is not None  # a matching row loses only to one that wins
    steps = ("an exception", "a more specific file", "names the dtype", "names the class", "names the pass", "stands later")
    won = next(step for step, a, b in zip(steps, better.specificity, beaten.specificity) if a != b)
    return f"by {better.place}: {won}"


@functools.lru_cache(maxsize=8192)
def short(op: str) -> str:
    """Name of an op in [[special]]: "relu" for "opinfo:nn.functional.relu" and "modules:nn.ReLU", "fft" for "fft.fft"."""
    entry, _, mode = entry_of(op).partition(":")
    function = FUNCTION_OF.get(entry, entry) if mode != "state" else entry
    return function.partition(":")[0].split(".")[-1]
