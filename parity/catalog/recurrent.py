"""Recurrent layers and cells, in the functional form that the modules call; without dropout."""

from __future__ import annotations

from functools import partial

from parity.catalog import coupled
from parity.catalog.draw import Call, Draw
from parity.catalog.row import Row, Signature
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass, TensorSpec

# Every step rounds the hidden state to the dtype.
_row = partial(
    Row, family="recurrent", rule=OpClass.COMPOSITE, dtypes=FLOATS, grad=FLOATS, rounds_between=True, lesser=coupled.lesser
)


def _weights(
    draw: Draw, features: int, hidden: int, layers: int, ways: int, gates: int, biases: bool, projected: int = 0
) -> tuple[TensorSpec, ...]:
    """w_ih, w_hh (and their biases, and a projection of the hidden state) for each layer and direction."""
    made: list[TensorSpec] = []
    seen = projected or hidden
    for layer in range(layers):
        width = features if layer == 0 else seen * ways
        for _ in range(ways):
            made += [draw.between((gates * hidden, width), -1, 1), draw.between((gates * hidden, seen), -1, 1)]
            if biases:
                made += [draw.between((gates * hidden,), -1, 1), draw.between((gates * hidden,), -1, 1)]
            if projected:
                made.append(draw.between((projected, hidden), -1, 1))
    return tuple(made)


# Length, batch, features and hidden features, one of them around a block or a group of threads.
LONG = (17, 1, 1, 2), (33, 1, 1, 2), (2, 33, 1, 2), (1, 65, 2, 1), (2, 1, 65, 2), (2, 1, 128, 1), (2, 2, 1, 33), (1, 1, 2, 65)


def _layers(gates: int, states: int) -> Signature:
    """Layers, directions, batch first or second, biases or none, projected states; training, or dropout that evaluation
    must leave out; long sequences now and then."""

    def signature(draw: Draw) -> Call:
        length, batch = draw.choice((1, 2, 3, 5)), draw.choice((1, 2, 3, 5))
        features, hidden = draw.choice((1, 2, 3, 5, 16)), draw.choice((1, 2, 3, 5, 17))
        layers, two, first, biases = draw.choice((1, 2, 3)), draw.flag(), draw.flag(), not draw.flag()
        if draw.rare(20):  # one long side
            length, batch, features, hidden = draw.choice(LONG)
            layers = 1
        train = draw.flag()
        ways = 2 if two else 1
        projected = draw.choice((1, 2)) if states == 2 and hidden > 2 and draw.pick(5) == 4 else 0
        dropout = 0.0 if train else draw.choice((0.0, 0.5, 1.0))
        x = draw.between((batch, length, features) if first else (length, batch, features), -2, 2)
        sizes = projected or hidden, hidden
        state = tuple(draw.between((layers * ways, batch, sizes[k]), -1, 1) for k in range(states))
        weights = _weights(draw, features, hidden, layers, ways, gates, biases, projected)
        return Call((x, state if states > 1 else state[0], weights, biases, layers, dropout, train, two, first))

    return signature


def _packed(gates: int, states: int) -> Signature:
    """Sequences of falling lengths, packed: the steps of all of them, one after the other, and how many run at each step."""

    def signature(draw: Draw) -> Call:
        lengths = [draw.choice((1, 2, 3, 5))]
        while len(lengths) < 4 and draw.flag():
            lengths.append(max(1, lengths[-1] - draw.pick(3)))
        features, hidden = draw.choice((1, 2, 3, 16)), draw.choice((1, 2, 3, 17))
        layers, two, biases, train = draw.choice((1, 2)), draw.flag(), not draw.flag(), draw.flag()
        ways = 2 if two else 1
        x = draw.between((sum(lengths), features), -2, 2)
        state = tuple(draw.between((layers * ways, len(lengths), hidden), -1, 1) for _ in range(states))
        weights = _weights(draw, features, hidden, layers, ways, gates, biases)
        dropout = 0.0 if train else draw.choice((0.0, 0.5))
        return Call((x, tuple(lengths), state if states > 1 else state[0], weights, biases, layers, dropout, train, two))

    return signature


def _cell(gates: int, states: int) -> Signature:
    def signature(draw: Draw) -> Call:
        batch, features, hidden = draw.choice((1, 2, 3)), draw.choice((1, 2, 3, 5, 16)), draw.choice((1, 2, 3, 5, 17))
        state = tuple(draw.between((batch, hidden), -1, 1) for _ in range(states))
        weights = _weights(draw, features, hidden, 1, 1, gates, draw.flag())
        return Call((draw.between((batch, features), -2, 2), state if states > 1 else state[0], *weights))

    return signature


ROWS = (
    _row(name="lstm", call="parity.catalog.calls.lstm", signature=_layers(4, 2)),
    _row(name="lstm_output", call="parity.catalog.layers.lstm_output", signature=_layers(4, 2)),
    _row(name="lstm_states", call="parity.catalog.layers.lstm_states", signature=_layers(4, 2)),
    _row(name="lstm_packed", call="parity.catalog.layers.lstm_packed", signature=_packed(4, 2)),
    _row(name="gru_packed", call="parity.catalog.layers.gru_packed", signature=_packed(3, 1)),
    _row(name="gru", call="parity.catalog.calls.gru", signature=_layers(3, 1)),
    _row(name="rnn_tanh", call="parity.catalog.calls.rnn_tanh", signature=_layers(1, 1)),
    _row(name="rnn_relu", call="parity.catalog.calls.rnn_relu", signature=_layers(1, 1)),
    _row(name="lstm_cell", call="torch.lstm_cell", signature=_cell(4, 2)),
    _row(name="gru_cell", call="torch.gru_cell", signature=_cell(3, 1)),
    _row(name="rnn_tanh_cell", call="torch.rnn_tanh_cell", signature=_cell(1, 1)),
    _row(name="rnn_relu_cell", call="torch.rnn_relu_cell", signature=_cell(1, 1)),
)
