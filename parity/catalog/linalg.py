"""Linear algebra: factorisations, solvers, determinants, norms of matrices."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import Row, Signature
from parity.vocabulary import Arg, OpClass, TensorSpec

# LAPACK takes no half precision.
LAPACK = ("float32", "complex64")
_row = partial(Row, family="linalg", rule=OpClass.SOLVER, dtypes=LAPACK, grad=LAPACK)


def leading(draw: Draw) -> Shape:
    return draw.choice(((), (1,), (2,), (3,), (2, 1, 2), (0,)))


ORDERS = 1, 2, 3, 4, 5, 7, 8, 16, 17
BLOCKS = 15, 31, 32, 33, 63, 64, 65
LARGE = 128, 256, 129, 257, 200, 127, 255  # kernels of their own, of a group of threads or of several


HEAVY = 129  # the largest order for what takes long: singular values and eigenvalues


def _sides(draw: Draw, count: int, most: int = 257) -> tuple[Shape, tuple[int, ...]]:
    """Leading dimensions and the sides of matrices: mostly small ones; around a block in one case of six; both large and
    stacked seldom, since factors of those take long. most: the largest side."""
    kind = draw.pick(48)
    if kind == 47:
        large = tuple(n for n in LARGE if n <= most)
        n = draw.choice(large)
        return draw.choice(((2,), (), (1,), (3,))), tuple(n if not draw.rare(3) else draw.choice(large) for _ in range(count))
    if kind >= 39:
        n = draw.choice(BLOCKS)
        return draw.choice(((), (4,), (8,), (2,), (2, 4))), tuple(
            n if draw.flag() else draw.choice((*BLOCKS, 1, 2, 3, 52)) for _ in range(count)
        )
    return leading(draw), tuple(draw.choice(ORDERS) for _ in range(count))


def equal(draw: Draw, shape: Shape) -> TensorSpec:
    """Equal numbers: a matrix of rank 1, exactly singular from order 2 on (without a gradient there)."""
    value = draw.choice((1, 0))
    return draw.inside(shape, value, value, grad=False)


Options = tuple[tuple[str, Arg], ...]
UPPER: Options = (("upper", True),)
FROM_ABOVE: Options = (("UPLO", "U"),)


def _square(kind: str = "conditioned", options: Options = (), singular: bool = False, most: int = 257) -> Signature:
    """A stack of square matrices, with flags by name; exactly singular ones too where `singular`."""

    def signature(draw: Draw) -> Call:
        lead, (n,) = _sides(draw, 1, most)
        shape = (*lead, n, n)
        x = equal(draw, shape) if singular and draw.rare(8) else draw.matrix(shape, kind)
        return Call((x,), keywords(**{name: draw.option(value) for name, value in options}))

    return signature


def rectangle(draw: Draw, most: int = HEAVY) -> Shape:
    lead, (m, n) = _sides(draw, 2, most)
    return (*lead, m, n)


def _rectangular(options: Options = (), singular: bool = False, most: int = HEAVY) -> Signature:
    def signature(draw: Draw) -> Call:
        shape = rectangle(draw, most)
        x = equal(draw, shape) if singular and draw.rare(8) else draw.matrix(shape, "full_rank")
        return Call((x,), keywords(**{name: draw.option(value) for name, value in options}))

    return signature


COLUMNS = 1, 2, 3, 17, 0


def _stacks(draw: Draw, lead: Shape) -> tuple[Shape, Shape]:
    """Leading dimensions of the matrices and of the right sides: the same, or those of one broadcast to the other's."""
    kind = draw.pick(6) if lead else 0
    return (lead, lead) if kind < 4 else (lead, draw.broadcastable(lead)) if kind == 4 else (draw.broadcastable(lead), lead)


def _system(draw: Draw) -> Call:
    """A X = B, or a vector b, of each matrix or of all; from the right now and then."""
    (lead, (n,)), k = _sides(draw, 1), draw.choice(COLUMNS)
    lead, right = _stacks(draw, lead)
    a = draw.matrix((*lead, n, n))
    if draw.pick(4) == 3 and (not lead or draw.rare(4)):
        return Call((a, draw.tensor((n,))))
    if draw.pick(4) == 3:
        return Call((a, draw.tensor((*right, k, n))), keywords(left=False))
    return Call((a, draw.tensor((*right, n, k))))


def _factored(draw: Draw) -> Call:
    """Solved from the left or from the right, with the matrix or its adjoint."""
    (lead, (n,)), k, left = _sides(draw, 1), draw.choice(COLUMNS), not draw.rare(4)
    lead, right = _stacks(draw, lead)
    b = draw.tensor((*right, n, k) if left else (*right, k, n))
    return Call((draw.matrix((*lead, n, n)), b), keywords(left=None if left else False, adjoint=draw.option(True)))


def _definite_system(draw: Draw) -> Call:
    (lead, (n,)), k = _sides(draw, 1), draw.choice(COLUMNS)
    lead, right = _stacks(draw, lead)
    return Call((draw.matrix((*lead, n, n), "spd"), draw.tensor((*right, n, k))), keywords(upper=draw.option(True)))


def _triangular(draw: Draw) -> Call:
    (lead, (n,)), k = _sides(draw, 1), draw.choice(COLUMNS)
    upper, left = draw.flag(), not draw.flag()
    lead, right = _stacks(draw, lead)
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    b = draw.tensor((*right, n, k) if left else (*right, k, n))
    named = keywords(upper=upper, left=None if left else False, unitriangular=draw.option(True) if n <= 3 else None)
    return Call((a, b), named)  # upper has no default


def _least_squares(draw: Draw) -> Call:
    """More equations than unknowns, as many, or fewer; several right sides, or one as a vector."""
    (lead, sides), k = _sides(draw, 2, HEAVY), draw.choice((1, 2, 3))
    m, n = max(sides), min(sides)
    if draw.pick(3) == 2:
        m, n = n, m
    if draw.rare(3):  # as many as both agree on, and a few
        m = n + draw.choice((0, 1, 2, 5))
    b = (*lead, m) if lead and draw.rare(6) else (*lead, m, k)
    return Call((draw.matrix((*lead, m, n), "full_rank"), draw.inside(b, -4, 4)))  # LAPACK refuses NaN


def _tensor_system(draw: Draw) -> Call:
    """tensorsolve: a square system in disguise."""
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return Call((draw.matrix((a * b, a * b)), draw.tensor((a, b)), (a, b)))


def _tensor_inverse(draw: Draw) -> Call:
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return Call((draw.matrix((a * b, a * b)), (a, b)))


def _old_triangular(draw: Draw) -> Call:
    """B, A and the flags of triangular_solve."""
    lead, n, k = leading(draw), min(draw.size(), 33), draw.choice((1, 2, 3))
    upper = not draw.flag()
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    return Call((draw.tensor((*lead, n, k)), a), keywords(upper=None if upper else False, transpose=draw.option(True)))


def _rank(draw: Draw) -> Call:
    """Full rank or rank 1: far from where a tolerance decides."""
    shape = rectangle(draw)
    x = equal(draw, shape) if draw.pick(3) == 2 else draw.matrix(shape, "full_rank")
    return Call((x,), keywords(rtol=draw.option(0.0078125)))


def _condition(draw: Draw) -> Call:
    n = min(draw.size(), 33)
    return Call((draw.matrix((*leading(draw)[:1], n, n)), draw.choice(("fro", 1, float("inf"), -1))))


def _indefinite(draw: Draw) -> Call:
    lead, n, k = leading(draw), min(draw.size(), 33), draw.choice((1, 2, 3))
    return Call((draw.matrix((*lead, n, n), "spd"), draw.tensor((*lead, n, k))))


DECOMPOSITION = partial(_row, rule=OpClass.DECOMPOSITION)

ROWS = (
    _row(
        name="cholesky",
        relation="cholesky",
        call="torch.linalg.cholesky",
        signature=_square("spd", UPPER),
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
        signature=_square("spd", UPPER),
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
        signature=_square("spd", UPPER),
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
        signature=_rectangular(most=257),
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
        signature=_square("symmetric", FROM_ABOVE, singular=True, most=HEAVY),
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
        signature=_rectangular((("mode", "complete"),), singular=True, most=257),
        out=True,
        opinfo=("linalg.qr",),
    ),
    DECOMPOSITION(
        name="eigh",
        relation="eigh",
        call="torch.linalg.eigh",
        signature=_square("symmetric", FROM_ABOVE, most=HEAVY),
        out=True,
        opinfo=("linalg.eigh",),
    ),
    DECOMPOSITION(
        name="eig", relation="eig", call="torch.linalg.eig", signature=_square(most=HEAVY), out=True, opinfo=("linalg.eig",)
    ),
    DECOMPOSITION(
        name="lu_factor",
        relation="lu",
        call="torch.linalg.lu_factor",
        signature=_rectangular(most=257),
        out=True,
        opinfo=("linalg.lu_factor",),
    ),
    # No out=: torch 2.13's CPU writes beside destinations whose batch dimensions cannot be merged (as tril and triu).
    DECOMPOSITION(name="lu", relation="lu", call="torch.linalg.lu", signature=_rectangular(most=257), opinfo=("linalg.lu",)),
)
