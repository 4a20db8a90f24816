"""Random numbers, judged as distributions (`parity.judging.laws`), and fresh memory, of which only the metadata is promised.

One shape in eight is large: judging a distribution takes about 2**12 to 2**17 numbers.
"""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import (
    EVERY,
    METADATA,
    OUT,
    OWN,
    RANDOM,
    REAL,
    UNCHECKED,
    Counts,
    Draws,
    Forms,
    Judged,
    Quirk,
    Refuses,
    Row,
    Signature,
    Wrong,
)
from parity.catalog.signatures import unary
from parity.core.case import TensorSpec
from parity.core.dtypes import BOOL, FLOATS


def _wrong(where: int, value: float) -> Refuses:
    return Refuses(wrong=(Wrong(where, value),))


def _law(name: str) -> Judged:
    """How numbers of this distribution or mask are judged."""
    return Judged(relation="random", oracle="exact", law=name)


_row = partial(Row, family="random", rule=RANDOM, judged=_law("*"), dtypes=FLOATS)
CALLS = "parity.catalog.glue.calls."
STEPS = "parity.catalog.glue.steps."
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
    """A destination, and no parameters (simplest) or one of these lists."""

    def signature(draw: Draw) -> Arguments:
        shape = _many(draw)
        return Arguments((draw.tensor(shape), *(draw.option(*options) or ())))

    return signature


def _asked(*options: tuple[float, ...]) -> Signature:
    """A destination and one of these lists of required parameters."""
    return lambda draw: Arguments((draw.tensor(_many(draw)), *draw.choice(options)))


def _like(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(_many(draw)),))


def _shaped(draw: Draw) -> Arguments:
    """A factory: `like` gives dtype and device."""
    return Arguments((draw.tensor((), grad=False), _many(draw)))


# The last one only if the dtype can represent it.
RANGES = ((0, 4), (0, 2), (0, 100), (1, 2), (-3, 5), (0, 2000))


def _range(draw: Draw) -> tuple[int, int]:
    narrow = draw.dtype in ("bool", "uint8", "int8", "bfloat16")
    low, high = draw.choice(RANGES[:5] if narrow else RANGES)
    if draw.dtype == "bool":
        return 0, 2
    return (0, 8) if draw.dtype == "uint8" and low < 0 else (low, high)


def _randint_like(draw: Draw) -> Arguments:
    return Arguments((draw.tensor(_many(draw)), *_range(draw)))


def _randint(draw: Draw) -> Arguments:
    return Arguments((draw.tensor((), grad=False), *_range(draw), _many(draw)))


def _random_into(draw: Draw) -> Arguments:
    """random_(from, to), random_(to), random_()."""
    x, kind = draw.tensor(_many(draw)), draw.pick(4)
    if kind < 2:
        return Arguments((x, *_range(draw)))
    return Arguments((x, 2 if draw.dtype == "bool" else draw.choice((4, 100)))) if kind == 2 else Arguments((x,))


def _chances(draw: Draw, shape: Shape) -> TensorSpec:
    return draw.inside(shape, 0, 1, grad=False)


def _bernoulli(draw: Draw) -> Arguments:
    return Arguments((_chances(draw, _many(draw)),))


def _bernoulli_each(draw: Draw) -> Arguments:
    """A probability for each element, in the destination's dtype or in float32."""
    shape = _many(draw)
    dtype = draw.dtype if draw.is_inexact else "float32"
    return Arguments((draw.tensor(shape), draw.inside(shape, 0, 1, dtype=dtype, grad=False)))


def _normal(draw: Draw) -> Arguments:
    """torch.normal with a tensor for the mean, the deviation, or both."""
    shape, kind = _many(draw), draw.pick(3)
    mean, std = draw.inside(shape, -3, 3, grad=False), draw.inside(shape, 0.25, 4, grad=False)
    return Arguments(((mean, std), (mean, draw.choice((1.0, 0.5))), (draw.choice((0.0, 2.0)), std))[kind])


def _rates(draw: Draw) -> Arguments:
    return Arguments((draw.inside(_many(draw), 0, draw.choice((4, 30)), grad=False),))


def _binomial(draw: Draw) -> Arguments:
    shape = tuple(min(n, 4096) for n in _many(draw))
    return Arguments((draw.inside(shape, 0, draw.choice((8, 40)), grad=False), _chances(draw, shape)))


def _gamma(draw: Draw) -> Arguments:
    return Arguments((draw.inside(_many(draw), 0.25, 8, grad=False),))


P = (0.25, 0.0, 1.0, 0.1, 0.9)


def _dropout(low: int = 0, high: int = 5) -> Signature:
    """p left out (0.5) or given; sometimes not training."""

    def signature(draw: Draw) -> Arguments:
        x = draw.tensor(_many(draw, low, high))
        return Arguments((x,), keywords(p=draw.option(*P), training=False if draw.pick(8) == 7 else None))

    return signature


def _alpha_dropout(low: int = 0) -> Signature:
    """Drops only with `training=True`, which is not the default."""

    def signature(draw: Draw) -> Arguments:
        x = draw.tensor(_many(draw, low))
        return Arguments((x,), keywords(p=draw.option(*P), training=None if draw.pick(8) == 7 else True))

    return signature


def _dropout_into(low: int = 0) -> Signature:
    """torch's own in-place forms take p and whether to train."""

    def signature(draw: Draw) -> Arguments:
        x = draw.tensor(_many(draw, low))
        return Arguments((x, draw.choice((0.5, *P)), draw.pick(8) != 7))

    return signature


def _concentrations(draw: Draw) -> Arguments:
    """Rows of one integer concentration, which keeps the law's sums short."""
    a, rows = draw.choice((1, 2, 3, 5)), draw.choice((4096, 1, 64, 1 << 14)) if draw.rare(8) else draw.extent((1, 5, 64))
    return Arguments((draw.inside((rows, draw.choice((2, 3, 5))), a, a, grad=False),))


def _rrelu(draw: Draw) -> Arguments:
    low, high = draw.choice(((0.125, 0.5), (0.0, 1.0), (0.25, 0.25)))
    return Arguments((draw.tensor(_many(draw)), low, high, True))


def _gumbel(draw: Draw) -> Arguments:
    shape = tuple(max(1, n) for n in _many(draw, 1, 3))
    x = draw.inside(shape, -2, 2)
    return Arguments(
        (x,), keywords(tau=draw.option(0.5, 2.0), hard=True if draw.flag() else None, dim=draw.option(draw.dim(shape)))
    )


def _picked(draw: Draw) -> tuple[Shape, int, bool]:
    """(shape of the weights, number of picks, with replacement)."""
    n = draw.size(3)
    shape: Shape = (n,) if not draw.flag() else (draw.choice((1, 2, 3)), n)
    again = draw.flag()
    return shape, draw.choice((1, 2, 5, 4096) if again else (1, 2, 3)), again


def _multinomial(draw: Draw) -> Arguments:
    """Weights that are all positive, so that drawing without replacement is possible."""
    shape, count, again = _picked(draw)
    return Arguments((draw.inside(shape, 0.25, 1, grad=False), count), keywords(replacement=True if again else None))


def _multinomial_zeros(draw: Draw) -> Arguments:
    shape, count, again = _picked(draw)
    return Arguments(
        (draw.inside(shape, -1, 1, grad=False), count if again else 1), keywords(replacement=True if again else None)
    )


def _permutation(draw: Draw) -> Arguments:
    return Arguments((draw.tensor((), grad=False), draw.extent((5, 1, 2, 16, 100, 1000, 10007))))


def _fractional(spatial: int) -> Signature:
    def signature(draw: Draw) -> Arguments:
        kernel = draw.choice((1, 2, 3))
        inside = tuple(kernel + draw.choice((4, 5, 7)) for _ in range(spatial))
        out = tuple(draw.choice((2, 3, 4)) for _ in range(spatial))
        lead: Shape = (draw.extent((1, 2)),) if draw.flag() else (draw.extent((1, 2)), draw.extent((1, 3)))
        return Arguments((draw.tensor((*lead, *inside)), kernel), keywords(output_size=out))

    return signature


MOST_KEYS = 2049  # of attention whose values are as many squared: with 4,097 the truth's formula would take 2 GB


def _attention(draw: Draw) -> Arguments:
    """Self-attention whose values are the unit matrix: the result is the matrix of weights after dropout."""
    lead: Shape = draw.lead(((1, 1), (2,), (1, 3), (2, 4)))
    queries, keys = draw.extent((2, 3, 8, 9, 64)), min(MOST_KEYS, draw.extent((2, 3, 8, 31, 33, 64)))
    width = draw.choice((4, 8, 16, 64))
    q, k = draw.inside((*lead, queries, width), -1, 1), draw.inside((*lead, keys, width), -1, 1)
    kind = draw.pick(3)
    mask = draw.inside((queries, keys), -2, 2, grad=False) if kind == 1 else None
    return Arguments((q, k, mask, draw.choice((0.5, 0.25, 1.0, 0.0)), kind == 2))


def _lstm(draw: Draw) -> Arguments:
    """Two or three layers with dropout between them."""
    length, batch = draw.extent((2, 3, 5)), draw.extent((1, 2, 3))
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
    return Arguments((x, state, tuple(weights), draw.choice((0.5, 0.25, 1.0)), biases, layers, two, front))


def _weight(draw: Draw) -> Arguments:
    """A matrix or a stack of kernels to initialise."""
    shape: Shape = draw.choice(((3, 4), (64, 65), (16, 8, 3, 3), (256, 256)))
    return Arguments((draw.tensor(shape, grad=False),))


RRELU = ("float32", "bfloat16")  # dtypes that the reference takes

_fill = partial(_row, call="torch.Tensor.*", forms=Forms(mutates=True))
_drop = partial(_row, call="torch.nn.functional.*", grad=FLOATS)

ROWS = (
    # factories
    _row("rand", _shaped, call=CALLS + "rand", dtypes=DRAWN, refuses=Refuses(sized=True)),
    _row("randn", _shaped, call=CALLS + "randn", dtypes=DRAWN, refuses=Refuses(sized=True), counts=Counts(("randn",))),
    _row("randint", _randint, call=CALLS + "integers", dtypes=COUNTED, counts=Counts(("randint",))),
    _row("randperm", _permutation, call=CALLS + "randperm", dtypes=("int64", "int32", "int16")),
    _row(
        "randperm_written",
        _permutation,
        call=STEPS + "randperm_written",
        dtypes=("int64", "int32"),
        judged=_law("randperm"),
        counts=Counts(under="randperm"),
    ),
    _row("rand_like", _like, dtypes=DRAWN, forms=Forms(strides=True), judged=_law("rand"), counts=OWN),
    _row("randn_like", _like, dtypes=DRAWN, forms=Forms(strides=True), judged=_law("randn"), counts=OWN),
    _row("randint_like", _randint_like, call=CALLS + "randint", dtypes=COUNTED, counts=Counts(("randint_like",))),
    _row("normal", _normal, forms=OUT, counts=Counts(("*", "normal:number_mean"))),
    # fills
    _fill("uniform_", _into((-1.0, 3.0), (0.5, 0.75)), refuses=_wrong(2, -99.0), counts=Counts(("uniform",))),
    _fill(
        "normal_", _into((2.0, 0.5), (-1.0, 3.0)), dtypes=DRAWN, refuses=_wrong(2, -1.0), counts=Counts(("normal:in_place",))
    ),
    _fill("log_normal_", _into((0.0, 0.5)), refuses=_wrong(2, -0.5), counts=Counts(("log_normal",))),
    _fill("cauchy_", _into((2.0, 0.5)), refuses=_wrong(2, -1.0), counts=Counts(("cauchy",))),
    _fill("exponential_", _into((0.5,), (2.0,)), refuses=_wrong(1, -1.0), counts=Counts(("exponential",))),
    _fill("geometric_", _asked((0.5,), (0.25,), (0.9,)), dtypes=REAL, refuses=_wrong(1, 1.5), counts=Counts(("geometric",))),
    _fill("bernoulli_", _asked((0.5,), (0.25,), (0.0,), (1.0,), (0.01,)), dtypes=COUNTED, refuses=_wrong(1, 1.5)),
    _fill(
        "bernoulli_tensor_",
        _bernoulli_each,
        call="torch.Tensor.bernoulli_",
        dtypes=COUNTED,
        judged=_law("bernoulli_"),
        quirks=(Quirk.CHANCES,),
    ),
    _fill("random_", _random_into, dtypes=COUNTED),
    _fill("trunc_normal_", _weight, call="torch.nn.init.*", dtypes=("float32",)),
    _fill("xavier_uniform_", _weight, call="torch.nn.init.*"),
    _fill("kaiming_normal_", _weight, call="torch.nn.init.*"),
    # numbers with parameters of their own
    _row("bernoulli", _bernoulli, forms=OUT, counts=OWN, quirks=(Quirk.CHANCES,)),
    _row(
        "bernoulli_p",
        _asked((0.5,), (0.25,), (0.9,)),
        call="torch.bernoulli",
        dtypes=COUNTED,
        refuses=_wrong(1, -0.5),
        judged=_law("bernoulli"),
    ),
    _row("poisson", _rates, quirks=(Quirk.CHANCES,)),
    _row("binomial", _binomial, call=CALLS + "binomial", dtypes=("float32",)),
    _row("standard_gamma", _gamma, call="torch._standard_gamma", dtypes=("float32",), refuses=UNCHECKED),
    _row("dirichlet", _concentrations, call=STEPS + "dirichlet", dtypes=("float32",)),
    _row("multinomial", _multinomial, forms=OUT, draws=Draws(cases=2), counts=OWN, quirks=(Quirk.CHANCES,)),
    _row("multinomial_zeros", _multinomial_zeros, call=CALLS + "multinomial_zeros"),
    # dropped and scaled
    _drop("dropout", _dropout(), counts=OWN),
    _drop(
        "native_dropout",
        _dropout_into(),
        call=STEPS + "native_dropout",
        judged=_law("dropout"),
        counts=Counts(under="nn.functional.dropout"),
    ),
    _drop("dropout1d", _dropout(2, 3)),
    _drop("dropout2d", _dropout(3, 4), counts=OWN),
    _drop("dropout3d", _dropout(4, 5), counts=OWN),
    _drop("alpha_dropout", _alpha_dropout(), counts=OWN),
    _drop(
        "feature_alpha_dropout",
        _alpha_dropout(2),
        counts=Counts(("nn.functional.feature_alpha_dropout:with_train", "nn.functional.feature_alpha_dropout:without_train")),
    ),
    _fill("dropout_", _dropout_into(), call="torch.*", judged=_law("dropout")),
    _fill(
        "feature_dropout_",
        _dropout_into(2),
        call="torch.*",
        judged=_law("dropout2d"),
        counts=Counts(under="nn.functional.dropout2d"),
    ),
    _fill("alpha_dropout_", _dropout_into(), call="torch.*", judged=_law("alpha_dropout")),
    _fill(
        "feature_alpha_dropout_",
        _dropout_into(2),
        call="torch.*",
        judged=_law("feature_alpha_dropout"),
        counts=Counts(under="nn.functional.feature_alpha_dropout:with_train"),
    ),
    _drop("rrelu_training", _rrelu, call="torch.nn.functional.rrelu", grad=RRELU, dtypes=RRELU, judged=_law("rrelu")),
    _fill("rrelu_", _rrelu, call="torch.*", dtypes=RRELU, judged=_law("rrelu")),
    _drop("gumbel_softmax", _gumbel),
    *(
        _drop(
            f"fractional_max_pool{n}d",
            _fractional(n),
            call="torch.nn.functional.*_with_indices",
            draws=Draws(spatial=n),
            judged=_law("fractional_max_pool"),
            counts=Counts((f"nn.functional.fractional_max_pool{n}d",)),
        )
        for n in (2, 3)
    ),
    _drop(
        "attention_dropout",
        _attention,
        call=CALLS + "attention_dropout",
        counts=Counts(under="nn.functional.scaled_dot_product_attention"),
    ),
    _drop("lstm_dropout", _lstm, call=CALLS + "lstm_dropout", refuses=UNCHECKED, counts=Counts(under="lstm")),
    _row(
        "empty_like",
        unary(),
        rule=METADATA,
        forms=Forms(strides=True),
        dtypes=EVERY,
        judged=Judged(relation="uninitialised", oracle="exact"),
        counts=OWN,
    ),
)
