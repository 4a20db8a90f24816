"""The rows of the tables, and which of them wins: the most specific one.

In this order: an exception over a rule; a device's table over the default one; a named dtype over "*"; a named class over "*";
a named pass over "*"; the later row over the earlier one. An exception with `scale` and `output_ulp` replaces the function's
ULP bound too, unless it states `ulp` itself; one with `ulp` alone keeps the rule's scale. An exception for an op also holds for
its OpInfo row ("add" for "opinfo:add").
"""

from __future__ import annotations

from dataclasses import dataclass

from parity.dtypes import FACTS
from parity.errors import TableError
from parity.vocabulary import OpClass, Tolerance

GRADIENT = "gradient"
# Special values, and what holds where no row speaks of one.
SPECIALS = dict.fromkeys(("nonfinite_spread", "subnormals", "at_nan", "partial_overflow", "branch"), "kept")
SPECIALS["signed_zero"] = "any"


@dataclass(frozen=True, slots=True, eq=False)  # each row is itself, however equal another may look
class Entry:
    """One row of a table. rank: position of its file, 0 for the default one; order: position in the file.

    dtypes: () for any; numbers: those of scale, output_ulp and ulp that it states. A [[ulp]] row gives one entry per dtype.
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
        """The row in words."""
        named = "/".join(self.dtypes) or "any dtype"
        if self.kind == "ulp":
            return f"ulp {self.subject} {named}"
        when = "any pass" if self.pass_ == "*" else self.pass_
        subject = "any class" if self.subject == "*" else self.subject
        return f"{'exception ' if self.kind == 'exception' else ''}{subject} {named} {when}"

    def label(self, rule: OpClass, dtype: str, pass_: str) -> str:
        """What it judges here, as a person would look it up: "composite float16 backward"."""
        if self.kind == "ulp":
            return f"ulp {self.subject} {dtype}"
        return f"{f'exception {self.subject}' if self.kind == 'exception' else rule.value} {dtype} {pass_}"

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"

    @property
    def specificity(self) -> tuple[bool, int, bool, bool, bool, int]:
        """Compares as rows beat each other."""
        named = (bool(self.dtypes), self.subject != "*", self.pass_ != "*")
        return (self.kind == "exception", self.rank, *named, self.order)

    def names(self, op: str) -> bool:
        """Whether it is an exception for this op."""
        return self.kind == "exception" and self.subject in (op, op.removeprefix("opinfo:"))

    def speaks_of(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str) -> bool:
        """Whether the row matches."""
        if (self.dtypes and dtype not in self.dtypes) or self.pass_ not in ("*", pass_):
            return False
        if self.kind == "exception":
            return self.names(op)
        if self.kind == "ulp":
            return rule is OpClass.ELEMENTWISE and self.subject == function
        return self.subject in ("*", rule.value) or (self.subject == GRADIENT and pass_ == "backward")


@dataclass(frozen=True, slots=True)
class Explanation:
    """One row that could judge a tensor. verdict: "applies", "beaten" or "elsewhere" (names this op, but another dtype or
    pass); why: one clause."""

    row: str
    place: str
    verdict: str
    why: str


class Tables:
    """The rows that hold for one device. Remembers what was found."""

    def __init__(
        self,
        entries: list[Entry],
        flushed: tuple[str, ...],
        files: tuple[str, ...],
        specials: dict[tuple[str, str], str] | None = None,
    ) -> None:
        self.files, self._flushed = files, frozenset(flushed)
        self._entries = sorted(entries, key=lambda e: e.specificity, reverse=True)
        self._specials = specials or {}
        self._found: dict[tuple[str, OpClass, str, str, str], Tolerance] = {}

    @property
    def exceptions(self) -> int:
        """How many exceptions the tables hold for this device."""
        return sum(1 for e in self._entries if e.kind == "exception")

    def special(self, op: str, rule: OpClass, value: str) -> str:
        """What is promised of a special value in this op's results, one of POLICIES. An op's row beats its class's."""
        found = self._specials
        name = short(op)
        return found.get((value, name)) or found.get((value, rule.value)) or SPECIALS[value]

    def flushes(self, dtype: str, op: str = "", rule: OpClass = OpClass.EXACT) -> bool:
        """Whether the device may flush subnormals of this dtype to zero, everywhere or in this op."""
        dtype = {"complex64": "float32"}.get(dtype, dtype)
        if dtype in self._flushed or "*" in self._flushed:
            return True
        return bool(op) and FACTS[dtype].tiny < 1e-30 and self.special(op, rule, "subnormals") == "flushed"

    def find(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str = "") -> Tolerance:
        """The numbers that judge a tensor of this op. pass_: "forward" or "backward"; function: the op's name in the ULP
        tables, if not its own. Raises TableError where no rule covers it."""
        key = (op, rule, dtype, pass_, function)
        if key not in self._found:
            self._found[key] = self._resolve(*key)
        return self._found[key]

    def _resolve(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str) -> Tolerance:
        matching = self._matching(op, rule, dtype, pass_, function)
        pair, ulp = _winners(matching)
        # Gradients of sums are sums; every other gradient is judged as a composite.
        rule = rule if pass_ == "forward" or rule is OpClass.CONTRACTION else OpClass.COMPOSITE
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

    def _matching(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str) -> list[Entry]:
        return [e for e in self._entries if e.speaks_of(op, rule, dtype, pass_, function or op)]

    def explain(self, op: str, rule: OpClass, dtype: str, pass_: str, function: str = "") -> list[Explanation]:
        """Every row that matches, most specific first, and the op's other exceptions."""
        matching = self._matching(op, rule, dtype, pass_, function)
        pair, ulp = _winners(matching)
        told: dict[str, list[Explanation]] = {"applies": [], "beaten": [], "elsewhere": []}
        for e in matching:
            verdict, why = "applies", "gives " + ", ".join(f"{name} {number:g}" for name, number in e.numbers.items())
            if e is not pair and e is not ulp:
                better = pair if pair and ("scale" in e.numbers or pair.kind == "exception") else ulp
                verdict, why = "beaten", _why(e, better)
            told[verdict].append(Explanation(e.words, e.place, verdict, why))
        for e in self._entries:
            if e.names(op) and e not in matching:
                told["elsewhere"].append(Explanation(e.words, e.place, "elsewhere", f"is not about {dtype} {pass_}"))
        return [t for group in told.values() for t in group]


def _winners(matching: list[Entry]) -> tuple[Entry | None, Entry | None]:
    """The row that gives the pair and the row that gives the ULP bound, of rows sorted by specificity."""
    pair = next((e for e in matching if "scale" in e.numbers), None)
    ulp = next((e for e in matching if "ulp" in e.numbers), None)
    hidden = pair is not None and pair.kind == "exception" and ulp is not None and ulp.kind == "ulp"
    return pair, None if hidden else ulp


def _why(beaten: Entry, better: Entry | None) -> str:
    assert better is not None  # a matching row loses only to one that wins
    steps = ("an exception", "a more specific file", "names the dtype", "names the class", "names the pass", "stands later")
    won = next(step for step, a, b in zip(steps, better.specificity, beaten.specificity) if a != b)
    return f"by {better.place}: {won}"


def short(op: str) -> str:
    """What [[special]] calls an op: "relu" for "opinfo:nn.functional.relu", "fft" for "fft.fft"."""
    return op.removeprefix("opinfo:").partition(":")[0].split(".")[-1]
