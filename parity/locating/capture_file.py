"""The file of a capture: tensors in safetensors, and one JSON text in its metadata. Reading it runs nothing of it.

The JSON holds digests of all tensors and has one of its own, so a file that was truncated or edited is refused. Operators and
functions are named, and looked up among torch's own when they are judged.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity.checks.operators import StridedOperand
from parity.comparing.places import Place
from parity.comparing.subject import word
from parity.core.dtypes import FACTS
from parity.core.errors import CaptureError, OutputError
from parity.core.results import Fingerprint
from parity.core.untrusted import parsed, printable
from parity.locating.values import BLOCKS, Sketch, Store, key_of, positions

FORMAT = "1"
LARGEST = 1 << 40  # bytes of a file
LONGEST = 1 << 30  # characters of its JSON
MADE_BY = "parity capture"
REMEDY = "make it again with parity locate --capture"
WORDS = {
    word(w): w
    for w in (
        torch.strided, torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format,
        *(getattr(torch, n) for n in FACTS if hasattr(torch, n)),
    )
}  # fmt: skip
NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
Json = Any


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that was recorded. kind: "operator" or "function"; pass_: number of the pass. args, kwargs: with `Ref` in place of
    tensors; results: what it returned; after: the storages that it wrote, by the number of their group. error: the type and the
    text of what it raised, and whether those are a refusal. named: of a function with operators that the CPU does not have
    (`foreign`), its results and gradients by name."""

    kind: str
    name: str
    pass_: int
    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Ref, ...] = ()
    after: Mapping[int, str] = field(default_factory=dict)
    error: tuple[str, str, bool] | None = None
    named: Mapping[str, Ref] | None = None
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor over a storage of the capture. storage: its digest; the rest as in `StridedOperand`. grad: whether it required a
    gradient."""

    storage: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool
    group: int
    grad: bool = False

    @classmethod
    def to(cls, x: StridedOperand, storage: str, grad: bool = False) -> Ref:
        """The reference of an operand whose storage has this digest."""
        return cls(storage, x.shape, x.strides, x.offset, x.conj, x.neg, x.group, grad)

    def over(self, base: Tensor) -> StridedOperand:
        """The operand over a storage."""
        return StridedOperand(base, self.shape, self.strides, self.offset, self.conj, self.neg, self.group)


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that goes in: an input, a parameter or a buffer. digest: of its elements in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(slots=True)
class Capture:
    """A run of a function on one machine. title: "Net float32 on mps"; left: reason -> number of calls of operators that were
    not recorded; aside: the same of functions; broken: what the function raised; whole: its results and gradients by name, None
    if they could not be computed alone."""

    title: str
    subject: str
    dtype: str
    machine: Fingerprint
    backward: bool
    tensors: tuple[Given, ...]
    store: Store
    calls: list[RecordedCall] = field(default_factory=list)
    left: Mapping[str, int] = field(default_factory=dict)
    broken: str = ""
    whole: Mapping[str, Ref] | None = None
    notes: tuple[str, ...] = ()
    aside: Mapping[str, int] = field(default_factory=dict)


# --------------------------------------------------------------------------------------------------------------- writing


def encoded(x: Any) -> Json:
    """An argument as JSON. Raises ValueError for what is neither number, word, tensor nor nest of them."""
    if x is None or isinstance(x, (bool, str)) or type(x) is int:
        return x
    if isinstance(x, float):
        return x if math.isfinite(x) else {"number": str(x)}
    if isinstance(x, complex):
        return {"complex": [encoded(x.real), encoded(x.imag)]}
    if isinstance(x, Ref):
        return {"tensor": _ref(x)}
    if isinstance(x, (torch.dtype, torch.layout, torch.memory_format)) and word_of(x) in WORDS:
        return {"word": word_of(x)}
    if isinstance(x, torch.device):
        return {"device": x.type}
    if isinstance(x, slice):
        return {"slice": [encoded(v) for v in (x.start, x.stop, x.step)]}
    if x is Ellipsis:
        return {"dots": 0}
    if isinstance(x, list):
        return [encoded(v) for v in x]
    if type(x) is tuple or isinstance(x, torch.Size):
        return {"tuple": [encoded(v) for v in x]}
    if type(x) is dict and all(isinstance(k, str) for k in x):
        return {"dict": [[k, encoded(v)] for k, v in x.items()]}
    raise ValueError(f"a {type(x).__name__} is not kept")


def word_of(x: Any) -> str:
    """The name of a dtype, a layout or a memory format, without `torch.`."""
    return str(x).removeprefix("torch.")


def _ref(r: Ref) -> list[Any]:
    return [r.storage, list(r.shape), list(r.strides), r.offset, r.conj, r.neg, r.group, r.grad]


def _row(c: RecordedCall) -> dict[str, Any]:
    p = c.place
    row: dict[str, Any] = {
        "kind": c.kind, "name": c.name, "pass": c.pass_, "place": [p.module, p.kind, p.function, p.line, p.order],
        "args": encoded(c.args), "kwargs": encoded(c.kwargs), "results": [_ref(r) for r in c.results],
        "after": [[g, k] for g, k in c.after.items()],
    }  # fmt: skip
    row |= {"error": list(c.error)} if c.error is not None else {}
    return row | ({"named": _named(c.named), "foreign": list(c.foreign)} if c.named is not None else {})


def _named(named: Mapping[str, Ref]) -> list[Any]:
    return [[n, _ref(r)] for n, r in named.items()]


def _body(c: Capture) -> dict[str, Any]:
    return {
        "title": c.title, "subject": c.subject, "dtype": c.dtype, "machine": asdict(c.machine), "backward": c.backward,
        "tensors": [[g.name, g.dtype, list(g.shape), g.digest] for g in c.tensors],
        "storages": {k: word(t.dtype) for k, t in c.store.whole.items()},
        "sketches": {
            k: [word(s.dtype), s.count, s.nan, s.inf, key_of(s.samples), key_of(s.sums)]
            for k, s in c.store.sketches.items()
        },
        "calls": [_row(x) for x in c.calls], "left": dict(c.left), "broken": c.broken,
        "whole": None if c.whole is None else _named(c.whole), "notes": list(c.notes), "aside": dict(c.aside),
    }  # fmt: skip


def write(capture: Capture, path: Path) -> int:
    """Write a capture; returns the number of bytes. Raises OutputError if that cannot be done."""
    if path.is_dir() or not path.name:
        raise OutputError(f"{path} is a folder; name a file for the capture")
    body = json.dumps(_body(capture), separators=(",", ":"), allow_nan=False)
    sketches = capture.store.sketches
    flat = dict(capture.store.whole) | {f"sketch:{k}": s.samples for k, s in sketches.items()}
    flat |= {f"sums:{k}": s.sums for k, s in sketches.items()}
    plain = {k: torch.view_as_real(t).contiguous() if t.is_complex() else t.contiguous() for k, t in flat.items()}
    said = {"format": f"{MADE_BY} {FORMAT}", "digest": _digest(body), "body": body}
    save = _safetensors("torch").save
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_bytes(save(plain, metadata=said))
        part.replace(path)
        return path.stat().st_size
    except OSError as e:
        part.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {e.strerror or e}; name another place for the capture") from None


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


def _safetensors(part: str) -> Any:
    """The library, which is loaded where it is needed: environments that parity is lent to may not have it."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise CaptureError("captures need the package safetensors, which is not installed: pip install safetensors") from None
    return safetensors.torch if part else safetensors


# --------------------------------------------------------------------------------------------------------------- reading


def read(path: Path) -> Capture:
    """Read a capture. Raises CaptureError for a file that is missing, truncated, edited, foreign or of another format."""
    opened = _safetensors("").safe_open
    try:
        status = path.stat()
    except OSError as e:
        raise CaptureError(
            f"there is no capture {path} ({e.strerror}); make one: parity locate FILE.py --capture {path}"
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise CaptureError(f"{path} is not a capture: not an ordinary file, or larger than {LARGEST >> 30} GiB")
    try:
        with opened(str(path), "pt") as f:
            said = f.metadata() or {}
            body = _checked_body(path, said)
            return _capture(body, {k: f.get_tensor(k) for k in f.keys()})  # noqa: SIM118 -- it is no dict
    except CaptureError:
        raise
    except OSError as e:
        raise CaptureError(f"cannot read {path}: {e.strerror or e}") from None
    except Exception as e:  # safetensors' own errors, and whatever a made-up description runs into
        what = printable(f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}")[:160]
        raise CaptureError(f"{path} is not a sound capture, it may be truncated or edited ({what}); {REMEDY}") from None


def _checked_body(path: Path, said: Mapping[str, str]) -> Json:
    made, _, version = said.get("format", "").rpartition(" ")
    if made != MADE_BY:
        raise CaptureError(f"{path} is a file of safetensors, but no capture; {REMEDY}")
    if version != FORMAT:
        raise CaptureError(
            f"{path} has format {printable(version)[:20]} of captures, and this parity reads format {FORMAT}; read it with the "
            "version of parity that made it, or make it again with this one"
        )
    body = said.get("body", "")
    if len(body) > LONGEST or _digest(body) != said.get("digest"):
        raise ValueError("its description is not what was written")
    return parsed(body)


def _capture(body: Json, tensors: Mapping[str, Tensor]) -> Capture:
    store = Store(0)
    for key, dtype in body["storages"].items():
        flat = _flat(tensors[key], dtype)
        if key_of(flat) != key:
            raise ValueError("a tensor is not what was written")
        store.whole[key] = flat
        store.bytes += flat.numel() * flat.element_size()
    for key, (dtype, count, nan, inf, *digests) in body["sketches"].items():
        samples, sums = _flat(tensors[f"sketch:{key}"], dtype), _flat(tensors[f"sums:{key}"], "float64")
        if [key_of(samples), key_of(sums)] != digests or len(samples) != len(positions(_whole(count))) or len(sums) != BLOCKS:
            raise ValueError("a sketch is not what was written")
        store.sketches[key] = Sketch(samples.dtype, count, _whole(nan), _whole(inf), samples, sums)
    machine: dict[str, Any] = {k: tuple(map(tuple, v)) if isinstance(v, list) else v for k, v in body["machine"].items()}
    return Capture(
        _text(body["title"]), _text(body["subject"]), _text(body["dtype"]), Fingerprint(**machine), bool(body["backward"]),
        tuple(Given(_text(n), _text(d), tuple(map(_whole, s)), _text(x)) for n, d, s, x in body["tensors"]),
        store, [_ran(row) for row in body["calls"]], {_text(k): _whole(v) for k, v in body["left"].items()},
        _text(body["broken"]), None if body["whole"] is None else _read_named(body["whole"]),
        tuple(map(_text, body["notes"])), {_text(k): _whole(v) for k, v in body["aside"].items()},
    )  # fmt: skip


def _flat(t: Tensor, dtype: str) -> Tensor:
    made = torch.view_as_complex(t) if WORDS[dtype].is_complex else t
    if made.dim() != 1 or word(made.dtype) != dtype:
        raise ValueError("a tensor has another dtype or shape than it says")
    return made


def _text(x: Any) -> str:
    if not isinstance(x, str):
        raise ValueError("a text is none")
    return x


def _whole(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise ValueError("a count is none")
    return x


def _read_named(rows: Json) -> dict[str, Ref]:
    return {_text(n): _read_ref(r) for n, r in rows}


def _read_ref(row: Json) -> Ref:
    storage, shape, strides, offset, conj, neg, group, grad = row
    sizes = tuple(map(_whole, shape)), tuple(map(_whole, strides))
    return Ref(_text(storage), *sizes, _whole(offset), bool(conj), bool(neg), _whole(group), bool(grad))


def _ran(row: Json) -> RecordedCall:
    module, kind, function, line, order = row["place"]
    place = Place(_text(module), _text(kind), _text(function), _text(line), _whole(order))
    error = row.get("error")
    named = row.get("named")
    return RecordedCall(
        {"operator": "operator", "function": "function"}[row["kind"]], _text(row["name"]), (0, 1).index(row["pass"]), place,
        decoded(row["args"]), decoded(row["kwargs"]), tuple(map(_read_ref, row["results"])),
        {_whole(g): _text(k) for g, k in row["after"]},
        None if error is None else (_text(error[0]), _text(error[1]), bool(error[2])),
        None if named is None else _read_named(named), tuple(map(_text, row.get("foreign", []))),
    )  # fmt: skip


def decoded(x: Json) -> Any:
    """The argument that JSON describes. Raises ValueError, KeyError and TypeError for what describes none."""
    if isinstance(x, list):
        return [decoded(v) for v in x]
    if not isinstance(x, dict):
        return x
    ((kind, value),) = x.items()
    return _READERS[kind](value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "number": NUMBERS.__getitem__,
    "complex": lambda v: complex(decoded(v[0]), decoded(v[1])),
    "tensor": _read_ref,
    "word": WORDS.__getitem__,
    "device": lambda v: torch.device("cpu"),
    "slice": lambda v: slice(*map(decoded, v)),
    "dots": lambda v: Ellipsis,
    "tuple": lambda v: tuple(map(decoded, v)),
    "dict": lambda v: {_text(k): decoded(w) for k, w in v},
}


def refs(tree: Sequence[Any] | Any) -> list[Ref]:
    """The tensors of an argument, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Ref)]
