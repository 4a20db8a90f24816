"""Classifies an exception of a device: it refuses the operator or the dtype, it is out of memory, or it is at fault; and hears
its warnings about operators that fell back to the CPU.

A refusal is only what a backend says in its own words for that; anything else that a device raises is an error.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from parity.core import state
from parity.core.devices import all_backends
from parity.core.processes import asked_to_stop

REFUSED, OOM, ERROR = "refused", "oom", "error"
MOST_WORDS = 6000  # characters of a message that are read
STAGES = ("upload", "run", "backward", "download")

# (exception types, pattern): read in this order, by type and text.
_Rule = tuple[tuple[type[BaseException], ...], re.Pattern[str]]


def _rules(types: tuple[type[BaseException], ...], *patterns: str) -> tuple[_Rule, ...]:
    return tuple((types, re.compile(p, re.DOTALL)) for p in patterns)


# Words that every backend of torch has for the same.
_GENERIC_REFUSALS: tuple[_Rule, ...] = (
    *_rules(
        (NotImplementedError, RuntimeError),
        r"not implemented for '\w+'",
        # In torch's words for MPS this means a build without MPS: an absent device refuses nothing.
        r"Could not run '.+' with arguments from the '(?!MPS)\w+' backend",
        r"The operator '.+' is not currently (implemented|supported) (for|on) the \w+ (device|backend)",
        # one call with a derivative of its own (linear_backward) where the CPU composes others
        r"does not support automatic differentiation for outputs with complex dtype",
        # torch.use_deterministic_algorithms
        r"does not have a deterministic implementation",
        r"^Deterministic behavior was enabled with .+ but this operation is not deterministic",
        # autocast: a dtype that an operator of several operands does not take, and one that it refuses to run
        r"^Unexpected floating ScalarType in at::autocast::prioritize",
        r"are unsafe to autocast",
        # composites that ask for the type of the device: mode, _pdist_forward, cdist, std and var
        r"supports (tensors on a )?CPU, .+ (device type|devices?|device only), (but )?got: ",
    ),
)
_OUT_OF_MEMORY = re.compile(
    "|".join(
        (*(w.pattern.pattern for b in all_backends() for w in b.out_of_memory), r"DefaultCPUAllocator: (can't|not enough)")
    ),
    re.IGNORECASE,
)


# Words of torch's checks of dtypes: "must have the same dtype", "expected scalar type", "Input type (float) and bias type".
_DTYPES = re.compile(r"\b(d|data ?|scalar |same |input )types?\b|\btorch\.\w+Tensor\b|\bboolean (mask|tensor)", re.IGNORECASE)


def is_about_dtypes(message: str) -> bool:
    """Whether an error is about the dtype of an operand: a refusal, if the operands of the call have several."""
    return bool(_DTYPES.search(message))


def words(exc: BaseException) -> str:
    """What an exception says, cut to `MOST_WORDS` characters; its own `str` may raise, too."""
    try:
        return str(exc)[:MOST_WORDS]
    except BaseException as broken:
        if asked_to_stop(broken):
            raise
        return f"(its message cannot be made: {type(broken).__name__})"


def classify(exc: BaseException, stage: str = "run") -> str:
    """One of the words "refused", "oom" and "error".

    stage: upload, run, backward or download. A download refuses nothing: what the device could compute it must hand over.
    Raises ValueError for another stage.
    """
    if stage not in STAGES:
        raise ValueError(f"stage '{stage}' is not one of {', '.join(STAGES)}")
    text = words(exc)
    if isinstance(exc, (torch.OutOfMemoryError, MemoryError)):
        return OOM
    if stage != "download" and any(isinstance(exc, types) and pattern.search(text) for types, pattern in _RULES):
        return REFUSED
    # An error of the accelerator itself (torch.AcceleratorError) may quote anything; it is never for want of memory
    # unless it says so, as CUDA's asynchronous ones do.
    if isinstance(exc, RuntimeError) and _OUT_OF_MEMORY.search(text):
        return OOM
    return ERROR


_RULES = (*((w.types, w.pattern) for b in all_backends() for w in b.refusals), *_GENERIC_REFUSALS)


FALLBACK_TEXT = "fall back to run on the CPU"  # of MPS, and of every backend that has taken over its words
UNNAMED = "an operator that torch does not name"
MOST = 1000  # warnings that are kept of a case: a call may warn without end


def fell_back(message: str) -> str:
    """The operator that a warning says to have run on the CPU, in words where it names none; "" where it says no such thing."""
    if FALLBACK_TEXT in message:
        return message.split(" is not currently", 1)[0].removeprefix("The operator ").strip("'")
    for backend in all_backends():
        if backend.fallback and (match := backend.fallback.search(message)):
            return (match[1] if match.re.groups else "") or UNNAMED
    return ""


@contextmanager
def listening(notes: list[str]) -> Iterator[None]:
    """Collect the device's fallback warnings for every operator, count other warnings, and silence them all. By default MPS
    warns only for the first operator of a process."""

    def hear(message: Warning | str, *_: Any, **__: Any) -> None:
        if not (name := fell_back(str(message))):
            state.warned[0] += 1
        elif len(notes) < MOST:
            notes.append(name)

    before = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(before)
