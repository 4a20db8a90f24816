"""Which two features may stand in one case, and what the calls of an item have room for (`parity.features` has the words)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

POSITIONS = ("[0]", "[1]", "[2+]")
BEHIND = 9  # operands from here on are told as one
AT = "@"  # begins the words that say of which operand a feature is
# Of an operand, and not counted: how many dimensions it has; it holds what the call asks for; truth values, the same.
RANKED, TAMED, TRUTH = "rank ", "tamed", "bool"
NEED_A_DIM = ("slice", "step", "transpose", "permute", "channels_last", "expand")
UNSTEPPED = ("contiguous", "stacked", "conj", "neg")  # words of layouts that are none of their steps
# Dimensions that an operand must have for a feature; some words of layouts mean others where there are fewer.
DIMS = {
    **dict.fromkeys(("shape empty", "shape size 1", "shape border", "shape large"), 1),
    **dict.fromkeys(("slice", "step", "expand", "stacked", "permute"), 1),
    **dict.fromkeys(("shape square", "transpose"), 2),
    **dict.fromkeys(("shape rank 5+", "channels_last"), 3),
}
MOST_DIMS = 3  # more are told as this many
SHAPED = ("shape empty", "shape size 1", "shape square", "shape rank 5+", "shape border", "shape large")
# Groups of which a case has one value at most.
SINGLE = ("into", "cotangent", "cotangent-layout", "mode", "after", "refused", "dtype", "count")
BACKWARD = ("aspect backward", "aspect double backward", "aspect forward-mode")
# What writes into an expanded operand is not compared; the two derivatives are asked of every so many cases, by turns.
NEVER = (("aspect in-place", "layout[0] expand"), ("aspect double backward", "aspect forward-mode"))
MATRICES = ("conditioned", "spd", "symmetric", "lower", "upper", "full_rank")
BOUND = ("inside", "index", "unique", *MATRICES)  # families into which no special is planted: the call asks for their values
ASKED = (*BOUND, "between")  # families that the call asks for
CONTENTS = ("values ", "special ")
SEVERAL = "operands of several dtypes"
GRADED = "gradients of some"
ON_CPU = "operand on the CPU"
WHOLE = ("values full", "values index", "values unique")  # of integers, which have no gradient
LAZY = ("conj", "neg")  # no layouts of integers, nor the second one of complex numbers
SHARED = (SEVERAL, GRADED, ON_CPU)  # take two operands
# Flaws by what the call that they are planted in cannot have: some need elements, one changes numbers to complex ones.
UNFLAWED = {
    "argument": ("shape empty",),
    "value": ("shape empty", "shape 0-d"),
    "shape": ("count 0", "count 1"),
    "device": ("shape empty", "shape 0-d", "count 0", "count 1", ON_CPU),
    "dtype": ("shape empty",),
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
    if group == "refused" and (other in ("into", "cotangent", "cotangent-layout", "after", "aspect")):
        return True
    if (one, two) in NEVER or (one == "refused inputs" and other.startswith("layout") and word != "contiguous"):
        return True  # the inputs of torch's own error tests lie as torch makes them
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


Form = tuple[int, frozenset[str]]
Apart = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Room:
    """What the calls of one item have room for.

    forms: (operands, what stands beside them, and which operands hold values that the call asks for) of its calls, each with
    how many cases had it. places: feature -> operands that ever had it; tame: the same of what is in those that hold only what
    the call asks for. apart: (kind of shape, operand that had it, dimensions, operand that had so many and not that shape in
    the same call), each with how many cases had it. seen: all features, each with how many cases had it; tamely: of these,
    those with a tamed operand; single: layouts of 0-d operands, which are of one step. never: pairs that the row says torch
    refuses.
    """

    forms: Mapping[Form, int]
    places: Mapping[str, frozenset[int]]
    tame: Mapping[str, frozenset[int]]
    apart: Mapping[Apart, int]
    seen: Mapping[str, int]
    tamely: Mapping[str, int]
    single: Mapping[str, int]
    never: frozenset[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, cases: Iterable[Collection[str]], never: Iterable[tuple[str, str]] = ()) -> Room:
        """The room that these cases of an item show, whose row says which features never come together. Refused ones show no
        form: what is wrong with them is told, not what they would hold."""
        forms, seen, tamely, single = Counter[Form](), Counter[str](), Counter[str](), Counter[str]()
        places: dict[str, set[int]] = {}
        tame: dict[str, set[int]] = {}
        apart = Counter[Apart]()
        for case in cases:
            told = [(int(w[1]), w[3:]) for w in case if w[0] == AT]
            plain = [w for w in case if w[0] != AT]
            seen.update(plain)
            count = max((int(w[6]) for w in plain if w.startswith("count ")), default=0)
            count = max([count, *(p + 1 for p, _ in told)])
            tamed = {p for p, w in told if w in (TAMED, TRUTH)}
            tamely.update(plain if any(w == TAMED for _, w in told) else ())
            for p, w in told:
                (tame if p in tamed and w.startswith(CONTENTS) else places).setdefault(w, set()).add(p)
            for w in plain:
                if w.startswith("layout["):
                    places.setdefault(w, set()).update({"[0]": (0,), "[1]": (1,)}.get(w[6:9], range(2, BEHIND + 1)))
            apart.update(_apart(told))
            points = [f"layout{POSITIONS[min(p, 2)]} " for p, w in told if w == "shape 0-d"]
            single.update(w for w in plain for point in points if w.startswith(point))
            if not any(w.startswith("refused ") for w in plain):
                beside = [w for w in plain if w.startswith("argument ") or w == SEVERAL]
                asked = [f"{AT}{p} {w}" for p, w in told if w in (TAMED, TRUTH) or (w.startswith("values ") and w[7:] in ASKED)]
                forms[count, frozenset((*beside, *asked))] += 1
        wild, held = ({w: frozenset(p) for w, p in found.items()} for found in (places, tame))
        return cls(forms, wild, held, apart, seen, tamely, single, frozenset(map(frozenset, never)))

    @property
    def most(self) -> int:
        """Operands of the largest call."""
        return max((n for n, _ in self.forms), default=0)

    def has(self, one: str, two: str) -> bool:
        """Whether some form of the call has room for both features."""
        return any(True for _ in self._having(one, two))

    def expected(self, one: str, two: str) -> float:
        """How many cases have both by chance, where each comes as often as seen in the forms that have room for it; of two
        layouts, by the chance that the layout of one operand is made of the two."""
        forms, stacked = list(self._having(one, two)), self._stacking(one, two)
        if stacked is not None and forms:
            return stacked
        most = self._beside(one, two), self._beside(two, one)
        return sum(self.forms[f] * min(most[0], self._share(one, f)) * min(most[1], self._share(two, f)) for f in forms)

    def _beside(self, word: str, other: str) -> float:
        """In what part of the calls, at most, an operand has a kind of shape beside one that can have the other feature, where
        that one cannot have both."""
        if not (word.startswith("shape ") or word == ON_CPU) or on_one_operand(word, other):
            return 1.0
        able = {*self.places.get(other, ()), *self.tame.get(other, ())}
        seen = [k for (w, _, r, q), k in self.apart.items() if w == word and r == _dims(other) and q in able]
        return max(seen, default=0) / max(1, sum(self.forms.values()))

    def _share(self, word: str, form: Form) -> float:
        """In what part of the cases of a form that has room for it a feature comes."""
        n, beside = form
        if word in beside or word == f"count {n}":
            return 1.0
        alike: Iterable[tuple[Form, int]] = self.forms.items()
        seen = self.seen[word]
        if word.startswith(CONTENTS) and self.tamely:
            tamed = _tamed(beside)
            alike = ((f, k) for f, k in self.forms.items() if _tamed(f[1]) == tamed)
            seen = self.tamely.get(word, 0) if tamed else seen - self.tamely.get(word, 0)
        able = sum(k for (m, b), k in alike if self._holds(m, b, word))
        return min(1.0, seen / max(1, able))

    def _stacking(self, one: str, two: str) -> float | None:
        """The same of two layouts of one operand, of which what is expanded is so last; None of others."""
        (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
        alone = self.most < 4 or group in ("layout[0]", "layout[1]")
        if group != other or not group.startswith("layout") or not alone or {value, word} & {*LAZY, "stacked"}:
            return None
        often = {w: max(0, k - self.single.get(w, 0)) for w, k in self.seen.items() if w.startswith(group)}
        steps = sum(k for w, k in often.items() if w.partition(" ")[2] not in UNSTEPPED)
        orders = 1 if "expand" in (value, word) else 2
        return orders * often.get(f"{group} stacked", 0) * often[one] * often[two] / max(1, steps) ** 2

    def _having(self, one: str, two: str) -> Iterator[Form]:
        """The forms that have room for both."""
        if exclude(one, two, min(self.most, 4)) or {one, two} in self.never:
            return
        together = on_one_operand(one, two) and self._stacks(one, two)
        for n, beside in self.forms:
            if self._fits(n, beside, one, two, together):
                yield n, beside

    def _stacks(self, one: str, two: str) -> bool:
        """Whether two layouts of one operand, if that is what they are, can lie on each other here."""
        (group, _, value), (other, _, word) = one.partition(" "), two.partition(" ")
        if group != other or not group.startswith("layout") or {value, word} & {*LAZY}:
            return True
        return f"{group} stacked" in self.seen

    def _holds(self, n: int, beside: frozenset[str], word: str) -> bool:
        """Whether a form has room for one feature."""
        if (word.startswith("argument ") or word == SEVERAL) and word not in beside:
            return False
        if (word.startswith("count ") and int(word[6]) != min(n, 4)) or (n < 2 and word in SHARED):
            return False
        if word == GRADED and n - _whole(beside) < 2:
            return False
        return self._able(n, beside, word) != []

    def _fits(self, n: int, beside: frozenset[str], one: str, two: str, together: bool) -> bool:
        """Whether a form has room for both; together: one operand may hold both."""
        if not self._holds(n, beside, one) or not self._holds(n, beside, two):
            return False
        pair = {one, two}
        if GRADED in pair and pair & {*WHOLE} and n - _whole(beside) - ("values full" in pair) < 2:
            return False
        if "refused index" in pair and not _whole(beside) and any(_whole(b) for _, b in self.forms):
            return False
        if "refused dtype" in pair:
            lazy = any(w.startswith("layout[") and w.partition(" ")[2] in LAZY for w in pair)
            first = "shape 0-d" in pair and not any(("shape 0-d", p, 1, 0) in self.apart for p in range(1, n))
            if (lazy or first) and not _whole(beside):
                return False  # the operand that becomes another dtype is the first, of more than one element
        first_able, second_able = self._able(n, beside, one), self._able(n, beside, two)
        if first_able is None or second_able is None:
            return True
        if together and set(first_able) & set(second_able):
            return True
        return any(p != q and self._differ(one, p, two, q) for p in first_able for q in second_able)

    def _differ(self, one: str, p: int, two: str, q: int) -> bool:
        """Whether operands p and q of a call can have the shapes that the two features ask of them."""
        for w, a, other, b in ((one, p, two, q), (two, q, one, p)):
            kind = w.startswith("shape ") or w == ON_CPU
            if kind and not on_one_operand(w, other) and (w, a, _dims(other), b) not in self.apart:
                return False
        return True

    def _able(self, n: int, beside: frozenset[str], word: str) -> list[int] | None:
        """The operands of a form that can have a feature; None where it is of no operand."""
        if word not in self.places and word not in self.tame:
            return None
        able = [p for p in range(max(n, 1)) if p in (self.tame if self._held(p, beside, word) else self.places).get(word, ())]
        group, _, value = word.partition(" ")
        if group == "values" and value in ASKED:
            return [p for p in able if f"{AT}{p} {word}" in beside]
        asked = [f"values {v}" for v in ASKED if group == "values" or not on_one_operand(f"values {v}", word)]
        if group == "special":
            asked = [f"values {v}" for v in ASKED if v != "between" or value == "extreme"]
        return [p for p in able if not any(f"{AT}{p} {a}" in beside for a in asked)]

    @staticmethod
    def _held(p: int, beside: frozenset[str], word: str) -> bool:
        return word.startswith(CONTENTS) and any(f"{AT}{p} {w}" in beside for w in (TAMED, TRUTH))


def _dims(word: str) -> int:
    """How many dimensions an operand must have for a feature."""
    return DIMS.get(word.partition(" ")[2] if word.startswith("layout[") else word, 0)


def _tamed(beside: frozenset[str]) -> bool:
    """Whether the operands of a form hold what the call asks for."""
    return any(w[0] == AT and w[3:] == TAMED for w in beside)


def _whole(beside: frozenset[str]) -> int:
    """How many operands of a form hold what only integers are."""
    return sum(w.startswith(AT) and w[3:] in WHOLE for w in beside)


def _apart(told: Collection[tuple[int, str]]) -> Iterator[Apart]:
    """What one case shows of shapes that go together or not."""
    dims = {p: int(w[len(RANKED) :]) for p, w in told if w.startswith(RANKED)}
    for p, w in told:
        if w.startswith("shape ") or w == ON_CPU:
            for q, rank in dims.items():
                if q != p and (q, w) not in told:
                    yield from ((w, p, r, q) for r in range(rank + 1))
