"""Sparse tensors in coordinates (COO) and compressed rows (CSR), made of dense operands inside of the call."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import CONTRACTION, EXACT, GLUE, Judged, Row
from parity.catalog.signatures import whole
from parity.core.case import TensorSpec
from parity.core.dtypes import FLOATS

# In half types sums of places that come twice are stored (accumulates), and products take the stored sums (rounds_between).
_row = partial(
    Row,
    family="sparse",
    rule=CONTRACTION,
    call=GLUE.replace("calls", "sparse"),
    dtypes=FLOATS,
    grad=FLOATS,
    judged=Judged(rounds_between=True, accumulates=("forward", "backward")),
)
SINGLE = ("float32",)  # the CPU refuses the others
COUNTS = (4, 1, 2, 0, 9, 33, 130)  # of places


def _places(draw: Draw, n: int) -> tuple[TensorSpec, TensorSpec, tuple[int, int]]:
    """Rows, columns, and the size of the matrix. Few rows and columns, so that places come twice."""
    size = draw.extent((2, 3, 5, 17)), draw.extent((3, 1, 4, 33))
    return draw.index((n,), size[0]), draw.index((n,), size[1]), size


def _matrix(draw: Draw) -> Arguments:
    """(values, rows, columns, size). Some have a vector at each place, but never at a single one: there the CPU's to_dense
    takes the stride of the places for the length of the vector (torch 2.13), and adds what lies behind it to the next place."""
    n = draw.extent(COUNTS)
    rows, columns, size = _places(draw, n)
    vectors = draw.rare(4) and n != 1
    return Arguments((draw.tensor((n, draw.extent((2, 5))) if vectors else (n,)), rows, columns, size))


def _compressed(draw: Draw) -> Arguments:
    """(values, number in each row, width)."""
    each, count = draw.extent((2, 1, 3)), draw.extent((3, 1, 2, 5, 33))
    return Arguments((draw.tensor((each * count,)), each, each + draw.choice((0, 1, 4))))


def _product(draw: Draw) -> Arguments:
    n = draw.extent(COUNTS)
    rows, columns, size = _places(draw, n)
    return Arguments((draw.tensor((n,)), rows, columns, size, draw.tensor((size[1], draw.extent((2, 1, 5, 17))))))


def _compressed_product(draw: Draw) -> Arguments:
    (values, each, width), columns = _compressed(draw).args, draw.extent((2, 1, 5, 17))
    assert isinstance(width, int)
    return Arguments((values, each, width, draw.tensor((width, columns))))


def _two(draw: Draw) -> Arguments:
    n = draw.extent(COUNTS)
    rows, columns, size = _places(draw, n)
    return Arguments((draw.tensor((n,)), draw.tensor((n,)), rows, columns, size))


def _summed(draw: Draw) -> Arguments:
    return Arguments((*_matrix(draw).args, draw.choice((0, 1, (0, 1), -1))))


def _scaled(draw: Draw) -> Arguments:
    """The gradient of the dense factor would be a sparse tensor, which is not judged."""
    n = draw.extent(COUNTS)
    rows, columns, size = _places(draw, n)
    return Arguments((draw.tensor((n,)), rows, columns, size, draw.tensor(size, grad=False)))


def _dense(draw: Draw) -> Arguments:
    """Tensors with zeros, and how many dimensions are sparse."""
    shape = draw.shape(1, 3)
    x = whole(-1, 1)(draw, shape) if draw.flag() else draw.tensor(shape)
    return Arguments((x, *draw.choice(((), (1,)))))


ROWS = (
    _row("coo_to_dense", _matrix),
    _row("coo_coalesce", _matrix),
    _row("coo_mm", _product),
    _row("coo_add", _two, dtypes=SINGLE, grad=SINGLE),
    _row("coo_sum", _summed),
    _row("coo_mul", _scaled),
    _row("csr_to_dense", _compressed, rule=EXACT, judged=Judged()),
    _row("csr_mm", _compressed_product, dtypes=SINGLE, grad=SINGLE),
    _row("to_sparse", _dense, rule=EXACT, judged=Judged()),
)
