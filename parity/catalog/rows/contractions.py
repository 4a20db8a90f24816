"""Products of matrices and vectors: sums of products over a shared dimension."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    FLOATING,
    GLUE,
    METHOD,
    NUMERIC,
    OUT,
    OWN,
    ROUNDED,
    UNCHECKED,
    Counts,
    Draws,
    Forms,
    Judged,
    Refuses,
    Row,
    Signature,
)
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import FLOATS, HALF

_row = partial(Row, family="contractions", rule=CONTRACTION, dtypes=NUMERIC, grad=FLOATING)


def sizes_of(draw: Draw, n: int) -> tuple[int, ...]:
    """n sizes: one of them may be a border size or 0 while the others stay small; sometimes all equal (square)."""
    if draw.pick(4) == 3:
        return (draw.choice((2, 1, 3, 4, 8, 16)),) * n
    return draw.shape(n, n)


# Limits of kernel grids and of 16-bit integers.
STACKS = 1 << 15, (1 << 16) + 1, (1 << 16) - 1, 1 << 16, 70001, (1 << 17) + 3


def _huge(draw: Draw, odds: int = 40) -> int | None:
    """Rarely, more tiny matrices (or rows) than one grid takes."""
    return draw.choice(STACKS) if draw.rare(odds) else None


def _scales(draw: Draw) -> tuple[tuple[str, Arg], ...]:
    """beta and alpha, with the special values 0 and 1."""
    if not draw.flag():
        return ()
    options: tuple[complex, ...] = (2, 0, 1) if not draw.is_inexact else (2, 0, 1, 0.5, -1.0)
    if draw.kind == "complex":
        options = *options, 0.5j, 1 - 2j
    return keywords(beta=draw.option(*options), alpha=draw.option(*options))


def _bias(draw: Draw, shape: Shape) -> Shape:
    return draw.broadcastable(shape) if draw.flag() else shape


# Lengths of sums that exceed a tile or a 16-bit count.
DEEP = 32767, 10007, 32769, 65537
HEAVY = 1 << 22  # elements of an operand above which sums stay short


def _alone(n: int, k: int, m: int) -> bool:
    """Whether matrices are so large that the batch has only one."""
    return max(n, k, m) >= min(DEEP)


def _deep(draw: Draw, n: int, k: int, m: int) -> tuple[int, ...]:
    """The sizes of a product; rarely, if the profile allows so many elements, with a long sum, for results of a whole tile or
    of few elements."""
    if not draw.rare(20):
        return draw.grown((n, k if max(n, m) * k <= HEAVY else 2, m))
    deep = tuple(d for d in DEEP if 3 * d <= draw.sizes.limit)
    if not deep:
        return n, k, m
    k = draw.choice(deep)
    sides = (16, 17) if 17 * k <= draw.sizes.limit else (1, 2, 3)
    return draw.choice(sides), k, draw.choice(sides)


def _added(draw: Draw, shape: Shape, scales: tuple[tuple[str, Arg], ...]) -> TensorSpec:
    """The operand that a product is added to. If its factor is 0, torch promises to ignore it, so half of these cases have NaN
    and Inf in it."""
    if ("beta", 0) not in scales or not draw.is_inexact or not draw.flag():
        return draw.tensor(shape)
    x = draw.inside(shape, -1, 1)
    return replace(x, values=replace(x.values, specials=((0, "nan"), (1, "inf"))))


def _mm(draw: Draw) -> Arguments:
    if (many := _huge(draw)) is not None:
        pair = draw.tensor((many, 2)), draw.tensor((2, 1))
        return Arguments(pair if draw.flag() else (draw.tensor((1, 2)), draw.tensor((2, many))))
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    return Arguments((draw.tensor((n, k)), draw.tensor((k, m))))


def _bmm(draw: Draw) -> Arguments:
    if (many := _huge(draw)) is not None:
        return Arguments((draw.tensor((many, 1, 2)), draw.tensor((many, 2, 1))))
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    b = 1 if _alone(n, k, m) else draw.choice((1, 2, 3, 5, 0, 8))
    return Arguments((draw.tensor((b, n, k)), draw.tensor((b, k, m))))


def _matmul(draw: Draw) -> Arguments:
    """Vectors, matrices and stacks of them whose leading dimensions broadcast."""
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    kind = draw.pick(7)
    if kind == 0:
        return Arguments((draw.tensor((n, k)), draw.tensor((k, m))))
    if kind == 1:
        return Arguments((draw.tensor((k,)), draw.tensor((k,))))
    stack = tuple(1 if _alone(n, k, m) else draw.choice((1, 2, 3)) for _ in range(1 + draw.pick(3)))
    if kind == 2:
        return Arguments((draw.tensor((*stack, n, k)), draw.tensor((k,))))
    if kind == 3:
        return Arguments((draw.tensor((k,)), draw.tensor((*stack, k, m))))
    other = draw.broadcastable(stack)
    if kind == 4:
        return Arguments((draw.tensor((*stack, n, k)), draw.tensor((k, m))))
    if kind == 5:
        return Arguments((draw.tensor((*other, n, k)), draw.tensor((*stack, k, m))))
    return Arguments((draw.tensor((*stack, n, k)), draw.tensor((*other, k, m))))


def _addmm(draw: Draw) -> Arguments:
    n, k, m = _deep(draw, *sizes_of(draw, 3))
    shape, scales = _bias(draw, (n, m)), _scales(draw)
    return Arguments((_added(draw, shape, scales), draw.tensor((n, k)), draw.tensor((k, m))), scales)


def _addmv(draw: Draw) -> Arguments:
    n, k = sizes_of(draw, 2)
    shape, scales = _bias(draw, (n,)), _scales(draw)
    return Arguments((_added(draw, shape, scales), draw.tensor((n, k)), draw.tensor((k,))), scales)


def _addr(draw: Draw) -> Arguments:
    n, m = sizes_of(draw, 2)
    shape, scales = _bias(draw, (n, m)), _scales(draw)
    return Arguments((_added(draw, shape, scales), draw.tensor((n,)), draw.tensor((m,))), scales)


def _batched(stacked: bool) -> Signature:
    def signature(draw: Draw) -> Arguments:
        if stacked and (many := _huge(draw)) is not None:
            return Arguments((draw.tensor((many, 1, 1)), draw.tensor((many, 1, 2)), draw.tensor((many, 2, 1))), _scales(draw))
        n, k, m = _deep(draw, *sizes_of(draw, 3))
        b = 1 if _alone(n, k, m) else draw.choice((1, 2, 3, 0))
        shape, scales = _bias(draw, (b, n, m) if stacked else (n, m)), _scales(draw)
        return Arguments((_added(draw, shape, scales), draw.tensor((b, n, k)), draw.tensor((b, k, m))), scales)

    return signature


def _vectors(draw: Draw) -> Arguments:
    (n,) = draw.grown(sizes_of(draw, 1))
    return Arguments((draw.tensor((n,)), draw.tensor((n,))))


def _mv(draw: Draw) -> Arguments:
    n, k = draw.grown(sizes_of(draw, 2))
    return Arguments((draw.tensor((n, k)), draw.tensor((k,))))


def _outer(draw: Draw) -> Arguments:
    n, m = sizes_of(draw, 2)
    return Arguments((draw.tensor((n,)), draw.tensor((m,))))


def unshared_shapes(draw: Draw) -> tuple[Shape, Shape]:
    """Shapes of the dimensions that two operands do not share; the result has all of them."""
    left, right = draw.shape(0, 2), draw.shape(0, 2)
    return left, right if math.prod(left) * math.prod(right) <= HEAVY else ()


def _inner(draw: Draw) -> Arguments:
    (k,) = sizes_of(draw, 1)
    left, right = unshared_shapes(draw)
    return Arguments((draw.tensor((*left, k)), draw.tensor((*right, k))))


def _vecdot(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    return Arguments((draw.tensor(shape), draw.tensor(shape)), keywords(dim=draw.option(0, -1, -len(shape))))


def _kron(draw: Draw) -> Arguments:
    return Arguments(
        (draw.tensor(tuple(min(s, 8) for s in draw.shape(0, 3))), draw.tensor(tuple(min(s, 8) for s in draw.shape(0, 3))))
    )


def _linear(draw: Draw) -> Arguments:
    """Any leading dimensions; a bias or none; a vector for the weight."""
    if (many := _huge(draw, 20)) is not None:
        return _long_linear(draw, many)
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    lead = () if _alone(n, k, m) else draw.choice(((), (1,), (2,), (2, 3), (1, 2, 3), (0,)))
    rows = (*lead, n) if draw.pick(4) else ()
    if draw.rare(16):
        # On backends with their own kernel, torch's derivative formulas assume that the weight is a matrix.
        return Arguments((draw.tensor((*rows, k), grad=False), draw.tensor((k,), grad=False)))
    return Arguments((draw.tensor((*rows, k)), draw.tensor((m, k)), *_optional(draw, (m,))))


def _long_linear(draw: Draw, many: int) -> Arguments:
    """A size beyond the limit of a grid, as batch, rows, rows in a batch, or features of the result. Mostly small numbers that
    all differ, so that repeated or missing results show."""
    operand = partial(draw.inside, low=-2, high=2) if draw.pick(4) else draw.tensor
    biased, kind, k = draw.pick(4) > 0, draw.pick(6), draw.choice((2, 1))
    shape, m = (((many, 1), 2), ((many, 1), 33), ((many, 1), 1), ((many,), 3), ((2, many), 1), ((3,), many))[kind]
    return Arguments((operand((*shape, k)), operand((m, k)), *((operand((m,)),) if biased else ())))


def _rounded(of: Signature) -> Signature:
    """(bits of the operands given in float32 under autocast, arguments of the call), with small numbers."""

    def signature(draw: Draw) -> Arguments:
        call = of(draw)
        plain = tuple(draw.inside(a.shape, -2, 2, grad=a.grad) if isinstance(a, TensorSpec) else a for a in call.args)
        return Arguments((1 + draw.pick(7), *plain), call.kwargs)

    return signature


def _optional(draw: Draw, shape: Shape) -> tuple[Arg, ...]:
    return (draw.tensor(shape),) if draw.flag() else ()


def _bilinear(draw: Draw) -> Arguments:
    a, b, m = (min(s, 16) for s in sizes_of(draw, 3))
    a, b = max(a, 1), max(b, 1)
    lead = draw.choice(((1,), (), (2,), (2, 3)))
    return Arguments((draw.tensor((*lead, a)), draw.tensor((*lead, b)), draw.tensor((m, a, b)), *_optional(draw, (m,))))


def _chain(draw: Draw) -> Arguments:
    sizes = tuple(max(1, s) for s in sizes_of(draw, 4 + draw.pick(2)))
    return Arguments((tuple(draw.tensor((a, b)) for a, b in pairwise(sizes)),))


def _covered(draw: Draw) -> Arguments:
    shape = draw.shape(1, 2)
    n = shape[-1] + 2
    frequencies = draw.maybe(draw.inside((n,), 1, 3, dtype="int64", grad=False))
    weights = draw.maybe(draw.inside((n,), 0.25, 2, dtype="float32", grad=False)) if draw.kind != "complex" else None
    if weights and draw.dtype != "float32":
        weights = None
    # With weights, 2 of two observations divides by a difference that is 0 but for rounding.
    correction = draw.option(0) if frequencies or weights else draw.option(0, 2)
    named = keywords(correction=correction, fweights=frequencies, aweights=weights)
    rows = tuple(min(s, 257) for s in shape[:-1])  # the result has as many elements as their square
    return Arguments((draw.tensor((*rows, n)),), named)


def _int_mm(draw: Draw) -> Arguments:
    n, k, m = draw.choice((17, 32, 33)), draw.choice((8, 16, 32)), draw.choice((8, 16, 24))
    return Arguments((draw.tensor((n, k)), draw.tensor((k, m))))


def _activated(draw: Draw) -> Arguments:
    """A product with a bias through relu or gelu in one kernel."""
    n, k, m = sizes_of(draw, 3)
    operands = draw.tensor((m,)), draw.tensor((n, k)), draw.tensor((k, m))
    return Arguments(operands, keywords(use_gelu=draw.option(True)))


ROWS = (
    _row("mm", _mm, forms=OUT, refuses=Refuses(fits="always", alike=True), counts=OWN),
    _row("bmm", _bmm, forms=OUT, refuses=Refuses(fits="always", alike=True), counts=OWN),
    _row("matmul", _matmul, forms=OUT, refuses=Refuses(fits="always", alike=True), counts=Counts(("*", "__rmatmul__"))),
    # rounds_between: the product may be rounded to the dtype before the sum
    _row(
        "addmm",
        _addmm,
        forms=Forms(inplace=METHOD, out=True),
        refuses=Refuses(alike=True),
        judged=Judged(rounds_between=True, bias=0),
        counts=Counts(("*", "addmm:decomposed")),
    ),
    _row(
        "addmv",
        _addmv,
        forms=Forms(inplace=METHOD, out=True),
        refuses=Refuses(fits="always", alike=True),
        judged=Judged(rounds_between=True, bias=0),
        counts=OWN,
    ),
    _row("addr", _addr, forms=Forms(inplace=METHOD, out=True), judged=Judged(bias=0), counts=OWN),
    # rounds_between: the product may be rounded to the dtype before the sum
    _row(
        "addbmm",
        _batched(False),
        forms=Forms(inplace=METHOD, out=True),
        refuses=Refuses(alike=True),
        judged=ROUNDED,
        counts=OWN,
    ),
    # rounds_between: the product may be rounded to the dtype before the sum
    _row(
        "baddbmm",
        _batched(True),
        forms=Forms(inplace=METHOD, out=True),
        refuses=Refuses(alike=True),
        judged=Judged(rounds_between=True, bias=0),
        counts=OWN,
    ),
    _row("dot", _vectors, forms=OUT, refuses=Refuses(fits="always", alike=True), counts=OWN),
    _row("vdot", _vectors, forms=OUT, refuses=Refuses(fits="always"), counts=OWN),
    _row("mv", _mv, forms=OUT, refuses=Refuses(fits="always", alike=True), counts=OWN),
    _row("outer", _outer, forms=OUT, counts=OWN),
    _row("inner", _inner, forms=OUT, refuses=Refuses(fits="always"), counts=OWN),
    # a product, then a sum, each a kernel in the half type
    _row("vecdot", _vecdot, forms=OUT, call="torch.linalg.*", dtypes=FLOATING, judged=ROUNDED, counts=OWN),
    # the CPU refuses many operands that are not dense ("view size is not compatible")
    _row("kron", _kron, forms=OUT, draws=Draws(packed=3), counts=OWN),
    # rounds_between: the product of a vector is rounded to the dtype before the bias is added
    _row(
        "linear",
        _linear,
        call="torch.nn.functional.*",
        refuses=Refuses(fits="always", alike=True),
        judged=Judged(rounds_between=True, bias=2),
        counts=Counts(("*",), mps="own"),
    ),
    # rounds_between: the products of operand, weight and operand are separate kernels,
    # stages: added up in the dtype
    _row(
        "bilinear",
        _bilinear,
        call="torch.nn.functional.*",
        grad=FLOATS,
        refuses=Refuses(fits="always", takes=("complex",)),
        judged=Judged(rounds_between=True, stages=("forward", "backward")),
        counts=OWN,
    ),
    *(
        # rounds_between: as addmm; linear adds its bias likewise
        _row(
            f"{name}_autocast",
            _rounded(signature),
            judged=Judged(rounds_between=True, bias=bias),
            call=f"parity.catalog.glue.layers.autocast_{name}",
            dtypes=HALF,
            grad=HALF,
        )
        for name, signature, bias in (
            *(("linear", _linear, 2), ("matmul", _matmul, None), ("addmm", _addmm, 0), ("baddbmm", _batched(True), 0)),
            *(("bmm", _bmm, None), ("addbmm", _batched(False), None)),
        )
    ),
    _row(
        "addmm_activation",
        _activated,
        rule=COMPOSITE,
        forms=OUT,
        call="torch._addmm_activation",
        dtypes=FLOATS,
        grad=(),
        refuses=UNCHECKED,
        judged=ROUNDED,
    ),
    _row("chain_matmul", _chain, judged=ROUNDED, rule=COMPOSITE, call=GLUE, grad=()),
    # rounds_between: a chain of matmuls, each rounded to the dtype
    _row("multi_dot", _chain, forms=OUT, rule=COMPOSITE, call="torch.linalg.*", judged=ROUNDED, counts=OWN),
    # oracle: the CPU's own result is wrong for an expanded second operand (torch 2.13)
    _row(
        "int_mm",
        _int_mm,
        draws=Draws(unexpanded=True),
        call="torch._int_mm",
        dtypes=("int8",),
        grad=(),
        refuses=UNCHECKED,
        judged=Judged(oracle="parity.catalog.glue.calls.int_mm"),
    ),
    # centering, a matmul and a division, each rounded to the dtype
    _row("cov", _covered, judged=ROUNDED, rule=COMPOSITE, dtypes=FLOATING, counts=OWN),
)
