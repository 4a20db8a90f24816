"""Which rows of the catalog a name or pattern means: by the row's own name, by the public names of its function, and, where
that finds nothing, whatever the case of its letters. People type what their code says: `F.relu`, `nn.Conv2d`, `aten::exp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from parity.catalog.opinfo import PREFIX
from parity.catalog.row import Row
from parity.errors import near

SHORT = (("torch.ops.aten.", "aten::"), ("torch._C._nn.", "nn.functional."), ("torch.", ""), ("F.", "nn.functional."))
# Places of torch whose names may be found by their last word alone. Another one is a name that torch does not have.
PLACES = ("", "nn", "nn.functional", "nn.init", "Tensor", "aten::", "linalg", "special", "fft", "optim")


def spoken(r: Row) -> tuple[str, ...]:
    """The names of a row itself; of OpInfo rows also without prefix and by the last word."""
    bare = r.name.removeprefix(PREFIX)
    return (r.name, bare, bare.partition(":")[0], bare.partition(":")[0].rpartition(".")[2]) if bare != r.name else (r.name,)


def public(r: Row) -> frozenset[str]:
    """What torch calls the function of a row, in the short form of `short`: `linalg.solve`, `Tensor.copy_`, `aten::exp`."""
    paths = [p for p in (r.call, r.inplace) if p.startswith("torch.")]
    kernels = [p for p in (r.call, r.inplace) if p.startswith(("torch.", "parity.catalog.aten."))]
    entries = [entry.partition(":")[0] for entry in r.opinfo]
    aten = [p.rpartition(".")[2] for p in (*kernels, *entries)]
    return frozenset([*map(short, paths), *entries, *(f"aten::{name}" for name in aten)])


def short(name: str) -> str:
    """A public name without `torch.`, in one spelling: `F.relu` is `nn.functional.relu`, `aten::add.Tensor` is `aten::add`."""
    for prefix, instead in SHORT:
        if name.startswith(prefix):
            name = instead + name.removeprefix(prefix)
            break
    return name.partition(".")[0] if name.startswith("aten::") else name


def bare(name: str) -> str:
    """The last word of a name: `exp` of `torch.exp`."""
    return re.split(r"[.:]", short(name))[-1]


def meant(pattern: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows that a pattern (`*`, `?`) means, in their order; none where it means nothing."""
    rows = tuple(rows)
    if "." in pattern or "::" in pattern:  # else every row would match `t*`
        wanted = short(pattern)
        found = [r for r in rows if any(fnmatchcase(n, wanted) for n in (*spoken(r), *public(r)))]
        found = found or [r for r in rows if any(fnmatchcase(n, pattern) for n in spoken(r))]
    else:
        found = [r for r in rows if any(fnmatchcase(n, pattern) for n in spoken(r))]
    if not found and short(pattern).removesuffix(bare(pattern)) in _places():
        found = [r for r in rows if any(fnmatchcase(plain(n), plain(bare(pattern))) for n in spoken(r))]
    return tuple(found)


def hint(pattern: str, rows: Iterable[Row]) -> str:
    """The nearest names of rows to one that means nothing; empty where none is near."""
    words = {plain(n): n for n in sorted({n for r in rows for n in spoken(r)}, key=lambda n: (-len(n), n))}
    wanted = plain(bare(pattern))
    if wanted in words:
        return f"did you mean '{words[wanted]}'?"
    for word in (re.sub("[123]d$", "", wanted), wanted):  # BatchNorm2d is one function with the others
        close = near(word, words)
        if close.startswith("did"):
            return re.sub("'(.*?)'", lambda m: f"'{words[m[1]]}'", close)
    return ""


def _places() -> Iterator[str]:
    return (p if not p or p.endswith(":") else p + "." for p in PLACES)


def plain(name: str) -> str:
    """A name whatever its case and its underscores: `LayerNorm` is `layer_norm`."""
    return name.lower().replace("_", "")
