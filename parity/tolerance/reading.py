"""Reads `tolerances/*.toml`. Every unknown key or value raises TableError with file, line and remedy.

Four kinds of rows. `[[rule]]`: the numbers of an op class ("gradient": the backward pass of every class) in some dtypes.
`[[ulp]]`: bounds of elementwise functions in ULP, or ULP and an absolute error, forward only. `[[exception]]`: the numbers of
one op, with a reason and a link. `[[special]]`: the policy for special values (signs of zeros, how NaN spreads, subnormals), by
class or by op.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from parity.core import extensions, project, untrusted
from parity.core.case import OpClass
from parity.core.devices import HONEST
from parity.core.dtypes import FACTS, HALF
from parity.core.errors import TableError, near
from parity.core.results import Json
from parity.tolerance.rows import GRADIENT, SPECIALS, TableRow, Tables, short

FORMAT = 1
LARGEST_NUMBER = 1_000_000  # of a tolerance; parity's own are 180 at most
LARGEST = 4 << 20  # bytes; limit for a table
ADDED: list[tuple[Path, str]] = []  # tables of files outside of the package, each with its device
CLASSES = ("*", GRADIENT, *(c.value for c in OpClass))
ROUNDED = ("*", GRADIENT, *(c.value for c in OpClass if c not in (OpClass.EXACT, OpClass.SELECTION, OpClass.METADATA)))
PASSES = ("*", "forward", "backward")
ULP_DTYPES = ("half", *(name for name, f in FACTS.items() if f.kind == "float"))
NUMBERS = frozenset(("scale", "output_ulp", "ulp", "absolute", *ULP_DTYPES))
# Per kind of row: required keys, optional keys.
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rule": (("class", "dtype", "pass", "scale", "output_ulp", "source"), ()),
    "ulp": (("function", "source"), ("absolute", *ULP_DTYPES)),
    "exception": (("op", "dtype", "pass", "reason", "link"), ("scale", "output_ulp", "ulp")),
}
POLICIES = ("kept", "any", "any_with_nan", "flushed")
TOP = ("format", "policy", "special", *KEYS)


def names(device: str, fast: bool = False) -> tuple[str, ...]:
    """Names of the tables of a device, least specific first: ("default", "mps", "sim") for "sim:mps". fast: a probe showed that
    the device uses fast math functions."""
    kind, _, profile = device.removesuffix(HONEST).partition(":")
    if fast:
        return ("default", kind, f"{kind}-fast")
    if kind == "sim":
        return ("default", *((profile,) if profile else ()), "sim")
    return ("default",) if kind == "cpu" else ("default", kind)


def add(file: str | Path, device: str = "default") -> None:
    """Add a table of a file outside of the package: it goes over parity's for that device ("mps", "cuda", "sim"), or for every
    one. Raises TableError."""
    path = Path(file).absolute()
    if not path.is_file():
        raise TableError(f"{file}: no such file; give a table of tolerances")
    if (path, device) not in ADDED:
        ADDED.append((path, device))
        extensions.note("table", str(path))


def load(device: str, folder: Path | None = None, known_ops: Collection[str] | None = None, fast: bool = False) -> Tables:
    """The tables of a device; just the default one if the device has no file of its own.

    known_ops: names that exceptions and ULP rows may use (None: any). fast: as in `names`. Raises TableError with file, line
    and remedy.
    """
    if not re.fullmatch(r"[\w-]+(:[\w-]+)?", device.removesuffix(HONEST)):  # it names files
        name = untrusted.printable(device)[:80]
        raise TableError(f"no device is called '{name}'; a device is a name like mps, cuda:0 or sim:mps")
    where = project.resource_folder("tolerances") if folder is None else folder
    if not (where / "default.toml").is_file():
        raise TableError(f"{where.name}/default.toml is missing; a folder of tables needs one: copy parity's and edit it")
    entries: list[TableRow] = []
    flushed: tuple[str, ...] = ()
    specials: dict[tuple[str, str], str] = {}
    extensions.load()
    called = names(device, fast)
    files = [path for name in called if (path := where / f"{name}.toml").is_file()]
    added = [*(path for path, of in ADDED if of in called), *map(Path, project.found().tolerances)]
    for rank, path in enumerate((*files, *added)):
        source = _Source(path)
        for kind in KEYS:
            entries += _rows(source, kind, rank, known_ops)
        flushed = flushed if (own := _flushed(source)) is None else own
        specials |= _specials(source, known_ops)
    return Tables(entries, flushed, (*(f"{where.name}/{path.name}" for path in files), *map(_named_file, added)), specials)


class _Source:
    """A file being read. The TOML parser keeps no line numbers, so this finds them by scanning the text."""

    def __init__(self, path: Path) -> None:
        self.name = _named_file(path)
        try:
            text = untrusted.text(path, LARGEST)
            self.data: Json = untrusted.toml(text, _float)
        except tomllib.TOMLDecodeError as e:
            line = re.search(r"line (\d+)", str(e))
            raise self.error(int(line[1]) if line else 1, f"this is no TOML: {e}", "mend the line") from None
        except (OSError, ValueError) as e:  # ValueError: no ordinary file, no UTF-8, brackets too deep, or a number too long
            raise self.error(1, f"cannot be read: {e}", "it must be a UTF-8 text file") from None
        if number := _too_long(self.data):
            raise self.error(1, f"a whole number of {number} digits", "write a number that a float can hold")
        self.lines = text.splitlines()
        self.only(self.data, TOP, "key or section", 0)
        if type(self.data.get("format")) is not int or self.data["format"] != FORMAT:
            fault = f"format is {self.data.get('format')!r}, this parity reads {FORMAT}"
            raise self.error(self.line("format", 0), fault, f"write 'format = {FORMAT}' on top, or upgrade parity")

    def line(self, key: str, start: int) -> int:
        """Number of the first line after line `start` that sets `key` or is its section head; `start`, or 1, if there is
        none."""
        wanted = re.compile(rf"\s*(\[+\s*)?\"?{re.escape(key)}\"?\s*[=\]]")
        return next((i for i, text in enumerate(self.lines[start:], start + 1) if wanted.match(text)), start or 1)

    def only(self, keys: Collection[str], allowed: Collection[str], what: str, start: int) -> None:
        """Raises TableError for the first key that is not allowed."""
        for key in keys:
            if key not in allowed:
                raise self.error(self.line(key, start), f"unknown {what} '{key}'", near(key, allowed))

    def error(self, line: int, fault: str, remedy: str) -> TableError:
        """The TableError, with file and line."""
        return TableError(f"{self.name}:{line}: {untrusted.printable(fault)}; {untrusted.printable(remedy)}")


def _named_file(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _float(text: str) -> float:
    return float(text[:400])


def _too_long(tree: Any) -> int:
    """Number of digits of an integer in the tree that is too large for a float; 0 if there is none."""
    if isinstance(tree, int) and abs(tree) >> 1000:
        return int(math.log10(2) * tree.bit_length()) + 1
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return max((_too_long(v) for v in inner), default=0)


def _flushed(source: _Source) -> tuple[str, ...] | None:
    """Dtypes whose subnormals the device may flush; None if the file does not say. Raises TableError."""
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


def _specials(source: _Source, known: Collection[str] | None) -> dict[tuple[str, str], str]:
    """(special value, op or class) -> policy. Raises TableError."""
    policies: dict[tuple[str, str], str] = {}
    subjects = {"class": tuple(c.value for c in OpClass), "op": None if known is None else {short(k) for k in known}}
    for row, head in _headed(source, "special"):
        source.only(row, ("value", "policy", "class", "op", "reason"), "key of [[special]]", head)
        for key, allowed in (("value", tuple(SPECIALS)), ("policy", POLICIES)):
            if row.get(key) not in allowed:
                fault = f"{key} of [[special]] is {row.get(key)!r}"
                raise source.error(source.line(key, head), fault, f"write one of {', '.join(allowed)}")
        if ("class" in row) == ("op" in row) or "reason" not in row:
            raise source.error(head, "[[special]] needs a reason and either 'class' or 'op'", "give them")
        key = "class" if "class" in row else "op"
        names = _list(row[key])
        problems = [("reason", _problem("reason", row["reason"], None)), *((key, _named(key, n, subjects[key])) for n in names)]
        problems += [] if names else [(key, (f"{key} is an empty list", f"name a {key}"))]
        for where, problem in problems:
            if problem:
                raise source.error(source.line(where, head), *problem)
        policies.update({(row["value"], name): row["policy"] for name in names})
    return policies


def _headed(source: _Source, kind: str) -> list[tuple[Json, int]]:
    """The rows of one kind as TOML tables, each with the line of its head. Raises TableError."""
    rows = source.data.get(kind, [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise source.error(source.line(kind, 0), f"'{kind}' is not a list of rows", f"head each row with [[{kind}]]")
    heads = [i for i, text in enumerate(source.lines, 1) if re.match(rf"\s*\[\[\s*{kind}\s*\]\]", text)]
    heads += [source.line(kind, 0)] * (len(rows) - len(heads))  # rows written as inline tables have no head of their own
    return list(zip(rows, heads))


def _rows(source: _Source, kind: str, rank: int, known: Collection[str] | None) -> list[TableRow]:
    """The rows of one kind as `TableRow`s. Raises TableError."""
    rows_read: list[TableRow] = []
    for row, head in _headed(source, kind):
        _check(source, kind, row, head, known)
        numbers = {key: float(n) for key, n in row.items() if key in NUMBERS}
        parts = [(tuple(d for d in _list(row.get("dtype", "*")) if d != "*"), numbers)]
        if kind == "ulp":
            # A dtype named on its own beats `half`.
            bounds = dict.fromkeys(HALF, numbers.pop("half")) | numbers if "half" in numbers else numbers
            absolute = {"absolute": bounds.pop("absolute")} if "absolute" in bounds else {}
            parts = [((d,), {"ulp": n, **absolute}) for d, n in bounds.items()]
        reason = f"{row['reason']} ({row['link']})" if kind == "exception" else ""
        for subject in _list(row[{"rule": "class", "ulp": "function", "exception": "op"}[kind]]):
            pass_ = row.get("pass", "forward")
            rows_read += [TableRow(kind, source.name, head, rank, head, subject, d, pass_, n, reason) for d, n in parts]
    return rows_read


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check(source: _Source, kind: str, row: Json, head: int, known: Collection[str] | None) -> None:
    """Raises TableError for a row with missing, unknown or wrong keys."""
    needed, allowed = KEYS[kind]
    source.only(row, (*needed, *allowed), f"key of [[{kind}]]", head)
    for there, missing in (("scale", "output_ulp"), ("output_ulp", "scale")):
        if there in row and missing not in row:
            fault = f"half a pair: '{there}' without '{missing}'"
            raise source.error(source.line(there, head), fault, "give both or neither")
    for key in needed:
        if key not in row:
            raise source.error(head, f"[[{kind}]] has no '{key}'", f"it needs {', '.join(needed)}")
    for key, value in row.items():
        if problem := _problem(key, value, known):
            raise source.error(source.line(key, head), *problem)
    if row.get("scale") == 0 and (what := _rounded(kind, row)):
        fault = f"scale is {row['scale']!r} for {what}, so that no rounding at all would be allowed"
        equality = "with output_ulp = 0 as well, which asks for equality" if kind == "exception" else 'class = "exact"'
        raise source.error(
            source.line("scale", head), fault, f"write a number above 0; 0 is for int and bool dtypes, or {equality}"
        )
    if NUMBERS.isdisjoint(row):
        numbers = ", ".join(a for a in allowed if a in NUMBERS and a != "absolute")
        raise source.error(head, f"[[{kind}]] without a number", f"give one of {numbers}")


def _rounded(kind: str, row: Json) -> str:
    """Which results that are rounded a row is about; empty for none, and for an exception that asks for equality."""
    inexact = ["any dtype" if d == "*" else d for d in _list(row["dtype"]) if d == "*" or FACTS[d].is_inexact]
    if kind == "exception":
        return "/".join(inexact) if row["output_ulp"] else ""
    classes = ["any class" if c == "*" else c for c in _list(row["class"]) if c in ROUNDED]
    return f"{'/'.join(classes)} in {'/'.join(inexact)}" if classes and inexact else ""


def _problem(key: str, value: Any, known: Collection[str] | None) -> tuple[str, str] | None:
    """(What is wrong with the value of a key, remedy); None if it is correct."""
    if key in NUMBERS:
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        if fine and value > LARGEST_NUMBER:  # 0 is a number: it asks for equality
            return f"{key} is {value!r}", f"write one of at most {LARGEST_NUMBER:,}, because more would accept anything"
        return None if fine else (f"{key} is {value!r}", "write a number that is 0 or more")
    if key in ("source", "reason"):
        fine = isinstance(value, str) and bool(value.strip())
        return None if fine else (f"{key} is {value!r}", "write a text that says something")
    if key == "link":
        fine = isinstance(value, str) and re.fullmatch(r"https?://\S+\.\S+", value) is not None
        return None if fine else (f"link is {value!r}", "give the http(s) address of the issue or document")
    allowed = {"class": CLASSES, "pass": PASSES, "dtype": (*FACTS, "*")}.get(key, known)
    for name in value if key in ("dtype", "function") and isinstance(value, list) else [value]:
        if problem := _named(key, name, allowed):
            return problem
    return (f"{key} is an empty list", f"name a {key}") if value == [] else None


def _named(key: str, name: Any, allowed: Collection[str] | None) -> tuple[str, str] | None:
    """(What is wrong with a name, remedy); None if it is correct. allowed: the known names; None for any."""
    if not isinstance(name, str):
        return f"{key} is {name!r}", "write a name in quotes"
    if key in ("op", "function") and any(c in name for c in "*?["):
        return f"{key} '{name}' is a pattern", "name one op per row"
    if allowed is not None and name not in allowed and not (key == "class" and OpClass.holds(name)):
        return f"unknown {key} '{name}'", near(name, allowed) or "`parity run --list` lists the names"
    return None
