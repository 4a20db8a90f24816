"""What a fault sees of a call, what it remembers, and the effects that are made already."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from parity.core.errors import FaultError
from parity.devices import Call, Device, Fault, load_faults, resolve
from parity.devices.sim import CallOutline
from parity.devices.sim.faults import fall_back, garbage, out_of_memory, refuse

ROOT = Path(__file__).parents[3]
X = torch.arange(1.0, 13.0).reshape(3, 4)


class Notes:
    """A device with one fault that changes nothing and writes down an answer per call."""

    def __init__(self, *ops: str, ask: Any, **more: Any) -> None:
        self.answers: list[Any] = []

        def effect(call: Call) -> Any:
            self.answers.append(ask(call))
            return call.run()

        self.device: Device = resolve("sim", (Fault("f", ops, effect, **more),))

    def up(self, t: Tensor) -> Tensor:
        """On the device."""
        return t.to(self.device.torch_device)


# ------------------------------------------------------------------------------------------------------------- operands


@pytest.mark.parametrize("level", ["kernel", "function"])
def test_whether_gradients_are_wanted_and_recorded(level: str) -> None:
    notes = Notes("exp", ask=lambda c: (c.requires_grad, c.grad_mode), level=level)
    a = notes.up(X)
    with notes.device.active():
        a.exp()
        a.requires_grad_().exp()
        with torch.no_grad():
            a.exp()
    assert notes.answers == [(False, True), (True, True), (True, False)]


def test_numbers_are_told_from_tensors_without_dimensions() -> None:
    for level in ("kernel", "function"):
        notes = Notes("mul", ask=lambda c: (c.is_scalar(0), c.is_scalar(1), c.is_scalar(9)), level=level)
        a = notes.up(X)
        with notes.device.active():
            a * 2.0
            a * torch.tensor(2.0)
            a * notes.up(torch.tensor(2.0))
            a.mul_(True)
        assert notes.answers == [(False, True, False), (False,) * 3, (False,) * 3, (False, True, False)]
    named = Notes("add", ask=lambda c: (c.is_scalar("other"), c.is_scalar("input")), level="function")
    with named.device.active():
        torch.add(input=named.up(X), other=2)
    assert named.answers == [(True, False)]


@pytest.mark.parametrize(
    ("op", "write"),
    [
        ("__setitem__", lambda a: a.__setitem__(0, 7.0)),
        ("relu", lambda a: F.relu(a, inplace=True)),
        ("add", lambda a: a.__iadd__(1)),
        ("pow", lambda a: a.__ipow__(2)),
        ("mul_", lambda a: a.mul_(2)),
    ],
)
def test_every_way_to_write_into_an_operand_names_it_and_can_be_skipped(op: str, write: Any) -> None:
    asked: list[bool] = []
    d = resolve("sim", (Fault("f", (op,), lambda c: asked.append(c.outs[0] is c.args[0]), level="function"),))
    a = d.upload(-X)
    with d.active():
        write(a)
    assert asked == [True]
    assert torch.equal(a.cpu(), -X)
    write(a)
    assert not torch.equal(a.cpu(), -X)


def test_a_gradient_alone_is_wrong_under_a_function_that_writes_in_place() -> None:
    d = resolve("sim", (Fault("f", ("relu",), lambda c: c.run_with_gradient(lambda g: g * 3), level="function"),))
    a = d.upload(X).requires_grad_()
    with d.active():
        F.relu(a * 1, inplace=True).sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    assert a.grad is not None
    assert (a.grad.cpu() == 3).all()


def test_views_by_property_are_calls() -> None:
    notes = Notes("mT", "imag", ask=lambda c: c.op, level="function")
    z = notes.up(torch.ones(2, 3, dtype=torch.complex64))
    with notes.device.active():
        z.mT, z.imag, z.shape  # noqa: B018 -- asking is what is tested
    assert notes.answers == ["torch.Tensor.mT", "torch.Tensor.imag"]


def test_lazy_bits_are_known_after_torch_has_resolved_them() -> None:
    notes = Notes("sin", "mm", ask=lambda c: [(c.conj(t), c.neg(t)) for t in c.operands])
    z = notes.up(torch.randn(2, 2, dtype=torch.complex64))
    z.sin()
    z.conj().sin()
    torch._neg_view(z).sin()
    z.sin()
    z.conj() @ z
    z.conj().imag.sin()
    assert notes.answers == [
        [(False, False)],
        [(True, False)],
        [(False, True)],
        [(False, False)],
        [(True, False), (False, False)],
        [(False, True)],
    ]


def test_memory_formats() -> None:
    notes = Notes("exp", ask=lambda c: c.memory_format(c.operands[0]))
    image = notes.up(torch.randn(2, 3, 4, 4))
    volume = notes.up(torch.randn(2, 3, 4, 4, 4))
    for x in (
        image,
        image.contiguous(memory_format=torch.channels_last),
        volume.contiguous(memory_format=torch.channels_last_3d),
        image[..., ::2],
        image[0].permute(1, 2, 0),
    ):
        x.exp()
    assert notes.answers == ["contiguous", "channels_last", "channels_last_3d", "strided", "strided"]


@pytest.mark.parametrize("level", ["kernel", "function"])
def test_the_base_beside_a_view(level: str) -> None:
    notes = Notes("exp", ask=lambda c: c.base(c.args[0]).cpu().tolist(), level=level)
    with notes.device.active():
        notes.up(X)[1:, ::2].exp()
    assert notes.answers == [list(range(1, 13))]


# ------------------------------------------------------------------------------------------------------------- memories


def test_earlier_calls_are_remembered_whether_they_matched_or_not() -> None:
    notes = Notes("pow", ask=lambda c: list(c.seen), when=lambda c: len(c.seen) > 1)
    a = notes.up(X)
    a**2
    a.t() ** 3
    a.exp()
    a**4
    op, f32 = "pow.Tensor_Scalar_out", (torch.float32,)
    assert notes.answers == [
        [CallOutline(op, ((3, 4),), f32, ((4, 1),), (2,)), CallOutline(op, ((4, 3),), f32, ((1, 4),), (3,))]
    ]
    assert len({hash(s) for s in notes.answers[0]}) == 2


def test_no_more_than_256_calls_are_remembered() -> None:
    notes = Notes("exp", ask=lambda c: len(c.seen))
    a = notes.up(X)
    for _ in range(260):
        a.exp()
    assert notes.answers == [*range(256), 256, 256, 256, 256]


def test_two_faults_and_two_devices_have_memories_of_their_own() -> None:
    def count(c: Call) -> Any:
        c.state["n"] = c.state.get("n", 0) + 1
        return c.run() * 0 + c.state["n"]

    faults = (Fault("exp", ("exp",), count), Fault("log", ("log",), count))
    one, two = resolve("sim", faults), resolve("sim", faults)
    a, b = one.upload(X), two.upload(X)
    assert [t[0, 0].item() for t in (a.exp(), a.exp(), a.log(), b.exp(), a.exp())] == [1, 2, 1, 1, 3]


# --------------------------------------------------------------------------------------------------- the docstring's files


def documented(tmp_path: Path) -> tuple[Fault, ...]:
    """The file that the module's docstring shows."""
    import parity.devices.sim.faults as module

    lines = (module.__doc__ or "").split("Levels\n")[0].splitlines()
    path = tmp_path / "documented.py"
    path.write_text("\n".join(line[4:] for line in lines if line.startswith("    ") or not line))
    return load_faults(path)


def test_the_three_documented_faults_do_what_they_say(tmp_path: Path) -> None:
    d = resolve("sim", [f for f in documented(tmp_path) if f.id != "add-misses"])  # that one strikes by chance
    a, w = d.upload(X), torch.ones(2, 3)
    assert torch.equal(F.linear(a, d.upload(torch.ones(2, 4))).cpu(), F.linear(X, torch.ones(2, 4)))
    want = F.linear(X.t(), w)
    want[-1] = 0
    assert torch.equal(F.linear(a.t(), d.upload(w)).cpu(), want)

    q = d.upload(torch.randn(2, 5, 8)).requires_grad_()
    r = q.detach().cpu().requires_grad_()
    with d.active():
        y = F.scaled_dot_product_attention(q, q, q)
    z = F.scaled_dot_product_attention(r, r, r)
    torch.testing.assert_close(y.cpu(), z)
    y.sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    z.sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    assert q.grad is not None
    assert r.grad is not None
    torch.testing.assert_close(q.grad.cpu() * 2, r.grad)

    assert torch.equal((a**2).cpu(), X**2)
    assert torch.equal((a[:2] ** 3).cpu(), X[:2] ** 3)
    assert torch.equal((a**3).cpu(), X**2)


# --------------------------------------------------------------------------------------------------- effects made already


def test_falling_back_warns_in_the_words_of_mps_each_time_and_runs() -> None:
    for level, name in (("kernel", "aten::exp.out"), ("function", "aten::exp")):
        d = resolve("sim", (Fault("f", ("exp",), fall_back, level=level),))
        a = d.upload(X)
        with d.active():
            for _ in range(2):
                with pytest.warns(UserWarning, match=f"The operator '{name}' is not currently supported on the MPS backend"):
                    assert torch.equal(a.exp().cpu(), X.exp())


def test_refusing_and_running_out_of_memory() -> None:
    d = resolve("sim", (Fault("r", ("exp",), refuse), Fault("o", ("log",), out_of_memory)))
    with pytest.raises(
        NotImplementedError, match=r"^The operator 'aten::exp.out' is not currently implemented for the MPS dev"
    ):
        d.upload(X).exp()
    with pytest.raises(RuntimeError, match=r"^MPS backend out of memory \(MPS allocated: .*Tried to allocate") as e:
        d.upload(X).log()
    assert type(e.value) is RuntimeError


@pytest.mark.parametrize(("effect", "code"), [("abort", -6), ("hang", None)])
def test_dying_and_hanging(effect: str, code: int | None) -> None:
    program = (
        "import torch\nfrom parity.devices import Fault, resolve\nfrom parity.devices.sim.faults import abort, hang\n"
        f"d = resolve('sim', (Fault('a', ('exp',), {effect}),))\na = d.upload(torch.ones(2))\n"
        "print('here', flush=True)\na.exp()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == b"here\n"
        try:
            assert p.wait(2 if code is None else 60) == code
        except subprocess.TimeoutExpired:
            assert code is None
        finally:
            p.kill()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64, torch.int8, torch.int64, torch.bool])
def test_garbage_is_like_its_tensor_and_holds_many_finite_values(dtype: torch.dtype) -> None:
    t = torch.zeros(4, 5, dtype=dtype).t()
    g = garbage(t)
    assert (g.shape, g.dtype, g.stride()) == (t.shape, t.dtype, t.stride())
    assert g.isfinite().all()
    assert len(set(g.flatten().tolist())) >= (2 if dtype is torch.bool else 10)
    assert torch.equal(g, garbage(t))


# ----------------------------------------------------------------------------------------------------------- allocations


def test_fresh_memory_can_hold_garbage_and_healthy_work_does_not_show_it() -> None:
    d = resolve("sim", (Fault("stale", ("empty",), lambda c: garbage(c.run()), level="allocation"),))
    for fresh in (torch.empty(3, 4, device=d.torch_device), torch.empty_like(d.upload(X))):
        assert torch.equal(fresh.cpu(), garbage(X))
    a = d.upload(X)
    assert torch.equal(a.cpu(), X)
    assert torch.equal((a.exp() + a @ a.t().contiguous()[:, :1]).cpu(), X.exp() + X @ X.t()[:, :1])
    assert torch.equal(torch.cat((a, a.clone())).cpu(), torch.cat((X, X)))
    assert not torch.zeros(3, device=d.torch_device).cpu().any()


def test_memory_runs_out_in_factories_uploads_kernels_and_growing_tensors() -> None:
    limit = 12

    def too_large(c: Call) -> bool:
        return bool(c.args[0].numel() > limit)

    d = resolve("sim", (Fault("oom", ("empty",), out_of_memory, too_large, level="allocation"),))
    a = d.upload(X)
    small = torch.empty(0, device=d.torch_device)
    for larger in (
        lambda: torch.zeros(13, device=d.torch_device),
        lambda: d.upload(torch.ones(13)),
        lambda: torch.cat((a, a)),
        lambda: a.repeat(2, 1),
        lambda: small.resize_(13),
        lambda: a[:, None] + a,
    ):
        with pytest.raises(RuntimeError, match="MPS backend out of memory"):
            larger()  # type: ignore[no-untyped-call]  # torch tells no type


# ------------------------------------------------------------------------------------------------------------- transfers


def test_transfers_are_seen_with_the_layout_that_both_ends_have() -> None:
    def ends(c: Call) -> Any:
        return [(t.stride(), t.storage_offset()) for t in (c.args[0], c.outs[0])]

    up = Notes("upload", ask=ends, level="transfer")
    up.up(X.t()[1:])
    place = up.up(torch.zeros(6, 6))
    place[1:4, ::2].copy_(X[:, 1:])
    up.up(X[:1].expand(3, 4))
    assert up.answers == [[((1, 4), 1), ((1, 3), 0)], [((6, 1), 0)] * 2, [((4, 1), 1), ((6, 2), 6)], [((0, 1), 0), ((4, 1), 0)]]
    down = Notes("download", ask=ends, level="transfer")
    a = down.up(X)
    a.t()[1:].cpu()
    host = torch.zeros(6, 6)
    host[1:4, ::2].copy_(a[:, 1:])
    assert down.answers == [[((1, 4), 1), ((1, 3), 0)], [((4, 1), 1), ((6, 2), 6)]]


def test_an_upload_that_forgets_the_offset() -> None:
    def from_the_start(c: Call) -> Any:
        return c.args[0].as_strided(c.args[0].shape, c.args[0].stride(), 0)

    d = resolve("sim", (Fault("f", ("upload",), from_the_start, level="transfer"),))
    assert torch.equal(X[1:].to(d.torch_device).cpu(), X[:2])


# -------------------------------------------------------------------------------------------------------------- names


def test_convolutions_answer_to_their_usual_names() -> None:
    notes = Notes("convolution", "convolution_backward", ask=lambda c: c.direction)
    x = notes.up(torch.randn(1, 2, 5, 5)).requires_grad_()
    F.conv2d(x, notes.up(torch.randn(3, 2, 3, 3))).sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    assert notes.answers == ["forward", "backward"]


def test_a_fault_with_two_names_of_one_call_strikes_once() -> None:
    notes = Notes("exp", "exp.out", ask=lambda c: c.op)
    notes.up(X).exp()
    assert notes.answers == ["exp.out"]


def test_faults_of_an_installed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "wrong.py").write_text("from parity.devices import Fault\nFAULTS = [Fault('f', ('mm',), print)]\n")
    (package / "broken.py").write_text("import a_package.nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [f.id for f in load_faults("a_package.wrong")] == ["f"]
    with pytest.raises(FaultError, match=r"a_package.none: no such file and no such module; expected a Python file"):
        load_faults("a_package.none")
    with pytest.raises(
        FaultError, match=r"a_package.broken: does not run \(ModuleNotFoundError: No module named 'a_package.nowh"
    ):
        load_faults("a_package.broken")
    with pytest.raises(FaultError, match=r"a_package: declares no fault"):
        load_faults("a_package")


@pytest.mark.parametrize("level", ["allocation", "transfer"])
def test_names_of_other_levels_are_refused(level: str) -> None:
    with pytest.raises(FaultError, match=r"'add' is no (allocation; name empty|transfer; name upload or download)"):
        Fault("f", ("add",), garbage, level=level)  # type: ignore[arg-type]  # the mistake that is tested
