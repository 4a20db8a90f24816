"""Does `parity.locate` name what was planted? `python tests/bench/locating.py [--dtype D ...] [--honest]`.

Twelve small networks, each healthy, on an honest device, and with each fault that one of its operators can have: the fault
strikes one call in the middle of the network. One line for each that is not right; then how often the first module and the
first operator that were named are those that were struck, how often a healthy device was blamed, and the time against plain
passes on both sides.

`--device cuda` asks a device on which no fault can be planted instead: first in full precision, where nothing is to be named,
then in float32 with TF32 allowed, where a matrix product or a convolution is to be named.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import parity
from parity.devices import Call, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST

D = 32  # width of the networks
Made = tuple[nn.Module, tuple[Tensor, ...]]


# -------------------------------------------------------------------------------------------------------------- networks


class Attention(nn.Module):
    """Self-attention, fused or written out, with a mask or causal."""

    def __init__(self, fused: bool, causal: bool) -> None:
        super().__init__()
        self.fused, self.causal = fused, causal
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, length, D)."""
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) * (D // 4) ** -0.5
            mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, torch.finfo(x.dtype).min) if self.causal else scores
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, n, D))


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, fused: bool, causal: bool, act: Callable[[Tensor], Tensor] = F.gelu, norm_first: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(D), nn.LayerNorm(D), Attention(fused, causal)
        self.up, self.down, self.act, self.first = nn.Linear(D, 4 * D), nn.Linear(4 * D, D), act, norm_first

    def forward(self, x: Tensor) -> Any:
        """x: (batch, length, D)."""
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.down(self.act(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Text(nn.Module):
    """Embeddings and blocks."""

    def __init__(self, blocks: Sequence[nn.Module], head: int = 10) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, D), nn.Embedding(16, D)
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(D), nn.Linear(D, head)

    def forward(self, ids: Tensor) -> Any:
        """ids: (batch, length)."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(16, 16, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 16, height, width)."""
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


class Patches(nn.Module):
    """A vision transformer; `channels_last` gives the convolution a strided input."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.cut, self.more = nn.Conv2d(3, D, 4, 4), nn.Conv2d(D, D, 1)
        self.blocks, self.head = nn.ModuleList(Block(True, False) for _ in range(3)), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 3, 16, 16)."""
        x = self.cut(x)
        x = self.more(x.contiguous(memory_format=torch.channels_last) if self.channels_last else x)
        x = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    """An embedding, an LSTM or a GRU, and a head with ReLU."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(50, D), kind(D, D, batch_first=True)
        self.norm, self.mid, self.relu, self.head = nn.LayerNorm(D), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 3)

    def forward(self, ids: Tensor) -> Any:
        """ids: (batch, length)."""
        return self.head(self.relu(self.mid(self.norm(self.net(self.words(ids))[0].transpose(0, 1)))))


class Mixer(nn.Module):
    """Blocks that mix along both dimensions, with layer_norm of transposed operands."""

    def __init__(self) -> None:
        super().__init__()
        self.along = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.across = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        """x: (batch, 8, D)."""
        for along, across, norm in zip(self.along, self.across, self.norms):
            x = x + F.gelu(along(norm(x.transpose(1, 2)))).transpose(1, 2)
            x = x + F.gelu(across(x))
        return x.mean(1)


def _text(fused: bool, causal: bool, act: Any = F.gelu, first: bool = True) -> Callable[[], Made]:
    return lambda: (Text([Block(fused, causal, act, first) for _ in range(4)]), (torch.randint(50, (2, 12)),))


def _images(*layers: nn.Module) -> Made:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), *layers)
    return net, (torch.randn(4, 3, 12, 12),)


def _head() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]


NETWORKS: dict[str, Callable[[], Made]] = {
    "gpt": _text(True, True),
    "bert": _text(False, False, first=False),
    "masked": _text(False, True),
    "relu transformer": _text(True, False, F.relu),
    "resnet": lambda: _images(*(Residual() for _ in range(8)), *_head()),
    "mobilenet": lambda: _images(*(Residual(16) for _ in range(4)), *_head()),
    "autoencoder": lambda: _images(
        nn.Conv2d(16, 16, 3, 2, 1), nn.GELU(), nn.ConvTranspose2d(16, 16, 2, 2), nn.GELU(), nn.Conv2d(16, 3, 1)
    ),
    "vit": lambda: (Patches(False), (torch.randn(2, 3, 16, 16),)),
    "vit, channels last": lambda: (Patches(True), (torch.randn(2, 3, 16, 16),)),
    "lstm": lambda: (Recurrent(nn.LSTM), (torch.randint(50, (2, 8)),)),
    "gru": lambda: (Recurrent(nn.GRU), (torch.randint(50, (2, 8)),)),
    "mixer": lambda: (Mixer(), (torch.randn(4, 8, D),)),
}


# ---------------------------------------------------------------------------------------------------------------- faults


@dataclass
class Planted:
    """A fault that strikes one call of an operator. ops: its names on the device; effect: on the result of that call; forward:
    the public function whose module is to be named."""

    ops: tuple[str, ...]
    effect: Callable[[Any], Any]
    forward: tuple[str, ...]
    when: Callable[[Call], bool] = lambda call: True
    backward: bool = False
    level: str = "kernel"
    calls: int = 0
    struck: list[int] = field(default_factory=list)

    def fault(self, at: int, of: int) -> Fault:
        """The fault that strikes call number `at` of those of one pass."""
        self.calls = 0
        self.struck = []

        def effect(call: Call) -> Any:
            self.calls += 1
            if (self.calls - 1) % of != at:  # the network may run more than once
                return call.run()
            self.struck.append(at)
            return self.effect(call)

        return Fault("planted", self.ops, effect, self.when, self.level)


def first(factor: float) -> Callable[[Call], Any]:
    """The first result times a factor."""

    def effect(call: Call) -> Any:
        result = call.run()
        return (result[0] * factor, *result[1:]) if isinstance(result, (tuple, list)) else result * factor

    return effect


def last(factor: float) -> Callable[[Call], Any]:
    """The last result, or the statistics, times a factor."""

    def effect(call: Call) -> Any:
        result = call.run()
        return (*result[:-1], result[-1] * factor)

    return effect


def unmasked(call: Call) -> Any:
    """Attention that ignores its mask."""
    call.kwargs["is_causal"] = False
    return call.run()


FAULTS: dict[str, Planted] = {
    "layer_norm": Planted(("native_layer_norm",), first(1.03), ("layer_norm",)),
    "gelu's gradient": Planted(("gelu_backward",), first(1.03), ("gelu",), backward=True),
    "softmax": Planted(("_softmax",), first(1.03), ("softmax",)),
    "relu": Planted(("relu", "clamp_min", "threshold"), first(1.03), ("relu", "relu_")),
    "convolution": Planted(("convolution",), first(1.03), ("conv2d",)),
    "attention": Planted(
        ("scaled_dot_product_attention",), unmasked, ("scaled_dot_product_attention",),
        lambda call: bool(call.kwargs.get("is_causal")), level="function",
    ),
    "embedding's gradient": Planted(("embedding_dense_backward",), first(1.03), ("embedding",), backward=True),
    "batch_norm": Planted(("native_batch_norm",), last(1.05), ("batch_norm",)),
}  # fmt: skip


# What TF32 changes: matrix products and convolutions, and what is made of them.
ATEN_LOWERED = ("mm", "linear", "matmul", "conv", "attention", "lstm", "gru", "rnn", "einsum")


@dataclass
class Counted(torch.overrides.TorchFunctionMode):
    """The modules that call a function, in order."""

    names: tuple[str, ...]
    modules: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.running: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.names and self.running:
            self.modules.append(self.running[-1])
        return func(*args, **(kwargs or {}))


def callers(net: nn.Module, inputs: Sequence[Tensor], names: tuple[str, ...]) -> list[str]:
    """The modules whose code calls these functions, in order."""
    seen = Counted(names)

    def enter(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda m, given: seen.running.append(name)

    def leave(m: nn.Module, given: Any, out: Any) -> None:
        seen.running.pop()

    hooks = [h for n, m in net.named_modules() for h in (m.register_forward_pre_hook(enter(n)), m.register_forward_hook(leave))]
    with seen:
        net(*inputs)
    for hook in hooks:
        hook.remove()
    return seen.modules


def plain(net: nn.Module, inputs: Sequence[Tensor], device: Any) -> float:
    """Seconds of a forward and a backward pass on the CPU and on the device."""
    total = 0.0
    with device.active():
        there = [device.upload(x) for x in inputs]
        for side, given in ((net, inputs), (None, there)):
            model = side or net.to(device.torch_device)
            began = time.perf_counter()
            out = model(*given)
            out.sum().backward()
            device.synchronize()
            total += time.perf_counter() - began
        net.cpu()
        net.zero_grad()
    return total


def precision(tf32: bool) -> None:
    """Let CUDA's matrix products and convolutions of float32 numbers use TF32, or not."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    now = torch.backends.cudnn
    torch._C._set_cudnn_allow_tf32(tf32)  # OpInfo freezes the flags of the Python module
    assert now.allow_tf32 is tf32


def on_hardware(name: str, patterns: Sequence[str], dtypes: Sequence[str]) -> int:
    """Locate on a device as it is, and with TF32; print what is named. 1 where a line is not right."""
    asked = named = healthy = blamed = 0
    seconds: list[float] = []
    for word, make in NETWORKS.items():
        if patterns and not any(p in word for p in patterns):
            continue
        for dtype in dtypes:
            for tf32 in (False, True) if dtype == "float32" else (False,):
                precision(tf32)
                torch.manual_seed(0)
                net, inputs = make()
                net = net.to(getattr(torch, dtype))
                inputs = tuple(x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in inputs)
                began = time.perf_counter()
                found = parity.locate(net, *inputs, device=name)
                seconds.append(time.perf_counter() - began)
                if not tf32:
                    healthy, blamed = healthy + 1, blamed + (found.first is not None)
                    if found.first is not None:
                        print(f"{word} {dtype}: nothing is planted, and blamed: {found}", flush=True)
                    continue
                right = found.first is not None and any(w in found.first.operator for w in ATEN_LOWERED)
                asked, named = asked + 1, named + right
                print(f"{word} TF32: {'' if right else 'LOOK '}{found.headline}", flush=True)
    precision(False)
    print(
        f"{asked} networks with TF32: a product or convolution named in {named}; {healthy} in full precision, {blamed} blamed; "
        f"one takes {statistics.median(seconds):.1f} s in the middle, {max(seconds):.1f} at most"
    )
    return int(not healthy or blamed > 0 or named < asked)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is not right, and the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--device", default="sim", help="another device than sim is asked as it is, and with TF32")
    parser.add_argument("patterns", nargs="*", help="networks by a part of their name")
    o = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    if o.device != "sim":
        return on_hardware(o.device, o.patterns, o.dtype or ["float32", "float16", "bfloat16"])
    asked = modules = operators = healthy = blamed = 0
    ratios: list[float] = []
    for name, make in NETWORKS.items():
        if o.patterns and not any(p in name for p in o.patterns):
            continue
        for dtype in o.dtype or ["float32", "float16", "bfloat16"]:
            torch.manual_seed(0)
            net, inputs = make()
            net = net.to(getattr(torch, dtype))
            inputs = tuple(x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in inputs)
            sim = resolve("sim")
            plain(net, inputs, sim)
            usual = min(plain(net, inputs, sim) for _ in range(3))
            for kind, device in (("healthy", sim), ("honest", resolve("sim", tuple(HONEST)))):
                began = time.perf_counter()
                found = parity.locate(net, *inputs, device=device)
                ratios += [(time.perf_counter() - began) / usual] if kind == "healthy" else []
                healthy += 1
                if found.first is not None:
                    blamed += 1
                    print(f"{name} {dtype}: {kind}, and blamed: {found}")
            for what, planted in FAULTS.items():
                calling = callers(net, inputs, planted.forward)
                if not calling:
                    continue
                at = len(calling) // 2
                number = len(calling) - 1 - at if planted.backward else at
                device = resolve("sim", (planted.fault(number, len(calling)),))
                found = parity.locate(net, *inputs, device=device)
                if not planted.struck:
                    continue
                asked += 1
                one = found.first
                right = one is not None and one.place.module == calling[at]
                named = one is not None and any(w in one.operator for w in (*planted.ops, *planted.forward))
                modules, operators = modules + right, operators + named
                if not (right and named):
                    print(f"{name} {dtype}: {what} in {calling[at]}: {found.headline}")
    print(
        f"{asked} faults: module named in {modules} ({modules / max(1, asked):.0%}), operator in {operators} "
        f"({operators / max(1, asked):.0%}); {healthy} healthy and honest devices, {blamed} blamed; a healthy one takes "
        f"{statistics.median(ratios):.1f} times plain passes on both sides in the middle, {max(ratios):.1f} at most"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
