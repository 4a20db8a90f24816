"""Which features a case has, read from the case alone; how often a run drew each of them, and each two of them together.

A feature is a word of two parts, group and value ("layout[1] transpose", "into stepped", "special nan"). What every call has
(contiguous destinations, gradients recorded) is none. Two features of one family of ops are *applicable* together where some
item (an op in a dtype) drew each of them, nothing in `parity.room` forbids both in one case, and one form of its call has room
for both: a form is the number of operands with what stands beside them, and two features of operands that no operand can have
at once need two operands that can hold them. A pair that is applicable and was never drawn is a hole in the drawing.

Beside its features, a case tells in words that are not counted ("@1 shape 0-d") which of its operands they are of.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from parity.dtypes import FACTS
from parity.room import AT, BEHIND, GRADED, ON_CPU, POSITIONS, SEVERAL, UNSTEPPED, Room
from parity.vocabulary import Arg, Case, Json, Layout, TensorSpec, Word

BORDER = 16  # a dimension from here on is one of the border sizes of a profile, at which kernels change their path
LARGE = 1 << 15  # elements
EXPECTED = 5.0  # cases of a pair from here on are missing by chance in less than one run of a hundred


def features(case: Case, aspects: Collection[str] = ()) -> frozenset[str]:
    """All features of a case; aspects: those in which it was compared."""
    specs = list(operands((case.args, tuple(v for _, v in case.kwargs))))
    found = {f"dtype {case.dtype}", f"count {'4+' if len(specs) > 3 else len(specs)}"}
    found.update(f"aspect {a}" for a in aspects)
    for k, s in enumerate(specs):
        found.update(_of_layout(s.layout, POSITIONS[min(k, 2)]))
        found.update(_of_shape(s.shape, min(k, BEHIND)))
        if not case.refused:  # else it raises before anybody reads an element
            found.update(_of_contents(s, min(k, BEHIND)))
        if s.on_cpu and case.refused != "device":  # where that is the flaw, it is told already
            found.update(_both(ON_CPU, min(k, BEHIND)))
    if len({s.dtype for s in specs}) > 1:
        found.add(SEVERAL)
    graded = {s.grad for s in specs if FACTS[s.dtype].is_inexact}
    if len(graded) == 2 and not case.refused:
        found.add(GRADED)
    if not case.op.startswith("opinfo:"):
        found.update(_arguments(case))
    if case.refused:
        return frozenset(found | {f"refused {case.refused}"} | ({f"mode {case.under}"} if case.under != "grad" else set()))
    if case.into != "contiguous":
        found.add(f"into {'another dtype' if case.into in FACTS else case.into}")
    if case.cotangent.values != "ones":
        found.add(f"cotangent {case.cotangent.values}")
    if case.cotangent.layout != "contiguous":
        found.add(f"cotangent-layout {case.cotangent.layout}")
    if case.under != "grad":
        found.add(f"mode {case.under}")
    if case.after:
        found.add(f"after {case.after}")
    return frozenset(found)


def operands(tree: Arg) -> Iterator[TensorSpec]:
    """The operands in an argument tree, in order."""
    if isinstance(tree, TensorSpec):
        yield tree
    elif isinstance(tree, tuple):
        for a in tree:
            yield from operands(a)


@functools.lru_cache(maxsize=4096)
def _of_layout(layout: Layout, position: str) -> tuple[str, ...]:
    words = {str(step[0]) for step in layout} or {"contiguous"}
    stacked = len(layout) > 1 and len(words - {"conj", "neg"}) > 1
    return (*(f"layout{position} {w}" for w in words), *([f"layout{position} stacked"] if stacked else []))


def _of_contents(s: TensorSpec, k: int) -> Iterator[str]:
    yield from _both(f"values {s.values.family if s.values.literal is None else 'literal'}", k)
    if s.values.specials and s.numel:
        for _, word in s.values.specials:
            yield from _both(f"special {_special(word)}", k)


@functools.lru_cache(maxsize=4096)
def _both(word: str, k: int) -> tuple[str, str]:
    """A feature, and that operand k has it."""
    return word, f"{AT}{k} {word}"


@functools.lru_cache(maxsize=4096)
def _of_shape(shape: tuple[int, ...], k: int) -> tuple[str, ...]:
    rank, numel = len(shape), math.prod(shape)
    facts = {
        "shape 0-d": rank == 0,
        "shape empty": numel == 0,
        "shape size 1": 1 in shape,
        "shape square": rank > 1 and shape[-1] == shape[-2] > 1,
        "shape rank 5+": rank >= 5,
        "shape border": any(d >= BORDER for d in shape),
        "shape large": numel >= LARGE,
    }
    return tuple(told for word, has in facts.items() if has for told in _both(word, k))


def _special(word: str) -> str:
    if "nan" in word:
        return "nan"
    if "inf" in word:
        return "inf"
    if word.startswith("-0.0"):
        return "-0.0"
    if word in ("smallest", "subnormal", "tiny"):
        return "subnormal"
    return "extreme" if word in ("max", "min", "lowest") or word.startswith("2**") else "number"


def _arguments(case: Case) -> Iterator[str]:
    """What stands beside the operands."""
    for a in (*case.args, *(v for _, v in case.kwargs)):
        if isinstance(a, bool):
            yield "argument flag"
        elif isinstance(a, (int, float, complex)):
            yield "argument number"
        elif isinstance(a, Word):
            yield "argument dtype or format"
        elif a is None:
            yield "argument None"
        elif isinstance(a, tuple) and a:
            yield "argument list of tensors" if any(True for _ in operands(a)) else "argument list"
    for name, value in case.kwargs:
        dims = value if isinstance(value, tuple) else (value,)
        if name.startswith("dim") and any(isinstance(d, int) and d < 0 for d in dims):
            yield "argument negative dim"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the cases of one family had. counts: feature -> cases; together: feature -> later feature -> cases with both.

    missing: the same for applicable pairs that no case had: how many cases were to be expected by the counts of the two in
    every item. Where that is a few, chance does not explain it: the drawing has a hole.
    """

    family: str
    cases: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    together: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    missing: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def drawn(self) -> int:
        """Pairs that were drawn."""
        return sum(map(len, self.together.values()))

    @property
    def applicable(self) -> int:
        """Pairs that some item can draw."""
        return self.drawn + sum(map(len, self.missing.values()))

    @property
    def holes(self) -> int:
        """Applicable pairs that were not drawn though `EXPECTED` cases or more were to be expected."""
        return sum(n >= EXPECTED for others in self.missing.values() for n in others.values())

    @property
    def empty(self) -> tuple[tuple[float, str, str], ...]:
        """(cases to be expected, feature, feature) of every applicable pair that no case had, the likeliest first."""
        told = ((n, f, g) for f, others in self.missing.items() for g, n in others.items())
        return tuple(sorted(told, key=lambda pair: (-pair[0], *pair[1:])))


def pack(cases: Iterable[Collection[str]]) -> Json:
    """The features of the cases of one item, each word once, as JSON can hold them."""
    words: dict[str, int] = {}
    rows = [sorted(words.setdefault(f, len(words)) for f in case) for case in cases]
    return {"words": list(words), "cases": rows}


def unpack(tree: Json) -> list[list[str]]:
    """What `pack` packed."""
    return [[tree["words"][k] for k in row] for row in tree["cases"]]


def _expected(seen: Mapping[str, int], one: str, two: str, n: int) -> float:
    """How many of the n cases of an item have both, where each came as often as seen: by chance, and, of two layouts, by the
    chance that one operand's layout is made of two."""
    (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
    if group != other or group not in ("layout[0]", "layout[1]") or {value, word} & {"conj", "neg", "stacked"}:
        return seen[one] * seen[two] / n
    steps = sum(k for w, k in seen.items() if w.startswith(group) and w.partition(" ")[2] not in UNSTEPPED)
    return 2 * seen.get(f"{group} stacked", 0) * seen[one] * seen[two] / steps**2


class Tally:
    """Counts the cases of one family, item by item."""

    def __init__(self, family: str) -> None:
        self.family, self.cases = family, 0
        self.counts: Counter[str] = Counter()
        self._both: dict[str, Counter[str]] = {}
        self._able: dict[str, dict[str, float]] = {}

    def add(self, cases: Collection[Collection[str]]) -> None:
        """The cases of one item, each by its features."""
        seen: Counter[str] = Counter()
        n = 0
        for case in cases:
            n += 1
            words = sorted(w for w in case if w[0] != AT)
            seen.update(words)
            for k, f in enumerate(words):
                self._both.setdefault(f, Counter()).update(words[k + 1 :])
        room = Room.of(cases)
        for k, f in enumerate(words := sorted(seen)):
            able = self._able.setdefault(f, {})
            for g in words[k + 1 :]:
                if g in self._both.get(f, ()) or room.has(f, g):
                    able[g] = able.get(g, 0.0) + _expected(seen, f, g, n)
        self.cases += n
        self.counts.update(seen)

    def coverage(self) -> Coverage:
        """What was counted so far."""
        together = {f: dict(sorted(both.items())) for f, both in sorted(self._both.items()) if both}
        missing = {}
        for f, others in sorted(self._able.items()):
            left = {g: round(n, 3) for g, n in sorted(others.items()) if g not in self._both.get(f, ())}
            missing.update({f: left} if left else {})
        return Coverage(self.family, self.cases, dict(sorted(self.counts.items())), together, missing)
