"""Recurrent calls with smaller sizes that still belong together, for shrinking: nobody checks the sizes of such a call, so that
each of them sinks in all operands at once, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parity.vocabulary import Arg, Case, TensorSpec

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
SIZES = ("length", "batch", "features", "hidden")


@dataclass(frozen=True, slots=True)
class _Net:
    """Layers of a recurrent call, or a cell of one step. lengths: of packed sequences, else (). projected: 0 without."""

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
        """What each layer has in each direction."""
        return ("in", "state", *(("bias", "bias of the state") if self.biases else ()), *(("out",) if self.projected else ()))

    def resized(self) -> _Net:
        """With operands of the sizes that it names; those of layers, directions and kinds that it has no more are gone."""
        seen, wide = self.projected or self.hidden, self.gates * self.hidden
        steps = (sum(self.lengths),) if self.lengths else (self.batch, self.length) if self.first else (self.length, self.batch)
        shape = (self.batch, self.features) if self.cell else (*steps, self.features)
        lead = () if self.cell else (self.layers * self.ways,)
        states = tuple(
            replace(s, shape=(*lead, self.batch, seen if k == 0 else self.hidden)) for k, s in enumerate(self.states)
        )
        made = []
        for n, spec in enumerate(self.weights):
            layer, kind = n // (len(self.kinds) * self.ways), self.kinds[n % len(self.kinds)]
            width = self.features if layer == 0 else seen * self.ways
            rows = {"in": (wide, width), "state": (wide, seen), "out": (self.projected, self.hidden)}
            made.append(replace(spec, shape=rows.get(kind, (wide,))))
        return replace(self, x=replace(self.x, shape=shape), states=states, weights=tuple(made))

    def without(self, layers: int, ways: int, kinds: tuple[str, ...]) -> tuple[TensorSpec, ...]:
        """The weights of the first layers and directions, of these kinds."""
        each = len(self.kinds)
        found = enumerate(self.weights)
        return tuple(
            s
            for n, s in found
            if n // (each * self.ways) < layers and n // each % self.ways < ways and self.kinds[n % each] in kinds
        )


def lesser(case: Case) -> Iterator[Case]:
    """The call with one of its sizes smaller, or with fewer layers, directions, biases; the boldest first."""
    net = _read(case)
    if net is None:
        return
    yield from (_written(case, n.resized()) for n in _smaller(net))


def _smaller(net: _Net) -> Iterator[_Net]:
    plain = replace(net, layers=1, ways=1, biases=False, projected=0)
    plain = replace(plain, weights=net.without(1, 1, plain.kinds))
    if net.cell:
        plain = replace(net, biases=False, weights=net.without(1, 1, ("in", "state")))
    for wide in (plain, net):
        if sized := _cut(wide, 1):
            yield sized
    if plain.weights != net.weights:
        yield plain
    for size in SIZES:
        n = getattr(net, size)
        steps = (1, 2, 3, *(n - (n >> k) for k in range(1, n.bit_length())), n - 1)
        least = net.projected if size == "hidden" else 0  # torch knows a projection by its being smaller
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


def _cut(net: _Net, most: int) -> _Net | None:
    """With no size above this; None where none is."""
    cut = {size: min(getattr(net, size), most) for size in SIZES}
    lengths = tuple(min(n, most) for n in net.lengths[:most])
    projected = min(net.projected, most)
    cut["hidden"] = min(net.hidden, max(most, projected + 1))
    made = replace(net, **cut, lengths=lengths, projected=projected)
    return made if made != net else None


def _operands(arg: Arg) -> tuple[TensorSpec, ...]:
    return (
        tuple(a for a in arg if isinstance(a, TensorSpec))
        if isinstance(arg, tuple)
        else (arg,)
        if isinstance(arg, TensorSpec)
        else ()
    )


def _read(case: Case) -> _Net | None:
    """What a call of `parity.catalog.recurrent` says of itself."""
    gates = GATES[case.op.partition("_")[0]]
    x, *rest = case.args
    assert isinstance(x, TensorSpec)
    if case.op.endswith("_cell"):
        states, weights = _operands(rest[0]), tuple(a for a in rest[1:] if isinstance(a, TensorSpec))
        batch, features = x.shape
        return _Net(gates, x, states, weights, 1, batch, features, states[-1].shape[-1], biases=len(weights) > 2, cell=True)
    lengths: tuple[int, ...] = ()
    if case.op.endswith("_packed"):
        told, *rest = rest
        lengths = tuple(n for n in told if isinstance(n, int)) if isinstance(told, tuple) else ()
    states, weights = _operands(rest[0]), _operands(rest[1])
    biases, layers, _, _, two, *first = rest[2:]
    assert isinstance(layers, int)
    hidden, seen = states[-1].shape[-1], states[0].shape[-1]
    batch, length = states[0].shape[1], lengths[0] if lengths else x.shape[1 if first[0] else 0]
    return _Net(
        gates, x, states, weights, length, batch, x.shape[-1], hidden, lengths, layers, 2 if two else 1, bool(biases),
        seen if seen != hidden else 0, bool(first and first[0]),
    )  # fmt: skip


def _written(case: Case, net: _Net) -> Case:
    """The call of a net, all that is not about sizes as in the case."""
    state: Arg = net.states if len(net.states) > 1 else net.states[0]
    if net.cell:
        return replace(case, args=(net.x, state, *net.weights))
    lengths: tuple[Arg, ...] = (net.lengths,) if net.lengths else ()
    k = 1 + len(lengths)
    _, _, dropout, train, _, *first = case.args[k + 2 :]
    named = (net.biases, net.layers, dropout, train, net.ways > 1, *first)
    return replace(case, args=(net.x, *lengths, state, net.weights, *named))
