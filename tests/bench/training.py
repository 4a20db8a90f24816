"""Does `parity.compare_training` see a gradient that is 0.1 % off, and stay silent where rounding explains everything?

`python -m tests.bench networks training [--steps N] [RECIPE ...]`. Recipes of training, each on a healthy device, on an honest
one, and on one where the gradient of one layer's weight is 0.1 % too large: at every step, and from the middle on. One line for
each; then how many were right, and the time against plain training on both sides.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import front
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import parity
from parity.devices import Call, Device, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST

Made = tuple[Any, ...]


# -------------------------------------------------------------------------------------------------------------- networks


class Images(nn.Module):
    """Convolutions, batch_norm, ReLU and max-pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.norm1, self.norm2, self.head = nn.BatchNorm2d(8), nn.BatchNorm2d(12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 3, height, width)."""
        x = F.max_pool2d(F.relu(self.norm1(self.one(x))), 2)
        return self.head(F.relu(self.norm2(self.two(x))).mean((2, 3)))


class Dense(nn.Module):
    """Linear layers with layer_norm, GELU and dropout."""

    def __init__(self, width: int = 48, drop: float = 0.0) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(16, width), nn.Linear(width, 5)
        self.layers = nn.ModuleList(nn.Linear(width, width + 8 * k) for k in (1,))
        self.back, self.norm, self.drop = nn.Linear(width + 8, width), nn.LayerNorm(width), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 16)."""
        x = F.gelu(self.enter(x))
        for layer in self.layers:
            x = self.drop(self.norm(x + self.back(F.gelu(layer(x)))))
        return self.head(x)


class Block(nn.Module):
    """A layer of a transformer, with dropout."""

    def __init__(self, d: int, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2, self.qkv, self.out = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down, self.drop = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, length, d)."""
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Text(nn.Module):
    """Embeddings, blocks, and a head."""

    def __init__(self, drop: float = 0.0, checkpointed: bool = False) -> None:
        super().__init__()
        self.words, self.head, self.checkpointed = nn.Embedding(30, 24), nn.Linear(24, 30), checkpointed
        self.blocks = nn.ModuleList(Block(24, drop) for _ in range(2))

    def forward(self, ids: Tensor) -> Any:
        """ids: (batch, length)."""
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


# --------------------------------------------------------------------------------------------------------------- recipes


def words_next(net: nn.Module, ids: Tensor) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def labelled(net: nn.Module, batch: Any) -> Tensor:
    """The loss of a classifier."""
    return F.cross_entropy(net(batch[0]), batch[1])


def built(
    net: nn.Module, optimizer: Any, loss: Callable[[nn.Module, Any], Tensor], *others: Any, every: int = 1, **how: Any
) -> Made:
    """What `compare_training` takes. others: a scheduler, a scaler, a mean of the weights; every: the optimizer steps once in
    so many batches, which a variable of the step counts; how: the dtype of autocast, and whether gradients are clipped."""

    def given(kind: type[Any]) -> Any:
        return next((o for o in others if isinstance(o, kind)), None)

    scheduler, scale = given(torch.optim.lr_scheduler.LRScheduler), given(torch.amp.GradScaler)
    mean = given(torch.optim.swa_utils.AveragedModel)
    cast, where, number = how.get("cast"), next(net.parameters()).device.type, 0

    def step(batch: Any) -> Tensor:
        nonlocal number
        if number % every == 0:
            optimizer.zero_grad()
        with torch.autocast(where, cast) if cast else contextlib.nullcontext():
            value = loss(net, batch) / every
        torch.autograd.backward(scale.scale(value) if scale else value)
        number += 1
        if number % every:
            return value
        if scale:
            scale.unscale_(optimizer)
        if how.get("clip"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if scale:
            scale.step(optimizer)
            scale.update()
        else:
            optimizer.step()
        if scheduler:
            scheduler.step()
        if mean:
            mean.update_parameters(net)
        return value

    return net, optimizer, *others, step


def sgd(device: torch.device) -> Made:
    """SGD with momentum."""
    net = Images().to(device)
    return built(net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4), labelled)


def adam(device: torch.device) -> Made:
    """AdamW with a scheduler and clipping."""
    net = Text().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    return built(net, optimizer, words_next, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50), clip=True)


def amp(device: torch.device) -> Made:
    """Autocast to bfloat16."""
    net = Dense(96).to(device)
    return built(net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), labelled, cast=torch.bfloat16)


def scaler(device: torch.device) -> Made:
    """Autocast to float16 with a GradScaler."""
    net = Dense(96).to(device)
    scale = torch.amp.GradScaler(device.type)
    return built(net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), labelled, scale, cast=torch.float16, clip=True)


def accumulation(device: torch.device) -> Made:
    """The optimizer steps at every fourth batch."""
    net = Dense().to(device)
    return built(net, torch.optim.Adam(net.parameters(), 2e-3), labelled, every=4)


def ema(device: torch.device) -> Made:
    """An exponential moving average of the weights, and dropout."""
    net = Dense(drop=0.1).to(device)
    mean = torch.optim.swa_utils.AveragedModel(net, use_buffers=False, avg_fn=lambda mean, new, n: 0.9 * mean + 0.1 * new)
    return built(net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True), labelled, mean)


def checkpointing(device: torch.device) -> Made:
    """Blocks recomputed in the backward pass, with dropout in them."""
    net = Text(0.1, True).to(device)
    return built(net, torch.optim.AdamW(net.parameters(), 3e-3), words_next)


DATA: dict[Any, Callable[[], Any]] = {
    Images: lambda: (torch.randn(8, 3, 8, 8), torch.randint(5, (8,))),
    Dense: lambda: (torch.randn(16, 16), torch.randint(5, (16,))),
    Text: lambda: torch.randint(30, (4, 9)),
}


@dataclass
class Planted:
    """A gradient of a weight that is too large, from one step on. op: whose backward; shape: of the weight; layer: its name;
    of: how many layers have this shape: the backward pass comes to the last of them, which is struck, first."""

    op: str
    shape: tuple[int, ...]
    layer: str
    of: int = 1

    def fault(self, since: int) -> Fault:
        """The fault, from step `since` on, counted from 1."""
        calls = 0

        def effect(call: Call) -> Any:
            nonlocal calls
            result = call.run()
            if not isinstance(result, (tuple, list)) or tuple(result[1].shape) != self.shape:
                return result
            calls += 1
            if (calls - 1) % self.of or calls <= self.of * (since - 1):
                return result
            gradient = result[1] * 1.001
            if gradient.dtype != torch.float32:  # a sum that is too large before it is rounded
                x, g = call.args[0].double().flatten(0, -2), call.args[1].double().flatten(0, -2)
                gradient = (g.t() @ x * 1.001).to(gradient.dtype)
            return (result[0], gradient, *result[2:])

        return Fault("planted", (self.op,), effect, level="kernel")


@dataclass(frozen=True)
class Recipe:
    """A way to train."""

    make: Callable[[torch.device], Made]
    net: type[nn.Module]
    planted: Planted


RECIPES = {
    "sgd": Recipe(sgd, Images, Planted("convolution_backward", (12, 8, 3, 3), "two")),
    "adam": Recipe(adam, Text, Planted("linear_backward", (48, 24), "blocks.1.up", of=2)),
    "amp": Recipe(amp, Dense, Planted("linear_backward", (96, 104), "back")),
    "scaler": Recipe(scaler, Dense, Planted("linear_backward", (96, 104), "back")),
    "accumulation": Recipe(accumulation, Dense, Planted("linear_backward", (48, 56), "back")),
    "ema": Recipe(ema, Dense, Planted("linear_backward", (48, 56), "back")),
    "checkpointing": Recipe(checkpointing, Text, Planted("linear_backward", (48, 24), "blocks.1.up", of=2)),
}
HALF = ("amp", "scaler")  # 0.1 % is less than the spacing of numbers there: it shows only over many steps


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each comparison, and the shares."""
    parser = front.parser(__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("recipes", nargs="*", help=f"of {', '.join(RECIPES)}; all by default")
    o = parser.parse_args(argv)
    front.in_one_thread()
    alarms = healthy = found = named = dated = asked = exact = 0
    ratios: list[float] = []
    for name in front.chosen(o.recipes, [*RECIPES], parser):
        recipe = RECIPES[name]
        planted = recipe.planted
        middle = o.steps // 2
        # A recomputation in the backward pass is not seen by faults of public functions: it would not match the forward pass.
        honest = [f for f in HONEST if f.levels == ("kernel",)] if name == "checkpointing" else HONEST
        devices: list[tuple[str, Device, int]] = [
            ("healthy", resolve("sim"), 0),
            ("honest", resolve("sim", tuple(honest)), 0),
            ("from the start", resolve("sim", (planted.fault(1),)), 1),
            ("from the middle", resolve("sim", (planted.fault(middle),)), middle),
        ]
        for kind, device, since in devices:
            torch.manual_seed(0)
            got = parity.compare_training(recipe.make, [DATA[recipe.net]() for _ in range(10)], steps=o.steps, device=device)
            print(f"{name:<14} {kind:<15} {got.seconds:5.1f} s  {got.headline}", flush=True)
            ratios += [got.seconds / got.plain] if kind == "healthy" else []
            if not since:
                healthy, alarms = healthy + 1, alarms + (not got.agrees)
                continue
            asked += 1
            first = got.first
            at = got.located.first.place.module if got.located is not None and got.located.first is not None else ""
            found += first is not None
            named += first is not None and first.name.startswith(f"{planted.layer}.") and at in ("", planted.layer)
            dated += first is not None and first.step == since
            exact += name not in HALF
            print(f"{'':<14} {'located':<15} {got.located.headline if got.located is not None else 'nothing'}")
    times = f"{statistics.median(ratios):.0f} times plain training on both sides in the middle, {max(ratios):.0f} at most"
    print(
        f"{asked} planted: found {found}, the layer named in {named}, the very step in {dated} ({exact} are in float32); "
        f"{healthy} healthy and honest devices, {alarms} blamed; a healthy one takes {times}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
