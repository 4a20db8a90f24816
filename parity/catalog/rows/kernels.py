"""Operators without a public function: resampling, pooling, padding and their gradients, fused kernels, with destinations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape
from parity.catalog.row import (
    COMPOSITE,
    CONTRACTION,
    ELEMENTWISE,
    EXACT,
    OUT,
    ROUNDED,
    SELECTION,
    UNCHECKED,
    Counts,
    Draws,
    Forms,
    Judged,
    Quirk,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.rows.gradients import ATEN, CALLS, gradient
from parity.catalog.signatures import along, lengthy, within
from parity.core.case import Arg, TensorSpec
from parity.core.dtypes import FLOATS

_row = partial(Row, family="kernels", rule=COMPOSITE, dtypes=FLOATS, refuses=UNCHECKED)


def _pad(spatial: int, most: Callable[[int], int]) -> Signature:
    """(cotangent, operand, padding); amounts may be 0 or negative."""

    def signature(draw: Draw) -> Arguments:
        sizes = tuple(draw.extent((3, 2, 1, 4, 7)) for _ in range(spatial))
        lead = (draw.extent((2, 1, 3)),) if draw.flag() else (draw.batch(), draw.extent((2, 1, 3)))
        padding = tuple(draw.choice(tuple(p for p in (1, 0, 2, 3) if p <= most(s))) for s in reversed(sizes) for _ in (0, 1))
        padded = tuple(s + padding[2 * k] + padding[2 * k + 1] for k, s in zip(reversed(range(spatial)), sizes))
        return Arguments((draw.tensor((*lead, *padded)), draw.tensor((*lead, *sizes), grad=False), padding))

    return signature


def _padded(spatial: int, most: Callable[[int], int]) -> Signature:
    """(operand, padding), with a destination."""

    def signature(draw: Draw) -> Arguments:
        _, x, padding = _pad(spatial, most)(draw).args
        return Arguments((replace(x, grad=True), padding)) if isinstance(x, TensorSpec) else Arguments(())

    return signature


def _softmax_kernel(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    d = draw.dim(shape)
    shape = lengthy(draw, shape, d)
    return Arguments((draw.tensor(shape) if draw.flag() else draw.between(shape, -100, 50), d, False))


def _dirichlet(draw: Draw) -> Arguments:
    shape = draw.shape(1, 5, empty=False)
    return Arguments((draw.inside(shape, 0.0625, 0.9375), draw.inside(shape, 0.5, 8), draw.inside(shape, 8, 16)))


def _gamma(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.inside(shape, 0.5, 8), draw.inside(shape, 0.25, 8)))


def _places(spatial: int) -> Signature:
    def signature(draw: Draw) -> Arguments:
        kernel, stride, padding, sizes, ceil = _windows(draw, spatial)
        return Arguments((draw.tensor((*_channels(draw), *sizes)), kernel, stride, padding, (1,) * spatial, ceil))

    return signature


def _resampled(spatial: int, corners: bool, backward: bool, least: int = 1) -> Signature:
    """To a size (and back), with the scales left out or given as `interpolate` gives them."""

    def signature(draw: Draw) -> Arguments:
        sizes = tuple(max(least, draw.extent((2, 1, 3, 4, 5, 7, 16))) for _ in range(spatial))
        target = tuple(max(least, draw.extent((3, 1, 2, 4, 6, 11))) for _ in range(spatial))
        lead = draw.batch(), draw.extent((1, 2, 3, 5))
        scales = tuple(t / s for t, s in zip(target, sizes)) if draw.pick(4) == 3 else ()
        aligned: tuple[Arg, ...] = (draw.flag(),) if corners else ()
        if backward:
            return Arguments((draw.tensor((*lead, *target)), target, (*lead, *sizes), *aligned, *scales))
        return Arguments((draw.tensor((*lead, *sizes)), target, *aligned, *scales))

    return signature


def pooled(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil: bool = False) -> int:
    """Number of windows along a dimension (torch's pooling formula: in ceil mode none may start in the right padding)."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (math.ceil(span / stride) if ceil else span // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def _windows(draw: Draw, spatial: int) -> tuple[Shape, Shape, Shape, Shape, bool]:
    """Kernel, stride, padding, input sizes and ceil mode of a pooling whose input holds one window at least."""
    kernel = tuple(draw.choice((2, 1, 3)) for _ in range(spatial))
    stride = tuple(draw.choice((1, 2, 3)) for _ in range(spatial))
    padding = tuple(draw.choice((0, 1)) if k > 1 else 0 for k in kernel)
    sizes = tuple(k + draw.extent((0, 1, 2, 5)) for k in kernel)
    return kernel, stride, padding, sizes, draw.flag()


def _channels(draw: Draw) -> Shape:
    return draw.lead(((1, 1), (1, 3), (3,), (2, 2)))


def _average_pool(spatial: int, backward: bool) -> Signature:
    def signature(draw: Draw) -> Arguments:
        kernel, stride, padding, sizes, ceil = _windows(draw, spatial)
        lead = _channels(draw)
        divisor = draw.option(1, 3, -2)
        x = draw.tensor((*lead, *sizes), grad=not backward)
        rest = kernel, stride, padding, ceil, not draw.flag(), divisor
        out = tuple(pooled(s, k, t, p, ceil=ceil) for s, k, t, p in zip(sizes, kernel, stride, padding))
        return Arguments((draw.tensor((*lead, *out)), x, *rest) if backward else (x, *rest))

    return signature


def _max_pool(spatial: int) -> Signature:
    """(cotangent, operand, ...): the glue gets the indices from the forward."""

    def signature(draw: Draw) -> Arguments:
        kernel, stride, padding, sizes, ceil = _windows(draw, spatial)
        lead = _channels(draw)
        out = tuple(pooled(s, k, t, p, ceil=ceil) for s, k, t, p in zip(sizes, kernel, stride, padding))
        x = draw.inside((*lead, *sizes), -9, 9, grad=False)
        return Arguments((draw.tensor((*lead, *out)), x, kernel, stride, padding, ceil))

    return signature


def _adaptive_max(draw: Draw) -> Arguments:
    lead = _channels(draw)
    sizes = tuple(draw.extent((3, 1, 2, 5, 7)) for _ in range(2))
    out = tuple(draw.choice((2, 1, 3, 5)) for _ in range(2))
    return Arguments((draw.tensor((*lead, *out)), draw.inside((*lead, *sizes), -9, 9, grad=False), out))


def _patches(fold: bool) -> Signature:
    """im2col and col2im with an amount for each direction."""

    def signature(draw: Draw) -> Arguments:
        pairs = [tuple(draw.choice(v) for _ in (0, 1)) for v in ((1, 2, 3), (1, 2), (0, 1), (1, 2, 3))]
        kernel, dilation, padding, stride = pairs
        image = tuple((k - 1) * d + 1 + draw.extent((0, 1, 2, 4)) for k, d in zip(kernel, dilation))
        lead = draw.choice(((1,), (2,), ()))
        channels = draw.extent((1, 2, 3))
        if not fold:
            return Arguments((draw.tensor((*lead, channels, *image)), kernel, dilation, padding, stride))
        blocks = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, d, p, s in zip(image, kernel, dilation, padding, stride)]
        x = draw.tensor((*lead, channels * kernel[0] * kernel[1], blocks[0] * blocks[1]))
        return Arguments((x, image, kernel, dilation, padding, stride))

    return signature


def _weight_norm(draw: Draw) -> Arguments:
    """Over all but the first or the last dimension."""
    shape = draw.shape(1, 5, empty=False)
    dim = draw.choice((0, len(shape) - 1))
    lengths = tuple(s if k == dim else 1 for k, s in enumerate(shape))
    return Arguments((draw.between(shape, 0.25, 4), draw.tensor(lengths), dim))


def _dropped(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    return Arguments((draw.tensor(shape), draw.mask(shape), draw.choice((2.0, 1.0, 1.25, 4.0))))


def _statistics(draw: Draw, channels: int) -> tuple[TensorSpec, TensorSpec]:
    return draw.inside((channels,), -2, 2, grad=False), draw.inside((channels,), 0.5, 4, grad=False)


def native_batch_norm(update: bool) -> Signature:
    """Affine or not; training with statistics or without, or evaluation with them; sums of more than one value."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(2, 5, empty=False)
        shape = (shape[0] + 1, *shape[1:])
        weight, bias = (draw.tensor(shape[1:2]), draw.tensor(shape[1:2])) if draw.flag() else (None, None)
        mean, var = _statistics(draw, shape[1])
        rest = draw.choice((0.125, 0.5, 0.0)), draw.choice((1e-5, 1e-3))
        x = draw.tensor(shape)
        if update:
            return Arguments((x, weight, bias, mean, var, *rest))
        training = not draw.flag()
        known = not training or draw.flag()
        return Arguments((x, weight, bias, mean if known else None, var if known else None, training, *rest))

    return signature


def _rms(draw: Draw) -> Arguments:
    shape = draw.shape(1, 5, empty=False)
    tail = shape[len(shape) - 1 - draw.pick(len(shape)) :]
    return Arguments((draw.tensor(shape), tail, draw.maybe(draw.tensor(tail)), draw.choice((1e-5, 1e-3))))


def _scaled_weight(draw: Draw) -> Arguments:
    """A product with an int8 matrix of weights and a scale for each of its rows."""
    n, k, m = draw.choice((1, 2, 3, 8, 17)), draw.choice((32, 64, 128)), draw.choice((32, 64))
    weight = draw.inside((m, k), -128, 127, dtype="int8", grad=False)
    return Arguments((draw.inside((n, k), -2, 2), weight, draw.inside((m,), 0.0078125, 0.0625)))


_ONE, _TWO, _THREE = (1, "1d"), (2, "2d"), (3, "3d")
_ENTRY = "nn.functional.interpolate:"
RESAMPLED = tuple(
    row
    for name, spatial, corners, entry in (
        *((f"upsample_nearest{n}d", n, False, "nn.functional.upsample_nearest") for n in (1, 2, 3)),
        *((f"_upsample_nearest_exact{n}d", n, False, _ENTRY + "nearest-exact") for n in (1, 2, 3)),
        ("upsample_linear1d", 1, True, _ENTRY + "linear"),
        ("upsample_bilinear2d", 2, True, _ENTRY + "bilinear"),
        ("upsample_bicubic2d", 2, True, _ENTRY + "bicubic"),
        ("upsample_trilinear3d", 3, True, _ENTRY + "trilinear"),
        ("_upsample_bilinear2d_aa", 2, True, ""),
        ("_upsample_bicubic2d_aa", 2, True, ""),
    )
    for types in (("float32",) if name.endswith("_aa") else FLOATS,)
    for row in (
        _row(
            name,
            _resampled(spatial, corners, False, 1),
            rule=COMPOSITE if corners else EXACT,
            call=ATEN + "*",
            dtypes=types,
            grad=types,
            forms=OUT,
            judged=Judged(accumulates=("backward",)),
            counts=Counts(under=entry),
        ),
        # accumulates: summed by atomics
        _row(
            f"{name}_backward",
            _resampled(spatial, corners, True, 1),
            call=ATEN + "*",
            dtypes=types,
            forms=Forms(out=not name.endswith("_aa")),
            judged=Judged(accumulates=("forward",)),
        ),
    )
)

ROWS = (
    *RESAMPLED,
    *(
        gradient(
            f"{kind}_pad{n}",
            _pad(spatial, (lambda s: s - 1) if kind == "reflection" else (lambda s: 3)),
            grad=(),
            family="kernels",
        )
        for kind in ("reflection", "replication")
        for spatial, n in (_ONE, _TWO, _THREE)
    ),
    *(
        # No out=: torch 2.13 on the CPU writes to wrong elements of a strided destination of avg_pool.
        _row(
            f"avg_pool{n}_{word}",
            _average_pool(spatial, backward),
            rule=CONTRACTION,
            call=f"{ATEN}avg_pool{n}{'_backward' if backward else ''}",
            dtypes=FLOATS if spatial == 2 else ("float32",),
            judged=Judged(accumulates=("forward", "backward")),
        )
        for spatial, n in (_TWO, _THREE)
        for word, backward in (("kernel", False), ("backward", True))
    ),
    *(
        _row(
            f"max_pool{n}_with_indices_backward",
            _max_pool(spatial),
            rule=CONTRACTION,
            call=f"{CALLS}max_pool{n}_backward",
            dtypes=("float32",),
            forms=OUT,
            judged=Judged(accumulates=("forward",)),
        )
        for spatial, n in (_TWO, _THREE)
    ),
    _row(
        "adaptive_max_pool2d_backward",
        _adaptive_max,
        rule=CONTRACTION,
        call=CALLS + "*",
        dtypes=("float32",),
        forms=OUT,
        judged=Judged(accumulates=("forward",)),
    ),
    *(
        _row(
            f"{kind}_pad{n}",
            _padded(spatial, (lambda s: s - 1) if kind == "reflection" else (lambda s: 3)),
            rule=EXACT,
            call=ATEN + "*",
            grad=FLOATS,
            forms=OUT,
            judged=Judged(accumulates=("backward",)),
            counts=Counts(under=f"nn.functional.pad:{mode}"),
        )
        for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
        for spatial, n in (_ONE, _TWO, _THREE)
    ),
    *(_row(f"{name}_kernel", _softmax_kernel, call=f"{ATEN}_{name}", forms=OUT) for name in ("softmax", "log_softmax")),
    _row("logcumsumexp_kernel", along(within(-20, 20)), call=f"{ATEN}_logcumsumexp", forms=OUT),
    _row("dirichlet_grad", _dirichlet, call="torch._dirichlet_grad", dtypes=("float32",)),
    _row("standard_gamma_grad", _gamma, call="torch._standard_gamma_grad", dtypes=("float32",)),
    _row(
        "max_pool2d_with_indices",
        _places(2),
        rule=SELECTION,
        forms=OUT,
        call=ATEN + "*",
        draws=Draws(spatial=2),
        judged=Judged(relation="max_pool_indices"),
        counts=Counts(under="nn.functional.max_pool2d"),
    ),
    _row(
        "max_pool3d_with_indices",
        _places(3),
        rule=SELECTION,
        forms=OUT,
        call=ATEN + "*",
        draws=Draws(spatial=3),
        judged=Judged(relation="max_pool_indices"),
        counts=Counts(under="nn.functional.max_pool3d"),
    ),
    _row(
        "im2col",
        _patches(False),
        rule=EXACT,
        call=ATEN + "*",
        grad=FLOATS,
        forms=OUT,
        counts=Counts(under="nn.functional.unfold"),
    ),
    _row(
        "col2im",
        _patches(True),
        rule=CONTRACTION,
        call=ATEN + "*",
        grad=FLOATS,
        forms=OUT,
        refuses=Refuses(fits="filled", unchecked=True),
        counts=Counts(under="fold"),
    ),
    # call: the kernel reads outside operands that are not dense
    # rounds_between: norm, quotient and product
    _row("weight_norm", _weight_norm, call="torch._weight_norm", grad=FLOATS, judged=ROUNDED),
    _row("native_dropout_backward", _dropped, rule=ELEMENTWISE, call=ATEN + "*"),
    _row(
        "native_batch_norm",
        native_batch_norm(False),
        call=CALLS + "*",
        forms=Forms(updates=True),
        dtypes=("float32",),
        grad=("float32",),
        quirks=(Quirk.DENSE,),
    ),
    _row("batch_norm_with_update", native_batch_norm(True), call=CALLS + "*", forms=Forms(updates=True), dtypes=("float32",)),
    _row("fused_rms_norm", _rms, call=CALLS + "*", grad=FLOATS, judged=ROUNDED, counts=Counts(under="nn.functional.rms_norm")),
    _row("weight_int8pack_mm", _scaled_weight, rule=CONTRACTION, call=CALLS + "*", dtypes=("bfloat16",)),
)
