"""Functions of matrices other than factorisations: powers, norms, products; info of factorisations; compressed sparse
matrices."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import (
    COMPOSITE,
    EVERY,
    EXACT,
    FLOATING,
    NUMERIC,
    OUT,
    OWN,
    ROUNDED,
    SOLVER,
    Counts,
    Judged,
    Refuses,
    Row,
    Signature,
)
from parity.catalog.rows.linalg import LAPACK, equal, leading, rectangle
from parity.catalog.signatures import whole
from parity.core.case import Arg
from parity.core.dtypes import INTS

LAYERS = "parity.catalog.glue.layers."
_row = partial(Row, family="linalg", rule=SOLVER, dtypes=LAPACK, grad=LAPACK, call="torch.linalg.*")


def _power(draw: Draw) -> Arguments:
    n = min(draw.size(), 17)
    return Arguments((draw.matrix((*leading(draw), n, n)), draw.choice((2, 0, 1, 3, -1, -2, 5, 8))))


def _matrix_norm(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4, empty=False)
    orders: tuple[Arg, ...] = ("fro", 1, -1, float("inf"), float("-inf"))  # the others: matrix_norm_spectral
    order = draw.choice(orders)
    dims = draw.permutation(len(shape))[:2]
    named = keywords(dim=None if dims == (0, 1) and len(shape) == 2 else dims, keepdim=draw.option(True))
    return Arguments((draw.tensor(shape), order), named)


def _spectral_norm(draw: Draw) -> Arguments:
    return Arguments(
        (draw.matrix(rectangle(draw), "full_rank"), draw.choice(("nuc", 2, -2))), keywords(keepdim=draw.option(True))
    )


def _cross(draw: Draw) -> Arguments:
    shape = list(draw.shape(1, 4))
    d = draw.dim(tuple(shape))
    shape[d] = 3
    other = tuple(1 if k != d % len(shape) and draw.pick(4) == 3 else s for k, s in enumerate(shape))
    return Arguments((draw.tensor(tuple(shape)), draw.tensor(other)), keywords(dim=d))


def _expm(draw: Draw) -> Arguments:
    n = min(draw.size(), 17)
    scale = draw.choice((1, 0.0625, 6))
    return Arguments((draw.between((*leading(draw), n, n), -scale, scale),))


def _vander(draw: Draw) -> Arguments:
    return Arguments((draw.between((*leading(draw), min(draw.size(2), 8)), -2, 2),), keywords(N=draw.option(2, 5)))


def _householder(draw: Draw) -> Arguments:
    n = min(draw.size(), 17)
    m = n + draw.choice((0, 1, 3))
    lead = leading(draw)
    return Arguments((draw.between((*lead, m, n), -1, 1), draw.inside((*lead, n), 0, 1)))


def _reflected(draw: Draw) -> Arguments:
    """A matrix times the product of Householder reflections, from either side, adjoint or not."""
    n = min(draw.size(), 17)
    m = n + draw.choice((0, 1, 3))
    lead, left, columns = leading(draw), not draw.flag(), draw.choice((2, 1, 5))
    other = draw.tensor((*lead, m, columns) if left else (*lead, columns, m))
    vectors = draw.between((*lead, m, n), -1, 1), draw.inside((*lead, n), 0, 1)
    return Arguments((*vectors, other), keywords(left=None if left else False, transpose=draw.option(True)))


def _compressed(by_rows: bool) -> Signature:
    """(values of a sparse matrix, number per row or column, width, whether rows are compressed)."""

    def signature(draw: Draw) -> Arguments:
        each, count = draw.extent((1, 2, 3)), draw.extent((1, 2, 3, 5, 33))
        return Arguments((draw.tensor((each * count,), grad=False), each, each + draw.choice((0, 1, 4)), by_rows))

    return signature


def _doubtful(definite: bool) -> Signature:
    """Matrices with and without factors of the kind: small ones of integers, where elimination is exact, also in large batches;
    equal numbers of any order, negative ones, and regular ones."""

    def signature(draw: Draw) -> Arguments:
        lead, n = leading(draw), draw.choice((1, 2, 3))
        kind = draw.pick(4)
        if kind == 0:
            return Arguments((draw.matrix((*lead, n, n), "spd" if definite else "conditioned"),))
        if kind == 1:
            return Arguments((equal(draw, (*lead, n, n)),))
        if kind == 2:
            n = draw.choice((8, 33, 65, 129))
            return Arguments((draw.inside((*lead, n, n), -1, -1, grad=False) if definite else equal(draw, (*lead, n, n)),))
        if draw.rare(3):
            lead = (4097,) if draw.rare(3) and 4097 * n * n <= draw.sizes.limit else (33,)
        return Arguments((whole(-1, 1)(draw, (*lead, n, n)),))

    return signature


ROWS = (
    _row("matrix_power", _power, forms=OUT, refuses=Refuses(takes=("int",)), counts=OWN),
    _row("matrix_exp", _expm, counts=Counts(("matrix_exp",))),
    _row("matrix_norm", _matrix_norm, rule=COMPOSITE, dtypes=FLOATING, grad=FLOATING, forms=OUT, counts=OWN),
    _row(
        "matrix_norm_spectral",
        _spectral_norm,
        forms=OUT,
        call="torch.linalg.matrix_norm",
        judged=Judged(relation="spectral_norm", by_norm=True),
    ),
    # rounds_between: two products and a difference, each in the dtype
    _row(
        "cross", _cross, forms=OUT, rule=COMPOSITE, dtypes=NUMERIC, grad=FLOATING, judged=ROUNDED, counts=Counts(("*", "cross"))
    ),
    _row("vander", _vander, rule=COMPOSITE, dtypes=(*LAPACK, *INTS), counts=OWN),
    _row("householder_product", _householder, rule=COMPOSITE, forms=OUT, counts=OWN),
    _row("ormqr", _reflected, rule=COMPOSITE, call="torch.ormqr", forms=OUT, counts=OWN),
    *(
        _row(
            f"{name}_info",
            _doubtful(definite=name == "cholesky"),
            rule=EXACT,
            call=LAYERS + "*",
            grad=(),
            counts=Counts(under=f"linalg.{name}_ex"),
        )
        for name in ("lu_factor", "cholesky", "inv", "solve")
    ),
    *(
        _row(
            name,
            _compressed(by_rows=name == "sparse_csr_tensor"),
            rule=EXACT,
            call=f"{LAYERS}compressed",
            dtypes=EVERY,
            grad=(),
        )
        for name in ("sparse_csr_tensor", "sparse_csc_tensor")
    ),
)
