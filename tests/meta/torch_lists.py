"""The lists of torch's own test data as the installed torch has them: `parity/catalog/opinfo_names.json` and two more.

    python tests/meta/torch_lists.py            write all three
    python tests/meta/torch_lists.py opinfo     write one: opinfo, modules or optimizers

They say what the CPU computes, so that rows exist without importing torch.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parity.catalog import module_entries as modules
from parity.catalog import opinfo
from parity.catalog import opinfo_rules as rules
from parity.catalog import optimizer_entries as optimizers
from parity.catalog.samples import Sample, generators, rebuilt, tensors_of, torch_version
from parity.core.dtypes import DEFAULT, FACTS
from parity.core.errors import CaseError

IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")
# In half types torch 2.13's CPU kernel reads uninitialized memory: two equal calls differ.
UNREPEATABLE = {"SGD:fused": ("float16", "bfloat16")}


def text(entries: dict[str, Any]) -> str:
    """The text of a list: one line per entry, so that a new torch gives a readable diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items()]
    return f'{{"torch": {json.dumps(torch_version())}, "entries": {{\n' + ",\n".join(lines) + "\n}}\n"


def of_opinfo() -> dict[str, Any]:
    """The entries of `opinfo_names.json`."""
    entries = {}
    for key, info in sorted(opinfo.database().items()):
        forward, backward = info.supported_dtypes("cpu"), info.supported_backward_dtypes("cpu")
        flags = {
            "out": info.supports_out,
            "inplace": info.inplace_variant is not None,
            "gradgrad": info.supports_autograd and info.supports_gradgrad,
            "forward_ad": info.supports_forward_ad,
        }
        tree = {
            "dtypes": " ".join(d for d in DEFAULT if getattr(torch, d) in forward),
            "backward": " ".join(d for d in DEFAULT if info.supports_autograd and getattr(torch, d) in backward),
            "flags": " ".join(flag for flag, is_set in flags.items() if is_set),
        }
        entries[key] = _without_empty(tree)
    return entries


def of_modules() -> dict[str, Any]:
    """The entries of `module_names.json`."""
    entries: dict[str, Any] = {}
    for name, info in modules.database().items():
        modes = (":train", ":eval") if info.train_and_eval_differ else ("",)
        for key in (*(name + mode for mode in modes), f"{name}:state"):
            tree = _module(key, info)
            if tree["dtypes"] or modules.mode_of(key) != "state":
                entries[key] = _without_empty(tree)
    return entries


def _module(key: str, info: Any) -> dict[str, str]:
    """Dtypes, dtypes with gradients, and flags of a row."""
    forward, backward, flags = list[str](), list[str](), set[str]()
    function = opinfo.ENTRIES.get(rules.FUNCTION_OF.get(modules.module_of(key), ""), opinfo.OpInfoEntry())
    takes_complex = torch.complex64 in info.dtypes or "complex64" in function.dtypes
    for dtype in (d for d in modules.DTYPES if takes_complex or FACTS[d].kind != "complex"):
        try:
            kept = modules.samples(key, dtype)
        except CaseError:
            continue
        ran = [_tried(key, s) for s in kept.values()]
        forward += [dtype] * any(done for done, _, _ in ran)
        backward += [dtype] * any(graded for _, graded, _ in ran)
        flags |= {"updates"} if any(updates for _, _, updates in ran) else set()
    if info.supports_gradgrad and backward:
        flags.add("gradgrad")
    return {"dtypes": " ".join(forward), "backward": " ".join(backward), "flags": " ".join(sorted(flags))}


def _tried(key: str, sample: Sample) -> tuple[bool, bool, bool]:
    """Whether the CPU computes a sample, and its gradient, and whether the call changes an operand."""
    flags = iter(sample.grads)

    def leaf(x: Any) -> Any:
        return x.detach().clone().requires_grad_(next(flags)) if isinstance(x, torch.Tensor) else x

    args, kwargs = tree = rebuilt((sample.args, sample.kwargs), leaf)
    before = [t.detach().clone() for t in tensors_of(tree)]
    with generators(seeded=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = modules.run(key, replace(sample, args=args, kwargs=kwargs))
        except Exception:  # the CPU does not have the dtype
            return False, False, False
        updates = any(bool(((a != b) & ((a == a) | (b == b))).any()) for a, b in zip(before, tensors_of(tree)))
        outs = [t for t in tensors_of(result) if t.requires_grad]
        try:
            torch.autograd.grad(
                [t.abs().sum() for t in outs], [t for t in tensors_of(tree) if t.requires_grad], allow_unused=True
            )
        except Exception:  # no gradient in this dtype
            return True, False, updates
    return True, bool(outs), updates


def of_optimizers() -> dict[str, Any]:
    """The entries of `optimizer_names.json`."""
    entries: dict[str, Any] = {}
    for name, info in optimizers.database().items():
        others = [
            how for how in IMPLEMENTATIONS if how in info.supported_impls or (how == "capturable" and info.has_capturable_arg)
        ]
        for key in (name, *(f"{name}:{how}" for how in others)):
            entries[key] = _without_empty(_optimizer(key, info))
    return entries


def _optimizer(key: str, info: Any) -> dict[str, str]:
    """Dtypes of the parameters, and those with gradients through the steps."""
    forward, backward = list[str](), list[str]()
    for dtype in optimizers.DTYPES:
        if dtype in UNREPEATABLE.get(key, ()) or (dtype == "complex64" and not info.supports_complex):
            continue
        if optimizers.optimizer_of(key) in optimizers.IN_BFLOAT16 and dtype != "bfloat16":
            continue
        try:
            kept = optimizers.samples(key, dtype).values()
        except CaseError:
            continue
        forward.append(dtype)
        with generators(seeded=True):
            through = optimizers.implementation_of(key) == "differentiable"
            graded = through and any(optimizers.runs(s, through=True) for s in kept)
        backward += [dtype] if graded else []
    return {"dtypes": " ".join(forward), "backward": " ".join(backward)}


def _without_empty(tree: dict[str, str]) -> dict[str, str]:
    return {word: said for word, said in tree.items() if said}


LISTS: dict[str, tuple[Path, Callable[[], dict[str, Any]]]] = {
    "opinfo": (opinfo.NAMES, of_opinfo),
    "modules": (modules.NAMES, of_modules),
    "optimizers": (optimizers.NAMES, of_optimizers),
}


if __name__ == "__main__":
    for name in sys.argv[1:] or LISTS:
        path, entries = LISTS[name]
        path.write_text(text(entries()), encoding="utf-8")
        print(f"wrote {path.name} of torch {torch_version()}")
