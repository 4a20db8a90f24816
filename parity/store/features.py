"""Features of a case, computed from the case alone, and counts of each feature and of each pair of features in a run.

A feature is a text of two parts, group and value ("layout[1] transpose", "into stepped", "special nan"). Defaults (contiguous
destinations, gradients recorded) are no features.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from parity.core.case import Case, Layout, TensorSpec, Word, operands_in
from parity.core.dtypes import FACTS
from parity.core.results import Json
from parity.core.stored import Count

POSITIONS = ("[0]", "[1]", "[2+]")
BORDER = 16  # dimensions of this size and above are border sizes of a profile, where kernels change their path
LARGE = 1 << 15  # elements
ASPECT = "aspect "  # prefix of features that only a run knows: the aspects in which the case was compared


def features(case: Case, aspects: Collection[str] = ()) -> frozenset[str]:
    """All features of a case; aspects: those in which it was compared."""
    specs = case.operands()
    # A call that must be refused raises before it reads an element, so neither contents nor aspects matter.
    words = set(_outline(case.dtype, len(specs), () if case.refused else tuple(aspects)))
    for k, s in enumerate(specs):
        words.update(_of_layout(s.layout, POSITIONS[min(k, 2)]))
        words.update(_of_shape(s.shape))
        if not case.refused:
            words.update(_of_contents(s))
        if s.on_cpu and case.refused != "device":
            words.add("operand on the CPU")
    if len({s.dtype for s in specs}) > 1:
        words.add("operands of several dtypes")
    if not case.is_sample:
        words.update(_arguments(case))
    if case.under != "grad":
        words.add(f"mode {case.under}")
    if case.refused:
        words.add(f"refused {case.refused}")
    else:
        words.update(_of_the_route(case))
        if len({s.grad for s in specs if FACTS[s.dtype].is_inexact}) == 2:
            words.add("gradients of some")
    return frozenset(words)


@functools.lru_cache(maxsize=4096)
def _outline(dtype: str, count: int, aspects: tuple[str, ...]) -> frozenset[str]:
    return frozenset({f"dtype {dtype}", f"count {'4+' if count > 3 else count}", *(f"{ASPECT}{a}" for a in aspects)})


@functools.lru_cache(maxsize=4096)
def _of_layout(layout: Layout, position: str) -> tuple[str, ...]:
    words = {str(step[0]) for step in layout} or {"contiguous"}
    stacked = len(layout) > 1 and len(words - {"conj", "neg"}) > 1
    return (*(f"layout{position} {w}" for w in words), *([f"layout{position} stacked"] if stacked else []))


@functools.lru_cache(maxsize=4096)
def _of_shape(shape: tuple[int, ...]) -> tuple[str, ...]:
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
    return tuple([word for word, has in facts.items() if has])


def _of_contents(s: TensorSpec) -> Iterator[str]:
    v = s.values
    yield f"values {v.family if v.literal is None else 'literal'}"
    if s.numel:
        yield from (f"special {_special(word)}" for _, word in v.specials)


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


def _of_the_route(case: Case) -> Iterator[str]:
    """Features of destination, cotangent and history."""
    if case.into != "contiguous":
        yield f"into {'another dtype' if case.into in FACTS else case.into}"
    if case.cotangent.values != "ones":
        yield f"cotangent {case.cotangent.values}"
    if case.cotangent.layout != "contiguous":
        yield f"cotangent-layout {case.cotangent.layout}"
    if case.sharing:
        yield f"sharing {case.sharing}"
    if case.after:
        yield f"after {case.after}"


def _arguments(case: Case) -> Iterator[str]:
    """Features of the arguments that are no operands."""
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
            yield "argument list of tensors" if operands_in(a) else "argument list"
    for name, value in case.kwargs:
        dims = value if isinstance(value, tuple) else (value,)
        if name.startswith("dim") and any(isinstance(d, int) and d < 0 for d in dims):
            yield "argument negative dim"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts for one family. counts: feature -> cases; together: feature -> alphabetically later feature -> cases with both."""

    family: str
    cases: Count = 0
    counts: Mapping[str, Count] = field(default_factory=dict)
    together: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if max(self.counts.values(), default=0) > self.cases:
            raise ValueError("a feature counts more cases than there are")

    def drawn(self) -> Iterator[tuple[str, str]]:
        """The pairs of features that some case had, without the aspects, which are not drawn."""
        for f, others in self.together.items():
            yield from ((f, g) for g in others if not f.startswith(ASPECT) and not g.startswith(ASPECT))


@dataclass(frozen=True, slots=True)
class DrawnFeatures:
    """The features of the cases of one item, from which the rest of an interrupted run counts them. words: each feature once;
    cases: the places of a case's features among the words, with spaces between them, and commas between cases. round: as in
    ItemRow."""

    op: str
    dtype: str
    words: tuple[str, ...] = ()
    cases: str = ""
    round: Count = 0

    @staticmethod
    def of(op: str, dtype: str, round: int, tree: Json) -> DrawnFeatures:
        """From what `pack` made, in an order of its own."""
        words = sorted(tree["words"])
        place = {k: words.index(w) for k, w in enumerate(tree["words"])}
        rows = (" ".join(map(str, sorted(place[k] for k in row))) for row in tree["cases"])
        return DrawnFeatures(op, dtype, tuple(words), ",".join(rows), round)

    @property
    def packed(self) -> Json:
        """As `pack` made it. Raises ValueError if the places are no numbers of words."""
        rows = [[int(k) for k in row.split()] for row in self.cases.split(",")] if self.cases else []
        if any(not 0 <= k < len(self.words) for row in rows for k in row):
            raise ValueError("a case has a feature that has no word")
        return {"words": list(self.words), "cases": rows}


def pack(cases: Iterable[Collection[str]]) -> Json:
    """The features of the cases of one item as JSON, with each text stored once."""
    words: dict[str, int] = {}
    rows = [sorted(words.setdefault(f, len(words)) for f in case) for case in cases]
    return {"words": list(words), "cases": rows}


def unpack(tree: Json) -> list[list[str]]:
    """The features of each case; the inverse of `pack`."""
    return [[tree["words"][k] for k in row] for row in tree["cases"]]


class Tally:
    """Counts the cases of one family."""

    def __init__(self, family: str) -> None:
        self.family, self.cases = family, 0
        self._counts: Counter[str] = Counter()
        self._both: dict[str, Counter[str]] = {}

    def add(self, cases: Iterable[Collection[str]]) -> int:
        """Add cases, each given by its features; returns how many pairs of features are new."""
        new = 0
        for case in cases:
            self.cases += 1
            self._counts.update(case)
            words = sorted(case)
            for k, f in enumerate(words):
                both = self._both.setdefault(f, Counter())
                before = len(both)
                both.update(words[k + 1 :])
                new += len(both) - before
        return new

    def coverage(self) -> Coverage:
        """The counts so far."""
        together = {f: dict(sorted(both.items())) for f, both in sorted(self._both.items()) if both}
        return Coverage(self.family, self.cases, dict(sorted(self._counts.items())), together)
