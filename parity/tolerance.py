"""Reads `tolerances/*.toml` and says which row judges what. Nothing is taken on trust: whatever is unknown is refused.

Four kinds of rows. `[[rule]]`: the numbers of an op class ("gradient": the backward pass of every class) in some dtypes.
`[[ulp]]`: bounds of elementwise functions in ULP, or ULP and an absolute error, forward only. `[[exception]]`: the numbers of
one op, with a reason and a link.
`[[special]]`: what is promised of special values (signs of zeros, how NaN spreads, subnormals), by class or by op.

The most specific row wins. In this order: an exception over a rule; a device's table over the default one; a named dtype
over "*"; a named class over "*"; a named pass over "*"; the later row over the earlier one. An exception with `scale` and
`output_ulp` replaces the function's ULP bound too, unless it states `ulp` itself; one with `ulp` alone keeps the rule's
scale. An exception for an op also holds for its OpInfo row ("add" for "opinfo:add").
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity import resources
from parity.dtypes import FACTS, HALF
from parity.errors import TableError, near
from parity.vocabulary import Json, OpClass, Tolerance

FORMAT = 1
GRADIENT = "gradient"
CLASSES = ("*", GRADIENT, *(c.value for c in OpClass))
PASSES = ("*", "forward", "backward")
ULP_DTYPES = ("half", *(name for name, f in FACTS.items() if f.kind == "float"))
NUMBERS = frozenset(("scale", "output_ulp", "ulp", "absolute", *ULP_DTYPES))
# Per kind of row: the keys that must be there, and those that may.
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rule": (("class", "dtype", "pass", "scale", "output_ulp", "source"), ()),
    "ulp": (("function", "source"), ("absolute", *ULP_DTYPES)),
    "exception": (("op", "dtype", "pass", "reason", "link"), ("scale", "output_ulp", "ulp")),
}
# Special values, and what holds where no row speaks of one.
SPECIALS = dict.fromkeys(("nonfinite_spread", "subnormals", "at_nan", "partial_overflow", "branch"), "kept")
SPECIALS["signed_zero"] = "any"
POLICIES = ("kept", "any", "any_with_nan", "flushed")
TOP = ("format", "policy", "special", *KEYS)


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
    """The rows that hold for one device. Remembers which exceptions were used, and what was found."""

    def __init__(
        self,
        entries: list[Entry],
        flushed: tuple[str, ...],
        files: tuple[str, ...],
        specials: dict[tuple[str, str], str] | None = None,
    ) -> None:
        self.files, self._flushed = files, frozenset(flushed)
        self._entries = sorted(entries, key=lambda e: e.specificity, reverse=True)
        self._used: set[Entry] = set()
        self._specials = specials or {}
        self._found: dict[tuple[str, OpClass, str, str, str], Tolerance] = {}

    @property
    def exceptions(self) -> int:
        """How many exceptions the tables hold for this device."""
        return sum(1 for e in self._entries if e.kind == "exception")

    def special(self, op: str, rule: OpClass, value: str) -> str:
        """What is promised of a special value in this op's results, one of POLICIES. An op's row beats its class's."""
        found = self._specials
        name = _short(op)
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
        self._used.update(rows)
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
            verdict, why = "applies", "gives " + ", ".join(e.numbers)
            if e is not pair and e is not ulp:
                better = pair if pair and ("scale" in e.numbers or pair.kind == "exception") else ulp
                verdict, why = "beaten", _why(e, better)
            told[verdict].append(Explanation(e.words, e.place, verdict, why))
        for e in self._entries:
            if e.names(op) and e not in matching:
                told["elsewhere"].append(Explanation(e.words, e.place, "elsewhere", f"is not about {dtype} {pass_}"))
        return [t for group in told.values() for t in group]

    def unused(self) -> list[Entry]:
        """Exceptions that have judged nothing so far, in the order of the files."""
        idle = [e for e in self._entries if e.kind == "exception" and e not in self._used]
        return sorted(idle, key=lambda e: (e.rank, e.order))


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


# --------------------------------------------------------------------------------------------------------------- reading


def names(device: str, fast: bool = False) -> tuple[str, ...]:
    """The tables of a device, least specific first: ("default", "mps", "sim") for "sim:mps". fast: its functions are the fast
    ones, as a probe showed."""
    kind, _, profile = device.partition(":")
    if fast:
        return ("default", kind, f"{kind}-fast")
    if kind == "sim":
        return ("default", *((profile,) if profile else ()), "sim")
    return ("default",) if kind == "cpu" else ("default", kind)


def load(device: str, folder: Path | None = None, known_ops: Collection[str] | None = None, fast: bool = False) -> Tables:
    """The tables of a device; one that has no file of its own lives by the default one.

    known_ops: names that exceptions and ULP rows may use (None: any). Raises TableError with file, line and remedy.
    """
    where = resources.folder("tolerances") if folder is None else folder
    if not (where / "default.toml").is_file():
        raise TableError(f"{where.name}/default.toml is missing; a folder of tables needs one: copy parity's and edit it")
    entries: list[Entry] = []
    flushed: tuple[str, ...] = ()
    specials: dict[tuple[str, str], str] = {}
    files = [path for name in names(device, fast) if (path := where / f"{name}.toml").is_file()]
    for rank, path in enumerate(files):
        source = _Source(path)
        for kind in KEYS:
            entries += _rows(source, kind, rank, known_ops)
        flushed = flushed if (own := _flushed(source)) is None else own
        specials |= _specials(source, known_ops)
    return Tables(entries, flushed, tuple(f"{where.name}/{path.name}" for path in files), specials)


class _Source:
    """One file while it is read. The TOML parser keeps no lines, so they are found by scanning the text."""

    def __init__(self, path: Path) -> None:
        self.name = f"{path.parent.name}/{path.name}"
        try:
            text = path.read_text(encoding="utf-8")
            self.data: Json = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            line = re.search(r"line (\d+)", str(e))
            raise self.error(int(line[1]) if line else 1, f"this is no TOML: {e}", "mend the line") from None
        except (OSError, UnicodeDecodeError) as e:
            raise self.error(1, f"cannot be read: {e}", "it must be a UTF-8 text file") from None
        self.lines = text.splitlines()
        self.only(self.data, TOP, "key or section", 0)
        if type(self.data.get("format")) is not int or self.data["format"] != FORMAT:
            fault = f"format is {self.data.get('format')!r}, this parity reads {FORMAT}"
            raise self.error(self.line("format", 0), fault, f"write 'format = {FORMAT}' on top, or upgrade parity")

    def line(self, key: str, start: int) -> int:
        """The first line below line `start` that sets or heads `key`; `start` itself, or 1, where there is none."""
        wanted = re.compile(rf"\s*(\[+\s*)?\"?{re.escape(key)}\"?\s*[=\]]")
        return next((i for i, text in enumerate(self.lines[start:], start + 1) if wanted.match(text)), start or 1)

    def only(self, keys: Collection[str], allowed: Collection[str], what: str, start: int) -> None:
        """Refuse keys that are not allowed. Raises TableError."""
        for key in keys:
            if key not in allowed:
                raise self.error(self.line(key, start), f"unknown {what} '{key}'", near(key, allowed))

    def error(self, line: int, fault: str, remedy: str) -> TableError:
        """The error with its place."""
        return TableError(f"{self.name}:{line}: {fault}; {remedy}")


def _flushed(source: _Source) -> tuple[str, ...] | None:
    """Dtypes whose subnormals the device may flush; None where the file does not say. Raises TableError."""
    policy, start = source.data.get("policy"), source.line("policy", 0)
    if policy is None:
        return None
    if not isinstance(policy, dict):
        raise source.error(start, f"policy is {policy!r}", "write a section [policy]")
    source.only(policy, ("flushes_subnormals",), "policy", start)
    value = policy.get("flushes_subnormals", [])
    if not isinstance(value, list):
        fault = f"flushes_subnormals is {value!r}", 'write a list of dtypes, like ["float32"]'
        raise source.error(source.line("flushes_subnormals", start), *fault)
    if value and (problem := _problem("dtype", value, None)):
        raise source.error(source.line("flushes_subnormals", start), *problem)
    return tuple(value)


def _short(op: str) -> str:
    """What [[special]] calls an op: "relu" for "opinfo:nn.functional.relu", "fft" for "fft.fft"."""
    return op.removeprefix("opinfo:").partition(":")[0].split(".")[-1]


def _specials(source: _Source, known: Collection[str] | None) -> dict[tuple[str, str], str]:
    """(special value, op or class) -> policy. Raises TableError."""
    found: dict[tuple[str, str], str] = {}
    for row in source.data.get("special", []):
        head = source.line("special", 0)
        source.only(row, ("value", "policy", "class", "op", "reason"), "key of [[special]]", head)
        for key, allowed in (("value", SPECIALS), ("policy", POLICIES)):
            if row.get(key) not in allowed:
                fault = f"{key} of [[special]] is {row.get(key)!r}"
                raise source.error(source.line(key, head), fault, f"write one of {', '.join(allowed)}")
        if ("class" in row) == ("op" in row) or not str(row.get("reason", "")).strip():
            raise source.error(head, "[[special]] needs a reason and either 'class' or 'op'", "give them")
        for key in ("class", "op"):
            for name in _list(row.get(key, [])):
                if problem := _problem(key, name, None if known is None else {_short(k) for k in known}):
                    raise source.error(source.line(key, head), *problem)
                found[row["value"], name] = row["policy"]
    return found


def _rows(source: _Source, kind: str, rank: int, known: Collection[str] | None) -> list[Entry]:
    """The rows of one kind. Raises TableError."""
    rows = source.data.get(kind, [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise source.error(source.line(kind, 0), f"'{kind}' is no list of rows", f"head each row with [[{kind}]]")
    heads = [i for i, text in enumerate(source.lines, 1) if re.match(rf"\s*\[\[\s*{kind}\s*\]\]", text)]
    heads += [source.line(kind, 0)] * (len(rows) - len(heads))  # rows written as inline tables have no head of their own
    made: list[Entry] = []
    for row, head in zip(rows, heads):
        _check(source, kind, row, head, known)
        numbers = {key: float(n) for key, n in row.items() if key in NUMBERS}
        parts = [(tuple(d for d in _list(row.get("dtype", "*")) if d != "*"), numbers)]
        if kind == "ulp":
            # A dtype named on its own beats `half`.
            bounds = dict.fromkeys(HALF, numbers.pop("half")) | numbers if "half" in numbers else numbers
            beside = {"absolute": bounds.pop("absolute")} if "absolute" in bounds else {}
            parts = [((d,), {"ulp": n, **beside}) for d, n in bounds.items()]
        reason = f"{row['reason']} ({row['link']})" if kind == "exception" else ""
        for subject in _list(row[{"rule": "class", "ulp": "function", "exception": "op"}[kind]]):
            pass_ = row.get("pass", "forward")
            made += [Entry(kind, source.name, head, rank, head, subject, d, pass_, n, reason) for d, n in parts]
    return made


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check(source: _Source, kind: str, row: Json, head: int, known: Collection[str] | None) -> None:
    """Refuse a row that cannot be trusted. Raises TableError."""
    needed, allowed = KEYS[kind]
    source.only(row, (*needed, *allowed), f"key of [[{kind}]]", head)
    for there, missing in (("scale", "output_ulp"), ("output_ulp", "scale")):
        if there in row and missing not in row:
            fault = f"half a pair: '{there}' without '{missing}'"
            raise source.error(source.line(there, head), fault, "give both or neither")
    for key in needed:
        if key not in row:
            raise source.error(head, f"[[{kind}]] lacks '{key}'", f"it needs {', '.join(needed)}")
    for key, value in row.items():
        if problem := _problem(key, value, known):
            raise source.error(source.line(key, head), *problem)
    if NUMBERS.isdisjoint(row):
        numbers = ", ".join(a for a in allowed if a in NUMBERS and a != "absolute")
        raise source.error(head, f"[[{kind}]] without a number", f"give one of {numbers}")


def _problem(key: str, value: Any, known: Collection[str] | None) -> tuple[str, str] | None:
    """What is wrong with the value of a key, and the remedy."""
    if key in NUMBERS:
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        return None if fine else (f"{key} is {value!r}", "write a number that is 0 or more")
    if key in ("source", "reason"):
        fine = isinstance(value, str) and bool(value.strip())
        return None if fine else (f"{key} is {value!r}", "write a text that says something")
    if key == "link":
        fine = isinstance(value, str) and re.fullmatch(r"https?://\S+\.\S+", value) is not None
        return None if fine else (f"link is {value!r}", "give the http(s) address of the issue or document")
    allowed = {"class": CLASSES, "pass": PASSES, "dtype": (*FACTS, "*")}.get(key, known)
    for name in value if key in ("dtype", "function") and isinstance(value, list) else [value]:
        if not isinstance(name, str):
            return f"{key} is {name!r}", "write a name in quotes"
        if key in ("op", "function") and any(c in name for c in "*?["):
            return f"{key} '{name}' is a pattern", "name one op per row"
        if allowed is not None and name not in allowed:
            return f"unknown {key} '{name}'", near(name, allowed) or "`parity explain` lists the names"
    return (f"{key} is an empty list", f"name a {key}") if value == [] else None
