"""Which ops does a precision flag change, in which derivative, and does parity flag those and no others? Needs CUDA.

    python -m tests.bench sharp lowered tf32|medium|reduced affected.json     # without the judge
    LOWERED=tf32 parity run --device cuda --source opinfo --dtype float32 --setup tests/bench/lowered.py --output low.jsonl
    LOWERED=off  parity run ... --output off.jsonl
    python -m tests.bench sharp lowered score affected.json off.jsonl low.jsonl

An op is affected where the device's bits change with the flag and not between equal runs (five of every sample: where sums are
added in any order, two may agree by chance), or, where equal runs differ, where its worst error against float64 grows 100
times. That is asked of three passes, each by itself: the results, the gradients, and, where the op has them, the gradients of
the gradients with respect to operands and cotangents: a formula of a derivative multiplies matrices where its function does
not. `score` gives the recall over results and gradients, and that over the second derivatives. As a set-up this file sets the
flags that $LOWERED names; every such flag is off otherwise (cuDNN's TF32 and both reduced-precision reductions are on by
default). $LOWERED_DEVICE is the device (cuda), $LOWERED_SECONDS the time (240), $LOWERED_OPS patterns of ops, separated by
commas (*).
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FLAGS = ("off", "tf32", "medium", "reduced")
PASSES = ("forward", "backward", "second")
SECOND = "double backward"  # as run files call the aspect
GROWTH = 100.0
EQUAL_RUNS = 5
UNWRITTEN = ("empty", "new_empty", "resize")  # beginnings of ops whose results nobody wrote
SAMPLES = 20  # of an op, evenly spaced
Passes = Mapping[str, Sequence[Tensor]]


# ------------------------------------------------------------------------------------------------- what a flag changes


def raw(x: Tensor) -> Tensor:
    """The bytes."""
    flat = x.resolve_conj().resolve_neg().reshape(-1)
    return flat.new_empty(flat.numel()).copy_(flat).view(torch.uint8)  # a size of 1 may have any stride


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether these are the same tensors, bit by bit."""
    pairs = list(zip(a, b))
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(raw(x), raw(y)) for x, y in pairs if x.numel())


def error(a: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """The largest error, over the largest number of its tensor."""
    worst = 0.0
    for x, t in zip(a, truth):
        rounded = all(y.is_floating_point() or y.is_complex() for y in (x, t))
        if x.shape == t.shape and rounded and x.numel():
            scale = float(torch.nan_to_num(t.abs(), 0, 0, 0).max()) or 1.0
            wide = torch.complex128 if t.is_complex() else torch.float64
            off = (x.to(wide) - t.to(wide)).abs()
            worst = max(worst, float(torch.nan_to_num(off, 0, 0, 0).max()) / scale)
    return worst


@dataclass(slots=True)
class Tally:
    """One pass of one op, over its samples. changed: in how many the flag changed bits beyond what equal runs differ by;
    unsteady: in how many these differ; off, lowered: the worst errors without and with the flag."""

    changed: int = 0
    unsteady: int = 0
    off: float = 0.0
    lowered: float = 0.0

    def take(self, equal: Sequence[Sequence[Tensor]], low: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
        """One sample's results: of equal runs without the flag, with it, and in float64."""
        self.unsteady += not all(same(equal[0], other) for other in equal[1:])
        self.changed += not any(same(one, low) for one in equal)
        self.off = max(self.off, error(equal[0], truth))
        self.lowered = max(self.lowered, error(low, truth))

    @property
    def affected(self) -> bool:
        """Whether the flag affects this pass."""
        grew = math.isfinite(self.lowered) and self.lowered >= GROWTH * max(self.off, 1e-30)
        return bool(self.changed) and (grew if self.unsteady else True)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        keys = ("changed", "unsteady", "off", "lowered", "affected")
        return {key: getattr(self, key) for key in keys}


@dataclass(slots=True)
class Op:
    """The passes of one op."""

    passes: dict[str, Tally] = field(default_factory=lambda: {p: Tally() for p in PASSES})

    def take(self, equal: Sequence[Passes], low: Passes, truth: Passes) -> None:
        """One sample's passes, each by itself; one that some run had not says nothing."""
        for p, tally in self.passes.items():
            if all(p in run for run in (*equal, low)):
                tally.take([run[p] for run in equal], low[p], truth.get(p, ()))

    def told(self) -> dict[str, Any] | None:
        """As JSON; None where the flag changed nothing."""
        found = {p: t.told() for p, t in self.passes.items() if t.changed}
        return found or None


# ------------------------------------------------------------------------------------------------------------- the runs


def lower(flag: str) -> None:
    """Put the flags in force. Before OpInfo is imported, or through `freed`."""
    if flag not in FLAGS:
        raise SystemExit(f"LOWERED={flag}: allowed are {', '.join(FLAGS)}")
    # Importing OpInfo freezes the flags.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    torch.backends.cuda.matmul.allow_tf32 = flag == "tf32"
    torch.backends.cudnn.allow_tf32 = flag == "tf32"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = flag == "reduced"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = flag == "reduced"
    torch.set_float32_matmul_precision("medium" if flag == "medium" else "high" if flag == "tf32" else "highest")


def moved(device: str, wide: bool) -> Callable[[Any], Any]:
    """An argument on a device, in float64 if so asked."""

    def move(x: Any) -> Any:
        if isinstance(x, Tensor):
            t = x.detach().to(device)
            return (t.double() if wide and t.is_floating_point() else t).requires_grad_(x.requires_grad)
        if wide and x in (torch.float32, torch.float16, torch.bfloat16):
            return torch.float64
        return torch.device(device) if isinstance(x, torch.device) else x

    return move


def random(like: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents."""
    return [torch.randn(t.shape, dtype=torch.float64).to(t.dtype).to(t.device).requires_grad_() for t in like]


def passes(op: Any, sample: Any, device: str, wide: bool, twice: bool) -> dict[str, list[Tensor]]:
    """What an op gives of a sample, by pass; without those that it has not."""
    from torch.utils._pytree import tree_leaves, tree_map

    args, kwargs = tree_map(moved(device, wide), ((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    outs = [t for t in tree_leaves(op(*args, **kwargs)) if isinstance(t, Tensor) and t.layout is torch.strided]
    found = {"forward": outs}
    tracked = [t for t in outs if t.requires_grad]
    leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
    try:
        if tracked and leaves:
            torch.manual_seed(1)
            fed = random(tracked)
            grads = torch.autograd.grad(tracked, leaves, fed, allow_unused=True, retain_graph=twice)
            found["backward"] = [g for g in grads if g is not None]
            if twice:
                grads = torch.autograd.grad(tracked, leaves, fed, allow_unused=True, create_graph=True)
                again = [g for g in grads if g is not None and g.requires_grad]
                if again:
                    second = torch.autograd.grad(again, [*leaves, *fed], random(again), allow_unused=True)
                    found["second"] = [g for g in second if g is not None]
    except RuntimeError:  # no such derivative of this sample
        pass
    return {p: [t.detach().cpu() for t in ts if t.layout is torch.strided] for p, ts in found.items()}


def affected(flag: str, path: str) -> None:
    """Every OpInfo's samples, forward, backward and backward of that: with the flags off, and lowered."""
    lower("off")
    device = os.environ.get("LOWERED_DEVICE", "cuda")
    from torch.testing._internal.common_methods_invocations import op_db

    seconds, patterns = float(os.environ.get("LOWERED_SECONDS", "240")), os.environ.get("LOWERED_OPS", "*").split(",")
    types = ("float32",) if flag != "reduced" else ("float16", "bfloat16")
    found: dict[str, dict[str, Any]] = {}
    started = time.monotonic()
    written = [op for op in op_db if not op.name.startswith(UNWRITTEN)]
    asked: list[Any] = [
        op for op in written if any(fnmatch.fnmatch(key_of(op.name, op.variant_test_name), p) for p in patterns)
    ]
    for kind, op in ((kind, op) for kind in types for op in asked):
        dtype = getattr(torch, kind)
        if time.monotonic() - started > seconds:
            print("out of time at", op.formatted_name)
            break
        if dtype not in set(op.supported_dtypes("cpu")) or dtype not in set(op.supported_dtypes(device)):
            continue
        try:
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd, set_seed=True))
        except Exception:
            continue
        tally, twice = Op(), op.supports_gradgrad and kind == "float32"
        for s in samples[:: max(1, len(samples) // SAMPLES)]:
            try:
                lower("off")
                equal = [passes(op, s, device, False, twice) for _ in range(EQUAL_RUNS)]
                lower(flag)
                low = passes(op, s, device, False, twice)
                lower("off")
                truth = passes(op, s, "cpu", True, twice)
            except Exception:
                continue
            tally.take(equal, low, truth)
        if told := tally.told():
            found[f"{op.formatted_name}:{kind}"] = {"name": op.name, "variant": op.variant_test_name, **told}
    Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")
    for name, row in found.items():
        for p in (p for p in PASSES if p in row):
            word = "affected" if row[p]["affected"] else "unsteady"
            print(f"{word:10}{name:60}{p:10}{row[p]['off']:10.2e}{row[p]['lowered']:10.2e}")


# ------------------------------------------------------------------------------------------------------------ the score


def key_of(name: str, variant: str) -> str:
    """An OpInfo's name in run files."""
    return ":".join(filter(None, (name, variant)))


def flagged(records: Sequence[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
    """(ops with a finding, those with one in the second derivatives) of a run's records."""
    bad = [r for r in records if r.get("status") in ("drift", "wrong", "unstable")]
    named = [(r["op"].removeprefix("opinfo:"), r.get("aspect") == SECOND) for r in bad]
    return {n for n, _ in named}, {n for n, second in named if second}


def recall(
    found: Mapping[str, Mapping[str, Any]], off: Sequence[Mapping[str, Any]], low: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Recall over the ops affected in results or gradients, and over those in second derivatives; and the ops that the lowered
    run alone flags besides them. An op counts as flagged by any of its findings."""
    by_pass = {p: {key_of(r["name"], r["variant"]) for r in found.values() if p in r and r[p]["affected"]} for p in PASSES}
    first, second = by_pass["forward"] | by_pass["backward"], by_pass["second"]
    healthy, (hit, twice) = flagged(off)[0], flagged(low)
    lines = []
    for what, wanted in (
        ("results and gradients", first),
        ("second derivatives", second),
        ("second derivatives alone", second - first),
    ):
        missed = " ".join(sorted(wanted - hit)) or "none"
        own = f" ({len(wanted & twice)} in a second derivative)" if what != "results and gradients" else ""
        lines.append(f"affected in {what}: {len(wanted)}, flagged {len(wanted & hit)}{own}; missed: {missed}")
    more = " ".join(sorted(hit - healthy - first - second)) or "none"
    lines.append(f"flagged in the lowered run alone, not affected: {more}")
    lines.append(f"flagged with the flags off: {' '.join(sorted(healthy)) or 'none'}")
    return lines


def score(path: str, off: str, low: str) -> None:
    """Print the recall of a run over what the first program found."""
    runs = [[json.loads(line) for line in Path(run).read_text(encoding="utf-8").splitlines()] for run in (off, low)]
    print("\n".join(recall(json.loads(Path(path).read_text(encoding="utf-8")), *runs)))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if sys.argv[1:2] in ([], ["--help"]):
        print(__doc__)
    elif sys.argv[1] == "score":
        score(*sys.argv[2:])
    else:
        affected(*sys.argv[1:])
elif word := os.environ.get("LOWERED"):
    lower(word)
