"""No call writes into what it was given to read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import checked

from parity import catalog, tolerance
from parity.checks.check import Settings, check, failing, quiet
from parity.checks.inputs_unchanged import PROBLEM
from parity.core.case import TensorSpec
from parity.core.notation import parse
from parity.core.results import Aspect, Status
from parity.devices import Call, Fault, resolve
from parity.engine import suite
from parity.engine.checking import OPERANDS_EVERY, settings
from parity.engine.examine import Examined, examine
from parity.engine.journal import NoJournal
from parity.engine.planning import RunPlan
from parity.generation.generate import nth
from parity.report.finding import text as told
from parity.report.script import standalone

CPU = resolve("cpu")
TABLES = tolerance.load("sim")
ASKED = Settings(operands=True)


def bumping(k: int) -> Any:
    """An effect: the right result, and 1 more in all of operand k's storage than there was."""

    def effect(call: Call) -> Any:
        result = call.run()
        held = call.operands[k].detach()
        held.as_strided((held.untyped_storage().nbytes() // held.element_size(),), (1,), 0).add_(1)
        return result

    return effect


def found(fault: Fault | None, text: str, how: Settings = ASKED) -> dict[str, tuple[str, str]]:
    """Aspect -> (tensor, reason) of every finding."""
    device = resolve("sim", (fault,) if fault else ())
    results = checked(device, text, how).values()
    return {str(r.aspect): (r.verdict.tensor, r.verdict.reason) for r in failing(list(results))}


SINH = Fault("writes", ("sinh",), bumping(0), lambda c: not c.grad_mode)
CHANGED = [(f"operand[{k}]", f"operand {k} was changed by the call") for k in range(2)]
TWO = "logaddexp(float32[3].normal(seed=1), float32[3].normal(seed=2))"


@pytest.mark.parametrize("k", [0, 1])
def test_a_kernel_that_writes_into_its_input_is_found(k: int) -> None:
    fault = Fault("writes", ("logaddexp",), bumping(k))
    assert found(fault, TWO + '.under("no_grad")')["forward"] == CHANGED[k]
    assert not found(None, TWO)


def test_a_nan_may_be_written_back_with_other_bits() -> None:
    """As a device does that reads, widens and stores an operand."""

    def rewriting(call: Call) -> Any:
        result, held = call.run(), call.operands[0].detach()
        held.copy_(held.clone() if change is None else change(held))
        held.view(torch.int32)[held.isnan()] += 1
        return result

    fault = Fault("rewrites", ("sinh",), rewriting)
    text = 'sinh(float32[3].normal(seed=1).at(1, "nan")).under("no_grad")'
    change: Callable[[torch.Tensor], torch.Tensor] | None = None
    assert not found(fault, text)
    change = torch.nan_to_num
    assert found(fault, text)["forward"] == CHANGED[0]


def test_a_write_beside_the_view_is_found() -> None:
    def beside(call: Call) -> Any:
        held = call.operands[0].detach()
        held.as_strided((1,), (1,), 0).add_(1)
        return call.run()

    fault = Fault("beside", ("sinh",), beside, lambda c: c.operands[0].storage_offset() > 0)
    text = 'sinh(float32[3].normal(seed=1).flat(2, 0)).under("no_grad")'
    assert found(fault, text)["forward"][0] == "operand[0]"


def test_it_is_asked_for_or_comes_with_the_oracle() -> None:
    text = 'sinh(float32[3].normal(seed=1)).under("no_grad")'
    assert "forward" in found(SINH, text, Settings(always_use_oracle=True, only=Aspect.FORWARD))
    assert not found(SINH, text, Settings(only=Aspect.FORWARD))
    item, plan = suite.select(("sinh",), dtypes=("float32",))[0], RunPlan(CPU, CPU, TABLES, suite.profile("full"))
    assert sum(settings(item, plan, k, False).operands for k in range(8 * OPERANDS_EVERY)) == 8


FED = ("cotangent[0]", "cotangent 0 was changed by the call")


@pytest.mark.parametrize("layout", ["contiguous", "expanded", "stepped", "channels_last"])
@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("silu_backward", "silu(float32[3].normal(seed=1))"),
        ("silu_backward", "silu(float32[2, 3].normal(seed=1).transpose(0, 1))"),
        ("_softmax_backward_data", "softmax(float32[2, 3].normal(seed=1), -1)"),
        ("threshold_backward", "relu(float32[2, 3, 2, 2].normal(seed=1))"),
    ],
)
def test_a_backward_that_writes_into_its_cotangent_is_found(op: str, text: str, layout: str) -> None:
    """Whatever lies there: the elements, and the memory around them; a healthy device leaves all of it alone."""
    text += f'.cotangent("normal", "{layout}", 3)'
    assert found(Fault("writes", (op,), bumping(0)), text) == {"backward": FED}
    assert not found(None, text)


def test_backward_and_out_and_in_place_are_told_as_what_they_are() -> None:
    silu = "silu(float32[3].normal(seed=1))"
    assert found(Fault("writes", ("silu_backward",), bumping(1)), silu) == {"backward": CHANGED[0]}
    ways: dict[str, Callable[[Any], bool]] = {"out=": lambda c: bool(c.outs), "in-place": lambda c: c.op.endswith("_")}
    for aspect, when in ways.items():
        fault = Fault("writes", ("atan2",), bumping(1), when, level="function")
        assert found(fault, "atan2(float32[3].normal(seed=1), float32[3].normal(seed=2))")[aspect] == CHANGED[1]


@pytest.mark.parametrize(
    "text",
    [
        "embedding(int64[3].index(0, 4), float32[4, 2].normal(seed=1), max_norm=0.5)",
        "batch_norm(float32[3, 2].normal(seed=1), float32[2], float32[2].positive(), training=True)",
        "copy_(float32[3], float32[3].normal(seed=1))",
        "add(float32[2, 3].normal(seed=1).expand(0), float32[2, 3].transpose(0, 1))",
        "add(complex64[3].normal(seed=1).conj(), complex64[3].neg())",
        "exp(float32[0])",
    ],
)
def test_what_the_op_itself_does_is_not_told(text: str) -> None:
    assert not found(None, text)


def _examined(fault: Fault, pattern: str) -> Examined:
    row = suite.select((pattern,), dtypes=("float32",))[0]
    return examine(row, RunPlan(resolve("sim", (fault,)), CPU, TABLES, suite.profile("quick")), NoJournal())


def test_a_finding_shrinks_and_prints() -> None:
    done = _examined(Fault("writes", ("sinh",), bumping(0)), "sinh")
    kept = [f for f in done.findings if f.result.verdict.measure and f.result.verdict.measure.problem == PROBLEM]
    assert kept
    f = kept[0]
    assert f.result.verdict.status is Status.WRONG
    assert sum(s.numel for s in f.case.args if isinstance(s, TensorSpec)) == 1
    assert "operand 0 was changed by the call" in told(f, "sim", None)
    assert "worst at" in told(f, "sim", None)


@pytest.mark.slow
def test_the_script_compares_the_operands() -> None:
    case = parse("logaddexp(float32[3].normal(seed=1), float32[3].normal(seed=2))")
    for aspect in ("forward", "backward", "out="):
        made = standalone(case, aspect, "cpu", "title", kept=True)
        assert made is not None
        assert '"operand[1]": kept1' in made
        assert ('"cotangent[0]": fed0' in made) is (aspect == "backward")
        if aspect == "forward":
            done = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "they agree" in done.stdout
            calls = "iter((0, 1))"  # the second call, the device's, writes
            broken = made.replace("def run(", f"calls = {calls}\n\n\ndef run(").replace("WIDE = True", "WIDE = False")
            broken = broken.replace("    outputs = ", "    kept1.add_(next(calls))\n    outputs = ")
            done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, check=False)
            assert done.returncode == 1, done.stdout + done.stderr
            assert "operand[1]: largest difference 1" in done.stdout


def healthy() -> list[str]:
    names = [r.name for r in suite.rows("native")]
    return names[:: max(1, len(names) // 60)]


def test_a_healthy_device_leaves_operands_alone() -> None:
    """Sixty rows across the catalog, every case asked."""
    device = resolve("sim")
    seen = 0
    for name in healthy():
        row = catalog.row(name)
        for dtype in (d for d in ("float32", "int64") if d in row.dtypes):
            for k in range(1, 5):
                case = nth(row, dtype, suite.profile("quick").sizes, "operands", k).case
                with device.active():
                    results, _ = check(row, case, device, CPU, TABLES, ASKED, quiet, [])
                seen += 1
                assert not [r for r in results if r.verdict.measure and r.verdict.measure.problem == PROBLEM]
    assert seen > 200
    assert torch.is_grad_enabled()
