"""An agreement answers the question whether a difference is fine: how large it is, where, and what rounding allows."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import parity
from parity.comparing.comparison import EQUAL, Difference, farthest
from parity.devices import Fault, resolve


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=lambda t: str(t)[6:]
)
def test_the_farthest_element_is_found_with_its_distance_in_ulp(dtype: torch.dtype) -> None:
    cpu = torch.full((3, 4), 1.5, dtype=dtype)
    ulp = torch.finfo(dtype).eps  # of numbers between 1 and 2
    device = cpu.clone()
    device[1, 2] += 4 * ulp
    device[2, 0] -= 2 * ulp
    assert farthest(device, cpu) == Difference((1, 2), 4 * ulp, 4.0)
    assert farthest(cpu, cpu) == EQUAL


def test_equal_nan_and_inf_are_no_difference_and_numbers_without_rounding_have_none() -> None:
    odd = torch.tensor([torch.nan, torch.inf, 1.0])
    assert farthest(odd, odd.clone()) == EQUAL
    assert farthest(odd + torch.tensor([0.0, 0.0, 0.5]), odd) == Difference((2,), 0.5, 2.0**22)
    assert farthest(torch.tensor([1]), torch.tensor([1])) == EQUAL
    assert farthest(torch.ones(2), torch.ones(3)) is None
    assert farthest(torch.ones(0), torch.ones(0)) == EQUAL
    assert farthest(torch.ones(2).to_sparse(), torch.ones(2).to_sparse()) is None


def test_an_agreement_says_what_rounding_allows() -> None:
    x = torch.linspace(0.5, 2.0, 64)
    cpu = torch.exp(x)
    device = cpu.clone()
    device[9] = torch.nextafter(torch.nextafter(device[9], device[9] * 2), device[9] * 2)
    text = str(parity.compare(torch.exp, device, cpu, x))
    found = re.fullmatch(
        r"OK  exp float32 on cpu: differs from the CPU by (\S+) at \[9\] \(2 ULP\); rounding allows (.+)", text
    )
    assert found is not None, text
    allowed = float(found[2].removeprefix("at least "))
    assert float(found[1]) < allowed
    device[9] = cpu[9] + 20 * allowed
    assert "OK" not in str(parity.compare(torch.exp, device, cpu, x))


def test_of_several_elements_the_one_nearest_to_its_limit_counts() -> None:
    x = torch.tensor([1e-3, 1e3])
    cpu = x * 3
    device = torch.stack([torch.nextafter(cpu[0], cpu[1]), cpu[1] + 2e-5])
    text = str(parity.compare(lambda x: x * 3, device, cpu, x))
    assert text.startswith("OK  <lambda> float32 on cpu: ")
    assert "equal" not in text


def test_equal_results_are_equal_and_an_accepted_error_is_named() -> None:
    x = torch.ones(4)
    assert ": equal to the CPU's\n" in str(parity.compare(torch.exp, torch.exp(x), torch.exp(x), x))
    half = str(parity.assert_parity(torch.nn.GELU(), torch.randn(4, 8).half(), device="sim", detail=True))
    assert half.startswith("OK  GELU float16 on sim: equal to the CPU's\n"), "also where the truth was asked for"
    doubled = resolve("sim", [Fault("exp", ("exp",), lambda call: call.run() * 1.01)])
    text = str(parity.assert_parity(torch.exp, x, device=doubled, atol=1.0))
    assert "differs from the CPU by 0.027 at [0]" in text
    assert "more than rounding allows, but within atol=1" in text


@pytest.mark.cold  # what a process has imported is asked
def test_the_place_of_a_difference_is_found_without_importing_sympy() -> None:
    call = "parity.assert_parity(torch.exp, torch.linspace(-3, 3, 64), device='sim:honest')"
    script = f"import sys, torch, parity; before = 'sympy' in sys.modules; {call}; sys.exit(('sympy' in sys.modules) > before)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
