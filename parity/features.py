"""Which features a case has, read from the case alone; how often a run drew each of them, and each two of them together.

A feature is a word of two parts, group and value ("layout[1] transpose", "into stepped", "special nan"). What every call has
(contiguous destinations, gradients recorded) is none. Two features of one family of ops are *applicable* together where some
item (an op in a dtype) drew each of them and nothing in `exclude` forbids both in one case; a pair that is applicable and
was never drawn is a hole in the drawing.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from parity.dtypes import FACTS
from parity.vocabulary import Arg, Case, Json, TensorSpec, Word

BORDER = 16  # a dimension from here on is one of the border sizes of a profile, at which kernels change their path
LARGE = 1 << 15  # elements
EXPECTED = 5.0  # cases of a pair from here on are missing by chance in less than one run of a hundred
POSITIONS = ("[0]", "[1]", "[2+]")
NEED_A_DIM = ("slice", "step", "transpose", "permute", "channels_last", "expand")
SHAPED = ("shape empty", "shape size 1", "shape square", "shape rank 5+", "shape border", "shape large")
# Groups of which a case has one value at most.
SINGLE = ("into", "cotangent", "cotangent-layout", "mode", "after", "refused", "dtype", "count")
BACKWARD = ("aspect backward", "aspect double backward", "aspect forward-mode")
# Families into which no special is planted: the call asks for their values.
BOUND = ("inside", "index", "unique", "conditioned", "spd", "symmetric", "lower", "upper", "full_rank")


def features(case: Case, aspects: Collection[str] = ()) -> frozenset[str]:
    """All features of a case; aspects: those in which it was compared."""
    specs = list(operands((case.args, tuple(v for _, v in case.kwargs))))
    found = {f"dtype {case.dtype}", f"count {'4+' if len(specs) > 3 else len(specs)}"}
    found.update(f"aspect {a}" for a in aspects)
    for k, s in enumerate(specs):
        found.update(_of_operand(s, POSITIONS[min(k, 2)]))
    if len({s.dtype for s in specs}) > 1:
        found.add("operands of several dtypes")
    graded = {s.grad for s in specs if FACTS[s.dtype].is_inexact}
    if len(graded) == 2:
        found.add("gradients of some")
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


def _of_operand(s: TensorSpec, position: str) -> Iterator[str]:
    words = {str(step[0]) for step in s.layout} or {"contiguous"}
    yield from (f"layout{position} {w}" for w in words)
    if len(s.layout) > 1 and len(words - {"conj", "neg"}) > 1:
        yield f"layout{position} stacked"
    yield f"values {s.values.family if s.values.literal is None else 'literal'}"
    if s.numel:
        yield from (f"special {_special(word)}" for _, word in s.values.specials)
    if s.on_cpu:
        yield "operand on the CPU"
    yield from _of_shape(s.shape)


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
    return tuple(word for word, has in facts.items() if has)


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


# ------------------------------------------------------------------------------------------------------- two of them together


def exclude(one: str, two: str, most: int = 4) -> bool:
    """Whether two features cannot stand in one case. most: operands that the item ever draws (4: four and more)."""
    return _excludes(one, two, most) or _excludes(two, one, most)


def _excludes(one: str, two: str, most: int) -> bool:
    (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
    if group == other and group in SINGLE:
        return True
    if group.startswith("layout") and group == other and value == "contiguous":
        return group != "layout[2+]" or most < 4  # of two operands behind the second, one may be contiguous and another not
    if (one, two) == ("refused dim", "argument negative dim"):
        return True
    if group == "refused" and (
        other in ("into", "cotangent", "cotangent-layout", "after") or (other == "aspect" and word != "refusal")
    ):
        return True
    if one == "aspect refusal":
        return other in ("aspect", "into", "cotangent", "cotangent-layout", "after")
    if group == "mode":
        return other in ("cotangent", "cotangent-layout") or two in BACKWARD
    if group == "count":
        return _excludes_count(int(value[0]), other, two)
    return most < 2 and _excludes_alone(one, two)


def _excludes_count(n: int, other: str, two: str) -> bool:
    """What a call of n operands cannot have."""
    if n == 0 and other in ("values", "special", "shape", "after"):
        return True
    positions = [p for k, p in enumerate(POSITIONS) if k >= n]
    return other in [f"layout{p}" for p in positions] or (
        n < 2 and two in ("operands of several dtypes", "gradients of some", "operand on the CPU")
    )


def _excludes_alone(one: str, two: str) -> bool:
    """What one operand alone cannot have."""
    (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
    if group == other == "values":
        return True
    if one == "shape 0-d":
        return two in SHAPED or (other == "layout[0]" and word in (*NEED_A_DIM, "stacked"))
    if one == "shape empty":
        return other == "special" or two == "shape large"
    if one == "refused dtype":  # `parity.generation.flaws` changes the values with the dtype, and takes calls that have some
        return other in ("values", "special") or two in ("shape 0-d", "shape empty")
    return group == "values" and value in BOUND and other == "special"


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
        self._able: dict[str, dict[str, float]] = {}

    def add(self, cases: Iterable[Collection[str]]) -> None:
        """The cases of one item, each by its features."""
        seen: Counter[str] = Counter()
        n = 0
        for case in cases:
            n += 1
            words = sorted(case)
            seen.update(words)
            for k, f in enumerate(words):
                self._both.setdefault(f, Counter()).update(words[k + 1 :])
        most = max((int(f[6]) for f in seen if f.startswith("count ")), default=0)
        for k, f in enumerate(words := sorted(seen)):
            able = self._able.setdefault(f, {})
            for g in words[k + 1 :]:
                if not exclude(f, g, most):
                    able[g] = able.get(g, 0.0) + seen[f] * seen[g] / n
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
