"""Recurrent layers and cells, in the functional form that the modules call; without dropout."""

from __future__ import annotations

from functools import partial

from parity.catalog import coupled
from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import COMPOSITE, GLUE, ROUNDED, UNCHECKED, Counts, Draws, Row, Signature
from parity.core.case import TensorSpec
from parity.core.dtypes import FLOATS

# rounds_between: every step rounds the hidden state to the dtype.
_row = partial(
    Row,
    family="recurrent",
    rule=COMPOSITE,
    dtypes=FLOATS,
    grad=FLOATS,
    draws=Draws(lesser=coupled.lesser),
    refuses=UNCHECKED,
    judged=ROUNDED,
)


def _weights(
    draw: Draw, sizes: tuple[int, int, int], gates: int, biases: bool, layers: int = 1, ways: int = 1
) -> tuple[TensorSpec, ...]:
    """w_ih, w_hh (and their biases, and a projection of the hidden state) for each layer and direction. sizes: features, hidden
    features, and projected ones or 0."""
    features, hidden, projected = sizes
    weights: list[TensorSpec] = []
    seen = projected or hidden
    for layer in range(layers):
        width = features if layer == 0 else seen * ways
        for _ in range(ways):
            weights += [draw.between((gates * hidden, width), -1, 1), draw.between((gates * hidden, seen), -1, 1)]
            if biases:
                weights += [draw.between((gates * hidden,), -1, 1), draw.between((gates * hidden,), -1, 1)]
            if projected:
                weights.append(draw.between((projected, hidden), -1, 1))
    return tuple(weights)


# Length, batch, features and hidden features, one of them around a block or a thread group.
LONG = (17, 1, 1, 2), (33, 1, 1, 2), (2, 33, 1, 2), (1, 65, 2, 1), (2, 1, 65, 2), (2, 1, 128, 1), (2, 2, 1, 33), (1, 1, 2, 65)


def _layers(gates: int, states: int) -> Signature:
    """Layers, directions, batch first or second, biases or none, projected states; training, or dropout that evaluation
    must ignore; sometimes long sequences."""

    def signature(draw: Draw) -> Arguments:
        length, batch = draw.choice((1, 2, 3, 5)), draw.extent((1, 2, 3, 5))
        features, hidden = draw.extent((1, 2, 3, 5, 16)), draw.extent((1, 2, 3, 5, 17))
        layers, two, first, biases = draw.choice((1, 2, 3)), draw.flag(), draw.flag(), not draw.flag()
        if draw.rare(20):  # one long dimension
            length, batch, features, hidden = draw.choice(LONG)
            layers = 1
        train = draw.flag()
        ways = 2 if two else 1
        projected = draw.choice((1, 2)) if states == 2 and hidden > 2 and draw.pick(5) == 4 else 0
        dropout = 0.0 if train else draw.choice((0.0, 0.5, 1.0))
        x = draw.between((batch, length, features) if first else (length, batch, features), -2, 2)
        sizes = projected or hidden, hidden
        state = tuple(draw.between((layers * ways, batch, sizes[k]), -1, 1) for k in range(states))
        weights = _weights(draw, (features, hidden, projected), gates, biases, layers, ways)
        return Arguments((x, state if states > 1 else state[0], weights, biases, layers, dropout, train, two, first))

    return signature


def _packed(gates: int, states: int) -> Signature:
    """Packed sequences of decreasing lengths: the steps of all of them, and the lengths."""

    def signature(draw: Draw) -> Arguments:
        lengths = [draw.choice((1, 2, 3, 5))]
        while len(lengths) < 4 and draw.flag():
            lengths.append(max(1, lengths[-1] - draw.pick(3)))
        features, hidden = draw.extent((1, 2, 3, 16)), draw.extent((1, 2, 3, 17))
        layers, two, biases, train = draw.choice((1, 2)), draw.flag(), not draw.flag(), draw.flag()
        ways = 2 if two else 1
        x = draw.between((sum(lengths), features), -2, 2)
        state = tuple(draw.between((layers * ways, len(lengths), hidden), -1, 1) for _ in range(states))
        weights = _weights(draw, (features, hidden, 0), gates, biases, layers, ways)
        dropout = 0.0 if train else draw.choice((0.0, 0.5))
        return Arguments((x, tuple(lengths), state if states > 1 else state[0], weights, biases, layers, dropout, train, two))

    return signature


def _cell(gates: int, states: int) -> Signature:
    def signature(draw: Draw) -> Arguments:
        batch, features, hidden = draw.extent((1, 2, 3)), draw.extent((1, 2, 3, 5, 16)), draw.extent((1, 2, 3, 5, 17))
        state = tuple(draw.between((batch, hidden), -1, 1) for _ in range(states))
        weights = _weights(draw, (features, hidden, 0), gates, draw.flag())
        return Arguments((draw.between((batch, features), -2, 2), state if states > 1 else state[0], *weights))

    return signature


ROWS = (
    _row("lstm", _layers(4, 2), call=GLUE, counts=Counts(mps="own")),
    _row("lstm_output", _layers(4, 2), call="parity.catalog.glue.layers.*", counts=Counts(under="lstm")),
    _row("lstm_states", _layers(4, 2), call="parity.catalog.glue.layers.*", counts=Counts(under="lstm")),
    _row("lstm_packed", _packed(4, 2), call="parity.catalog.glue.layers.*", counts=Counts(under="lstm")),
    _row("gru_packed", _packed(3, 1), call="parity.catalog.glue.layers.*", counts=Counts(under="gru")),
    _row("gru", _layers(3, 1), call=GLUE),
    _row("rnn_tanh", _layers(1, 1), call=GLUE),
    _row("rnn_relu", _layers(1, 1), call=GLUE),
    _row("lstm_cell", _cell(4, 2)),
    _row("gru_cell", _cell(3, 1)),
    _row("rnn_tanh_cell", _cell(1, 1)),
    _row("rnn_relu_cell", _cell(1, 1)),
)
