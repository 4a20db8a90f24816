"""Derivatives of factorizations: what the choice of signs, phases, orders and pivots has no influence on, and only where it is
well defined."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import checked
from torch import Tensor

from parity import tolerance
from parity.checks.check import Settings, failing
from parity.checks.gauge import GAUGES
from parity.checks.trial import SELDOM, Result
from parity.core.results import Aspect
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.sim import honest
from parity.engine import suite
from parity.judging.relations import GAUGE_DEPENDENT

CPU = resolve("cpu")
TABLES = tolerance.load("sim")
G = torch.Generator().manual_seed(0)
SYMMETRIC = "float32[4, 4].symmetric(seed=3)"
SQUARE = "float32[2, 4, 4].conditioned(seed=1)"
TALL = "float32[5, 3].full_rank(seed=2)"
CASES = [
    f"svd({TALL}, full_matrices=False)",
    f"svd({TALL.replace('float32', 'complex64')}, full_matrices=False)",
    f"eigh({SYMMETRIC})",
    f"eigh({SYMMETRIC.replace('float32', 'complex64')})",
    f"eig({SQUARE})",
    f"qr({TALL})",
    f"qr({TALL.replace('float32', 'complex64')})",
    f"lu({SQUARE})",
    f"lu_factor({SQUARE})",
    f"lstsq({TALL}, float32[5, 2].normal(seed=4))",
]


def results(device: Device, text: str) -> dict[str, Result]:
    return checked(device, f'{text}.cotangent("normal", "contiguous", 5)', Settings(more=SELDOM))


@pytest.mark.parametrize("text", CASES)
def test_other_signs_and_phases_have_the_same_derivatives(text: str) -> None:
    found = results(resolve("sim", honest.FAULTS), text)
    assert {"backward", "double backward"} <= set(found)
    assert not failing(list(found.values()))


def rounded(call: Call) -> Any:
    """Factors with 10 bits."""
    for k in range(2):
        x = call.args[k]
        parts = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x) * 2.0**11
        call.args[k] = torch.view_as_complex(parts.round() / 2.0**11) if x.is_complex() else parts.round() / 2.0**11
    return call.run()


@pytest.mark.parametrize("text", [t for t in CASES if "complex64" not in t])
def test_products_of_low_precision_in_a_derivative_are_found(text: str) -> None:
    found = results(resolve("sim", (Fault("low", ("mm", "bmm"), rounded),)), text)
    assert found["forward"].verdict.status == "agree"
    assert {str(r.aspect) for r in failing(list(found.values()))} & {"backward", "double backward"}


@pytest.mark.parametrize(
    "text",
    [
        "eigh(float32[3, 3].inside(1, 1))",  # two eigenvalues of 0
        "svd(float32[3, 2].inside(1, 1), full_matrices=False)",  # a singular value of 0
        "qr(float32[3, 3].inside(1, 1))",
        "lu(float32[3, 3].inside(1, 1))",
        "lstsq(float32[3, 2].inside(1, 1), float32[3].normal(seed=1))",
        "svd(float32[64, 64].full_rank(seed=1), full_matrices=False)",  # too large
    ],
)
def test_nothing_is_said_where_a_derivative_is_not_defined(text: str) -> None:
    assert not {"backward", "double backward"} & set(results(resolve("sim"), text))


def _turned(name: str) -> tuple[list[Tensor], list[Tensor]]:
    """The factors of a complex matrix, and the same with other phases."""
    a = torch.randn(4, 4, dtype=torch.complex128, generator=G)
    phases = torch.polar(torch.ones(4, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64))
    if name == "svd":
        u, s, vh = torch.linalg.svd(a)
        return [u, s, vh], [u * phases, s, phases.conj().unsqueeze(-1) * vh]
    if name == "qr":
        q, r = torch.linalg.qr(a)
        return [q, r], [q * phases, phases.conj().unsqueeze(-1) * r]
    w, v = torch.linalg.eigh(a + a.mH) if name == "eigh" else torch.linalg.eig(a)
    order = torch.tensor([2, 0, 3, 1]) if name == "eig" else torch.arange(4)
    return [w, v], [w[order], (v * phases)[:, order]]


@pytest.mark.parametrize("name", ["svd", "qr", "eigh", "eig"])
def test_what_is_fixed_is_the_same_of_every_choice(name: str) -> None:
    one, other = map(GAUGES[name].fixed, _turned(name))
    assert len(one) == len(other) > 1
    for a, b in zip(one, other):
        torch.testing.assert_close(a, b)


def test_eigenvalues_whose_order_is_left_open_say_nothing() -> None:
    """They are far from each other, and equal in what they are ordered by."""
    v = torch.eye(3, dtype=torch.complex128)
    for other, expected in ((0.6 - 0.8j, False), (0.6 + 0.8j, True)):
        assert GAUGES["eig"].apart([v], [torch.tensor([0.0, other, 2.5], dtype=torch.complex128), v]) is expected


def test_eigenvectors_that_are_nearly_the_same_say_nothing() -> None:
    """Their eigenvalues are far from each other."""
    w = torch.tensor([1.0, 2.0], dtype=torch.complex128)
    for small, expected in ((1e-8, False), (1.0, True)):
        v = torch.tensor([[1.0, 1.0], [0.0, small]], dtype=torch.complex128)
        assert GAUGES["eig"].apart([v], [w, v]) is expected


def test_a_product_of_two_factors_keeps_its_rank() -> None:
    """And one that is nearly of a lower rank says nothing."""
    a, b = (torch.linalg.qr(torch.randn(5, 2, dtype=torch.float64, generator=G))[0] for _ in range(2))
    apart = GAUGES["pinv_any_rank"].apart
    assert apart([a, b], [torch.linalg.pinv(a @ b.mT)])
    near = a * torch.tensor([1.0, 1e-5], dtype=torch.float64)
    assert not apart([near, b], [torch.linalg.pinv(near @ b.mT)])
    assert apart([a], [torch.linalg.pinv(a)])


def test_other_pivots_say_nothing_of_the_gradient() -> None:
    """The factors with the rows in another order are right, and other numbers."""

    def in_turn(call: Call) -> Any:
        up = call.args[0].double().clone()
        eye = torch.eye(up.shape[-2], dtype=torch.float64)
        low = eye.clone()
        for k in range(up.shape[-2] - 1):
            low[..., k + 1 :, k] = up[..., k + 1 :, k] / up[..., k, k, None]
            up[..., k + 1 :, :] -= low[..., k + 1 :, k, None] * up[..., k, None, :]
        return eye.float(), low.float(), up.triu().float()

    text = "lu(float32[2, 3].normal(seed=2))"  # its second row holds the pivot
    found = results(resolve("sim", (Fault("in-turn", ("linalg_lu",), in_turn),)), text)
    assert found["forward"].verdict.status == "agree"
    assert "backward" not in found
    assert "backward" in results(resolve("sim"), text)


def test_every_relation_without_gradients_of_its_own_has_them_fixed_or_none() -> None:
    assert set(GAUGES) < GAUGE_DEPENDENT
    assert GAUGE_DEPENDENT - set(GAUGES) == {"lowrank", "pca_lowrank", "random", "uninitialised"}


def test_derivatives_are_compared_often_where_functions_say_little() -> None:
    """Every third case of an OpInfo entry and of a solver, every eighth of the rest."""
    from parity.engine.checking import settings
    from parity.engine.planning import RunPlan

    plan = RunPlan(CPU, CPU, TABLES, suite.profile("quick"))
    for name, least in (("opinfo:linalg.det", 8), ("opinfo:sin", 8), ("inv", 8), ("svd", 8), ("sin", 3)):
        item = suite.Item(suite.row(name), "float32")
        asked = [Aspect.DOUBLE in settings(item, plan, k, False).more for k in range(24)]
        assert least <= sum(asked) <= 2 * least
