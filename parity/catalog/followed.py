"""Products and convolutions between other operators.

`_then`: the next one changes their result in place, as layers with inplace=True have it. What a kernel hands out may be a view
(an unbatched convolution), or memory that a graph still holds: a write into it is lost.
`_of`: another one has just made their operand. What it hands on may have strides, or dimensions of its own, that its result
does not tell.
"""

from __future__ import annotations

from parity.catalog import contractions, convolutions
from parity.catalog.draw import Call, Draw
from parity.catalog.row import Row, Signature
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass, TensorSpec

ACTIVATIONS = "relu", "leaky_relu", "hardtanh", "mul", "abs"  # `parity.catalog.layers.IN_PLACE`
FOLLOWED = {
    **{row.name: row for row in contractions.ROWS if row.name in ("linear", "bmm")},
    **{row.name: row for row in convolutions.ROWS if row.name in ("conv1d", "conv2d")},
}


def _then(of: Signature) -> Signature:
    """A word for what follows in place, and the call: numbers of a usual size."""

    def signature(draw: Draw) -> Call:
        act = draw.choice(ACTIVATIONS)
        call: Call = of(draw)
        plain = (draw.inside(a.shape, -2, 2) for a in call.args if isinstance(a, TensorSpec))
        named = ((n, draw.inside(v.shape, -2, 2) if isinstance(v, TensorSpec) else v) for n, v in call.kwargs)
        return Call((act, *plain), tuple(named))

    return signature


ALIKE = "roll", "flip", "turned", "where", "select"  # `parity.catalog.layers.ALIKE`
LONGER = *ALIKE, "upsample", "pad", "cat", "constant", "upsample", "pad"


def _of(name: str, of: Signature) -> Signature:
    """A word for what made the operand, and the call: numbers of a usual size."""

    def signature(draw: Draw) -> Call:
        how = draw.choice(LONGER if name.startswith("conv") else ALIKE)
        call: Call = of(draw)
        operands = [draw.inside(a.shape, -2, 2, grad=a.grad) for a in call.args if isinstance(a, TensorSpec)]
        empty = not operands[0].numel or not operands[0].shape[:-1]
        named = ((n, draw.inside(v.shape, -2, 2) if isinstance(v, TensorSpec) else v) for n, v in call.kwargs)
        return Call(("flip" if empty else how, *operands), tuple(named))

    return signature


OF = tuple(
    Row(
        name=f"{name}_of",
        family="followed",
        rule=OpClass.COMPOSITE,
        call=f"parity.catalog.layers.{name}_of",
        signature=_of(name, row.signature),
        dtypes=FLOATS,
        grad=FLOATS,
        rounds_between=True,
    )
    for name, row in FOLLOWED.items()
)
THEN = tuple(
    Row(
        name=f"{name}_then",
        family="followed",
        rule=OpClass.COMPOSITE,  # an activation that saturates bounds what is summed, not what the sum is off by
        call=f"parity.catalog.layers.{name}_then",
        signature=_then(row.signature),
        dtypes=FLOATS,
        grad=(),  # where an activation bends, its gradient has a step that rounding may take
        rounds_between=True,
    )
    for name, row in FOLLOWED.items()
)
ROWS = (*THEN, *OF)
