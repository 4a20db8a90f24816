"""Draws the arguments of a row's op: sizes, shapes, dims, flags, and operands with their domains.

A signature is a function `(draw: Draw) -> Arguments`. Every choice is `draw.pick(n)`, an integer in range(n) where 0 is the
simplest; a signature offers the simplest alternative first, so that shrinking the picks simplifies the case. A signature
chooses only shape, domain and dtype of operands; `parity.generation` draws layouts, value families, special values and
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from parity.core.case import Arg, TensorSpec, Values
from parity.core.dtypes import FACTS

T = TypeVar("T")
Pick: TypeAlias = Callable[[int], int]
Shape: TypeAlias = tuple[int, ...]
HUGE = (2**20 + 1, 2**22 + 1, 2**24 + 1)  # sizes at which kernels change their path, or float32 can no longer count
ANY_RANK = 5  # as the upper limit of a rank: any rank up to 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a profile draws. plain: sizes of dimensions, simplest first; border: sizes at which kernels change their
    path, drawn for one dimension while the others stay tiny; limit: largest number of elements."""

    plain: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 8)
    border: tuple[int, ...] = (16, 17, 31, 32, 33, 64, 65, 127, 128, 255, 256, 257)
    border_odds: int = 8  # one in this many shapes has a border size
    limit: int = 4096


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """How many cases of an item meet border sizes, by dtype (`""` for all others).

    one: with one border, of the sizes `borders`, and at most `limit` elements of the operands. two: with two borders at once.
    elements: with many elements, at most about `most`.
    """

    one: dict[str, int] = field(default_factory=dict)
    borders: tuple[int, ...] = ()
    limit: int = 0
    two: dict[str, int] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    most: int = 0

    def counts(self, dtype: str) -> tuple[int, int, int]:
        """How many cases with one border, with two and with many elements."""
        one, two, elements = (t.get(dtype, t.get("", 0)) for t in (self.one, self.two, self.elements))
        return one, two, elements


@dataclass(frozen=True, slots=True)
class Arguments:
    """The result of a signature: positional and keyword arguments, with operands as TensorSpecs without layouts."""

    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()


def keywords(**named: Arg) -> tuple[tuple[str, Arg], ...]:
    """Keyword arguments of a call, without those that are None."""
    return tuple((name, value) for name, value in named.items() if value is not None)


class Draw:
    """Draws the arguments of one case of a row in a dtype."""

    __slots__ = ("dtype", "pick", "sizes")

    def __init__(self, pick: Pick, dtype: str, sizes: Sizes) -> None:
        self.pick, self.dtype, self.sizes = pick, dtype, sizes

    # ------------------------------------------------------------------------------------------------ small choices

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        return options[self.pick(len(options))]

    def flag(self) -> bool:
        """False (simplest) or True."""
        return self.pick(2) == 1

    def rare(self, odds: int) -> bool:
        """False (simplest), or True in one of `odds` cases."""
        return self.pick(odds) == odds - 1

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]; low is the simplest."""
        return low + self.pick(high - low + 1)

    def maybe(self, value: T) -> T | None:
        """None (simplest) or the value."""
        return value if self.flag() else None

    def option(self, *values: T) -> T | None:
        """None (simplest: leave the argument out) or one of the values."""
        k = self.pick(len(values) + 1)
        return values[k - 1] if k else None

    @property
    def kind(self) -> str:
        """Kind of the item's dtype: float, complex, int or bool."""
        return FACTS[self.dtype].kind

    @property
    def is_inexact(self) -> bool:
        """Whether the item's dtype is floating or complex."""
        return FACTS[self.dtype].is_inexact

    def number(self, simple: float = 1) -> float | int | bool | complex:
        """A Python scalar of the item's kind that all dtypes of that kind represent exactly; `simple` first."""
        kind = FACTS[self.dtype].kind
        if kind == "bool":
            return bool(self.pick(2))
        if kind == "int":
            return self.choice((int(simple), 2, 3, 0, 7) if self.dtype == "uint8" else (int(simple), 2, -1, 0, 3, -7))
        if kind == "complex":
            return self.choice((simple, 0.5j, 2, 1 - 2j, 0.5, -0.25 + 1j, -1.0, 0))
        return self.choice((simple, 2, 0.5, -1.0, 0, -0.25, 1.0))  # 1.0 and 1 may be different kernels

    def value(self, simple: float = 1) -> float | int | bool | complex:
        """A Python scalar that is written or compared: like `number`, or, in one case of five, Inf, NaN, -0.0 or a limit of the
        item's dtype."""
        if self.pick(5) < 4 or self.kind == "bool":
            return self.number(simple)
        if self.kind != "int":
            ends: tuple[complex, ...] = (math.inf, -math.inf, math.nan, -0.0)
            return self.choice(ends if self.kind == "float" else (*ends, 1 - 2j, complex(0, math.inf)))
        bits, unsigned = FACTS[self.dtype].bits, self.dtype.startswith("u")
        top = (1 << (bits - (not unsigned))) - 1
        near = tuple(x for x in (2**24 + 1, 2**31, 2**53 + 1) if x < top)
        return self.choice((top, 0 if unsigned else -top - 1, *near))

    # ------------------------------------------------------------------------------------------------ sizes and shapes

    def size(self, low: int = 1) -> int:
        """The size of one dimension, at least `low`."""
        if self.pick(self.sizes.border_odds) == self.sizes.border_odds - 1:
            return max(low, self.choice(self.sizes.border))
        return low + self.choice(self.sizes.plain) - 1

    def extent(self, sizes: Sequence[int]) -> int:
        """The size of one dimension, or its excess over another size: one of these."""
        return sizes[self.pick(len(sizes))]

    def batch(self) -> int:
        """How many images there are."""
        return self.extent((1, 2))

    def lead(self, shapes: Sequence[Shape]) -> Shape:
        """Leading dimensions, of a stack: one of these."""
        return self.choice(shapes)

    def long(self, size: int) -> int:
        """The length of a sum: `size` (simplest), or long enough that order and precision of the summation matter."""
        return self.choice((16, 257, 33, 64, 513, 256, 256)) if self.flag() else size

    def shape(self, low: int = 0, high: int = 4, empty: bool = True) -> Shape:
        """A shape of rank low..high; `ANY_RANK` stands for ranks up to 8. At most one dimension has a border size, and one may
        be 0; shapes of rank above 4 stay tiny."""
        rank = low + self.pick(high - low + 1)
        if rank == ANY_RANK and high == ANY_RANK:
            rank += max(0, self.pick(6) - 2)
        plain = self.sizes.plain
        top = len(plain) if rank <= 2 else 5 if rank <= 4 else 3
        dims = [plain[self.pick(top)] for _ in range(rank)]
        if rank:
            odds = self.sizes.border_odds
            kind = self.pick(2 * odds)
            if kind == 2 * odds - 1 and empty:
                where = self.pick(rank)
                if rank > 1 and self.pick(4) == 3:  # no elements, but several blocks
                    dims = [min(d, 2) for d in dims]
                    dims[where - 1] = self.choice(self.sizes.border)
                dims[where] = 0
            elif kind >= 2 * odds - 3:
                where = self.pick(rank)
                dims = [min(d, 2) for d in dims]
                dims[where] = self.choice(self.sizes.border)
        return tuple(dims)

    def grown(self, shape: Shape, dim: int | None = None) -> Shape:
        """The shape; in one of 48 cases, if the profile allows so many elements, a shape with 2**20 or more in one dimension
        (`dim`, or any) and 1 in the others."""
        if not shape or not self.huge or not self.rare(48):
            return shape
        where = self.pick(len(shape)) if dim is None else dim % len(shape)
        large = self.choice(self.huge)
        return tuple(large if k == where else 1 for k in range(len(shape)))

    @property
    def huge(self) -> Shape:
        """The sizes above 2**20 that the profile allows."""
        return tuple(n for n in HUGE if n <= self.sizes.limit)

    def broadcastable(self, shape: Shape) -> Shape:
        """A shape that broadcasts to `shape`: the same, with a dimension of 1, without leading dimensions, or 0-d."""
        kind = self.pick(5)
        if kind == 0 or not shape:
            return shape
        if kind == 1:
            k = self.pick(len(shape))
            return (*shape[:k], 1, *shape[k + 1 :])
        if kind == 2:
            return shape[1 + self.pick(len(shape)) :]
        if kind == 3:
            return tuple(1 for _ in shape)
        return ()

    def dim(self, shape: Shape, negative: bool = True) -> int:
        """A dimension of `shape` (0 for 0-d), possibly counted from the end."""
        rank = max(1, len(shape))
        d = self.pick(rank)
        return d - rank if negative and self.flag() else d

    def dims(self, shape: Shape, low: int = 1) -> tuple[int, ...]:
        """`low` or more different dimensions of `shape` (0 for 0-d), in any order, each possibly negative."""
        rank = max(1, len(shape))
        order = self.permutation(rank)
        count = low + self.pick(max(1, rank - low + 1))
        return tuple(d - rank if self.flag() else d for d in order[:count])

    def permutation(self, n: int) -> tuple[int, ...]:
        """A permutation of range(n); the identity is the simplest."""
        rest = list(range(n))
        return tuple(rest.pop(self.pick(len(rest))) for _ in range(n))

    # ------------------------------------------------------------------------------------------------ operands

    def tensor(self, shape: Shape, *, dtype: str | None = None, grad: bool = True) -> TensorSpec:
        """An operand that may have any values of its dtype."""
        return TensorSpec(dtype or self.dtype, shape, values=Values("any"), grad=grad)

    def between(self, shape: Shape, low: float, high: float, *, dtype: str | None = None, grad: bool = True) -> TensorSpec:
        """An operand with values in [low, high]; generation also plants the ends, NaN, Inf and signed zeros."""
        return TensorSpec(dtype or self.dtype, shape, values=Values("between", self._limits(low, high, dtype)), grad=grad)

    def inside(self, shape: Shape, low: float, high: float, *, dtype: str | None = None, grad: bool = True) -> TensorSpec:
        """An operand with values in [low, high] and none outside, for ops that forbid them (probabilities, counts)."""
        return TensorSpec(dtype or self.dtype, shape, values=Values("inside", self._limits(low, high, dtype)), grad=grad)

    def _limits(self, low: float, high: float, dtype: str | None) -> tuple[float, float]:
        """[low, high]; for an integer dtype rounded to integers within its range."""
        facts = FACTS[dtype or self.dtype]
        if facts.kind != "int":
            return low, high
        bottom = 0 if facts.name.startswith("u") else -facts.max - 1
        low, high = max(math.ceil(low), bottom), min(math.floor(high), facts.max)
        return int(low), int(max(low, high))

    def index(self, shape: Shape, size: int, *, dtype: str = "int64", negative: bool = False) -> TensorSpec:
        """Integers in [0, size), with repeats; in [-size, size) where `negative`."""
        return TensorSpec(dtype, shape, values=Values("index", (-size if negative else 0, size)), grad=False)

    def unique_index(self, shape: Shape, size: int, *, dim: int = -1) -> TensorSpec:
        """Integers in [0, size) without a repeat along `dim` (whose extent must not exceed `size`)."""
        return TensorSpec("int64", shape, values=Values("unique", (size, dim)), grad=False)

    def mask(self, shape: Shape) -> TensorSpec:
        """A bool operand."""
        return TensorSpec("bool", shape, values=Values("any"), grad=False)

    def matrix(self, shape: Shape, kind: str = "conditioned", *, grad: bool = True) -> TensorSpec:
        """A stack of matrices of a kind that the op requires.

        kind: conditioned (square, diagonally dominant), spd (Hermitian positive definite), symmetric (Hermitian), lower,
        upper (triangular with a large diagonal), full_rank (m x n with a dominant diagonal), half_rank (of half the rank).
        """
        return TensorSpec(self.dtype, shape, values=Values(kind), grad=grad)


class Sweep(Draw):
    """Draws a call in which some dimensions have border sizes and all others are small.

    borders: their sizes, by the order in which the row draws dimensions; tight: all others are as small as can be; rank: of
    shapes, or the nearest that the row draws (0: any); least: size of the others; beyond: shapes may have more dimensions than
    the row draws; drawn: how many dimensions it has drawn.
    """

    __slots__ = ("beyond", "borders", "drawn", "least", "rank", "tight")

    def __init__(
        self,
        pick: Pick,
        dtype: str,
        borders: Mapping[int, int] = {},
        tight: bool = False,
        rank: int = 0,
        least: int = 1,
        beyond: bool = False,
    ) -> None:
        super().__init__(pick, dtype, Sizes())
        self.borders, self.tight, self.rank, self.least, self.beyond, self.drawn = borders, tight, rank, least, beyond, 0

    def size(self, low: int = 1) -> int:
        """The size of one dimension, at least `low`."""
        self.drawn += 1
        small = max(low, self.least) + self.pick(2) * (not self.tight)
        return max(low, self.borders.get(self.drawn - 1, small))

    def extent(self, sizes: Sequence[int]) -> int:
        """The size of one dimension: the smallest of these that is not 0, or one more."""
        return self.size(min(n for n in sizes if n))

    def batch(self) -> int:
        """How many images there are; none where there is a border of 0."""
        return 0 if 0 in self.borders.values() else self.size()

    def lead(self, shapes: Sequence[Shape]) -> Shape:
        """One leading dimension, or of stacks of matrices as many as the rank asks for; the most of these, the first of them 0,
        where there is a border of 0."""
        if 0 in self.borders.values():
            return (0, *max(shapes, key=len)[1:])
        return tuple(self.size() for _ in range(self.rank - 2 if self.beyond and not shapes[0] else 1))

    def long(self, size: int) -> int:
        """The length of a sum: that of its dimension."""
        return size

    def rare(self, odds: int) -> bool:
        """False: what a row draws now and then has sizes of its own."""
        return False

    def shape(self, low: int = 0, high: int = 4, empty: bool = True) -> Shape:
        """A shape of rank low..high, without a dimension of 0 but where that is a border."""
        high = 8 if high == ANY_RANK or (self.beyond and high > low + 1) else high
        rank = min(max(low, self.rank), high) if self.rank else low + self.pick(min(high, ANY_RANK) - low + 1)
        return tuple(self.size(int(not empty)) for _ in range(rank))

    def grown(self, shape: Shape, dim: int | None = None) -> Shape:
        return shape
