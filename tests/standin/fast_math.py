"""The stand-in with Metal's fast math: exp and log are off by some sixty units in the last place. For `--setup`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import standin_library
import torch
from torch import Tensor

standin_library.install()


def rough(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The kernel of a function with a relative error."""
    to: Any = torch.ops.standin

    def kernel(x: Tensor) -> Tensor:
        result = function(to.host(x))
        moved: Tensor = to.device(result * (1 + 60 * torch.finfo(result.dtype).eps))
        return moved

    return kernel


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that a kernel is replaced
    library = standin_library.library("MPS")
    for name, function in (("exp", torch.exp), ("log", torch.log)):
        library.impl(name, rough(function))
