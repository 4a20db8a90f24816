"""Finds the rows of the catalog that match a name or pattern: by the row's name, by the public names of its function, and, if
neither matches, ignoring case and underscores. People type what their code says: `F.relu`, `nn.Conv2d`, `aten::exp`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from parity.catalog.row import Row
from parity.core.case import entry_of
from parity.core.errors import near

SHORT = (("torch.ops.aten.", "aten::"), ("torch._C._nn.", "nn.functional."), ("torch.", ""), ("F.", "nn.functional."))
# Namespaces of torch whose names may be matched by their last word alone. A name in any other namespace is not torch's.
PLACES = ("", "nn", "nn.functional", "nn.init", "Tensor", "aten::", "linalg", "special", "fft", "optim")


def names_of(r: Row) -> tuple[str, ...]:
    """The names of a row: its own, and for a row of torch's test data also the entry, the same without its variant, and its
    last word."""
    entry = entry_of(r.name)
    base = entry.partition(":")[0]
    return (r.name, entry, base, base.rpartition(".")[2]) if entry != r.name else (r.name,)


def public_names(r: Row) -> frozenset[str]:
    """Public names of a row's functions in the spelling of `short`: `linalg.solve`, `Tensor.copy_`, `aten::exp`."""
    paths = [p for p in (r.call, r.forms.inplace) if p.startswith("torch.")]
    kernels = [p for p in (r.call, r.forms.inplace) if p.startswith(("torch.", "parity.catalog.glue.aten."))]
    entries = [entry.partition(":")[0] for entry in r.counts.opinfo]
    aten = [p.rpartition(".")[2] for p in (*kernels, *entries)]
    return frozenset([*map(short, paths), *entries, *(f"aten::{name}" for name in aten)])


def short(name: str) -> str:
    """A public name without `torch.`, in one spelling: `F.relu` is `nn.functional.relu`, `aten::add.Tensor` is `aten::add`."""
    for prefix, instead in SHORT:
        if name.startswith(prefix):
            name = instead + name.removeprefix(prefix)
            break
    return name.partition(".")[0] if name.startswith("aten::") else name


def last_word(name: str) -> str:
    """The last word of a name: `exp` of `torch.exp`."""
    return re.split(r"[.:]", short(name))[-1]


def matching(pattern: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows that match a pattern (`*`, `?`), in their order; empty if none does."""
    rows = tuple(rows)
    if "." in pattern or "::" in pattern:  # else every row would match `t*`
        wanted = short(pattern)
        matches = [r for r in rows if any(fnmatchcase(n, wanted) for n in (*names_of(r), *public_names(r)))]
        matches = matches or [r for r in rows if any(fnmatchcase(n, pattern) for n in names_of(r))]
    else:
        matches = [r for r in rows if any(fnmatchcase(n, pattern) for n in names_of(r))]
    if not matches and short(pattern).removesuffix(last_word(pattern)) in _places():
        matches = [r for r in rows if any(fnmatchcase(normalised(n), normalised(last_word(pattern))) for n in names_of(r))]
    return tuple(matches)


def hint(pattern: str, rows: Iterable[Row]) -> str:
    """A suggestion for a pattern without a match: the most similar names of rows; empty if none is similar."""
    words = {normalised(n): n for n in sorted({n for r in rows for n in names_of(r)}, key=lambda n: (-len(n), n))}
    wanted = normalised(last_word(pattern))
    if wanted in words:
        return f"did you mean '{words[wanted]}'?"
    for word in (re.sub("[123]d$", "", wanted), wanted):  # BatchNorm1d, 2d and 3d are one function
        close = near(word, words)
        if close.startswith("did"):
            return re.sub("'(.*?)'", lambda m: f"'{words[m[1]]}'", close)
    return ""


def _places() -> Iterator[str]:
    return (p if not p or p.endswith(":") else p + "." for p in PLACES)


def normalised(name: str) -> str:
    """A name in lower case without underscores, so that `LayerNorm` equals `layer_norm`."""
    return name.lower().replace("_", "")


# ------------------------------------------------------------------------------------- the function that a row's code calls

MAKES = re.compile(
    r"\.(tensor|zeros|ones|full|empty|eye|arange|stack|cat|maximum|autocast|\w+_like)$"
)  # operands, and no call of theirs


def called_by(r: Row) -> str:
    """The public function of torch that a row calls, by itself or as the only one in its glue function: `torch.lstm` for a row
    of packed sequences; "" where there is none or there are several."""
    if r.call.startswith("torch."):
        return r.call
    module, _, name = r.call.rpartition(".")
    if module == "parity.catalog.glue.aten":
        return f"torch.ops.aten.{name}"
    found = {n for n in _called(module, name) if not MAKES.search(n)} if module.startswith("parity.catalog.glue.") else set()
    return found.pop() if len(found) == 1 else ""


@functools.cache
def _called(module: str, name: str) -> frozenset[str]:
    node = _definitions(module).get(name)
    made = set[str]()
    for n in ast.walk(node) if node is not None else ():
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id != name:
            made |= _called(module, n.func.id)
        if isinstance(n, ast.Call):
            made.add(_path(n.func))
            made.update(path for a in n.args if (path := _path(a)).startswith("torch.nn.functional."))
    return frozenset(made - {""})


@functools.cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """The functions of a module, and the names that it assigns, read and not imported."""
    spec = importlib.util.find_spec(module)
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body if spec is not None and spec.origin else []
    functions: dict[str, ast.stmt] = {n.name: n for n in body if isinstance(n, ast.FunctionDef)}
    assigned = {t.id: n for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return functions | assigned


def _path(n: ast.AST) -> str:
    """`torch.nn.functional.relu` of `F.relu`; "" for all that is not torch's."""
    words = list[str]()
    while isinstance(n, ast.Attribute):
        words.append(n.attr)
        n = n.value
    place = {"torch": "torch", "F": "torch.nn.functional"}.get(n.id, "") if isinstance(n, ast.Name) and words else ""
    return ".".join([place, *reversed(words)]) if place else ""
