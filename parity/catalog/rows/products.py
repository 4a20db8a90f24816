"""Other products: einsum, tensordot, distances between all pairs."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, CONTRACTION, FLOATING, NUMERIC, OWN, Refuses, Row, Wrong
from parity.catalog.rows.contractions import sizes_of, unshared_shapes

_row = partial(Row, family="contractions", rule=CONTRACTION, dtypes=NUMERIC, grad=FLOATING)

EQUATIONS = (
    "ij,jk->ik", "ij->ji", "ij->", "ii->i", "ij,j->i", "i,j->ij", "bij,bjk->bik", "bij,ijk->bik", "ijk,ilk->ijl",
    "bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "ij,ij->ij", "ij,ij->", "i,i", "...ij,...jk->...ik", "ij,jk,kl->il",
    "bi,oij,bj->bo", "ij,kj->ki", "ijk->kji", "ijk->j", "iij->ij", "ii->", "ij...->...ji", "...i,...i->...",
    "bij,bij->b", "bij,bkj->ikb", "i,j,k->kji", "bnd,hdk->bhnk", "abc,cd,abd->ab", "ij,jk",
)  # fmt: skip


def _einsum(draw: Draw) -> Arguments:
    """One size for each letter of the equation."""
    equation = draw.choice(EQUATIONS)
    sizes: dict[str, int] = {}
    lead = (2,) if draw.flag() else ()
    operands = []
    for term in equation.split("->")[0].split(","):
        shape: tuple[int, ...] = lead if "..." in term else ()
        for letter in term.replace(".", ""):
            shape = (*shape, sizes.setdefault(letter, draw.extent((2, 1, 3, 4, 5, 16))))
        operands.append(draw.tensor(shape))
    return Arguments((equation, *operands))


def _tensordot(draw: Draw) -> Arguments:
    shared = draw.shape(0, 2)
    left, right = unshared_shapes(draw)
    a, b = draw.tensor((*left, *shared)), draw.tensor((*shared, *right))
    if draw.flag():
        second = tuple(range(len(shared)))
        first = tuple(len(left) + k for k in second)
        if draw.flag():  # counted from the end, in another order
            first, second = tuple(k - len(a.shape) for k in first[::-1]), tuple(k - len(b.shape) for k in second[::-1])
        return Arguments((a, b), keywords(dims=(first, second)))
    return Arguments((a, b), keywords(dims=len(shared)))


def _cdist(draw: Draw) -> Arguments:
    n, k, m = sizes_of(draw, 3)
    lead = draw.choice(((), (1,), (2,)))
    if draw.rare(8):  # above 25 rows torch takes a product of matrices
        n, m = draw.choice((26, 33)), draw.choice((26, 30))
    p = draw.option(1.0, 0.0, 3.0, 0.5, 2.0, float("inf"))
    mode = draw.option("use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist") if p in (None, 2.0) else None
    pair = draw.tensor((*lead, n, k)), draw.tensor((*lead, m, k))
    return Arguments(pair, keywords(p=p, compute_mode=mode))


ROWS = (
    _row("einsum", _einsum, counts=OWN),
    _row("tensordot", _tensordot, counts=OWN),
    _row(
        "cdist",
        _cdist,
        rule=COMPOSITE,
        dtypes=("float32",),
        grad=("float32",),
        refuses=Refuses(wrong=(Wrong("p", -1.0),)),
        counts=OWN,
    ),
)
