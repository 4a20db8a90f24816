"""The laws of random ops, by the name of their catalog row."""

from __future__ import annotations

from parity.judging.laws.law import Bound, Law, Problems, Results, Sample, Tallies
from parity.judging.laws.masks import MASKS
from parity.judging.laws.numbers import NUMBERS
from parity.judging.laws.picks import PICKS

__all__ = ["LAWS", "Bound", "Law", "Problems", "Results", "Sample", "Tallies", "find", "outside"]

# Other names of the same law: native rows, then torch's OpInfo entries.
SAME: dict[str, str] = {
    "rand_like": "rand", "randn_like": "randn", "bernoulli_": "bernoulli", "bernoulli_tensor_": "bernoulli",
    "bernoulli_p": "bernoulli", "multinomial_zeros": "multinomial", "rrelu_training": "rrelu", "rrelu_": "rrelu",
    "native_dropout": "dropout", "randperm_written": "randperm",
    "dropout_": "dropout", "feature_dropout_": "dropout2d", "alpha_dropout_": "alpha_dropout",
    "feature_alpha_dropout_": "feature_alpha_dropout",
    "opinfo:rand_like": "randn",  # the entry calls randn_like
    "opinfo:randn_like": "randn", "opinfo:bernoulli": "bernoulli",
    "opinfo:multinomial": "multinomial", "opinfo:uniform": "uniform_",
    "opinfo:normal:in_place": "normal_", "opinfo:exponential": "exponential_",
    "opinfo:cauchy": "cauchy_", "opinfo:log_normal": "log_normal_", "opinfo:geometric": "geometric_",
    "opinfo:randint_like": "randint_like", "opinfo:nn.functional.dropout": "dropout",
    "opinfo:nn.functional.dropout2d": "dropout2d", "opinfo:nn.functional.dropout3d": "dropout3d",
    "opinfo:nn.functional.alpha_dropout": "alpha_dropout",
    "opinfo:nn.functional.feature_alpha_dropout:with_train": "feature_alpha_dropout",
    "opinfo:nn.functional.feature_alpha_dropout:without_train": "feature_alpha_dropout",
    "opinfo:nn.functional.rrelu": "rrelu",
    "opinfo:nn.functional.fractional_max_pool2d": "fractional_max_pool2d",
    "opinfo:nn.functional.fractional_max_pool3d": "fractional_max_pool3d",
}  # fmt: skip
LAWS: dict[str, Law] = {**NUMBERS, **PICKS, **MASKS}


def find(op: str) -> Law | None:
    """The law of the op, or None where its row promises no more than the form."""
    return LAWS.get(SAME.get(op, op))


def outside(call: Bound, results: Results) -> Problems:
    """What is wrong with a result whatever the chance; nothing where the op has no law."""
    law = find(call.op)
    return [] if law is None else law.outside(call, results)
