"""What a fault can do, at each level, and how its declaration is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from parity.core.errors import FaultError
from parity.devices import Call, Device, Fault, load_faults, resolve
from parity.devices.sim import kernels, memory
from parity.execution.execute import gradients

ROOT = Path(__file__).parents[3]
X = torch.arange(1.0, 13.0).reshape(3, 4)


def planted(*ops: str, effect: Any, **more: Any) -> Device:
    return resolve("sim", (Fault("f", ops, effect, **more),))


# ------------------------------------------------------------------------------------------------------------ kernels


def test_another_result_reaches_functional_in_place_and_out_calls_alike() -> None:
    d = planted("mul", effect=lambda c: c.run() * 10)
    a, out = d.upload(X), d.upload(torch.zeros(3, 4))
    assert torch.equal((a * 2).cpu(), X * 20)
    torch.mul(a, 2, out=out)
    assert torch.equal(out.cpu(), X * 20)
    a.mul_(2)
    assert torch.equal(a.cpu(), X * 20)


def test_a_write_is_skipped_only_where_the_destination_is_strided() -> None:
    d = planted("erfinv", effect=lambda c: None, when=lambda c: not c.outs[0].is_contiguous())
    base = d.upload(X / 20)
    base.t().erfinv_()
    assert torch.equal(base.cpu(), X / 20)
    base.erfinv_()
    assert torch.equal(base.cpu(), (X / 20).erfinv())


@pytest.mark.parametrize("offset", [0, 3])
def test_a_fault_that_makes_its_kernel_grow_the_destination_writes_into_fresh_memory(offset: int) -> None:
    """torch sets the new sizes on the old memory before it finds that this cannot grow: the fault sees the old ones."""
    seen: list[tuple[object, ...]] = []

    def along_another_dimension(c: Call) -> Any:
        c.args[1] = [2]
        answer = c.run()
        own = c.outs[0]
        seen.append((answer.shape, own.shape, own.stride(), own.storage_offset(), len(c.operands)))
        return answer

    d = planted("sum", effect=along_another_dimension)
    x = torch.rand(500, 2, 2)
    there, base = d.upload(x), d.upload(torch.zeros(10))
    out = base.as_strided((2, 2), (1, 2), offset)
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.sum(there, 0, out=out)
    assert seen == [((500, 2), (2, 2), (1, 2), offset, 1)]
    assert torch.equal(out.cpu(), x.sum(2))
    assert not base.cpu().any()


def test_true_strides_and_offsets_are_seen_and_the_memory_beside_can_be_hit() -> None:
    seen: list[tuple[object, ...]] = []

    def beside(c: Call) -> Any:
        own = c.outs[0]
        seen.append((tuple(own.shape), own.stride(), own.storage_offset()))
        c.memory(own)[0] = -1
        return c.run()

    d = planted("neg", effect=beside)
    base = d.upload(X)
    base.t()[1:, 1:].neg_()
    want = X.clone()
    want.t()[1:, 1:].neg_()
    want[0, 0] = -1
    assert seen == [((3, 2), (1, 4), 5)]
    assert torch.equal(base.cpu(), want)


def test_a_backward_kernel_can_be_wrong_under_a_right_forward() -> None:
    def lose_last_bias(c: Call) -> Any:
        assert c.direction == "backward"
        gx, gw, gb = c.run()
        gb[-1] = 0
        return gx, gw, gb

    d = planted("linear_backward", effect=lose_last_bias, when=lambda c: 0 in c.args[1].stride())
    for cotangent, last in ((torch.ones(3, 5), 3.0), (torch.ones(()), 0.0)):
        w, b = d.upload(torch.ones(5, 4)), d.upload(torch.zeros(5)).requires_grad_()
        y = F.linear(d.upload(X), w, b)
        y.backward(d.upload(cotangent).expand(3, 5))  # type: ignore[no-untyped-call]  # torch tells no type
        assert b.grad is not None
        assert torch.equal(y.detach().cpu(), F.linear(X, torch.ones(5, 4)))
        assert b.grad.cpu()[-1] == last


def test_an_overload_or_the_in_place_name_narrows_a_fault() -> None:
    d = planted("add_", effect=lambda c: c.run() + 1)  # structured: `add_` arrives as add.out, so this never strikes
    assert torch.equal((d.upload(X).add_(1)).cpu(), X + 1)
    e = planted("zero_", effect=lambda c: None)
    assert torch.equal(e.upload(X).zero_().cpu(), X)


def test_garbage_in_fresh_memory_and_a_call_history() -> None:
    d = planted("empty", effect=lambda c: c.run().fill_(7))
    assert torch.empty(3, device=d.torch_device).tolist() == [7, 7, 7]
    e = planted("exp", effect=lambda c: c.run() * 0, when=lambda c: "log.out" in c.history)
    a = e.upload(X)
    assert a.exp().cpu().sum() > 0
    a.log()
    assert a.exp().cpu().sum() == 0


def test_two_faults_on_one_op_are_nested_in_order() -> None:
    one = Fault("one", ("mm",), effect=lambda c: c.run() + 1)
    ten = Fault("ten", ("mm",), effect=lambda c: c.run() * 10)
    d = resolve("sim", (one, ten))
    assert torch.equal((d.upload(X) @ d.upload(X.t().contiguous())).cpu(), (X @ X.t()) * 10 + 1)


def test_an_answer_differs_on_a_repeat() -> None:
    d = planted("sum", effect=lambda c: c.run() + c.history.count("sum.IntList_out"))
    a = d.upload(X)
    assert [a.sum().item() for _ in range(3)] == [78, 79, 80]


def test_an_effect_without_an_answer_is_told() -> None:
    d = planted("nonzero", effect=lambda c: None)
    with pytest.raises(FaultError, match="the effect on nonzero returned None, and there is no destination to leave"):
        d.upload(X).nonzero()


def test_a_fault_that_is_broken_itself_says_so() -> None:
    d = planted("mul", effect=lambda c: c.operand * 2)
    with pytest.raises(FaultError, match=r"the effect of fault 'f' does not run on mul.out \(AttributeError: .*operand"):
        d.upload(X) * 2
    d = planted("mul", effect=lambda c: c.run(), when=lambda c: c.args[7] > 0)
    with pytest.raises(FaultError, match=r"the condition of fault 'f' does not run on mul.out \(IndexError: "):
        d.upload(X) * 2


def test_what_an_effect_raises_for_the_device_is_left_alone() -> None:
    def refuse(c: Call) -> None:
        raise IndexError("too many indices")

    d = planted("mul", effect=refuse)
    with pytest.raises(IndexError, match="too many indices"):
        d.upload(X) * 2


def test_out_of_memory_is_an_exception_of_the_device() -> None:
    def full(c: Call) -> None:
        raise torch.OutOfMemoryError("sim out of memory")

    d = planted("mm", effect=full)
    a = d.upload(torch.ones(2, 2))
    with pytest.raises(torch.OutOfMemoryError):
        a @ a


def test_a_fault_can_end_the_process() -> None:
    program = (
        "import os, torch\nfrom parity.devices import Fault, resolve\n"
        "d = resolve('sim', (Fault('a', ('exp',), lambda c: os.abort()),))\nd.upload(torch.ones(2)).exp()\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60)
    assert run.returncode == -6


# ---------------------------------------------------------------------------------------------------------- transfers


def test_uploads_and_downloads_have_faults_of_their_own() -> None:
    up = planted("upload", effect=lambda c: c.operands[0] + 1, level="transfer")
    assert torch.equal(up.upload(X).cpu(), X + 1)
    down = planted("download", effect=lambda c: c.run() * 0, level="transfer", when=lambda c: c.operands[0].storage_offset())
    a = down.upload(X)
    assert torch.equal(down.download(a), X)
    assert not down.download(a[1:]).any()


# ---------------------------------------------------------------------------------------------------------- functions


def test_a_function_fault_meets_every_way_to_write_the_call() -> None:
    d = planted("add", effect=lambda c: c.run() * 2, level="function")
    a, out = d.upload(X), d.upload(X)
    want = (X + X) * 2
    with d.active():
        torch.add(a, a, out=out)
        for result in (a + a, torch.add(a, a), a.add(a), out, d.upload(X).add_(a), a.clone().__iadd__(a)):
            assert torch.equal(result.cpu(), want)
        assert torch.equal(X + X, want / 2)  # the CPU is none of its business
    assert torch.equal((a + a).cpu(), want / 2)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("linear", lambda x: F.linear(x, x)),
        ("softmax", lambda x: torch.softmax(x, 0)),
        ("softmax", lambda x: F.softmax(x, 0)),
        ("softmax", lambda x: x.softmax(0)),
        ("layer_norm", lambda x: F.layer_norm(x, (4,))),
        ("max_pool2d", lambda x: F.max_pool2d(x[None, None], 2)),
        ("conv2d", lambda x: F.conv2d(x[None, None], x[None, None, :2, :2])),
        ("matmul", lambda x: x @ x.t()),
        ("sub", lambda x: 1 - x),
        ("eq", lambda x: (x == x).float()),
        ("linalg.norm", lambda x: torch.linalg.norm(x)),
        ("torch.fft.fft", lambda x: torch.fft.fft(x).real),
    ],
)
def test_short_and_full_names(name: str, call: Any) -> None:
    d = planted(name, effect=lambda c: c.run() * 0 + 5, level="function")
    with d.active():
        assert (call(d.upload(X)).cpu() == 5).all()


def test_a_gradient_alone_is_wrong_through_a_composite_and_in_place() -> None:
    def wrong(c: Call) -> Any:
        return c.run_with_gradient(lambda g: g * 0)

    d = planted("scaled_dot_product_attention", "mul", effect=wrong, level="function")
    q = torch.randn(2, 2, 5, 8)
    a = d.upload(q).requires_grad_()
    b = d.upload(X).requires_grad_()
    with d.active():
        y = F.scaled_dot_product_attention(a, a, a)
        (b + 0).mul_(3).sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    y.sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    torch.testing.assert_close(y.detach().cpu(), F.scaled_dot_product_attention(q, q, q))
    assert a.grad is not None
    assert b.grad is not None
    assert not a.grad.cpu().any()
    assert not b.grad.cpu().any()


# -------------------------------------------------------------------------------------------------------- declarations


def nothing(c: Call) -> Tensor | None:
    return None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Fault("", ("add",), nothing), "a fault needs an id"),
        (lambda: Fault("f", (), nothing), "fault 'f': ops must be a tuple of names, like ('linear',); got ()"),
        (lambda: Fault("f", "add", nothing), "got 'add'"),  # type: ignore[arg-type]  # the mistake that is tested
        (lambda: Fault("f", ("add",), None), "fault 'f': effect must be a function of one argument"),  # type: ignore[arg-type]  # the mistake that is tested
        (lambda: Fault("f", ("add",), nothing, level="op"), "level 'op' is not one of function, kernel, transfer"),
        (lambda: Fault("f", ("sofmax",), nothing), "torch has no operator aten::sofmax; did you mean"),
        (lambda: Fault("f", ("liner",), nothing, level="function"), "no public function 'liner'; did you mean 'linear'"),
        (lambda: Fault("f", ("add",), nothing, level="transfer"), "'add' is no transfer; name upload or download"),
    ],
)
def test_a_declaration_is_checked(make: Any, text: str) -> None:
    with pytest.raises(FaultError) as e:
        make()
    assert text in str(e.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "import nowhere_at_all",
            "does not run (ModuleNotFoundError: No module named 'nowhere_at_all'); expected a Python file",
        ),
        ("x = 1", "declares no fault; expected a Python file with FAULTS = [Fault(...), ...]"),
        ("FAULTS = 3", "FAULTS must be a list of Fault, not int"),
        ("FAULTS = [3, 'a']", "FAULTS must be a list of Fault, not list of int, str; expected a Python file"),
        ("BUGS = 3", "BUGS must be a list of objects with a Fault as `fault`, not int; expected a Python file"),
        ("BUGS = [3]", "BUGS must be a list of objects with a Fault as `fault`, not list of int"),
        ("BUGS = []", "declares no fault"),
        ("from parity.devices import Fault\nf = Fault('f', ('liner',), print)", "fault 'f': torch has no operator aten::liner"),
        ("from parity.devices import Fault\nF = Fault('f', ('mm',), print)\nFAULTS = [F, F]", "two faults are called 'f'"),
    ],
)
def test_a_file_of_faults_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path, source: str, text: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    with pytest.raises(FaultError) as e:
        load_faults(path)
    assert str(e.value).startswith(f"{path}: ")
    assert text in str(e.value)


def test_a_list_of_bugs_stands_for_the_faults_in_them(tmp_path: Path) -> None:
    path = tmp_path / "bugs.py"
    path.write_text(
        "from types import SimpleNamespace as Bug\nfrom parity.devices import Fault\n"
        "helper = Fault('helper', ('mm',), print)\n"
        "BUGS = (Bug(fault=Fault('a', ('mm',), print)), Bug(fault=Fault('b', ('add',), print)))\n"
    )
    assert [f.id for f in load_faults(path)] == ["a", "b"]
    path.write_text(path.read_text() + "FAULTS = [helper]\n")
    assert [f.id for f in load_faults(path)] == ["helper"]


def test_a_missing_file_of_faults(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match=r"no such file; expected a Python file with FAULTS"):
        load_faults(tmp_path / "none.py")
    with pytest.raises(FaultError, match=r"no such file; expected a Python file with FAULTS"):
        load_faults(tmp_path / f"{'a' * 300}.py")  # which the system takes for no name at all


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("add", lambda a: a + a),
        ("add", lambda a: torch.add(a, 1)),
        ("add", lambda a: torch.add(a, a, out=torch.zeros_like(a))),
        ("add", lambda a: a.clone().add_(a)),
        ("linear", lambda a: F.linear(a, a)),
        ("_softmax", lambda a: F.softmax(a, 0)),
        ("exp", lambda a: a.exp()),
        ("triu", lambda a: a.triu()),
    ],
)
def test_a_base_name_meets_every_way_to_call_its_kernel(op: str, call: Any) -> None:
    struck: list[str] = []
    d = planted(op, effect=lambda c: struck.append(c.op) or c.run())  # type: ignore[func-returns-value]  # append gives None
    assert torch.equal(call(d.upload(X)).cpu(), call(X))
    assert len(struck) == 1


def test_a_fault_sees_the_lazy_conjugate() -> None:
    seen: list[bool] = []
    d = planted("mm", effect=lambda c: seen.append(c.operands[1].is_conj()) or c.run())  # type: ignore[func-returns-value]  # append gives None
    x = torch.randn(2, 2, dtype=torch.complex64)
    assert torch.equal((d.upload(x) @ d.upload(x).conj()).cpu(), x @ x.conj())
    assert seen == [True]


def test_a_watched_operator_makes_the_aliases_of_its_out_form_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two operands and the destination: the functional form, which torch runs as its out= form, makes none of its own."""
    device = resolve("sim", [Fault("adds", ("add",), lambda c: c.run() + 1)])
    a, b, aliases = device.upload(torch.ones(3)), device.upload(torch.ones(3)), list[Tensor]()

    def to_host(t: Tensor) -> Tensor:
        aliases.append(memory.to_host(t))
        return aliases[-1]

    monkeypatch.setattr(kernels, "to_host", to_host)
    y = a + b
    assert len(aliases) == 3
    assert device.download(y).tolist() == [3.0] * 3


@pytest.mark.parametrize("remembers", [True, False])
def test_a_fault_sees_earlier_calls_only_if_it_says_so(remembers: bool) -> None:
    """What it sees costs as much as a small kernel."""
    seen: list[int] = []

    def count(call: Call) -> Any:
        seen.append(len(call.seen))
        return call.run()

    device = resolve("sim", [Fault("counts", ("exp",), count, remembers=remembers)])
    with device.active():
        x = device.upload(torch.ones(3))
        for _ in range(3):
            x.exp()
    assert seen == ([0, 1, 2] if remembers else [0, 0, 0])


def test_a_hook_on_public_functions_sees_nothing_of_what_is_read_inside_a_kernel() -> None:
    """Each attribute would cost as much as the kernel. torch leaves the hook on in a backward pass."""
    device = resolve("sim")
    seen: list[str] = []

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x = device.upload(torch.ones(3)).requires_grad_()
    y, one = torch.sin(x), device.upload(torch.ones(3))
    with Seen():
        (pulled,) = gradients([y], [x], [one])
    assert seen == []
    assert pulled is not None
    assert torch.equal(device.download(pulled), torch.ones(3).cos())
