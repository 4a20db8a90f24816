"""Recurrent layers and cells, in the functional form that the modules call; without dropout.

Shrinks the sizes of recurrent calls. torch does not check that the operands of such a call fit together, so each size must
change in all operands at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from parity.catalog.draw import Arguments, Draw
from parity.catalog.row import COMPOSITE, GLUE, ROUNDED, UNCHECKED, Counts, Draws, Row, Signature
from parity.core.case import Arg, Case, TensorSpec
from parity.core.dtypes import FLOATS

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
SIZES = ("length", "batch", "features", "hidden")


@dataclass(frozen=True, slots=True)
class _Recurrent:
    """The sizes and operands of a recurrent call, of layers or of a cell. lengths: of packed sequences, else (). projected:
    size of the projection, 0 without."""

    gates: int
    x: TensorSpec
    states: tuple[TensorSpec, ...]
    weights: tuple[TensorSpec, ...]
    length: int
    batch: int
    features: int
    hidden: int
    lengths: tuple[int, ...] = ()
    layers: int = 1
    ways: int = 1
    biases: bool = True
    projected: int = 0
    first: bool = False
    cell: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of weights that each layer has in each direction."""
        return ("in", "state", *(("bias", "bias of the state") if self.biases else ()), *(("out",) if self.projected else ()))

    def resized(self) -> _Recurrent:
        """The call with operands of its sizes. `weights` must already be those of its layers, directions and kinds."""
        seen, wide = self.projected or self.hidden, self.gates * self.hidden
        steps = (sum(self.lengths),) if self.lengths else (self.batch, self.length) if self.first else (self.length, self.batch)
        shape = (self.batch, self.features) if self.cell else (*steps, self.features)
        lead = () if self.cell else (self.layers * self.ways,)
        states = tuple(
            replace(s, shape=(*lead, self.batch, seen if k == 0 else self.hidden)) for k, s in enumerate(self.states)
        )
        weights = []
        for n, spec in enumerate(self.weights):
            layer, kind = n // (len(self.kinds) * self.ways), self.kinds[n % len(self.kinds)]
            width = self.features if layer == 0 else seen * self.ways
            rows = {"in": (wide, width), "state": (wide, seen), "out": (self.projected, self.hidden)}
            weights.append(replace(spec, shape=rows.get(kind, (wide,))))
        return replace(self, x=replace(self.x, shape=shape), states=states, weights=tuple(weights))

    def without(self, layers: int, ways: int, kinds: tuple[str, ...]) -> tuple[TensorSpec, ...]:
        """The weights of these kinds in the first `layers` layers and `ways` directions."""
        each = len(self.kinds)
        numbered = enumerate(self.weights)
        return tuple(
            s
            for n, s in numbered
            if n // (each * self.ways) < layers and n // each % self.ways < ways and self.kinds[n % each] in kinds
        )


def lesser(case: Case) -> Iterator[Case]:
    """The case with one size smaller, or with fewer layers, directions or biases; the largest reductions first."""
    net = _parse(case)
    if net is None:
        return
    yield from (_as_case(case, n.resized()) for n in _smaller(net))


def _smaller(net: _Recurrent) -> Iterator[_Recurrent]:
    plain = replace(net, layers=1, ways=1, biases=False, projected=0)
    plain = replace(plain, weights=net.without(1, 1, plain.kinds))
    if net.cell:
        plain = replace(net, biases=False, weights=net.without(1, 1, ("in", "state")))
    for wide in (plain, net):
        if sized := _limited(wide, 1):
            yield sized
    if plain.weights != net.weights:
        yield plain
    for size in SIZES:
        n = getattr(net, size)
        steps = (1, 2, 3, *(n - (n >> k) for k in range(1, n.bit_length())), n - 1)
        least = net.projected if size == "hidden" else 0  # a projection must be smaller than the hidden size
        for less in dict.fromkeys(k for k in steps if least < k < n):
            if net.lengths and size in ("length", "batch"):
                lengths = net.lengths[:less] if size == "batch" else tuple(min(k, less) for k in net.lengths)
                yield replace(net, lengths=lengths, batch=len(lengths), length=lengths[0])
            else:
                yield replace(net, **{size: less})
    for layers in (1, net.layers - 1):
        if 0 < layers < net.layers:
            yield replace(net, layers=layers, weights=net.without(layers, net.ways, net.kinds))
    if net.ways > 1:
        yield replace(net, ways=1, weights=net.without(net.layers, 1, net.kinds))
    for kind, less in (("biases", replace(net, biases=False)), ("projected", replace(net, projected=0))):
        if getattr(net, kind):
            yield replace(less, weights=net.without(net.layers, net.ways, less.kinds))
    if net.projected > 1:
        yield replace(net, projected=1)


def _limited(net: _Recurrent, most: int) -> _Recurrent | None:
    """The call with all sizes limited to `most`; None if that changes nothing."""
    cut = {size: min(getattr(net, size), most) for size in SIZES}
    lengths = tuple(min(n, most) for n in net.lengths[:most])
    projected = min(net.projected, most)
    cut["hidden"] = min(net.hidden, max(most, projected + 1))
    reduced = replace(net, **cut, lengths=lengths, projected=projected)
    return reduced if reduced != net else None


def _operands(arg: Arg) -> tuple[TensorSpec, ...]:
    return (
        tuple(a for a in arg if isinstance(a, TensorSpec))
        if isinstance(arg, tuple)
        else (arg,)
        if isinstance(arg, TensorSpec)
        else ()
    )


def _parse(case: Case) -> _Recurrent | None:
    """The sizes and operands of a call of `parity.catalog.rows.recurrent`."""
    gates = GATES[case.op.partition("_")[0]]
    x, *rest = case.args
    assert isinstance(x, TensorSpec)
    if case.op.endswith("_cell"):
        states, weights = _operands(rest[0]), tuple(a for a in rest[1:] if isinstance(a, TensorSpec))
        batch, features = x.shape
        return _Recurrent(
            gates, x, states, weights, 1, batch, features, states[-1].shape[-1], biases=len(weights) > 2, cell=True
        )
    lengths: tuple[int, ...] = ()
    if case.op.endswith("_packed"):
        sizes, *rest = rest
        lengths = tuple(n for n in sizes if isinstance(n, int)) if isinstance(sizes, tuple) else ()
    states, weights = _operands(rest[0]), _operands(rest[1])
    biases, layers, _, _, two, *first = rest[2:]
    assert isinstance(layers, int)
    hidden, seen = states[-1].shape[-1], states[0].shape[-1]
    batch, length = states[0].shape[1], lengths[0] if lengths else x.shape[1 if first[0] else 0]
    return _Recurrent(
        gates, x, states, weights, length, batch, x.shape[-1], hidden, lengths, layers, 2 if two else 1, bool(biases),
        seen if seen != hidden else 0, bool(first and first[0]),
    )  # fmt: skip


def _as_case(case: Case, net: _Recurrent) -> Case:
    """The case with the sizes and operands of `net`; all else is unchanged."""
    state: Arg = net.states if len(net.states) > 1 else net.states[0]
    if net.cell:
        return replace(case, args=(net.x, state, *net.weights))
    lengths: tuple[Arg, ...] = (net.lengths,) if net.lengths else ()
    k = 1 + len(lengths)
    _, _, dropout, train, _, *first = case.args[k + 2 :]
    named = (net.biases, net.layers, dropout, train, net.ways > 1, *first)
    return replace(case, args=(net.x, *lengths, state, net.weights, *named))


# rounds_between: every step rounds the hidden state to the dtype.
_row = partial(
    Row,
    family="recurrent",
    rule=COMPOSITE,
    dtypes=FLOATS,
    grad=FLOATS,
    draws=Draws(lesser=lesser),
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
