"""The simulated device is a device like any other: tensors, views and calls work, and equal the CPU's (see test_training)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from likeness import close
from torch import Tensor, nn

from parity.devices import Device, resolve
from parity.devices.sim.profile import mps_operators

X, Y = torch.randn(3, 4), torch.randn(3, 4)
IMAGE = torch.randn(2, 3, 8, 8)


def log(device: Any, call: Callable[[], object]) -> list[str]:
    """What reaches the device."""
    device.seat.log = []
    device.seat.touch()
    try:
        call()
        return [op for op in device.seat.log if not op.startswith("empty")]
    finally:
        device.seat.log = None
        device.seat.touch()


# -------------------------------------------------------------------------------------------------- tensors and views


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.complex64])
def test_round_trips(sim: Device, dtype: torch.dtype) -> None:
    t = torch.randn(5).to(dtype)
    there = sim.upload(t)
    assert there.device == sim.torch_device
    assert not there.is_cpu
    assert torch.equal(sim.download(there), t)


def test_empty_and_single_elements(sim: Device) -> None:
    assert sim.upload(torch.tensor(3.0)).item() == 3
    assert sim.upload(torch.empty(0, 3)).cpu().shape == (0, 3)
    assert sim.upload(torch.ones(1, 3).as_strided((1, 3), (7, 1))).shape == (1, 3)


def test_factories(sim: Device) -> None:
    d = sim.torch_device
    assert torch.arange(5, device=d).tolist() == [0, 1, 2, 3, 4]
    z = torch.zeros_like(sim.upload(X))
    made = (torch.rand(2, device=d), torch.eye(3, device=d), torch.tensor([1.0], device=d), z.new_ones(3), torch.randn_like(z))
    assert all(t.device == d for t in made)
    with torch.device(d):
        assert torch.randn(3).device == d


def test_pointwise_reductions_and_sorting(sim: Device) -> None:
    a, b = sim.upload(X), sim.upload(Y)
    close(a + b * 2 - 1, X + Y * 2 - 1)
    close(a @ b.T, X @ Y.T)
    close(a.softmax(-1), X.softmax(-1))
    close(torch.var(a, 1), torch.var(X, 1))
    close(torch.cat([a, b]), torch.cat([X, Y]))
    close(torch.sort(a)[0], torch.sort(X)[0])
    close(a.max(1).values, X.max(1).values)
    close(torch._foreach_add([a], 1.0)[0], X + 1)
    close(a * torch.tensor(2.0), X * 2)  # a 0-d CPU tensor mixes freely


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.l1_loss, F.huber_loss])
def test_losses_whose_kernel_grows_its_destination(sim: Device, loss: Any, reduction: str) -> None:
    close(loss(sim.upload(X), sim.upload(Y), reduction=reduction), loss(X, Y, reduction=reduction))


def test_indexing_masks_and_printing(sim: Device) -> None:
    a = sim.upload(X)
    assert "device='sim:0'" in repr(a)
    assert a.tolist() == X.tolist()
    close(a[a > 0], X[X > 0])
    c, d = a.clone(), X.clone()
    c[c > 0] = 0
    d[d > 0] = 0
    c[1, 2:] = 7
    d[1, 2:] = 7
    close(c, d)


def test_views_share_memory_and_keep_strides_offset_base_and_version(sim: Device) -> None:
    a, b = sim.upload(X), X.clone()
    v = a.t()[1:, 1:]
    assert (v.storage_offset(), v.stride(), v._base is a) == (5, (1, 4), True)
    before = a._version
    v.mul_(10.0)
    b.t()[1:, 1:].mul_(10.0)
    assert a._version == before + 1
    close(a, b)
    close(a.as_strided((2, 3), (3, 2), 1), b.as_strided((2, 3), (3, 2), 1))
    close(a.view(-1).unfold(0, 3, 2), b.view(-1).unfold(0, 3, 2))
    assert a.view(torch.int32).dtype == torch.int32
    assert sim.upload(IMAGE).contiguous(memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)


def test_out_grows_and_writes(sim: Device) -> None:
    a, b = sim.upload(X), sim.upload(Y)
    for out in (torch.empty(3, 4, device=sim.torch_device), torch.empty(0, device=sim.torch_device)):
        torch.add(a, b, out=out)
        close(out, X + Y)
    values, indices = torch.empty(0, device=sim.torch_device), torch.empty(0, dtype=torch.long, device=sim.torch_device)
    torch.sort(a, out=(values, indices))
    close(indices, torch.sort(X)[1])


def test_conj_and_neg_bits(sim: Device) -> None:
    c = torch.randn(3, dtype=torch.complex64)
    there = sim.upload(c)
    close(there.conj() * 2, (c.conj() * 2).resolve_conj())
    close(there.imag, c.imag)
    down = sim.download(there.conj())
    assert not down.is_conj()
    assert torch.equal(down, c.conj().resolve_conj())


def test_mixed_devices_are_refused(sim: Device) -> None:
    a = sim.upload(X)
    for call in (lambda: a + Y, lambda: a @ Y.T, lambda: F.linear(a, Y)):
        with pytest.raises(RuntimeError, match="same device"):
            call()  # type: ignore[no-untyped-call]  # torch tells no type


def test_decompositions_and_transforms(sim: Device) -> None:
    close(torch.fft.fft(sim.upload(X)), torch.fft.fft(X))
    assert len(torch.linalg.svd(sim.upload(X))) == 3
    close(torch.linalg.solve(sim.upload(torch.eye(3) * 2), sim.upload(torch.ones(3, 1))), torch.ones(3, 1) / 2)
    close(torch.linalg.det(sim.upload(torch.empty(0, 0))), torch.ones(()))


# -------------------------------------------------------------------------------------------------- what arrives there


def test_what_mps_runs_as_one_call_arrives_as_one_call(sim: Device) -> None:
    x, w = sim.upload(X).requires_grad_(), sim.upload(torch.randn(5, 4)).requires_grad_()
    g = sim.upload(torch.ones(3, 5))
    assert log(sim, lambda: torch.autograd.grad(F.linear(x, w), (x, w), g)) == ["linear", "linear_backward"]
    i = sim.upload(IMAGE).requires_grad_()
    gi = sim.upload(torch.ones(2, 3, 4, 4))
    assert log(sim, lambda: torch.autograd.grad(F.max_pool2d(i, 2), i, gi)) == ["max_pool2d", "max_pool2d_backward"]
    lstm = nn.LSTM(4, 6).to(sim.torch_device)
    s = sim.upload(torch.randn(5, 2, 4))
    assert {"_lstm_mps", "lstm_mps_backward"} <= set(log(sim, lambda: lstm(s)[0].sum().backward()))
    assert log(sim, lambda: torch.autograd.grad(F.silu(x), x, x.detach())) == ["silu.out", "silu_backward"]


def test_what_torch_would_decompose_though_mps_has_a_kernel_is_one_call_here(sim: Device) -> None:
    """A composite goes before the fallback, so each needs a kernel of its own; structured ones arrive as `.out`."""
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    decomposed = []
    for name in mps_operators():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default").name()
        composite = any(has(op, k) for k in ("CompositeImplicitAutograd", "CompositeExplicitAutograd"))
        if composite and not has(op, "PrivateUse1"):
            decomposed.append(name)
    assert decomposed == ["permute"]  # a view


def test_random_streams_repeat_by_seed(sim: Device) -> None:
    sim.seed(3)
    a = torch.randn(4, device=sim.torch_device)
    with torch.random.fork_rng(device_type="sim"):
        torch.randn(4, device=sim.torch_device)
    sim.seed(3)
    assert torch.equal(a.cpu(), torch.randn(4, device=sim.torch_device).cpu())


def test_four_threads(sim: Device) -> None:
    wrong: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(50):
                close(sim.upload(X) + 1, X + 1)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions(sim: Device, backend: str) -> None:
    close(torch.compile(lambda t: t.sin() + 1, backend=backend)(sim.upload(X)), X.sin() + 1)


def test_two_personalities_do_not_mix(sim: Device) -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, sim:0 and sim:1"):
        sim.upload(X) + resolve("sim:mps").upload(X)


def test_temporaries_are_freed(sim: Device) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        torch.zeros(1 << 20, device=sim.torch_device).add_(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


COMPLEX = torch.randn(3, 3, dtype=torch.complex64) + 2 * torch.eye(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a @ a.conj(),
        lambda a: torch.dot(a[0], a[1].conj()),
        lambda a: torch.vdot(a[0].conj(), a[1]),
        lambda a: torch.addmm(a, a.mH, a),
        lambda a: torch.linalg.solve(a, a, left=False),
        lambda a: torch.linalg.solve_triangular(a.triu(), a.conj(), upper=True),
        lambda a: torch.linalg.solve_triangular(a.real.triu(), torch._neg_view(a.real), upper=True),
        lambda a: F.linear(a, a, a[0]),
        lambda a: a.clone().conj_physical_(),
        lambda a: a.conj().imag,
    ],
)
def test_lazy_conjugates_and_negatives(sim: Device, call: Callable[[Tensor], Tensor]) -> None:
    here, there = COMPLEX.clone().requires_grad_(), sim.upload(COMPLEX).requires_grad_()
    want, got = call(here), call(there)
    close(got, want)
    assert got.is_conj() == want.is_conj()
    want.sum().abs().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    got.sum().abs().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    assert here.grad is not None
    assert there.grad is not None
    close(there.grad, here.grad)


def test_a_linear_layer_without_rows_or_features(sim: Device) -> None:
    x, w = sim.upload(torch.zeros(0)).requires_grad_(), sim.upload(torch.zeros(1, 0)).requires_grad_()
    F.linear(x, w).sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    assert x.grad is not None
    assert x.grad.shape == (0,)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: torch.floor_divide(a, 1),
        lambda a: a // 2.5,
        lambda a: a & 1,
        lambda a: torch.where(a > 0, 1, a),
        lambda a: torch.xlogy(a, 2),
        lambda a: torch.bitwise_left_shift(a, 1),
        lambda a: torch.remainder(3, a),
        lambda a: torch.copysign(a, -1),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_rank_below_tensors(sim: Device, call: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 7, dtype=torch.int16)
    got = call(sim.upload(x))
    assert got.dtype == call(x).dtype
    close(got, call(x))


def test_strides_of_dimensions_of_size_one_reach_the_kernel(sim: Device) -> None:
    x = torch.randn(1, 2, 1, 2).to(memory_format=torch.channels_last)
    there = x.to(sim.torch_device)
    got, want = F.pad(there, (1, 1, 0, 0, 1, 1), mode="reflect"), F.pad(x, (1, 1, 0, 0, 1, 1), mode="reflect")
    close(got, want)
    assert got.stride() == want.stride()


def _keep(found: list[Tensor], call: Callable[[], Tensor]) -> None:
    found.append(call())


def test_who_watches_sees_the_pieces_of_what_else_is_one_call(sim: Device) -> None:
    """A functional operator runs whole where nobody looks; a log, a fault or a profile sees torch's own allocation and out=."""
    x, y = sim.upload(X), sim.upload(Y)
    p = sim.upload(torch.rand(3))
    calls: tuple[tuple[Callable[[], Tensor], str], ...] = (
        (lambda: x + y, "add.out"),
        (lambda: x * 2, "mul.out"),
        (lambda: x.tanh(), "tanh.out"),
        (lambda: x.sum(1), "sum.IntList_out"),
        (lambda: torch.special.legendre_polynomial_p(p, 2), "special_legendre_polynomial_p.out"),
    )
    for call, told in calls:
        whole = call().cpu()
        found: list[Tensor] = []
        assert log(sim, functools.partial(_keep, found, call)) == [told]
        assert torch.equal(found[0].cpu(), whole)
    turned = x.t()
    assert (turned + y.t()).stride() == (X.t() + Y.t()).stride()
    assert log(sim, lambda: turned.clone()) == ["copy_"]
    assert turned.clone().stride() == X.t().clone().stride()
