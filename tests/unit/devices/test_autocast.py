"""torch.autocast on the simulated device casts what it casts on MPS."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.devices import Device, Fault, resolve
from parity.devices.sim import autocast

HALVES = [torch.float16, torch.bfloat16]
A, B = torch.rand(4, 4) + 0.5, torch.rand(4, 4)
IMAGE = torch.rand(2, 3, 8, 8)


@pytest.fixture(params=["sim", "sim:mps"])
def device(request: pytest.FixtureRequest) -> Device:
    return resolve(request.param)


def listed(*macros: str) -> set[str]:
    """Names in the lists for CUDA, from torch's own header."""
    text = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    names = set()
    for macro in macros:
        found = re.search(rf"#define {macro}\(_\)((?:.*\\\n)+.*)", text)
        assert found is not None
        names |= {n + (f".{o}" if o else "") for n, o in re.findall(r"_\((\w+)(?:, (\w+))?\)", found[1])}
    return names


def test_the_lists_are_those_for_cuda_but_for_what_is_known_to_differ() -> None:
    lower, float32, widest = set(autocast.LOWER_PRECISION), set(autocast.FLOAT32), set(autocast.WIDEST)
    assert len(lower) + len(float32) + len(widest) == 94  # in the wheel 95, with _mps_convolution
    assert listed("AT_FORALL_LOWER_PRECISION_FP") ^ lower == {
        *("_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "conv_transpose3d.input"),
        *("gru_cell", "linalg_vecdot", "rnn_relu_cell", "rnn_tanh_cell"),
    }
    differing = listed("AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE") ^ float32
    assert {n for n in differing if "upsample" not in n} == {"rms_norm", "conv_transpose3d.input", "batch_norm"}
    assert not any("upsample" in n for n in float32)
    assert listed("AT_FORALL_PROMOTE") ^ widest == {"vdot"}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("call", "wide"),
    [
        (lambda a, b: a @ b, False),
        (lambda a, b: F.linear(a, b, b[0]), False),
        (lambda a, b: torch.einsum("ij,jk->ik", a, b), False),
        (lambda a, b: torch.linalg.multi_dot((a, b, a)), False),
        (lambda a, b: torch.addmm(input=a, mat1=a, mat2=b), False),
        (lambda a, b: F.prelu(-a, b[0]), False),
        (lambda a, b: F.scaled_dot_product_attention(a[None], b[None], a[None]), False),
        (lambda a, b: a.exp(), True),
        (lambda a, b: a**2, True),
        (lambda a, b: a.softmax(0), True),
        (lambda a, b: a.sum(), True),
        (lambda a, b: F.layer_norm(a, (4,)), True),
        (lambda a, b: F.mse_loss(a, b), True),
    ],
)
def test_results_are_those_of_operands_cast_by_hand(
    device: Device, half: torch.dtype, call: Callable[[Tensor, Tensor], Tensor], wide: bool
) -> None:
    given, used = (half, torch.float32) if wide else (torch.float32, half)
    a, b = A.to(given), B.to(given)
    with torch.autocast("sim", dtype=half):
        got = call(device.upload(a), device.upload(b))
    assert got.dtype is used
    torch.testing.assert_close(got.cpu(), call(a.to(used), b.to(used)))
    assert call(device.upload(A), device.upload(B)).dtype is torch.float32


def test_images_convolve_in_half_and_are_normalised_in_float32(device: Device) -> None:
    weight = torch.rand(4, 3, 3, 3)
    with torch.autocast("sim", dtype=torch.float16):
        y = F.conv2d(device.upload(IMAGE), device.upload(weight))
        z = F.batch_norm(y, None, None, training=True)
        u = F.conv_transpose3d(device.upload(IMAGE.half()), device.upload(torch.rand(2, 3, 1, 1, 1).half()))
        v = F.interpolate(y, scale_factor=2, mode="bilinear")
    assert [t.dtype for t in (y, z, u, v)] == [torch.float16, torch.float32, torch.float32, torch.float16]
    torch.testing.assert_close(y.cpu(), F.conv2d(IMAGE.half(), weight.half()))


def test_mixed_operands_go_to_the_wider_and_float64_and_integers_stay() -> None:
    d = resolve("sim")
    with torch.autocast("sim", dtype=torch.float16):
        assert torch.atan2(d.upload(A.half()), d.upload(B)).dtype is torch.float32
        assert torch.dot(d.upload(A[0].half()), d.upload(B[0].half())).dtype is torch.float16
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast::prioritize"):
            torch.atan2(d.upload(A.bfloat16()), d.upload(B.bfloat16()))
        assert (d.upload(A.double()) @ d.upload(B.double())).dtype is torch.float64
        assert d.upload(torch.arange(3)).sum().dtype is torch.int64


def test_nested_regions_and_disabled_ones() -> None:
    d = resolve("sim")
    a = d.upload(A)
    with torch.autocast("sim", dtype=torch.float16):
        with torch.autocast("sim", enabled=False):
            assert (a @ a).dtype is torch.float32
        with torch.autocast("sim", dtype=torch.bfloat16):
            assert (a @ a).dtype is torch.bfloat16
        assert (a @ a).dtype is torch.float16
        assert (A @ A).dtype is torch.float32  # the CPU has a switch of its own
    with pytest.warns(UserWarning, match="target dtype is not supported"), torch.autocast("sim", dtype=torch.float32):
        assert (a @ a).dtype is torch.float32


def test_a_training_step_and_its_gradients(device: Device) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).to(device.torch_device)
    with torch.autocast("sim", dtype=torch.bfloat16):
        y = module(device.upload(IMAGE))
        loss = F.cross_entropy(y, device.upload(torch.tensor([1, 2])))
    assert (y.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    loss.backward()  # type: ignore[no-untyped-call]  # torch tells no type
    for p in module.parameters():
        assert p.grad is not None
        assert p.grad.dtype is torch.float32
        assert p.grad.cpu().any()


def test_a_weight_is_cast_once_within_a_region_and_anew_in_the_next() -> None:
    casts: list[str] = []
    fault = Fault("count", ("copy_",), lambda c: casts.append("cast") or c.run())  # type: ignore[func-returns-value]  # append gives None
    d = resolve("sim", (fault,))
    weight = d.upload(A).requires_grad_()
    x = d.upload(B.half())
    for count in (1, 2):
        with torch.autocast("sim", dtype=torch.float16):
            for _ in range(3):
                x @ weight
        assert len(casts) == count
    assert not autocast._cast
    casts.clear()
    with torch.autocast("sim", dtype=torch.float16, cache_enabled=False):
        x @ weight + x @ weight
    assert len(casts) == 2


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_run_and_differentiate(device: Device, kind: type[nn.Module]) -> None:
    layer = kind(4, 6).to(device.torch_device)
    with torch.autocast("sim", dtype=torch.float16):
        y = layer(device.upload(torch.rand(5, 2, 4)))[0]
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in layer.parameters())


def test_a_scaler_of_gradients_steps() -> None:
    device = resolve("sim")  # on sim:mps it meets float64: torch asks for the type "mps" there
    layer = nn.Linear(4, 2).to(device.torch_device)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("sim", init_scale=8.0)
    before = layer.weight.detach().cpu().clone()
    with torch.autocast("sim", dtype=torch.float16):
        loss = layer(device.upload(A)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(before - layer.weight.detach().cpu(), 0.1 * A.sum(0).expand(2, 4), rtol=1e-3, atol=1e-3)
