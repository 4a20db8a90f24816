"""Which features a case has, read from the case alone; how often a run drew each of them, and each two of them together.

A feature is a word of two parts, group and value ("layout[1] transpose", "into stepped", "special nan"). What every call has
(contiguous destinations, gradients recorded) is none. Two features of one family of ops are *applicable* together where some
item (an op in a dtype) drew each of them, nothing in `parity.room` forbids both in one case, and one form of its call has room
for both: a form is the number of operands with what stands beside them, and two features of operands that no operand can have
at once need two operands that can hold them. A pair that is applicable and was never drawn is a hole in the drawing.

Beside its features, a case tells in words that are not counted ("@1 shape 0-d", "@1 rank 0") which of its operands they are
of, and what else `parity.room` must know of these.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from parity.dtypes import FACTS
from parity.room import AT, BEHIND, GRADED, MOST_DIMS, ON_CPU, POSITIONS, RANKED, SEVERAL, TAMED, TRUTH, Room
from parity.vocabulary import Arg, Case, Json, Layout, TensorSpec, Word

BORDER = 16  # a dimension from here on is one of the border sizes of a profile, at which kernels change their path
LARGE = 1 << 15  # elements
# Of all pairs of a full run of which so many cases are to be expected, or more, chance leaves one out in one run of ten; with
# five it would be some twenty in every run.
EXPECTED = 10.0


def features(case: Case, aspects: Collection[str] = (), tames: Collection[str] = ()) -> frozenset[str]:
    """All features of a case; aspects: those in which it was compared; tames: as the case's row has it."""
    specs: list[TensorSpec] = []
    for a in case.args:
        _collect(a, specs)
    for _, a in case.kwargs:
        _collect(a, specs)
    told = () if case.refused else tuple(aspects)  # of a case that must be refused, its flaw says all
    found = set(_outline(case.dtype, len(specs), told))
    if tames and any(name in tames for name, _ in case.kwargs):
        found.update(f"{AT}{min(k, BEHIND)} {TAMED}" for k, _ in enumerate(operands(case.args)))
    for k, s in enumerate(specs):
        if s.dtype == "bool":
            found.add(f"{AT}{min(k, BEHIND)} {TRUTH}")
        found.update(_of_layout(s.layout, POSITIONS[min(k, 2)]))
        found.update(_of_shape(s.shape, min(k, BEHIND)))
        if not case.refused:  # else it raises before anybody reads an element
            v = s.values
            words = tuple([word for _, word in v.specials]) if v.specials and s.numel else ()
            found.update(_of_contents(v.family if v.literal is None else "literal", words, min(k, BEHIND)))
        if s.on_cpu and case.refused != "device":  # where that is the flaw, it is told already
            found.update(_both(ON_CPU, min(k, BEHIND)))
    if len({s.dtype for s in specs}) > 1:
        found.add(SEVERAL)
    if not case.refused and len({s.grad for s in specs if FACTS[s.dtype].is_inexact}) == 2:
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


def _collect(tree: Arg, specs: list[TensorSpec]) -> None:
    """`operands` into a list, for what is asked of every case."""
    if isinstance(tree, TensorSpec):
        specs.append(tree)
    elif isinstance(tree, tuple):
        for a in tree:
            _collect(a, specs)


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


@functools.lru_cache(maxsize=4096)
def _outline(dtype: str, count: int, aspects: tuple[str, ...]) -> frozenset[str]:
    return frozenset({f"dtype {dtype}", f"count {'4+' if count > 3 else count}", *(f"aspect {a}" for a in aspects)})


@functools.lru_cache(maxsize=4096)
def _of_contents(family: str, specials: tuple[str, ...], k: int) -> frozenset[str]:
    words = {f"values {family}", *(f"special {_special(word)}" for word in specials)}
    return frozenset(told for word in words for told in _both(word, k))


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
    ranked = f"{AT}{k} {RANKED}{min(rank, MOST_DIMS)}"
    return (ranked, *(told for word, has in facts.items() if has for told in _both(word, k)))


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


class Tally:
    """Counts the cases of one family, item by item."""

    def __init__(self, family: str) -> None:
        self.family, self.cases = family, 0
        self.counts: Counter[str] = Counter()
        self._both: dict[str, Counter[str]] = {}
        self._rooms: list[Room] = []

    def add(self, cases: Collection[Collection[str]], never: Collection[tuple[str, str]] = ()) -> None:
        """The cases of one item, each by its features. never: as the item's row has it."""
        for case in cases:
            words = sorted(w for w in case if w[0] != AT)
            for k, f in enumerate(words):
                self._both.setdefault(f, Counter()).update(words[k + 1 :])
        room = Room.of(cases, never)
        self._rooms.append(room)
        self.cases += len(cases)
        self.counts.update(room.seen)

    def coverage(self) -> Coverage:
        """What was counted so far."""
        together = {f: dict(sorted(both.items())) for f, both in sorted(self._both.items()) if both}
        missing: dict[str, dict[str, float]] = {}
        for k, f in enumerate(words := sorted(self.counts)):
            for g in words[k + 1 :]:
                if g in self._both.get(f, ()):
                    continue
                able = [r.expected(f, g) for r in self._rooms if f in r.seen and g in r.seen and r.has(f, g)]
                if able:
                    missing.setdefault(f, {})[g] = round(sum(able), 3)
        return Coverage(self.family, self.cases, dict(sorted(self.counts.items())), together, missing)
