"""The simulated device is a device like any other: everything that torch does with one works, and equals the CPU."""

from __future__ import annotations

import copy
import io
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.devices import Device, resolve
from parity.devices.sim.profile import mps_operators

X, Y = torch.randn(3, 4), torch.randn(3, 4)
IMAGE = torch.randn(2, 3, 8, 8)


@pytest.fixture
def sim() -> Device:
    return resolve("sim")


def close(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=rtol, atol=atol)


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
    made = (
        torch.rand(2, device=d),
        torch.eye(3, device=d),
        torch.tensor([1.0], device=d),
        z.new_ones(3),
        torch.randn_like(z),
    )
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
            call()  # type: ignore[no-untyped-call]


def test_decompositions_and_transforms(sim: Device) -> None:
    close(torch.fft.fft(sim.upload(X)), torch.fft.fft(X))
    assert len(torch.linalg.svd(sim.upload(X))) == 3
    close(torch.linalg.solve(sim.upload(torch.eye(3) * 2), sim.upload(torch.ones(3, 1))), torch.ones(3, 1) / 2)
    close(torch.linalg.det(sim.upload(torch.empty(0, 0))), torch.ones(()))


# ----------------------------------------------------------------------------------------------------------- gradients


def both(device: Device, f: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values and gradients on the device equal the CPU's."""
    here = [i.detach().clone().requires_grad_() for i in inputs]
    there = [device.upload(i).requires_grad_() for i in inputs]
    a, b = f(*here), f(*there)
    close(b, a)
    g = torch.randn_like(a)
    grads = torch.autograd.grad(a, here, g, allow_unused=True)
    for x, y in zip(grads, torch.autograd.grad(b, there, device.upload(g), allow_unused=True)):
        if x is not None:
            close(y, x, rtol=1e-4, atol=1e-5)


def double_backward(t: Tensor) -> Tensor:
    (g,) = torch.autograd.grad((t**3).sum(), t, create_graph=True)
    return g * t


def in_place_on_a_view(t: Tensor) -> Tensor:
    u = t * 1
    u[:, 1:].mul_(3)
    return u[torch.tensor([0, 2, 0], device=t.device)].t() ** 2


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda t: torch.tanh(t) * t, [(3, 4)]),
        (double_backward, [(3, 4)]),
        (in_place_on_a_view, [(3, 4)]),
        (F.linear, [(3, 4), (5, 4), (5,)]),
        (F.linear, [(2, 3, 4), (5, 4)]),
        (F.linear, [(4,), (5, 4), (5,)]),
        (lambda x, w: F.linear(x.t(), w), [(4, 3), (5, 4)]),
        (lambda x: F.max_pool2d(x, 3, 2, 1, 1, True), [(2, 3, 8, 8)]),
        (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 3, 5, 5), (3, 2, 3, 3)]),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [(2, 2, 5, 8)] * 3),
        (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
        (lambda x: torch.linalg.svd(x)[1], [(3, 4)]),
        (lambda x: torch.renorm(x, 2, 0, 1.0), [(3, 4)]),
    ],
)
@pytest.mark.parametrize("name", ["sim", "sim:mps"])
def test_gradients(name: str, f: Callable[..., Tensor], shapes: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # svd on sim:mps falls back
        both(resolve(name), f, *(torch.randn(*s) for s in shapes))


def test_hooks_functional_transforms_and_forward_mode(sim: Device) -> None:
    a, w = sim.upload(X), sim.upload(torch.randn(5, 4))
    close(torch.func.grad(lambda t: (t**2).sum())(a), 2 * X)
    close(torch.func.vmap(torch.sum)(a), X.sum(1))
    close(torch.func.jvp(lambda t: F.linear(t, w), (a,), (a,))[1], F.linear(X, w.cpu()))
    b = a.clone().requires_grad_()
    devices: list[str] = []
    b.register_hook(lambda g: devices.append(g.device.type))  # type: ignore[no-untyped-call]
    torch.utils.checkpoint.checkpoint(lambda t: t.sin(), b, use_reentrant=False).sum().backward()
    assert devices == ["sim"]
    c = X.clone().requires_grad_()
    (c.to(sim.torch_device) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    assert c.grad is not None
    close(c.grad, 2 * X)


# ------------------------------------------------------------------------------------------------ modules, optimizers


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm2d(3), (2, 3, 8, 8)),
        (nn.GroupNorm(2, 4), (2, 4, 3)),
        (nn.TransformerEncoderLayer(8, 2, 16, 0.0), (5, 2, 8)),
        (nn.RNN(4, 6), (5, 2, 4)),
        (nn.LSTM(4, 6, num_layers=2, bidirectional=True), (5, 2, 4)),
        (nn.LSTM(4, 6, proj_size=3), (5, 2, 4)),
        (nn.LSTM(4, 6, bias=False), (5, 2, 4)),
        (nn.GRU(4, 6, num_layers=2, bidirectional=True, batch_first=True), (5, 2, 4)),
        (nn.GRU(4, 6, bias=False), (5, 2, 4)),
    ],
    ids=lambda v: str(v).replace("\n", "")[:40],
)
@pytest.mark.parametrize("name", ["sim", "sim:mps"])
def test_modules_and_their_gradients(name: str, module: nn.Module, shape: tuple[int, ...]) -> None:
    device = resolve(name)
    here, there = copy.deepcopy(module), copy.deepcopy(module)
    parameters = [id(p) for p in there.parameters()]
    there.to(device.torch_device)
    assert parameters == [id(p) for p in there.parameters()]
    x = torch.randn(*shape)
    a, b = here(x), there(device.upload(x))
    a, b = (a[0], b[0]) if isinstance(a, tuple) else (a, b)
    close(b, a, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(a)
    a.backward(g)
    b.backward(device.upload(g))
    for p, q in zip(there.parameters(), here.parameters()):
        assert p.grad is not None
        assert q.grad is not None
        close(p.grad, q.grad, rtol=1e-4, atol=1e-4)


def test_embeddings_and_packed_sequences(sim: Device) -> None:
    e = nn.Embedding(7, 3)
    there = copy.deepcopy(e).to(sim.torch_device)
    i = torch.randint(7, (2, 3))
    close(there(sim.upload(i)), e(i))
    packed = nn.utils.rnn.pack_padded_sequence(sim.upload(torch.randn(5, 2, 4)), torch.tensor([5, 3]))
    nn.LSTM(4, 6).to(sim.torch_device)(packed)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_step_like_the_cpu(sim: Device, kind: Any) -> None:
    m = nn.Linear(4, 3)
    n = copy.deepcopy(m).to(sim.torch_device)
    x = torch.randn(5, 4)
    for model, place in ((m, "cpu"), (n, sim.torch_device)):
        optimizer = kind(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            (model(x.to(place)) ** 2).mean().backward()
            optimizer.step()
    close(n.weight, m.weight)


def test_copying_saving_and_loading(sim: Device) -> None:
    close(copy.deepcopy(sim.upload(X)), X)
    for name in ("sim", "sim:mps"):
        there = resolve(name).upload(X)
        file = io.BytesIO()
        torch.save({"x": there, "m": nn.Linear(2, 2).to(there.device).state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file)
        assert loaded["x"].device == there.device
        close(loaded["x"], X)
        file.seek(0)
        close(torch.load(file, map_location="cpu")["x"], X)


def test_a_group_norm_with_strided_weights(sim: Device) -> None:
    x, w, b = torch.randn(2, 6, 3), torch.randn(6, 2), torch.randn(6, 2)
    w[:, 1] = b[:, 1] = math.inf
    want = torch.native_group_norm(x, w[:, 0].contiguous(), b[:, 0].contiguous(), 2, 6, 3, 2, 1e-5)
    sx, sw, sb = (sim.upload(t) for t in (x, w, b))
    leaves = [t.detach().requires_grad_() for t in (sx, sw, sb)]
    got = torch.native_group_norm(leaves[0], leaves[1][:, 0], leaves[2][:, 0], 2, 6, 3, 2, 1e-5)
    for g, w in zip(got, want):
        close(g, w)
    got[0].sum().backward()  # type: ignore[no-untyped-call]
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all().cpu()


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
    want.sum().abs().backward()  # type: ignore[no-untyped-call]
    got.sum().abs().backward()  # type: ignore[no-untyped-call]
    assert here.grad is not None
    assert there.grad is not None
    close(there.grad, here.grad)


def test_a_linear_layer_without_rows_or_features(sim: Device) -> None:
    x, w = sim.upload(torch.zeros(0)).requires_grad_(), sim.upload(torch.zeros(1, 0)).requires_grad_()
    F.linear(x, w).sum().backward()  # type: ignore[no-untyped-call]
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
