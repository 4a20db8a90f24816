"""Elementwise functions that are right to within the ULP bound of a device's table, and no better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parity.devices import Call, Fault
from parity.tolerance import Tables
from parity.vocabulary import OpClass
from parity.zoo.honest.rerun import ALL_IN_DOUBLE, ROUNDED, again, honest, rounds
from parity.zoo.honest.rounding import cut, noisy, noisy_complex

FUNCTIONS = (
    "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "div", "erf", "erfc", "exp", "exp2",
    "expm1", "log", "log10", "log1p", "log2", "mul", "pow", "reciprocal", "rsqrt", "rsub", "sin", "sinh", "sqrt", "sub",
    "tan", "tanh",
)  # fmt: skip
# Powers that every library computes as the function they are.
POWERS = {0.5: "sqrt", -0.5: "rsqrt", 1.0: "mul", 2.0: "square", -1.0: "reciprocal"}
# No library leaves the range of its function: (lowest, highest) result.
RANGES = {
    "acos": (0.0, math.pi), "acosh": (0.0, math.inf), "asin": (-math.pi / 2, math.pi / 2), "atan": (-math.pi / 2, math.pi / 2),
    "atan2": (-math.pi, math.pi), "cos": (-1.0, 1.0), "cosh": (1.0, math.inf), "erf": (-1.0, 1.0), "erfc": (0.0, 2.0),
    "exp": (0.0, math.inf), "exp2": (0.0, math.inf), "expm1": (-1.0, math.inf), "rsqrt": (0.0, math.inf), "sin": (-1.0, 1.0),
    "sqrt": (0.0, math.inf), "tanh": (-1.0, 1.0),
}  # fmt: skip
# Correctly rounded everywhere, but to nearest or toward zero as the device likes.
ARITHMETIC = ("add", "div", "mul", "reciprocal", "rsub", "sqrt", "square", "sub")
# Complex functions, of the modulus and in each part: four products and two sums round to at most sqrt(5) u (Brent, Percival
# and Zimmermann 2007), the others are compositions.
MODULUS_ULP = {"mul": 1.0, "add": 0.0, "sub": 0.0, "rsub": 0.0}


class Bounds:
    """The ULP bounds of a device's tables, by function and dtype."""

    def __init__(self, tables: Tables) -> None:
        self._known: dict[tuple[str, str], float] = {}
        self._tables = tables

    def of(self, function: str, dtype: torch.dtype) -> float:
        """The largest error in ULP; a function without a row is correctly rounded (0)."""
        key = function, str(dtype).removeprefix("torch.")
        if key not in self._known:
            found = self._tables.find(function, OpClass.ELEMENTWISE, key[1], "forward", function).ulp
            self._known[key] = found or 0.0
        return self._known[key]


def _named(call: Call) -> str:
    """The function in the tables' words."""
    base = call.op.partition(".")[0].rstrip("_")
    if base == "pow" and len(call.args) > 1 and isinstance(call.args[1], (int, float)):
        return POWERS.get(float(call.args[1]), "pow")
    return base


def _when(call: Call) -> bool:
    return rounds(call) and "mode" not in call.op  # division with a rounding mode is exact


def promoted(call: Call, dtype: torch.dtype) -> Mapping[int, Any]:
    """Operands that torch rounds to the dtype of the result before the kernel sees them: integers, wrapped numbers."""
    swap: dict[int, Any] = {}
    for t in call.operands:
        if t.dtype not in ROUNDED:
            swap[id(t)] = t.to(dtype).to(torch.complex128 if dtype.is_complex else torch.float64)
    return swap


def functions(bounds: Bounds) -> tuple[Fault, ...]:
    """Faults over all functions of the tables."""

    def answer(call: Call, plain: Any) -> Any:
        if not isinstance(plain, Tensor) or plain.dtype not in ROUNDED:
            return None
        name = _named(call)
        exact = again(call, ALL_IN_DOUBLE, promoted(call, plain.dtype))
        if plain.is_complex():
            return noisy_complex(exact, MODULUS_ULP.get(name, 2.0))
        if name in ARITHMETIC:
            return cut(exact, plain.dtype)
        return noisy(exact, plain.dtype, bounds.of(name, plain.dtype), RANGES.get(name, (-math.inf, math.inf)))

    title = "elementwise functions within the ULP bounds of the device's table"
    return (honest("ulp-noise", FUNCTIONS, answer, _when, title),)
