"""What sees every operator and every public function."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from parity.core.observer import Functions, Operators, in_backward, lies_on, name_of, no_results


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


def test_public_functions_are_seen_without_those_that_they_call() -> None:
    names = []

    def named(func: Any, args: Any, kwargs: Any) -> Any:
        names.append(name_of(func))
        return func(*args, **kwargs)

    with Functions(named):
        torch.nn.functional.gelu(torch.ones(2), approximate="tanh") + 1
    assert names == ["torch.ones", "torch.nn.functional.gelu", "torch.Tensor.add"]


def test_an_observer_may_answer_something_else() -> None:
    x = torch.ones(2)
    with Functions(lambda func, args, kwargs: 3):
        assert torch.sin(x) == 3
    with Operators(lambda func, args, kwargs: func(*args, **kwargs) + 1):
        assert torch.ones(2).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("opens", [True, False])
def test_what_an_opened_operator_runs_as_is_seen(opens: bool) -> None:
    seen: list[tuple[str, list[str]]] = []

    def observe(func: Any, args: Any, kwargs: Any) -> Any:
        name, within = func._schema.name, list(map(str, operators.open))
        seen.append((name, within))
        if name == "aten::silu" and opens:
            return operators.opened(func, lambda x: x * torch.sigmoid(x), args, kwargs)
        return func(*args, **kwargs)

    x, operators = torch.ones(2), Operators(observe)
    with operators:
        torch.nn.functional.silu(x)
    inner = [("aten::sigmoid", ["aten.silu.default"]), ("aten::mul", ["aten.silu.default"])] if opens else []
    assert seen == [("aten::silu", []), *inner]
    assert operators.open == []


def test_an_operator_that_raises_is_no_longer_open() -> None:
    def observe(func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs) if operators.open else operators.opened(func, torch.linalg.inv, args, kwargs)

    x, operators = torch.ones(2, 3), Operators(observe)
    with pytest.raises(RuntimeError), operators:
        torch.sin(x)
    assert operators.open == []
    assert torch.ones(2).tolist() == [1.0, 1.0]


def test_a_backward_pass_is_known() -> None:
    seen = []

    def observe(func: Any, args: Any, kwargs: Any) -> Any:
        seen.append((func._schema.name, in_backward()))
        return func(*args, **kwargs)

    x = torch.ones(2, requires_grad=True)
    with Operators(observe):
        torch.autograd.grad(x.tanh(), x, torch.ones(2))
    assert ("aten::tanh", False) in seen
    assert ("aten::tanh_backward", True) in seen


def test_results_are_left_out_by_their_number() -> None:
    assert no_results(torch.ops.aten.tanh_backward.default) is None
    assert no_results(torch.ops.aten.native_layer_norm_backward.default) == (None, None, None)


def test_tensors_are_found_wherever_they_stand() -> None:
    assert lies_on("meta", ((1, [torch.ones(2, device="meta")]), {}))
    assert not lies_on("meta", ((torch.ones(2), "meta"), {"device": torch.device("meta")}))


def test_what_sees_them_is_never_compiled() -> None:
    def once(x: torch.Tensor) -> tuple[torch.Tensor, Names]:
        mode = Names()
        with mode:
            return x.sin() + 1, mode

    _, mode = torch.compile(once, backend="eager")(torch.ones(2))
    assert "aten::sin" in mode.names
    assert not mode.compiled


@pytest.mark.cold
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
