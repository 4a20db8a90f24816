"""Activation functions."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, FLOATING, REAL, Row
from parity.catalog.signatures import Options, none, one_of, options, unary, within
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass

_row = partial(Row, family="activations", rule=OpClass.COMPOSITE, dtypes=FLOATS, grad=FLOATS)
NEAR = within(-8, 8)


def _activation(
    name: str,
    choices: Options = none,
    *,
    inplace: bool = False,
    rule: OpClass = OpClass.COMPOSITE,
    rounds_between: bool = False,
) -> Row:
    return _row(
        name=name,
        rule=rule,
        call=f"torch.nn.functional.{name}",
        signature=unary(NEAR, choices),
        inplace=f"torch.nn.functional.{name}_" if inplace else "",
        strides=True,
        rounds_between=rounds_between,
        opinfo=(f"nn.functional.{name}",),
    )


def _threshold(draw: Draw) -> Call:
    return Call((draw.between(draw.shape(0, 5), -8, 8), draw.choice((0, 1, -1)), draw.choice((0, 2, -3))))


def _hardtanh(draw: Draw) -> Call:
    limits = keywords(min_val=-2.0, max_val=0.5) if draw.flag() else ()
    return Call((draw.between(draw.shape(0, 5), -8, 8),), limits)


def _prelu(draw: Draw) -> Call:
    """One weight, or one per channel (dimension 1)."""
    shape = draw.shape(1, 5)
    channels = shape[1] if len(shape) > 1 and draw.flag() else 1
    return Call((draw.between(shape, -8, 8), draw.tensor((channels,))))


def _glu(draw: Draw) -> Call:
    """An even size along the halved dimension."""
    shape = list(draw.shape(1, 5))
    d = draw.dim(tuple(shape)) if draw.flag() else -1
    shape[d] *= 2
    return Call((draw.between(tuple(shape), -8, 8),), keywords(dim=None if d == -1 else d))


ROWS = (
    _row(
        name="relu",
        rule=OpClass.EXACT,
        call="torch.nn.functional.relu",
        signature=unary(),
        dtypes=REAL,
        inplace="torch.nn.functional.relu_",
        strides=True,
        opinfo=("nn.functional.relu",),
    ),
    _row(
        name="relu6",
        rule=OpClass.EXACT,
        call="torch.nn.functional.relu6",
        signature=unary(NEAR),
        dtypes=REAL,
        strides=True,
        opinfo=("nn.functional.relu6",),
    ),
    _row(
        name="hardtanh",
        rule=OpClass.EXACT,
        call="torch.nn.functional.hardtanh",
        signature=_hardtanh,
        dtypes=(*FLOATS, "int8", "int16", "int32", "int64"),
        inplace="torch.nn.functional.hardtanh_",
        opinfo=("nn.functional.hardtanh",),
    ),
    _row(
        name="threshold",
        rule=OpClass.EXACT,
        call="torch.nn.functional.threshold",
        signature=_threshold,
        dtypes=REAL,
        inplace="torch.nn.functional.threshold_",
        opinfo=("nn.functional.threshold",),
    ),
    _row(
        name="sigmoid",
        rule=OpClass.ELEMENTWISE,
        call="torch.sigmoid",
        signature=unary(NEAR),
        dtypes=EVERY,
        grad=FLOATING,
        inplace="torch.Tensor.sigmoid_",
        out=True,
        promotes=True,
        strides=True,
        opinfo=("sigmoid",),
    ),
    _activation("leaky_relu", options(negative_slope=one_of(0.5, 0.0, -0.25)), rule=OpClass.ELEMENTWISE),
    _activation("elu", options(alpha=one_of(0.5, 2.0)), inplace=True),
    _activation("selu", inplace=True),
    _activation("celu", options(alpha=one_of(0.5, 2.0)), inplace=True),
    _activation("gelu", options(approximate=one_of("tanh"))),
    _activation("silu"),
    _activation("mish"),
    _activation("softplus", options(beta=one_of(2.0, 0.5), threshold=one_of(4.0))),
    _activation("softsign"),
    _activation("tanhshrink", rounds_between=True),  # x - tanh(x), two half kernels on every device
    _activation("hardshrink", options(lambd=one_of(0.0, 2.0)), rule=OpClass.EXACT),
    _activation("softshrink", options(lambd=one_of(0.0, 2.0)), rule=OpClass.ELEMENTWISE),
    _activation("hardsigmoid"),
    _activation("hardswish"),
    _activation("logsigmoid"),
    _row(
        name="rrelu",
        rule=OpClass.ELEMENTWISE,
        call="torch.nn.functional.rrelu",
        signature=unary(NEAR),
        strides=True,
    ),
    _row(name="prelu", rule=OpClass.ELEMENTWISE, call="torch.prelu", signature=_prelu, opinfo=("nn.functional.prelu",)),
    _row(name="glu", call="torch.nn.functional.glu", signature=_glu, opinfo=("nn.functional.glu",)),
)
