"""`parity.audit` names what a model needs and MPS does not have, where, and nothing else."""

from __future__ import annotations

import gc
import inspect
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import parity
from parity.comparing.advice import KEYWORDS
from parity.core.errors import NothingCompared, UsageError
from parity.devices import Fault, resolve
from parity.devices.mps_calls import Answer
from parity.devices.operator_table import Table, installed
from parity.locating import auditing
from parity.locating.needs import Needs
from parity.zoo import BUGS


class Recurrent(nn.Module):
    """Convolution, pooling, LSTM, GRU, attention, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 4, 2)
        self.lstm, self.gru, self.last = nn.LSTM(4, 4), nn.GRU(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 2, 8, 8)."""
        y = F.max_pool2d(self.up(self.conv(x)), 2).flatten(2).permute(2, 0, 1)
        y = self.gru(self.lstm(y)[0])[0]
        return torch.as_tensor(self.last(F.scaled_dot_product_attention(y, y, y)))


def operators(needs: Needs, pass_: str = "forward") -> set[str]:
    return {n.operator for n in needs.needs if n.pass_ == pass_}


def test_a_model_that_runs_is_said_to() -> None:
    needs = parity.audit(Recurrent(), torch.randn(2, 2, 8, 8))
    assert needs.complete, needs
    assert not needs.missing
    assert needs.headline.startswith("Recurrent will run on MPS (torch 2.")


def test_operators_are_those_of_mps_and_not_of_the_cpu() -> None:
    needs = parity.audit(Recurrent(), torch.randn(2, 2, 8, 8))
    assert operators(needs) >= {"aten::_mps_convolution", "aten::_mps_convolution_transpose", "aten::_lstm_mps", "aten::linear"}
    assert "aten::max_pool2d" in operators(needs)
    behind = {"aten::lstm_mps_backward", "aten::linear_backward", "aten::mps_convolution_backward"}
    assert operators(needs, "backward") >= behind
    seen = operators(needs) | operators(needs, "backward")
    assert not [n for n in seen if "fused" in n or "overrideable" in n or "mkldnn" in n]
    assert {"aten::sigmoid_", "aten::tanh_"} <= seen  # the GRU's cells
    assert not {"aten::mm.out", "aten::addmm.out", "aten::addmm"} & operators(needs)


def test_attention_is_one_call_where_no_gradient_is_wanted() -> None:
    whole = "aten::_scaled_dot_product_attention_math_for_mps"
    x = torch.randn(1, 2, 4, 8)
    assert whole in operators(parity.audit(F.scaled_dot_product_attention, x, x, x))
    q = x.clone().requires_grad_()
    assert whole not in operators(parity.audit(F.scaled_dot_product_attention, q, x, x))


def test_layers_of_transformers_are_not_fused_as_on_cuda() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    needs = parity.audit(layer, torch.randn(2, 3, 8), backward=False)
    assert needs.complete, needs
    assert "aten::native_layer_norm" in operators(needs)


def test_a_missing_operator_is_named_with_its_place() -> None:
    def net(x: Tensor) -> Tensor:
        y = x * 2
        return y + torch.heaviside(x, x).detach()

    needs = parity.audit(net, torch.randn(3), backward=False)
    assert needs.operators == ("aten::heaviside.out",)
    assert "needs 1 operator missing on MPS: aten::heaviside.out" in needs.headline
    (lacking,) = needs.missing
    assert lacking.place.function == "torch.heaviside"
    assert Path(__file__).name in lacking.place.line
    assert "PYTORCH_ENABLE_MPS_FALLBACK=1" in str(needs)


def test_an_operator_that_only_the_backward_lacks() -> None:
    needs = parity.audit(nn.AdaptiveMaxPool3d(2), torch.randn(1, 2, 4, 4, 4, requires_grad=True))
    assert [n.pass_ for n in needs.missing] == ["forward", "backward"]
    x = torch.ones(1, 1, 3, 3, requires_grad=True)
    needs = parity.audit(lambda t: F.interpolate(t, 5, mode="bilinear", antialias=True), x)
    assert [(n.operator, n.pass_) for n in needs.missing] == [("aten::_upsample_bilinear2d_aa_backward.grad_input", "backward")]


def test_float64_inside_is_told_where_it_comes_in() -> None:
    def net(x: Tensor) -> Tensor:
        y = x.double()
        z = (y * 3).cumsum(0)
        return z.float()

    needs = parity.audit(net, torch.randn(3, requires_grad=True))
    assert needs.dtypes == ("float64",)
    assert not needs.operators
    assert {n.place.function for n in needs.missing} == {"torch.Tensor.double"}
    assert "use float32" in str(needs)
    assert "no fallback helps" in str(needs)


def test_a_tensor_made_out_of_none_is_not_blamed_on_the_call_before() -> None:
    def makes(x: Tensor) -> Tensor:
        n = x.size(0)
        return (torch.zeros(n, dtype=torch.float64, device=x.device) + x).float()

    (need,) = parity.audit(makes, torch.rand(3)).missing
    assert need.place.function == "torch.zeros"
    assert need.place.line.endswith(", in makes")


class Mixes(nn.Module):
    """Operators of several operands under autocast, in a dtype that MPS does not take there, and one that MPS does not have."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.dtype = nn.Linear(4, 4), dtype

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, 4)."""
        with torch.autocast(x.device.type, dtype=torch.float16):
            y = self.linear(x).to(self.dtype)
            z = torch.addcmul(y, y, y)
            both: Tensor = torch.special.log_ndtr(z.float()).sum() + torch.dot(y[0], y[1])
        return both


def test_the_audit_goes_on_behind_a_refusal() -> None:
    needs = parity.audit(Mixes(torch.bfloat16), torch.rand(2, 4))
    assert [(n.operator, n.answer) for n in needs.missing] == [
        ("aten::addcmul", Answer.REFUSED), ("aten::special_log_ndtr.out", Answer.MISSING), ("aten::dot", Answer.REFUSED)
    ]  # fmt: skip
    assert [n.place.function for n in needs.missing] == ["torch.addcmul", "torch.special.log_ndtr", "torch.dot"]
    assert not needs.broken
    assert "aten::linear_backward" in operators(needs, "backward")
    assert str(needs).count("do: give it float32, or the dtype of autocast, for all of its operands") == 2
    assert parity.audit(Mixes(torch.float16), torch.rand(2, 4)).operators == ("aten::special_log_ndtr.out",)
    assert not parity.audit(Mixes(torch.float16), torch.rand(2, 4)).refusing
    for device in ("sim", "sim:mps"):
        with pytest.raises(parity.ParityFailure, match=r"unsupported: RuntimeError in run: Unexpected floating ScalarType"):
            parity.assert_parity(Mixes(torch.bfloat16), torch.rand(2, 4), device=device)


@pytest.mark.parametrize("cpu", [True, False])
def test_the_audit_goes_on_behind_a_refusal_of_the_backward_pass(cpu: bool) -> None:
    """An operator of a package whose gradient has a kernel for the CPU alone, and one whose gradient has none."""

    def refuses(g: Tensor) -> Tensor:
        raise NotImplementedError("\"steep\" not implemented for 'Half'")

    name = f"parity_tests::steep_{cpu}"
    grad: Any = torch.library.custom_op(name, Tensor.clone if cpu else refuses, mutates_args=(), schema="(Tensor g) -> Tensor")
    grad.register_kernel(resolve("sim").torch_device.type)(refuses)

    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return grad(g)

    steep: Any = Steep.apply
    needs = parity.audit(lambda x: torch.special.log_ndtr(steep(x.sin())), torch.rand(3, requires_grad=True))
    assert (name in [n.operator for n in needs.missing if n.pass_ == "backward"]) is cpu
    assert ("aten::cos.out" in operators(needs, "backward")) is cpu  # behind it
    assert not needs.broken
    assert any("raises on the CPU as well" in n for n in needs.notes) is not cpu


@pytest.mark.parametrize(("key", "runs"), [("CPU", False), ("MPS", True), ("CompositeExplicitAutograd", True)])
def test_an_operator_of_the_users_own_is_missing_where_its_kernel_is_for_the_cpu_alone(key: str, runs: bool) -> None:
    name = f"half_{key.lower()}"
    lib: Any = torch.library.Library("parity_tests", "FRAGMENT")  # type: ignore[no-untyped-call]  # as torch has it
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, lambda x: x / 2, "CPU")
    if key != "CPU":
        lib.impl(name, lambda x: x / 2, key)
    needs = parity.audit(lambda x: getattr(torch.ops.parity_tests, name)(x) + 1, torch.rand(2))
    assert needs.complete is runs
    assert needs.operators == (() if runs else (f"parity_tests::{name}",))


def test_what_the_cpu_refuses_as_well_ends_the_audit() -> None:
    def refused(x: Tensor) -> Tensor:
        if x.is_cpu:
            return x
        raise NotImplementedError("\"kernel\" not implemented for 'Half'")

    assert "not implemented for 'Half'" in parity.audit(refused, torch.rand(2)).broken


def test_what_the_model_holds_in_float64() -> None:
    needs = parity.audit(nn.Linear(2, 2).double(), torch.randn(1, 2, dtype=torch.float64))
    assert needs.held == {"float64": ("input", "weight", "bias")}
    assert not needs.complete


def test_complex128_is_refused_and_complex64_is_not() -> None:
    assert parity.audit(torch.fft.fft, torch.randn(4)).complete
    assert parity.audit(lambda x: x.to(torch.complex128).abs().float(), torch.randn(4)).dtypes[0] == "complex128"


def test_a_call_that_a_kernel_refuses() -> None:
    needs = parity.audit(nn.AdaptiveAvgPool2d(3), torch.randn(1, 1, 5, 5))
    assert needs.refusing == ("aten::_adaptive_avg_pool2d",)
    assert "MPS says: Adaptive pool MPS" in str(needs)
    assert parity.audit(nn.AdaptiveAvgPool2d(3), torch.randn(1, 1, 6, 6)).complete


def test_a_tensor_left_on_the_cpu() -> None:
    needs = parity.audit(lambda x: x + torch.arange(3.0), torch.randn(3))
    assert needs.mixed is not None
    assert "leaves a tensor on the CPU" in needs.headline
    assert not needs.complete


def test_lengths_that_torch_wants_on_the_cpu() -> None:
    def packed(x: Tensor, lengths: Tensor) -> Tensor:
        return nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True).data

    needs = parity.audit(packed, torch.randn(2, 3, 4), torch.tensor([3, 2]))
    assert "will not run on MPS, nor on any GPU: it takes to it what must lie on the CPU" in needs.headline
    assert "do: pack_padded_sequence takes lengths on the CPU alone" in str(needs)


class Unregistered(nn.Module):
    """A layer in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x: Tensor) -> Any:
        return self.layers[0](x)


@pytest.mark.parametrize(
    ("fn", "remedy"),
    [
        (Unregistered(), "is in a plain list, which torch does not look into, so it stays on the CPU"),
        (lambda x: x + torch.arange(3.0), "torch.arange at tests/unit/locating/test_auditing.py"),
    ],
    ids=["a layer in a list", "a tensor made inside"],
)
def test_what_to_do_about_a_tensor_left_on_the_cpu(fn: Callable[..., Any], remedy: str) -> None:
    """The advice of `assert_parity`, and no note about gradients that were never asked for."""
    needs = parity.audit(fn, torch.randn(3))
    assert remedy in needs.remedy
    assert f"    do: {needs.remedy}" in [*needs.lines()]
    assert not needs.notes


@pytest.mark.parametrize(
    ("fn", "advice"),
    [
        (lambda x: x.cuda(), "let it compute where its inputs lie"),
        (lambda x, y: x, "give the missing inputs as well"),
        (lambda x: torch.nn.Linear(3, 3)(x, efort="full"), "parity's own argument is called 'effort'"),
        (lambda x: torch.nn.Linear(3, 3)(x, mask=x), "give inputs that it takes there"),
        (lambda x: x.view(7), "give inputs that it takes there"),
    ],
    ids=["names a device", "lacks an input", "misspells a word of parity's", "gives too much", "takes another"],
)
def test_what_raises_on_the_cpu_gets_advice(fn: Callable[..., Any], advice: str) -> None:
    if torch.cuda.is_available() and "lie" in advice:
        pytest.skip("torch has a GPU here")
    with pytest.raises(UsageError, match=advice):
        parity.audit(fn, torch.randn(3))


def test_words_of_parity_are_those_of_assert_parity() -> None:
    signature = inspect.signature(parity.assert_parity)
    assert [n for n, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY] == [*KEYWORDS]


def test_always_on_the_cpu_is_no_lack() -> None:
    needs = parity.audit(lambda x: torch.linalg.svd(x)[1], torch.eye(3))
    assert needs.complete
    assert "aten::linalg_svd always on the CPU" in needs.headline


def test_the_table_of_another_torch() -> None:
    own = installed()
    without = {n: k - {"MPS"} for n, k in own.keys.items()}
    needs = parity.audit(lambda x: x.exp(), torch.randn(3), table=Table("2.12.0", {**own.keys, "exp.out": without["exp.out"]}))
    assert needs.operators == ("aten::exp.out",)
    assert needs.torch == "2.12.0"


def test_every_lack_that_is_planted_is_told() -> None:
    """Each operator of a model with a kernel is taken out of the table once; the audit names it alone."""
    own, net, x = installed(), nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Softmax(-1)), torch.randn(2, 4)
    seen = {n.operator.removeprefix("aten::") for n in parity.audit(net, x).needs if n.answer is Answer.KERNEL}
    planted = sorted(n for n in seen if not any(k.startswith("Composite") for k in own.keys[n]))
    assert len(planted) >= 6
    for name in planted:
        table = Table(own.torch, {**own.keys, name: frozenset({"CPU"})})
        assert parity.audit(net, x, table=table).operators == (f"aten::{name}",)


def test_known_bugs_are_matched_by_their_condition() -> None:
    faults = [b.fault for b in BUGS if b.fault.id == "pt-163597"]  # attention of few queries reads strided operands

    def turned(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2))

    (match,) = parity.audit(turned, torch.randn(1, 4, 3, 64), faults=faults).matches
    assert match.id == "pt-163597"
    assert match.place.function == "torch.nn.functional.scaled_dot_product_attention"
    assert not parity.audit(turned, torch.randn(1, 4, 3, 32), faults=faults).matches


def test_a_known_bug_does_nothing_here() -> None:
    def dies(call: Any) -> Any:
        raise AssertionError

    fault = Fault("planted", ("exp",), dies, lambda call: call.operands[0].numel() == 3)
    needs = parity.audit(lambda x: x.exp(), torch.randn(3), faults=[fault])
    assert needs.complete
    assert [m.id for m in needs.matches] == ["planted"]
    broken = Fault("broken", ("exp",), dies, lambda call: bool(call.kwargs["none"]))
    assert parity.audit(lambda x: x.exp(), torch.randn(3), faults=[broken]).complete


def kinds(needs: Needs) -> set[tuple[str, str, str, str]]:
    return {(n.operator, n.dtype, n.pass_, n.answer) for n in needs.needs}


@pytest.mark.parametrize("limit", [0, 50, auditing.LARGE])
def test_shapes_alone_need_the_same(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Recurrent(), torch.randn(2, 2, 8, 8)
    computed = parity.audit(net, x)
    monkeypatch.setattr(auditing, "LARGE", limit)
    by_shapes = parity.audit(net, x, shapes=True)
    assert kinds(by_shapes) == kinds(computed)
    assert by_shapes.complete
    lacks = parity.audit(lambda t: torch.special.log_ndtr(t).double(), torch.randn(3), backward=False, shapes=True)
    assert (lacks.operators, lacks.dtypes) == (("aten::special_log_ndtr.out",), ("float64",))


def test_other_simulated_devices_stay_as_they_are() -> None:
    faulty = Fault("wrong", ("exp",), lambda call: call.run() * 2)
    for _ in range(3):
        parity.audit(lambda x: x.exp(), torch.zeros(100_000), shapes=True)
        gc.collect()  # frees the seat of the audit
        x = torch.zeros(100_000)
        for device, value in ((resolve("sim:mps"), 1.0), (resolve("sim", (faulty,)), 2.0)):
            assert float(device.download(device.upload(x).exp()).max()) == value
    with pytest.raises(NotImplementedError, match="not currently implemented for the MPS device"):
        torch.heaviside(*(resolve("sim:mps").upload(torch.ones(2)) for _ in range(2)))


def test_a_model_without_memory_takes_none() -> None:
    """5 GB of weights, and as much of each gradient."""
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(36000, 36000), nn.ReLU())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    needs = parity.audit(net, torch.randn(2, 36000), shapes=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    assert needs.complete, needs
    assert "aten::linear_backward" in operators(needs, "backward")
    assert next(net.parameters()).is_meta


def test_nothing_to_audit() -> None:
    with pytest.raises(NothingCompared, match="no input is a tensor"):
        parity.audit(lambda: 1)
    with pytest.raises(UsageError, match="raises on the CPU"):
        parity.audit(nn.Linear(2, 2), torch.randn(3))


def test_the_callers_model_stays_as_it_is() -> None:
    net = nn.BatchNorm1d(2)
    parity.audit(net, torch.randn(3, 2))
    assert net.weight.device.type == "cpu"
    assert net.weight.grad is None
    assert int(net.num_batches_tracked or 0) == 0
