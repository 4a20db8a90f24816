"""Kernels of gradients by themselves: activations, losses, softmax, each with a destination.

They take a cotangent and the forward's operands as plain tensors, each in a layout of its own; through autograd they come only
in the layouts that the forward left. Their own gradients are second ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import Row, Signature
from parity.dtypes import FLOATS
from parity.vocabulary import Arg, OpClass

_row = partial(Row, family="gradients", rule=OpClass.COMPOSITE, dtypes=FLOATS)
ATEN = "parity.catalog.aten."
CALLS = "parity.catalog.steps."
Maker = Callable[[Draw], Arg]


def _slope(*more: Maker, named: str = "", options: tuple[Arg, ...] = (), limit: float = 8) -> Signature:
    """(cotangent, operand, *more) of one shape."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(0, 5)
        operands: tuple[Arg, ...] = (draw.tensor(shape), draw.between(shape, -limit, limit))
        return Call((*operands, *(make(draw) for make in more)), keywords(**{named: draw.choice(options)}) if named else ())

    return signature


def _of(*values: Arg) -> Maker:
    return lambda draw: draw.choice(values)


def gradient(
    name: str,
    signature: Signature,
    *,
    grad: tuple[str, ...] = FLOATS,
    dtypes: tuple[str, ...] = FLOATS,
    family: str = "gradients",
) -> Row:
    return _row(
        family=family,
        name=f"{name}_backward",
        call=f"{ATEN}{name}_backward",
        signature=signature,
        dtypes=dtypes,
        grad=grad,
        out=name not in ("hardswish", "mish"),
        rounds_between=True,  # some compute in the half type
    )


def _elu(draw: Draw) -> Call:
    shape = draw.shape(0, 5)
    alpha, scale, inner = draw.choice((1.0, 0.5, 2.0)), draw.choice((1.0, 0.5)), draw.choice((1.0, 2.0))
    return Call((draw.tensor(shape), alpha, scale, inner, False, draw.between(shape, -8, 8)))


def _glu(draw: Draw) -> Call:
    shape = list(draw.shape(1, 5))
    d = draw.dim(tuple(shape))
    half = tuple(shape)
    shape[d] *= 2
    return Call((draw.tensor(half), draw.between(tuple(shape), -8, 8), d))


def _loss(*more: Maker, target: tuple[float, float] = (-8, 8), operand: tuple[float, float] = (-8, 8)) -> Signature:
    """(cotangent, operand, target, reduction, *more): the cotangent is a number where the loss was reduced."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(0, 4)
        reduction = draw.choice((0, 1, 2))
        cotangent = draw.tensor(() if reduction else shape)
        operands = cotangent, draw.inside(shape, *operand), draw.inside(shape, *target, grad=False)
        return Call((*operands, reduction, *(make(draw) for make in more)))

    return signature


def _binary_cross_entropy(draw: Draw) -> Call:
    shape = draw.shape(0, 4)
    reduction = draw.choice((0, 1, 2))
    weight = draw.maybe(draw.inside(shape, 0.25, 2, grad=False))
    cotangent = draw.tensor(() if reduction else shape)
    x, target = draw.inside(shape, 0.0625, 0.9375), draw.inside(shape, 0, 1, grad=False)
    return Call((cotangent, x, target, weight, reduction))


def _nll(spatial: bool, backward: bool) -> Signature:
    """Class indices, some of them ignored; torch's own sum of weights is part of the backward's operands."""

    def signature(draw: Draw) -> Call:
        batch, classes = draw.choice((1, 2, 3, 5)), draw.size(2)
        rest = (draw.choice((1, 2, 3)), draw.choice((1, 2, 5))) if spatial else ()
        reduction, ignored = draw.choice((1, 2, 0)), draw.choice((-100, 0, 1))
        weight = draw.maybe(draw.inside((classes,), 0.25, 2, grad=False))
        target = draw.index((batch, *rest), classes)
        x = draw.between((batch, classes, *rest), -8, 0, grad=not backward)
        if not backward:
            return Call((x, target, weight, reduction, ignored))
        total = draw.inside((), 1, 4, grad=False)
        cotangent = draw.tensor(() if reduction else (batch, *rest))
        return Call((cotangent, x, target, weight, reduction, ignored, total))

    return signature


def _softmax(log: bool) -> Signature:
    """(cotangent, result, dim): the result is made of logits by the glue."""

    def signature(draw: Draw) -> Call:
        shape = draw.shape(0, 5)
        return Call((draw.tensor(shape), draw.between(shape, -30, 8), draw.dim(shape), log))

    return signature


ELEMENTWISE = tuple(
    gradient(name, signature, grad=() if name in ("hardsigmoid", "logit", "mish", "silu") else FLOATS)  # as torch has them
    for name, signature in (
        ("gelu", _slope(named="approximate", options=("none", "tanh"))),
        ("elu", _elu),
        ("glu", _glu),
        ("hardshrink", _slope(_of(0.5, 0.0, 2.0))),
        ("softshrink", _slope(_of(0.5, 0.0, 2.0))),
        ("hardsigmoid", _slope()),
        ("hardswish", _slope()),
        ("hardtanh", _slope(_of(-1.0, -2.0), _of(1.0, 0.5))),
        ("leaky_relu", _slope(_of(0.125, 0.0, -0.5), _of(False))),
        ("logit", _slope(_of(None, 0.125), limit=1)),
        ("mish", _slope()),
        ("sigmoid", _slope(limit=1)),
        ("silu", _slope()),
        ("softplus", _slope(_of(1.0, 2.0, 0.5), _of(20.0, 4.0))),
        ("tanh", _slope(limit=1)),
        ("threshold", _slope(_of(0, 1, -1))),
        ("mse_loss", _loss()),
        ("huber_loss", _loss(_of(1.0, 0.5, 2.0))),
        ("smooth_l1_loss", _loss(_of(1.0, 0.5, 2.0, 0.0))),
        ("binary_cross_entropy", _binary_cross_entropy),
    )
)

ROWS = (
    *ELEMENTWISE,
    _row(name="log_sigmoid_backward", call=f"{CALLS}log_sigmoid_backward", signature=_slope(), out=True),
    _row(name="nll_loss_forward", call=f"{CALLS}nll_loss_forward", signature=_nll(False, False), out=True),
    _row(
        name="nll_loss2d_forward",
        accumulates=("forward",),  # CUDA adds up the sums of parts of the images by atomics (NLLLoss2d.cu)
        call=f"{CALLS}nll_loss2d_forward",
        signature=_nll(True, False),
        out=True,
    ),
    gradient("nll_loss", _nll(False, True), grad=()),
    _row(name="nll_loss2d_backward", call=f"{CALLS}nll_loss2d_backward", signature=_nll(True, True), out=True),
    _row(name="softmax_backward", call=f"{CALLS}softmax_backward", signature=_softmax(False), out=True),
    _row(name="log_softmax_backward", call=f"{CALLS}softmax_backward", signature=_softmax(True), out=True),
)
