"""What MPS runs as one kernel is one call for a fault: at function level always, at kernel level where MPS has the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.devices import Call, Device, Fault, resolve

X = torch.randn(5, 2, 4)
IMAGE = torch.randn(2, 4, 8, 8)
Q = torch.randn(2, 2, 5, 8)


class _Attending(nn.Module):
    """Attention of a tensor to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x, x, x)


def counting(op: str, level: str, struck: list[str]) -> Device:
    """A device with one fault on `op` that writes down its calls and changes nothing."""

    def effect(call: Call) -> Any:
        struck.append(call.op)
        return call.run()

    return resolve("sim", (Fault("count", (op,), effect, level=level),))


@pytest.mark.parametrize(
    ("op", "build", "shape"),
    [
        ("linear", lambda: nn.Linear(4, 3), X),
        ("max_pool2d", lambda: nn.MaxPool2d(2), IMAGE),
        ("max_pool2d", lambda: lambda x: F.max_pool2d(x, 2), IMAGE),
        ("conv1d", lambda: nn.Conv1d(2, 3, 2), X),
        ("conv2d", lambda: nn.Conv2d(4, 3, 3), IMAGE),
        ("conv3d", lambda: nn.Conv3d(2, 3, 2), IMAGE.reshape(1, 2, 4, 8, 8)),
        ("conv_transpose2d", lambda: nn.ConvTranspose2d(4, 3, 3), IMAGE),
        ("lstm", lambda: nn.LSTM(4, 6, num_layers=2), X),
        ("gru", lambda: nn.GRU(4, 6, bidirectional=True), X),
        ("rnn_tanh", lambda: nn.RNN(4, 6), X),
        ("lstm_cell", lambda: nn.LSTMCell(4, 6), X[0]),
        ("gru_cell", lambda: nn.GRUCell(4, 6), X[0]),
        ("scaled_dot_product_attention", lambda: lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), Q),
        ("multi_head_attention_forward", _Attending, X),
        ("layer_norm", lambda: nn.LayerNorm(4), X),
        ("group_norm", lambda: nn.GroupNorm(2, 4), IMAGE),
        ("batch_norm", lambda: nn.BatchNorm2d(4), IMAGE),
        ("rms_norm", lambda: nn.RMSNorm(4), X),
        ("permute", lambda: lambda x: x.permute(2, 0, 1), X),
        ("permute", lambda: lambda x: torch.permute(x, (2, 0, 1)), X),
        ("repeat", lambda: lambda x: x.repeat(2, 1, 1), X),
        ("pad", lambda: lambda x: F.pad(x, (1, 1)), X),
        ("pixel_shuffle", lambda: nn.PixelShuffle(2), IMAGE),
        ("interpolate", lambda: nn.Upsample(scale_factor=2), IMAGE),
        ("cross_entropy", lambda: lambda x: F.cross_entropy(x, x.softmax(1)), X),
        ("einsum", lambda: lambda x: torch.einsum("abc,abd->acd", x, x), X),
        ("__getitem__", lambda: lambda x: x[1:, ::2], X),
        ("narrow", lambda: lambda x: x.narrow(0, 1, 2), X),
        ("Tensor.to", lambda: lambda x: x.to(torch.float16), X),
    ],
)
def test_a_public_function_is_one_call(op: str, build: Callable[[], Any], shape: Tensor) -> None:
    struck: list[str] = []
    device = counting(op, "function", struck)
    f = build()
    f = f.to(device.torch_device) if isinstance(f, nn.Module) else f
    x = device.upload(shape)
    with device.active():
        with torch.no_grad():
            f(x)
        assert len(struck) == 1
        f(x.requires_grad_())
    assert len(struck) == 2


@pytest.mark.parametrize(
    ("op", "call", "x"),
    [
        ("linear", lambda x: F.linear(x, x[0]), X),
        ("max_pool2d", lambda x: F.max_pool2d(x, 2), IMAGE),
        ("convolution", lambda x: F.conv2d(x, x[:, :, :3, :3]), IMAGE),
        ("_lstm_mps", lambda x: _lstm(x), X),
        ("_scaled_dot_product_attention_math_for_mps", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), Q),
        ("_scaled_dot_product_attention_math_for_mps", lambda x: F.scaled_dot_product_attention(x, x, x, x[..., :5]), Q),
        ("_fused_rms_norm", lambda x: F.rms_norm(x, (4,), x[0, 0]), X),
        ("repeat", lambda x: x.repeat(2, 1, 1), X),
        ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), IMAGE),
        ("native_layer_norm", lambda x: F.layer_norm(x, (4,)), X),
        ("native_group_norm", lambda x: F.group_norm(x, 2), IMAGE),
        ("constant_pad_nd", lambda x: F.pad(x, (1, -1)), X),
    ],
)  # fmt: skip
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_kernel_of_mps_is_one_call_and_equals_the_cpu(op: str, call: Any, x: Tensor, guard: Any) -> None:
    struck: list[str] = []
    device = counting(op, "kernel", struck)
    with guard():
        got = call(device.upload(x))
        torch.testing.assert_close(got.cpu(), call(x))
    assert len(struck) == 1


@pytest.mark.parametrize(("dtype", "more"), [(torch.float32, {"is_causal": True, "scale": 0.0}), (torch.float16, {})])
def test_attention_is_right_where_the_fused_kernel_of_the_cpu_is_not(dtype: torch.dtype, more: dict[str, Any]) -> None:
    """It multiplies -Inf of a causal mask by a scale of 0, and gives 0 for an Inf in a mask of half types."""
    x = torch.ones(1, 1, 32, 8, dtype=dtype)
    named: dict[str, Any] = more or {
        "attn_mask": torch.zeros(1, 32, dtype=dtype).index_fill(-1, torch.tensor([3]), float("inf"))
    }
    device = resolve("sim:mps")
    y = device.upload(x)
    there: dict[str, Any] = {n: device.upload(a) if isinstance(a, Tensor) else a for n, a in named.items()}
    with torch.no_grad():
        got = F.scaled_dot_product_attention(y, y, y, **there).cpu()
    assert bool(torch.isclose(got, torch.ones_like(got)).all() if more else got.isnan().all())
    with pytest.raises(RuntimeError, match="same dtype"):
        F.scaled_dot_product_attention(y, y.bfloat16(), y, **there)


def _lstm(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return nn.LSTM(4, 6).to(x.device)(x)[0]  # type: ignore[no-any-return]  # torch tells no type


@pytest.mark.parametrize(
    ("call", "x"),
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x, scale=0.5), Q),
        (lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1], enable_gqa=True), Q),
        (lambda x: F.rms_norm(x, (4,), x[0, 0], 1e-3), X),
        (lambda x: F.rms_norm(x, (2, 4)), X),
    ],
)
def test_with_a_gradient_or_a_tangent_the_composition_answers(call: Any, x: Tensor) -> None:
    device = resolve("sim:mps")
    here, there = x.clone().requires_grad_(), device.upload(x).requires_grad_()
    want, got = call(here), call(there)
    torch.testing.assert_close(got.cpu(), want)
    for y in (want, got):
        y.square().sum().backward()
    assert here.grad is not None
    assert there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-5)
    moved = torch.func.jvp(call, (there.detach(),), (there.detach(),))[1]
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's other way has no forward mode
        torch.testing.assert_close(moved.cpu(), torch.func.jvp(call, (x,), (x,))[1], rtol=1e-4, atol=1e-5)
    batched = torch.func.vmap(call)(torch.stack((there.detach(),) * 2))
    torch.testing.assert_close(batched[0].cpu(), want.detach())


def test_attention_to_no_keys_has_the_shape_of_the_query_whatever_the_mask_holds() -> None:
    device = resolve("sim:mps")
    q, k, mask = torch.ones(1, 1), torch.ones(0, 1, 1), torch.tensor(float("inf"))
    on_it = device.upload
    with torch.no_grad():
        got = F.scaled_dot_product_attention(on_it(q), on_it(k), on_it(k), on_it(mask))
        assert torch.equal(got.cpu(), F.scaled_dot_product_attention(q, k, k, mask))


def test_attention_with_dropout_is_composed_as_on_mps() -> None:
    struck: list[str] = []
    device = counting("_scaled_dot_product_attention_math_for_mps", "kernel", struck)
    q = device.upload(Q)
    F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert not struck
