"""The rounding of honest devices: within the bound, the same for equal truths, exact where the truth is."""

from __future__ import annotations

import math

import pytest
import torch
from cases import ulp_distance
from torch import Tensor

from parity.devices import load_faults
from parity.devices.sim import honest
from parity.devices.sim.honest.noise import RANGES
from parity.devices.sim.honest.rerun import in_range
from parity.devices.sim.honest.rounding import cut, noisy

HALF = (torch.float16, torch.bfloat16)


def values(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", (torch.float32, *HALF))
def test_noise_stays_within_its_bound_and_reaches_it(dtype: torch.dtype) -> None:
    """No result is further from the truth than the bound, and some are nearly as far."""
    truth = torch.exp(values(4096, dtype=torch.float64))
    bound = 4.0 if dtype is torch.float32 else 1.0
    y = noisy(truth, dtype, bound)
    digits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    off = (y.to(torch.float64) - truth).abs() / torch.ldexp(torch.ones_like(truth), torch.frexp(truth)[1] - digits)
    assert float(off.max()) <= bound
    assert float(off.max()) > 0.9 * bound
    assert torch.equal(y, noisy(truth, dtype, bound))


def test_noise_keeps_what_is_exact_special_or_limited() -> None:
    """Exact truths, NaN and infinities stay; nothing leaves the limits."""
    exact = torch.tensor([0.0, -0.0, 1.0, 0.5, math.inf, -math.inf, math.nan, 2.0**-149], dtype=torch.float64)
    y = noisy(exact, torch.float32, 5.0)
    assert torch.equal(y.view(torch.int32)[:6], exact.to(torch.float32).view(torch.int32)[:6])
    assert bool(y[6].isnan())
    assert float(y[7]) == 2.0**-149
    near_one = 1.0 - torch.rand(1000, dtype=torch.float64) * 2.0**-25
    assert float(noisy(near_one, torch.float32, 5.0, RANGES["tanh"]).max()) <= 1.0


@pytest.mark.parametrize(("dtype", "truth"), [(torch.float16, 1.2e-12), (torch.float32, 1.0e-47)])
def test_no_noise_lifts_what_rounds_to_zero(dtype: torch.dtype, truth: float) -> None:
    """Below the normal numbers a function's error stays relative: exp(-27) is 0 in float16."""
    many = truth * (1.0 + torch.arange(64, dtype=torch.float64) / 64)
    assert not bool(noisy(many, dtype, 5.0).any())
    small = 300.5 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps * (1.0 + torch.arange(64) / 64.0).double()
    off = (noisy(small, dtype, 5.0).double() - small).abs() / (torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    assert 0.0 < float(off.max()) < 1.5 if dtype is torch.float32 else float(off.max()) < 4.0


def test_cutting_gives_one_of_the_two_neighbours() -> None:
    """Rounded to nearest or toward zero, never away."""
    truth = values(4096, dtype=torch.float64) / 3
    y = cut(truth, torch.float32)
    nearest = truth.to(torch.float32)
    changed = y != nearest
    assert 0.1 < float(changed.float().mean()) < 0.4
    assert bool((y[changed].abs().to(torch.float64) < truth[changed].abs()).all())
    assert int(ulp_distance(y, nearest).max()) == 1


def test_cutting_always_steps_to_the_number_before() -> None:
    """Toward zero through every exponent, subnormal numbers included; what is exact, infinite or NaN stays."""
    truth = torch.cat([values(256, dtype=torch.float64) * 2.0**k for k in (-152, -149, -140, -126, 0, 126)])
    y, nearest = cut(truth, torch.float32, always=True).to(torch.float64), truth.to(torch.float32)
    assert bool((y.abs() <= truth.abs()).all())
    assert torch.equal(torch.signbit(y), torch.signbit(truth))
    following = torch.nextafter(y.to(torch.float32), truth.sign().to(torch.float32) * math.inf).to(torch.float64)
    assert bool((following.abs() > truth.abs()).all())
    assert bool((cut(truth, torch.float32) != nearest).any())
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, 2.0**-149], dtype=torch.float64)
    assert torch.equal(cut(special, torch.float32, always=True).view(torch.int32), special.to(torch.float32).view(torch.int32))


@pytest.mark.parametrize("dtype", (torch.float32, torch.complex64, *HALF))
@pytest.mark.parametrize("shape", ((), (3,)))
def test_overflow_on_the_way_is_that_of_the_cpu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Where one of the two is infinite, NaN or vanished, the CPU's is taken; a half type may also stay finite, or infinite
    where the CPU alone is NaN, as its `gelu` of infinity."""
    finite, infinite, small = (torch.full(shape, x).to(dtype) for x in (2.0, math.inf, 2.0**-120))
    assert torch.equal(in_range(infinite, finite), finite)
    assert torch.equal(in_range(finite, infinite), finite if dtype in HALF else infinite)
    assert torch.equal(in_range(infinite * math.nan, infinite), infinite)
    assert bool(torch.isnan(in_range(infinite, infinite * math.nan)).all()) is (dtype not in HALF)
    assert torch.equal(in_range(small * 0, small), small)
    assert torch.equal(in_range(small * 0, small, tiny=False), small * 0)
    assert torch.equal(in_range(finite * 0, finite), finite * 0)


def test_the_faults_are_those_of_the_subsets() -> None:
    """Every id once, and `--setup` can name the module's file."""
    ids = [f.id for f in honest.FAULTS]
    assert len(set(ids)) == len(ids) == sum(len(group) for group in honest.SUBSETS.values())
    assert all(i.startswith("honest-") for i in ids)
    assert {f.id for f in load_faults(honest.__file__)} == set(ids)
    assert {f"honest-{kind}" for kind in honest.KINDS} == set(ids)


@pytest.mark.parametrize("odd", (float("nan"), float("inf"), 1.0))
def test_what_underflowed_on_one_side_only_is_the_cpus_result(odd: float) -> None:
    """Also next to a NaN, which no comparison of sizes sees."""
    plain, other = torch.tensor([odd, 0.0, 2.0]), torch.tensor([odd, 1e-44, 2.0000002])
    assert in_range(other, plain).tolist()[1:] == [0.0, other[2].item()]
    assert in_range(other, plain, tiny=False).tolist()[1:] == other.tolist()[1:]
    lost = torch.tensor([odd, 1.0, float("inf")])
    assert in_range(lost, torch.ones(3)).tolist()[2] == 1.0
