"""Does `parity.compare_generation` name the struck step? `python -m tests.bench networks generation [--dtype D ...] [MODEL]`.

Small models of `real_models.py`; those of transformers are left out, by name, where it is not installed. Each
generates eight tokens on a healthy device, on one with MPS's limits, on an honest one, and with each fault that one of its
operators can have: all its results are 2 % too large in step 4 and in no other. In half types the logits of such small models
hide that in their roundings more often than not; `--factor 1.2` makes the fault larger. One line for each that is not right;
then how often the first step and the first operator that were named are those that were struck, how often a healthy device was
blamed, and the seconds. The exit code is 1 where a line is not right.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import front
import real_models
import torch
from locating import first
from torch import Tensor, nn

import parity
from parity.devices import Call, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST

WORDS, WIDTH, STEPS, STRUCK = 99, 32, 8, 4


class Recurrent(nn.Module):
    """An LSTM, whose cache is its state."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, cache: Any = None) -> Any:
        """tokens: (batch, new tokens)."""
        out, state = self.net(self.words(tokens), cache)
        return self.head(self.norm(out)), state


LIBRARY = ("gpt2", "llama", "mistral", "gemma", "t5")
MODELS: dict[str, Callable[[], Any]] = {"lstm": Recurrent, **{n: real_models.MODELS[n] for n in LIBRARY}}
# What a fault strikes: the operator's names on the device.
ATEN_STRUCK = {
    "the cache": ("cat",),
    "softmax": ("_softmax",),
    "attention": ("_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu", "_fused_sdp_choice"),
    "the norm": ("native_layer_norm", "_fused_rms_norm", "rsqrt"),
    "the embedding": ("embedding", "index_select"),
    "products": ("addmm", "mm", "linear"),
    "the activation": ("tanh", "silu", "gelu", "relu", "sigmoid"),
}


@dataclass
class Struck:
    """A fault that strikes one step. factor: of the results; step: the number of the step that runs now; hits: the operators
    that it struck."""

    factor: float
    step: int = 0
    hits: list[str] = field(default_factory=list)

    def counts(self, model: nn.Module) -> None:
        """Count the steps of every run of a model from here on: one without a cache is the first."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            given = [kwargs[name] for name in ("past_key_values", "cache") if name in kwargs]
            cache = [*given, *args[1:], None][0]
            self.step = 1 if cache is None else self.step + 1

        model.register_forward_pre_hook(before, with_kwargs=True)

    def fault(self, ops: tuple[str, ...]) -> Fault:
        """The first result of these operators too large in step `STRUCK`."""
        self.hits = []

        def effect(call: Call) -> Any:
            self.hits.append(call.op.partition(".")[0])
            return first(self.factor)(call)

        return Fault("planted", ops, effect, lambda call: self.step == STRUCK)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is not right, and the counts."""
    parser = front.parser(__doc__)
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--factor", type=float, default=1.02, help="by which results are too large (1.02)")
    parser.add_argument("patterns", nargs="*", help="models by a part of their name")
    o = parser.parse_args(argv)
    front.in_one_thread()
    asked = steps = operators = healthy = blamed = 0
    seconds: dict[str, list[float]] = {"healthy": [], "struck": []}
    for name, make in MODELS.items():
        if o.patterns and not any(p in name for p in o.patterns):
            continue
        try:
            make()
        except ImportError as e:
            print(f"{name}: left out, {e.name or e} is not installed")
            continue
        for dtype in o.dtype or ["float32", "float16", "bfloat16"]:
            torch.manual_seed(0)
            made = make()
            model = getattr(made, "model", made).eval().to(getattr(torch, dtype))
            prompt, struck = torch.randint(3, WORDS, (2, 5)), Struck(o.factor)
            struck.counts(model)
            for kind in ("sim", "sim:mps", "honest"):
                device = resolve("sim", tuple(HONEST)) if kind == "honest" else resolve(kind)
                began = time.perf_counter()
                found = parity.compare_generation(model, prompt, device=device, max_new_tokens=STEPS)
                seconds["healthy"] += [time.perf_counter() - began] if kind == "sim" else []
                healthy, blamed = healthy + 1, blamed + (not found)
                if not found:
                    print(f"{name} {dtype}: {kind}, and blamed: {found}", flush=True)
            for what, ops in ATEN_STRUCK.items():
                device = resolve("sim", (struck.fault(ops),))
                began = time.perf_counter()
                found = parity.compare_generation(model, prompt, device=device, max_new_tokens=STEPS)
                if not struck.hits:
                    continue
                seconds["struck"].append(time.perf_counter() - began)
                asked += 1
                right = found.first is not None and found.first.number == STRUCK
                one = found.located.first if found.located is not None else None
                named = one is not None and one.operator.removeprefix("aten::") in struck.hits
                steps, operators = steps + right, operators + named
                if not (right and named):
                    print(f"{name} {dtype}: {what} ({', '.join(sorted(set(struck.hits)))}): {found}", flush=True)
    times = ", ".join(f"{k} {statistics.median(v):.1f} s in the middle" for k, v in seconds.items() if v)
    print(
        f"{asked} faults: step named in {steps} ({steps / max(1, asked):.0%}), operator in {operators} "
        f"({operators / max(1, asked):.0%}); {healthy} healthy and honest devices, {blamed} blamed; {times}"
    )
    return int(blamed > 0 or steps < asked or operators < asked)


if __name__ == "__main__":
    sys.exit(main())
