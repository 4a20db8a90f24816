"""What sees every operator and every public function."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

from parity.core.observer import Operators


class Names(Operators):
    """The operators, and whether torch compiled what sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.compiled = False

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.names.append(func._schema.name)
        self.compiled |= torch.compiler.is_compiling()
        return func(*args, **kwargs)


def test_operators_are_seen() -> None:
    with Names() as mode:
        torch.ones(2) + 1
    assert mode.names == ["aten::ones", "aten::add"]


def test_what_sees_them_is_never_compiled() -> None:
    def once(x: torch.Tensor) -> tuple[torch.Tensor, Names]:
        mode = Names()
        with mode:
            return x.sin() + 1, mode

    _, mode = torch.compile(once, backend="eager")(torch.ones(2))
    assert "aten::sin" in mode.names
    assert not mode.compiled


def test_torchs_compiler_is_not_imported_for_it() -> None:
    """It takes most of a second, in every process; torch's own decompositions would import it, too. They may do so again
    afterwards."""
    code = (
        "import sys, torch, torch._compile, parity\n"
        "net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.GELU())\n"
        "parity.assert_parity(net, torch.ones(4, 3), device='sim', effort='full')\n"
        "sys.exit('torch._dynamo' in sys.modules or 'getattr' in vars(torch._compile))"
    )
    assert subprocess.run((sys.executable, "-c", code), timeout=100, check=False).returncode == 0
