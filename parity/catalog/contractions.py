"""Products of matrices and vectors: sums of products over a shared dimension."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import FLOATING, NUMERIC, Row, Signature
from parity.dtypes import FLOATS, HALF
from parity.vocabulary import Arg, OpClass, TensorSpec

_row = partial(Row, family="contractions", rule=OpClass.CONTRACTION, dtypes=NUMERIC, grad=FLOATING)


def sizes_of(draw: Draw, n: int) -> tuple[int, ...]:
    """n sizes: one of them may be a border size or 0 while the others stay small; all equal now and then (square)."""
    if draw.pick(4) == 3:
        return (draw.choice((2, 1, 3, 4, 8, 16)),) * n
    return draw.shape(n, n)


# Grids of kernels end there, and words of 16 bits.
STACKS = 1 << 15, (1 << 16) + 1, (1 << 16) - 1, 1 << 16, 70001, (1 << 17) + 3


def _huge(draw: Draw, odds: int = 40) -> int | None:
    """Seldom, a count of tiny matrices (or rows) that no grid takes in one go."""
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


# Sums that no tile takes in one go, nor a 16-bit count.
DEEP = 32767, 10007, 32769, 65537
HEAVY = 1 << 22  # elements of an operand, from which on a sum is short


def _alone(n: int, k: int, m: int) -> bool:
    """Whether matrices are so large that there is one of them."""
    return max(n, k, m) >= min(DEEP)


def _deep(draw: Draw, n: int, k: int, m: int) -> tuple[int, ...]:
    """The sizes of a product, or, seldom and where the profile allows as many elements, a long sum: behind results of a whole
    tile, or behind one of a few."""
    if not draw.rare(20):
        return draw.grown((n, k if max(n, m) * k <= HEAVY else 2, m))
    deep = tuple(d for d in DEEP if 3 * d <= draw.sizes.limit)
    if not deep:
        return n, k, m
    k = draw.choice(deep)
    sides = (16, 17) if 17 * k <= draw.sizes.limit else (1, 2, 3)
    return draw.choice(sides), k, draw.choice(sides)


def _added(draw: Draw, shape: Shape, scales: tuple[tuple[str, Arg], ...]) -> TensorSpec:
    """What a product is added to. Where its factor is 0, torch promises that it is not looked at: then NaN and Inf stand in it
    in half of the cases."""
    if ("beta", 0) not in scales or not draw.is_inexact or not draw.flag():
        return draw.tensor(shape)
    x = draw.inside(shape, -1, 1)
    return replace(x, values=replace(x.values, specials=((0, "nan"), (1, "inf"))))


def _mm(draw: Draw) -> Call:
    if (many := _huge(draw)) is not None:
        pair = draw.tensor((many, 2)), draw.tensor((2, 1))
        return Call(pair if draw.flag() else (draw.tensor((1, 2)), draw.tensor((2, many))))
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    return Call((draw.tensor((n, k)), draw.tensor((k, m))))


def _bmm(draw: Draw) -> Call:
    if (many := _huge(draw)) is not None:
        return Call((draw.tensor((many, 1, 2)), draw.tensor((many, 2, 1))))
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    b = 1 if _alone(n, k, m) else draw.choice((1, 2, 3, 5, 0, 8))
    return Call((draw.tensor((b, n, k)), draw.tensor((b, k, m))))


def _matmul(draw: Draw) -> Call:
    """Vectors, matrices and stacks of them whose leading dimensions broadcast."""
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    kind = draw.pick(7)
    if kind == 0:
        return Call((draw.tensor((n, k)), draw.tensor((k, m))))
    if kind == 1:
        return Call((draw.tensor((k,)), draw.tensor((k,))))
    stack = tuple(1 if _alone(n, k, m) else draw.choice((1, 2, 3)) for _ in range(1 + draw.pick(3)))
    if kind == 2:
        return Call((draw.tensor((*stack, n, k)), draw.tensor((k,))))
    if kind == 3:
        return Call((draw.tensor((k,)), draw.tensor((*stack, k, m))))
    other = draw.broadcastable(stack)
    if kind == 4:
        return Call((draw.tensor((*stack, n, k)), draw.tensor((k, m))))
    if kind == 5:
        return Call((draw.tensor((*other, n, k)), draw.tensor((*stack, k, m))))
    return Call((draw.tensor((*stack, n, k)), draw.tensor((*other, k, m))))


def _addmm(draw: Draw) -> Call:
    n, k, m = _deep(draw, *sizes_of(draw, 3))
    shape, scales = _bias(draw, (n, m)), _scales(draw)
    return Call((_added(draw, shape, scales), draw.tensor((n, k)), draw.tensor((k, m))), scales)


def _addmv(draw: Draw) -> Call:
    n, k = sizes_of(draw, 2)
    shape, scales = _bias(draw, (n,)), _scales(draw)
    return Call((_added(draw, shape, scales), draw.tensor((n, k)), draw.tensor((k,))), scales)


def _addr(draw: Draw) -> Call:
    n, m = sizes_of(draw, 2)
    shape, scales = _bias(draw, (n, m)), _scales(draw)
    return Call((_added(draw, shape, scales), draw.tensor((n,)), draw.tensor((m,))), scales)


def _batched(stacked: bool) -> Signature:
    def signature(draw: Draw) -> Call:
        if stacked and (many := _huge(draw)) is not None:
            return Call((draw.tensor((many, 1, 1)), draw.tensor((many, 1, 2)), draw.tensor((many, 2, 1))), _scales(draw))
        n, k, m = _deep(draw, *sizes_of(draw, 3))
        b = 1 if _alone(n, k, m) else draw.choice((1, 2, 3, 0))
        shape, scales = _bias(draw, (b, n, m) if stacked else (n, m)), _scales(draw)
        return Call((_added(draw, shape, scales), draw.tensor((b, n, k)), draw.tensor((b, k, m))), scales)

    return signature


def _vectors(draw: Draw) -> Call:
    (n,) = draw.grown(sizes_of(draw, 1))
    return Call((draw.tensor((n,)), draw.tensor((n,))))


def _mv(draw: Draw) -> Call:
    n, k = draw.grown(sizes_of(draw, 2))
    return Call((draw.tensor((n, k)), draw.tensor((k,))))


def _outer(draw: Draw) -> Call:
    n, m = sizes_of(draw, 2)
    return Call((draw.tensor((n,)), draw.tensor((m,))))


def beside(draw: Draw) -> tuple[Shape, Shape]:
    """What two operands have beside the dimensions that they share, all of which comes together in the result."""
    left, right = draw.shape(0, 2), draw.shape(0, 2)
    return left, right if math.prod(left) * math.prod(right) <= HEAVY else ()


def _inner(draw: Draw) -> Call:
    (k,) = sizes_of(draw, 1)
    left, right = beside(draw)
    return Call((draw.tensor((*left, k)), draw.tensor((*right, k))))


def _vecdot(draw: Draw) -> Call:
    shape = draw.shape(1, 4)
    return Call((draw.tensor(shape), draw.tensor(shape)), keywords(dim=draw.option(0, -1, -len(shape))))


def _kron(draw: Draw) -> Call:
    return Call(
        (draw.tensor(tuple(min(s, 8) for s in draw.shape(0, 3))), draw.tensor(tuple(min(s, 8) for s in draw.shape(0, 3))))
    )


def _linear(draw: Draw) -> Call:
    """Any leading dimensions; a bias or none; a vector for the weight."""
    if (many := _huge(draw, 20)) is not None:
        return _long_linear(draw, many)
    n, k, m = sizes_of(draw, 3)
    n, k, m = _deep(draw, n, draw.long(k), m)
    lead = () if _alone(n, k, m) else draw.choice(((), (1,), (2,), (2, 3), (1, 2, 3), (0,)))
    rows = (*lead, n) if draw.pick(4) else ()
    if draw.rare(16):
        # Where a backend has a kernel of its own, torch's formulas of derivatives take the weight for a matrix.
        return Call((draw.tensor((*rows, k), grad=False), draw.tensor((k,), grad=False)))
    return Call((draw.tensor((*rows, k)), draw.tensor((m, k)), *_optional(draw, (m,))))


def _long_linear(draw: Draw, many: int) -> Call:
    """A size that no grid takes, as a batch, as rows, behind a batch, or as features of the result. Mostly numbers of a usual
    size that are all different: what is repeated or left out must show."""
    operand = partial(draw.inside, low=-2, high=2) if draw.pick(4) else draw.tensor
    biased, kind, k = draw.pick(4) > 0, draw.pick(6), draw.choice((2, 1))
    shape, m = (((many, 1), 2), ((many, 1), 33), ((many, 1), 1), ((many,), 3), ((2, many), 1), ((3,), many))[kind]
    return Call((operand((*shape, k)), operand((m, k)), *((operand((m,)),) if biased else ())))


def _rounded(of: Signature) -> Signature:
    """Which operands come in float32 under autocast, and the call: numbers of a usual size."""

    def signature(draw: Draw) -> Call:
        call = of(draw)
        plain = tuple(draw.inside(a.shape, -2, 2, grad=a.grad) if isinstance(a, TensorSpec) else a for a in call.args)
        return Call((1 + draw.pick(7), *plain), call.kwargs)

    return signature


def _optional(draw: Draw, shape: Shape) -> tuple[Arg, ...]:
    return (draw.tensor(shape),) if draw.flag() else ()


def _bilinear(draw: Draw) -> Call:
    a, b, m = (min(s, 16) for s in sizes_of(draw, 3))
    a, b = max(a, 1), max(b, 1)
    lead = draw.choice(((1,), (), (2,), (2, 3)))
    return Call((draw.tensor((*lead, a)), draw.tensor((*lead, b)), draw.tensor((m, a, b)), *_optional(draw, (m,))))


def _chain(draw: Draw) -> Call:
    sizes = tuple(max(1, s) for s in sizes_of(draw, 4 + draw.pick(2)))
    return Call((tuple(draw.tensor((a, b)) for a, b in pairwise(sizes)),))


def _covered(draw: Draw) -> Call:
    shape = draw.shape(1, 2)
    n = shape[-1] + 2
    frequencies = draw.maybe(draw.inside((n,), 1, 3, dtype="int64", grad=False))
    weights = draw.maybe(draw.inside((n,), 0.25, 2, dtype="float32", grad=False)) if draw.kind != "complex" else None
    if weights and draw.dtype != "float32":
        weights = None
    named = keywords(
        correction=draw.option(0, 2) if not frequencies else draw.option(0), fweights=frequencies, aweights=weights
    )
    rows = tuple(min(s, 257) for s in shape[:-1])  # the result has as many elements as their square
    return Call((draw.tensor((*rows, n)),), named)


def _int_mm(draw: Draw) -> Call:
    n, k, m = draw.choice((17, 32, 33)), draw.choice((8, 16, 32)), draw.choice((8, 16, 24))
    return Call((draw.tensor((n, k)), draw.tensor((k, m))))


def _activated(draw: Draw) -> Call:
    """A product with a bias through relu or gelu in one kernel."""
    n, k, m = sizes_of(draw, 3)
    operands = draw.tensor((m,)), draw.tensor((n, k)), draw.tensor((k, m))
    return Call(operands, keywords(use_gelu=draw.option(True)))


ROWS = (
    _row(name="mm", call="torch.mm", signature=_mm, out=True, opinfo=("mm",)),
    _row(name="bmm", call="torch.bmm", signature=_bmm, out=True, opinfo=("bmm",)),
    _row(name="matmul", call="torch.matmul", signature=_matmul, out=True, opinfo=("matmul", "__rmatmul__")),
    _row(
        name="addmm",
        rounds_between=True,  # the product may be rounded to the dtype before the sum
        call="torch.addmm",
        signature=_addmm,
        inplace="torch.Tensor.addmm_",
        out=True,
        opinfo=("addmm", "addmm:decomposed"),
    ),
    _row(
        name="addmv",
        rounds_between=True,
        call="torch.addmv",
        signature=_addmv,
        inplace="torch.Tensor.addmv_",
        out=True,
        opinfo=("addmv",),
    ),
    _row(name="addr", call="torch.addr", signature=_addr, inplace="torch.Tensor.addr_", out=True, opinfo=("addr",)),
    _row(
        name="addbmm",
        rounds_between=True,  # the product may be rounded to the dtype before the sum
        call="torch.addbmm",
        signature=_batched(False),
        inplace="torch.Tensor.addbmm_",
        out=True,
        opinfo=("addbmm",),
    ),
    _row(
        name="baddbmm",
        rounds_between=True,  # the product may be rounded to the dtype before the sum
        call="torch.baddbmm",
        signature=_batched(True),
        inplace="torch.Tensor.baddbmm_",
        out=True,
        opinfo=("baddbmm",),
    ),
    _row(name="dot", call="torch.dot", signature=_vectors, out=True, opinfo=("dot",)),
    _row(name="vdot", call="torch.vdot", signature=_vectors, out=True, opinfo=("vdot",)),
    _row(name="mv", call="torch.mv", signature=_mv, out=True, opinfo=("mv",)),
    _row(name="outer", call="torch.outer", signature=_outer, out=True, opinfo=("outer",)),
    _row(name="inner", call="torch.inner", signature=_inner, out=True, opinfo=("inner",)),
    _row(
        # a product, then a sum, each a half kernel
        name="vecdot",
        rounds_between=True,
        call="torch.linalg.vecdot",
        signature=_vecdot,
        dtypes=FLOATING,
        out=True,
        opinfo=("linalg.vecdot",),
    ),
    # the CPU refuses many operands that are not dense ("view size is not compatible")
    _row(name="kron", call="torch.kron", signature=_kron, out=True, packed=3, opinfo=("kron",)),
    _row(
        name="linear",
        call="torch.nn.functional.linear",
        signature=_linear,
        opinfo=("nn.functional.linear",),
        rounds_between=True,  # a vector's product is rounded to the dtype before the bias is added
    ),
    _row(
        name="bilinear",
        call="torch.nn.functional.bilinear",
        signature=_bilinear,
        grad=FLOATS,
        rounds_between=True,  # products of operand, weight and operand are kernels of their own,
        stages=("forward", "backward"),  # added up in the dtype
        opinfo=("nn.functional.bilinear",),
    ),
    *(
        _row(
            name=f"{name}_autocast",
            rounds_between=True,  # as addmm; linear adds its bias likewise
            call=f"parity.catalog.layers.autocast_{name}",
            signature=_rounded(signature),
            dtypes=HALF,
            grad=HALF,
        )
        for name, signature in (
            *(("linear", _linear), ("matmul", _matmul), ("addmm", _addmm), ("baddbmm", _batched(True))),
            *(("bmm", _bmm), ("addbmm", _batched(False))),
        )
    ),
    _row(
        name="addmm_activation",
        rule=OpClass.COMPOSITE,
        rounds_between=True,
        call="torch._addmm_activation",
        signature=_activated,
        dtypes=FLOATS,
        grad=(),
        out=True,
    ),
    _row(
        name="chain_matmul",
        rounds_between=True,
        rule=OpClass.COMPOSITE,
        call="parity.catalog.calls.chain_matmul",
        signature=_chain,
        grad=(),
    ),
    _row(
        name="multi_dot",
        rounds_between=True,  # a chain of matmuls, each rounded to the dtype
        rule=OpClass.COMPOSITE,
        call="torch.linalg.multi_dot",
        signature=_chain,
        out=True,
        opinfo=("linalg.multi_dot",),
    ),
    _row(
        name="int_mm",
        unexpanded=True,
        call="torch._int_mm",
        signature=_int_mm,
        dtypes=("int8",),
        grad=(),
        oracle="parity.catalog.calls.int_mm",  # the CPU's own result is wrong for an expanded second operand (torch 2.13)
    ),
    # centering, a matmul and a division, each rounded to the dtype
    _row(
        name="cov",
        rounds_between=True,
        rule=OpClass.COMPOSITE,
        call="torch.cov",
        signature=_covered,
        dtypes=FLOATING,
        opinfo=("cov",),
    ),
)
