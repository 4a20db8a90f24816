"""Which ops does a precision flag change, and does parity flag those and no others? Needs CUDA.

    python tests/bench/lowered.py tf32|medium|reduced affected.json     # without the judge: bits, and errors against float64
    LOWERED=tf32 parity run --device cuda --source opinfo --dtype float32 --setup tests/bench/lowered.py --output low.jsonl
    LOWERED=off  parity run ... --output off.jsonl
    python tests/bench/lowered.py score affected.json off.jsonl low.jsonl

An op is affected where the device's bits change with the flag and not between equal runs (five of every sample: where sums are
added in any order, two may agree by chance), or, where equal runs differ, where its worst error against float64 grows 100
times. Looked at are the results, the gradients and, where the op has them, the gradients of the gradients: a formula of a
derivative multiplies matrices where its function does not. As a set-up this file sets the flags that $LOWERED names; every such
flag is off otherwise (cuDNN's TF32 and both reduced-precision reductions are on by default).
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

FLAGS = ("off", "tf32", "medium", "reduced")
DEVICE = os.environ.get("LOWERED_DEVICE", "cuda")
GROWTH = 100.0
EQUAL_RUNS = 5
SAMPLES = 20  # of an op, evenly spaced
SECONDS = float(os.environ.get("LOWERED_SECONDS", "240"))


def lower(flag: str) -> None:
    """Put the flags in force. Before OpInfo is imported, or through `freed`."""
    import torch

    if flag not in FLAGS:
        raise SystemExit(f"LOWERED={flag}: allowed are {', '.join(FLAGS)}")
    # Importing OpInfo freezes the flags.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    torch.backends.cuda.matmul.allow_tf32 = flag == "tf32"
    torch.backends.cudnn.allow_tf32 = flag == "tf32"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = flag == "reduced"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = flag == "reduced"
    torch.set_float32_matmul_precision("medium" if flag == "medium" else "high" if flag == "tf32" else "highest")


def affected(flag: str, path: str) -> None:
    """Every OpInfo's samples, forward, backward and backward of that: with the flags off, and lowered."""
    import torch

    lower("off")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_leaves, tree_map

    kinds = ("float32",) if flag != "reduced" else ("float16", "bfloat16")
    found: dict[str, dict[str, Any]] = {}
    started = time.monotonic()

    def supported(op: Any, device: str) -> set[Any]:
        return set(op.supported_dtypes(device))

    def drawn(op: Any, dtype: Any) -> list[Any]:
        return list(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd, set_seed=True))

    def moved(device: str, wide: bool) -> Any:
        def move(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                t = x.detach().to(device)
                return (t.double() if wide and t.is_floating_point() else t).requires_grad_(x.requires_grad)
            if wide and x in (torch.float32, torch.float16, torch.bfloat16):
                return torch.float64
            return torch.device(device) if isinstance(x, torch.device) else x

        return move

    def random(like: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.randn(t.shape, dtype=torch.float64).to(t.device).to(t.dtype) for t in like]

    def run(op: Any, s: Any, device: str, wide: bool) -> list[torch.Tensor]:
        args, kwargs = tree_map(moved(device, wide), ((s.input, *s.args), s.kwargs))
        torch.manual_seed(0)
        outs = [t for t in tree_leaves(op(*args, **kwargs)) if isinstance(t, torch.Tensor) and t.layout is torch.strided]
        tracked = [t for t in outs if t.requires_grad]
        leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        grads, second = [], []
        if tracked and leaves:
            torch.manual_seed(1)
            twice = op.supports_gradgrad and kinds == ("float32",)
            grads = list(torch.autograd.grad(tracked, leaves, random(tracked), allow_unused=True, create_graph=twice))
            again = [g for g in grads if g is not None and g.requires_grad]
            if twice and again:
                try:
                    second = list(torch.autograd.grad(again, leaves, random(again), allow_unused=True))
                except RuntimeError:  # no second derivative of this sample
                    second = []
        return [t.detach().cpu() for t in (*outs, *grads, *second) if t is not None and t.layout is torch.strided]

    def error(a: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
        worst = 0.0
        for x, t in zip(a, truth):
            if x.shape == t.shape and x.is_floating_point() and t.is_floating_point() and x.numel():
                scale = float(torch.nan_to_num(t.abs(), 0, 0, 0).max()) or 1.0
                worst = max(worst, float(torch.nan_to_num((x.double() - t.double()).abs(), 0, 0, 0).max()) / scale)
        return worst

    def raw(x: torch.Tensor) -> torch.Tensor:
        """The bytes."""
        flat = x.resolve_conj().resolve_neg().reshape(-1)
        return flat.new_empty(flat.numel()).copy_(flat).view(torch.uint8)  # a size of 1 may have any stride

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        pairs = list(zip(a, b))
        return len(a) == len(b) and all(x.shape == y.shape and torch.equal(raw(x), raw(y)) for x, y in pairs if x.numel())

    for kind in kinds:
        dtype = getattr(torch, kind)
        for op in op_db:
            if time.monotonic() - started > SECONDS:
                print("out of time at", op.formatted_name)
                break
            if dtype not in supported(op, "cpu") or dtype not in supported(op, DEVICE):
                continue
            changed = unsteady = 0
            errors = [0.0, 0.0]
            try:
                samples = drawn(op, dtype)
            except Exception:
                continue
            for s in samples[:: max(1, len(samples) // SAMPLES)]:
                try:
                    lower("off")
                    equal = [run(op, s, DEVICE, False) for _ in range(EQUAL_RUNS)]
                    lower(flag)
                    low = run(op, s, DEVICE, False)
                    lower("off")
                    truth = run(op, s, "cpu", True)
                except Exception:
                    continue
                unsteady += not all(same(equal[0], other) for other in equal[1:])
                changed += not any(same(one, low) for one in equal)
                errors = [max(errors[0], error(equal[0], truth)), max(errors[1], error(low, truth))]
            if changed:
                grew = errors[1] / max(errors[0], 1e-30)
                found[f"{op.formatted_name}:{kind}"] = {
                    "name": op.name, "variant": op.variant_test_name, "changed": changed, "unsteady": unsteady,
                    "off": errors[0], "lowered": errors[1], "affected": grew >= GROWTH if unsteady else True,
                }  # fmt: skip
    with open(path, "w") as f:
        json.dump(found, f, indent=1)
    for name, row in found.items():
        print(f"{'affected' if row['affected'] else 'unsteady':10}{name:60}{row['off']:10.2e}{row['lowered']:10.2e}")


def score(path: str, off: str, low: str) -> None:
    """Recall over the affected ops, and the ops that the lowered run alone flags beside them."""
    with open(path) as f:
        wanted = {":".join(filter(None, (r["name"], r["variant"]))) for r in json.load(f).values() if r["affected"]}
    flagged = []
    for run in (off, low):
        with open(run) as f:
            rows = [r for r in map(json.loads, f) if r.get("status") in ("drift", "wrong", "unstable")]
        flagged.append({r["op"].removeprefix("opinfo:") for r in rows})
    missed, more = wanted - flagged[1], flagged[1] - flagged[0] - wanted
    print(f"affected {len(wanted)}, flagged {len(wanted & flagged[1])}; missed: {' '.join(sorted(missed)) or 'none'}")
    print(f"flagged in the lowered run alone, not affected: {' '.join(sorted(more)) or 'none'}")
    print(f"flagged with the flags off: {' '.join(sorted(flagged[0])) or 'none'}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if sys.argv[1] == "score":
        score(*sys.argv[2:])
    else:
        affected(*sys.argv[1:])
elif word := os.environ.get("LOWERED"):
    lower(word)
