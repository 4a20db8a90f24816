"""Forms of operators that no public function calls: out= with dense destinations, kernels of batch norm, set_ and other changes
of memory. The calls are in `parity.catalog.glue.into`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    ELEMENTWISE,
    EVERY,
    EXACT,
    ROUNDED,
    UNCHECKED,
    Counts,
    Forms,
    Judged,
    Quirk,
    Row,
)
from parity.catalog.rows import gradients, indexing, kernels, linalg, pooling, selection
from parity.catalog.signatures import strictly, unary, whole
from parity.core.case import Arg
from parity.core.dtypes import FLOATS

INTO = "parity.catalog.glue.into."
_row = partial(Row, family="kernels", rule=EXACT, dtypes=FLOATS, refuses=UNCHECKED)
_FAMILIES: dict[str, Row] = {r.name: r for m in (gradients, selection, indexing, kernels, linalg, pooling) for r in m.ROWS}


def _written(name: str, call: str = "") -> Row:
    """A row of another family again, in its out= form with dense destinations."""
    plain = _FAMILIES[name]
    return replace(
        plain,
        name=f"{name}_written",
        family="kernels",
        call=INTO + (call or name),
        grad=(),
        forms=replace(plain.forms, inplace="", out=False),
        refuses=replace(plain.refuses, unchecked=True, raises_on="", takes=()),
        counts=replace(plain.counts, opinfo=()),
    )


def _adaptive(draw: Draw) -> Arguments:
    lead = draw.lead(((1, 1), (1, 3), (3,), (2, 2)))
    sizes, size = (tuple(draw.choice((3, 1, 2, 5, 7)) for _ in range(2)) for _ in range(2))
    return Arguments((draw.tensor((*lead, *sizes)), size))


def _tensor(draw: Draw) -> Arguments:
    return Arguments((draw.between(draw.shape(0, 5), -16, 16),))


def _between(draw: Draw) -> Arguments:
    """Points, and the edges for each coordinate."""
    k = draw.choice((1, 2, 3))
    x = strictly(-5, 5)(draw, (draw.size(), k))
    weight = draw.maybe(draw.inside(x.shape[:1], 0.25, 2))
    edges: Arg = tuple(strictly(-5, 5)(draw, (draw.choice((2, 3, 5, 9)),)) for _ in range(k))
    return Arguments((x, edges), keywords(weight=weight, density=draw.option(True)))


def _square(draw: Draw) -> Arguments:
    return Arguments((draw.tensor((), grad=False), min(draw.extent((3, 1, 0, 5, 33)), 513)))


def _range(draw: Draw) -> Arguments:
    start, step = draw.choice((0, 1, 3)), draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    return Arguments((draw.tensor((), grad=False), start, start + step * draw.extent((1, 5, 17, 64)), step))


def _without_statistics(draw: Draw) -> Arguments:
    x, weight, bias, _, _, *rest = kernels.native_batch_norm(True)(draw).args
    return Arguments((x, weight, bias, *rest))


def _batch_norm_backward(draw: Draw) -> Arguments:
    shape = draw.shape(2, 5, empty=False)
    shape = (shape[0] + 1, *shape[1:])
    mean, var = draw.inside(shape[1:2], -2, 2, grad=False), draw.inside(shape[1:2], 0.5, 4, grad=False)
    return Arguments((draw.tensor(shape), draw.tensor(shape), draw.tensor(shape[1:2]), mean, var, draw.choice((1e-3, 1e-5))))


def _bags(draw: Draw) -> Arguments:
    """(cotangent, indices, table, offsets, mode, weights of the samples): sums, means and maxima of bags, empty ones too."""
    rows, width, n, bags = draw.size(), draw.choice((1, 2, 4, 8)), draw.choice((3, 1, 5, 8)), draw.choice((2, 1, 4))
    mode = draw.choice((0, 1, 2))
    weights = draw.maybe(draw.tensor((n,))) if mode == 0 else None
    table = draw.inside((rows, width), -9, 9)
    index, offsets = draw.index((n,), rows), draw.index((bags,), n)
    return Arguments((draw.tensor((bags, width)), index, table, offsets, mode, weights))


def _four_bits(draw: Draw) -> Arguments:
    """A product with a matrix of 4-bit integers; scales and zeros are integers, so that the weights are exact in half types."""
    n, k, m, group = draw.choice((1, 2, 3, 8, 17)), draw.choice((128, 256)), draw.choice((32, 64)), draw.choice((32, 64, 128))
    weight = draw.inside((m, k), 0, 15, dtype="int32", grad=False)
    scales, zeros = whole(1, 3)(draw, (k // group, m)), whole(-8, 8)(draw, (k // group, m))
    return Arguments((draw.inside((n, k), -2, 2), weight, scales, zeros, group))


def _part(draw: Draw) -> Arguments:
    """A part of the memory of a vector: legal start, size and strides."""
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 4))
    stride = draw.choice(((b, 1), (1, a), (2 * b, 2), (0, 1)))
    start = draw.choice((0, 1, 3))
    reach = start + (a - 1) * stride[0] + (b - 1) * stride[1] + 1
    return Arguments((draw.tensor((reach + draw.choice((0, 1, 5)),)), start, (a, b), stride))


def _smaller(draw: Draw) -> Arguments:
    shape = draw.shape(1, 4)
    size = tuple(reversed(shape)) if draw.flag() else tuple(max(0, s - draw.choice((1, 0, 2))) for s in shape)
    return Arguments((draw.tensor(shape), size))


def _alias(draw: Draw) -> Arguments:
    """A dense tensor, viewed in another shape."""
    a, b, c = (draw.choice((2, 1, 3, 5)) for _ in range(3))
    size, stride = draw.choice((((a * b, c), (c, 1)), ((a, b * c), (b * c, 1)), ((a * b * c,), (1,))))
    return Arguments((draw.tensor((a, b, c)), size, stride))


def _copied(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(draw.shape(0, 5)), draw.flag()))


_norm = partial(_row, rule=COMPOSITE, dtypes=("float32",), forms=Forms(updates=True))
_LEGIT = kernels.native_batch_norm(True)

ROWS = (
    *(_written(f"avg_pool{n}_kernel", f"avg_pool{n}") for n in ("2d", "3d")),
    *(_written(f"avg_pool{n}_backward") for n in ("2d", "3d")),
    *(_written(f"max_unpool{n}") for n in ("2d", "3d")),
    _row(
        "adaptive_avg_pool2d_written",
        _adaptive,
        rule=CONTRACTION,
        call=INTO + "adaptive_avg_pool2d",
        judged=Judged(accumulates=("forward",)),
    ),
    _row("adaptive_max_pool2d_written", _adaptive, call=INTO + "adaptive_max_pool2d"),
    _written("histogram"),
    _written("histogram_edges"),
    _row(
        "histogramdd_edges",
        _between,
        rule=COMPOSITE,
        call=INTO + "histogram_between",
        dtypes=("float32",),
        judged=Judged(oracle="exact"),
    ),
    _written("nonzero_static"),
    _written("triangular_solve"),
    _written("cholesky_inverse"),
    _written("lu"),
    _written("lu_parts"),
    _row(
        "log_sigmoid_forward_written",
        _tensor,
        rule=COMPOSITE,
        call=INTO + "log_sigmoid_forward",
        judged=ROUNDED,
        counts=Counts(under="nn.functional.logsigmoid"),
    ),
    _row("eye_written", _square, call=INTO + "eye", dtypes=EVERY),
    _row(
        "range_written",
        _range,
        rule=ELEMENTWISE,
        call=INTO + "closed_range",
        dtypes=("float32", "int64", "int32"),
        counts=Counts(under="range"),
    ),
    # batch norm below its public function
    _written("native_batch_norm"),
    _norm("native_batch_norm_legit", _LEGIT, call=INTO + "batch_norm_legit"),
    # The CPU writes different statistics to destinations if the operand is transposed, in every dtype (torch 2.13).
    _norm(
        "native_batch_norm_legit_written",
        _LEGIT,
        call=INTO + "batch_norm_legit_written",
        judged=Judged(oracle=INTO + "batch_norm_legit"),
    ),
    _norm("batch_norm_without_statistics", _without_statistics, call=INTO + "batch_norm_without"),
    _norm(
        "batch_norm_without_statistics_written",
        _without_statistics,
        call=INTO + "batch_norm_without_written",
        judged=Judged(oracle=INTO + "batch_norm_without"),
    ),
    _norm("batch_norm_backward", _batch_norm_backward, call=INTO + "batch_norm_backward", quirks=(Quirk.DENSE,)),
    _row(
        "embedding_bag_dense_backward",
        _bags,
        rule=CONTRACTION,
        call=INTO + "embedding_bag_dense_backward",
        dtypes=("float32",),
        judged=Judged(accumulates=("forward",)),
    ),
    _row("weight_int4pack_mm", _four_bits, rule=CONTRACTION, call=INTO + "weight_int4pack_mm", dtypes=("bfloat16",)),
    # memory that tensors share
    _row("set_tensor", unary(), call=INTO + "set_tensor", dtypes=EVERY),
    _row("set_storage", unary(), call=INTO + "set_storage", dtypes=EVERY),
    _row("set_part", _part, call=INTO + "set_part", dtypes=EVERY),
    _row("set_nothing", unary(), call=INTO + "set_nothing", dtypes=EVERY),
    _row("is_set_to", unary(), call=INTO + "is_set_to", dtypes=EVERY),
    _row("resize_", _smaller, call=INTO + "resize", dtypes=EVERY),
    _row("reshape_alias", _alias, call=INTO + "reshape_alias", dtypes=EVERY, grad=FLOATS, counts=Counts(under="view")),
    _row("copy_from", _copied, call=INTO + "copy_from", dtypes=EVERY, counts=Counts(under="copy_", mps="own")),
)
