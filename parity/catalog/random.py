"""Random numbers, judged as distributions, and fresh memory, of which only the metadata is promised."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, keywords
from parity.catalog.row import EVERY, REAL, Row
from parity.catalog.signatures import unary
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass

_row = partial(Row, family="random", rule=OpClass.RANDOM, relation="random", dtypes=FLOATS, oracle="exact")


def _uniform(draw: Draw) -> Call:
    limits = draw.option((-1.0, 3.0), (0.5, 0.75))
    return Call((draw.tensor(draw.shape(0, 5)), *(limits or ())))


def _normal(draw: Draw) -> Call:
    moments = draw.option((2.0, 0.5), (-1.0, 3.0))
    return Call((draw.tensor(draw.shape(0, 5)), *(moments or ())))


def _exponential(draw: Draw) -> Call:
    rate = draw.option(0.5, 2.0)
    return Call((draw.tensor(draw.shape(0, 5)), *((rate,) if rate else ())))


def _bernoulli_into(draw: Draw) -> Call:
    return Call((draw.tensor(draw.shape(0, 5)), draw.choice((0.5, 0.25, 0.0, 1.0))))


def _integers_into(draw: Draw) -> Call:
    return Call((draw.tensor(draw.shape(0, 5)), 0, draw.choice((4, 2, 100))))


def _randint(draw: Draw) -> Call:
    return Call((draw.tensor(draw.shape(0, 5)), 0, draw.choice((4, 2, 100))))


def _bernoulli(draw: Draw) -> Call:
    return Call((draw.inside(draw.shape(0, 5), 0, 1),))


def _dropout(draw: Draw) -> Call:
    return Call((draw.tensor(draw.shape(1, 5)),), keywords(p=draw.option(0.25, 0.0, 1.0)))


def _multinomial(draw: Draw) -> Call:
    """Probabilities that are all positive, so that drawing without replacement is possible."""
    n = draw.size(2)
    shape = (n,) if not draw.flag() else (draw.choice((1, 2, 3)), n)
    again = draw.flag()
    count = draw.choice((1, 2, 5) if again else (1, 2))
    return Call((draw.inside(shape, 0.25, 1), count), keywords(replacement=True if again else None))


def _permutation(draw: Draw) -> Call:
    return Call((draw.tensor((), grad=False), draw.choice((5, 1, 2, 16, 100))))


ROWS = (
    _row(name="rand_like", call="torch.rand_like", signature=unary(), strides=True, opinfo=("rand_like",)),
    _row(name="randn_like", call="torch.randn_like", signature=unary(), strides=True, opinfo=("randn_like",)),
    _row(
        name="randint_like", call="parity.catalog.calls.randint", signature=_randint, dtypes=REAL, opinfo=("randint_like",)
    ),
    _row(name="uniform_", call="torch.Tensor.uniform_", signature=_uniform, mutates=True, opinfo=("uniform",)),
    _row(name="normal_", call="torch.Tensor.normal_", signature=_normal, mutates=True, opinfo=("normal:in_place",)),
    _row(
        name="exponential_", call="torch.Tensor.exponential_", signature=_exponential, mutates=True, opinfo=("exponential",)
    ),
    _row(name="bernoulli_", call="torch.Tensor.bernoulli_", signature=_bernoulli_into, dtypes=REAL, mutates=True),
    _row(name="random_", call="torch.Tensor.random_", signature=_integers_into, dtypes=REAL, mutates=True),
    _row(name="bernoulli", call="torch.bernoulli", signature=_bernoulli, opinfo=("bernoulli",)),
    _row(name="dropout", call="torch.nn.functional.dropout", signature=_dropout, opinfo=("nn.functional.dropout",)),
    _row(name="multinomial", call="torch.multinomial", signature=_multinomial, opinfo=("multinomial",)),
    _row(name="randperm", call="parity.catalog.calls.randperm", signature=_permutation, dtypes=("int64", "int32", "int16")),
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
)
