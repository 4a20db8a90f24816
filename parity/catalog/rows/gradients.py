"""Direct calls of gradient kernels: activations, losses, softmax, each with a destination.

They take a cotangent and the operands of the forward as plain tensors with independent layouts; autograd only uses the layouts
that the forward produced. Their gradients are second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, OUT, UNCHECKED, Counts, Forms, Judged, Quirk, Row, Signature
from parity.core.case import Arg
from parity.core.dtypes import FLOATS

_row = partial(Row, family="gradients", rule=COMPOSITE, dtypes=FLOATS)
ATEN = "parity.catalog.glue.aten."
CALLS = "parity.catalog.glue.steps."
Maker = Callable[[Draw], Arg]


def _slope(*more: Maker, named: str = "", options: tuple[Arg, ...] = (), limit: float = 8) -> Signature:
    """(cotangent, operand, *more) of one shape."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 5)
        operands: tuple[Arg, ...] = (draw.tensor(shape), draw.between(shape, -limit, limit))
        return Arguments(
            (*operands, *(make(draw) for make in more)), keywords(**{named: draw.choice(options)}) if named else ()
        )

    return signature


def _of(*values: Arg) -> Maker:
    return lambda draw: draw.choice(values)


def gradient(
    name: str,
    signature: Signature,
    *,
    grad: tuple[str, ...] = FLOATS,
    dtypes: tuple[str, ...] = FLOATS,
    out: bool = True,
    accumulates: tuple[str, ...] = (),
    **more: Any,
) -> Row:
    """A gradient kernel. more: other fields of the row."""
    return _row(
        f"{name}_backward",
        signature,
        call=ATEN + "*",
        dtypes=dtypes,
        grad=grad,
        forms=Forms(out=out),
        # rounds_between: some compute in the half type
        judged=Judged(rounds_between=True, accumulates=accumulates),
        refuses=UNCHECKED,
        **more,
    )


def _elu(draw: Draw) -> Arguments:
    shape = draw.shape(0, 5)
    alpha, scale, inner = draw.choice((1.0, 0.5, 2.0)), draw.choice((1.0, 0.5)), draw.choice((1.0, 2.0))
    return Arguments((draw.tensor(shape), alpha, scale, inner, False, draw.between(shape, -8, 8)))


def _glu(draw: Draw) -> Arguments:
    shape = list(draw.shape(1, 5))
    d = draw.dim(tuple(shape))
    half = tuple(shape)
    shape[d] *= 2
    return Arguments((draw.tensor(half), draw.between(tuple(shape), -8, 8), d))


def _loss(*more: Maker, target: tuple[float, float] = (-8, 8), operand: tuple[float, float] = (-8, 8)) -> Signature:
    """(cotangent, operand, target, reduction, *more): the cotangent is 0-d if the loss was reduced."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 5)
        reduction = draw.choice((0, 1, 2))
        cotangent = draw.tensor(() if reduction else shape)
        operands = cotangent, draw.inside(shape, *operand), draw.inside(shape, *target, grad=False)
        return Arguments((*operands, reduction, *(make(draw) for make in more)))

    return signature


def _binary_cross_entropy(draw: Draw) -> Arguments:
    shape = draw.shape(0, 4)
    reduction = draw.choice((0, 1, 2))
    weight = draw.maybe(draw.inside(shape, 0.25, 2, grad=False))
    cotangent = draw.tensor(() if reduction else shape)
    x, target = draw.inside(shape, 0.0625, 0.9375), draw.inside(shape, 0, 1, grad=False)
    return Arguments((cotangent, x, target, weight, reduction))


def _nll(spatial: bool, backward: bool) -> Signature:
    """Class indices, some of them ignored; the sum of weights from the forward is an operand."""

    def signature(draw: Draw) -> Arguments:
        batch, classes = draw.choice((1, 2, 3, 5)), draw.size(2)
        rest = (draw.choice((1, 2, 3)), draw.choice((1, 2, 5))) if spatial else ()
        reduction, ignored = draw.choice((1, 2, 0)), draw.choice((-100, 0, 1))
        weight = draw.maybe(draw.inside((classes,), 0.25, 2, grad=False))
        target = draw.index((batch, *rest), classes)
        x = draw.between((batch, classes, *rest), -8, 0, grad=not backward)
        if not backward:
            return Arguments((x, target, weight, reduction, ignored))
        total = draw.inside((), 1, 4, grad=False)
        cotangent = draw.tensor(() if reduction else (batch, *rest))
        return Arguments((cotangent, x, target, weight, reduction, ignored, total))

    return signature


def _softmax(log: bool) -> Signature:
    """(cotangent, logits, dim); the glue computes the result of softmax from the logits."""

    def signature(draw: Draw) -> Arguments:
        shape = draw.shape(0, 5)
        return Arguments((draw.tensor(shape), draw.between(shape, -30, 8), draw.dim(shape), log))

    return signature


ELEMENTWISE = tuple(
    # as torch has them
    gradient(
        name,
        signature,
        grad=() if name in ("hardsigmoid", "logit", "mish", "silu") else FLOATS,
        out=name not in ("hardswish", "mish"),
    )
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
    _row("log_sigmoid_backward", _slope(), call=CALLS + "*", forms=OUT),
    _row("nll_loss_forward", _nll(False, False), call=CALLS + "*", forms=OUT, counts=Counts(under="nn.functional.nll_loss")),
    # accumulates: CUDA adds partial sums over the images by atomics (NLLLoss2d.cu)
    _row(
        "nll_loss2d_forward",
        _nll(True, False),
        forms=OUT,
        call=CALLS + "*",
        judged=Judged(accumulates=("forward",)),
        counts=Counts(under="nn.functional.nll_loss"),
    ),
    gradient("nll_loss", _nll(False, True), grad=(), quirks=(Quirk.READS_PAST,)),
    _row("nll_loss2d_backward", _nll(True, True), call=CALLS + "*", forms=OUT, quirks=(Quirk.READS_PAST,)),
    _row("softmax_backward", _softmax(False), call=CALLS + "*", forms=OUT, counts=Counts(under="_softmax_backward_data")),
    _row("log_softmax_backward", _softmax(True), call=f"{CALLS}softmax_backward", forms=OUT),
)
