"""The file of a capture: tensors in safetensors, and one JSON text in its metadata. Reading it runs nothing of it.

The JSON holds digests of all tensors and has one of its own, so a file that was truncated or edited is refused. Operators and
functions are named, and looked up among torch's own when they are judged.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from msgspec import Meta, Struct, to_builtins
from msgspec import convert as from_builtins
from torch import Tensor

from parity.checks.operators import StridedOperand
from parity.comparing.places import Place
from parity.comparing.subject import word
from parity.core import outputs
from parity.core.dtypes import FACTS
from parity.core.errors import CaptureError, OutputError
from parity.core.results import Fingerprint
from parity.core.stored import Count, convert
from parity.core.untrusted import parsed, printable, refuse_odd
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
Pass: TypeAlias = Annotated[int, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that was recorded. kind: "operator" or "function"; pass_: number of the pass. args, kwargs: with `Ref` in place of
    tensors; results: what it returned; after: the storages that it wrote, by the number of their group. error: the type and the
    text of what it raised, and whether those are a refusal. named: of a function with operators that the CPU does not have
    (`foreign`), its results and gradients by name."""

    kind: Literal["operator", "function"]
    name: str
    pass_: Pass
    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Ref, ...] = ()
    after: Mapping[int, str] = field(default_factory=dict)
    error: tuple[str, str, bool] | None = None
    named: Mapping[str, Ref] | None = None
    foreign: tuple[str, ...] = ()


class Ref(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor over a storage of the capture. storage: its digest; the rest as in `StridedOperand`. grad: whether it required a
    gradient."""

    storage: str
    shape: tuple[Count, ...]
    strides: tuple[Count, ...]
    offset: Count
    conj: bool
    neg: bool
    group: Count
    grad: bool = False

    @classmethod
    def to(cls, x: StridedOperand, storage: str, grad: bool = False) -> Ref:
        """The reference of an operand whose storage has this digest."""
        return cls(storage, x.shape, x.strides, x.offset, x.conj, x.neg, x.group, grad)

    def over(self, base: Tensor) -> StridedOperand:
        """The operand over a storage."""
        return StridedOperand(base, self.shape, self.strides, self.offset, self.conj, self.neg, self.group)


class Given(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor that goes in: an input, a parameter or a buffer. digest: of its elements in order."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
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


class _Row(Struct, rename={"pass_": "pass"}, omit_defaults=True, forbid_unknown_fields=True):
    """A `RecordedCall` as it is in the file. place: the fields of `Place`."""

    kind: Literal["operator", "function"]
    name: str
    pass_: Pass
    place: tuple[str, str, str, str, Count]
    args: Json
    kwargs: Json
    results: tuple[Ref, ...]
    after: tuple[tuple[Count, str], ...]
    error: tuple[str, str, bool] | None = None
    named: tuple[tuple[str, Ref], ...] | None = None
    foreign: tuple[str, ...] = ()


class _Body(Struct, forbid_unknown_fields=True):
    """The JSON of a file. storages: digest -> dtype; sketches: digest -> dtype, count, number of NaN and of Inf, digests of its
    samples and sums; the rest as in `Capture`."""

    title: str
    subject: str
    dtype: str
    machine: dict[str, Any]
    backward: bool
    tensors: tuple[Given, ...]
    storages: dict[str, str]
    sketches: dict[str, tuple[str, Count, Count, Count, str, str]]
    calls: tuple[_Row, ...]
    left: dict[str, Count]
    broken: str
    whole: tuple[tuple[str, Ref], ...] | None
    notes: tuple[str, ...]
    aside: dict[str, Count]


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
        return {"tensor": to_builtins(x)}
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


def _row(c: RecordedCall) -> _Row:
    named = None if c.named is None else tuple(c.named.items())
    place, args, after = astuple(c.place), (encoded(c.args), encoded(c.kwargs)), tuple(c.after.items())
    return _Row(c.kind, c.name, c.pass_, place, *args, c.results, after, c.error, named, c.foreign)


def _body(c: Capture) -> _Body:
    sketches = {
        k: (word(s.dtype), s.count, s.nan, s.inf, key_of(s.samples), key_of(s.sums)) for k, s in c.store.sketches.items()
    }
    return _Body(
        c.title, c.subject, c.dtype, asdict(c.machine), c.backward, c.tensors,
        {k: word(t.dtype) for k, t in c.store.whole.items()}, sketches, tuple(map(_row, c.calls)), dict(c.left), c.broken,
        None if c.whole is None else tuple(c.whole.items()), c.notes, dict(c.aside),
    )  # fmt: skip


def write(capture: Capture, path: Path) -> int:
    """Write a capture; returns the number of bytes. Raises OutputError if that cannot be done."""
    if path.is_dir() or not path.name:
        raise OutputError(f"{path} is a folder; name a file for the capture")
    body = json.dumps(to_builtins(_body(capture), enc_hook=str), separators=(",", ":"), allow_nan=False)
    sketches = capture.store.sketches
    flat = dict(capture.store.whole) | {f"sketch:{k}": s.samples for k, s in sketches.items()}
    flat |= {f"sums:{k}": s.sums for k, s in sketches.items()}
    plain = {k: torch.view_as_real(t).contiguous() if t.is_complex() else t.contiguous() for k, t in flat.items()}
    said = {"format": f"{MADE_BY} {FORMAT}", "digest": _digest(body), "body": body}
    save = _safetensors("torch").save
    held = save(plain, metadata=said)
    outputs.write(path, held, "name another place for the capture")
    return len(held)


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
        refuse_odd(path.stat(), LARGEST)
    except ValueError as e:
        raise CaptureError(f"{path} is not a capture: {e}; {REMEDY}") from None
    except OSError as e:
        raise CaptureError(
            f"there is no capture {path} ({e.strerror}); make one: parity locate FILE.py --capture {path}"
        ) from None
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


def _checked_body(path: Path, said: Mapping[str, str]) -> _Body:
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
    return from_builtins(parsed(body), _Body)


def _capture(body: _Body, tensors: Mapping[str, Tensor]) -> Capture:
    store = Store(0)
    for key, dtype in body.storages.items():
        flat = _flat(tensors[key], dtype)
        if key_of(flat) != key:
            raise ValueError("a tensor is not what was written")
        store.whole[key] = flat
        store.bytes += flat.numel() * flat.element_size()
    for key, (dtype, count, nan, inf, *digests) in body.sketches.items():
        samples, sums = _flat(tensors[f"sketch:{key}"], dtype), _flat(tensors[f"sums:{key}"], "float64")
        if [key_of(samples), key_of(sums)] != digests or len(samples) != len(positions(count)) or len(sums) != BLOCKS:
            raise ValueError("a sketch is not what was written")
        store.sketches[key] = Sketch(samples.dtype, count, nan, inf, samples, sums)
    return Capture(
        body.title, body.subject, body.dtype, convert(body.machine, Fingerprint), body.backward, body.tensors,
        store, [_ran(row) for row in body.calls], body.left, body.broken,
        None if body.whole is None else dict(body.whole), body.notes, body.aside,
    )  # fmt: skip


def _flat(t: Tensor, dtype: str) -> Tensor:
    made = torch.view_as_complex(t) if WORDS[dtype].is_complex else t
    if made.dim() != 1 or word(made.dtype) != dtype:
        raise ValueError("a tensor has another dtype or shape than it says")
    return made


def _ran(row: _Row) -> RecordedCall:
    return RecordedCall(
        row.kind, row.name, row.pass_, Place(*row.place), decoded(row.args), decoded(row.kwargs), row.results, dict(row.after),
        row.error, None if row.named is None else dict(row.named), row.foreign,
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
    "tensor": lambda v: from_builtins(v, Ref),
    "word": WORDS.__getitem__,
    "device": lambda v: torch.device("cpu"),
    "slice": lambda v: slice(*map(decoded, v)),
    "dots": lambda v: Ellipsis,
    "tuple": lambda v: tuple(map(decoded, v)),
    "dict": lambda v: {k: decoded(w) for k, w in from_builtins(v, list[tuple[str, Any]])},
}


def refs(tree: Sequence[Any] | Any) -> list[Ref]:
    """The tensors of an argument, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Ref)]
