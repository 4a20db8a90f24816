"""Special functions: error functions, gammas, Bessel functions, entropies."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import COMPOSITE, ELEMENTWISE, OWN, POINTWISE, REAL, ROUNDED, Counts, Draws, Forms, Row
from parity.catalog.signatures import Operand, one_of, options, pair, strictly, unary, within
from parity.core.dtypes import BOOL, FLOATS

PROMOTED = (*REAL, *BOOL)
SINGLE = ("float32", "int64", "uint8", "bool")  # no half precision
# Integers are promoted, whatever the number of operands.
_row = partial(
    Row, family="special", rule=ELEMENTWISE, dtypes=PROMOTED, grad=FLOATS, forms=Forms(out=True, strides=True, promotes=True)
)


def _function(name: str, operand: Operand, *, inplace: bool = True, dtypes: tuple[str, ...] = PROMOTED) -> Row:
    """A function at the top of torch."""
    method = f"torch.Tensor.{name}_" if inplace else ""
    return _row(
        name, unary(operand), dtypes=dtypes, forms=Forms(inplace=method, out=True, strides=True, promotes=True), counts=OWN
    )


def _special(name: str, operand: Operand, grad: tuple[str, ...] = (), dtypes: tuple[str, ...] = SINGLE) -> Row:
    """A function of torch.special."""
    return _row(f"special.{name}", unary(operand), dtypes=dtypes, grad=grad, counts=OWN)


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
    _function("erf", within(-4, 4)),
    _function("erfc", within(-4, 4)),
    _function("erfinv", within(-1, 1)),
    _function("lgamma", within(0, 9)),
    _function("digamma", within(0.5, 9)),
    _function("i0", within(-6, 6)),
    _row("logit", unary(within(0, 1), options(eps=one_of(0.125))), forms=POINTWISE, counts=OWN),
    _row("polygamma", _polygamma, counts=Counts(tuple(f"polygamma:polygamma_n_{n}" for n in range(4)))),
    # rounds_between: a sum of lgamma and a constant, in separate kernels
    _row(
        "mvlgamma",
        _mvlgamma,
        rule=COMPOSITE,
        forms=POINTWISE,
        dtypes=REAL,
        judged=ROUNDED,
        counts=Counts(tuple(f"mvlgamma:mvlgamma_p_{p}" for p in (1, 3, 5))),
    ),
    _row("xlogy", pair(within(0, 8), within(0, 8)), forms=POINTWISE, counts=OWN),
    _row("special.xlog1py", pair(within(-1, 8), within(0, 8)), counts=OWN),
    _row(
        "igamma", pair(strictly(0.25, 6), strictly(0.25, 6), number=None), dtypes=FLOATS, grad=(), forms=POINTWISE, counts=OWN
    ),
    _row(
        "igammac", pair(strictly(0.25, 6), strictly(0.25, 6), number=None), dtypes=FLOATS, grad=(), forms=POINTWISE, counts=OWN
    ),
    _row("special.zeta", pair(strictly(2, 8), strictly(1, 8), number=None), dtypes=("float32",), grad=(), counts=OWN),
    _special("entr", within(0, 4), FLOATS, PROMOTED),
    # rule: (1 + erf(x / sqrt 2)) / 2, which cancels for negative x
    _row("special.ndtr", unary(within(-4, 4)), rule=COMPOSITE, judged=ROUNDED, counts=OWN),
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
        _row(
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
