"""Linear algebra: factorisations, solvers, determinants, norms of matrices."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import FLOATING, NUMERIC, Row, Signature
from parity.dtypes import INTS
from parity.vocabulary import Arg, OpClass

# LAPACK takes no half precision.
LAPACK = ("float32", "complex64")
_row = partial(Row, family="linalg", rule=OpClass.SOLVER, dtypes=LAPACK, grad=LAPACK)


def _lead(draw: Draw) -> Shape:
    return draw.choice(((), (1,), (2,), (3,), (2, 1, 2)))


def _order(draw: Draw) -> int:
    """The order of a square matrix; borders stay small enough for a decomposition."""
    return min(draw.size(), 65)


def _square(kind: str = "conditioned", options: tuple[str, ...] = ()) -> Signature:
    """A stack of square matrices, with flags by name."""

    def signature(draw: Draw) -> Call:
        n = _order(draw)
        x = draw.matrix((*_lead(draw), n, n), kind)
        return Call((x,), keywords(**{o: draw.option(True) for o in options}))

    return signature


def _tall(draw: Draw) -> Shape:
    return (*_lead(draw), _order(draw), _order(draw))


def _rectangular(options: tuple[tuple[str, Arg], ...] = ()) -> Signature:
    def signature(draw: Draw) -> Call:
        x = draw.matrix(_tall(draw), "full_rank")
        return Call((x,), keywords(**{name: draw.option(value) for name, value in options}))

    return signature


def _system(draw: Draw) -> Call:
    """A X = B, or a vector b; from the right now and then."""
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    a = draw.matrix((*lead, n, n))
    if draw.pick(4) == 3 and not lead:
        return Call((a, draw.tensor((n,))))
    if draw.pick(4) == 3:
        return Call((a, draw.tensor((*lead, k, n))), keywords(left=False))
    return Call((a, draw.tensor((*lead, n, k))))


def _factored(draw: Draw) -> Call:
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    return Call((draw.matrix((*lead, n, n)), draw.tensor((*lead, n, k))))


def _definite_system(draw: Draw) -> Call:
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    return Call((draw.matrix((*lead, n, n), "spd"), draw.tensor((*lead, n, k))), keywords(upper=draw.option(True)))


def _triangular(draw: Draw) -> Call:
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    upper, left = draw.flag(), not draw.flag()
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    b = draw.tensor((*lead, n, k) if left else (*lead, k, n))
    return Call((a, b), keywords(upper=upper, left=None if left else False))  # upper has no default


def _least_squares(draw: Draw) -> Call:
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    m = n + draw.choice((0, 1, 2, 5))
    return Call((draw.matrix((*lead, m, n), "full_rank"), draw.inside((*lead, m, k), -4, 4)))  # LAPACK refuses NaN


def _power(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    return Call((draw.matrix((*_lead(draw), n, n)), draw.choice((2, 0, 1, 3, -1, -2))))


def _matrix_norm(draw: Draw) -> Call:
    shape = draw.shape(2, 4, empty=False)
    orders: tuple[Arg, ...] = ("fro", 1, -1, float("inf"), float("-inf"))
    order = draw.choice(orders)
    dims = draw.permutation(len(shape))[:2]
    named = keywords(dim=None if dims == (0, 1) and len(shape) == 2 else dims, keepdim=draw.option(True))
    return Call((draw.tensor(shape), order), named)


def _spectral_norm(draw: Draw) -> Call:
    return Call((draw.matrix(_tall(draw), "full_rank"), draw.choice(("nuc", 2, -2))), keywords(keepdim=draw.option(True)))


def _cross(draw: Draw) -> Call:
    shape = list(draw.shape(1, 4))
    d = draw.dim(tuple(shape))
    shape[d] = 3
    return Call((draw.tensor(tuple(shape)), draw.tensor(tuple(shape))), keywords(dim=d))


def _expm(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    return Call((draw.between((*_lead(draw), n, n), -1, 1),))


def _vander(draw: Draw) -> Call:
    return Call((draw.between((*_lead(draw), min(draw.size(2), 8)), -2, 2),), keywords(N=draw.option(2, 5)))


def _householder(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    m = n + draw.choice((0, 1, 3))
    lead = _lead(draw)
    return Call((draw.between((*lead, m, n), -1, 1), draw.inside((*lead, n), 0, 1)))


DECOMPOSITION = partial(_row, rule=OpClass.DECOMPOSITION, grad=())

ROWS = (
    _row(
        name="cholesky",
        relation="cholesky",
        call="torch.linalg.cholesky",
        signature=_square("spd", ("upper",)),
        out=True,
        opinfo=("linalg.cholesky", "cholesky"),
    ),
    _row(
        name="cholesky_solve",
        relation="cholesky_solve",
        call="parity.catalog.calls.cholesky_solve",
        signature=_definite_system,
        opinfo=("cholesky_solve",),
    ),
    _row(
        name="cholesky_inverse",
        relation="cholesky_inverse",
        call="parity.catalog.calls.cholesky_inverse",
        signature=_square("spd", ("upper",)),
        opinfo=("cholesky_inverse",),
    ),
    _row(name="solve", relation="solve", call="torch.linalg.solve", signature=_system, out=True, opinfo=("linalg.solve",)),
    _row(name="inv", relation="inv", call="torch.linalg.inv", signature=_square(), out=True, opinfo=("linalg.inv",)),
    _row(name="det", call="torch.linalg.det", signature=_square(), out=True, opinfo=("linalg.det",)),
    _row(name="slogdet", call="torch.linalg.slogdet", signature=_square(), out=True, opinfo=("linalg.slogdet",)),
    _row(
        name="logdet",
        call="torch.logdet",
        signature=_square("spd"),
        dtypes=("float32",),
        grad=("float32",),
        opinfo=("logdet",),
    ),
    _row(
        name="solve_triangular",
        relation="solve_triangular",
        call="torch.linalg.solve_triangular",
        signature=_triangular,
        out=True,
        opinfo=("linalg.solve_triangular",),
    ),
    _row(
        name="lu_solve",
        relation="lu_solve",
        call="parity.catalog.calls.lu_solve",
        signature=_factored,
        opinfo=("linalg.lu_solve",),
    ),
    _row(
        name="lstsq",
        relation="lstsq",
        call="parity.catalog.calls.lstsq",
        signature=_least_squares,
        opinfo=("linalg.lstsq", "linalg.lstsq:grad_oriented"),
    ),
    _row(name="pinv", relation="pinv", call="torch.linalg.pinv", signature=_rectangular(), out=True, opinfo=("linalg.pinv",)),
    _row(name="matrix_power", call="torch.linalg.matrix_power", signature=_power, out=True, opinfo=("linalg.matrix_power",)),
    _row(name="matrix_exp", call="torch.linalg.matrix_exp", signature=_expm, opinfo=("matrix_exp",)),
    _row(
        name="svdvals",
        relation="svdvals",
        call="torch.linalg.svdvals",
        signature=_rectangular(),
        out=True,
        opinfo=("linalg.svdvals",),
    ),
    _row(
        name="eigvalsh",
        relation="eigvalsh",
        call="torch.linalg.eigvalsh",
        signature=_square("symmetric"),
        out=True,
        opinfo=("linalg.eigvalsh",),
    ),
    DECOMPOSITION(
        name="svd",
        relation="svd",
        call="torch.linalg.svd",
        signature=_rectangular((("full_matrices", False),)),
        out=True,
        opinfo=("linalg.svd",),
    ),
    DECOMPOSITION(
        name="qr",
        relation="qr",
        call="torch.linalg.qr",
        signature=_rectangular((("mode", "complete"),)),
        out=True,
        opinfo=("linalg.qr",),
    ),
    DECOMPOSITION(
        name="eigh",
        relation="eigh",
        call="torch.linalg.eigh",
        signature=_square("symmetric"),
        out=True,
        opinfo=("linalg.eigh",),
    ),
    DECOMPOSITION(name="eig", relation="eig", call="torch.linalg.eig", signature=_square(), out=True, opinfo=("linalg.eig",)),
    DECOMPOSITION(
        name="lu_factor",
        relation="lu",
        call="torch.linalg.lu_factor",
        signature=_rectangular(),
        out=True,
        opinfo=("linalg.lu_factor",),
    ),
    DECOMPOSITION(name="lu", relation="lu", call="torch.linalg.lu", signature=_rectangular(), out=True, opinfo=("linalg.lu",)),
    _row(
        name="matrix_norm",
        rule=OpClass.COMPOSITE,
        call="torch.linalg.matrix_norm",
        signature=_matrix_norm,
        dtypes=FLOATING,
        grad=FLOATING,
        out=True,
        opinfo=("linalg.matrix_norm",),
    ),
    _row(name="matrix_norm_spectral", relation="spectral_norm", call="torch.linalg.matrix_norm", signature=_spectral_norm, out=True),
    _row(
        name="cross",
        rounds_between=True,  # two products and a difference in the dtype itself
        rule=OpClass.COMPOSITE,
        call="torch.linalg.cross",
        signature=_cross,
        dtypes=NUMERIC,
        grad=FLOATING,
        out=True,
        opinfo=("linalg.cross", "cross"),
    ),
    _row(
        name="vander",
        rule=OpClass.COMPOSITE,
        call="torch.linalg.vander",
        signature=_vander,
        dtypes=(*LAPACK, *INTS),
        opinfo=("linalg.vander",),
    ),
    _row(
        name="householder_product",
        rule=OpClass.COMPOSITE,
        call="torch.linalg.householder_product",
        signature=_householder,
        out=True,
        opinfo=("linalg.householder_product",),
    ),
)
