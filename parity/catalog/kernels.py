"""Operators below the public functions: resampling, pooling, padding and their gradients, fused kernels, with destinations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from parity.catalog.draw import Call, Draw, Shape
from parity.catalog.gradients import ATEN, CALLS, gradient
from parity.catalog.row import Row, Signature
from parity.catalog.signatures import along, lengthy, within
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass, TensorSpec

_row = partial(Row, family="kernels", rule=OpClass.COMPOSITE, dtypes=FLOATS)


def _pad(spatial: int, most: Callable[[int], int]) -> Signature:
    """(cotangent, operand, padding); amounts may be 0, and may cut."""

    def signature(draw: Draw) -> Call:
        sizes = tuple(draw.choice((3, 2, 1, 4, 7)) for _ in range(spatial))
        lead = (draw.choice((2, 1, 3)),) if draw.flag() else (draw.choice((1, 2)), draw.choice((2, 1, 3)))
        padding = tuple(draw.choice(tuple(p for p in (1, 0, 2, 3) if p <= most(s))) for s in reversed(sizes) for _ in (0, 1))
        padded = tuple(s + padding[2 * k] + padding[2 * k + 1] for k, s in zip(reversed(range(spatial)), sizes))
        return Call((draw.tensor((*lead, *padded)), draw.tensor((*lead, *sizes), grad=False), padding))

    return signature


def _padded(spatial: int, most: Callable[[int], int]) -> Signature:
    """(operand, padding), with a destination."""

    def signature(draw: Draw) -> Call:
        _, x, padding = _pad(spatial, most)(draw).args
        return Call((replace(x, grad=True), padding)) if isinstance(x, TensorSpec) else Call(())

    return signature


def _softmax_kernel(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    d = draw.dim(shape)
    shape = lengthy(draw, shape, d)
    return Call((draw.tensor(shape) if draw.flag() else draw.between(shape, -100, 50), d, False))


def _dirichlet(draw: Draw) -> Call:
    shape = draw.shape(1, 4, empty=False)
    return Call((draw.inside(shape, 0.0625, 0.9375), draw.inside(shape, 0.5, 8), draw.inside(shape, 8, 16)))


def _gamma(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    return Call((draw.inside(shape, 0.5, 8), draw.inside(shape, 0.25, 8)))


def _places(spatial: int) -> Signature:
    def signature(draw: Draw) -> Call:
        kernel, stride, padding, sizes, ceil = _windows(draw, spatial)
        return Call((draw.tensor((*_channels(draw), *sizes)), kernel, stride, padding, (1,) * spatial, ceil))

    return signature


def _resampled(spatial: int, corners: bool, backward: bool, least: int = 1) -> Signature:
    """To a size (and back), with the scales left out or given as `interpolate` gives them."""

    def signature(draw: Draw) -> Call:
        sizes = tuple(max(least, draw.choice((2, 1, 3, 4, 5, 7, 16))) for _ in range(spatial))
        target = tuple(max(least, draw.choice((3, 1, 2, 4, 6, 11))) for _ in range(spatial))
        lead = draw.choice((1, 2)), draw.choice((1, 2, 3, 5))
        scales = tuple(t / s for t, s in zip(target, sizes)) if draw.pick(4) == 3 else ()
        aligned: tuple[Arg, ...] = (draw.flag(),) if corners else ()
        if backward:
            return Call((draw.tensor((*lead, *target)), target, (*lead, *sizes), *aligned, *scales))
        return Call((draw.tensor((*lead, *sizes)), target, *aligned, *scales))

    return signature


def pooled(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil: bool = False) -> int:
    """How many windows lie along a dimension (torch's pooling formula: in ceil mode none may start in the right padding)."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (math.ceil(span / stride) if ceil else span // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def _windows(draw: Draw, spatial: int) -> tuple[Shape, Shape, Shape, Shape, bool]:
    """Kernel, stride, padding, input sizes and ceil mode of a pooling whose input holds one window at least."""
    kernel = tuple(draw.choice((2, 1, 3)) for _ in range(spatial))
    stride = tuple(draw.choice((1, 2, 3)) for _ in range(spatial))
    padding = tuple(draw.choice((0, 1)) if k > 1 else 0 for k in kernel)
    sizes = tuple(k + draw.choice((0, 1, 2, 5)) for k in kernel)
    return kernel, stride, padding, sizes, draw.flag()


def _channels(draw: Draw) -> Shape:
    return draw.choice(((1, 1), (1, 3), (3,), (2, 2)))


def _average_pool(spatial: int, backward: bool) -> Signature:
    def signature(draw: Draw) -> Call:
        kernel, stride, padding, sizes, ceil = _windows(draw, spatial)
        lead = _channels(draw)
        divisor = draw.option(1, 3, -2)
        x = draw.tensor((*lead, *sizes), grad=not backward)
        rest = kernel, stride, padding, ceil, not draw.flag(), divisor
        out = tuple(pooled(s, k, t, p, ceil=ceil) for s, k, t, p in zip(sizes, kernel, stride, padding))
        return Call((draw.tensor((*lead, *out)), x, *rest) if backward else (x, *rest))

    return signature


def _max_pool(spatial: int) -> Signature:
    """(cotangent, operand, ...): the glue asks the forward for the places."""

    def signature(draw: Draw) -> Call:
        kernel, stride, padding, sizes, ceil = _windows(draw, spatial)
        lead = _channels(draw)
        out = tuple(pooled(s, k, t, p, ceil=ceil) for s, k, t, p in zip(sizes, kernel, stride, padding))
        x = draw.inside((*lead, *sizes), -9, 9, grad=False)
        return Call((draw.tensor((*lead, *out)), x, kernel, stride, padding, ceil))

    return signature


def _adaptive_max(draw: Draw) -> Call:
    lead = _channels(draw)
    sizes = tuple(draw.choice((3, 1, 2, 5, 7)) for _ in range(2))
    out = tuple(draw.choice((2, 1, 3, 5)) for _ in range(2))
    return Call((draw.tensor((*lead, *out)), draw.inside((*lead, *sizes), -9, 9, grad=False), out))


def _patches(fold: bool) -> Signature:
    """im2col and col2im with an amount for each direction."""

    def signature(draw: Draw) -> Call:
        pairs = [tuple(draw.choice(v) for _ in (0, 1)) for v in ((1, 2, 3), (1, 2), (0, 1), (1, 2, 3))]
        kernel, dilation, padding, stride = pairs
        image = tuple((k - 1) * d + 1 + draw.choice((0, 1, 2, 4)) for k, d in zip(kernel, dilation))
        lead = draw.choice(((1,), (2,), ()))
        channels = draw.choice((1, 2, 3))
        if not fold:
            return Call((draw.tensor((*lead, channels, *image)), kernel, dilation, padding, stride))
        blocks = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, d, p, s in zip(image, kernel, dilation, padding, stride)]
        x = draw.tensor((*lead, channels * kernel[0] * kernel[1], blocks[0] * blocks[1]))
        return Call((x, image, kernel, dilation, padding, stride))

    return signature


def _weight_norm(draw: Draw) -> Call:
    """Over all but the first or the last dimension."""
    shape = draw.shape(1, 4, empty=False)
    dim = draw.choice((0, len(shape) - 1))
    lengths = tuple(s if k == dim else 1 for k, s in enumerate(shape))
    return Call((draw.between(shape, 0.25, 4), draw.tensor(lengths), dim))


def _dropped(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    return Call((draw.tensor(shape), draw.mask(shape), draw.choice((2.0, 1.0, 1.25, 4.0))))


def _statistics(draw: Draw, channels: int) -> tuple[TensorSpec, TensorSpec]:
    return draw.inside((channels,), -2, 2, grad=False), draw.inside((channels,), 0.5, 4, grad=False)


def native_batch_norm(update: bool) -> Signature:
    """Affine or not; training with statistics or without, or evaluation with them; sums of more than one value."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(2, 5, empty=False)
        shape = (shape[0] + 1, *shape[1:])
        weight, bias = (draw.tensor(shape[1:2]), draw.tensor(shape[1:2])) if draw.flag() else (None, None)
        mean, var = _statistics(draw, shape[1])
        rest = draw.choice((0.125, 0.5, 0.0)), draw.choice((1e-5, 1e-3))
        x = draw.tensor(shape)
        if update:
            return Call((x, weight, bias, mean, var, *rest))
        training = not draw.flag()
        known = not training or draw.flag()
        return Call((x, weight, bias, mean if known else None, var if known else None, training, *rest))

    return signature


def _rms(draw: Draw) -> Call:
    shape = draw.shape(1, 5, empty=False)
    tail = shape[len(shape) - 1 - draw.pick(len(shape)) :]
    return Call((draw.tensor(shape), tail, draw.maybe(draw.tensor(tail)), draw.choice((1e-5, 1e-3))))


def _scaled_weight(draw: Draw) -> Call:
    """A product with an int8 matrix of weights and a scale for each of its rows."""
    n, k, m = draw.choice((1, 2, 3, 8, 17)), draw.choice((32, 64, 128)), draw.choice((32, 64))
    weight = draw.inside((m, k), -128, 127, dtype="int8", grad=False)
    return Call((draw.inside((n, k), -2, 2), weight, draw.inside((m,), 0.0078125, 0.0625)))


_ONE, _TWO, _THREE = (1, "1d"), (2, "2d"), (3, "3d")
RESAMPLED = tuple(
    row
    for name, spatial, corners, least in (
        ("upsample_nearest1d", 1, False, 1), ("upsample_nearest2d", 2, False, 1), ("upsample_nearest3d", 3, False, 1),
        ("_upsample_nearest_exact1d", 1, False, 1), ("_upsample_nearest_exact2d", 2, False, 1),
        ("_upsample_nearest_exact3d", 3, False, 1), ("upsample_linear1d", 1, True, 1), ("upsample_bilinear2d", 2, True, 1),
        ("upsample_bicubic2d", 2, True, 1), ("upsample_trilinear3d", 3, True, 1),
        ("_upsample_bilinear2d_aa", 2, True, 1), ("_upsample_bicubic2d_aa", 2, True, 1),
    )
    for row in (
        _row(
            name=name,
            rule=OpClass.COMPOSITE if corners else OpClass.EXACT,
            call=ATEN + name,
            signature=_resampled(spatial, corners, False, least),
            dtypes=("float32",) if name.endswith("_aa") else FLOATS,
            grad=("float32",) if name.endswith("_aa") else FLOATS,
            out=True,
            accumulates=("backward",),
        ),
        _row(
            name=f"{name}_backward",
            call=f"{ATEN}{name}_backward",
            signature=_resampled(spatial, corners, True, least),
            dtypes=("float32",) if name.endswith("_aa") else FLOATS,
            out=not name.endswith("_aa"),
            accumulates=("forward",),  # added up by atomics
        ),
    )
)  # fmt: skip

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
        _row(
            name=f"avg_pool{n}_{word}",
            rule=OpClass.CONTRACTION,
            call=f"{ATEN}avg_pool{n}{'_backward' if backward else ''}",
            signature=_average_pool(spatial, backward),
            # No out=: torch 2.13 on the CPU writes a strided destination of avg_pool in the wrong places.
            dtypes=FLOATS if spatial == 2 else ("float32",),
            accumulates=("forward", "backward"),
        )
        for spatial, n in (_TWO, _THREE)
        for word, backward in (("kernel", False), ("backward", True))
    ),
    *(
        _row(
            name=f"max_pool{n}_with_indices_backward",
            rule=OpClass.CONTRACTION,
            call=f"{CALLS}max_pool{n}_backward",
            signature=_max_pool(spatial),
            dtypes=("float32",),
            out=True,
            accumulates=("forward",),
        )
        for spatial, n in (_TWO, _THREE)
    ),
    _row(
        name="adaptive_max_pool2d_backward",
        rule=OpClass.CONTRACTION,
        call=f"{CALLS}adaptive_max_pool2d_backward",
        signature=_adaptive_max,
        dtypes=("float32",),
        out=True,
        accumulates=("forward",),
    ),
    *(
        _row(
            name=f"{kind}_pad{n}",
            rule=OpClass.EXACT,
            call=f"{ATEN}{kind}_pad{n}",
            signature=_padded(spatial, (lambda s: s - 1) if kind == "reflection" else (lambda s: 3)),
            grad=FLOATS,
            out=True,
            accumulates=("backward",),
        )
        for kind in ("reflection", "replication")
        for spatial, n in (_ONE, _TWO, _THREE)
    ),
    *(
        _row(
            name=f"{name}_kernel",
            call=f"{ATEN}_{name}",
            signature=_softmax_kernel,
            out=True,
        )
        for name in ("softmax", "log_softmax")
    ),
    _row(name="logcumsumexp_kernel", call=f"{ATEN}_logcumsumexp", signature=along(within(-20, 20)), out=True),
    _row(
        name="dirichlet_grad",
        call="torch._dirichlet_grad",
        signature=_dirichlet,
        dtypes=("float32",),
    ),
    _row(
        name="standard_gamma_grad",
        call="torch._standard_gamma_grad",
        signature=_gamma,
        dtypes=("float32",),
    ),
    _row(
        name="max_pool2d_with_indices",
        rule=OpClass.SELECTION,
        relation="max_pool_indices",
        call=f"{ATEN}max_pool2d_with_indices",
        signature=_places(2),
        out=True,
    ),
    _row(
        name="max_pool3d_with_indices",
        rule=OpClass.SELECTION,
        relation="max_pool_indices",
        call=f"{ATEN}max_pool3d_with_indices",
        signature=_places(3),
        out=True,
    ),
    _row(name="im2col", rule=OpClass.EXACT, call=f"{ATEN}im2col", signature=_patches(False), grad=FLOATS, out=True),
    _row(name="col2im", rule=OpClass.CONTRACTION, call=f"{ATEN}col2im", signature=_patches(True), grad=FLOATS, out=True),
    _row(
        name="weight_norm",
        call="torch._weight_norm",  # the kernel itself reads beside operands that are not dense
        signature=_weight_norm,
        grad=FLOATS,
        rounds_between=True,  # norm, quotient and product
    ),
    _row(
        name="native_dropout_backward",
        rule=OpClass.ELEMENTWISE,
        call=f"{ATEN}native_dropout_backward",
        signature=_dropped,
    ),
    _row(
        name="native_batch_norm",
        call=f"{CALLS}native_batch_norm",
        signature=native_batch_norm(False),
        updates=True,
        dtypes=("float32",),
        grad=("float32",),
    ),
    _row(
        name="batch_norm_with_update",
        call=f"{CALLS}batch_norm_with_update",
        signature=native_batch_norm(True),
        updates=True,
        dtypes=("float32",),
    ),
    _row(name="fused_rms_norm", call=f"{CALLS}fused_rms_norm", signature=_rms, grad=FLOATS, rounds_between=True),
    _row(
        name="weight_int8pack_mm",
        rule=OpClass.CONTRACTION,
        call=f"{CALLS}weight_int8pack_mm",
        signature=_scaled_weight,
        dtypes=("bfloat16",),
    ),
)
