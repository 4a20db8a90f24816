"""Activation functions, and special ones: error functions, gammas, Bessel functions, entropies."""

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
    Draws,
    Forms,
    Judged,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.signatures import Operand, Options, mostly, none, one_of, options, pair, strictly, unary, within
from parity.core.case import OpClass
from parity.core.dtypes import BOOL, FLOATS

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


PROMOTED = (*REAL, *BOOL)
SINGLE = ("float32", "int64", "uint8", "bool")  # no half precision
# Integers are promoted, whatever the number of operands.
_special_row = partial(
    Row, family="special", rule=ELEMENTWISE, dtypes=PROMOTED, grad=FLOATS, forms=Forms(out=True, strides=True, promotes=True)
)


def _function(name: str, operand: Operand, *, inplace: bool = True, dtypes: tuple[str, ...] = PROMOTED) -> Row:
    """A function at the top of torch."""
    method = f"torch.Tensor.{name}_" if inplace else ""
    return _special_row(
        name, unary(operand), dtypes=dtypes, forms=Forms(inplace=method, out=True, strides=True, promotes=True), counts=OWN
    )


def _special(name: str, operand: Operand, grad: tuple[str, ...] = (), dtypes: tuple[str, ...] = SINGLE) -> Row:
    """A function of torch.special."""
    return _special_row(f"special.{name}", unary(operand), dtypes=dtypes, grad=grad, counts=OWN)


def _polygamma(draw: Draw) -> Arguments:
    return Arguments((draw.choice((1, 0, 2, 3, 5)), draw.between(draw.shape(0, 4), 0.5, 8)))


def _mvlgamma(draw: Draw) -> Arguments:
    p = draw.choice((1, 3, 5))
    return Arguments((draw.inside(draw.shape(0, 4), p, 9), p))


def _degree(draw: Draw) -> Arguments:
    """A polynomial of small degree near [-1, 1]."""
    shape = draw.shape(0, 3)
    if draw.pick(4) == 3:
        return Arguments((draw.between(shape, -1, 1), draw.inside(draw.broadcastable(shape), 2, 2, grad=False)))
    return Arguments((draw.between(shape, -1, 1), draw.choice((2, 0, 1, 3, 5, 8))))


# Only finite numbers: torch 2.13's CPU returns uninitialised memory for special.chebyshev_polynomial_u(nan, 5).
POLYNOMIALS = [
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
]  # fmt: skip

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
    _function("erf", within(-4, 4)),
    _function("erfc", within(-4, 4)),
    _function("erfinv", within(-1, 1)),
    _function("lgamma", within(0, 9)),
    _function("digamma", within(0.5, 9)),
    _function("i0", within(-6, 6)),
    _special_row("logit", unary(within(0, 1), options(eps=one_of(0.125))), forms=POINTWISE, counts=OWN),
    _special_row("polygamma", _polygamma, counts=Counts(tuple(f"polygamma:polygamma_n_{n}" for n in range(4)))),
    # rounds_between: a sum of lgamma and a constant, in separate kernels
    _special_row(
        "mvlgamma",
        _mvlgamma,
        rule=COMPOSITE,
        forms=POINTWISE,
        dtypes=REAL,
        judged=ROUNDED,
        counts=Counts(tuple(f"mvlgamma:mvlgamma_p_{p}" for p in (1, 3, 5))),
    ),
    _special_row("xlogy", pair(within(0, 8), within(0, 8)), forms=POINTWISE, counts=OWN),
    _special_row("special.xlog1py", pair(within(-1, 8), within(0, 8)), counts=OWN),
    _special_row(
        "igamma", pair(strictly(0.25, 6), strictly(0.25, 6), number=None), dtypes=FLOATS, grad=(), forms=POINTWISE, counts=OWN
    ),
    _special_row(
        "igammac", pair(strictly(0.25, 6), strictly(0.25, 6), number=None), dtypes=FLOATS, grad=(), forms=POINTWISE, counts=OWN
    ),
    _special_row("special.zeta", pair(strictly(2, 8), strictly(1, 8), number=None), dtypes=("float32",), grad=(), counts=OWN),
    _special("entr", within(0, 4), FLOATS, PROMOTED),
    # rule: (1 + erf(x / sqrt 2)) / 2, which cancels for negative x
    _special_row("special.ndtr", unary(within(-4, 4)), rule=COMPOSITE, judged=ROUNDED, counts=OWN),
    _special("ndtri", within(0, 1), ("float32",)),
    _special("log_ndtr", within(-6, 6), ("float32",)),
    _special("erfcx", within(-2, 8), ("float32",)),
    _special("i0e", within(-9, 9), FLOATS, PROMOTED),
    _special("i1", within(-6, 6), ("float32",), PROMOTED),
    _special("i1e", within(-9, 9), ("float32",), PROMOTED),
    _special("bessel_j0", within(-12, 12)),
    _special("bessel_j1", within(-12, 12)),
    _special("bessel_y0", within(0, 12)),
    _special("bessel_y1", within(0, 12)),
    _special("modified_bessel_i0", within(-6, 6)),
    _special("modified_bessel_i1", within(-6, 6)),
    _special("modified_bessel_k0", within(0, 8)),
    _special("modified_bessel_k1", within(0, 8)),
    _special("scaled_modified_bessel_k0", within(0, 8)),
    _special("scaled_modified_bessel_k1", within(0, 8)),
    _special("spherical_bessel_j0", within(-12, 12)),
    _special("airy_ai", within(-6, 6)),
    *(
        _special_row(
            f"special.{name}",
            _degree,
            rule=COMPOSITE,
            dtypes=("float32",),
            grad=(),
            draws=Draws(finite=True, choices=(1,)),
            counts=OWN,
        )
        for name in POLYNOMIALS
    ),
)
