"""Does `compile=` distinguish the compiler from the device? `python tests/bench/compiled.py [--backend B] [network ...]`.

The networks of `locating.py`, in eval mode. Each is compiled on a healthy and on an honest device, and by planted compilers:
every call of one function in their graphs is 3 % off, to be reported as the compiler's error, in a module that calls that
function. `--device cuda --backend inductor` compiles on a GPU with TF32 off, `--device cpu --backend inductor` on the CPU. The
lines are what is not right, then the counts and the seconds. The exit code is 1 where a line is not right.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from locating import NETWORKS, callers, precision

import parity
from parity.devices import Device, resolve
from parity.devices.sim.honest import FAULTS as HONEST

# Functions that a planted compiler gets wrong.
ATEN_COMPILED_WRONG = (
    "layer_norm",
    "gelu",
    "softmax",
    "relu",
    "conv2d",
    "scaled_dot_product_attention",
    "embedding",
    "batch_norm",
)


def planted(name: str, backend: str) -> tuple[Callable[..., Any], list[str]]:
    """A compiler that is wrong in every call of a function, and the list of the calls that it spoiled."""
    struck: list[str] = []
    right = torch._dynamo.lookup_backend(backend)

    def compiler(graph: Any, examples: Any) -> Any:
        for node in list(graph.graph.nodes):
            if node.op == "call_function" and getattr(node.target, "__name__", "") == name:
                with graph.graph.inserting_after(node):
                    wrong = graph.graph.call_function(torch.mul, (node, 1.03))
                wrong.meta = dict(node.meta)
                node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
                struck.append(name)
        graph.recompile()
        return right(graph, examples)

    compiler.__name__ = f"{backend}, {name} off"
    return compiler, struck


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is not right, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--device", default="sim")
    parser.add_argument("patterns", nargs="*", help="networks by a part of their name")
    o = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    precision(tf32=False)
    own: list[tuple[str, Device]] = [("healthy", resolve(o.device))]
    own += [("honest", resolve("sim", tuple(HONEST)))] if o.device == "sim" else []
    asked = found = modules = healthy = blamed = 0
    seconds: list[float] = []
    for name, make in NETWORKS.items():
        if o.patterns and not any(p in name for p in o.patterns):
            continue
        for dtype in o.dtype or ["float32", "float16", "bfloat16"]:
            torch.manual_seed(0)
            net, inputs = make()
            net = net.to(getattr(torch, dtype)).eval()
            inputs = tuple(x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in inputs)
            for kind, device in own:
                began = time.perf_counter()
                one = parity.locate(net, *inputs, device=device, compile=o.backend).compiled
                seconds.append(time.perf_counter() - began)
                assert one is not None
                if one.refused:
                    print(f"{name} {dtype}: {kind}, left out: {one.refused}", flush=True)
                    continue
                healthy, blamed = healthy + 1, blamed + one.wrong
                if one.wrong:
                    print(f"{name} {dtype}: {kind}, and blamed: {'; '.join(one.lines)}", flush=True)
            for what in ATEN_COMPILED_WRONG:
                compiler, struck = planted(what, o.backend)
                one = parity.locate(net, *inputs, device=own[0][1], compile=compiler).compiled
                if not struck:
                    continue
                assert one is not None
                asked += 1
                told = one.wrong_side == "compiled"
                calling = callers(net, inputs, (what,))
                inside = one.module.partition(" ")[0] in calling
                found, modules = found + told, modules + inside
                if not (told and inside):
                    print(f"{name} {dtype}: {what} in {', '.join(calling[:3])} ...: {one.text}", flush=True)
    print(
        f"{asked} wrong compilers: told as the compiler's in {found} ({found / max(1, asked):.0%}), a module that calls it in "
        f"{modules} ({modules / max(1, asked):.0%}); {healthy} healthy and honest devices, {blamed} blamed; one of them takes "
        f"{statistics.median(seconds):.1f} s in the middle, {max(seconds):.1f} at most"
    )
    return int(not healthy or blamed > 0 or found < asked or modules < asked)


if __name__ == "__main__":
    sys.exit(main())
