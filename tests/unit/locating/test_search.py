"""`parity.locate` names the module, the operator and the line where a device diverges, and blames no healthy one."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from three_layers import Net, larger
from torch import Tensor, nn

import parity
from parity.core.errors import NothingCompared, UsageError
from parity.core.results import Status
from parity.devices import Call, Fault, resolve
from parity.devices.sim.faults import refuse
from parity.devices.sim.honest import FAULTS as HONEST
from parity.locating import calls


def only(number: int, effect: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """An effect that strikes one call."""
    calls: list[None] = []

    def struck(call: Call) -> Any:
        calls.append(None)
        return effect(call) if len(calls) == number else call.run()

    return struck


def located(*faults: Fault, net: nn.Module | None = None, dtype: torch.dtype = torch.float32, **how: Any) -> parity.Located:
    """What is located on a device with these faults."""
    torch.manual_seed(0)
    return parity.locate((net or Net()).to(dtype), torch.randint(20, (6,)), device=resolve("sim", faults), **how)


@pytest.mark.parametrize("whole", [True, False])
def test_where_the_first_operator_alone_is_asked_for_the_others_are_not_compared(whole: bool) -> None:
    """But all calls of that one are, which a way around it has to serve."""
    faults = Fault("norm", ("native_layer_norm",), larger), Fault("gelu", ("gelu",), larger)
    found = located(*faults, whole=whole)
    assert found.first is not None
    assert found.first.operator == "aten::native_layer_norm"
    assert sum(d.operator == "aten::native_layer_norm" for d in found.divergences) == 3
    assert any(d.operator == "aten::gelu" for d in found.divergences) is whole
    assert located(whole=whole).agrees


@pytest.mark.parametrize("effort", ["default", "full"])
def test_an_agreement_says_how_far_the_results_are_and_what_rounding_allows(effort: str) -> None:
    """The output first, then whatever is nearer to its limit."""
    assert located(effort=effort).agreement == ("the results are equal to the CPU's",)
    found = located(*HONEST, effort=effort)
    assert found.agrees, found
    assert found.agreement[0].startswith("out differs from the CPU by ")
    assert "rounding allows" in found.agreement[0]
    assert all("grad[" in line for line in found.agreement[1:])
    assert str(found).splitlines()[1] == f"  {found.agreement[0]}"
    assert not located(Fault("norm", ("native_layer_norm",), larger), effort=effort).agreement


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_struck_layer_is_named_and_no_other(dtype: torch.dtype) -> None:
    """Forward and backward; a device that rounds as real ones do is not blamed."""
    found = located(Fault("norm", ("native_layer_norm",), only(2, larger)), dtype=dtype)
    assert found.first is not None
    assert [(p.operator, p.pass_, p.place.module) for p in found.divergences] == [
        ("aten::native_layer_norm", "forward", "layers.1.norm")
    ]
    assert found.first.place.function == "torch.nn.functional.layer_norm"
    assert "three_layers.py:" in found.first.place.line
    assert found.first.call is not None
    assert str(found).splitlines()[-1] == f"next: parity run layer_norm --dtype {str(dtype)[6:]} --device sim --setup FILE"
    assert f"Net {str(dtype)[6:]} on sim diverges from the CPU first in layers.1.norm (LayerNorm), forward" in str(found)
    back = located(Fault("gelu", ("gelu_backward",), only(3, larger)), dtype=dtype)
    assert [(p.operator, p.pass_, p.place.module) for p in back.divergences] == [
        ("aten::gelu_backward", "backward", "layers.0")
    ]
    for faults in ((), HONEST):
        healthy = located(*faults, dtype=dtype)
        assert healthy.first is None
        assert healthy.compared == 27  # operators of the model itself, and none that puts its operands there
        assert not healthy.left
    assert not located(Fault("gelu", ("gelu_backward",), larger), dtype=dtype, backward=False).divergences


def test_what_the_cpu_has_no_operator_for_is_compared_as_a_function() -> None:
    """An LSTM is one operator on MPS; attention may be wrong above its operators."""
    torch.manual_seed(0)
    net, x = nn.LSTM(5, 7, batch_first=True), torch.randn(2, 4, 5, requires_grad=True)
    fault = Fault("lstm", ("lstm_mps_backward",), larger)
    found = parity.locate(net, x, device=resolve("sim", (fault,)))
    assert [(p.operator, p.pass_, p.place.kind) for p in found.divergences] == [("torch.lstm", "backward", "LSTM")]
    assert parity.locate(net, x, device="sim").first is None

    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    fault = Fault("mask", ("scaled_dot_product_attention",), larger, level="function")
    for trained in (False, True):  # its pieces take fresh memory for the mask
        x = torch.randn(1, 2, 6, 4, requires_grad=trained)
        found = parity.locate(attention, x, device=resolve("sim", (fault,)))
        assert {p.operator for p in found.divergences} == {"torch.nn.functional.scaled_dot_product_attention"}


def finer(call: Call) -> Any:
    """A normalization that keeps its statistics in float32, as CUDA's do for halves, and in eval mode too."""
    result = call.run()
    if not result[1].numel():
        return result[0], *(torch.ones(call.args[0].shape[1], device=call.args[0].device) for _ in range(2))
    return result[0], *(t.float() for t in result[1:])


def in_float32(call: Call) -> Any:
    """The gradient that takes them, computed in float32."""
    dtype = call.args[0].dtype
    call.args = [x.float() if isinstance(x, Tensor) else x for x in call.args]
    return tuple(t if t is None else t.to(dtype) for t in call.run())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("train", [True, False])
def test_statistics_kept_for_the_gradient_are_no_difference(dtype: torch.dtype, train: bool) -> None:
    """A kernel may keep them finer, or where the CPU's keeps none; what the gradient makes of them is judged all the same."""
    keeping = tuple(
        Fault(name, (name,), effect)
        for norm in ("native_layer_norm", "native_batch_norm")
        for name, effect in ((norm, finer), (f"{norm}_backward", in_float32))
    )

    def found(*faults: Fault) -> parity.Located:
        torch.manual_seed(0)
        net = nn.Sequential(nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Linear(8, 8)).to(dtype).train(train)
        return parity.locate(
            net, torch.randn(12, 8, dtype=dtype, requires_grad=True), device=resolve("sim", (*keeping, *faults))
        )

    right = found()
    assert (right.first, right.left) == (None, {})
    for name in ("native_layer_norm", "native_batch_norm"):
        wrong = found(Fault("off", (name,), larger))
        assert wrong.first is not None
        assert wrong.first.operator == f"aten::{name}"
    wrong = found(Fault("off", ("native_layer_norm_backward",), larger))
    assert [(p.operator, p.pass_) for p in wrong.divergences] == [("aten::native_layer_norm_backward", "backward")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_running_statistics_are_judged_with_the_operator_that_keeps_them(dtype: torch.dtype) -> None:
    """The schema of batch_norm does not say that it writes them; in eval mode it does not."""

    def more(call: Call) -> Any:
        result = call.run()
        call.operands[4].mul_(1.05)
        return result

    def found(train: bool, *faults: Fault) -> parity.Located:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(dtype).train(train)
        return parity.locate(net, torch.randn(12, 8, dtype=dtype), device=resolve("sim", faults))

    wrong = found(True, Fault("var", ("native_batch_norm",), more))
    assert [(p.operator, p.place.module) for p in wrong.divergences] == [("aten::native_batch_norm", "1")]
    assert "of its running statistics: device" in str(wrong)
    for faults in ((), HONEST):
        assert found(True, *faults).agrees
        assert found(False, *faults).agrees


def test_an_operator_that_only_the_device_has_is_named_before_a_later_one() -> None:
    """Two faults: the LSTM, which the CPU has no operator for, runs before the product that is wrong, too."""
    torch.manual_seed(0)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.out(self.lstm(x)[0]))

    faults = Fault("lstm", ("_lstm_mps",), larger), Fault("tanh", ("tanh",), larger)
    found = parity.locate(Tagger(), torch.randn(2, 4, 5), device=resolve("sim", faults))
    assert [(p.operator, p.pass_) for p in found.divergences] == [("torch.lstm", "forward"), ("aten::tanh", "forward")]


def test_an_operator_that_raises_is_named() -> None:
    """With the device's words; what the CPU refuses, too, is none."""

    def fails(call: Call) -> Any:
        raise RuntimeError("the kernel broke")

    found = located(Fault("gelu", ("gelu",), fails))
    assert found.first is not None
    assert (found.first.operator, found.first.verdict.status) == ("aten::gelu", Status.ERROR)
    assert "RuntimeError: the kernel broke" in str(found)


def test_a_compiled_model_is_searched_in_its_eager_code() -> None:
    """By the names that it has there, and without torch's warning of hooks on compiled modules."""
    net = torch.compile(nn.Sequential(nn.Linear(8, 4), nn.GELU()), backend="aot_eager")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = parity.locate(net, torch.randn(2, 8), device=resolve("sim", (Fault("gelu", ("gelu_backward",), larger),)))
    assert not [w for w in heard if "global hooks" in str(w.message)]
    assert [(p.operator, p.place.module) for p in found.divergences] == [("aten::gelu_backward", "1")]
    assert found.notes == ("it is compiled, and what was compared here is its eager code",)


@pytest.mark.slow
def test_a_step_far_back_in_a_recurrent_layer_has_its_place() -> None:
    """One call of rnn_tanh makes several nodes of autograd for each step."""
    net = nn.Sequential(nn.Linear(4, 4), nn.RNN(4, 5, batch_first=True))
    fault = Fault("tanh", ("tanh_backward",), only(190, larger))
    found = parity.locate(net, torch.randn(2, 200, 4), device=resolve("sim", (fault,)))
    assert [(p.operator, p.pass_, p.place.module) for p in found.divergences] == [("aten::tanh_backward", "backward", "1")]


def test_what_to_do_about_what_a_device_refuses_is_said() -> None:
    """A dtype, lengths on the device, an operator without a kernel; a long message ends with a sentence."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.LSTM(5, 7, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.net(packed)[1][0]

    given = torch.randn(2, 4, 5), torch.tensor([4, 3])
    found = parity.locate(Tagger(), *given, device="sim")
    assert "pass lengths.cpu() to it; or let what calls the model keep them there (keep_on_cpu='lengths' in" in found.notes[-1]
    assert parity.locate(Tagger(), *given, device="sim", keep_on_cpu="lengths").agrees
    found = parity.locate(nn.Linear(2, 2).double(), torch.randn(3, 2).double(), device="sim:mps")
    assert found.notes == ("use float32: .to(torch.float32), or dtype=torch.float32 where it is made",)
    found = parity.locate(torch.exp, torch.randn(3), device=resolve("sim:mps", (Fault("exp", ("exp",), refuse),)))
    assert found.notes[-1] == "PYTORCH_ENABLE_MPS_FALLBACK=1 in the environment runs it on the CPU (slower)"
    assert found.first is not None
    assert found.first.verdict.reason.endswith("is not currently implemented for the MPS device.")
    assert not found.next


def test_what_agrees_part_by_part_is_no_agreement_of_the_whole() -> None:
    """An operand that a kernel changes, an error on the device alone, no backward pass; random numbers are left out."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(8))

        def forward(self, t: Tensor) -> Tensor:
            return t * self.get_buffer("scale").exp()

    def off(call: Call) -> Any:
        result = call.run()
        call.args[0].mul_(1.05)
        return result

    x = torch.randn(4, 8)
    found = parity.locate(Scaled(), x, device=resolve("sim", (Fault("exp", ("exp",), off),)))
    assert (found.first, found.agrees) == (None, False)
    assert "the results differ: buffer[scale]" in found.headline

    def fails(t: Tensor) -> Tensor:
        y = t.exp()
        if t.device.type != "cpu":
            raise ValueError("mine")
        return y

    found = parity.locate(fails, x, device="sim")
    assert not found.agrees
    assert "raises on the device (ValueError in run: mine)" in found.headline
    frozen = parity.locate(nn.Linear(8, 2).requires_grad_(False), x, device="sim")
    assert "note: no backward pass: no output depends on" in str(frozen)
    noisy = parity.locate(nn.Sequential(nn.Dropout(), nn.Linear(8, 8), nn.Dropout()), x, device=resolve("sim", HONEST))
    assert noisy.agrees
    assert any("random numbers" in why for why in noisy.left)
    with pytest.raises(UsageError, match="the device is the CPU itself"):
        parity.locate(Scaled(), x, device="cpu")


def test_what_cannot_be_located_is_said() -> None:
    """A function that fails on the CPU, or takes no tensor."""
    with pytest.raises(UsageError, match="raises on the CPU"):
        parity.locate(lambda x: x @ torch.ones(3), torch.ones(2, 2), device="sim")
    with pytest.raises(NothingCompared, match="no input is a tensor"):
        parity.locate(lambda x: x, 3, device="sim")
    for nothing, x in ((lambda x: None, torch.ones(2)), (nn.Linear(2, 2), torch.ones(0, 2))):
        with pytest.raises(NothingCompared, match="gives no tensor with elements and writes none; return what is to be"):
            parity.locate(nothing, x, device="sim")

    def writes(x: Tensor) -> None:
        x.mul_(2)

    assert parity.locate(writes, torch.ones(2), device="sim").agrees


def test_what_the_judge_fails_at_is_no_refusal_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the judge's own is counted by its name; what the CPU refuses is reported as before."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no such table")

    monkeypatch.setattr(calls, "compare", broken)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    found = parity.locate(net, torch.randn(64, 64), device=resolve("sim", HONEST), effort="full", whole=False)
    assert found.left["the judge failed (RuntimeError: no such table)"] > 0
    assert not any("CPU does not run" in why for why in found.left)


@pytest.mark.slow
def test_half_types_written_in_place_have_the_budget_of_their_steps() -> None:
    """A GRU adds and multiplies in place; a rounding of its steps moves what is near zero by more than a roundoff of it."""
    torch.manual_seed(0)
    net, x = nn.GRU(32, 32, batch_first=True).half(), torch.randn(2, 8, 32).half()
    parity.assert_parity(net, x, device="sim")
    with pytest.raises(parity.ParityFailure):
        parity.assert_parity(net, x, device=resolve("sim", (Fault("gru", ("_thnn_fused_gru_cell",), larger),)))


@pytest.mark.parametrize(
    ("fn", "x", "said"),
    [
        (
            lambda x: torch.log(x - 10) * 2,
            torch.ones(3),
            "NaN as the device does, first in aten::log float32, forward, torch.log",
        ),
        (lambda x: (x * 60000) * 60000, torch.ones(3).half(), "Inf as the device does, first in aten::mul float16, forward"),
        (lambda x: x * 60000 * 60000 * 0.0, torch.ones(3).half(), "Inf as the device does, first in aten::mul float16"),
        (lambda x: torch.softmax(x.masked_fill(x > 0, -math.inf), -1) * 2, torch.tensor([1.0, -1.0]).half(), ""),
        (lambda x: x * 2, torch.tensor([math.nan, 1.0]), ""),
        (lambda x: torch.log(x) * 2, torch.ones(3), ""),
    ],
)
def test_nan_of_the_cpu_itself_is_named_with_the_operator_that_makes_it(fn: Any, x: Tensor, said: str) -> None:
    """Then the model or its dtype gives it, and no device."""
    found = parity.locate(fn, x, device="sim")
    assert found.agrees
    assert said in " ".join(found.notes)
    assert bool(said) is ("as the device does" in " ".join(found.notes))


@pytest.mark.parametrize("falls", [True, False])
def test_an_operator_that_ran_on_the_cpu_is_named_where_nothing_diverges(falls: bool) -> None:
    """Without -v, and next to an agreement. In a process of its own: the variable is read once."""
    layer = "AdaptiveMaxPool3d" if falls else "AdaptiveAvgPool2d"
    script = (
        "import torch, warnings, parity\nwarnings.simplefilter('error')\n"
        f"found = parity.locate(torch.nn.{layer}(2), torch.randn(1, 4, 4, 4), device='sim:mps', backward=False)\n"
        "print(found.agrees, *found.notes, sep='\\n')\n"
    )
    environment = {**os.environ, "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    agrees, *notes = done.stdout.splitlines()
    assert agrees == "True"
    assert ("ran on the CPU unasked: aten::adaptive_max_pool3d.out" in notes) is falls


def test_calls_of_an_operator_that_is_struck_each_time_are_counted_without_a_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five diverging calls are judged, and one after a comparison that failed; an honest device is blamed for none. A way
    around is tried with each of them, without a truth."""
    asked: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return parity.compare(*args, **kwargs)

    monkeypatch.setattr(calls, "compare", counted)
    net, x = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8))), torch.randn(8, 16)

    def off(call: Call) -> Any:
        return call.run() * 1.02

    device = resolve("sim", (Fault("off", ops=("gelu",), effect=off, level="kernel"),))
    found = parity.locate(net, x, device=device, backward=False)
    assert [d.operator for d in found.divergences] == ["aten::gelu"] * 8
    assert len({d.verdict.status for d in found.divergences}) == 1
    assert found.divergences[-1].how.endswith("times what roundings explain (oracle/yardstick.py: struck again)")
    assert len(asked) == 5
    assert found.workaround == "gelu on the CPU agrees (8 of 8 calls); it copies operands and results"
    asked.clear()
    with pytest.raises(parity.ParityFailure, match=r"diverges from the CPU first in 0\.1 \(GELU\)"):
        parity.assert_parity(net, x, device=device, backward=False)
    assert len(asked) == 1
    asked.clear()
    assert parity.locate(net, x, device=resolve("sim", tuple(HONEST)), backward=False).agrees


def test_a_number_far_off_is_not_called_what_the_same_operator_was_called_before() -> None:
    """Results of another shape say nothing of a number: the first one that is off is judged."""
    count = 0

    def off(call: Call) -> Any:
        nonlocal count
        count += 1
        made = call.run()
        return made[None] if count <= 5 else made * 1.5

    def six(x: Tensor) -> Tensor:
        return torch.stack([torch.sin(x).sum() for _ in range(6)])

    device = resolve("sim", (Fault("off", ops=("sin",), effect=off, level="kernel"),))
    found = parity.locate(six, torch.randn(64), device=device, backward=False)
    assert [str(d.verdict.status) for d in found.divergences] == ["malformed"] * 5 + ["wrong"]
