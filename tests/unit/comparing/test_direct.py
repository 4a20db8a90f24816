"""A result of one elementwise operator is judged by that operator's row, however it was moved; all others as compositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import ParityFailure, assert_parity
from parity.devices import Call, Fault, resolve
from parity.devices.sim import honest

X = torch.linspace(-2.0, 2.0, 64).view(8, 8)


def scaled(x: Tensor) -> Tensor:
    return x.mul_(3.0).exp()


def scaled_by_a_list(x: Tensor) -> Tensor:
    y = x.clone()
    torch._foreach_mul_([y], 37.123)  # returns nothing
    return y.sin()


DIRECT: dict[str, tuple[Callable[..., Any], str]] = {
    "bare": (torch.exp, "exp"),
    "moved": (lambda x: (x * 1.0).t().clone().exp().t().contiguous(), "exp"),
    "a number": (lambda x: 1 - x, "rsub"),
    "a factor that is rounded": (lambda x: x * 0.1, "mul"),
    "a power": (lambda x: x**2, "square"),
    "a cast without loss": (lambda x: x / x.isnan().logical_not().to(torch.bfloat16), "div"),
    "a double": (lambda x: torch.add(x, x.flip(0), alpha=2), "add"),
    "two operands": (lambda x: x / x.flip(0), "div"),
    "one of two": (lambda x: {"a": x.sin(), "b": x.exp().sum()}, "sin"),
}
COMPOSED: dict[str, Callable[..., Any]] = {
    "two operators": lambda x: x.exp().sin(),
    "a rounded number": lambda x: x + 0.1,
    "a factor": lambda x: torch.add(x, x, alpha=3),
    "a cast": lambda x: x.to(torch.float16).to(torch.float32).exp(),
    "written in place": scaled,
    "written in a list": scaled_by_a_list,
    "made inside": lambda x: x * torch.full_like(x, 3.0),
    "no table": torch.sigmoid,
}


def first(fn: Callable[..., Any], x: Tensor = X) -> str:
    """The row that judged the first result."""
    verdict = assert_parity(fn, x.clone(), device="sim", backward=False, detail=True).verdicts[0][1]
    assert verdict.tolerance is not None
    return verdict.tolerance.origin


@pytest.mark.parametrize("name", DIRECT)
def test_a_result_of_one_operator_is_judged_by_its_row(name: str) -> None:
    fn, row = DIRECT[name]
    assert first(fn).startswith(f"tolerances/default.toml: ulp {row} float32;")


@pytest.mark.parametrize("name", COMPOSED)
def test_all_others_are_judged_as_compositions(name: str) -> None:
    assert first(COMPOSED[name]) == "tolerances/default.toml: composite float32 forward"


def sparse(x: Tensor) -> Tensor:
    places = torch.tensor([[0, 1, 0], [1, 0, 1]], device=x.device)  # of which two are one
    return torch.sparse_coo_tensor(places, x[0], (2, 3), check_invariants=False)


# By the operator that is off, and in words what else it is.
SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: x.clone() @ x.detach().t(),
    "sum": lambda x: (x * 1.0).sum(-1),
    "nansum": lambda x: x.clone().nansum(-1),
    "cumsum": lambda x: x.clone().cumsum(-1),
    "addmv": lambda x: torch.addmv(x[:, 0], x, x[0], beta=-3.0, alpha=-0.5),
    "col2im": lambda x: torch.nn.functional.fold(x.clone()[None], (2, 4), 2),
    "convolution": lambda x: torch.nn.functional.conv1d(x[None], x[:, :2].t().unsqueeze(-1)),
    "mean": lambda x: x.mean(0),
    "scatter_add": lambda x: x.scatter_add(0, torch.zeros(8, 3, dtype=torch.int64, device=x.device), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.zeros(8, 3, dtype=torch.int64, device=x.device), x, "sum"),
    "put": lambda x: x.put(torch.zeros(3, dtype=torch.int64, device=x.device), x[0], accumulate=True),
    "trace": torch.trace,
    "div, over a count": lambda x: x.nanmean(-1),
    "sum, of products": lambda x: torch.linalg.vecdot(x, x.flip(0)),
    "mm, twice": lambda x: x @ (x.t() @ x),
    "cumsum, of a coarser type": lambda x: x.isnan().logical_not().bfloat16().cumsum(0, dtype=torch.float32),
    "avg_pool2d, into a tensor": lambda x: torch.ops.aten.avg_pool2d(x[None], [2, 2], out=torch.empty_like(x.detach()[None])),
    "_coalesce, into a product": lambda x: (sparse(x).coalesce() * x[:2]).to_dense(),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_few_terms_is_held_to_these(name: str) -> None:
    """Its sensitivity, times the scale of compositions, would explain the fault; an honest order of additions stays inside."""
    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).add(1.0)
    x.requires_grad_(" into " not in name)
    op = name.partition(",")[0]
    assert assert_parity(SUMS[name], x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    with pytest.raises(ParityFailure, match="contraction float32 forward"):
        assert_parity(SUMS[name], x, device=resolve("sim", (Fault("off", (op,), off(1.5e-6), level="kernel"),)))


def test_a_pool_of_magnitudes_takes_the_same_places() -> None:
    """Of negative numbers the largest magnitude is another one: its gradient would be bounded by the terms of other places."""
    x = torch.randperm(72, generator=torch.Generator().manual_seed(0)).float().view(1, 2, 6, 6)

    def above(x: Tensor) -> Any:
        made = assert_parity(lambda x: torch.nn.functional.adaptive_max_pool2d(x, 4), x, device="sim", detail=True)
        return made.limits["grad[x]"].reported_above

    assert (above((x - 100.0).requires_grad_()) == above((x + 1.0).requires_grad_())).all()


# Numbers of one digit, of which many sums are equal but for their roundings.
EQUAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pool": lambda x, w: torch.nn.functional.max_pool2d((x @ w)[None], 3, 1),
    "running maximum": lambda x, w: (x @ w).cummax(-1).values,
}


@pytest.mark.parametrize("name", EQUAL)
def test_the_gradient_of_a_choice_that_rounding_decides_is_a_composition(name: str) -> None:
    """A healthy device may pick another of two nearly equal elements; a sum at the CPU's places would not explain it."""
    for seed in range(100, 104):
        generator = torch.Generator().manual_seed(seed)
        x, _, w = ((2.0 * torch.randn(s, generator=generator)).round() / 10.0 for s in ((8, 12), (8, 12), (12, 12)))
        found = assert_parity(EQUAL[name], x.requires_grad_(), w.requires_grad_(), device=resolve("sim", tuple(honest.FAULTS)))
        assert found.agrees


@pytest.mark.parametrize("size", [2.0**-66, 2.0**-73])
def test_products_below_the_normal_numbers_are_no_terms_of_a_sum(size: float) -> None:
    """Each is rounded to a multiple of the smallest number, however small it is itself."""
    for seed in range(100, 104):
        x, y = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(seed)) * size
        assert assert_parity(lambda x, y: (x * y).cumsum(-1), x, y, device=resolve("sim", tuple(honest.FAULTS))).agrees


def test_what_is_computed_in_float64_is_held_to_its_roundoff() -> None:
    """Inputs of float32 are exact, so that float32's roundoff explains no error of steps that all run in float64."""
    x = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)).add(0.5)

    def fn(x: Tensor) -> Tensor:
        return x.double().log().mul(3.0).tanh()

    assert assert_parity(fn, x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    with pytest.raises(ParityFailure, match="composite float64 forward"):
        assert_parity(fn, x, device=resolve("sim", (Fault("off", ("log",), off(1e-8), level="kernel"),)))


@pytest.mark.parametrize("op", ["adaptive_max_pool2d_backward", "embedding_dense_backward"])
def test_the_gradient_of_a_choice_is_a_sum_of_few_terms(op: str) -> None:
    """Numbers of both signs: of their magnitudes a pool would pick others."""
    x = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "adaptive_max_pool2d_backward": lambda x: torch.nn.functional.adaptive_max_pool2d(x, 4),
        "embedding_dense_backward": lambda x: torch.nn.functional.embedding(torch.tensor([0, 5, 0], device=x.device), x[0, 0]),
    }
    assert assert_parity(functions[op], x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    with pytest.raises(ParityFailure, match="contraction float32 backward"):
        assert_parity(functions[op], x, device=resolve("sim", (Fault("off", (op,), off(1.5e-6), level="kernel"),)))


def test_the_gradients_of_a_convolution_are_sums_of_few_terms() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(s, generator=generator).add(1.0).requires_grad_() for s in ((2, 3, 9), (4, 3, 2)))
    conv = torch.nn.functional.conv1d
    assert assert_parity(conv, x, w, device=resolve("sim", tuple(honest.FAULTS))).agrees
    for k in (0, 1):

        def effect(call: Call, k: int = k) -> Any:
            out = list(call.run())
            out[k] = out[k] * (1.0 + 5e-6)
            return tuple(out)

        device = resolve("sim", (Fault("off", ("convolution_backward",), effect, level="kernel"),))
        with pytest.raises(ParityFailure, match="contraction float32 backward"):
            assert_parity(conv, x, w, device=device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_types_are_held_to_their_terms_as_well(dtype: torch.dtype) -> None:
    """Added up in float32 and rounded once: two units in the last place are too many, and were not in a composition."""
    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).add(1.0).to(dtype)

    def effect(call: Call) -> Any:
        out = call.run()
        return out + 2.0 * torch.finfo(dtype).eps * torch.exp2(out.log2().floor()) * (
            torch.arange(out.numel()).view_as(out) == 9
        )

    product: Callable[[Tensor], Tensor] = lambda x: x @ x.t()  # noqa: E731
    assert assert_parity(product, x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    with pytest.raises(ParityFailure, match=f"contraction {str(dtype)[6:]} forward"):
        assert_parity(product, x, device=resolve("sim", (Fault("off", ("mm",), effect, level="kernel"),)))


def test_the_gradient_of_a_mean_is_a_product() -> None:
    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert assert_parity(lambda x: x.mean(0), x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    device = resolve("sim", (Fault("off", ("div",), off(1.5e-6), level="kernel"),))
    with pytest.raises(ParityFailure, match="contraction float32 backward"):
        assert_parity(lambda x: x.mean(0), x, device=device)


POOL = torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).add(1.0)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool2d": lambda x: torch.nn.functional.avg_pool2d(x.clone(), 3, 1),
    "_adaptive_avg_pool2d": lambda x: torch.nn.functional.adaptive_avg_pool2d(x.clone(), (2, 4)),
}


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_mean_of_windows_is_a_sum_of_few_terms(pool: str, way: str) -> None:
    """As above, with one number of each window's, or of the gradient, off."""
    x = POOL.clone().requires_grad_()
    assert assert_parity(POOLS[pool], x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    op = pool if way == "forward" else f"{pool}_backward"
    with pytest.raises(ParityFailure, match=f"contraction float32 {way}"):
        assert_parity(POOLS[pool], x, device=resolve("sim", (Fault("off", (op,), off(2e-6), level="kernel"),)))


def test_the_gradient_of_a_sum_without_nan_is_a_product_with_a_mask() -> None:
    x = POOL.clone().index_fill(-1, torch.tensor(1), torch.nan).requires_grad_()
    assert assert_parity(lambda x: x.nansum(-1), x, device=resolve("sim", tuple(honest.FAULTS))).agrees
    with pytest.raises(ParityFailure, match="contraction float32 backward"):
        assert_parity(lambda x: x.nansum(-1), x, device=resolve("sim", (Fault("off", ("mul",), off(5e-7), level="kernel"),)))


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_product_with_a_mask_that_rounding_decides_is_a_composition(by_kernel: bool) -> None:
    """Of numbers at the edge of the mask, which a kernel rounds, either side of a comparison may give any."""
    x, mask = X.clone(), X > 0.5

    def fn(x: Tensor, mask: Tensor) -> Tensor:
        return x * (torch.sin(x * 0.1) > 0.05) if by_kernel else x * mask.logical_not()

    verdict = assert_parity(fn, x, mask, device="sim", detail=True).verdicts[0][1]
    assert verdict.tolerance is not None
    assert ("composite" in verdict.tolerance.origin) is by_kernel


def test_a_number_times_a_sum_is_one_too() -> None:
    """The gradient of addmv's vector; the terms of the sum are as many with a small factor as with none."""
    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).add(1.0)

    def fn(x: Tensor, v: Tensor) -> Tensor:
        return torch.addmv(x[:, 0], x, v, alpha=0.01)

    given = x[0].clone().requires_grad_()
    by_row = dict(assert_parity(fn, x, given, device=resolve("sim", tuple(honest.FAULTS)), detail=True).verdicts)["grad[v]"]
    assert by_row.tolerance is not None
    assert by_row.tolerance.origin == "tolerances/default.toml: contraction float32 backward"
    device = resolve("sim", (Fault("off", ("addmv", "mv"), off(1e-4), level="kernel"),))
    with pytest.raises(ParityFailure, match="contraction float32 backward"):
        assert_parity(fn, x, given, device=device)


def off(by: float) -> Callable[[Call], Any]:
    return lambda call: call.run() * (1.0 + by)


@pytest.mark.parametrize(("dtype", "by"), [(torch.float32, 2e-6), (torch.bfloat16, 0.0)])
def test_a_sine_of_large_numbers_is_held_to_its_ulp(dtype: torch.dtype, by: float) -> None:
    """A device that loses digits of the argument is found, where a composition's rounding would explain it; one that rounds as
    the table allows is not."""
    x = (torch.arange(1.0, 65.0) * 20.0).to(dtype)
    reduced = Fault("reduced", ("sin",), lambda c: torch.sin(c.args[0] * (1.0 + 2.0**-22)), level="kernel")
    healthy = Fault("rounds", ("sin",), off(by / 8), level="kernel")
    assert assert_parity(torch.sin, x, device=resolve("sim", (healthy,)), backward=False).agrees
    worse = Fault("worse", ("sin",), lambda c: torch.sin(c.args[0].float() * (1.0 + 2.0**-10)).to(dtype), level="kernel")
    with pytest.raises(ParityFailure, match="ulp sin"):
        assert_parity(torch.sin, x, device=resolve("sim", (reduced if dtype is torch.float32 else worse,)), backward=False)


def test_a_factor_that_half_types_share_is_still_found() -> None:
    """It is below half an ULP of each element, which the row allows."""
    x = torch.linspace(1.0, 2.0, 512).to(torch.bfloat16)
    shares = Fault("shares", ("add",), lambda c: (c.run().float() * 1.003).to(torch.bfloat16), level="kernel")
    with pytest.raises(ParityFailure):
        assert_parity(lambda x: x + 0.5, x, device=resolve("sim", (shares,)), backward=False)
    assert assert_parity(lambda x: x + 0.5, x, device="sim", backward=False).agrees


def test_statistics_of_a_batch_are_not_what_was_given() -> None:
    """torch's schema does not say that batch_norm writes them: means that cancel were judged as one term, without error."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(17), torch.nn.BatchNorm1d(17))
    found = assert_parity(net, torch.randn(8, 17), device=resolve("sim", tuple(honest.FAULTS)))
    assert "buffer[1.running_mean]" in dict(found.verdicts)


def test_what_a_batch_norm_only_reads_is_still_given() -> None:
    """It writes its statistics alone: `exp` next to it was judged as a composition, which hides 20 roundings."""

    def near(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.batch_norm(x, None, None, training=True), torch.exp(x)

    def off(call: Call) -> Any:
        return call.run() * (1.0 + 20.0 * 2.0**-24)

    torch.manual_seed(0)
    x, device = torch.randn(64, 17), resolve("sim", (Fault("off", ops=("exp",), effect=off, level="kernel"),))
    with pytest.raises(ParityFailure):
        assert_parity(near, x, device=device, backward=False)
    assert assert_parity(near, x, device=resolve("sim", tuple(honest.FAULTS))).agrees
