"""Forms of operators that no public function takes as the rows of their families do: out= into dense destinations, kernels of
batch norm, memory that tensors share. The calls stand in `parity.catalog.into`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity.catalog import gradients, histograms, indexing, kernels, linalg, pooling
from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, Row
from parity.catalog.signatures import strictly, unary, whole
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass

INTO = "parity.catalog.into."
_row = partial(Row, family="kernels", rule=OpClass.EXACT, dtypes=FLOATS)
_FAMILIES: dict[str, Row] = {r.name: r for m in (gradients, histograms, indexing, kernels, linalg, pooling) for r in m.ROWS}


def _written(name: str, call: str = "") -> Row:
    """A row of another family once more, by its out= form into dense destinations."""
    plain = replace(_FAMILIES[name], family="kernels", grad=(), inplace="", out=False, opinfo=())
    return replace(plain, name=f"{name}_written", call=INTO + (call or name))


def _adaptive(draw: Draw) -> Call:
    lead = draw.choice(((1, 1), (1, 3), (3,), (2, 2)))
    sizes, size = (tuple(draw.choice((3, 1, 2, 5, 7)) for _ in range(2)) for _ in range(2))
    return Call((draw.tensor((*lead, *sizes)), size))


def _tensor(draw: Draw) -> Call:
    return Call((draw.between(draw.shape(0, 5), -16, 16),))


def _between(draw: Draw) -> Call:
    """Points, and the edges of each of their coordinates."""
    k = draw.choice((1, 2, 3))
    x = strictly(-5, 5)(draw, (draw.size(), k))
    weight = draw.maybe(draw.inside(x.shape[:1], 0.25, 2))
    edges: Arg = tuple(strictly(-5, 5)(draw, (draw.choice((2, 3, 5, 9)),)) for _ in range(k))
    return Call((x, edges), keywords(weight=weight, density=draw.option(True)))


def _square(draw: Draw) -> Call:
    return Call((draw.tensor((), grad=False), draw.choice((3, 1, 0, 5, 33))))


def _range(draw: Draw) -> Call:
    start, step = draw.choice((0, 1, 3)), draw.choice((1, 2, 3) if not draw.is_inexact else (1, 2, 0.5, 0.25))
    return Call((draw.tensor((), grad=False), start, start + step * draw.choice((1, 5, 17, 64)), step))


def _without_statistics(draw: Draw) -> Call:
    x, weight, bias, _, _, *rest = kernels.native_batch_norm(True)(draw).args
    return Call((x, weight, bias, *rest))


def _batch_norm_backward(draw: Draw) -> Call:
    shape = draw.shape(2, 5, empty=False)
    shape = (shape[0] + 1, *shape[1:])
    mean, var = draw.inside(shape[1:2], -2, 2, grad=False), draw.inside(shape[1:2], 0.5, 4, grad=False)
    return Call((draw.tensor(shape), draw.tensor(shape), draw.tensor(shape[1:2]), mean, var, draw.choice((1e-3, 1e-5))))


def _bags(draw: Draw) -> Call:
    """(cotangent, indices, table, offsets, mode, weights of the samples): sums, means and maxima of bags, empty ones too."""
    rows, width, n, bags = draw.size(), draw.choice((1, 2, 4, 8)), draw.choice((3, 1, 5, 8)), draw.choice((2, 1, 4))
    mode = draw.choice((0, 1, 2))
    weights = draw.maybe(draw.tensor((n,))) if mode == 0 else None
    table = draw.inside((rows, width), -9, 9)
    index, offsets = draw.index((n,), rows), draw.index((bags,), n)
    return Call((draw.tensor((bags, width)), index, table, offsets, mode, weights))


def _four_bits(draw: Draw) -> Call:
    """A product with a matrix of 4-bit numbers; scales and zeros are whole, so that the weights are exact in half types."""
    n, k, m, group = draw.choice((1, 2, 3, 8, 17)), draw.choice((128, 256)), draw.choice((32, 64)), draw.choice((32, 64, 128))
    weight = draw.inside((m, k), 0, 15, dtype="int32", grad=False)
    scales, zeros = whole(1, 3)(draw, (k // group, m)), whole(-8, 8)(draw, (k // group, m))
    return Call((draw.inside((n, k), -2, 2), weight, scales, zeros, group))


def _part(draw: Draw) -> Call:
    """A part of the memory of a vector: start, size and strides that lie inside."""
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 4))
    stride = draw.choice(((b, 1), (1, a), (2 * b, 2), (0, 1)))
    start = draw.choice((0, 1, 3))
    reach = start + (a - 1) * stride[0] + (b - 1) * stride[1] + 1
    return Call((draw.tensor((reach + draw.choice((0, 1, 5)),)), start, (a, b), stride))


def _smaller(draw: Draw) -> Call:
    shape = draw.shape(1, 4)
    size = tuple(reversed(shape)) if draw.flag() else tuple(max(0, s - draw.choice((1, 0, 2))) for s in shape)
    return Call((draw.tensor(shape), size))


def _alias(draw: Draw) -> Call:
    """A dense tensor seen in another shape."""
    a, b, c = (draw.choice((2, 1, 3, 5)) for _ in range(3))
    size, stride = draw.choice((((a * b, c), (c, 1)), ((a, b * c), (b * c, 1)), ((a * b * c,), (1,))))
    return Call((draw.tensor((a, b, c)), size, stride))


def _copied(draw: Draw) -> Call:
    return Call((draw.tensor(draw.shape(0, 5)), draw.flag()))


_norm = partial(_row, rule=OpClass.COMPOSITE, dtypes=("float32",), signature=kernels.native_batch_norm(True), updates=True)

ROWS = (
    *(_written(f"avg_pool{n}_kernel", f"avg_pool{n}") for n in ("2d", "3d")),
    *(_written(f"avg_pool{n}_backward") for n in ("2d", "3d")),
    *(_written(f"max_unpool{n}") for n in ("2d", "3d")),
    _row(
        name="adaptive_avg_pool2d_written",
        rule=OpClass.CONTRACTION,
        call=INTO + "adaptive_avg_pool2d",
        signature=_adaptive,
        accumulates=("forward",),
    ),
    _row(name="adaptive_max_pool2d_written", call=INTO + "adaptive_max_pool2d", signature=_adaptive),
    _written("histogram"),
    _written("histogram_edges"),
    _row(
        name="histogramdd_edges",
        rule=OpClass.COMPOSITE,
        call=INTO + "histogram_between",
        signature=_between,
        dtypes=("float32",),
        oracle="exact",
    ),
    _written("nonzero_static"),
    _written("triangular_solve"),
    _written("cholesky_inverse"),
    _written("lu"),
    _written("lu_parts"),
    _row(
        name="log_sigmoid_forward_written",
        rule=OpClass.COMPOSITE,
        call=INTO + "log_sigmoid_forward",
        signature=_tensor,
        rounds_between=True,
    ),
    _row(name="eye_written", call=INTO + "eye", signature=_square, dtypes=EVERY),
    _row(
        name="range_written",
        rule=OpClass.ELEMENTWISE,
        call=INTO + "closed_range",
        signature=_range,
        dtypes=("float32", "int64", "int32"),
    ),
    # batch norm below its public function
    _written("native_batch_norm"),
    _norm(name="native_batch_norm_legit", call=INTO + "batch_norm_legit"),
    # The CPU gives other statistics into destinations where the operand is transposed, in every dtype (torch 2.13).
    _norm(name="native_batch_norm_legit_written", call=INTO + "batch_norm_legit_written", oracle=INTO + "batch_norm_legit"),
    _norm(name="batch_norm_without_statistics", call=INTO + "batch_norm_without", signature=_without_statistics),
    _norm(
        name="batch_norm_without_statistics_written",
        call=INTO + "batch_norm_without_written",
        signature=_without_statistics,
        oracle=INTO + "batch_norm_without",
    ),
    _norm(name="batch_norm_backward", call=INTO + "batch_norm_backward", signature=_batch_norm_backward),
    _row(
        name="embedding_bag_dense_backward",
        rule=OpClass.CONTRACTION,
        call=INTO + "embedding_bag_dense_backward",
        signature=_bags,
        dtypes=("float32",),
        accumulates=("forward",),
    ),
    _row(
        name="weight_int4pack_mm",
        rule=OpClass.CONTRACTION,
        call=INTO + "weight_int4pack_mm",
        signature=_four_bits,
        dtypes=("bfloat16",),
    ),
    # memory that tensors share
    _row(name="set_tensor", call=INTO + "set_tensor", signature=unary(), dtypes=EVERY),
    _row(name="set_storage", call=INTO + "set_storage", signature=unary(), dtypes=EVERY),
    _row(name="set_part", call=INTO + "set_part", signature=_part, dtypes=EVERY),
    _row(name="set_nothing", call=INTO + "set_nothing", signature=unary(), dtypes=EVERY),
    _row(name="is_set_to", call=INTO + "is_set_to", signature=unary(), dtypes=EVERY),
    _row(name="resize_", call=INTO + "resize", signature=_smaller, dtypes=EVERY),
    _row(name="reshape_alias", call=INTO + "reshape_alias", signature=_alias, dtypes=EVERY, grad=FLOATS),
    _row(name="copy_from", call=INTO + "copy_from", signature=_copied, dtypes=EVERY),
)
