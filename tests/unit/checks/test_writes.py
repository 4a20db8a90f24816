"""Destinations that torch resizes or casts to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import checked

from parity import catalog, tolerance
from parity.catalog.draw import Sizes
from parity.checks.check import Settings, check, failing, quiet
from parity.core.results import Aspect
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.generation.generate import search

CPU = resolve("cpu")
TABLES = tolerance.load("sim")


def statuses(device: Device, text: str) -> dict[str, str]:
    return {aspect: str(r.verdict.status) for aspect, r in checked(device, text, Settings(always_use_oracle=True)).items()}


def larger(call: Call) -> Any:
    return call.run() * 1.05


def unwritten(call: Call) -> Any:
    """The destination is resized and never written."""
    call.outs[0].resize_(call.args[0].shape).fill_(3)
    return None


CAST = Fault("cast", ("exp", "mm"), larger, lambda c: c.outs[0].dtype != c.operands[0].dtype)
RESIZED = Fault("resized", ("exp",), unwritten, lambda c: bool(c.outs) and not c.outs[0].numel(), level="function")


@pytest.mark.parametrize("fault, into", [(CAST, "float16"), (CAST, "bfloat16"), (RESIZED, "empty")])
def test_a_destination_that_is_treated_wrong_is_found(fault: Fault, into: str) -> None:
    found = statuses(resolve("sim", (fault,)), f'exp(float32[5].normal(seed=1)).into("{into}")')
    assert {a for a, s in found.items() if s == "wrong" or s == "drift"} == {"out="}
    assert set(statuses(resolve("sim", (fault,)), "exp(float32[5].normal(seed=1))").values()) == {"agree"}


def uncast(call: Call) -> Any:
    """Computed in the dtype of the destination."""
    wanted = call.outs[0].dtype
    call.args[:] = [a.to(wanted) if isinstance(a, torch.Tensor) else a for a in call.args]
    return call.run()


@pytest.mark.parametrize(
    "text",
    [
        "addcmul(float16[5].normal(seed=1), float16[5].normal(seed=2), float16[5].normal(seed=3))",
        "exp(bfloat16[2, 3].normal(seed=1).transpose(0, 1))",
        "mul(float16[5].normal(seed=1), 2.5)",
    ],
)
def test_what_is_not_cast_from_the_dtype_of_the_operands_is_found(text: str) -> None:
    """Whatever the tolerance of that dtype is: torch computes in it, and a wider destination holds its numbers."""
    fault = Fault("uncast", ("addcmul", "exp", "mul"), uncast, lambda c: c.outs[0].dtype != c.operands[0].dtype)
    found = statuses(resolve("sim", (fault,)), f'{text}.into("float32")')
    assert {a for a, s in found.items() if s == "wrong"} == {"out="}
    assert set(statuses(resolve("sim"), f'{text}.into("float32")').values()) == {"agree"}


@pytest.mark.parametrize(
    "text",
    [
        'exp(float16[5].normal(seed=1)).into("float32")',
        'add(int32[4].uniform(seed=1), int32[4].uniform(seed=2)).into("float32")',
        'add(int64[4].full(seed=1), int64[4].uniform(seed=2)).into("int32")',
        'neg(float32[4].normal(seed=2)).into("bfloat16")',
        'mul(float32[3].large(seed=1), 2.5).into("float16")',
        'sort(float32[4].normal(seed=2)).into("empty")',
        'cat((float32[2].normal(seed=1), float32[3])).into("empty")',
        'eq(int8[3], int8[3]).into("float32")',
    ],
)
def test_a_healthy_device_casts_and_resizes_as_the_reference_does(text: str) -> None:
    found = statuses(resolve("sim"), text)
    assert set(found.values()) == {"agree"}
    assert "out=" in found or "float16" in text or "int32" in text


def test_what_is_composed_may_widen_where_it_likes() -> None:
    """float32 inside and a float32 destination: no rounding to float16 on the way. Only what is computed element by element
    has one place where it is cast."""

    def unrounded(call: Call) -> Any:
        return call.operands[0].float().logsumexp(1)

    fault = Fault("unrounded", ("logsumexp",), unrounded, lambda c: bool(c.outs), level="function")
    found = statuses(resolve("sim", (fault,)), 'logsumexp(float16[5, 3].normal(seed=1), 1).into("float32")')
    assert found["out="] == "agree"


def test_every_destination_is_drawn() -> None:
    row = catalog.row("add")
    into = {d.case.into for d in search(row, "float32", Sizes(), "1", 400)}
    assert {"empty", "float16", "bfloat16", "stepped", "contiguous"} <= into
    cast = [d.case for d in search(row, "float32", Sizes(), "1", 400) if d.case.into == "float16" and not d.case.refused][:6]
    results = [r for c in cast for r in check(row, c, resolve("sim"), CPU, TABLES, Settings(), quiet, [])[0]]
    assert not failing(results)
    assert Aspect.OUT in {r.aspect for r in results}  # not in all: torch casts no complex number


def test_an_in_place_form_that_torch_refuses_otherwise_than_a_cast_is_not_judged() -> None:
    assert Aspect.INPLACE not in checked(resolve("sim"), "cumsum(float32[3], 0, dtype=float64)")


def jittering(call: Call) -> Any:
    """Every other call rounds its last bit differently."""
    turn = call.state["turn"] = call.state.get("turn", 0) + 1
    result = call.run()
    return torch.nextafter(result, result + 1) if turn % 2 else result


def test_calls_under_deterministic_algorithms_must_have_equal_bits() -> None:
    """However small the difference: elsewhere it is rounding."""
    device = resolve("sim", (Fault("jitter", ("index_add",), jittering),))
    text = "index_add(float32[3].normal(seed=1), 0, int64[2].index(0, 3), float32[2])"
    assert statuses(device, text + '.under("deterministic")')["repeat"] == "unstable"
    assert "repeat" not in statuses(device, text)
    assert not torch.are_deterministic_algorithms_enabled()
    assert set(statuses(resolve("sim"), text + '.under("deterministic")').values()) == {"agree"}
