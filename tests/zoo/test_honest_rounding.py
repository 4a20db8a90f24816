"""The rounding of honest devices: within the bound, the same for equal truths, exact where the truth is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from parity.devices import load_faults
from parity.judging.measures import ulp_distance
from parity.zoo import honest
from parity.zoo.honest.noise import RANGES
from parity.zoo.honest.rerun import in_range
from parity.zoo.honest.rounding import cut, noisy

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


def test_cutting_gives_one_of_the_two_neighbours() -> None:
    """Rounded to nearest or toward zero, never away."""
    truth = values(4096, dtype=torch.float64) / 3
    y = cut(truth, torch.float32)
    nearest = truth.to(torch.float32)
    changed = y != nearest
    assert 0.1 < float(changed.float().mean()) < 0.4
    assert bool((y[changed].abs().to(torch.float64) < truth[changed].abs()).all())
    assert int(ulp_distance(y, nearest).max()) == 1


def test_the_faults_are_those_of_the_subsets() -> None:
    """Every id once, and `--faults` can name the module's file."""
    ids = [f.id for f in honest.FAULTS]
    assert len(set(ids)) == len(ids) == sum(len(group) for group in honest.SUBSETS.values())
    assert all(i.startswith("honest-") for i in ids)
    assert {f.id for f in load_faults(honest.__file__)} == set(ids)
    assert {f"honest-{kind}" for kind in honest.KINDS} == set(ids)


@pytest.mark.parametrize("odd", (float("nan"), float("inf"), 1.0))
def test_what_underflowed_on_one_side_only_is_the_cpus_result(odd: float) -> None:
    """Also beside a NaN, which no comparison of sizes sees."""
    plain, other = torch.tensor([odd, 0.0, 2.0]), torch.tensor([odd, 1e-44, 2.0000002])
    assert in_range(other, plain).tolist()[1:] == [0.0, other[2].item()]
    assert in_range(other, plain, tiny=False).tolist()[1:] == other.tolist()[1:]
    lost = torch.tensor([odd, 1.0, float("inf")])
    assert in_range(lost, torch.ones(3)).tolist()[2] == 1.0
