"""Products and convolutions whose result the next operator changes in place, as layers with inplace=True have it.

What a kernel hands out may be a view (an unbatched convolution), or memory that a graph still holds: a write into it is lost.
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


ROWS = tuple(
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
