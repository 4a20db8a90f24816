"""Flags of torch that lower a device's precision or let it choose its algorithm, and how to run without them.

Importing torch's OpInfo freezes the flags of `torch.backends.cudnn`; its own context manager still sets them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag by the name under which a person sets it. in_force: whether it may change results now; off: a context
    without it; dtypes: those of which an operand is where it matters, any if empty."""

    name: str
    in_force: Callable[[], bool]
    off: Callable[[], AbstractContextManager[Any]]
    dtypes: tuple[str, ...] = ()


def _cudnn(**off: bool) -> AbstractContextManager[Any]:
    backend = torch.backends.cudnn
    now = {name: getattr(backend, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")}
    context: AbstractContextManager[Any] = backend.flags(**{**now, **off})
    return context


@contextlib.contextmanager
def _highest() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _product_flag(name: str, dtype: str) -> Flag:
    """A flag of `torch.backends.cuda.matmul` for products in a dtype."""
    backend: Any = torch.backends.cuda.matmul

    @contextlib.contextmanager
    def off() -> Iterator[None]:
        before = getattr(backend, name)
        setattr(backend, name, False)
        try:
            yield
        finally:
            setattr(backend, name, before)

    def in_force() -> bool:
        value = getattr(backend, name)
        return bool(value[0] if isinstance(value, tuple) else value)

    return Flag(f"torch.backends.cuda.matmul.{name}", in_force, off, (dtype,))


# By the type of the device in torch.
FLAGS: dict[str, tuple[Flag, ...]] = {
    "cuda": (
        Flag(
            "torch.backends.cudnn.allow_tf32", lambda: bool(torch.backends.cudnn.allow_tf32), lambda: _cudnn(allow_tf32=False)
        ),
        Flag("torch.set_float32_matmul_precision", lambda: torch.get_float32_matmul_precision() != "highest", _highest),
        _product_flag("allow_fp16_reduced_precision_reduction", "float16"),
        _product_flag("allow_bf16_reduced_precision_reduction", "bfloat16"),
        Flag("torch.backends.cudnn.benchmark", lambda: bool(torch.backends.cudnn.benchmark), lambda: _cudnn(benchmark=False)),
    )
}


def in_force(kind: str) -> tuple[Flag, ...]:
    """The flags that may change results on devices of this type now."""
    return tuple(f for f in FLAGS.get(kind, ()) if f.in_force())
