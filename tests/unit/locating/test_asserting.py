"""People's own functions and modules: healthy ones pass and stay untouched, planted faults are named."""

from __future__ import annotations

import itertools
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parity.comparing.comparison import Comparison, ParityFailure, ParityWarning
from parity.comparing.pair import compare
from parity.core.errors import NothingCompared, UsageError
from parity.core.results import Status
from parity.devices import Call, Device, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.locating.asserting import assert_parity, locate


def planted(*ops: str, effect: Any, **more: Any) -> Device:
    return resolve("sim", (Fault("f", ops, effect, **more),))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16))


def names(c: Comparison | ParityFailure) -> list[str]:
    return [n for n, _ in c.verdicts]


def failure(fn: Any, *inputs: Any, **options: Any) -> ParityFailure:
    with pytest.raises(ParityFailure) as caught:
        assert_parity(fn, *inputs, **options)
    return caught.value


# -------------------------------------------------------------------------------------------------------------- healthy


def test_a_healthy_module_agrees_in_output_and_every_gradient() -> None:
    got = assert_parity(net(), normal(5, 8).requires_grad_(), device="sim")
    assert names(got) == ["out", "grad[input]", "grad[0.weight]", "grad[0.bias]", "grad[2.weight]", "grad[2.bias]"]
    assert all(v.status is Status.AGREE for _, v in got.verdicts)
    assert got.share <= 1.0
    assert str(got) == "OK  Sequential float32 on sim: 6 of 6 tensors agree; equal to the CPU's"


def test_a_convolutional_module_in_training_compares_the_statistics_that_it_writes() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(64, 2))
    got = assert_parity(model, normal(2, 3, 6, 6), device="sim")
    assert {"buffer[1.running_mean]", "buffer[1.running_var]", "buffer[1.num_batches_tracked]"} <= set(names(got))


def test_a_gradient_that_cancels_to_zero_is_measured_by_its_summands() -> None:
    """The bias before batch_norm has no effect, so its gradient is nothing but rounding on every device."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    device = planted("native_batch_norm_backward", effect=lambda c: tuple(t * (1 + 2.0**-23) for t in c.run()))
    verdicts = dict(assert_parity(model, normal(2, 3, 6, 6), device=device).verdicts)
    assert verdicts["grad[0.bias]"].measure is not None
    assert verdicts["grad[0.bias]"].measure.measured


def test_half_types_and_recurrent_weights_travel() -> None:
    assert_parity(net().half(), normal(5, 8).half(), device="sim")
    assert_parity(nn.GRU(3, 4), normal(2, 1, 3), device="sim")


def test_a_plain_function_compares_what_requires_a_gradient_and_says_where_nothing_does() -> None:
    x = normal(4, 4)
    got = assert_parity(torch.tanh, x, device="sim")
    assert names(got) == ["out"]
    assert got.notes == ("no gradients: no output depends on an input or parameter that requires one",)
    assert names(assert_parity(torch.tanh, x.requires_grad_(), device="sim")) == ["out", "grad[input]"]
    assert names(assert_parity(torch.tanh, x, device="sim", backward=False)) == ["out"]


def test_nested_inputs_and_outputs_are_named_by_their_path() -> None:
    def f(batch: dict[str, Any], *, scale: Tensor) -> dict[str, Any]:
        return {"y": batch["x"] @ batch["w"][0], "n": float((scale * 2).sum()), "skip": None}

    batch = {"x": normal(3, 4).requires_grad_(), "w": [normal(4, 2, seed=1)]}
    got = assert_parity(f, batch, scale=normal(3, seed=2), device="sim")
    assert names(got) == ["out['y']", "out['n']", "grad[batch['x']]"]


def test_tied_parameters_stay_tied_and_give_one_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert names(assert_parity(model, normal(2, 4), device="sim")) == ["out", "grad[0.weight]"]


def test_a_method_of_a_module_runs_on_the_devices_copy() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def loss(self, x: Tensor) -> Tensor:
            return (self.scale * x).sum()

    got = assert_parity(Net().loss, normal(3), device="sim")
    assert names(got) == ["out", "grad[scale]"]
    assert str(got).startswith("OK  Net.loss float32 on sim")


def test_an_input_that_is_written_is_compared() -> None:
    x = normal(4)
    kept = x.clone()
    got = assert_parity(lambda x: x.mul_(2), x, device="sim")
    assert names(got) == ["out", "after[x]"]
    assert torch.equal(x, kept)
    bad = failure(lambda x: x.mul_(2), x, device=planted("mul", effect=lambda c: c.run().neg_()))
    assert [n for n, v in bad.verdicts if v.status is Status.WRONG] == ["out", "after[x]"]


def test_a_strided_input_keeps_its_layout_on_the_device() -> None:
    seen: list[tuple[Any, ...]] = []

    def watch(c: Call) -> Any:
        seen.append((c.operands[0].stride(), c.operands[0].storage_offset()))
        return c.run()

    x = normal(6, 10).t()[2:8:2]
    assert_parity(torch.exp, x, device=planted("exp", effect=watch))
    assert set(seen) == {((2, 10), 2)}
    assert (x.stride(), x.storage_offset()) == ((2, 10), 2)


def test_lazy_bits_and_expanded_inputs_travel() -> None:
    z = torch.complex(normal(3, 3), normal(3, 3, seed=1))
    assert_parity(lambda a, b: a.conj() * b, z.conj().requires_grad_(), z.conj().imag, device="sim")
    assert_parity(torch.sum, normal(1, 3).expand(4, 3), device="sim")
    assert_parity(torch.sum, normal(0, 3), device="sim")


def test_nothing_of_the_callers_changes() -> None:
    model, x = net().train(), normal(5, 8).requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None
    before = [p.detach().clone() for p in model.parameters()], x.grad.clone(), torch.get_rng_state()
    grads = [p.grad for p in model.parameters()]
    assert_parity(model, x, device="sim")
    assert all(torch.equal(a, b) for a, b in zip(before[0], model.parameters()))
    assert all(a is b for a, b in zip(grads, (p.grad for p in model.parameters())))
    assert torch.equal(x.grad, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert model.training
    assert {p.device.type for p in model.parameters()} == {"cpu"}


# ------------------------------------------------------------------------------------------------------------- findings


def test_a_wrong_weight_gradient_is_named_and_told_in_full() -> None:
    def off(c: Call) -> Any:
        of_input, of_weight, of_bias = c.run()
        return of_input, of_weight * 1.01, of_bias

    bad = failure(net(), normal(5, 8), device=planted("linear_backward", effect=off))
    assert [n for n, v in bad.verdicts if v.status.is_finding] == ["grad[0.weight]"]
    first, *lines = str(bad).splitlines()
    assert first.startswith(
        "Sequential float32 on sim diverges from the CPU first in 0 (Linear), backward: aten::linear_backward "
    )
    assert "; of torch.nn.functional.linear at " in first
    assert lines[0].startswith("Sequential float32 on sim: ")
    assert " in grad[0.weight], " in lines[0]
    assert lines[0].endswith("times the budget (tolerances/default.toml: composite float32 backward)")
    assert lines[1].startswith("  worst at [")
    assert "reference's own share" in lines[1]
    assert lines[2].endswith(" of 128 elements are outside")
    assert lines[3].startswith("Sequential float32 on sim: 4 of 5 tensors agree; equal to the CPU's")


def test_a_wrong_row_of_a_product_is_found_in_the_output() -> None:
    def last_row(c: Call) -> Any:
        result = c.run()
        result[-1] = 0
        return result

    bad = failure(torch.mm, normal(3, 4), normal(4, 2, seed=1), device=planted("mm", effect=last_row))
    (name, verdict), *_ = bad.verdicts
    assert (name, verdict.status, verdict.measure and verdict.measure.index[0]) == ("out", Status.WRONG, 2)


def test_a_refusal_and_an_error_of_the_device_are_findings() -> None:
    def refuse(c: Call) -> Any:
        raise RuntimeError("kaput")

    bad = failure(torch.exp, normal(3), device=planted("exp", effect=refuse))
    assert str(bad).splitlines()[0] == "exp float32 on sim: error: RuntimeError in run: kaput"
    bad = failure(lambda x: x.to(torch.float64), normal(3), device="sim:mps")
    assert bad.verdicts[0][1].status is Status.UNSUPPORTED


def test_atol_only_forgives_what_lies_within_it() -> None:
    device = planted("exp", effect=lambda c: c.run() + 1e-3)
    x = normal(5).clamp(-1, 1)
    failure(torch.exp, x, device=device)
    failure(torch.exp, x, device=device, atol=0.0)
    assert assert_parity(torch.exp, x, device=device, atol=2e-3).verdicts[0][1].reason == "within atol=0.002"
    nan = planted("exp", effect=lambda c: c.run() * float("nan"))
    failure(torch.exp, x, device=nan, atol=1e9)


def test_a_function_that_refuses_float64_is_judged_against_the_reference() -> None:
    def picky(x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise TypeError("no doubles here")
        return (x - x.roll(1)).exp()

    healthy = planted("exp", effect=lambda c: c.run() * (1 + 2.0**-23))
    said = "judged against the reference: it does not run in float64 (TypeError: no doubles here)"
    assert said in assert_parity(picky, normal(9), device=healthy).notes
    bad = failure(picky, normal(9), device=planted("exp", effect=lambda c: c.run() * 1.01))
    assert said in bad.comparison.notes


def sparse_softmax(x: Tensor) -> Tensor:
    """entmax15, as its package has it: about forty operators, each of which rounds to a half type."""
    x = (x - x.max(-1, keepdim=True).values) / 2
    by = x.sort(-1, descending=True).values
    rho = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    mean, square = by.cumsum(-1) / rho, (by**2).cumsum(-1) / rho
    tau = mean - ((1 - rho * (square - mean**2)) / rho).clamp(min=0).sqrt()
    least = tau.gather(-1, (tau <= by).sum(-1, keepdim=True) - 1)
    return (x - least).clamp(min=0) ** 2


def test_a_fault_that_the_roundings_of_half_types_hide_is_told_as_locate_tells_it() -> None:
    """3 % in one of forty operators are within what these round together, but not within what it rounds itself."""
    x = normal(4, 10, dtype=torch.bfloat16).requires_grad_()
    device = planted("pow", effect=lambda c: c.run() * 1.03, level="kernel")
    found = failure(sparse_softmax, x, device=device)
    assert "aten::pow drift" in found.comparison.where
    assert [n for n, v in found.comparison.findings] == [""]
    assert "the results are inside, but one of its operators is not" in found.comparison.findings[0][1].reason
    assert not assert_parity(sparse_softmax, x, device=resolve("sim", tuple(HONEST))).findings
    assert not assert_parity(sparse_softmax, x, device=device, atol=1.0).findings  # as near as the caller wants it


# ----------------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_compared_is_an_error_of_the_user() -> None:
    with pytest.raises(NothingCompared, match="no tensor with elements came out"):
        assert_parity(lambda x: None, normal(3), device="sim")
    with pytest.raises(NothingCompared):
        assert_parity(lambda x: x, normal(0), device="sim")
    with pytest.raises(UsageError, match="mm raises on the CPU, so there is nothing to compare with: RuntimeError: "):
        assert_parity(torch.mm, normal(2, 3), normal(2, 3), device="sim")
    with pytest.raises(UsageError, match="atol is -1; give a number that is 0 or more"):
        assert_parity(torch.exp, normal(3), device="sim", atol=-1)
    with pytest.raises(UsageError, match="the function is 3; give a function or "):
        assert_parity(3, normal(3), device="sim")  # type: ignore[arg-type]  # the mistake that is tested
    with pytest.raises(UsageError, match="the device is 3; give its name, like 'mps' or 'cuda:1', or a torch"):
        assert_parity(torch.exp, normal(3), device=3)  # type: ignore[arg-type]  # the mistake that is tested


def test_what_never_reaches_the_device_is_no_agreement() -> None:
    with pytest.raises(NothingCompared, match="no input is a tensor, so nothing would reach sim; give it tensors"):
        assert_parity(lambda n: torch.ones(n), 3, device="sim")
    with pytest.raises(NothingCompared, match=r"no operator ran on sim; on the CPU ran aten::ones; let the function compute"):
        assert_parity(lambda x: torch.ones(3), normal(3), device="sim")
    assert not assert_parity(torch.exp, normal(3, seed=1).requires_grad_(), device="sim").notes


def test_a_device_may_be_named_as_torch_names_it() -> None:
    sim = resolve("sim")
    for device in ("sim", sim, sim.torch_device, torch.device("cpu")):
        if device == torch.device("cpu"):
            with pytest.warns(ParityWarning, match="the device is the CPU itself, so this says nothing about any other"):
                assert not assert_parity(torch.exp, normal(3), device=device).findings
        else:
            assert not assert_parity(torch.exp, normal(3), device=device).findings
        assert not compare(torch.exp, normal(3).exp(), normal(3).exp(), normal(3), device=device).findings


def test_a_norm_without_an_epsilon_takes_that_of_its_inputs_dtype() -> None:
    """Also in the float64 truth, where another one would change small numbers by more than any rounding."""
    x = (normal(2, 64) / 64).requires_grad_()
    for size in (1.0, 0.01):
        assert not assert_parity(nn.RMSNorm(64), (x * size).detach().requires_grad_(), device=resolve("sim", HONEST)).findings
    with pytest.raises(ParityFailure):  # a device with another epsilon
        assert_parity(lambda t: nn.functional.rms_norm(t, (64,), eps=None if t.is_cpu else 1e-16), x, device="sim")


# --------------------------------------------------------------------------------------------------- draws and roundings


def unsteady(size: float) -> Any:
    """A function of which every second run in float32 is off by this, as where threads add in another order."""
    turns = itertools.cycle((0, 1))
    return lambda x: x * (1 + size * next(turns) * (x.dtype is torch.float32))


def test_a_function_whose_equal_runs_differ_by_roundings_draws_nothing_and_its_spread_is_allowed() -> None:
    """What is farther off is found, and what differs by more than roundings compares with nothing."""
    fn = unsteady(3e-4)
    for seed in range(4):
        assert assert_parity(fn, normal(5, seed=seed), device="sim").notes[0].startswith("no gradients")
    assert failure(fn, normal(5), device=planted("mul", effect=lambda c: c.run() * 1.1)).comparison.findings
    with pytest.raises(UsageError, match=r"two equal runs of .* on the CPU differ by more than rounding"):
        assert_parity(unsteady(0.1), normal(5), device="sim")


def test_what_draws_is_seen_by_its_calls() -> None:
    """Of torch, where the generator is put back afterwards too, of Python and of numpy; with roundings, too."""

    def forked(x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return x * torch.rand(())

    steps = (forked, lambda x: x * random.random(), lambda x: x * np.random.rand(), nn.Dropout())
    for fn in (*steps, nn.Sequential(nn.Dropout(), Unsteady())):
        assert "random numbers (dropout) were drawn on the CPU" in str(assert_parity(fn, normal(64), device="sim"))


class Unsteady(nn.Module):
    """`unsteady` as a module."""

    fn = staticmethod(unsteady(1e-6))

    def forward(self, x: Tensor) -> Any:
        return self.fn(x)


def test_inference_mode_says_that_gradients_were_not_compared() -> None:
    """Aloud, where something requires one; under no_grad they are compared."""
    wrong = planted("sinh", effect=lambda c: c.run_with_gradient(lambda g: g * 1.5), level="function")
    x = normal(5).requires_grad_()
    with torch.no_grad():
        assert names(failure(torch.sinh, x, device=wrong)) == ["out", "grad[input]"]
    with torch.inference_mode():
        with pytest.warns(ParityWarning, match=r"no gradients were compared: the call is under torch.inference_mode\(\)"):
            assert_parity(torch.sinh, x, device=wrong)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_parity(torch.sinh, x, device=wrong, backward=False)
            assert_parity(torch.sinh, x.detach(), device=wrong)


def test_a_difference_of_powers_moves_as_far_as_the_table_allows_powers_to_be_off() -> None:
    """The colour spaces of kornia: 17 ULP of either cube root are more than sixteen roundoffs."""

    def chroma(x: Tensor) -> Tensor:
        return 500.0 * (x[0] ** (1 / 3) - x[1] ** (1 / 3))

    x = 1.0 + 0.1 * torch.rand(2, 300, generator=torch.Generator().manual_seed(5))
    assert not assert_parity(chroma, x, device=resolve("sim", tuple(HONEST))).findings
    wrong = planted("pow", effect=lambda c: c.run() * (1 + 2.0**-16), level="kernel")  # of both, so that most cancels
    assert failure(chroma, x * torch.tensor([[1.0], [0.5]]), device=wrong).comparison.findings


def test_an_honest_device_outside_of_an_estimate_by_a_hair_agrees_where_every_operator_does() -> None:
    """One of 4,096 elements is at 1.04 budgets: many roundings to bfloat16 before a normalization are only estimated."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(), nn.Softplus(), nn.BatchNorm1d(64)).to(torch.bfloat16)
    x = (torch.randn(33, 64) * 0.01).to(torch.bfloat16).requires_grad_()
    honest = resolve("sim", tuple(HONEST))
    with pytest.warns(ParityWarning, match="1.04 times its budget off, an estimate, and each operator by itself agrees"):
        found = assert_parity(model, x, device=honest)
    assert "4,095 of 4,096 elements judged" in str(found)
    assert locate(model, x, device=honest).agrees
    wrong = Fault("f", ("softplus",), lambda c: c.run() * 1.02, level="kernel")
    assert "aten::softplus" in failure(model, x, device=resolve("sim", (wrong, *HONEST))).comparison.where
