"""Honest devices differ from the CPU somewhere, and everything they say is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import ulp_distance
from torch import Tensor

from parity import tolerance
from parity.core.case import OpClass
from parity.devices import Fault, resolve
from parity.devices.base import Device
from parity.devices.sim import honest
from parity.devices.sim.honest import noise, rounding
from parity.devices.sim.honest.noise import RANGES
from parity.devices.sim.honest.order import product, total
from parity.devices.sim.honest.rounding import bounds

HALF = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def device() -> Device:
    """A device with every kind of honesty."""
    return resolve("sim:honest")


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Counts of this test alone."""
    rounding.reset()
    yield
    rounding.reset()


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def there(device: Device, f: Callable[..., Any], *args: Any) -> Any:
    """f on the device, its results on the CPU."""
    with device.active():
        got = f(*(device.upload(a) if isinstance(a, Tensor) else a for a in args))
    return tuple(device.download(g) for g in got) if isinstance(got, (tuple, list)) else device.download(got)


def spacing(truth: Tensor, digits: int) -> Tensor:
    """The ULP of normal numbers with so many binary digits."""
    return torch.ldexp(torch.ones_like(truth), torch.frexp(truth)[1] - digits)


def ulps(a: Tensor, b: Tensor) -> int:
    return int(ulp_distance(a, b).max())


# ------------------------------------------------------------------------------------------------------ a device by name


def test_a_fault_is_planted_on_an_honest_device_as_on_any_other() -> None:
    """The honest differences are the device's own: what was planted is distinguished from them, and acts next to them."""
    fault = Fault("exp-doubles", ops=("exp",), effect=lambda call: call.run() * 2, level="kernel")
    device, x = resolve("sim:honest", [fault]), values(64)
    assert (device.name, device.planted, device.facts()["faults"]) == ("sim:honest", (fault,), "exp-doubles")  # type: ignore[attr-defined]
    assert torch.allclose(there(device, torch.exp, x), 2 * x.exp())
    assert not torch.equal(there(device, torch.sum, x), x.sum())
    assert torch.equal(there(resolve("sim"), torch.sum, x), x.sum())


def test_no_honest_difference_pays_for_remembering_calls() -> None:
    """None looks at earlier calls, and one that could would have an outline made of every call of its operators."""
    assert not [fault.id for fault in honest.FAULTS if fault.remembers]


def test_it_has_the_limits_of_mps_where_they_are_asked_for() -> None:
    device = resolve("sim:mps:honest")
    with device.active(), pytest.raises(TypeError, match="float64"):
        device.upload(torch.ones(2, dtype=torch.float64))
    assert not torch.equal(there(device, torch.exp, values(64)), values(64).exp())


# ----------------------------------------------------------------------------------------------------------- functions


@pytest.mark.parametrize("name", ("exp", "log", "sin", "tanh", "erf", "rsqrt", "atan"))
def test_functions_are_off_by_no_more_than_the_table_says(device: Device, name: str) -> None:
    """A function of the table differs from the CPU and keeps its bound against float64."""
    x = values(2048, seed=3).abs() + 0.1
    y, truth = there(device, getattr(torch, name), x), getattr(torch, name)(x.double())
    bound = bounds("sim").of(name, torch.float32)
    assert rounding.CHANGED["ulp-noise"] == 1
    assert float(((y.double() - truth).abs() / spacing(truth, 24)).max()) <= bound
    low, high = RANGES.get(name, (-math.inf, math.inf))
    assert bool(((y >= low) & (y <= high)).all())


def test_equal_calls_agree(device: Device) -> None:
    """The device is deterministic."""
    x = values(7, 33)
    for f in (torch.exp, torch.sum, lambda t: t @ t.T, lambda t: torch.softmax(t, 1)):
        assert torch.equal(there(device, f, x), there(device, f, x))


def test_bounds_follow_the_tables() -> None:
    """On MPS's tables exp is off by at most 4 ULP, by default by 5, and what no table names is not moved."""
    mps, default = bounds("sim:mps"), bounds("sim")
    found = tolerance.load("mps").find("exp", OpClass.ELEMENTWISE, "float32", "forward", "exp").ulp
    assert mps.of("exp", torch.float32) == found
    assert default.of("exp", torch.float32) > mps.of("exp", torch.float32)
    assert default.of("lgamma", torch.float32) == 0.0


# -------------------------------------------------------------------------------------------------------------- orders


@pytest.mark.parametrize("way", (0, 1))
def test_sums_in_another_order_are_sums(way: int) -> None:
    """Within the worst-case bound of any order (Higham 2002, section 4.2), and not the CPU's bits."""
    x = values(5000, 3)
    y, truth = total(x, way), x.double().sum(0)
    limit = 5000 * 2.0**-24 * x.abs().double().sum(0)
    assert bool(((y.double() - truth).abs() <= limit).all())
    assert not torch.equal(y, x.sum(0))
    for n in (1, 2, 31, 33, 65):
        assert torch.equal(total(torch.ones(n, 2), way), torch.full((2,), float(n)))
    assert total(torch.zeros(2, 0, 4, dtype=torch.complex64), way).shape == (0, 4)


@pytest.mark.parametrize("way", (0, 1, 2))
def test_products_in_another_order_are_products(way: int) -> None:
    """Within n u |A||B|, elementwise."""
    a, b = values(5, 40, seed=1), values(40, 6, seed=2)
    error = (product(a, b, way).double() - a.double() @ b.double()).abs()
    assert bool((error <= 40 * 2.0**-24 * (a.abs().double() @ b.abs().double())).all())


CONTRACTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "sum": (lambda x: x.sum(1), (values(9, 300),), "order-reduction"),
    "mean": (lambda x: x.mean((0, 2)), (values(9, 30, 5),), "order-reduction"),
    "var": (lambda x: x.var(1), (values(9, 300),), "order-reduction"),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3.0, 1), (values(9, 300),), "order-reduction"),
    "cumsum": (lambda x: x.cumsum(1), (values(9, 300),), "order-scan"),
    "mm": (torch.mm, (values(7, 90), values(90, 8, seed=1)), "order-product"),
    "baddbmm": (torch.baddbmm, (values(8), values(3, 7, 90), values(3, 90, 8, seed=1)), "order-product"),
    "linear": (F.linear, (values(2, 7, 90), values(8, 90, seed=1), values(8, seed=2)), "order-product"),
    "conv2d": (F.conv2d, (values(2, 6, 9, 9), values(4, 6, 3, 3, seed=1), values(4, seed=2)), "order-convolution"),
    "fft": (lambda x: torch.view_as_real(torch.fft.fft(x)), (values(3, 60),), "order-transform"),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
def test_contractions_differ_from_the_cpu_and_are_right(device: Device, name: str, dtype: torch.dtype) -> None:
    """Close to the truth by float32 accumulation and one rounding, whatever the dtype."""
    f, operands, kind = CONTRACTIONS[name]
    if name == "fft" and dtype in HALF:
        pytest.skip("torch has no half transforms on the CPU")
    args = tuple(a.to(dtype) for a in operands)
    y, truth = there(device, f, *args), f(*(a.double() for a in args))
    u = torch.finfo(dtype).eps / 2
    scale = f(*(a.abs().double() for a in args)).abs().max() if name != "var" else truth.max()
    assert rounding.ANSWERED[kind] == 1
    assert rounding.CHANGED[kind] == 1 or dtype in HALF
    assert float((y.double() - truth).abs().max()) <= float(2 * u * truth.abs().max() + 40 * 2.0**-24 * scale)


def test_gradients_of_contractions_are_right(device: Device) -> None:
    """linear and conv2d, through the device's own backward kernels."""

    def gradients(f: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        def run(*args: Tensor) -> tuple[Tensor, ...]:
            leaves = [a.detach().requires_grad_() for a in args]
            out = f(*leaves)
            return torch.autograd.grad(out, leaves, out.detach() * 0.5)

        return run

    for name in ("linear", "conv2d"):
        f, args, kind = CONTRACTIONS[name]
        mine, truth = there(device, gradients(f), *args), gradients(f)(*(a.double() for a in args))
        assert rounding.ANSWERED[kind] >= 2
        for m, t in zip(mine, truth):
            assert torch.allclose(m.double(), t, rtol=1e-5, atol=1e-4)


def test_half_types_are_rounded_once(device: Device) -> None:
    """A softmax over 1000 elements in float16 is within one ULP of the truth; rounding between its stages is not."""
    x = values(4, 1000, dtype=torch.float16)
    y, truth = there(device, lambda t: torch.softmax(t, 1), x), torch.softmax(x.double(), 1).to(torch.float16)
    assert ulps(y, truth) <= 1


# ---------------------------------------------------------------------------------------------------------- composites


def test_composites_by_another_formula_are_right(device: Device) -> None:
    """Each differs from the CPU's bits and is near float64."""
    x = values(6, 64, seed=8)
    batch = values(4, 6, 5, seed=9)
    running = torch.zeros(6), torch.ones(6)
    cases: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
        "formula": (F.silu, (x,)),
        "formula-softmax": (lambda t: F.log_softmax(t, 1), (x,)),
        "formula-layer-norm": (lambda t: F.layer_norm(t, (64,)), (x,)),
        "batch-norm": (lambda t, m, v: F.batch_norm(t, m, v, training=True), (batch, *running)),
        "fused": (lambda t: torch.addcmul(t, t, t.flip(0), value=0.3), (x,)),
    }
    for kind, (f, args) in cases.items():
        y, truth = there(device, f, *args), f(*(a.double() for a in args))
        assert rounding.CHANGED[kind] >= 1, kind
        assert torch.allclose(y.double(), truth, rtol=2e-6, atol=2e-6), kind


@pytest.mark.parametrize("dtype", HALF)
def test_gelu_of_infinity_is_infinite_in_half_types(device: Device, dtype: torch.dtype) -> None:
    """The CPU's float32 kernel gives NaN there (torch 2.13)."""
    for n in range(1, 9):
        x = torch.full((n,), math.inf, dtype=dtype)
        assert there(device, F.gelu, x).isinf().all()


@pytest.mark.parametrize("dtype", HALF)
def test_functions_of_half_types_are_off_by_one_ulp_at_most(device: Device, dtype: torch.dtype) -> None:
    x = (torch.rand(500, generator=torch.Generator().manual_seed(7)) * 4 + 0.1).to(dtype)
    functions: tuple[Callable[[Tensor], Tensor], ...] = (torch.sigmoid, torch.i0, torch.special.i1e, torch.sinc, F.silu)
    for function in functions:
        mine, truth = function(device.upload(x)).cpu(), function(x.to(torch.float64))
        assert (mine != function(x)).any(), function
        assert ulp_distance(mine, truth.to(dtype)).max() <= 1, function


def test_batch_norm_moves_its_running_statistics_once(device: Device) -> None:
    """The hidden writes of the kernel arrive, once."""
    x = values(4, 6, 5)
    mean, var = torch.zeros(6), torch.ones(6)
    here, over = (mean.clone(), var.clone()), (device.upload(mean), device.upload(var))
    F.batch_norm(x, *here, training=True)
    F.batch_norm(device.upload(x), *over, training=True)
    for a, b in zip(here, over):
        assert torch.allclose(a, device.download(b), rtol=1e-6)


def test_attention_over_blocks_is_attention(device: Device) -> None:
    """With a causal mask and gradients."""
    q, k, v = (values(2, 3, 9, 8, seed=s) for s in range(3))

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        leaves = [a.detach().requires_grad_() for a in args]
        attend: Any = F.scaled_dot_product_attention
        out = attend(*leaves, is_causal=True)
        return out.detach(), *torch.autograd.grad(out.sum(), leaves)

    for mine, truth in zip(there(device, run, q, k, v), run(q.double(), k.double(), v.double())):
        assert torch.allclose(mine.double(), truth, rtol=1e-5, atol=1e-5)
    assert rounding.CHANGED["attention"] == 1


def test_attention_takes_no_more_kernels_for_more_keys(device: Device) -> None:
    """Its blocks are computed on the host: as calls of the device they took a third of the time of a run."""
    attend: Any = F.scaled_dot_product_attention
    counts = []
    for keys in (8, 80):
        device.seat.history.clear()  # type: ignore[attr-defined]
        there(device, lambda x, many: attend(x, many, many), values(1, 2, 5, 8), values(1, 2, keys, 8, seed=1))
        counts.append(len(device.seat.history))  # type: ignore[attr-defined]
    assert counts[0] == counts[1] > 0
    assert rounding.CHANGED["attention"] == 2


# ----------------------------------------------------------------------------------------------------- repeats, choices


def test_repeated_indices_are_added_in_another_order(device: Device) -> None:
    """index_add, scatter_add, index_put and the gradient of embedding keep their sums."""
    x, source = torch.zeros(4), values(900) * 100
    index = torch.arange(900) % 4
    adding: tuple[Callable[..., Tensor], ...] = (
        lambda a, i, s: a.index_add(0, i, s),
        lambda a, i, s: a.scatter_add(0, i, s),
        lambda a, i, s: a.index_put((i,), s, accumulate=True),
    )
    for f in adding:
        truth = f(x.double(), index, source.double())
        assert torch.allclose(there(device, f, x, index, source).double(), truth, rtol=1e-4, atol=1e-2)
    assert rounding.CHANGED["order-duplicates"] == 2
    assert rounding.CHANGED["order-index-put"] == 1


def test_ties_take_any_of_their_places(device: Device) -> None:
    """Values are the CPU's, places point at them, and some are not the CPU's."""
    x = torch.randint(0, 3, (4, 40), generator=torch.Generator().manual_seed(1)).float()
    placed: tuple[Callable[..., Any], ...] = (
        lambda t: torch.sort(t, 1),
        lambda t: torch.topk(t, 5, 1),
        lambda t: torch.kthvalue(t, 7, 1, keepdim=True),
        lambda t: torch.median(t, 1, keepdim=True),
        lambda t: torch.mode(t, 1, keepdim=True),
        lambda t: torch.cummax(t, 1),
    )
    for f in placed:
        (v, i), (w, j) = there(device, f, x), f(x)
        assert torch.equal(v, w)
        assert torch.equal(x.gather(1, i), w)
        assert not torch.equal(i, j)
    assert torch.equal(there(device, lambda t: torch.sort(t, dim=1, stable=True), x)[1], torch.sort(x, dim=1, stable=True)[1])
    for first in (torch.argmax, torch.argmin, lambda t: torch.max(t, 1)[1], lambda t: torch.min(t, 1)[1]):
        assert torch.equal(there(device, first, x), first(x))


def test_pooling_may_find_another_of_the_tied_maxima(device: Device) -> None:
    """Same maxima, places that hold them."""
    x = torch.randint(0, 3, (2, 3, 8, 8), generator=torch.Generator().manual_seed(1)).float()

    def pooled(t: torch.Tensor) -> Any:
        return F.max_pool2d(t, 2, return_indices=True)

    (v, i), (w, j) = there(device, pooled, x), pooled(x)
    assert torch.equal(v, w)
    assert not torch.equal(i, j)
    assert torch.equal(x.flatten(2).gather(2, i.flatten(2)), w.flatten(2))


@pytest.mark.parametrize("dtype", (torch.float32, torch.complex64))
def test_vectors_have_other_phases_and_still_rebuild_the_input(device: Device, dtype: torch.dtype) -> None:
    """svd, eigh, qr."""
    a = values(5, 5) if dtype is torch.float32 else torch.complex(values(5, 5), values(5, 5, seed=1))
    u, s, vh = there(device, lambda t: torch.linalg.svd(t), a)
    assert torch.allclose((u * s) @ vh, a, atol=1e-5)
    assert not torch.allclose(u, torch.linalg.svd(a)[0], atol=1e-3)
    q, r = there(device, lambda t: torch.linalg.qr(t), a)
    assert torch.allclose(q @ r, a, atol=1e-5)
    assert not torch.allclose(q, torch.linalg.qr(a)[0], atol=1e-3)
    h = a + a.mH
    w, v = there(device, lambda t: torch.linalg.eigh(t), h)
    assert torch.allclose(h @ v, v * w, atol=1e-4)
    assert not torch.allclose(v, torch.linalg.eigh(h)[1], atol=1e-3)


def test_equal_pivots_may_be_taken_from_below(device: Device) -> None:
    """The factors rebuild the input with another permutation."""
    a = torch.tensor([[1.0, 2.0, 0.5], [-1.0, 0.5, 1.0], [1.0, 3.0, 2.0]])
    p, low, up = there(device, lambda t: torch.linalg.lu(t), a)
    assert torch.allclose(p @ low @ up, a, atol=1e-6)
    assert not torch.equal(p, torch.linalg.lu(a)[0])
    assert float(low.abs().max()) <= 1.0 + 1e-5


def test_unique_without_order_is_consistent(device: Device) -> None:
    """Values, inverse and counts belong together."""
    x = torch.randint(0, 9, (50,), generator=torch.Generator().manual_seed(1))
    v, i, c = there(device, lambda t: torch.unique(t, sorted=False, return_inverse=True, return_counts=True), x)
    assert torch.equal(v[i], x)
    assert torch.equal(c, torch.stack([(x == k).sum() for k in v]))
    assert not torch.equal(v, v.sort().values)


# --------------------------------------------------------------------------------------------------- streams, flushing


def test_random_numbers_are_others_of_the_same_distribution(device: Device) -> None:
    """Seeded alike, repeated alike, never the CPU's; the next call gives new ones."""

    def draw() -> tuple[Tensor, Tensor]:
        device.seed(5)
        made = torch.rand(4000, device=device.torch_device), torch.randn(4000, device=device.torch_device)
        return device.download(made[0]), device.download(made[1])

    (u, n), (again, _) = draw(), draw()
    torch.manual_seed(5)
    assert torch.equal(u, again)
    assert not torch.equal(u, torch.rand(4000))
    assert abs(float(u.mean()) - 0.5) < 0.03
    assert float(u.min()) >= 0.0
    assert float(u.max()) < 1.0
    assert abs(float(n.mean())) < 0.1
    assert abs(float(n.std()) - 1.0) < 0.1
    kept = F.dropout(torch.ones(4000, device=device.torch_device), 0.25)
    assert abs(float((device.download(kept) != 0).float().mean()) - 0.75) < 0.05


def test_a_generator_of_the_callers_own_leaves_the_default_one_alone(device: Device) -> None:
    """By name (normal_) and by position (poisson); the caller's moves, so that its next numbers are new."""
    x = device.upload(torch.full((50,), 4.0))
    own = torch.Generator().manual_seed(3)
    before = torch.default_generator.get_state()
    first, second = (device.download(torch.poisson(x, generator=own)) for _ in range(2))
    x.normal_(generator=own)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert not torch.equal(first, second)
    assert rounding.CHANGED["stream"] == 3


def test_subnormal_numbers_are_flushed_where_mps_does() -> None:
    """float32 and bfloat16 operands and results; float16 keeps its own."""
    mps = resolve("sim:mps", honest.FAULTS)
    small = torch.tensor([1e-40, -1e-40, 1.0])
    assert there(mps, lambda t: t * 1.0, small).tolist() == [0.0, -0.0, 1.0]
    assert there(mps, lambda t: t * 0.5, torch.tensor([1.5e-38])).tolist() == [0.0]
    assert there(mps, lambda t: t * 1.0, torch.tensor([1e-7], dtype=torch.float16)).item() > 0.0
    assert math.copysign(1.0, float(noise.flushed(torch.tensor([-1e-40]), frozenset({torch.float32}))[0])) == -1.0
    assert rounding.CHANGED["flushing"] == 2
    attend: Any = F.scaled_dot_product_attention
    assert not there(mps, attend, *(torch.ones(1, 1, 2, 2),) * 2, torch.full((1, 1, 2, 2), 1e-40)).any()


def test_only_a_device_whose_tables_say_so_flushes(device: Device) -> None:
    """The same faults on another profile: one list for both, because a user names one module."""
    small = torch.tensor([1e-40, -1e-40, 1.0])
    assert torch.equal(there(device, lambda t: t * 1.0, small), small)
    assert rounding.ANSWERED["flushing"] == 0


# ------------------------------------------------------------------------------------------------------------ the whole


def test_nothing_beside_a_destination_is_written(device: Device) -> None:
    """In-place and out= calls on strided views leave the rest of their base alone."""
    base = values(6, 8)
    mine = device.upload(base)
    mine[:, ::2].exp_()
    torch.mm(mine[:3, 1:4], mine[3:, 5:], out=(other := device.upload(torch.full((4, 7), 9.0)))[:3, ::3])
    assert torch.equal(device.download(mine)[:, 1::2], base[:, 1::2])
    assert bool((device.download(other)[3] == 9.0).all())
    assert bool((device.download(other)[:, 1::3] == 9.0).all())


def test_integers_are_left_alone(device: Device) -> None:
    """What is not rounded is the CPU's."""
    x = torch.arange(-20, 20).view(5, 8)
    computing: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda t: t + t,
        lambda t: t @ t.T,
        lambda t: t.sum(1),
        lambda t: t.cumsum(0),
        lambda t: t * 3,
    )
    for f in computing:
        assert torch.equal(there(device, f, x), f(x))
