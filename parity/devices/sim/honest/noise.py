"""The differences that the device's tables allow: elementwise functions whose errors reach their ULP bounds, and subnormal
numbers that are flushed to zero (float32 and bfloat16 on Apple GPUs, none on others)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from parity.devices import Call, Fault
from parity.devices.sim.honest.rerun import (
    ALL_IN_DOUBLE,
    ROUNDED,
    honest,
    rerun,
    rounding,
    rounds,
    stretch,
    takes_integers,
    unlike,
    widened,
)
from parity.devices.sim.honest.rounding import (
    bounds,
    cut,
    device_of,
    flushed_dtypes,
    largest_error,
    noisy,
    noisy_complex,
    note,
    reach,
)

FUNCTIONS = (
    "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "div", "erf", "erfc", "exp", "exp2",
    "expm1", "log", "log10", "log1p", "log2", "mul", "pow", "reciprocal", "rsqrt", "rsub", "sin", "sinh", "sqrt", "sub",
    "tan", "tanh",
)  # fmt: skip
# Powers that every library computes by a special function.
POWERS = {0.5: "sqrt", -0.5: "rsqrt", 1.0: "mul", 2.0: "square", -1.0: "reciprocal"}
# The range of a function, which no library leaves: (lowest, highest) result.
RANGES = {
    "acos": (0.0, math.pi), "acosh": (0.0, math.inf), "asin": (-math.pi / 2, math.pi / 2), "atan": (-math.pi / 2, math.pi / 2),
    "atan2": (-math.pi, math.pi), "cos": (-1.0, 1.0), "cosh": (1.0, math.inf), "erf": (-1.0, 1.0), "erfc": (0.0, 2.0),
    "exp": (0.0, math.inf), "exp2": (0.0, math.inf), "expm1": (-1.0, math.inf), "rsqrt": (0.0, math.inf), "sin": (-1.0, 1.0),
    "sqrt": (0.0, math.inf), "tanh": (-1.0, 1.0),
}  # fmt: skip
# Correctly rounded everywhere, to nearest or toward zero depending on the device.
ARITHMETIC = ("add", "div", "mul", "reciprocal", "rsub", "sqrt", "square", "sub")
COMPLEX_ULP = 2.0  # for complex functions, which are compositions: ULP of the modulus, in each part


def _named(call: Call) -> str:
    base = call.op.partition(".")[0].rstrip("_")
    if base == "pow" and len(call.args) > 1 and isinstance(call.args[1], (int, float)):
        return POWERS.get(float(call.args[1]), "pow")
    return base


def _when(call: Call) -> bool:
    return rounds(call) and "mode" not in call.op  # division with a rounding mode is exact


def computing(call: Call, result: torch.dtype) -> torch.dtype:
    """The dtype to which integers are rounded first: that of the other operands, whatever the destination's is."""
    floats = [t.dtype for t in call.args if isinstance(t, Tensor) and t.dtype in ROUNDED]
    return functools.reduce(torch.promote_types, floats) if floats else result


def promoted(call: Call, dtype: torch.dtype) -> Mapping[int, Any]:
    """The operands that torch rounds to the dtype of the result before the kernel sees them: integers and wrapped numbers. A
    divisor or second factor that is a single integer beyond a half type's range keeps its value, as in the CPU's kernels."""
    swap: dict[int, Any] = {}
    name = call.op.partition(".")[0].rstrip("_")
    kept = call.args[1:2] if name in ("mul", "div", "true_divide") else ()
    for t in call.operands:
        if t.dtype not in ROUNDED:
            wide = torch.complex128 if dtype.is_complex else torch.float64
            rounded = t.to(dtype).to(wide)
            keeps = t.numel() == 1 and bool(torch.isinf(rounded)) and any(t is k for k in kept)
            swap[id(t)] = t.to(wide) if keeps else rounded
    return swap


def _schoolbook(call: Call, name: str) -> Tensor:
    """Complex products and quotients from float32 operations, as kernels compute them. The error of a part is relative to the
    terms of that part, so that a part without cancellation keeps its sign (later roots and logarithms choose their branch by
    it)."""
    left = _parts(call.args[0])
    if name == "reciprocal":
        return torch.complex(*_quotient(torch.tensor(1.0), torch.tensor(0.0), *left))
    right = left if name == "square" else _parts(call.args[1])
    return torch.complex(*(_quotient if name == "div" else _product)(*left, *right))


def _parts(x: Any) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of an operand in float32; a real operand gets the imaginary part 0, as torch promotes it."""
    wide = torch.as_tensor(x).resolve_conj().to(torch.complex64)
    return wide.real.clone(), wide.imag.clone()


def _product(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + bi)(c + di), with one product of each part fused into the addition."""
    left, right = (b * d).to(torch.float64), (b * c).to(torch.float64)
    wide = (a.to(torch.float64), c.to(torch.float64), d.to(torch.float64))
    return (wide[0] * wide[1] - left).to(torch.float32), (wide[0] * wide[2] + right).to(torch.float32)


def _quotient(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + bi) / (c + di) as c10::complex computes it on a GPU: scaled by the larger part (Smith, CACM 5 (1962) 435)."""
    turned = d.abs() > c.abs()
    large, small = torch.where(turned, d, c), torch.where(turned, c, d)
    ratio = small / large
    ratio = torch.where(large == 0, 0.0, ratio)
    scale = 1.0 / (large + small * ratio)
    real = torch.where(turned, a * ratio + b, a + b * ratio)
    imag = torch.where(turned, b * ratio - a, b - a * ratio)
    return real * scale, imag * scale


def functions() -> tuple[Fault, ...]:
    """Faults for all functions of the tables."""

    def answer(call: Call, plain: Any) -> Any:
        if not isinstance(plain, Tensor) or plain.dtype not in ROUNDED:
            return None
        name = _named(call)
        if plain.is_complex() and name in ("div", "mul", "reciprocal", "square"):
            return _schoolbook(call, name)
        exact = rerun(call, ALL_IN_DOUBLE, promoted(call, computing(call, plain.dtype)))
        if plain.is_complex() and name not in ARITHMETIC:
            return noisy_complex(exact, COMPLEX_ULP)
        if name in ARITHMETIC and takes_integers(call):
            return rounding(call)(exact, plain.dtype)
        if name in ARITHMETIC:
            return unlike(plain, lambda: rounding(call)(exact, plain.dtype), lambda: cut(exact, plain.dtype, always=True))
        bound = bounds(device_of(call)).of(name, plain.dtype)
        noisy_result = noisy(exact, plain.dtype, bound, RANGES.get(name, (-math.inf, math.inf)))
        if bound:
            reach(f"{name} {str(plain.dtype).removeprefix('torch.')}", largest_error(noisy_result, exact) / bound)
        return noisy_result

    title = "elementwise functions within the ULP bounds of the device's table"
    return (honest("ulp-noise", FUNCTIONS, answer, _when, title),)


# ------------------------------------------------------------------------------------------------------------ flushing


def flushed(t: Tensor, dtypes: frozenset[torch.dtype]) -> Tensor:
    """The tensor with its subnormal elements (or complex parts) replaced by zeros of the same sign, with the same strides."""
    if t.dtype not in dtypes or not t.numel():
        return t
    other = widened(t, t.dtype)
    memory = stretch(other)
    parts = torch.view_as_real(memory) if t.is_complex() else memory
    small = parts.abs() < torch.finfo(parts.dtype).tiny
    parts.copy_(torch.where(small, torch.copysign(torch.zeros_like(parts), parts), parts))
    return other


def _flush(call: Call) -> Any:
    dtypes = flushed_dtypes(device_of(call))
    kept = [t for t in call.operands if t.dtype in dtypes]
    swap = {id(t): flushed(t, dtypes) for t in kept}
    result = rerun(call, swap=swap)
    answer = tree_map(lambda r: flushed(r, dtypes) if isinstance(r, Tensor) else r, result)
    note("flushing", (answer, list(swap.values())), (result, kept))
    return answer


def _flushes(call: Call) -> bool:
    """Whether the device's tables say that it flushes a dtype of this call."""
    dtypes = flushed_dtypes(device_of(call))
    return bool(dtypes) and any(t.dtype in dtypes and t.numel() for t in (*call.outs, *call.operands))


def flushing(ops: tuple[str, ...]) -> tuple[Fault, ...]:
    """Flushing for these kernels. Plant it before the other faults, so that they get flushed operands."""
    return (Fault("honest-flushing", ops, _flush, _flushes, title="subnormal numbers taken for zero", remembers=False),)
