"""Functions of matrices that are no factorisation: powers, norms, products; which matrices have factors at all; compressed
sparse ones."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.linalg import LAPACK, equal, leading, rectangle
from parity.catalog.row import EVERY, FLOATING, NUMERIC, Row, Signature
from parity.catalog.signatures import whole
from parity.dtypes import INTS
from parity.vocabulary import Arg, OpClass

LAYERS = "parity.catalog.layers."
_row = partial(Row, family="linalg", rule=OpClass.SOLVER, dtypes=LAPACK, grad=LAPACK)


def _power(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    return Call((draw.matrix((*leading(draw), n, n)), draw.choice((2, 0, 1, 3, -1, -2, 5, 8))))


def _matrix_norm(draw: Draw) -> Call:
    shape = draw.shape(2, 4, empty=False)
    orders: tuple[Arg, ...] = ("fro", 1, -1, float("inf"), float("-inf"))  # the others: matrix_norm_spectral
    order = draw.choice(orders)
    dims = draw.permutation(len(shape))[:2]
    named = keywords(dim=None if dims == (0, 1) and len(shape) == 2 else dims, keepdim=draw.option(True))
    return Call((draw.tensor(shape), order), named)


def _spectral_norm(draw: Draw) -> Call:
    return Call((draw.matrix(rectangle(draw), "full_rank"), draw.choice(("nuc", 2, -2))), keywords(keepdim=draw.option(True)))


def _cross(draw: Draw) -> Call:
    shape = list(draw.shape(1, 4))
    d = draw.dim(tuple(shape))
    shape[d] = 3
    other = tuple(1 if k != d % len(shape) and draw.pick(4) == 3 else s for k, s in enumerate(shape))
    return Call((draw.tensor(tuple(shape)), draw.tensor(other)), keywords(dim=d))


def _expm(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    scale = draw.choice((1, 0.0625, 6))
    return Call((draw.between((*leading(draw), n, n), -scale, scale),))


def _vander(draw: Draw) -> Call:
    return Call((draw.between((*leading(draw), min(draw.size(2), 8)), -2, 2),), keywords(N=draw.option(2, 5)))


def _householder(draw: Draw) -> Call:
    n = min(draw.size(), 17)
    m = n + draw.choice((0, 1, 3))
    lead = leading(draw)
    return Call((draw.between((*lead, m, n), -1, 1), draw.inside((*lead, n), 0, 1)))


def _compressed(by_rows: bool) -> Signature:
    """Numbers of a sparse matrix, as many in each row (or column), its width, and what is compressed."""

    def signature(draw: Draw) -> Call:
        each, count = draw.choice((1, 2, 3)), draw.choice((1, 2, 3, 5, 33))
        return Call((draw.tensor((each * count,), grad=False), each, each + draw.choice((0, 1, 4)), by_rows))

    return signature


def _doubtful(definite: bool) -> Signature:
    """Matrices that have no factors of the kind, and such that have: small ones of whole numbers, where elimination is exact,
    also many of them; equal numbers of any order, negative ones, and sound ones."""

    def signature(draw: Draw) -> Call:
        lead, n = leading(draw), draw.choice((1, 2, 3))
        kind = draw.pick(4)
        if kind == 0:
            return Call((draw.matrix((*lead, n, n), "spd" if definite else "conditioned"),))
        if kind == 1:
            return Call((equal(draw, (*lead, n, n)),))
        if kind == 2:
            n = draw.choice((8, 33, 65, 129))
            return Call((draw.inside((*lead, n, n), -1, -1, grad=False) if definite else equal(draw, (*lead, n, n)),))
        if draw.rare(3):
            lead = (4097,) if draw.rare(3) and 4097 * n * n <= draw.sizes.limit else (33,)
        return Call((whole(-1, 1)(draw, (*lead, n, n)),))

    return signature


ROWS = (
    _row(name="matrix_power", call="torch.linalg.matrix_power", signature=_power, out=True, opinfo=("linalg.matrix_power",)),
    _row(name="matrix_exp", call="torch.linalg.matrix_exp", signature=_expm, opinfo=("matrix_exp",)),
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
    *(
        _row(
            name=f"{name}_info",
            rule=OpClass.EXACT,
            call=f"{LAYERS}{name}_info",
            signature=_doubtful(definite=name == "cholesky"),
            grad=(),
        )
        for name in ("lu_factor", "cholesky", "inv", "solve")
    ),
    *(
        _row(
            name=name,
            rule=OpClass.EXACT,
            call=f"{LAYERS}compressed",
            signature=_compressed(by_rows=name == "sparse_csr_tensor"),
            dtypes=EVERY,
            grad=(),
        )
        for name in ("sparse_csr_tensor", "sparse_csc_tensor")
    ),
)
