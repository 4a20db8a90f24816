"""Models as people write them: they agree in silence, a fault in them is found, and their mistakes get the right advice."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import parity
from parity.comparing import draws
from parity.comparing.comparison import ParityFailure, ParityWarning
from parity.core.errors import UsageError
from parity.devices import Call, Fault, resolve
from parity.devices.sim import honest
from parity.locating.asserting import assert_parity

HONEST = tuple(honest.FAULTS)


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Simulated devices need the backward pass on the calling thread."""
    torch.autograd.set_multithreading_enabled(False)
    torch.manual_seed(0)


def larger(op: str, factor: float = 1.01) -> Fault:
    """A kernel whose (first) result is too large."""

    def effect(call: Call) -> Any:
        made = call.run()
        return (made[0] * factor, *made[1:]) if isinstance(made, tuple) else made * factor

    return Fault(f"larger-{op}", (op,), effect)


def silently(fn: Callable[..., Any], *inputs: Any, device: Any = "sim", backward: bool = True) -> Any:
    """The comparison of what must agree without a warning of parity."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ParityWarning)
        return assert_parity(fn, *inputs, device=device, backward=backward)


def advised(fn: Callable[..., Any], *inputs: Any) -> str:
    """The last line of what a user reads of a function that the device cannot run."""
    with pytest.raises(ParityFailure) as caught:
        assert_parity(fn, *inputs, device="sim:mps")
    return str(caught.value).splitlines()[-1]


# -------------------------------------------------------------------------------------------------------- random numbers


class Trained(nn.Module):
    """Drops out, also in its attention, and drops a layer at random by torch, Python and numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, length, 8)."""
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)
        x = self.drop(F.gelu(self.one(x)))
        if torch.rand(()) < 0.9 and random.random() < 0.95 and np.random.rand() < 0.95:
            x = self.two(x) + torch.randn_like(x) * 0.1
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("faults", [(), HONEST])
def test_a_model_that_drops_out_agrees_as_it_trains(dtype: torch.dtype, faults: tuple[Fault, ...]) -> None:
    """An honest device has another stream of random numbers, and none of it is used."""
    found = silently(Trained().to(dtype), torch.randn(2, 3, 8, dtype=dtype), device=resolve("sim", faults))
    assert "note: random numbers (dropout) were drawn on the CPU and handed to both sides" in str(found)
    assert len(found.verdicts) == 5


def test_attention_that_drops_out_is_computed_by_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's fused kernels draw inside. Attention that drops nothing keeps its kernel."""
    asked: list[Any] = []

    def told(kernel: Any) -> Any:
        asked.append(kernel)
        return sdpa_kernel(kernel)

    monkeypatch.setattr(draws, "sdpa_kernel", told)
    x = torch.randn(1, 2, 4, 8)
    with draws.SharedRandom() as handed:
        F.scaled_dot_product_attention(x, x, x)
        assert not asked
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        F.scaled_dot_product_attention(x, x, x, None, 0.5)
    assert asked == [SDPBackend.MATH] * 2
    assert (handed.draws, handed.left) == (2, set())
    F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    assert len(asked) == 2


def test_a_fault_in_a_model_that_drops_out_is_found_and_located() -> None:
    device = resolve("sim", (larger("gelu_backward"),))
    with pytest.raises(ParityFailure, match="diverges from the CPU first in Trained, backward: aten::gelu_backward"):
        assert_parity(Trained(), torch.randn(2, 3, 8), device=device)
    assert parity.locate(Trained(), torch.randn(2, 3, 8), device="sim").agrees


class Dropping(nn.Module):
    """Draws a number of no given dtype before it drops out, as Whisper does to drop a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.drop, self.two = nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.drop(F.gelu(self.one(x)))) if torch.rand(()) < 2 else x


def test_float64_drops_what_the_other_sides_drop() -> None:
    """Otherwise the truth is that of another network, and the CPU lies as far from it as the device."""
    found = silently(Dropping(), torch.randn(64, 8), device=resolve("sim", (larger("gelu", 1 + 2.0**-22),)))
    shares = [v.measure.reference_share for _, v in found.verdicts if v.measure is not None]
    assert len(shares) == 5
    assert all((share or 0.0) < 1.0 for share in shares)


def test_a_function_that_draws_more_in_float64_is_judged_by_the_cpu() -> None:
    """What it computes there is another function."""

    def drawing(x: Tensor) -> Tensor:
        return x.exp() * torch.rand(8 * x.element_size(), device=x.device)[: len(x)]

    x = torch.randn(32)
    found = assert_parity(drawing, x, device=resolve("sim", (larger("exp", 1 + 2.0**-22),)), backward=False)
    assert "note: judged against the reference: it does not run in float64 (RuntimeError: it draws other" in str(found)
    with pytest.raises(ParityFailure, match="drift in out"):
        assert_parity(drawing, x, device=resolve("sim", (larger("exp", 1.001),)), backward=False)


def test_the_streams_of_the_caller_go_on_as_before() -> None:
    model = Trained()

    def states() -> list[Any]:
        return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]

    before = states()
    silently(model, torch.ones(2, 3, 8))
    assert states() == before


def test_numbers_that_cannot_be_handed_out_are_refused_by_the_name_of_their_operator() -> None:
    text = r"draws random numbers in rrelu_with_noise on the CPU, which no two devices share; call .eval\(\), or draw"
    with pytest.raises(UsageError, match=text):
        assert_parity(nn.RReLU(), torch.randn(64), device="sim")

    def twice(x: Tensor) -> Tensor:
        y = F.dropout(x)
        return y if x.is_cpu else F.dropout(y)

    with pytest.raises(UsageError, match="makes 1 random draw on the CPU and 2 on sim"):
        assert_parity(twice, torch.randn(64), device="sim")


GENERATOR = torch.Generator().manual_seed(3)


def of_a_global(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape, generator=GENERATOR).to(x.device)


def of_its_own(x: Tensor) -> Tensor:
    """Two equal runs on the CPU give the same; a device has another stream for the same seed."""
    g = torch.Generator(x.device).manual_seed(1)
    return x.exp() + torch.randn(x.shape, generator=g, device=x.device)


def of_an_argument(x: Tensor, g: torch.Generator) -> Tensor:
    return x * torch.empty(x.shape).uniform_(generator=g).to(x.device)


@pytest.mark.parametrize(
    ("fn", "more"), [(of_a_global, ()), (of_its_own, ()), (of_an_argument, (torch.Generator().manual_seed(1),))]
)
def test_generators_of_the_users_own_are_drawn_on_the_cpu(fn: Callable[..., Any], more: tuple[Any, ...]) -> None:
    """HONEST draws other numbers than the CPU."""
    x = torch.rand(64)
    assert assert_parity(fn, x, *more, device=resolve("sim", HONEST)).agrees
    assert parity.locate(fn, x, *more, device=resolve("sim", HONEST)).agrees
    faulty = Fault("f", ("mul", "exp"), lambda call: call.run() * 1.01)
    with pytest.raises(ParityFailure):
        assert_parity(fn, x, *more, device=resolve("sim", (faulty,)))


# ---------------------------------------------------------------------------------------------------------------- autocast


def under_autocast(model: nn.Module, x: Tensor) -> Tensor:
    """A loss that the CPU's autocast computes in float32, and MPS's in half, from logits in half."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(x), torch.arange(8, device=x.device) % 4)


@pytest.mark.parametrize("faults", [(), HONEST])
def test_what_a_device_casts_by_its_own_list_is_no_error(faults: tuple[Fault, ...]) -> None:
    layers = nn.Linear(16, 32, bias=False), nn.GELU(), nn.Linear(32, 4, bias=False)
    # Logits near zero: of the loss, log 4, nothing but the rounding of the logarithm differs.
    model, x = nn.Sequential(*layers), torch.randn(8, 16) * 0.01
    device = resolve("sim", faults)
    # Without gradients: the CPU's own are up to 1.2 budgets off here, which is another matter.
    silently(under_autocast, model, x, device=device, backward=False)
    assert parity.locate(under_autocast, model, x, device=device, backward=False).agrees


def normalized(model: nn.Module, x: Tensor) -> Any:
    """CLIP's embedding: autocast computes the norm in float32 on MPS, and in half on the CPU."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = model(x)
        return y / y.norm(dim=-1, keepdim=True)


def test_a_result_has_another_dtype_by_the_autocast_of_the_device() -> None:
    model, x = nn.Linear(16, 8), torch.randn(4, 16)
    found = silently(normalized, model, x)
    assert "note: out is float32 on sim and bfloat16 on the CPU, whose autocast casts otherwise" in str(found)
    with pytest.raises(ParityFailure, match="linalg_vector_norm"):
        assert_parity(normalized, model, x, device=resolve("sim", (larger("linalg_vector_norm", 1.1),)))


def test_a_fault_under_autocast_is_found() -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(8, 16) * 3
    for op in ("_log_softmax", "gelu", "gelu_backward"):
        with pytest.raises(ParityFailure, match=f"aten::{op} "):
            assert_parity(under_autocast, model, x, device=resolve("sim", (larger(op, 1.1),)))


# ------------------------------------------------------------------------------------------------------ results and modules


class Cache:
    """What a language model keeps of its past: tensors among settings."""

    def __init__(self, keys: Tensor) -> None:
        self.keys, self.dtype, self.device, self.name, self.seen = keys, keys.dtype, keys.device, "layer 0", keys.shape[0]


@dataclass
class Output:
    """A result as transformers has it."""

    logits: Tensor
    cache: Cache
    indices: Tensor
    loss: Tensor | None = None
    reason: str = "length"


class Language(nn.Module):
    """Returns a dataclass with a cache, integers and nothing, and keeps its last activation."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
        self.head.weight = self.words.weight
        self.last: Tensor | None = None

    def forward(self, tokens: Tensor) -> Any:
        """tokens: (batch, length)."""
        hidden = self.words(tokens)
        self.last = F.gelu(hidden)
        logits = self.head(self.last)
        return Output(logits, Cache(hidden), logits.argmax(-1))


def test_a_cache_in_a_dataclass_is_compared_in_silence() -> None:
    found = silently(Language(), torch.randint(9, (2, 3)))
    assert [n for n, _ in found.verdicts] == [
        "out.logits",
        "out.cache.keys",
        "out.cache.seen",
        "out.indices",
        "grad[words.weight]",
    ]


def test_a_model_that_kept_an_activation_of_an_earlier_run_is_copied() -> None:
    model, tokens = Language(), torch.randint(9, (2, 3))
    model(tokens)
    silently(model, tokens)
    assert model.last is not None
    assert model.last.requires_grad  # the caller's own is as it was


def traced(module: nn.Module) -> Any:
    """A module that torch.jit.trace made."""
    trace: Any = torch.jit.trace
    return trace(module, torch.ones(3, 4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", [torch.jit.script, traced])
def test_a_scripted_module_goes_to_the_device(make: Callable[[Any], Any]) -> None:
    """torch copies it without parity's placed tensors."""
    module = make(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.BatchNorm1d(4)))
    assert len(silently(module, torch.randn(3, 4)).verdicts) == 8
    with pytest.raises(ParityFailure, match="gelu_backward"):
        assert_parity(module, torch.randn(3, 4), device=resolve("sim", (larger("gelu_backward"),)))


# ------------------------------------------------------------------------------------------------------------ the mistakes


class Mistaken(nn.Module):
    """A linear layer, and a mistake that is made after it."""

    def __init__(self, then: Callable[[Any, Tensor], Any], **attributes: Any) -> None:
        super().__init__()
        self.inner, self.then = nn.Linear(4, 4), then
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        """x: (3, 4)."""
        return self.then(self, self.inner(x))


def made_on_the_cpu(m: Any, x: Tensor) -> Tensor:
    """A mask that is made on the CPU."""
    return x * torch.ones(3, 3).tril()[0, 0].expand(4)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (Mistaken(made_on_the_cpu), "in made_on_the_cpu, makes a tensor on the CPU: give it the device of an input"),
        (Mistaken(made_on_the_cpu, table=torch.ones(9)), "note: torch.ones at "),
        (Mistaken(lambda m, x: x * m.scale, scale=torch.ones(4)), "register it (self.register_buffer) or pass it in"),
        (Mistaken(lambda m, x: m.more[0](x), more=[nn.Linear(4, 4)]), "is not trained: make 'more' an nn.ModuleList"),
        (Mistaken(lambda m, x: m.more["a"](x), more={"a": nn.Linear(4, 4)}), "is not trained: make 'more' an nn.ModuleDict"),
        (Mistaken(lambda m, x: x * m.more[0], more=[nn.Parameter(torch.ones(4))]), "make 'more' an nn.ParameterList"),
        (Mistaken(lambda m, x: torch.from_numpy(x.detach().numpy())), "call .cpu() before .numpy(), or compute with torch"),
    ],
)  # fmt: skip
def test_a_tensor_on_the_wrong_side_gets_the_advice_that_helps(model: nn.Module, advice: str) -> None:
    assert advice in advised(model, torch.randn(3, 4))


def test_errors_of_the_users_own_code_say_what_to_do() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(UsageError, match=r"moves its parameter 'inner.weight' to cpu while it runs, .*: take the .to\(\)"):
        assert_parity(Mistaken(lambda m, y: m.to("cpu")(y.cpu()) if not y.is_cpu else y.exp()), x, device="sim")
    with pytest.raises(UsageError, match="parameter 'weight' is on the meta device and has no numbers; load or initialize"):
        assert_parity(nn.Linear(4, 4, device="meta"), x, device="sim")
    with pytest.raises(UsageError, match=r"raises on the CPU, .* let it compute where its inputs lie \(x.device\)"):
        assert_parity(Mistaken(lambda m, y: y.cuda()), x, device="sim")

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss = torch.sum(model(x))
        torch.autograd.backward(loss)
        return loss

    with pytest.warns(ParityWarning, match=r"no gradients: it has run its own backward pass; let it return the loss without"):
        assert_parity(step, nn.Linear(4, 2), x, device="sim")


def test_locate_gives_the_same_advice() -> None:
    x = torch.randn(3, 4)
    assert "in made_on_the_cpu, makes a tensor on the CPU" in str(parity.locate(Mistaken(made_on_the_cpu), x, device="sim"))
    with pytest.raises(UsageError, match=r"moves its parameter 'inner.weight' to cpu while it runs"):
        parity.locate(Mistaken(lambda m, y: m.to("cpu")(y.cpu()) if not y.is_cpu else y.exp()), x, device="sim")


def test_the_next_command_names_no_function_that_did_not_raise() -> None:
    """.double() is what MPS refuses, not the layer before it."""
    assert "next:" not in advised(Mistaken(lambda m, x: x.double()), torch.randn(3, 4))
