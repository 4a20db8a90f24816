"""torch.compile as a third side: whether the compiler or the device is wrong; what does not compile is refused, not wrong."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import parity
from parity.comparing.comparison import Effort
from parity.core.errors import UsageError
from parity.core.results import Status
from parity.devices import Call, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.faces.commandline import main

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Two layers; torch.compile makes two graphs of it where `broken`."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.rest, self.broken = nn.Linear(8, 16), nn.ModuleList([nn.GELU(), nn.Linear(16, 8)]), broken

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 8)."""
        y = self.up(x)
        if self.broken:
            torch._dynamo.graph_break()
        for layer in self.rest:
            y = layer(y)
        return x + y


def one_percent_off(graph: Any, examples: Any) -> Callable[..., Any]:
    return lambda *args: tuple(out * 1.01 for out in graph(*args))


def gelu_off(graph: Any, examples: Any) -> Callable[..., Any]:
    """A compiler that is wrong in one operator."""
    for node in list(graph.graph.nodes):
        if "gelu" in str(node.target):
            with graph.graph.inserting_after(node):
                wrong = graph.graph.call_function(torch.mul, (node, 1.01))
            node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
    graph.recompile()
    run: Callable[..., Any] = graph
    return run


def wrong_backward(graph: Any, examples: Any) -> Any:
    """A compiler that is wrong in gradients alone."""
    from torch._dynamo.backends.common import aot_autograd

    def forward(inner: Any, given: Any) -> Any:
        return inner

    def backward(inner: Any, given: Any) -> Any:
        return lambda *args: [None if g is None else g * 1.01 for g in inner(*args)]

    return aot_autograd(fw_compiler=forward, bw_compiler=backward)(graph, examples)


def counting(calls: list[str]) -> Callable[..., Any]:
    """A compiler whose code notes on which device it runs."""

    def backend(graph: Any, examples: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            calls.extend({a.device.type for a in args if isinstance(a, Tensor)})
            return graph(*args)

        return run

    return backend


def failing(graph: Any, examples: Any) -> Any:
    raise NotImplementedError("no such instruction\nand more lines")


def raising(graph: Any, examples: Any) -> Any:
    def run(*args: Any) -> Any:
        raise ArithmeticError("the code jumped away")

    return run


@pytest.mark.parametrize(("broken", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_healthy_compiled_code_is_silent(broken: bool, dtype: torch.dtype) -> None:
    """With a graph break, too, and on devices that round otherwise or have MPS's limits."""
    for device in (resolve("sim"), resolve("sim:mps"), resolve("sim", HONEST)):
        found = parity.assert_parity(Block(broken).to(dtype), X.to(dtype), device=device, compile="aot_eager")
        assert found.wrong_side == ""
        names = [n for n, _ in found.verdicts]
        assert "compiled out" in names
        assert "compiled grad[up.weight]" in names
        assert found.notes[-1] == (
            "the function is right in eager mode, and what aot_eager compiled agrees with the CPU "
            f"({'2 graphs' if broken else '1 graph'})"
        )


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.slow
def test_inductor_on_the_cpu_is_silent() -> None:
    found = parity.assert_parity(Block(), X, device="cpu", compile="inductor")
    assert found.wrong_side == ""
    assert not any("the CPU itself" in n for n in found.notes)


def test_a_compiler_that_is_wrong_is_told_with_the_module() -> None:
    with pytest.raises(parity.ParityFailure) as caught:
        parity.assert_parity(Block(), X, device="sim", compile=gelu_off)
    first = str(caught.value).splitlines()[0]
    assert first == "Block float32 on sim is right in eager mode, and only what gelu_off compiled is wrong, in rest.0 (GELU)"
    assert caught.value.comparison.wrong_side == "compiled"
    assert all(n.startswith("compiled ") for n, _ in caught.value.comparison.findings)
    found = parity.locate(Block(), X, device="sim", compile=gelu_off)
    assert not found.agrees
    assert found.headline == first
    assert re.search(r"^compiled: out drift, [\d.e+]+ times the budget$", str(found), re.M)


def test_wrong_gradients_of_compiled_code_are_found() -> None:
    with pytest.raises(parity.ParityFailure) as caught:
        parity.assert_parity(Block(), X, device="sim", compile=wrong_backward)
    names = {n for n, _ in caught.value.comparison.findings}
    assert names == {f"compiled grad[{n}]" for n, _ in Block().named_parameters()}


def test_a_device_that_is_wrong_is_not_the_compilers_fault() -> None:
    def off(call: Call) -> Any:
        return call.run() * 1.01

    device = resolve("sim", (Fault("f", ("gelu",), off),))
    with pytest.raises(
        parity.ParityFailure, match=r"(?s)first in rest.0 .*differs from the CPU in eager mode, and so does"
    ) as caught:
        parity.assert_parity(Block(), X, device=device, compile="aot_eager")
    assert caught.value.comparison.wrong_side == "both"
    found = parity.locate(Block(), X, device=device, compile="aot_eager")
    assert found.first is not None
    assert found.first.operator == "aten::gelu"
    assert "compiled: differs from the CPU in eager mode, and so does what aot_eager compiled" in str(found)


def test_a_fault_that_compiled_code_does_not_meet_is_eager_alone() -> None:
    """Compiled code calls no public function."""

    def off(call: Call) -> Any:
        return call.run() * 1.01

    device = resolve("sim", (Fault("f", ("torch.nn.functional.gelu",), off, level="function"),))
    with pytest.raises(
        parity.ParityFailure, match="differs from the CPU in eager mode; what aot_eager compiled agrees"
    ) as caught:
        parity.assert_parity(Block(), X, device=device, compile="aot_eager")
    assert caught.value.comparison.wrong_side == "eager"


def test_what_does_not_compile_is_unsupported_and_not_wrong() -> None:
    with pytest.raises(parity.ParityFailure) as caught:
        parity.assert_parity(Block(), X, device="sim", compile=failing)
    comparison = caught.value.comparison
    assert [(n, v.status, v.reason) for n, v in comparison.findings] == [
        ("compiled", Status.UNSUPPORTED, "NotImplementedError: no such instruction")
    ]
    assert comparison.wrong_side == ""
    assert "right in eager mode, and failing does not compile it: NotImplementedError: no such instruction" in str(comparison)


def test_compiled_code_that_raises_is_an_error() -> None:
    with pytest.raises(parity.ParityFailure) as caught:
        parity.assert_parity(Block(), X, device="sim", compile=raising)
    ((name, verdict),) = caught.value.comparison.findings
    assert (name, verdict.status) == ("compiled", Status.ERROR)
    assert "ArithmeticError in run: the code jumped away" in verdict.reason
    assert caught.value.comparison.wrong_side == "compiled"


@pytest.mark.parametrize(
    ("fn", "device", "backend", "text"),
    [
        (Block(), "sim", "aot_eagr", "no backend 'aot_eagr'; this torch has aot_eager, .*did you mean 'aot_eager'"),
        (Block(), "sim", 3, "compile is 3; give the name of a backend"),
        (Block(), "sim:mps", "inductor", "inductor has no code for sim:mps, a simulated device"),
        (nn.Dropout(), "sim", "aot_eager", "Dropout draws random numbers"),
    ],
)
def test_what_cannot_be_asked_is_an_error_of_the_user(fn: Any, device: str, backend: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parity.assert_parity(fn, X, device=device, compile=backend)


def test_what_is_compiled_already_is_refused() -> None:
    with pytest.raises(UsageError, match="OptimizedModule is compiled already; give the original"):
        parity.assert_parity(torch.compile(Block()), X, device="sim", compile="aot_eager")


@pytest.mark.parametrize("place", ["", "cpu"])
@pytest.mark.parametrize("already", [True, False])
def test_numbers_of_a_devices_own_generator_are_refused_in_compiled_code(place: str, already: bool) -> None:
    """Two equal runs on the CPU give the same, and an honest device has another stream; that of the CPU is one for all."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as torch has it
    def noise(x: Tensor) -> Any:
        where = place or x.device
        return torch.rand(x.shape, generator=torch.Generator(where).manual_seed(1), device=where).to(x.device)

    def noisy(x: Tensor) -> Any:
        return x + noise(x)

    given = torch.compile(noisy, backend="aot_eager") if already else noisy
    refused = pytest.raises(UsageError, match="draws random numbers, which compiled code draws by its own kernels")
    with nullcontext() if place else refused:
        assert parity.assert_parity(given, X, device=resolve("sim", tuple(HONEST)), compile=None if already else "aot_eager")


@pytest.mark.parametrize("effort", ["default", "full"])
def test_a_function_that_is_compiled_already_is_held_to_its_eager_code(effort: Effort) -> None:
    """Code that is wrong alike on both sides would agree else."""
    compiled = torch.compile(Block(), backend=one_percent_off)
    with pytest.raises(parity.ParityFailure) as caught:
        parity.assert_parity(compiled, X, device="sim", effort=effort, backward=False)
    assert any("it is compiled, and the CPU and the truth run its eager code" in n for n in caught.value.comparison.notes)


@pytest.mark.parametrize("faults", [(), tuple(HONEST)])
def test_a_function_that_is_compiled_already_agrees_on_a_healthy_device(faults: Any) -> None:
    for _ in range(3):  # the compiler must not take the simulated device's own kernels for the function
        calls: list[str] = []
        compiled = torch.compile(Block(), backend=counting(calls))
        assert parity.assert_parity(compiled, X, device=resolve("sim", faults), effort="full")
        assert set(calls) == {"sim"}


def test_a_comparison_leaves_the_callers_compiler_as_it_is() -> None:
    """Frames that run under a mode of parity are left out by torch's compiler from then on."""

    class Other(Block):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x).sin()

    calls: list[str] = []
    net = torch.compile(Other(), backend=counting(calls))
    parity.assert_parity(net, X, device="sim")
    parity.locate(net, X, device="sim")
    parity.compare_training(lambda device: _trained(net, device), [X], steps=2, device="sim", locate=False)
    calls.clear()
    net(X)
    assert calls == ["cpu"]


def _trained(net: Any, device: Any) -> Any:
    """A model that is compiled, its optimizer and its step."""
    model = copy.deepcopy(net).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # as torch has it
        optimizer.step()
        return loss

    return model, optimizer, step


def test_a_training_says_that_compiled_code_runs_eagerly() -> None:
    found = parity.compare_training(
        lambda device: _trained(torch.compile(Block(), backend=one_percent_off), device),
        [X],
        steps=2,
        device="sim",
        locate=False,
    )
    assert found
    assert any(n.startswith("torch.compile made some of it, and what was compared here is its eager code") for n in found.notes)


def test_a_model_that_is_compiled_is_captured_and_audited_by_its_own_names(tmp_path: Path, recwarn: Any) -> None:
    """By the eager code that it is made of, of which torch has nothing to warn."""
    net, path = torch.compile(Block(), backend=one_percent_off), tmp_path / "net.capture"
    captured = parity.capture(net, X, path=path, device=resolve("sim", (Fault("f", ("gelu",), _one_percent),)))
    assert captured.notes == ("it is compiled, and what was captured is its eager code",)
    for one in (net, Block()):
        assert str(parity.locate(one, X, against=path)).startswith(
            "Block float32 on sim (net.capture) diverges from the CPU first in rest.0 (GELU), forward: aten::gelu"
        )
    assert str(parity.audit(net, X)).startswith("Block will run on MPS")
    assert not [w for w in recwarn if "torch.compile" in str(w.message)]


def _one_percent(call: Call) -> Any:
    return call.run() * 1.01


def test_what_module_compile_made_is_compared_in_eager_mode_and_noted() -> None:
    net = Block()
    net.compile(backend=one_percent_off)
    notes = parity.assert_parity(net, X, device="sim").notes
    assert any(".compile() of a module" in n and "so eager code was compared; compile= compiles it" in n for n in notes)


def test_inductor_without_a_compiler_is_an_error_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"inductor needs a C\+\+ compiler, and 'no-such-compiler' is not here"):
        parity.assert_parity(Block(), X, device="cpu", compile="inductor")


def test_a_function_of_which_no_graph_is_made_is_no_agreement() -> None:
    class Hidden(nn.Module):
        @torch.compiler.disable  # type: ignore[untyped-decorator]  # as torch has it
        def forward(self, x: Tensor) -> Any:
            return x.exp()

    with pytest.raises(
        parity.ParityFailure, match=r"aot_eager does not compile it: torch\.compile makes no graph of it"
    ) as caught:
        parity.assert_parity(Hidden(), X, device="sim", compile="aot_eager")
    assert caught.value.comparison.wrong_side == ""
    found = parity.locate(Hidden(), X, device="sim", compile="aot_eager")
    assert not found.agrees
    assert found.compared > 0


def test_the_command_line_takes_a_backend_of_a_setup_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.randn(3, 8)\n"
    )
    (tmp_path / "backend.py").write_text(
        "from torch._dynamo import register_backend\n"
        "@register_backend\n"
        "def parity_off(graph, examples):\n"
        "    return lambda *args: tuple(out * 1.01 for out in graph(*args))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["locate", "models.py:net", "--device", "sim", "--setup", "backend.py", "--compile", "parity_off"]) == 1
    assert "only what parity_off compiled is wrong, in 0 (Linear)" in capfd.readouterr().out
