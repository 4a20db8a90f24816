"""Linear algebra: factorisations, solvers, determinants, norms of matrices."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import FLOATING, NUMERIC, Row, Signature
from parity.dtypes import INTS
from parity.vocabulary import Arg, OpClass, TensorSpec

# LAPACK takes no half precision.
LAPACK = ("float32", "complex64")
_row = partial(Row, family="linalg", rule=OpClass.SOLVER, dtypes=LAPACK, grad=LAPACK)


def _lead(draw: Draw) -> Shape:
    return draw.choice(((), (1,), (2,), (3,), (2, 1, 2), (0,)))


def _order(draw: Draw) -> int:
    """The order of a square matrix; large ones seldom."""
    return draw.choice((128, 200, 257)) if draw.rare(60) else min(draw.size(), 65)


def _ones(draw: Draw, shape: Shape) -> TensorSpec:
    """Equal numbers: a matrix of rank 1, exactly singular from order 2 on (without a gradient there)."""
    value = draw.choice((1, 0))
    return draw.inside(shape, value, value, grad=False)


def _square(kind: str = "conditioned", options: tuple[str, ...] = (), singular: bool = False) -> Signature:
    """A stack of square matrices, with flags by name; exactly singular ones too where `singular`."""

    def signature(draw: Draw) -> Call:
        n = _order(draw)
        shape = (*(_lead(draw) if n <= 65 else draw.choice(((), (2,)))), n, n)
        x = _ones(draw, shape) if singular and draw.rare(8) else draw.matrix(shape, kind)
        return Call((x,), keywords(**{o: draw.option(True) for o in options}))

    return signature


def _tall(draw: Draw) -> Shape:
    m, n = _order(draw), _order(draw)
    return (*(_lead(draw) if max(m, n) <= 65 else ()), m, n)


def _rectangular(options: tuple[tuple[str, Arg], ...] = (), singular: bool = False) -> Signature:
    def signature(draw: Draw) -> Call:
        shape = _tall(draw)
        x = _ones(draw, shape) if singular and draw.rare(8) else draw.matrix(shape, "full_rank")
        return Call((x,), keywords(**{name: draw.option(value) for name, value in options}))

    return signature


def _system(draw: Draw) -> Call:
    """A X = B, or a vector b; from the right now and then."""
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    lead = lead if n <= 65 else ()
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
    lead = lead if n <= 65 else ()
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    b = draw.tensor((*lead, n, k) if left else (*lead, k, n))
    named = keywords(upper=upper, left=None if left else False, unitriangular=draw.option(True) if n <= 3 else None)
    return Call((a, b), named)  # upper has no default


def _least_squares(draw: Draw) -> Call:
    lead, n, k = _lead(draw), _order(draw), draw.choice((1, 2, 3))
    m = n + draw.choice((0, 1, 2, 5))
    return Call((draw.matrix((*lead, m, n), "full_rank"), draw.inside((*lead, m, k), -4, 4)))  # LAPACK refuses NaN


def _power(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    return Call((draw.matrix((*_lead(draw), n, n)), draw.choice((2, 0, 1, 3, -1, -2, 5, 8))))


def _matrix_norm(draw: Draw) -> Call:
    shape = draw.shape(2, 4, empty=False)
    orders: tuple[Arg, ...] = ("fro", 1, -1, float("inf"), float("-inf"))  # the others: matrix_norm_spectral
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
    other = tuple(1 if k != d % len(shape) and draw.pick(4) == 3 else s for k, s in enumerate(shape))
    return Call((draw.tensor(tuple(shape)), draw.tensor(other)), keywords(dim=d))


def _expm(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    scale = draw.choice((1, 0.0625, 6))
    return Call((draw.between((*_lead(draw), n, n), -scale, scale),))


def _vander(draw: Draw) -> Call:
    return Call((draw.between((*_lead(draw), min(draw.size(2), 8)), -2, 2),), keywords(N=draw.option(2, 5)))


def _householder(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    m = n + draw.choice((0, 1, 3))
    lead = _lead(draw)
    return Call((draw.between((*lead, m, n), -1, 1), draw.inside((*lead, n), 0, 1)))


def _tensor_system(draw: Draw) -> Call:
    """tensorsolve: a square system in disguise."""
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return Call((draw.matrix((a * b, a * b)), draw.tensor((a, b)), (a, b)))


def _tensor_inverse(draw: Draw) -> Call:
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return Call((draw.matrix((a * b, a * b)), (a, b)))


def _old_triangular(draw: Draw) -> Call:
    """B, A and the flags of triangular_solve."""
    lead, n, k = _lead(draw), min(draw.size(), 33), draw.choice((1, 2, 3))
    upper = not draw.flag()
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    return Call((draw.tensor((*lead, n, k)), a), keywords(upper=None if upper else False, transpose=draw.option(True)))


def _rank(draw: Draw) -> Call:
    """Full rank or rank 1: far from where a tolerance decides."""
    shape = _tall(draw)
    x = _ones(draw, shape) if draw.pick(3) == 2 else draw.matrix(shape, "full_rank")
    return Call((x,), keywords(rtol=draw.option(0.0078125)))


def _condition(draw: Draw) -> Call:
    n = min(_order(draw), 33)
    return Call((draw.matrix((*_lead(draw)[:1], n, n)), draw.choice(("fro", 1, float("inf"), -1))))


def _indefinite(draw: Draw) -> Call:
    lead, n, k = _lead(draw), min(_order(draw), 33), draw.choice((1, 2, 3))
    return Call((draw.matrix((*lead, n, n), "spd"), draw.tensor((*lead, n, k))))


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
    _row(
        name="inv_ex",
        relation="inv",
        call="parity.catalog.calls.inv_ex",
        signature=_square(),
        opinfo=("linalg.inv_ex",),
    ),
    _row(
        name="solve_ex",
        relation="solve",
        call="parity.catalog.calls.solve_ex",
        signature=_system,
        opinfo=("linalg.solve_ex",),
    ),
    _row(
        name="cholesky_old",
        relation="cholesky",
        call="torch.cholesky",
        signature=_square("spd", ("upper",)),
        out=True,
    ),
    _row(
        name="ldl_solve",
        call="parity.catalog.calls.ldl_solve",
        signature=_indefinite,
        grad=(),
        opinfo=("linalg.ldl_solve",),
    ),
    _row(
        name="triangular_solve",
        call="parity.catalog.calls.triangular_solve",
        signature=_old_triangular,
        opinfo=("triangular_solve",),
    ),
    _row(name="tensorsolve", call="parity.catalog.calls.tensorsolve", signature=_tensor_system, opinfo=("linalg.tensorsolve",)),
    _row(name="tensorinv", call="parity.catalog.calls.tensorinv", signature=_tensor_inverse, opinfo=("linalg.tensorinv",)),
    _row(
        name="matrix_rank",
        rule=OpClass.EXACT,
        call="torch.linalg.matrix_rank",
        signature=_rank,
        grad=(),
        opinfo=("linalg.matrix_rank",),
    ),
    _row(name="cond", call="torch.linalg.cond", signature=_condition, grad=(), opinfo=("linalg.cond",)),
    _row(
        name="lu_parts",
        rule=OpClass.EXACT,
        call="parity.catalog.calls.lu_parts",
        signature=_rectangular(),
        dtypes=("float32",),
        grad=(),
        # no out=, as lu
        opinfo=("lu_unpack",),
    ),
    _row(name="det", call="torch.linalg.det", signature=_square(singular=True), out=True, opinfo=("linalg.det",)),
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
        signature=_rectangular(singular=True),
        out=True,
        opinfo=("linalg.svdvals",),
    ),
    _row(
        name="eigvalsh",
        relation="eigvalsh",
        call="torch.linalg.eigvalsh",
        signature=_square("symmetric", singular=True),
        out=True,
        opinfo=("linalg.eigvalsh",),
    ),
    DECOMPOSITION(
        name="svd",
        relation="svd",
        call="torch.linalg.svd",
        signature=_rectangular((("full_matrices", False),), singular=True),
        out=True,
        opinfo=("linalg.svd",),
    ),
    DECOMPOSITION(
        name="qr",
        relation="qr",
        call="torch.linalg.qr",
        signature=_rectangular((("mode", "complete"),), singular=True),
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
    # No out=: torch 2.13's CPU writes beside destinations whose batch dimensions cannot be merged (as tril and triu).
    DECOMPOSITION(name="lu", relation="lu", call="torch.linalg.lu", signature=_rectangular(), opinfo=("linalg.lu",)),
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
    _row(
        name="matrix_norm_spectral",
        relation="spectral_norm",
        call="torch.linalg.matrix_norm",
        signature=_spectral_norm,
        out=True,
    ),
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
