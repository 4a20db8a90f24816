"""Activation functions."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, FLOATING, REAL, Row
from parity.catalog.signatures import Options, mostly, none, one_of, options, unary
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass

_row = partial(Row, family="activations", rule=OpClass.COMPOSITE, dtypes=FLOATS, grad=FLOATS)
NEAR = mostly(-8, 8)


def _activation(
    name: str,
    choices: Options = none,
    *,
    inplace: str = "",
    rule: OpClass = OpClass.COMPOSITE,
    rounds_between: bool = False,
    out: str = "",
    strides: bool = True,
) -> Row:
    """A function of torch.nn.functional. inplace, out: the modules in which its in-place form and the form that takes out=
    are found."""
    return _row(
        name=name,
        rule=rule,
        call=f"{out or 'torch.nn.functional'}.{name}",
        signature=unary(NEAR, choices),
        inplace=f"{inplace}.{name}_" if inplace else "",
        out=bool(out),
        strides=strides,
        rounds_between=rounds_between,
        opinfo=(f"nn.functional.{name}",),
    )


def _threshold(draw: Draw) -> Call:
    limits = (0, 1) if draw.dtype == "uint8" else (0, 1, -1)
    return Call((NEAR(draw, draw.shape(0, 5)), draw.choice(limits), draw.choice((0, 2, limits[-1]))))


def _hardtanh(draw: Draw) -> Call:
    whole = not draw.is_inexact
    low, high = draw.choice(((-2, 1), (0, 6), (1, 1)) if whole else ((-2.0, 0.5), (0.0, 6.0), (0.25, 0.25)))
    return Call((NEAR(draw, draw.shape(0, 5)),), keywords(min_val=low, max_val=high) if draw.flag() else ())


def _prelu(draw: Draw) -> Call:
    """One weight, or one per channel (dimension 1)."""
    shape = draw.shape(1, 5)
    channels = shape[1] if len(shape) > 1 and draw.flag() else 1
    return Call((NEAR(draw, shape), draw.tensor((channels,))))


def _glu(draw: Draw) -> Call:
    """An even size along the halved dimension."""
    shape = list(draw.shape(1, 5))
    d = draw.dim(tuple(shape)) if draw.flag() else -1
    shape[d] *= 2
    return Call((NEAR(draw, tuple(shape)),), keywords(dim=None if d == -1 else d))


_SLOPE = options(negative_slope=one_of(0.5, 0.0, -0.25))
_ELU = options(alpha=one_of(0.5, 2.0))
F, NN, TORCH = "torch.nn.functional", "torch._C._nn", "torch"

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
        call="torch._C._nn.hardtanh",
        out=True,
        signature=_hardtanh,
        dtypes=(*FLOATS, "int8", "int16", "int32", "int64"),
        inplace="torch.nn.functional.hardtanh_",
        opinfo=("nn.functional.hardtanh",),
    ),
    _row(
        name="threshold",
        rule=OpClass.EXACT,
        call="torch.threshold",
        out=True,
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
    _activation("leaky_relu", _SLOPE, inplace=NN, out=NN, rule=OpClass.ELEMENTWISE),
    _activation("elu", _ELU, inplace=F, out=NN),
    _activation("selu", inplace=F),
    _activation("celu", options(alpha=one_of(0.5, 2.0)), inplace=F),
    _activation("gelu", options(approximate=one_of("tanh")), inplace=NN, out=NN),
    _activation("silu", inplace=NN, out=NN),
    _activation("mish", inplace=NN, out=NN),
    _activation("softplus", options(beta=one_of(2.0, 0.5), threshold=one_of(4.0, 0.0)), out=NN),
    _activation("softsign"),
    _activation("tanhshrink", rounds_between=True),  # x - tanh(x), two half kernels on every device
    _activation("hardshrink", options(lambd=one_of(0.0, 2.0)), rule=OpClass.EXACT, out=TORCH),
    _activation("softshrink", options(lambd=one_of(0.0, 2.0)), rule=OpClass.ELEMENTWISE, out=NN),
    _activation("hardsigmoid", inplace=NN, out=NN),
    _activation("hardswish", inplace=NN, out=NN),
    _activation("logsigmoid", strides=False),  # devices lay it out otherwise, and torch promises nothing
    _row(
        name="rrelu",
        rule=OpClass.ELEMENTWISE,
        call="torch.nn.functional.rrelu",
        signature=unary(NEAR),
        strides=True,
    ),
    _row(name="prelu", rule=OpClass.ELEMENTWISE, call="torch.prelu", signature=_prelu, opinfo=("nn.functional.prelu",)),
    _row(name="glu", call="torch._C._nn.glu", signature=_glu, out=True, opinfo=("nn.functional.glu",)),
)
