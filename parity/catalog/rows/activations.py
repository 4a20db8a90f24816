"""Activation functions."""

from __future__ import annotations

from functools import partial
from typing import Any

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import (
    COMPOSITE,
    ELEMENTWISE,
    EVERY,
    EXACT,
    FLOATING,
    GLUE,
    OUT,
    OWN,
    POINTWISE,
    REAL,
    ROUNDED,
    Counts,
    Forms,
    Judged,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.signatures import Options, mostly, none, one_of, options, unary
from parity.core.case import OpClass
from parity.core.dtypes import FLOATS

_row = partial(Row, family="activations", rule=COMPOSITE, dtypes=FLOATS, grad=FLOATS, call="torch.nn.functional.*")
NEAR = mostly(-8, 8)


def _activation(
    name: str,
    choices: Options = none,
    *,
    inplace: str = "",
    rule: OpClass = COMPOSITE,
    rounds_between: bool = False,
    out: str = "",
    strides: bool = True,
    **more: Any,
) -> Row:
    """A function of torch.nn.functional. inplace, out: the modules of its in-place form and of the form with out=. more: other
    fields of the row."""
    return _row(
        name,
        unary(NEAR, choices),
        rule=rule,
        call=f"{out or 'torch.nn.functional'}.{name}",
        forms=Forms(inplace=f"{inplace}.{name}_" if inplace else "", out=bool(out), strides=strides),
        judged=Judged(rounds_between=rounds_between),
        counts=Counts((f"nn.functional.{name}",)),
        **more,
    )


def _threshold(draw: Draw) -> Arguments:
    limits = (0, 1) if draw.dtype == "uint8" else (0, 1, -1)
    return Arguments((NEAR(draw, draw.shape(0, 5)), draw.choice(limits), draw.choice((0, 2, limits[-1]))))


def _hardtanh(draw: Draw) -> Arguments:
    whole = not draw.is_inexact
    low, high = draw.choice(((-2, 1), (0, 6), (1, 1)) if whole else ((-2.0, 0.5), (0.0, 6.0), (0.25, 0.25)))
    return Arguments((NEAR(draw, draw.shape(0, 5)),), keywords(min_val=low, max_val=high) if draw.flag() else ())


def _prelu(draw: Draw) -> Arguments:
    """One weight, or one per channel (dimension 1)."""
    shape = draw.shape(1, 5)
    channels = shape[1] if len(shape) > 1 and draw.flag() else 1
    return Arguments((NEAR(draw, shape), draw.tensor((channels,))))


def _glu(draw: Draw) -> Arguments:
    """An even size along the halved dimension."""
    shape = list(draw.shape(1, 5))
    d = draw.dim(tuple(shape)) if draw.flag() else -1
    shape[d] *= 2
    return Arguments((NEAR(draw, tuple(shape)),), keywords(dim=None if d == -1 else d))


_SLOPE = options(negative_slope=one_of(0.5, 0.0, -0.25))
_ELU = options(alpha=one_of(0.5, 2.0))
F, NN, TORCH = "torch.nn.functional", "torch._C._nn", "torch"

# Functions of torch._refs that are neither random nor undefined somewhere.
REFERENCES = (
    *("elu", "celu", "gelu", "hardshrink", "hardtanh", "leaky_relu", "mish", "relu6", "selu", "softplus", "softshrink"),
    *("tanhshrink", "relu", "sigmoid", "square", "sinc", "nan_to_num", "expm1"),
)
MOST_SCANNED = 1025  # along a dimension: the references of cumsum and cumprod make a table of its square
ALONG_DIM = ("softmax", "log_softmax", "softmin", "logsumexp", "cumsum", "mean", "sum", "var", "std", "amax", "amin", "flip")


def _named(names: tuple[str, ...], dims: bool = False) -> Signature:
    """f(the name of a function, a tensor, [a dimension])."""

    def signature(draw: Draw) -> Arguments:
        name = draw.choice(names)
        if not dims:
            return Arguments((name, draw.between(draw.shape(0, 5), -8, 8)))
        shape = tuple(min(n or 1, MOST_SCANNED) for n in draw.shape(1, 4))
        return Arguments((name, draw.inside(shape, -4, 4), draw.dim(shape)))

    return signature


ROWS = (
    _row("relu", unary(), rule=EXACT, dtypes=REAL, forms=Forms(inplace="torch.nn.functional.*_", strides=True), counts=OWN),
    _row("relu6", unary(NEAR), rule=EXACT, dtypes=REAL, forms=Forms(strides=True), counts=OWN),
    _row(
        "hardtanh",
        _hardtanh,
        rule=EXACT,
        call="torch._C._nn.*",
        forms=Forms(inplace="torch.nn.functional.*_", out=True),
        dtypes=(*FLOATS, "int8", "int16", "int32", "int64"),
        counts=Counts(("nn.functional.hardtanh",)),
    ),
    _row(
        "threshold",
        _threshold,
        rule=EXACT,
        call="torch.*",
        forms=Forms(inplace="torch.nn.functional.*_", out=True),
        dtypes=REAL,
        counts=Counts(("nn.functional.threshold",)),
    ),
    _row("sigmoid", unary(NEAR), rule=ELEMENTWISE, call="torch.*", dtypes=EVERY, grad=FLOATING, forms=POINTWISE, counts=OWN),
    _activation("leaky_relu", _SLOPE, inplace=NN, out=NN, rule=ELEMENTWISE),
    _activation("elu", _ELU, inplace=F, out=NN),
    _activation("selu", inplace=F),
    _activation("celu", options(alpha=one_of(0.5, 2.0)), inplace=F),
    _activation("gelu", options(approximate=one_of("tanh")), inplace=NN, out=NN),
    _activation("silu", inplace=NN, out=NN, refuses=Refuses(takes=("complex",))),
    _activation("mish", inplace=NN, out=NN),
    _activation("softplus", options(beta=one_of(2.0, 0.5), threshold=one_of(4.0, 0.0)), out=NN),
    _activation("softsign"),
    _activation("tanhshrink", rounds_between=True),  # x - tanh(x), two half kernels on every device
    _activation("hardshrink", options(lambd=one_of(0.0, 2.0)), rule=EXACT, out=TORCH),
    _activation("softshrink", options(lambd=one_of(0.0, 2.0)), rule=ELEMENTWISE, out=NN),
    _activation("hardsigmoid", inplace=NN, out=NN),
    _activation("hardswish", inplace=NN, out=NN),
    _activation("logsigmoid", strides=False),  # strides differ between devices, and torch does not specify them
    _row("rrelu", unary(NEAR), rule=ELEMENTWISE, forms=Forms(strides=True), judged=Judged(law="rrelu")),
    _row("prelu", _prelu, rule=ELEMENTWISE, call="torch.*", counts=Counts(("nn.functional.prelu",))),
    _row("glu", _glu, call="torch._C._nn.*", forms=OUT, counts=Counts(("nn.functional.glu",))),
    # torch's Python references, which compilers and devices without a kernel run in its place; torch has no gradients of them
    _row("reference_activation", _named(REFERENCES), call=GLUE, dtypes=("float32",), grad=(), judged=ROUNDED),
    _row("reference_along_dim", _named(ALONG_DIM, dims=True), call=GLUE, dtypes=("float32",), grad=()),
)
