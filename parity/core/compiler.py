"""torch's compiler, kept out of processes that compile nothing.

Some functions of torch import it (0.7 s, or 2 s with its code generator) for no more than to keep it away from themselves.
Nothing can be compiled before something has imported it, so until then that is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TORCH = "torch"
NAME, CODE_GENERATOR = f"{TORCH}._dynamo", f"{TORCH}._inductor"
KEPT_AWAY = "__dynamo_disable"  # the attribute in which torch keeps a function that the compiler was asked to leave alone


def is_imported() -> bool:
    """Whether the program has imported the compiler."""
    return NAME in sys.modules


def keep_out() -> None:
    """Let torch's own functions that are never compiled run as they are, until the program imports the compiler itself.

    `torch._compile` asks such a function for `KEPT_AWAY` at each call, and imports the compiler where there is none. It finds
    `getattr` among the names of its module first, and the answer there is that the function itself is what it asks for. A torch
    that asks otherwise imports the compiler as before. For parity's own processes; a user's has `kept_out`.
    """
    import torch._compile

    torch._compile.getattr = _asked  # type: ignore[attr-defined]


@contextmanager
def kept_out() -> Iterator[None]:
    """While active, `keep_out`."""
    import torch._compile

    module, before = vars(torch._compile), vars(torch._compile).get("getattr")
    keep_out()
    try:
        yield
    finally:
        if before is None:
            del module["getattr"]


def _asked(function: Any, name: str, *default: Any) -> Any:
    found = getattr(function, name, *default)
    return function if found is None and name == KEPT_AWAY and not is_imported() else found


def set_deterministic(mode: bool, warn_only: bool = False) -> None:
    """`torch.use_deterministic_algorithms`, which also informs the code generator, if that is imported."""
    import torch

    if CODE_GENERATOR in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
