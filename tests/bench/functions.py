"""What `assert_parity` says of people's functions with one faulty kernel: `python -m tests.bench networks functions`.

Each scenario is a function or model as people write it, with the kernel that is made wrong and how. It must agree on the
healthy simulated device and on the honest one (`sim:honest`), and fail with the fault. `--models N` asks N small random
models on the honest device as well. The exit code is 1 where anything is otherwise than it should be.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import parity
from parity.devices import Call, Device, Fault, resolve
from parity.devices.sim import honest

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """make: the function and its inputs, made anew after torch.manual_seed(0). ops: the kernels that are wrong, which then give
    `factor` times their first result."""

    name: str
    make: Callable[[], Made]
    ops: tuple[str, ...]
    factor: float


def scaled(ops: tuple[str, ...], factor: float) -> Fault:
    """Kernels whose first result is off by a factor."""

    def effect(call: Call) -> Any:
        made = call.run()
        if isinstance(made, tuple):
            return (made[0] * factor, *made[1:])
        return made * factor

    return Fault("scaled", ops=ops, effect=effect, level="kernel")


# ------------------------------------------------------------------------------------------------------------ the models


def input_(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def gelu(dtype: torch.dtype, layers: int = 1, width: int = 32) -> Callable[[], Made]:
    def make() -> Made:
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(width, width), nn.GELU()]
        return nn.Sequential(*parts, nn.Linear(width, width)).to(dtype), (input_(16, width, dtype=dtype),)

    return make


class Block(nn.Module):
    """A layer of a transformer as Hugging Face writes BERT's: attention in plain operators, and a mask that is added."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, s, w = x.shape
        q, k, v = (f(x).view(n, s, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.mT / (w // self.heads) ** 0.5
        scores = scores if mask is None else scores + mask
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, s, w)
        x = self.one(x + self.dense(attended))
        made: Tensor = self.two(x + self.down(F.gelu(self.up(x))))
        return made


class Bert(nn.Module):
    """Embeddings and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norm, self.layers = nn.LayerNorm(32), nn.ModuleList([Block(), Block()])

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x: Tensor = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            x = layer(x, mask)
        return x


def bert(dtype: torch.dtype) -> Callable[[], Made]:
    return lambda: (Bert().to(dtype), (torch.randint(50, (2, 12)),))


def masked(fill: str, dtype: torch.dtype = torch.float32) -> Callable[[], Made]:
    """Hugging Face's eager path: finfo.min where a token is not to be seen."""

    def make() -> Made:
        value = torch.finfo(dtype).min if fill == "min" else float("-inf")
        mask = torch.zeros(2, 1, 12, 12, dtype=dtype)
        mask[:, :, :, 9:] = value
        return Block().to(dtype), (input_(2, 12, 32, dtype=dtype), mask)

    return make


def autocast(dtype: torch.dtype) -> Callable[[], Made]:
    def make() -> Made:
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))

        def step(model: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, dtype=dtype):
                return F.cross_entropy(model(x).float(), torch.arange(16, device=x.device) % 8)

        return step, (model, input_(16, 32))

    return make


def convolutions(dtype: torch.dtype) -> Callable[[], Made]:
    def make() -> Made:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        )  # fmt: skip
        return model.to(dtype), (input_(4, 3, 12, 12, dtype=dtype),)

    return make


def spectral() -> Made:
    """A filter in the domain of frequencies; a complex result next to a real one."""
    weight = torch.randn(8, 17, dtype=torch.complex64, requires_grad=True)

    def filtered(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.fft.rfft(x) * weight
        return found, torch.fft.irfft(found)

    return filtered, (input_(8, 32), weight)


def complex_exp() -> Made:
    return torch.exp, (torch.randn(64, dtype=torch.complex64, requires_grad=True),)


def recurrent(dtype: torch.dtype) -> Callable[[], Made]:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.back = nn.Linear(16, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros(x.shape[1], 32, dtype=x.dtype, device=x.device)
            for step in x:
                h = torch.tanh(self.into(step) + self.back(h))
            return h

    return lambda: (Cells().to(dtype), (input_(6, 4, 16, dtype=dtype),))


def bag() -> Made:
    return nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 4)), (torch.randint(30, (8, 5)),)


def losses(dtype: torch.dtype) -> Callable[[], Made]:
    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(x, -1), target)

    return lambda: (loss, (input_(64, 10, dtype=dtype), torch.randint(10, (64,))))


def standardized(dtype: torch.dtype) -> Callable[[], Made]:
    def f(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)

    return lambda: (f, (input_(16, 48, dtype=dtype),))


def gated(dtype: torch.dtype) -> Callable[[], Made]:
    """Llama's feed-forward part behind its norm."""

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(32)
            self.gate, self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False), nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            made: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
            return made

    return lambda: (Gate().to(dtype), (input_(8, 32, dtype=dtype),))


HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
SCENARIOS = (
    Scenario("Linear-GELU-Linear float16, GELU doubled", gelu(HALF), ("gelu",), 2.0),
    Scenario("BERT float16, layer_norm negated", bert(HALF), ("native_layer_norm",), -1.0),
    Scenario("attention float32, mask of finfo.min, softmax halved", masked("min"), ("_softmax",), 0.5),
    Scenario("attention float32, mask of -inf, softmax halved", masked("inf"), ("_softmax",), 0.5),
    Scenario("attention float16, mask of finfo.min, softmax halved", masked("min", HALF), ("_softmax",), 0.5),
    Scenario("GELU bfloat16, 1.2 times too large", gelu(BRAIN), ("gelu",), 1.2),
    Scenario("autocast bfloat16, GELU 1.1 times too large", autocast(BRAIN), ("gelu",), 1.1),
    Scenario("autocast bfloat16, linear 1.1 times too large", autocast(BRAIN), ("addmm", "linear"), 1.1),
    Scenario("complex exp, 1 % too large", complex_exp, ("exp",), 1.01),
    Scenario("ten layers bfloat16, GELU 5 % too large", gelu(BRAIN, 10), ("gelu",), 1.05),
    Scenario("ten layers float16, GELU 5 % too large", gelu(HALF, 10), ("gelu",), 1.05),
    Scenario("ten layers bfloat16, GELU's gradient 5 % too large", gelu(BRAIN, 10), ("gelu_backward",), 1.05),
    Scenario("ten layers float16, GELU's gradient 5 % too large", gelu(HALF, 10), ("gelu_backward",), 1.05),
    # Of our own making.
    Scenario("BERT bfloat16, softmax 10 % too large", bert(BRAIN), ("_softmax",), 1.1),
    Scenario("BERT float32, embedding's gradient 1 % too large", bert(SINGLE), ("embedding_dense_backward",), 1.01),
    Scenario("convolutions float32, batch_norm's gradient 1 %", convolutions(SINGLE), ("native_batch_norm_backward",), 1.01),
    Scenario("convolutions float16, SiLU 10 % too large", convolutions(HALF), ("silu",), 1.1),
    Scenario("spectral filter, rfft 0.1 % too large", spectral, ("_fft_r2c",), 1.001),
    Scenario("recurrent bfloat16, tanh 5 % too large", recurrent(BRAIN), ("tanh",), 1.05),
    Scenario("recurrent float32, tanh's gradient 1 % too large", recurrent(SINGLE), ("tanh_backward",), 1.01),
    Scenario("embedding and linear, mm 0.1 % too large", bag, ("addmm", "mm", "linear"), 1.001),
    Scenario("log_softmax and nll_loss float16, log_softmax 5 % too large", losses(HALF), ("_log_softmax",), 1.05),
    Scenario("standardized bfloat16, std 10 % too large", standardized(BRAIN), ("std", "var"), 1.1),
    Scenario("gated bfloat16, SiLU 10 % too large", gated(BRAIN), ("silu",), 1.1),
    Scenario("gated float16, SiLU's gradient 10 % too large", gated(HALF), ("silu_backward",), 1.1),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- what is said


def said(make: Callable[[], Made], device: Device) -> tuple[str, float]:
    """("agrees" or the first finding, the largest share) of a function on a device."""
    torch.manual_seed(0)
    fn, inputs = make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            comparison = parity.assert_parity(fn, *inputs, device=device)
    except parity.ParityFailure as e:
        name, verdict = next(iter(e.comparison.findings))
        return f"{verdict.status} in {name}: {verdict.reason}"[:100], e.comparison.share
    return "agrees", comparison.share


def random_model(seed: int) -> Callable[[], Made]:
    """A small model of layers drawn at random, in a dtype drawn at random."""
    rng = random.Random(seed)
    width, dtype = rng.choice((8, 17, 32, 64)), rng.choice((SINGLE, SINGLE, HALF, BRAIN))
    layers: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(width, width), nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, lambda: nn.LayerNorm(width),
        lambda: nn.RMSNorm(width), lambda: nn.Softmax(-1), lambda: nn.Linear(width, width, bias=False), nn.ELU, nn.Softplus,
        nn.Hardswish, lambda: nn.GroupNorm(1, width), nn.Mish, lambda: nn.BatchNorm1d(width), nn.LeakyReLU, nn.PReLU,
    ]  # fmt: skip
    chosen = [rng.choice(layers) for _ in range(rng.randint(1, 9))]
    size = rng.choice((1.0, 1.0, 0.01, 30.0))

    def make() -> Made:
        model = nn.Sequential(nn.Linear(width, width), *(c() for c in chosen)).to(dtype)
        return model, ((torch.randn(rng.choice((2, 8, 33)), width) * size).to(dtype).requires_grad_(),)

    return make


def main() -> int:
    """Print a line for each scenario; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=0, help="random models on the honest device")
    parser.add_argument("--only", default="", help="only scenarios whose name holds this")
    o = parser.parse_args()
    torch.autograd.set_multithreading_enabled(False)
    healthy, sound = resolve("sim"), resolve("sim", tuple(honest.FAULTS))
    bad, asked = 0, [s for s in SCENARIOS if o.only in s.name]
    for s in asked:
        started = time.monotonic()
        plain, noisy = said(s.make, healthy), said(s.make, sound)
        faulty = said(s.make, resolve("sim", (scaled(s.ops, s.factor),)))
        also = said(s.make, resolve("sim", (scaled(s.ops, s.factor), *honest.FAULTS)))
        right = plain[0] == noisy[0] == "agrees" != faulty[0]
        bad += not right
        print(f"{'as it should be' if right else 'NOT AS IT SHOULD BE':<20}{s.name}  ({time.monotonic() - started:.1f} s)")
        for word, (text, share) in (("healthy", plain), ("honest", noisy), ("faulty", faulty), ("honest and faulty", also)):
            print(f"    {word:<18}{share:>10.3g}  {text}", flush=True)
    for k in range(o.models):
        text, share = said(random_model(k), sound)
        if text != "agrees":
            bad += 1
            print(f"random model {k}: {share:.3g}  {text}", flush=True)
    models = f", {o.models} random models" if o.models else ""
    print(f"{len(asked) + o.models - bad} of {len(asked) + o.models} as they should be: {len(asked)} functions{models}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
