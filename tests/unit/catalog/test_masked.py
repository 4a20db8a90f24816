"""Functions under a mask, grouped and float8 products, geqrf: a wrong kernel is a finding, and a healthy device is silent."""

from __future__ import annotations

from typing import Any

import pytest
from cases import faulty_aspects

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
    "scaled_mm(float32[16, 32].inside(-4, 4), float32[32, 16].inside(-4, 4), float32[()].inside(1, 2), "
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
