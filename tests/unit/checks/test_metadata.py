"""Strides of results: promised ones are held to, others are reported, and what says nothing is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import checked
from torch import Tensor

from parity import catalog
from parity.catalog.draw import Sizes
from parity.checks.check import Settings, check, quiet
from parity.core.results import MetadataNote
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.devices.sim import honest
from parity.generation.generate import search
from parity.tolerance import load

STRICT = Settings(fail_on_metadata=True)
# Where a simulated device takes the way of MPS or CUDA: a fused cell whose result is dense, attention that does not lay its
# heads out as the CPU's flash kernel does.
OTHER_KERNELS = {"gru_cell", "attention_packed", "attention_turned", "scaled_dot_product_attention"}


def channels_last(call: Call) -> Any:
    return call.run().contiguous(memory_format=torch.channels_last)


def transposed(call: Call) -> Any:
    return call.run().mT.contiguous().mT


def other_strides_of_one(call: Call) -> Any:
    """Other strides of dimensions of size 1 alone."""
    out: Tensor = call.run()
    return out.as_strided(out.shape, [s if n > 1 else 77 for s, n in zip(out.stride(), out.shape)])


def planted(op: str, effect: Any) -> Device:
    return resolve("sim", (Fault("strides", (op,), effect, level="function"),))


@pytest.mark.parametrize(
    ("op", "effect", "text", "note"),
    [
        ("softmax", channels_last, "softmax(float32[2, 3, 4, 5], dim=-1)", "channels last instead of contiguous"),
        ("outer", transposed, "outer(float32[3], float32[4])", "permuted instead of contiguous"),
        ("add", transposed, "add(float32[3, 4], float32[3, 4].transpose(0, 1))", "permuted instead of contiguous"),
        ("add", transposed, "add(float32[2, 3, 4].permute(2, 0, 1), float32[4])", "other strides, permuted as well"),
    ],
)  # fmt: skip
def test_a_fresh_result_with_other_strides_is_told_and_fails_where_asked(op: str, effect: Any, text: str, note: str) -> None:
    device = planted(op, effect)
    forward = checked(device, text)["forward"]
    assert str(forward.verdict.status) == "agree"
    assert [n.words for n in forward.notes] == [note]
    assert forward.notes[0].device != forward.notes[0].reference
    failed = checked(device, text, STRICT)
    assert {a for a, r in failed.items() if str(r.verdict.status) == "malformed"} == {"forward"}
    assert failed["forward"].key == ("forward", "out", "strides")
    assert "--fail-on metadata" in failed["forward"].verdict.reason
    assert not checked(resolve("sim"), text, STRICT)["forward"].notes


def test_promised_strides_fail_without_being_asked_for() -> None:
    """Of an elementwise function of one operand, and of a view."""
    for op, text in (("exp", "exp(float32[3, 4])"), ("permute", "permute(float32[3, 4], (0, 1))")):
        found = checked(planted(op, transposed), text)["forward"].verdict
        assert str(found.status) == "malformed"
        assert "should be" in found.reason
        assert str(checked(resolve("sim"), text)["forward"].verdict.status) == "agree"


@pytest.mark.parametrize(
    ("op", "effect", "text"),
    [
        ("softmax", other_strides_of_one, "softmax(float32[1, 3, 1, 2], dim=-1)"),
        ("outer", transposed, "outer(float32[0], float32[4])"),
        ("outer", transposed, "outer(float32[1], float32[4])"),
        ("dropout", transposed, "dropout(float32[3, 4], training=False)"),  # on the CPU the operand itself
    ],
)
def test_strides_that_say_nothing_are_not_told(op: str, effect: Any, text: str) -> None:
    forward = checked(planted(op, effect), text, STRICT)["forward"]
    assert (str(forward.verdict.status), forward.notes) == ("agree", ())


@pytest.mark.slow
@pytest.mark.parametrize("faults", [(), honest.FAULTS], ids=["healthy", "honest"])
def test_healthy_and_honest_devices_tell_nothing_but_for_kernels_of_their_own(faults: tuple[Fault, ...]) -> None:
    device, cpu, tables = resolve("sim", faults), resolve("cpu"), load("sim")
    told: dict[str, MetadataNote] = {}
    compared = 0
    how = Settings(only="forward", law=False)
    for row in (r for r in catalog.ROWS.values() if "float32" in r.dtypes and r.name not in OTHER_KERNELS):
        for one in search(row, "float32", Sizes(), "strides", 2):
            with device.active():
                results, _ = check(row, one.case, device, cpu, tables, how, quiet, [])
            compared += sum(r.verdict.status.is_comparison for r in results)
            told.update((row.name, n) for r in results for n in r.notes)
    assert told == {}
    assert compared > 1000
