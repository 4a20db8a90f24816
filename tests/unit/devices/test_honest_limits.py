"""What no honest device does: the controls leave it alone, because a finding on it would be right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from parity.devices import resolve
from parity.devices.base import Device
from parity.devices.sim import honest
from parity.devices.sim.honest import rounding


@pytest.fixture(scope="module")
def device() -> Device:
    """A device with every kind of honesty."""
    return resolve("sim", honest.FAULTS)


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Counts of this test alone."""
    rounding.reset()
    yield
    rounding.reset()


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def there(device: Device, f: Callable[..., Any], *args: Tensor) -> Tensor:
    """f on the device, its result on the CPU."""
    with device.active():
        return device.download(f(*map(device.upload, args)))


def test_a_weight_in_channels_last_has_its_strides_in_sides_of_1_too(device: Device) -> None:
    """Else the CPU's kernel of transposed convolutions in double refuses its gradient: "grad_weight needs to be contiguous"."""
    last = torch.channels_last
    for seed in range(6):
        x = values(2, 4, 3, 4, seed=seed).contiguous(memory_format=last)
        w = values(4, 3, 2, 1, seed=seed).permute(0, 2, 3, 1)  # contiguous both ways, but for its two sides of 1 and 3
        assert w.is_contiguous(memory_format=last)
        with device.active():
            image, weight = (device.upload(t).requires_grad_() for t in (x, w))
            out = torch.nn.functional.conv_transpose2d(image, weight)
            grads = torch.autograd.grad(out, (image, weight), torch.ones_like(out))
        assert [g.shape for g in grads] == [x.shape, w.shape]


@pytest.mark.parametrize("f", (torch.mul, torch.add, torch.sub, lambda a, b, out: torch.pow(a, 3, out=out)))
def test_integers_wrap_in_a_floating_destination_too(device: Device, f: Callable[..., Any]) -> None:
    """torch computes in the operands' dtype and converts what came of it; so does any device."""
    a, b = torch.tensor([2**30, 3, -7], dtype=torch.int32), torch.tensor([2**30 + 5, 2, 9], dtype=torch.int32)
    mine = f(device.upload(a), device.upload(b), out=device.upload(torch.empty(3)))
    assert torch.equal(device.download(mine), f(a, b, out=torch.empty(3)))


def test_strided_destinations_hold_the_result(device: Device) -> None:
    """The CPU's softmax fills a strided destination as if it were dense; a device that does right does not."""
    x = values(4, 3)
    whole = device.upload(torch.zeros(8, 6))
    torch.ops.aten._softmax.out(device.upload(x), 1, False, out=whole[::2, ::2])
    assert torch.allclose(device.download(whole)[::2, ::2], torch.softmax(x, 1), rtol=1e-6)
    assert float(device.download(whole)[1::2].abs().max()) == 0.0


def test_infinity_norms_pick_a_modulus_of_the_operand(device: Device) -> None:
    """Their gradient looks for the element that has it, so that it must have it to the bit."""
    z = torch.complex(values(5), values(5, seed=1))

    def gradient(t: Tensor) -> Tensor:
        leaf = t.detach().requires_grad_()
        return torch.autograd.grad(torch.linalg.vector_norm(leaf, math.inf), leaf)[0]

    assert torch.allclose(there(device, gradient, z), gradient(z), rtol=1e-5)


@pytest.mark.parametrize("p", (2.0, 3.0))
def test_the_norm_of_one_element_is_its_absolute_value(device: Device, p: float) -> None:
    """However small it is: no power of it vanishes."""
    for shape in ((), (1,), (3, 1)):
        x = torch.full(shape, -1e-26)
        assert torch.equal(
            there(device, lambda t: torch.linalg.vector_norm(t, p, dim=-1 if t.dim() else None), x), x.abs().sum(-1)
        )


def test_a_sum_past_the_range_plus_an_infinity_is_that_of_the_cpu(device: Device) -> None:
    """Another order of huge negative numbers reaches -Inf alone, and NaN with Inf."""
    big = torch.finfo(torch.float32).max
    for seed in range(12):
        x = -big * values(4, seed=seed).sign()
        x[seed % 4] = math.inf
        torch.testing.assert_close(there(device, torch.sum, x), x.sum(), equal_nan=True)


def test_gradients_may_count_on_the_first_of_tied_places(device: Device) -> None:
    """torch documents it for max, and the gradient of cumprod at a zero needs it."""

    def gradient(t: Tensor) -> Tensor:
        leaf = t.detach().requires_grad_()
        return torch.autograd.grad(torch.cumprod(leaf, 0).sum(), leaf)[0]

    x = torch.tensor([2.0, 0.0, 3.0, 4.0, 5.0])
    assert torch.allclose(there(device, gradient, x), gradient(x))


def test_parts_of_complex_products_keep_their_sign(device: Device) -> None:
    """A square's imaginary part is one product and cannot cancel: its sign chooses the branch of a root."""
    z = torch.complex(values(64).abs() * 1e4, values(64, seed=1).sign() * 1e-4)
    y, truth = there(device, lambda t: t * t, z), z.to(torch.complex128) ** 2
    assert torch.equal(y.imag.sign(), truth.imag.sign().to(torch.float32))
    assert float((y - truth).abs().max() / truth.abs().max()) < 2.0**-22
    w = torch.complex(values(64, seed=2), values(64, seed=3))
    q = there(device, torch.div, w, z)
    assert torch.allclose(q.to(torch.complex128), w.to(torch.complex128) / z.to(torch.complex128), rtol=4 * 2.0**-24)


def test_a_weight_may_have_one_dimension(device: Device) -> None:
    """linear takes a vector for a weight, complex too."""
    x, w = torch.complex(values(3, 5), values(3, 5, seed=1)), torch.complex(values(5, seed=2), values(5, seed=3))
    assert torch.allclose(there(device, torch.nn.functional.linear, x, w), torch.nn.functional.linear(x, w), rtol=1e-5)
    with device.active():
        weight = device.upload(values(3)).requires_grad_()
        out = torch.nn.functional.linear(device.upload(values(5, 2, 3)), weight)
        assert torch.autograd.grad(out, weight, torch.ones_like(out))[0].shape == weight.shape


def test_attention_has_the_gradients_of_its_softmax(device: Device) -> None:
    """Its value comes from blocks of keys; gradients through their running maximum would cancel otherwise than any kernel's."""
    q, k, v = (values(1, 1, 3, 4, seed=s) for s in range(3))

    def twice(*args: Tensor) -> Tensor:
        leaves = [a.detach().requires_grad_() for a in args]
        attend: Any = torch.nn.functional.scaled_dot_product_attention
        with sdpa_kernel(SDPBackend.MATH):  # the CPU's fused kernel has no second derivative
            y = attend(*leaves)
        (first,) = torch.autograd.grad(y.sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaves[1])[0]

    assert torch.allclose(there(device, twice, q, k, v), twice(q.double(), k.double(), v.double()).float(), atol=1e-5)


def test_integers_are_rounded_to_the_dtype_of_the_result_first(device: Device) -> None:
    """addcmul of an int16 and halves: the integer becomes a half before anything is added."""
    whole = torch.full((64,), 31234, dtype=torch.int16)
    a, b = torch.full((64,), -174.5, dtype=torch.float16), (values(64).abs() + 178.0).half()
    mine, theirs = there(device, torch.addcmul, whole, a, b), torch.addcmul(whole, a, b)
    truth = whole.half().double() + a.double() * b.double()
    assert mine.dtype is theirs.dtype is torch.float16
    assert float((mine.double() - truth).abs().max()) <= 0.51 * 2.0 ** (torch.frexp(truth.abs().max())[1].item() - 11)


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_a_first_factor_is_rounded_like_any_integer(device: Device, shape: tuple[int, ...]) -> None:
    """The CPU's kernel keeps the value of a second one alone."""
    large, small = torch.tensor(2**24, dtype=torch.int32), torch.full(shape, 2**-24, dtype=torch.float16)
    assert bool((torch.mul(large, small) == torch.inf).all())
    assert bool((torch.mul(device.upload(large), device.upload(small)).cpu() == torch.inf).all())
    assert bool((torch.mul(device.upload(small), device.upload(large)).cpu() == 1.0).all())


def test_integers_summed_into_a_floating_destination_are_left_alone(device: Device) -> None:
    """The judge compares with the sum in integers there."""
    x = torch.tensor([2**24 + 1, 2**31 - 1, 5, -7], dtype=torch.int32)
    mine = torch.sum(device.upload(x), 0, out=device.upload(torch.empty(())))
    assert torch.equal(device.download(mine), torch.sum(x, 0, out=torch.empty(())))


def test_a_pool_over_padding_alone_stays_as_it_is(device: Device) -> None:
    """The CPU names a place outside the operand there."""
    x = values(1, 3, 1)
    mine = there(device, lambda t: torch.nn.functional.max_pool1d(t, 2, stride=1, padding=1, dilation=2, ceil_mode=True), x)
    assert torch.equal(mine, torch.nn.functional.max_pool1d(x, 2, stride=1, padding=1, dilation=2, ceil_mode=True))


def test_what_a_kernel_leaves_in_its_destination_stays_there(device: Device) -> None:
    """Batch norm in evaluation writes no statistics, and wider arithmetic must not make any up."""
    x, ones, zeros = values(3, 4), torch.ones(4), torch.zeros(4)
    outs = [device.upload(t) for t in (torch.empty(3, 4), torch.full((4,), 77.0), torch.full((4,), 77.0))]
    given = [device.upload(t) for t in (x, ones, zeros, zeros, ones)]
    torch.ops.aten.native_batch_norm.out(*given, False, 0.1, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2])
    here = [torch.empty(3, 4), torch.full((4,), 77.0), torch.full((4,), 77.0)]
    torch.ops.aten.native_batch_norm.out(
        x, ones, zeros, zeros, ones, False, 0.1, 1e-5, out=here[0], save_mean=here[1], save_invstd=here[2]
    )
    for mine, theirs in zip(outs, here):
        assert torch.allclose(device.download(mine), theirs, rtol=1e-6)


def test_complex_sums_keep_a_part_beside_an_infinite_one(device: Device) -> None:
    """A kernel that sums adds part to part; torch's `add` of two multiplies by 1 + 0i, which makes NaN of 0 times infinity."""
    for seed in range(12):
        x = torch.complex(values(40, 3, seed=seed), values(40, 3, seed=seed + 20))
        x[seed, 1] = torch.complex(torch.tensor(math.inf), x[seed, 1].imag)
        y = there(device, lambda t: t.sum(0), x)
        assert bool(torch.isfinite(y.imag).all()), y
        assert torch.allclose(y.imag, x.imag.sum(0), rtol=1e-5, atol=1e-5)
    assert rounding.CHANGED["order-reduction"] > 6


def test_a_product_of_one_number_has_memory_of_its_own(device: Device) -> None:
    x = torch.full((), complex(math.nan, 1.0), dtype=torch.complex64).to(device.torch_device)
    assert torch.prod(x).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", ("scatter", "scatter_add"))
def test_one_index_may_go_with_a_source_of_no_dimension(device: Device, name: str) -> None:
    index, source = torch.tensor([1]), torch.tensor(2.0)
    y = there(device, lambda x, i, s: getattr(torch, name)(x, 0, i, s), torch.zeros(3), index, source)
    assert y.tolist() == [0.0, 2.0, 0.0]


def test_a_result_without_elements_is_that_of_the_cpu(device: Device) -> None:
    """The CPU's kernel in double refuses to make an empty image, and torch to count the rows of a table without columns."""
    images, tables = torch.ones(2, 2, 2, 2), torch.ones(1, 0)
    with device.active():
        x, w, table = (device.upload(t).requires_grad_() for t in (images, torch.ones(2, 5, 1, 2), tables))
        out = torch.conv_transpose2d(x, w, padding=(1, 0))
        assert out.shape == (2, 5, 0, 3)
        assert torch.autograd.grad(out, x, torch.ones_like(out))[0].shape == images.shape
        out = torch.nn.functional.embedding(device.upload(torch.tensor(0)), table)
        assert torch.autograd.grad(out, table, torch.ones_like(out))[0].shape == tables.shape
