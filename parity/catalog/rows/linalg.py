"""Linear algebra: factorisations, solvers, determinants, norms of matrices."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import EXACT, GLUE, OUT, OWN, SOLVER, Counts, Draws, Judged, Refuses, Row, Signature
from parity.core.case import Arg, OpClass, TensorSpec

# LAPACK has no half precision.
LAPACK = ("float32", "complex64")
_row = partial(Row, family="linalg", rule=SOLVER, dtypes=LAPACK, grad=LAPACK, call="torch.linalg.*")


def leading(draw: Draw) -> Shape:
    return draw.lead(((), (1,), (2,), (3,), (2, 1, 2), (0,)))


ORDERS = 1, 2, 3, 4, 5, 7, 8, 16, 17
BLOCKS = 15, 31, 32, 33, 63, 64, 65
LARGE = 128, 256, 129, 257, 200, 127, 255  # orders with their own kernels, of one thread group or of several


LARGEST = 1025  # past the threads of a group, where vendors' kernels end
ROOMY = 1 << 16  # elements that a profile allows where such orders are drawn
HEAVY = 129  # the largest order for slow ops: singular values and eigenvalues
ONE_BY_ONE = 257  # most matrices where GPUs take one after the other: an H100 needs over 20 s for 8,192, which reads as a hang


def _sides(draw: Draw, count: int, most: int = 257) -> tuple[Shape, tuple[int, ...]]:
    """Leading dimensions and the sides of matrices: mostly small; around a block in one case of six; rarely both large and
    stacked, because factorizing those is slow; with `LARGEST` rows in the profiles that have time for it. most: the largest
    side of others."""
    kind = draw.pick(48)
    if kind == 47:
        if draw.sizes.limit >= ROOMY and most > HEAVY and draw.rare(3):
            return (), (LARGEST,) * count
        large = tuple(n for n in LARGE if n <= most)
        n = draw.choice(large)
        return draw.choice(((2,), (), (1,), (3,))), tuple(n if not draw.rare(3) else draw.choice(large) for _ in range(count))
    if kind >= 39:
        n = draw.choice(BLOCKS)
        return draw.choice(((), (4,), (8,), (2,), (2, 4))), tuple(
            n if draw.flag() else draw.choice((*BLOCKS, 1, 2, 3, 52)) for _ in range(count)
        )
    return leading(draw), tuple(min(draw.extent(ORDERS), most) for _ in range(count))


def equal(draw: Draw, shape: Shape) -> TensorSpec:
    """A matrix of equal numbers: rank 1, so exactly singular from order 2 on (without a gradient)."""
    value = draw.choice((1, 0))
    return draw.inside(shape, value, value, grad=False)


def deficient(draw: Draw, shape: Shape) -> TensorSpec:
    """A matrix of equal numbers, or an exact product of two thin ones, of half the full rank (without a gradient)."""
    return equal(draw, shape) if draw.flag() else draw.matrix(shape, "half_rank", grad=False)


Options = tuple[tuple[str, Arg], ...]
UPPER: Options = (("upper", True),)
FROM_ABOVE: Options = (("UPLO", "U"),)


def _few(lead: Shape) -> Shape:
    return tuple(min(n, ONE_BY_ONE) for n in lead)


def _square(kind: str = "conditioned", options: Options = (), singular: bool = False, most: int = 257) -> Signature:
    """A stack of square matrices, with flags by name; also exactly singular ones if `singular`."""

    def signature(draw: Draw) -> Arguments:
        lead, (n,) = _sides(draw, 1, most)
        shape = (*lead, n, n)
        x = equal(draw, shape) if singular and draw.rare(8) else draw.matrix(shape, kind)
        return Arguments((x,), keywords(**{name: draw.option(value) for name, value in options}))

    return signature


def rectangle(draw: Draw, most: int = HEAVY) -> Shape:
    lead, (m, n) = _sides(draw, 2, most)
    return (*lead, m, n)


def _rectangular(options: Options = (), singular: bool = False, most: int = HEAVY) -> Signature:
    def signature(draw: Draw) -> Arguments:
        shape = rectangle(draw, most)
        x = deficient(draw, shape) if singular and draw.rare(4) else draw.matrix(shape, "full_rank")
        return Arguments((x,), keywords(**{name: draw.option(value) for name, value in options}))

    return signature


COLUMNS = 1, 2, 3, 17, 0


def _stacks(draw: Draw, lead: Shape) -> tuple[Shape, Shape]:
    """Leading dimensions of the matrices and of the right sides: the same, or broadcasting."""
    kind = draw.pick(6) if lead else 0
    return (lead, lead) if kind < 4 else (lead, draw.broadcastable(lead)) if kind == 4 else (draw.broadcastable(lead), lead)


def _system(draw: Draw) -> Arguments:
    """A X = B, or A x = b with one vector for each matrix or for all; sometimes X A = B."""
    (lead, (n,)), k = _sides(draw, 1), draw.extent(COLUMNS)
    lead, right = _stacks(draw, lead)
    a = draw.matrix((*lead, n, n))
    if draw.pick(4) == 3:
        return Arguments((a, draw.tensor((n,) if draw.flag() else (*lead, n))))
    if draw.pick(4) == 3:
        return Arguments((a, draw.tensor((*right, k, n))), keywords(left=False))
    return Arguments((a, draw.tensor((*right, n, k))))


def _factored(draw: Draw) -> Arguments:
    """Solved from the left or from the right, with the matrix or its adjoint."""
    (lead, (n,)), k, left = _sides(draw, 1), draw.extent(COLUMNS), not draw.rare(4)
    lead, right = _stacks(draw, lead)
    b = draw.tensor((*right, n, k) if left else (*right, k, n))
    return Arguments((draw.matrix((*lead, n, n)), b), keywords(left=None if left else False, adjoint=draw.option(True)))


def _definite_system(draw: Draw) -> Arguments:
    (lead, (n,)), k = _sides(draw, 1), draw.extent(COLUMNS)
    lead, right = _stacks(draw, lead)
    return Arguments((draw.matrix((*lead, n, n), "spd"), draw.tensor((*right, n, k))), keywords(upper=draw.option(True)))


def _triangular(draw: Draw) -> Arguments:
    (lead, (n,)), k = _sides(draw, 1), draw.extent(COLUMNS)
    upper, left = draw.flag(), not draw.flag()
    lead, right = _stacks(draw, lead)
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    b = draw.tensor((*right, n, k) if left else (*right, k, n))
    named = keywords(upper=upper, left=None if left else False, unitriangular=draw.option(True) if n <= 3 else None)
    return Arguments((a, b), named)  # upper has no default


def _least_squares(draw: Draw) -> Arguments:
    """More equations than unknowns, as many, or fewer; several right sides, or one as a vector."""
    (lead, sides), k = _sides(draw, 2, HEAVY), draw.choice((1, 2, 3))
    m, n = max(sides), min(sides)
    if draw.pick(3) == 2:
        m, n = n, m
    if draw.rare(3):  # as many as both agree on, and a few
        m = n + draw.choice((0, 1, 2, 5))
    b = (*lead, m) if lead and draw.rare(6) else (*lead, m, k)
    return Arguments((draw.matrix((*lead, m, n), "full_rank"), draw.inside(b, -4, 4)))  # LAPACK refuses NaN


def _tensor_system(draw: Draw) -> Arguments:
    """tensorsolve: a square system with its dimensions split."""
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return Arguments((draw.matrix((a * b, a * b)), draw.tensor((a, b)), (a, b)))


def _tensor_inverse(draw: Draw) -> Arguments:
    a, b = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return Arguments((draw.matrix((a * b, a * b)), (a, b)))


def _old_triangular(draw: Draw) -> Arguments:
    """B, A and the flags of triangular_solve."""
    lead, n, k = leading(draw), min(draw.size(), 33), draw.extent((1, 2, 3))
    upper = not draw.flag()
    a = draw.matrix((*lead, n, n), "upper" if upper else "lower")
    return Arguments((draw.tensor((*lead, n, k)), a), keywords(upper=None if upper else False, transpose=draw.option(True)))


def _rank(draw: Draw) -> Arguments:
    """Full rank or rank 1: far from the tolerance that decides the rank."""
    shape = rectangle(draw)
    x = equal(draw, shape) if draw.pick(3) == 2 else draw.matrix(shape, "full_rank")
    return Arguments((x,), keywords(rtol=draw.option(0.0078125)))


def _condition(draw: Draw) -> Arguments:
    n = min(draw.size(), 33)
    return Arguments((draw.matrix((*leading(draw)[:1], n, n)), draw.choice(("fro", 1, float("inf"), -1))))


def _eigen(draw: Draw) -> Arguments:
    lead, (n,) = _sides(draw, 1, HEAVY)
    return Arguments((draw.matrix((*_few(lead), n, n)),))


def _indefinite(draw: Draw) -> Arguments:
    lead, n, k = _few(leading(draw)), min(draw.size(), 33), draw.extent((1, 2, 3))
    return Arguments((draw.matrix((*lead, n, n), "spd"), draw.tensor((*lead, n, k))))


DECOMPOSITION = partial(_row, rule=OpClass.DECOMPOSITION)

ROWS = (
    _row(
        "cholesky",
        _square("spd", UPPER),
        forms=OUT,
        refuses=Refuses(raises_on="indefinite"),
        judged=Judged(relation="cholesky"),
        counts=Counts(("*", "cholesky")),
    ),
    _row(
        "cholesky_solve",
        _definite_system,
        refuses=Refuses(raises_on="indefinite"),
        call=GLUE,
        judged=Judged(relation="cholesky_solve"),
        counts=Counts(("cholesky_solve",)),
    ),
    _row(
        "cholesky_inverse",
        _square("spd", UPPER),
        refuses=Refuses(raises_on="indefinite"),
        call=GLUE,
        judged=Judged(relation="cholesky_inverse"),
        counts=Counts(("cholesky_inverse",)),
    ),
    _row(
        "solve",
        _system,
        forms=OUT,
        draws=Draws(cases=2),
        refuses=Refuses(raises_on="singular"),
        judged=Judged(relation="solve"),
        counts=OWN,
    ),
    _row("inv", _square(), forms=OUT, refuses=Refuses(raises_on="singular"), judged=Judged(relation="inv"), counts=OWN),
    _row("inv_ex", _square(), judged=Judged(relation="inv"), call=GLUE, counts=Counts(("linalg.inv_ex",))),
    _row("solve_ex", _system, judged=Judged(relation="solve"), call=GLUE, counts=Counts(("linalg.solve_ex",))),
    _row(
        "cholesky_old",
        _square("spd", UPPER),
        forms=OUT,
        call="torch.cholesky",
        refuses=Refuses(raises_on="indefinite"),
        judged=Judged(relation="cholesky"),
    ),
    _row("ldl_solve", _indefinite, call=GLUE, grad=(), counts=Counts(("linalg.ldl_solve",))),
    _row("triangular_solve", _old_triangular, call=GLUE, counts=Counts(("triangular_solve",))),
    _row(
        "tensorsolve", _tensor_system, call=GLUE, refuses=Refuses(raises_on="singular"), counts=Counts(("linalg.tensorsolve",))
    ),
    _row("tensorinv", _tensor_inverse, call=GLUE, refuses=Refuses(raises_on="singular"), counts=Counts(("linalg.tensorinv",))),
    _row("matrix_rank", _rank, rule=EXACT, grad=(), counts=OWN),
    _row("cond", _condition, grad=(), judged=Judged(by_norm=True), counts=OWN),
    # no out=, as lu
    _row(
        "lu_parts",
        _rectangular(most=257),
        rule=EXACT,
        call=GLUE,
        dtypes=("float32",),
        grad=(),
        refuses=Refuses(takes=("int",)),
        counts=Counts(("lu_unpack",)),
    ),
    _row("det", _square(singular=True), forms=OUT, counts=OWN),
    _row("slogdet", _square(), forms=OUT, counts=OWN),
    _row("logdet", _square("spd"), call="torch.*", dtypes=("float32",), grad=("float32",), counts=OWN),
    _row("solve_triangular", _triangular, forms=OUT, judged=Judged(relation="solve_triangular"), counts=OWN),
    _row(
        "lu_solve",
        _factored,
        refuses=Refuses(raises_on="singular"),
        call=GLUE,
        judged=Judged(relation="lu_solve"),
        counts=Counts(("linalg.lu_solve",)),
    ),
    _row(
        "lstsq",
        _least_squares,
        judged=Judged(relation="lstsq"),
        call=GLUE,
        counts=Counts(("linalg.lstsq", "linalg.lstsq:grad_oriented")),
    ),
    _row("pinv", _rectangular(), forms=OUT, judged=Judged(relation="pinv", by_norm=True), counts=OWN),
    _row(
        "pinverse",
        _rectangular(singular=True),
        call="torch.*",
        judged=Judged(relation="pinv_any_rank", by_norm=True),
        counts=OWN,
    ),
    _row("svdvals", _rectangular(singular=True), forms=OUT, judged=Judged(relation="svdvals", by_norm=True), counts=OWN),
    _row(
        "eigvalsh",
        _square("symmetric", FROM_ABOVE, singular=True, most=HEAVY),
        forms=OUT,
        judged=Judged(relation="eigvalsh", by_norm=True),
        counts=OWN,
    ),
    DECOMPOSITION(
        "svd",
        _rectangular((("full_matrices", False),), singular=True),
        forms=OUT,
        judged=Judged(relation="svd", by_norm=True),
        counts=OWN,
    ),
    DECOMPOSITION(
        "qr",
        _rectangular((("mode", "complete"),), singular=True, most=257),
        forms=OUT,
        judged=Judged(relation="qr"),
        counts=OWN,
    ),
    DECOMPOSITION(
        "geqrf",
        _rectangular(singular=True, most=257),
        call="parity.catalog.glue.layers.*",
        grad=(),
        judged=Judged(relation="qr"),
        counts=Counts(("geqrf",)),
    ),
    DECOMPOSITION(
        "eigh",
        _square("symmetric", FROM_ABOVE, most=HEAVY),
        forms=OUT,
        judged=Judged(relation="eigh", by_norm=True),
        counts=OWN,
    ),
    DECOMPOSITION("eig", _eigen, forms=OUT, judged=Judged(relation="eig", by_norm=True), counts=OWN),
    DECOMPOSITION(
        "lu_factor",
        _rectangular(most=257),
        forms=OUT,
        refuses=Refuses(raises_on="singular"),
        judged=Judged(relation="lu"),
        counts=OWN,
    ),
    # No out=: torch 2.13's CPU writes outside destinations whose batch dimensions cannot be merged (like tril and triu).
    DECOMPOSITION("lu", _rectangular(most=257), judged=Judged(relation="lu"), counts=OWN),
)
