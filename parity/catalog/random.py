"""Random numbers, judged as distributions (`parity.judging.laws`), and fresh memory, of which only the metadata is promised.

One shape in eight is large: what a distribution is takes some 2**12 to 2**17 numbers to see.
"""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import EVERY, REAL, Row, Signature
from parity.catalog.signatures import unary
from parity.dtypes import BOOL, FLOATS
from parity.vocabulary import OpClass, TensorSpec

_row = partial(Row, family="random", rule=OpClass.RANDOM, relation="random", dtypes=FLOATS, oracle="exact")
CALLS = "parity.catalog.calls."
STEPS = "parity.catalog.steps."
DRAWN = (*FLOATS, "complex64")
COUNTED = (*REAL, *BOOL)


# ------------------------------------------------------------------------------------------------------------ signatures


def _many(draw: Draw, low: int = 0, high: int = 5) -> Shape:
    """A shape of rank low..high; one in eight has 2**12 to 2**16 elements."""
    if draw.pick(8) < 7:
        return draw.shape(low, high)
    large: tuple[Shape, ...] = ((4096,), (65, 129), (3, 5, 7, 64), (2, 1 << 14), (1 << 16,), (4, 3, 33, 32))
    fitting = tuple(s for s in large if low <= len(s) <= high)
    return draw.choice(fitting)


def _into(*options: tuple[float, ...]) -> Signature:
    """A destination, and none (simplest) or one of these parameter lists."""

    def signature(draw: Draw) -> Call:
        shape = _many(draw)
        return Call((draw.tensor(shape), *(draw.option(*options) or ())))

    return signature


def _asked(*options: tuple[float, ...]) -> Signature:
    """A destination and one of these parameter lists, without which the op has no meaning."""
    return lambda draw: Call((draw.tensor(_many(draw)), *draw.choice(options)))


def _like(draw: Draw) -> Call:
    return Call((draw.tensor(_many(draw)),))


def _shaped(draw: Draw) -> Call:
    """A factory: `like` gives dtype and device."""
    return Call((draw.tensor((), grad=False), _many(draw)))


# The last one only where the dtype holds it.
RANGES = ((0, 4), (0, 2), (0, 100), (1, 2), (-3, 5), (0, 2000))


def _range(draw: Draw) -> tuple[int, int]:
    narrow = draw.dtype in ("bool", "uint8", "int8", "bfloat16")
    low, high = draw.choice(RANGES[:5] if narrow else RANGES)
    if draw.dtype == "bool":
        return 0, 2
    return (0, 8) if draw.dtype == "uint8" and low < 0 else (low, high)


def _randint_like(draw: Draw) -> Call:
    return Call((draw.tensor(_many(draw)), *_range(draw)))


def _randint(draw: Draw) -> Call:
    return Call((draw.tensor((), grad=False), *_range(draw), _many(draw)))


def _random_into(draw: Draw) -> Call:
    """random_(from, to), random_(to), random_()."""
    x, kind = draw.tensor(_many(draw)), draw.pick(4)
    if kind < 2:
        return Call((x, *_range(draw)))
    return Call((x, 2 if draw.dtype == "bool" else draw.choice((4, 100)))) if kind == 2 else Call((x,))


def _chances(draw: Draw, shape: Shape) -> TensorSpec:
    return draw.inside(shape, 0, 1, grad=False)


def _bernoulli(draw: Draw) -> Call:
    return Call((_chances(draw, _many(draw)),))


def _bernoulli_each(draw: Draw) -> Call:
    """A chance for each element, in the destination's dtype or in float32."""
    shape = _many(draw)
    dtype = draw.dtype if draw.is_inexact else "float32"
    return Call((draw.tensor(shape), draw.inside(shape, 0, 1, dtype=dtype, grad=False)))


def _normal(draw: Draw) -> Call:
    """torch.normal with a tensor for the mean, the deviation, or both."""
    shape, kind = _many(draw), draw.pick(3)
    mean, std = draw.inside(shape, -3, 3, grad=False), draw.inside(shape, 0.25, 4, grad=False)
    return Call(((mean, std), (mean, draw.choice((1.0, 0.5))), (draw.choice((0.0, 2.0)), std))[kind])


def _rates(draw: Draw) -> Call:
    return Call((draw.inside(_many(draw), 0, draw.choice((4, 30)), grad=False),))


def _binomial(draw: Draw) -> Call:
    shape = tuple(min(n, 4096) for n in _many(draw))
    return Call((draw.inside(shape, 0, draw.choice((8, 40)), grad=False), _chances(draw, shape)))


def _gamma(draw: Draw) -> Call:
    return Call((draw.inside(_many(draw), 0.25, 8, grad=False),))


P = (0.25, 0.0, 1.0, 0.1, 0.9)


def _dropout(low: int = 0, high: int = 5) -> Signature:
    """p left out (one half) or given; now and then not training."""

    def signature(draw: Draw) -> Call:
        x = draw.tensor(_many(draw, low, high))
        return Call((x,), keywords(p=draw.option(*P), training=False if draw.pick(8) == 7 else None))

    return signature


def _alpha_dropout(low: int = 0) -> Signature:
    """Trains only when told to."""

    def signature(draw: Draw) -> Call:
        x = draw.tensor(_many(draw, low))
        return Call((x,), keywords(p=draw.option(*P), training=None if draw.pick(8) == 7 else True))

    return signature


def _dropout_into(low: int = 0) -> Signature:
    """torch's own in-place forms take p and whether to train."""

    def signature(draw: Draw) -> Call:
        x = draw.tensor(_many(draw, low))
        return Call((x, draw.choice((0.5, *P)), draw.pick(8) != 7))

    return signature


def _concentrations(draw: Draw) -> Call:
    """Rows of one whole concentration, of which the law's sums have few terms."""
    a, rows = draw.choice((1, 2, 3, 5)), draw.choice((4096, 1, 64, 1 << 14)) if draw.rare(8) else draw.choice((1, 5, 64))
    return Call((draw.inside((rows, draw.choice((2, 3, 5))), a, a, grad=False),))


def _rrelu(draw: Draw) -> Call:
    low, high = draw.choice(((0.125, 0.5), (0.0, 1.0), (0.25, 0.25)))
    return Call((draw.tensor(_many(draw)), low, high, True))


def _gumbel(draw: Draw) -> Call:
    shape = tuple(max(1, n) for n in _many(draw, 1, 3))
    x = draw.inside(shape, -2, 2)
    return Call((x,), keywords(tau=draw.option(0.5, 2.0), hard=True if draw.flag() else None, dim=draw.option(draw.dim(shape))))


def _picked(draw: Draw) -> tuple[Shape, int, bool]:
    """(shape of the weights, number of picks, with replacement)."""
    n = draw.size(3)
    shape: Shape = (n,) if not draw.flag() else (draw.choice((1, 2, 3)), n)
    again = draw.flag()
    return shape, draw.choice((1, 2, 5, 4096) if again else (1, 2, 3)), again


def _multinomial(draw: Draw) -> Call:
    """Weights that are all positive, so that drawing without replacement is possible."""
    shape, count, again = _picked(draw)
    return Call((draw.inside(shape, 0.25, 1, grad=False), count), keywords(replacement=True if again else None))


def _multinomial_zeros(draw: Draw) -> Call:
    shape, count, again = _picked(draw)
    return Call((draw.inside(shape, -1, 1, grad=False), count if again else 1), keywords(replacement=True if again else None))


def _permutation(draw: Draw) -> Call:
    return Call((draw.tensor((), grad=False), draw.choice((5, 1, 2, 16, 100, 1000, 10007))))


def _fractional(spatial: int) -> Signature:
    def signature(draw: Draw) -> Call:
        kernel = draw.choice((1, 2, 3))
        inside = tuple(kernel + draw.choice((4, 5, 7)) for _ in range(spatial))
        out = tuple(draw.choice((2, 3, 4)) for _ in range(spatial))
        lead: Shape = (draw.choice((1, 2)),) if draw.flag() else (draw.choice((1, 2)), draw.choice((1, 3)))
        return Call((draw.tensor((*lead, *inside)), kernel), keywords(output_size=out))

    return signature


def _attention(draw: Draw) -> Call:
    """Self-attention whose values are the unit matrix: the result is the matrix of weights after dropout."""
    lead: Shape = draw.choice(((1, 1), (2,), (1, 3), (2, 4)))
    queries, keys = draw.choice((2, 3, 8, 9, 64)), draw.choice((2, 3, 8, 31, 33, 64))
    width = draw.choice((4, 8, 16, 64))
    q, k = draw.inside((*lead, queries, width), -1, 1), draw.inside((*lead, keys, width), -1, 1)
    kind = draw.pick(3)
    mask = draw.inside((queries, keys), -2, 2, grad=False) if kind == 1 else None
    return Call((q, k, mask, draw.choice((0.5, 0.25, 1.0, 0.0)), kind == 2))


def _lstm(draw: Draw) -> Call:
    """Two or three layers with dropout between them."""
    length, batch = draw.choice((2, 3, 5)), draw.choice((1, 2, 3))
    features, hidden = draw.choice((2, 3, 16)), draw.choice((4, 5, 17))
    layers, two, front, biases = draw.choice((2, 3)), draw.flag(), draw.flag(), not draw.flag()
    ways = 2 if two else 1
    weights: list[TensorSpec] = []
    for layer in range(layers):
        width = features if layer == 0 else hidden * ways
        for _ in range(ways):
            weights += [draw.inside((4 * hidden, width), -1, 1), draw.inside((4 * hidden, hidden), -1, 1)]
            weights += [draw.inside((4 * hidden,), -1, 1), draw.inside((4 * hidden,), -1, 1)] if biases else []
    x = draw.inside((batch, length, features) if front else (length, batch, features), -2, 2)
    state = draw.inside((layers * ways, batch, hidden), -1, 1), draw.inside((layers * ways, batch, hidden), -1, 1)
    return Call((x, state, tuple(weights), draw.choice((0.5, 0.25, 1.0)), biases, layers, two, front))


def _weight(draw: Draw) -> Call:
    """A matrix or a stack of kernels to initialise."""
    shape: Shape = draw.choice(((3, 4), (64, 65), (16, 8, 3, 3), (256, 256)))
    return Call((draw.tensor(shape, grad=False),))


RRELU = ("float32", "bfloat16")  # what the reference takes

_fill = partial(_row, mutates=True)
_drop = partial(_row, grad=FLOATS)

ROWS = (
    # factories
    _row(name="rand", call=CALLS + "rand", signature=_shaped, dtypes=DRAWN),
    _row(name="randn", call=CALLS + "randn", signature=_shaped, dtypes=DRAWN, opinfo=("randn",)),
    _row(name="randint", call=CALLS + "integers", signature=_randint, dtypes=COUNTED, opinfo=("randint",)),
    _row(name="randperm", call=CALLS + "randperm", signature=_permutation, dtypes=("int64", "int32", "int16")),
    _row(name="randperm_written", call=STEPS + "randperm_written", signature=_permutation, dtypes=("int64", "int32")),
    _row(name="rand_like", call="torch.rand_like", signature=_like, dtypes=DRAWN, strides=True, opinfo=("rand_like",)),
    _row(name="randn_like", call="torch.randn_like", signature=_like, dtypes=DRAWN, strides=True, opinfo=("randn_like",)),
    _row(name="randint_like", call=CALLS + "randint", signature=_randint_like, dtypes=COUNTED, opinfo=("randint_like",)),
    _row(name="normal", call="torch.normal", signature=_normal, out=True, opinfo=("normal", "normal:number_mean")),
    # fills
    _fill(name="uniform_", call="torch.Tensor.uniform_", signature=_into((-1.0, 3.0), (0.5, 0.75)), opinfo=("uniform",)),
    _fill(name="normal_", call="torch.Tensor.normal_", signature=_into((2.0, 0.5), (-1.0, 3.0)), dtypes=DRAWN,
          opinfo=("normal:in_place",)),
    _fill(name="log_normal_", call="torch.Tensor.log_normal_", signature=_into((0.0, 0.5)), opinfo=("log_normal",)),
    _fill(name="cauchy_", call="torch.Tensor.cauchy_", signature=_into((2.0, 0.5)), opinfo=("cauchy",)),
    _fill(name="exponential_", call="torch.Tensor.exponential_", signature=_into((0.5,), (2.0,)), opinfo=("exponential",)),
    _fill(name="geometric_", call="torch.Tensor.geometric_", signature=_asked((0.5,), (0.25,), (0.9,)), dtypes=REAL,
          opinfo=("geometric",)),
    _fill(name="bernoulli_", call="torch.Tensor.bernoulli_", signature=_asked((0.5,), (0.25,), (0.0,), (1.0,), (0.01,)),
          dtypes=COUNTED),
    _fill(name="bernoulli_tensor_", call="torch.Tensor.bernoulli_", signature=_bernoulli_each, dtypes=COUNTED),
    _fill(name="random_", call="torch.Tensor.random_", signature=_random_into, dtypes=COUNTED),
    _fill(name="trunc_normal_", call="torch.nn.init.trunc_normal_", signature=_weight, dtypes=("float32",)),
    _fill(name="xavier_uniform_", call="torch.nn.init.xavier_uniform_", signature=_weight),
    _fill(name="kaiming_normal_", call="torch.nn.init.kaiming_normal_", signature=_weight),
    # numbers with parameters of their own
    _row(name="bernoulli", call="torch.bernoulli", signature=_bernoulli, out=True, opinfo=("bernoulli",)),
    _row(name="bernoulli_p", call="torch.bernoulli", signature=_asked((0.5,), (0.25,), (0.9,)), dtypes=COUNTED),
    _row(name="poisson", call="torch.poisson", signature=_rates),
    _row(name="binomial", call=CALLS + "binomial", signature=_binomial, dtypes=("float32",)),
    _row(name="standard_gamma", call="torch._standard_gamma", signature=_gamma, dtypes=("float32",)),
    _row(name="dirichlet", call=STEPS + "dirichlet", signature=_concentrations, dtypes=("float32",)),
    _row(name="multinomial", call="torch.multinomial", signature=_multinomial, out=True, opinfo=("multinomial",)),
    _row(name="multinomial_zeros", call=CALLS + "multinomial_zeros", signature=_multinomial_zeros),
    # dropped and scaled
    _drop(name="dropout", call="torch.nn.functional.dropout", signature=_dropout(), opinfo=("nn.functional.dropout",)),
    _drop(name="native_dropout", call=STEPS + "native_dropout", signature=_dropout_into()),
    _drop(name="dropout1d", call="torch.nn.functional.dropout1d", signature=_dropout(2, 3)),
    _drop(name="dropout2d", call="torch.nn.functional.dropout2d", signature=_dropout(3, 4),
          opinfo=("nn.functional.dropout2d",)),
    _drop(name="dropout3d", call="torch.nn.functional.dropout3d", signature=_dropout(4, 5),
          opinfo=("nn.functional.dropout3d",)),
    _drop(name="alpha_dropout", call="torch.nn.functional.alpha_dropout", signature=_alpha_dropout(),
          opinfo=("nn.functional.alpha_dropout",)),
    _drop(name="feature_alpha_dropout", call="torch.nn.functional.feature_alpha_dropout", signature=_alpha_dropout(2),
          opinfo=("nn.functional.feature_alpha_dropout:with_train", "nn.functional.feature_alpha_dropout:without_train")),
    _fill(name="dropout_", call="torch.dropout_", signature=_dropout_into()),
    _fill(name="feature_dropout_", call="torch.feature_dropout_", signature=_dropout_into(2)),
    _fill(name="alpha_dropout_", call="torch.alpha_dropout_", signature=_dropout_into()),
    _fill(name="feature_alpha_dropout_", call="torch.feature_alpha_dropout_", signature=_dropout_into(2)),
    _drop(name="rrelu_training", call="torch.nn.functional.rrelu", signature=_rrelu, grad=RRELU,
          dtypes=RRELU),
    _fill(name="rrelu_", call="torch.rrelu_", signature=_rrelu, dtypes=RRELU),
    _drop(name="gumbel_softmax", call="torch.nn.functional.gumbel_softmax", signature=_gumbel),
    _drop(name="fractional_max_pool2d", call="torch.nn.functional.fractional_max_pool2d_with_indices",
          signature=_fractional(2), opinfo=("nn.functional.fractional_max_pool2d",)),
    _drop(name="fractional_max_pool3d", call="torch.nn.functional.fractional_max_pool3d_with_indices",
          signature=_fractional(3), opinfo=("nn.functional.fractional_max_pool3d",)),
    _drop(name="attention_dropout", call=CALLS + "attention_dropout", signature=_attention),
    _drop(name="lstm_dropout", call=CALLS + "lstm_dropout", signature=_lstm),
    _row(
        name="empty_like",
        rule=OpClass.METADATA,
        relation="uninitialised",
        call="torch.empty_like",
        signature=unary(),
        dtypes=EVERY,
        strides=True,
        opinfo=("empty_like",),
    ),
)  # fmt: skip
