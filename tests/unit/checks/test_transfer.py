"""Uploads and downloads of views: what a device does to a layout on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import checked

from parity import catalog, tolerance
from parity.checks.check import Settings
from parity.checks.trial import Result
from parity.core.results import Aspect, Status
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.engine.checking import settings as asked
from parity.engine.planning import RunPlan
from parity.engine.suite import Item, profile

CPU = resolve("cpu")
TABLES = tolerance.load("sim")


def transferred(device: Device, text: str) -> Result:
    return checked(device, text, Settings(more=frozenset({Aspect.TRANSFER})))["transfer"]


def from_the_start(call: Call) -> Any:
    """The source is read from the start of its storage."""
    x = call.args[0]
    call.args[0] = x.as_strided(x.shape, x.stride(), 0)
    return call.run()


def as_if_dense(call: Call) -> Any:
    """The source's strides are forgotten."""
    x = call.args[0]
    call.args[0] = torch.as_strided(x, x.shape, torch.empty(x.shape).stride())
    return call.run()


def to_the_start(call: Call) -> Any:
    """The destination is written from the start of its storage, densely."""
    x, out = call.args[0], call.outs[0]
    torch.as_strided(out, out.shape, torch.empty(out.shape).stride(), 0).copy_(x)
    return None


def shifted(call: Call) -> bool:
    return bool(call.args[0].storage_offset() > 0)


def crossed(call: Call) -> bool:
    return call.args[0].dim() > 1 and not call.args[0].is_contiguous()


def gapped(call: Call) -> bool:
    return bool(call.outs) and not call.outs[0].is_contiguous()


PLAIN = "neg(float32[3, 4].normal(seed=1))"


@pytest.mark.parametrize(
    "way, effect, when, text",
    [
        ("upload", from_the_start, shifted, "neg(float32[3, 4].flat(2, 1).normal(seed=1))"),
        ("upload", as_if_dense, crossed, "neg(float32[3, 4].transpose(0, 1).normal(seed=1))"),
        ("upload", to_the_start, gapped, 'neg(float32[3, 4].normal(seed=1)).into("stepped")'),
        ("download", from_the_start, shifted, "neg(float32[3, 4].flat(2, 1).normal(seed=1))"),
        ("download", as_if_dense, crossed, "neg(float32[3, 4].transpose(0, 1).normal(seed=1))"),
        ("download", to_the_start, gapped, 'neg(float32[3, 4].normal(seed=1)).into("columns")'),
    ],
)
def test_what_is_lost_on_the_way_is_found(way: str, effect: Any, when: Any, text: str) -> None:
    faulty = resolve("sim", (Fault("lost", (way,), effect, when, level="transfer"),))
    assert transferred(faulty, text).verdict.status in (Status.WRONG, Status.ERROR)
    assert transferred(faulty, PLAIN).verdict.status is Status.AGREE
    assert transferred(resolve("sim"), text).verdict.status is Status.AGREE


@pytest.mark.parametrize(
    "layout", ["", ".step(-1, 2, 1)", ".expand(0)", ".conj()", ".permute(1, 0).conj()", ".channels_last()"]
)
def test_a_healthy_device_keeps_every_layout(layout: str) -> None:
    shape = "2, 3, 4, 5" if "channels" in layout else "3, 4"
    text = f'neg(complex64[{shape}]{layout}.normal(seed=3)).into("transposed")'
    assert transferred(resolve("sim"), text).verdict.status is Status.AGREE


def halved(call: Call) -> Any:
    return call.run() / 2


def test_one_operand_in_three_changes_its_dtype_on_the_way() -> None:
    cast = Fault("cast", ("upload", "download"), halved, lambda c: c.args[0].dtype != c.outs[0].dtype, level="transfer")
    device = resolve("sim", (cast,))
    found = {s for s in range(6) if transferred(device, f"neg(float32[4].normal(seed={s}))").verdict.status.is_finding}
    assert found == {0, 3}


def test_rows_that_copy_travel_always_and_those_that_move_data_now_and_then() -> None:
    plan = RunPlan(resolve("sim"), CPU, TABLES, profile("quick"))
    for name, share in (("copy_", 36), ("to", 36), ("cat", 6), ("exp", 0)):
        item = Item(catalog.row(name), "float32")
        assert sum(Aspect.TRANSFER in asked(item, plan, k, False).more for k in range(36)) == share


def kept(call: Call) -> Any:
    """The source as what it holds, whatever lazy bits it has."""
    call.args[0] = call.args[0].resolve_conj().resolve_neg()
    return call.run()


def forgotten(call: Call) -> Any:
    """The lazy negation is lost."""
    x = call.args[0]
    call.args[0] = torch._neg_view(x).resolve_neg() if x.is_neg() else x
    return call.run()


def test_a_device_is_right_where_the_cpu_forgets_a_lazy_bit_on_the_way_to_another_dtype() -> None:
    """torch's CPU copies a negated float32 view to float16 as if it were not negated (2.13)."""
    right = resolve("sim", (Fault("right", ("upload", "download"), kept, lambda c: c.args[0].is_neg(), level="transfer"),))
    for text in ("neg(float32[4].neg().normal(seed=0))", "neg(float16[4].neg().normal(seed=3))"):
        assert transferred(right, text).verdict.status is Status.AGREE


def test_a_lazy_bit_that_is_lost_where_the_cpu_keeps_it_is_found() -> None:
    lost = Fault("lost", ("upload", "download"), forgotten, lambda c: c.args[0].is_neg(), level="transfer")
    for text in ("neg(float32[4].neg().normal(seed=1))", "neg(bfloat16[4].neg().normal(seed=0))"):
        assert transferred(resolve("sim", (lost,)), text).verdict.status is Status.WRONG
