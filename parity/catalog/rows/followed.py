"""Products and convolutions between other operators.

`_then`: the next operator changes their result in place, like layers with inplace=True. The result may be a view (of an
unbatched convolution) or memory that a graph still uses, and then a faulty device loses the write.
`_of`: their operand is the result of another operator. On the device it may have strides or dimensions that differ from those
that torch reports.
"""

from __future__ import annotations

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import COMPOSITE, Judged, Row, Signature
from parity.catalog.rows import contractions, convolutions
from parity.core.case import TensorSpec
from parity.core.dtypes import FLOATS

ACTIVATIONS = "relu", "leaky_relu", "hardtanh", "mul", "abs"  # `parity.catalog.glue.layers.IN_PLACE`
FOLLOWED = {
    **{row.name: row for row in contractions.ROWS if row.name in ("linear", "bmm")},
    **{row.name: row for row in convolutions.ROWS if row.name in ("conv1d", "conv2d")},
}


def _then(of: Signature) -> Signature:
    """(name of the in-place function, arguments of the call), with small numbers."""

    def signature(draw: Draw) -> Arguments:
        act = draw.choice(ACTIVATIONS)
        call: Arguments = of(draw)
        plain = (draw.inside(a.shape, -2, 2) for a in call.args if isinstance(a, TensorSpec))
        named = ((n, draw.inside(v.shape, -2, 2) if isinstance(v, TensorSpec) else v) for n, v in call.kwargs)
        return Arguments((act, *plain), tuple(named))

    return signature


ALIKE = "roll", "flip", "turned", "where", "select"  # `parity.catalog.glue.layers.ALIKE`
LONGER = *ALIKE, "upsample", "pad", "cat", "constant", "upsample", "pad"


def _of(name: str, of: Signature) -> Signature:
    """(name of the operator that makes the operand, arguments of the call), with small numbers."""

    def signature(draw: Draw) -> Arguments:
        how = draw.choice(LONGER if name.startswith("conv") else ALIKE)
        call: Arguments = of(draw)
        operands = [draw.inside(a.shape, -2, 2, grad=a.grad) for a in call.args if isinstance(a, TensorSpec)]
        empty = not operands[0].numel or not operands[0].shape[:-1]
        named = ((n, draw.inside(v.shape, -2, 2) if isinstance(v, TensorSpec) else v) for n, v in call.kwargs)
        return Arguments(("flip" if empty else how, *operands), tuple(named))

    return signature


OF = tuple(
    Row(
        f"{name}_of",
        _of(name, row.signature),
        family="followed",
        rule=COMPOSITE,
        call="parity.catalog.glue.layers.*",
        dtypes=FLOATS,
        grad=FLOATS,
        judged=Judged(rounds_between=True, gauss=row.judged.gauss, bias=row.judged.bias),
    )
    for name, row in FOLLOWED.items()
)
THEN = tuple(
    # rule: an activation that saturates bounds the result, but not the error of the sum
    # grad: activations have kinks, where rounding may change the gradient
    Row(
        f"{name}_then",
        _then(row.signature),
        family="followed",
        rule=COMPOSITE,
        call="parity.catalog.glue.layers.*",
        dtypes=FLOATS,
        grad=(),
        judged=Judged(rounds_between=True, gauss=row.judged.gauss, bias=row.judged.bias),
    )
    for name, row in FOLLOWED.items()
)
ROWS = (*THEN, *OF)
