"""Other products: einsum, tensordot, distances between all pairs."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, keywords
from parity.catalog.row import COMPOSITE, CONTRACTION, FLOATING, NUMERIC, OWN, UNCHECKED, Draws, Judged, Refuses, Row, Wrong
from parity.catalog.rows.contractions import sizes_of, unshared_shapes
from parity.core.dtypes import FLOATS

OF_PRODUCTS = "parity.catalog.glue.layers."
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


SIZES = 8, 16, 24, 64, 264  # of rows of grouped products, of which each begins at a multiple of 16 bytes
TILES = 16, 32, 48, 128, 272


def _grouped(draw: Draw) -> Arguments:
    """Groups of rows of the first operand, of terms, of columns of the second, or a stack of both; some without an element. The
    last one ends at the size. CUDA asserts that terms and columns are cut at multiples of 16 bytes."""
    n, k, m = draw.extent((1, 2, 3, 5, 17, 65)), draw.choice(SIZES), draw.choice(SIZES)
    count, kind = draw.choice((1, 2, 3, 5)), draw.pick(4)
    size, step = ((n, 1), (k, 8), (m, 8), (0, 1))[kind]
    ends = tuple(sorted(step * draw.integer(0, size // step) for _ in range(count - 1))) + (size,)
    if kind == 0:
        return Arguments((draw.tensor((n, k)), draw.tensor((count, k, m)), ends))
    if kind == 1:
        return Arguments((draw.tensor((8 * n, k)), draw.tensor((k, m)), ends))
    return Arguments(
        (draw.tensor((count, n, k)), *((draw.tensor((k, m)), ends) if kind == 2 else (draw.tensor((count, k, m)), ())))
    )


def _scaled(draw: Draw) -> Arguments:
    """Operands within float8's range, a scale of each."""
    n, k, m = (draw.choice(TILES) for _ in range(3))
    names = draw.choice(
        (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"))
    )
    scales = (draw.inside((), 0.25, 2, dtype="float32", grad=False) for _ in range(2))
    return Arguments((draw.inside((n, k), -4, 4, grad=False), draw.inside((k, m), -4, 4, grad=False), *scales, names))


ROWS = (
    # packed: rows must begin at multiples of 16 bytes
    _row(
        "grouped_mm",
        _grouped,
        call=f"{OF_PRODUCTS}*",
        dtypes=FLOATS,
        grad=FLOATS,
        draws=Draws(packed=1 << 20),
        refuses=UNCHECKED,
    ),
    # in float32 what shows is how coarsely tensor cores add float8 products
    _row(
        "scaled_mm",
        _scaled,
        call=f"{OF_PRODUCTS}*",
        dtypes=("bfloat16",),
        grad=(),
        refuses=UNCHECKED,
        judged=Judged(oracle=f"{OF_PRODUCTS}scaled"),
    ),
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
