"""Which two features may stand in one case, and what the calls of an item have room for (`parity.features` has the words)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

POSITIONS = ("[0]", "[1]", "[2+]")
BEHIND = 3  # operands from here on are told as one
AT = "@"  # begins the words that say of which operand a feature is
NEED_A_DIM = ("slice", "step", "transpose", "permute", "channels_last", "expand")
UNSTEPPED = ("contiguous", "stacked", "conj", "neg")  # words of layouts that are none of their steps
SHAPED = ("shape empty", "shape size 1", "shape square", "shape rank 5+", "shape border", "shape large")
# Groups of which a case has one value at most.
SINGLE = ("into", "cotangent", "cotangent-layout", "mode", "after", "refused", "dtype", "count")
BACKWARD = ("aspect backward", "aspect double backward", "aspect forward-mode")
MATRICES = ("conditioned", "spd", "symmetric", "lower", "upper", "full_rank")
BOUND = ("inside", "index", "unique", *MATRICES)  # families into which no special is planted: the call asks for their values
ASKED = (*BOUND, "between")  # families that the call asks for
SEVERAL = "operands of several dtypes"
GRADED = "gradients of some"
ON_CPU = "operand on the CPU"
SHARED = (SEVERAL, GRADED, ON_CPU)  # take two operands
# Flaws by what the call that they are planted in cannot have: some need elements, one changes numbers to complex ones.
UNFLAWED = {
    "argument": ("shape empty",),
    "value": ("shape empty", "shape 0-d"),
    "shape": ("count 0", "count 1"),
    "device": ("shape empty", "shape 0-d", "count 0", "count 1", ON_CPU),
    "dtype": ("shape empty", "layout[0] neg", "layout[1] neg", "layout[2+] neg"),
}
# Flaws by what only a further operand can have, beside those that do not fit each other: how many operands it takes.
NEEDED = {"shape": {"shape 0-d": 3, ON_CPU: 3}, "dtype": {"shape 0-d": 2, ON_CPU: 2}}


def exclude(one: str, two: str, most: int = 4) -> bool:
    """Whether two features cannot stand in one case. most: operands that the item ever draws (4: four and more)."""
    return _excludes(one, two, most) or _excludes(two, one, most) or (most < 2 and not on_one_operand(one, two))


def _excludes(one: str, two: str, most: int) -> bool:
    (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
    if group == other and group in SINGLE:
        return True
    if group.startswith("layout") and group == other and value == "contiguous":
        return group != "layout[2+]" or most < 4  # of two operands behind the second, one may be contiguous and another not
    if group == "refused" and (
        other in ("into", "cotangent", "cotangent-layout", "after") or (other == "aspect" and word != "refusal")
    ):
        return True
    if one == "aspect refusal":
        return other in ("aspect", "into", "cotangent", "cotangent-layout", "after")
    if group == "mode":
        return other in ("cotangent", "cotangent-layout") or two in BACKWARD
    if group == "refused" and (other in ("values", "special") or two == GRADED or two in UNFLAWED.get(value, ())):
        return True
    if group == "refused" and most < NEEDED.get(value, {}).get(two, 0):
        return True
    return group == "count" and _excludes_count(int(value[0]), other, two)


def _excludes_count(n: int, other: str, two: str) -> bool:
    """What a call of n operands cannot have."""
    if n == 0 and other in ("values", "special", "shape", "after"):
        return True
    positions = [p for k, p in enumerate(POSITIONS) if k >= n]
    return other in [f"layout{p}" for p in positions] or (n < 2 and two in SHARED)


def on_one_operand(one: str, two: str) -> bool:
    """Whether one operand can have both of two features of operands; layouts are of the same operand. True for others."""
    return not (_excludes_alone(one, two) or _excludes_alone(two, one))


def _excludes_alone(one: str, two: str) -> bool:
    (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
    laid = other.startswith("layout")
    if group == other == "values":
        return True
    if one == "shape 0-d":
        return two in SHAPED or (laid and word in (*NEED_A_DIM, "stacked"))
    if one == "shape empty":
        return other == "special" or two == "shape large"
    if one == ON_CPU:  # a number, or, in a copy, whatever stands there
        return two in SHAPED or (laid and word in (*NEED_A_DIM, "stacked"))
    if group == other and laid and value in ("contiguous", "conj"):
        return value == "contiguous" or word == "neg"
    if group != "values":
        return False
    if value in (*MATRICES, "unique") and laid and word == "expand":  # equal rows are no such matrix any more
        return True
    return (value in BOUND and other == "special") or (value, two) == ("between", "special extreme")


@dataclass(frozen=True, slots=True)
class Room:
    """What the calls of one item have room for.

    forms: (operands, what stands beside them, and which operands hold values that the call asks for) of its calls.
    places: feature -> operands that ever had it. apart: (kind of shape, operand that had it, operand that had not in the same
    call). words: all features.
    """

    forms: frozenset[tuple[int, frozenset[str]]]
    places: Mapping[str, frozenset[int]]
    apart: frozenset[tuple[str, int, int]]
    words: frozenset[str]

    @classmethod
    def of(cls, cases: Iterable[Collection[str]]) -> Room:
        """The room that these cases of an item show."""
        forms, places, words = set[tuple[int, frozenset[str]]](), dict[str, set[int]](), set[str]()
        apart = set[tuple[str, int, int]]()
        for case in cases:
            count, beside = 0, list[str]()
            shapes: dict[int, set[str]] = {}
            for w in case:
                if w[0] == AT:
                    places.setdefault(w[3:], set()).add(int(w[1]))
                    if w.startswith("values", 3) and w[10:] in ASKED:
                        beside.append(w)
                    if w.startswith("shape", 3):
                        shapes.setdefault(int(w[1]), set()).add(w[3:])
                    continue
                words.add(w)
                if w.startswith("count "):
                    count = int(w[6])
                elif w.startswith("argument ") or w == SEVERAL:
                    beside.append(w)
                elif w.startswith("layout["):
                    places.setdefault(w, set()).update({"[0]": (0,), "[1]": (1,)}.get(w[6:9], (2, BEHIND)))
            forms.add((count, frozenset(beside)))
            for p, told in shapes.items():
                apart.update((w, p, q) for w in told for q in range(count) if w not in shapes.get(q, ()) or p == BEHIND)
        return cls(frozenset(forms), {w: frozenset(p) for w, p in places.items()}, frozenset(apart), frozenset(words))

    @property
    def most(self) -> int:
        """Operands of the largest call."""
        return max((n for n, _ in self.forms), default=0)

    def has(self, one: str, two: str) -> bool:
        """Whether some form of the call has room for both features."""
        if exclude(one, two, self.most):
            return False
        together = on_one_operand(one, two) and self._stacks(one, two)
        return any(self._fits(n, beside, one, two, together) for n, beside in self.forms)

    def _stacks(self, one: str, two: str) -> bool:
        """Whether two layouts of one operand, if that is what they are, can lie on each other here."""
        (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
        if group != other or not group.startswith("layout") or {value, word} & {"conj", "neg"}:
            return True
        return f"{group} stacked" in self.words

    def _fits(self, n: int, beside: frozenset[str], one: str, two: str, together: bool) -> bool:
        """Whether a form has room for both; together: one operand may hold both."""
        for w in (one, two):
            if (w.startswith("argument ") or w == SEVERAL) and w not in beside:
                return False
            if (w.startswith("count ") and int(w[6]) != n) or (n < 2 and w in SHARED):
                return False
        first, second = self._able(n, beside, one), self._able(n, beside, two)
        if first is None or second is None:
            return first != [] and second != []
        if together and set(first) & set(second):
            return True
        return any((p != q or n > BEHIND == p) and self._differ(one, p, two, q) for p in first for q in second)

    def _differ(self, one: str, p: int, two: str, q: int) -> bool:
        """Whether operands p and q of a call can have the shapes that the two features ask of them."""
        told = [(w, a, b) for w, a, b in ((one, p, q), (two, q, p)) if w.startswith("shape ")]
        for w, a, b in ((one, p, q), (two, q, p)):
            if w == ON_CPU and not on_one_operand(w, two if w == one else one):
                told.append(("shape 0-d", a, b))
        return not told or any(t in self.apart for t in told)

    def _able(self, n: int, beside: frozenset[str], word: str) -> list[int] | None:
        """The operands of a form that can have a feature; None where it is of no operand."""
        if word not in self.places:
            return None
        able = [p for p in self.places[word] if p < max(n, 1)]
        group, _, value = word.partition(" ")
        if group == "values" and value in ASKED:
            return [p for p in able if f"{AT}{p} {word}" in beside]
        if group not in ("values", "special"):
            return able
        taken = [f"values {v}" for v in ASKED if group == "values" or v != "between"]
        return [p for p in able if p == BEHIND or not any(f"{AT}{p} {t}" in beside for t in taken)]
