"""Facts per dtype, by name. Nothing here imports torch, so that names can be checked before it is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DtypeFacts:
    """One dtype. `bits` is the width of a (real) element; the facts of a complex dtype are those of its parts.

    unit_roundoff: u, half the distance from 1 to the next number (0 for integers and bool).
    max, tiny, smallest: largest finite, smallest normal, smallest subnormal positive number.
    wide: the dtype in which the oracle computes.
    """

    name: str
    kind: str  # "float" | "complex" | "int" | "bool"
    bits: int
    unit_roundoff: float
    max: float
    tiny: float
    smallest: float
    wide: str

    @property
    def is_inexact(self) -> bool:
        """Whether results in this dtype are rounded."""
        return self.kind in ("float", "complex")


def _float(name: str, bits: int, digits: int, emax: int, wide: str = "float64", kind: str = "float") -> DtypeFacts:
    """digits: significand bits with the hidden one; emax: exponent of the largest finite number (IEEE 754 names)."""
    emin = 1 - emax
    return DtypeFacts(
        name,
        kind,
        bits,
        2.0**-digits,
        math.ldexp(2.0 - 2.0 ** (1 - digits), emax),
        math.ldexp(1.0, emin),
        math.ldexp(1.0, emin - digits + 1),
        wide,
    )


def _int(name: str, bits: int, signed: bool = True) -> DtypeFacts:
    return DtypeFacts(name, "int", bits, 0.0, float(2 ** (bits - signed) - 1), 0.0, 0.0, name)


FACTS: dict[str, DtypeFacts] = {
    f.name: f
    for f in (
        _float("float32", 32, 24, 127),
        _float("float16", 16, 11, 15),
        _float("bfloat16", 16, 8, 127),
        _float("float64", 64, 53, 1023),
        _float("complex64", 32, 24, 127, "complex128", "complex"),
        _float("complex128", 64, 53, 1023, "complex128", "complex"),
        _int("int8", 8),
        _int("int16", 16),
        _int("int32", 32),
        _int("int64", 64),
        _int("uint8", 8, signed=False),
        _int("uint16", 16, signed=False),
        _int("uint32", 32, signed=False),
        _int("uint64", 64, signed=False),
        DtypeFacts("bool", "bool", 8, 0.0, 1.0, 0.0, 0.0, "bool"),
    )
}

# The groups that catalog rows name.
FLOATS = ("float32", "float16", "bfloat16")
COMPLEX = ("complex64",)
INTS = ("int8", "int16", "int32", "int64", "uint8")
BOOL = ("bool",)
HALF = ("float16", "bfloat16")
# What a run covers by default: the dtypes of MPS, in the order of a report.
DEFAULT = (*FLOATS, *COMPLEX, *INTS, *BOOL)
