"""The figures of each case of an item, stored compactly, so that two runs can be compared case by case.

Of each case: a key, made of its id and of the digest of its inputs; in which aspects it was compared; the error ratio of each
tensor, of the device and of the reference; and the device's time. All but the keys are codes of one byte in base64:

- a ratio is a power of two in eighths, from 2**-7 (what lies below is noise) to 2**8.6, of the whole budget or, with `LEAST`
  added, of the least possible one, which some comparisons need not go beyond. 0 stands for no ratio: the device has the bits of
  the reference, or both equal the truth, or the rule knows no ratio. The two are of one unit in each place.
- a time is a power of two in tenths, from a microsecond to 44 seconds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from parity.core.results import COMPARED, Aspect, AspectWord, Measure, Status
from parity.core.stored import named

KEY = 3  # bytes of a key; in an item of 1,000 cases, 1 of 17,000 pairs is none
STEPS = 8  # codes per factor of two of an error ratio
FLOOR = -7  # the power of two of the least error ratio; half of what is reported as a difference
LARGEST = 127  # code of the largest error ratio, and of an infinite one
LEAST = 128  # added to the code of a ratio of the least possible budget
TIME_STEPS = 10  # codes per factor of two of a time
TICK = 1e-6  # seconds of the first code
EXACT_BYTES = 255
ByAspect: TypeAlias = Annotated[Mapping[str, str], named(AspectWord)]


@dataclass(frozen=True, slots=True)
class Figures:
    """The packed figures of one item. keys: of its cases, in order; compared: aspect -> one bit per case, or nothing where
    all were; ratios: "aspect tensor" -> two codes per compared case, left out where there is none; seconds: aspect -> one
    code per case; screens: whether cheap tests decide some comparisons."""

    op: str
    dtype: str
    keys: str = ""
    compared: ByAspect = field(default_factory=dict)
    ratios: Mapping[str, str] = field(default_factory=dict)
    seconds: ByAspect = field(default_factory=dict)
    screens: bool = True

    def __post_init__(self) -> None:
        unpacked(self)


# --------------------------------------------------------------------------------------------------------------- packing


@dataclass(slots=True)
class Collected:
    """The figures of an item while its cases run."""

    keys: list[bytes] = field(default_factory=list)
    compared: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    ratios: dict[str, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    seconds: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(
        self, text: str, digest: str, results: Iterable[tuple[str, Status, Sequence[Measure]]], seconds: Mapping[str, float]
    ) -> None:
        """Take in one case. text: its id; digest: of its inputs; results: (aspect, status, measures); seconds: aspect -> the
        device's time."""
        k = len(self.keys)
        self.keys.append(key_of(text, digest))
        for aspect, status, measures in results:
            if status not in COMPARED:
                continue
            self.compared[aspect].add(k)
            for m in measures:
                if code := _codes(m):
                    self.ratios[f"{aspect} {m.tensor}"][k] = code
        for aspect, time in seconds.items():
            self.seconds[aspect][k] = time

    def packed(self, op: str, dtype: str, screens: bool) -> Figures:
        """The row to store."""
        n = len(self.keys)
        masks = {a: sum(1 << k for k in cases) for a, cases in self.compared.items()}
        times = {a: bytes(time_code(t[k]) if k in t else 0 for k in range(n)) for a, t in self.seconds.items()}
        return Figures(
            op,
            dtype,
            _text(b"".join(self.keys)),
            {a: _text(m.to_bytes(_mask_bytes(n), "little")) if m.bit_count() < n else "" for a, m in masks.items()},
            {name: self._column(name, codes) for name, codes in self.ratios.items()},
            {a: _text(codes) for a, codes in times.items()},
            screens,
        )

    def _column(self, name: str, codes: Mapping[int, bytes]) -> str:
        cases = sorted(self.compared[_parts(name)[0]])
        return _text(b"".join(codes.get(k, b"\0\0") for k in cases))

    def medians(self) -> tuple[dict[str, float], dict[str, float]]:
        """aspect -> median of the device's seconds per case, and the median distance from it."""
        middle = {a: statistics.median(t.values()) for a, t in self.seconds.items()}
        around = {a: statistics.median(abs(x - middle[a]) for x in t.values()) for a, t in self.seconds.items()}
        return {a: float(f"{x:.3g}") for a, x in middle.items()}, {a: float(f"{x:.3g}") for a, x in around.items()}


def key_of(text: str, digest: str) -> bytes:
    """The key of a case."""
    return hashlib.blake2b(f"{text}\0{digest}".encode(), digest_size=KEY).digest()


def _codes(m: Measure) -> bytes:
    """The codes of the device and of the reference; empty if there is no ratio."""
    least = m.screen == "truth"
    if m.share is None or math.isnan(m.share) or not (m.measured or least):
        return b""
    own = None if m.reference_share is None else max(m.reference_share, m.reference_spread or 0.0)
    if m.share == 0.0 and own in (None, 0.0):
        return b""
    return bytes((ratio_code(m.share) + LEAST * least, 0 if own is None or math.isnan(own) else ratio_code(own)))


def ratio_code(ratio: float) -> int:
    """The code of an error ratio, without its unit."""
    if ratio <= 2.0**FLOOR:
        return 1
    return LARGEST if math.isinf(ratio) else min(LARGEST, 1 + round(STEPS * (math.log2(ratio) - FLOOR)))


def time_code(seconds: float) -> int:
    return max(1, min(EXACT_BYTES, 1 + round(TIME_STEPS * math.log2(max(seconds, TICK) / TICK))))


def _parts(name: str) -> tuple[str, str]:
    """(aspect, tensor) of a column's name; either may hold spaces. Raises ValueError."""
    for aspect in Aspect:
        if name.startswith(f"{aspect} "):
            return aspect, name[len(aspect) + 1 :]
    own, _, tensor = name.partition(" ")
    if Aspect.holds(own):
        return own, tensor
    raise ValueError(f"no aspect begins '{name[:60]}'; allowed: {', '.join(Aspect)}")


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode().rstrip("=")


def _mask_bytes(n: int) -> int:
    return (n + 7) // 8


# ------------------------------------------------------------------------------------------------------------- unpacking


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The figures of an item, to be compared with another run's. size: number of cases; places: key -> place of the first case
    that has it; compared: aspect -> one bit per case; ratios: aspect -> tensor -> two codes per compared case; seconds: aspect
    -> one code per case; screens: as in `Figures`."""

    size: int
    places: Mapping[bytes, int]
    compared: Mapping[str, int]
    ratios: Mapping[str, Mapping[str, bytes]]
    seconds: Mapping[str, bytes]
    screens: bool = True

    def ranks(self, aspect: str) -> dict[bytes, int]:
        """key -> which of the compared cases it is, of the cases that were compared in an aspect."""
        mask = self.compared.get(aspect, 0)
        return {key: (mask & ((1 << k) - 1)).bit_count() for key, k in self.places.items() if mask >> k & 1}


def size(f: Figures) -> int:
    """The number of cases of a row, which need not be unpacked for it."""
    return len(f.keys) * 3 // 4 // KEY


def by_item(rows: Iterable[Figures]) -> dict[tuple[str, str], Unpacked]:
    """The figures of each op and dtype; of several rows together. Raises ValueError if a row is impossible."""
    items: dict[tuple[str, str], Unpacked] = {}
    for f in rows:
        more, item = unpacked(f), (f.op, f.dtype)
        items[item] = _joined(items[item], more) if item in items else more
    return items


def _joined(a: Unpacked, b: Unpacked) -> Unpacked:
    """The cases of both, one after the other."""
    places = {key: a.size + k for key, k in b.places.items()} | dict(a.places)
    compared = {x: a.compared.get(x, 0) | b.compared.get(x, 0) << a.size for x in dict.fromkeys((*a.compared, *b.compared))}
    ratios: dict[str, dict[str, bytes]] = {}
    for aspect in dict.fromkeys((*a.ratios, *b.ratios)):
        columns = [(part.ratios.get(aspect, {}), b"\0\0" * part.compared.get(aspect, 0).bit_count()) for part in (a, b)]
        tensors = dict.fromkeys(t for column, _ in columns for t in column)
        ratios[aspect] = {t: b"".join(column.get(t, nothing) for column, nothing in columns) for t in tensors}
    times = dict.fromkeys((*a.seconds, *b.seconds))
    seconds = {x: a.seconds.get(x, b"\0" * a.size) + b.seconds.get(x, b"\0" * b.size) for x in times}
    return Unpacked(a.size + b.size, places, compared, ratios, seconds, a.screens and b.screens)


def unpacked(f: Figures) -> Unpacked:
    """The content of a row. Raises ValueError if it is impossible."""
    keys = _bytes(f.keys, "keys")
    if len(keys) % KEY:
        raise ValueError("'keys' holds no whole number of keys")
    n = len(keys) // KEY
    places: dict[bytes, int] = {}
    for k in range(n):
        places.setdefault(keys[k * KEY : (k + 1) * KEY], k)
    every = (1 << n) - 1
    compared = {a: int.from_bytes(_bytes(t, a, _mask_bytes(n)), "little") if t else every for a, t in f.compared.items()}
    if any(m >> n for m in compared.values()):
        raise ValueError("'compared' holds more cases than there are")
    ratios: dict[str, dict[str, bytes]] = defaultdict(dict)
    for name, text in f.ratios.items():
        aspect, tensor = _parts(name)
        ratios[aspect][tensor] = _bytes(text, name, 2 * compared.get(aspect, 0).bit_count())
    return Unpacked(n, places, compared, ratios, {a: _bytes(text, a, n) for a, text in f.seconds.items()}, f.screens)


def _bytes(text: str, name: str, size: int | None = None) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"'{name[:60]}' is no base64") from None
    if size is not None and len(raw) != size:
        raise ValueError(f"'{name[:60]}' holds {len(raw)} bytes, {size} are due")
    return raw
