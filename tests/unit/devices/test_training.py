"""Gradients, modules and optimizers work on the simulated device, and equal the CPU's."""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from likeness import close
from torch import Tensor, nn

from parity.devices import Device, resolve

X, Y = torch.randn(3, 4), torch.randn(3, 4)
IMAGE = torch.randn(2, 3, 8, 8)


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
    b.register_hook(lambda g: devices.append(g.device.type))  # type: ignore[no-untyped-call]  # torch tells no type
    torch.utils.checkpoint.checkpoint(lambda t: t.sin(), b, use_reentrant=False).sum().backward()
    assert devices == ["sim"]
    c = X.clone().requires_grad_()
    (c.to(sim.torch_device) ** 2).sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
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
    got[0].sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all().cpu()
