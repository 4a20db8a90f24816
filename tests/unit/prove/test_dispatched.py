"""Which operators count as dispatched."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from parity import tolerance
from parity.checks.check import Settings, check, quiet
from parity.checks.trial import Result
from parity.core import notation
from parity.core.results import Aspect, Status, Verdict
from parity.devices import resolve
from parity.devices.base import Device
from parity.engine import suite
from parity.engine.checking import settings_of_run
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.prove import dispatched
from parity.prove.dispatched import NOTHING_COMPARED, Dispatched, Reach

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sim() -> Device:
    return resolve("sim")


def seen(text: str, device: Device, how: Settings | None = None) -> tuple[Dispatched, tuple[Result, ...]]:
    """What one case dispatches, and its results."""
    case, study = notation.parse(text), Reach()
    study.begin()
    tables = tolerance.load(device.name)
    row = suite.row(case.op)
    results, _ = check(row, case, device, resolve("cpu"), tables, how or Settings(), quiet, [], study.watching)
    return study.seen, results


def verdict(status: Status) -> Result:
    return Result(Aspect.FORWARD, Verdict(status, "because"))


def test_every_form_of_a_compared_case_counts(sim: Device) -> None:
    """The forward, the gradient's own kernel, out=, in-place, and what brings the operands there."""
    reached, results = seen("tanh(float32[3].normal(seed=1))", sim)
    assert {r.verdict.status for r in results} == {Status.AGREE}
    assert {"tanh", "tanh_backward", "tanh.out", "tanh_", "_copy_from"} <= reached.operators
    assert reached.idle == {}


def test_what_the_reference_runs_does_not_count(sim: Device) -> None:
    """The float64 truth and its perturbations run on the CPU."""
    reached, _ = seen("tanh(float32[3].normal(seed=1))", sim, Settings(always_use_oracle=True))
    assert not {"nextafter", "abs", "isfinite", "sub.Tensor"} & reached.operators


def test_a_form_that_torch_composes_another_of_does_not_count(sim: Device) -> None:
    """Such a device has `add.Tensor` by way of `add.out`; MPS has a kernel for each."""
    reached, _ = seen("add(float32[2], float32[2])", sim, Settings(only=Aspect.FORWARD))
    assert "add.Tensor" in reached.operators
    assert "add.out" not in reached.operators


def test_what_an_operator_is_composed_of_counts(sim: Device) -> None:
    """torch composes cummax of `_cummax_helper` below autograd."""
    reached, _ = seen("cummax(float32[2, 3].normal(seed=1), 1)", sim, Settings(only=Aspect.FORWARD))
    assert {"cummax", "_cummax_helper"} <= reached.operators


def test_a_refused_case_does_not_count() -> None:
    """MPS has no kernel for frexp: it is dispatched, refused, and reported with the reason."""
    reached, results = seen("frexp(float32[3].normal(seed=1))", resolve("sim:mps"))
    assert {r.verdict.status for r in results} == {Status.UNSUPPORTED}
    assert not reached.operators
    assert reached.idle["frexp.Tensor"].startswith("forward unsupported: ")


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("conv2d(float32[1, 2, 3, 3], float32[2, 2, 2, 2])", {"convolution", "_convolution", "convolution_backward"}),
        ("zeros_like(float32[3])", {"zeros_like", "empty_like", "empty_strided", "zero_"}),
        ("sum(float32[3])", {"sum", "sum.dim_IntList"}),
        ("mul(complex64[3].conj(), float32[3])", {"mul.Tensor", "_conj"}),
        ("add(float32[2], 0.5)", {"add.Tensor"}),
    ],
)
def test_what_kernels_call_counts_on_a_device_that_says_nothing(
    text: str, operators: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A native device keeps no log: the mode itself follows into the kernels. Here the CPU stands for the device."""
    monkeypatch.setattr(dispatched, "_is_there", lambda tree: any(isinstance(x, torch.Tensor) for x in tree_leaves(tree)))
    reached, results = seen(text, resolve("cpu"))
    assert {r.verdict.status for r in results} == {Status.AGREE}
    assert operators <= reached.operators


@pytest.mark.parametrize("status", [Status.VOID, Status.UNSUPPORTED, Status.ERROR, Status.FALLBACK])
def test_a_result_without_a_comparison_does_not_count(sim: Device, status: Status) -> None:
    """Each result has the operators that were dispatched before it and after the one before."""
    reached, results = Dispatched(), list[Result]()
    x = sim.upload(torch.rand(3))
    with reached.watching(sim, results):
        torch.exp(x)
        results.append(verdict(status))
        torch.sin(x)
        results.append(verdict(Status.AGREE))
        torch.cos(x)
    assert "sin" in reached.operators
    assert not {"exp", "cos"} & reached.operators
    assert reached.idle["exp"] == f"forward {status}: because"
    assert reached.idle["cos"] == NOTHING_COMPARED


def test_a_wrong_result_is_a_comparison(sim: Device) -> None:
    """Reach is about what is looked at, whatever is seen there."""
    reached, results = Dispatched(), list[Result]()
    with reached.watching(sim, results):
        torch.exp(sim.upload(torch.rand(3)))
        results.append(verdict(Status.WRONG))
    assert "exp" in reached.operators


def test_calls_that_nobody_judges_do_not_count(sim: Device) -> None:
    """A case behind other calls counts for nothing: those are dispatched too, and not compared."""
    reached, results = seen('tanh(float32[3].normal(seed=1)).after("smaller")', sim)
    assert {r.verdict.status for r in results} == {Status.AGREE}
    assert not reached.operators


def test_an_item_tells_its_operators_only_where_it_is_asked(sim: Device) -> None:
    """Nothing is noted in an ordinary run; with reach, forward-mode and transfers are left out."""
    item = suite.Item(suite.row("tanh"), "float32")
    plan = RunPlan(sim, resolve("cpu"), tolerance.load("sim"), suite.profile("quick"), RunOptions(examples=2))
    assert examine(item, plan, NoJournal()).summary.operators == ()
    asked = replace(plan, study=Reach())
    assert {"tanh", "tanh_backward"} <= set(examine(item, asked, NoJournal()).summary.operators)
    asks = [settings_of_run(item, p, k, False).more for p in (plan, asked) for k in range(18)]
    assert any(Aspect.TANGENT in more for more in asks[:18])
    assert not any(more & {Aspect.TANGENT, Aspect.TRANSFER} for more in asks[18:])


BACKWARD = """
import sys; sys.path.insert(0, "tests/unit/prove")
from test_dispatched import seen
from parity.devices import resolve
reached, results = seen("fused_rms_norm(float32[2].normal(seed=1), (2,), None, 1e-05)", resolve("sim"))
print([f"{r.aspect}: {r.verdict.status}" for r in results if r.aspect == "backward"])
print(reached.idle["_fused_rms_norm_backward"])
print("_fused_rms_norm" in reached.operators)
"""


@pytest.mark.slow
def test_a_refusal_in_a_backward_does_not_end_the_process() -> None:
    """In a process of its own: where the mode raises there, torch ends it."""
    done = subprocess.run([sys.executable, "-c", BACKWARD], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    backward, why, forward = done.stdout.splitlines()
    assert backward == "['backward: unsupported']"
    assert why.startswith("backward unsupported: NotImplementedError in backward: ")
    assert forward == "True"
