"""Normalisations and the softmax family."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import COMPOSITE, FLOATING, GLUE, METHOD, OUT, OWN, ROUNDED, Counts, Forms, Judged, Quirk, Refuses, Row
from parity.catalog.signatures import lengthy
from parity.core.case import Arg, TensorSpec, Word
from parity.core.dtypes import FLOATS, HALF

_row = partial(Row, family="normalization", rule=COMPOSITE, dtypes=FLOATS, grad=FLOATS, call="torch.nn.functional.*")


def _rows(draw: Draw, shape: Shape, grad: bool = True) -> TensorSpec:
    """Any values; in one case of six with a mean far above the deviation."""
    if draw.rare(6):
        return draw.inside(shape, *draw.choice(((1, 1.00390625), (100, 101), (-64.5, -64))), grad=grad)
    return draw.tensor(shape, grad=grad)


EPS = 1e-3, 1e-7, 2.0**-20


def _images(draw: Draw, low: int = 2, high: int = 5) -> Shape:
    """(batch, channels, ...) with more than one value per channel."""
    shape = draw.shape(low, high, empty=False)
    if draw.rare(40):  # more than a thread group reduces in one pass
        return (2, 1, *(draw.choice((1025, 4099)) if k == low else 1 for k in range(max(3, low) - 2)))
    return (shape[0] + 1, *shape[1:])


def _wide(draw: Draw) -> str:
    """The dtype of parameters and statistics: the item's, or for half types also float32, as in models."""
    return "float32" if draw.dtype in HALF and draw.rare(4) else draw.dtype


def _affine(draw: Draw, shape: Shape, dtype: str) -> tuple[TensorSpec | None, TensorSpec | None]:
    """weight and bias: neither, both, or one of them; in another dtype than the item's never only bias, which torch refuses."""
    kind = draw.pick(4 if dtype == draw.dtype else 3)
    weight = draw.tensor(shape, dtype=dtype) if kind in (1, 2) else None
    bias = draw.tensor(shape, dtype=dtype) if kind in (1, 3) else None
    return weight, bias


def _statistics(draw: Draw, channels: int, dtype: str) -> tuple[TensorSpec, TensorSpec]:
    low, high = (2.0**-16, 2.0**-8) if draw.rare(8) else (0.5, 4)  # a variance next to eps
    shape = (channels,)
    return draw.tensor(shape, dtype=dtype, grad=False), draw.inside(shape, low, high, dtype=dtype, grad=False)


def _batch_norm_train(draw: Draw) -> Arguments:
    shape, wide = _images(draw), _wide(draw)
    weight, bias = _affine(draw, shape[1:2], wide)
    mean, var = _statistics(draw, shape[1], wide) if draw.flag() else (None, None)
    momentum = draw.option(0.5, 1.0, 0.0) if mean else None
    return Arguments((_rows(draw, shape), mean, var, weight, bias), keywords(momentum=momentum, eps=draw.option(*EPS)))


def _batch_norm(draw: Draw) -> Arguments:
    shape, wide = _images(draw), _wide(draw)
    mean, var = _statistics(draw, shape[1], wide)
    weight, bias = _affine(draw, shape[1:2], wide)
    return Arguments((_rows(draw, shape), mean, var), keywords(weight=weight, bias=bias, eps=draw.option(*EPS)))


def _layer_norm(draw: Draw) -> Arguments:
    shape = draw.shape(1, 5)
    shape = lengthy(draw, shape, -1)
    tail = shape[len(shape) - 1 - draw.pick(len(shape)) :]
    weight, bias = _affine(draw, tail, _wide(draw))
    return Arguments((_rows(draw, shape, not draw.rare(6)), tail), keywords(weight=weight, bias=bias, eps=draw.option(*EPS)))


def _rms_norm(draw: Draw) -> Arguments:
    shape = draw.shape(1, 5)
    tail = shape[len(shape) - 1 - draw.pick(len(shape)) :]
    shape = lengthy(draw, shape, -1)
    tail = shape[len(shape) - len(tail) :]
    # Without eps torch uses the machine epsilon of the dtype, which differs in float64.
    return Arguments((draw.tensor(shape), tail), keywords(weight=draw.maybe(draw.tensor(tail)), eps=draw.choice((1e-5, *EPS))))


def _group_norm(draw: Draw) -> Arguments:
    shape = _images(draw)
    groups = draw.choice((1, 2, 3, 5))
    shape = (shape[0], groups * min(shape[1], 64), *(shape[2:] if draw.flag() and len(shape) > 2 else (*shape[2:], 2)))
    wide = _wide(draw)
    weight = draw.maybe(draw.tensor(shape[1:2], dtype=wide))
    bias = (
        draw.tensor(shape[1:2], dtype=wide) if weight and draw.flag() else None
    )  # torch has no backward for a bias without a weight
    return Arguments((_rows(draw, shape), groups), keywords(weight=weight, bias=bias, eps=draw.option(*EPS)))


def _instance_norm(draw: Draw) -> Arguments:
    shape = (*_images(draw, 2, 4), 2)
    weight, bias = _affine(draw, shape[1:2], _wide(draw))
    return Arguments((_rows(draw, shape),), keywords(weight=weight, bias=bias, eps=draw.option(*EPS)))


def _instance_norm_running(draw: Draw) -> Arguments:
    shape = (*_images(draw, 2, 4), 2)
    wide = _wide(draw)
    weight, bias = _affine(draw, shape[1:2], wide)
    named = keywords(weight=weight, bias=bias, momentum=draw.option(0.5, 1.0, 0.0), eps=draw.option(*EPS))
    return Arguments((_rows(draw, shape), *_statistics(draw, shape[1], wide)), named)


def _local_response(draw: Draw) -> Arguments:
    shape = draw.shape(3, 5)
    size = draw.choice((1, 2, 3, 5))
    return Arguments((draw.tensor(shape), size), keywords(alpha=draw.option(0.5), beta=draw.option(0.5), k=draw.option(2.0)))


def _normalize(draw: Draw) -> Arguments:
    shape = () if draw.rare(16) else draw.shape(1, 4, empty=False)
    p = draw.option(1.0, 3.0, float("inf"), 0.5)
    dim = None if len(shape) > 1 and not draw.flag() else draw.dim(shape)
    return Arguments((draw.tensor(shape),), keywords(p=p, dim=dim, eps=draw.option(*EPS)))


def _softmax(draw: Draw) -> Arguments:
    """Logits near zero, or spread over a hundred; sometimes another dtype of the result."""
    shape = draw.shape(0, 5)
    d = draw.dim(shape)
    shape = lengthy(draw, shape, d)
    x: Arg = draw.tensor(shape) if draw.flag() else draw.between(shape, *draw.choice(((-4, 4), (-100, 50), (-245, 74))))
    wide = draw.pick(8) == 7
    return Arguments((x,), keywords(dim=d, dtype=Word("float32") if wide else None))


def _renorm(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    return Arguments(
        (draw.tensor(shape), draw.choice((2.0, 1.0, 3.0, 0.5)), draw.dim(shape), draw.choice((1.0, 4.0, 0.5, 0.0)))
    )


ROWS = (
    # rounds_between: mean and rstd are rounded to the dtype for the backward
    _row(
        "batch_norm",
        _batch_norm,
        judged=ROUNDED,
        counts=Counts(("*", "nn.functional.batch_norm:without_cudnn")),
        quirks=(Quirk.DENSE,),
    ),
    _row("batch_norm_train", _batch_norm_train, judged=ROUNDED, call=GLUE, quirks=(Quirk.DENSE,)),
    _row("layer_norm", _layer_norm, refuses=Refuses(fits="always"), counts=Counts(("*", "native_layer_norm"))),
    _row("rms_norm", _rms_norm, refuses=Refuses(fits="never"), counts=OWN),
    # rounds_between: mean and rstd are stored in the dtype on CUDA
    _row("group_norm", _group_norm, judged=ROUNDED, counts=Counts(("*", "native_group_norm")), quirks=(Quirk.UNFROZEN,)),
    # rounds_between: as batch_norm
    _row("instance_norm", _instance_norm, judged=ROUNDED, counts=OWN),
    _row("instance_norm_running", _instance_norm_running, judged=ROUNDED, call=GLUE),
    # rounds_between: a padded average pool and a power, each rounded to the dtype
    _row("local_response_norm", _local_response, dtypes=("float32",), grad=("float32",), judged=ROUNDED, counts=OWN),
    # rounds_between: the norm is rounded to the dtype before the division
    _row("normalize", _normalize, dtypes=FLOATING, grad=FLOATING, judged=ROUNDED, counts=OWN),
    _row("softmax", _softmax, counts=Counts(("softmax", "softmax:with_dtype"))),
    _row("log_softmax", _softmax, counts=Counts(("log_softmax", "log_softmax:with_dtype"))),
    _row("softmin", _softmax, counts=Counts(("*", "nn.functional.softmin:with_dtype"))),
    # stages: the factor of a slice is rounded to the dtype, on every device (Normalization.cpp)
    _row(
        "renorm",
        _renorm,
        forms=Forms(inplace=METHOD, out=True),
        call="torch.*",
        dtypes=FLOATING,
        grad=FLOATING,
        judged=Judged(stages=("forward",)),
        counts=OWN,
    ),
    *(
        _row(
            f"{name}_dim",
            lambda draw: Arguments((*(call := _softmax(draw)).args, dict(call.kwargs)["dim"])),
            call=f"torch.{name}",
            forms=OUT,
        )
        for name in ("softmax", "log_softmax")
    ),
)
