"""Functions under a mask, grouped and float8 products, geqrf: a wrong kernel is a finding, and a healthy device is silent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import faulty_aspects, on_the_cpu, verdict_on

from parity.devices import Call, Fault, resolve

MASK = "mask=bool[4, 5].uniform(seed=2)"
X = "float32[4, 5].between(-2, 2, seed=1)"
CASES = {
    **{f"masked.{n}({X}, dim=-1, {MASK})": "where" for n in ("sum", "mean", "prod", "amax", "amin", "logsumexp")},
    **{f"masked.{n}({X}, -1, {MASK})": "where" for n in ("softmax", "log_softmax", "softmin", "cumsum", "cumprod")},
    **{
        f"masked.{n}({X}, -1, correction=0, mask=bool[5, 1].uniform(seed=2))".replace("[4", "[5"): "where"
        for n in ("var", "std")
    },
    f"masked.norm({X}, 2.0, dim=-1, {MASK})": "where",
    f"masked.normalize({X}, 2.0, -1, {MASK})": "div",
    f"masked.logaddexp({X}, {X}, other_{MASK})": "where",
    f"masked.argmax('argmax', {X}, -1, bool[4, 5].constant())": "argmax",
    f"masked.argmin('argmin', {X}, -1, bool[4, 5].constant())": "argmin",
    "grouped_mm(float32[5, 8], float32[2, 8, 16], (2, 5))": "mm",
    "scaled_mm(bfloat16[16, 32].inside(-4, 4), bfloat16[32, 16].inside(-4, 4), float32[()].inside(1, 2), "
    "float32[()].inside(1, 2), ('float8_e4m3fn', 'float8_e5m2'))": "_scaled_mm",
    "geqrf(float32[5, 3].full_rank(seed=1))": "geqrf",
    "pinverse(float32[5, 3].full_rank(seed=1))": "mm",
}


def _off(call: Call) -> Any:
    """Numbers are a quarter larger, places the next ones."""
    result = call.run()
    first = result[0] if isinstance(result, tuple) else result
    first.copy_(first * 1.25 if first.is_floating_point() else (first + 1) % 5)
    return result


@pytest.mark.parametrize(("case", "kernel"), CASES.items())
def test_a_wrong_kernel_is_found(case: str, kernel: str) -> None:
    fault = Fault("off", ops=(kernel,), effect=_off, level="kernel")
    assert "forward" in faulty_aspects(resolve("sim", (fault,)), case)
    assert not faulty_aspects(resolve("sim"), case)


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, False), (1.01, True)])
def test_float8_products_that_cuda_adds_coarsely_are_no_finding(factor: float, wrong: bool) -> None:
    """Tensor cores keep some 14 bits of the largest product; 1 % off is a finding all the same."""
    case = "scaled_mm(bfloat16[16, 128].inside(-4, 4), bfloat16[128, 32].inside(-4, 4), float32[()].constant(), "
    case += "float32[()].constant(), ('float8_e4m3fn', 'float8_e5m2'))"
    live, inputs = on_the_cpu(case)
    dtypes = torch.float8_e4m3fn, torch.float8_e5m2
    a, b = (x.view.to(d).double() for x, d in zip(inputs.operands, dtypes, strict=False))
    products = a[:, :, None] * b
    grain = products.abs().amax(1, keepdim=True).log2().floor().sub(13).exp2()
    scale = (live.outputs[0][1].double() / (a @ b)).median()
    coarse = (products.div(grain).trunc() * grain).sum(1) * scale
    assert verdict_on(case, lambda y: (coarse * factor).to(y.dtype), "cuda").status.is_finding == wrong
