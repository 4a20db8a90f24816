"""Profiles: the limits of a simulated device. `PERMISSIVE` has none; `mps_profile()` has the limits of MPS."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch

from parity.core.backends import mps
from parity.core.observer import in_backward
from parity.devices.operator_table import TORCHVISION_ON_MPS, with_kernel

MISSING_TEXT, FALLBACK_TEXT = mps.MISSING.text, mps.FALLBACK.text
FLOAT64_TEXT, DTYPE_TEXT, RANK_TEXT = mps.FLOAT64.text, mps.DTYPE.text, mps.RANK.text

# What MPS's dtype conversion does not know, by torch's C++ name.
MPS_REFUSED_DTYPES: dict[str, str] = {
    "float64": "Double", "complex128": "ComplexDouble", "float8_e4m3fn": "Float8_e4m3fn", "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2": "Float8_e5m2", "float8_e5m2fnuz": "Float8_e5m2fnuz", "float8_e8m0fnu": "Float8_e8m0fnu",
}  # fmt: skip

# Registered for MPS outside the table: always on the CPU, with the warning, whatever the environment says.
MPS_ALWAYS_ON_CPU = frozenset({"embedding_renorm_", "linalg_svd", "linalg_svd.U"})
# Operators that torch composes of others with tensors of float64 in between, except where it finds a tensor on MPS: they
# make their tolerances and statistics so. The ban on float64 is lifted inside.
COMPOSED_WITH_FLOAT64 = frozenset(
    {
        "_batch_norm_impl_index", "linalg_matrix_rank", "linalg_matrix_rank.atol_rtol_float",
        "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.tol_tensor", "linalg_pinv", "linalg_pinv.atol_rtol_float",
        "linalg_pinv.atol_rtol_tensor", "linalg_pinv.rcond_tensor",
    },
)  # fmt: skip
# Registered for MPS from Python (torch/_refs/linalg), by way of solve_triangular.
MPS_FROM_PYTHON = frozenset({"linalg_lu_solve.out"})


@dataclass(frozen=True, slots=True)
class Profile:
    """The limits of a device.

    table: the aten overloads that it has a kernel for, or None for all. refused_dtypes: dtype -> its C++ name.
    always_on_cpu: overloads that leave the device unasked. fallback: whether a missing operator runs on the CPU.
    """

    name: str
    table: frozenset[str] | None = None
    refused_dtypes: Mapping[torch.dtype, str] = field(default_factory=dict, hash=False)
    max_rank: int = 64
    always_on_cpu: frozenset[str] = frozenset()
    fallback: bool = False

    @property
    def is_permissive(self) -> bool:
        """Whether nothing needs to be looked at."""
        return self.table is None and not self.refused_dtypes and not self.always_on_cpu

    def check(self, dtype: torch.dtype | None, rank: int = 0) -> None:
        """Refuse to make a tensor of this dtype (TypeError) or rank (RuntimeError), in MPS's words."""
        # Formulas of derivatives accumulate in float64 too (renorm's does); no one asks for a dtype by name in there.
        if dtype is not None and dtype in self.refused_dtypes and not _within.float64 and not in_backward():
            text = DTYPE_TEXT.format(dtype=self.refused_dtypes[dtype])
            raise TypeError(FLOAT64_TEXT if dtype is torch.float64 else text)
        if rank > self.max_rank:
            raise RuntimeError(RANK_TEXT.format(rank=rank))

    def admit(self, qualified: str, overload: str) -> None:
        """Let an operator pass, warn that it falls back, or refuse it (NotImplementedError), in MPS's words.

        qualified: "aten::add.out"; overload: "add.out".
        """
        if self.table is None or overload in self.table or overload in COMPOSED_WITH_FLOAT64 or _within.on_cpu:
            return
        if qualified in TORCHVISION_ON_MPS:
            return
        if self.fallback or overload in self.always_on_cpu:
            _warn_once(FALLBACK_TEXT.format(op=qualified))
        else:
            raise NotImplementedError(MISSING_TEXT.format(op=qualified, sha=torch.version.git_version))


@dataclass(frozen=True, slots=True)
class LenientProfile(Profile):
    """MPS's limits, which hold nobody up. refused: (dtype, text) of what MPS would have refused, with "" for a rank; whoever
    reads it empties it."""

    refused: list[tuple[str, str]] = field(default_factory=list, hash=False, compare=False)

    def check(self, dtype: torch.dtype | None, rank: int = 0) -> None:
        """Note what MPS refuses."""
        try:
            Profile.check(self, dtype, rank)
        except TypeError as e:
            self.refused.append((str(dtype).removeprefix("torch."), str(e)))
        except RuntimeError as e:
            self.refused.append(("", str(e)))

    def admit(self, qualified: str, overload: str) -> None:
        """Let every operator pass."""


def lenient_mps_profile() -> LenientProfile:
    """A new profile with MPS's limits that refuses nothing."""
    limits = mps_profile()
    return LenientProfile("sim:mps, lenient", limits.table, limits.refused_dtypes, limits.max_rank, limits.always_on_cpu)


def is_on_cpu() -> bool:
    """Whether what runs now is inside of an operator that leaves the device unasked."""
    return bool(_within.on_cpu)


class _Within(threading.local):
    """What this thread is inside of."""

    float64 = 0
    on_cpu = 0


_within = _Within()
_warned: list[str] = []


@contextlib.contextmanager
def composing(overload: str) -> Iterator[None]:
    """Inside a composed operator: what it does between its arguments and its result is its own business."""
    float64, on_cpu = overload in COMPOSED_WITH_FLOAT64, overload in MPS_ALWAYS_ON_CPU
    _within.float64 += float64
    _within.on_cpu += on_cpu
    try:
        yield
    finally:
        _within.float64 -= float64
        _within.on_cpu -= on_cpu


def _warn_once(text: str) -> None:
    """MPS has one flag for all operators: only the first one of a process is reported, unless torch is to warn always."""
    if not _warned or torch.is_warn_always_enabled():
        _warned.append(text)
        warnings.warn(text, UserWarning, stacklevel=2)


PERMISSIVE = Profile("sim")


@cache
def mps_profile() -> Profile:
    """MPS's limits for the installed torch. The environment variable is read once, as MPS does."""
    return Profile(
        "sim:mps",
        table=mps_operators(),
        refused_dtypes={getattr(torch, n): c for n, c in MPS_REFUSED_DTYPES.items() if hasattr(torch, n)},
        max_rank=16,
        always_on_cpu=MPS_ALWAYS_ON_CPU,
        fallback=os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK", "0") not in ("", "0"),
    )


@cache
def mps_operators() -> frozenset[str]:
    """The aten overloads with an MPS kernel of their own, from torch's operator table ("add.out", "linear")."""
    return with_kernel(mps.KEY) | MPS_FROM_PYTHON
