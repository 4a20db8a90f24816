"""Samples of torch's own test data: one call each, whose tensors become the operands of a case.

A case names its sample by index, torch version and digest; layouts, special values and the rest are drawn as for other rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.catalog.draw import Arguments, Draw
from parity.catalog.opinfo_trees import digest_of, dtype_of, tensors_of
from parity.core.case import TensorSpec, Values
from parity.core.errors import CaseError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One call: args and kwargs as torch's test data gives them, their tensors in tree order, and which of these may require a
    gradient.

    out_of_range: the call must be refused because of an index out of range.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[Tensor, ...]
    grads: tuple[bool, ...]
    digest: str
    out_of_range: bool = False


def not_imported(what: str, e: Exception) -> CaseError:
    """What is said where test data of torch cannot be imported: what to install, if a package is missing."""
    missing = isinstance(e, ModuleNotFoundError) and not (e.name or "").startswith("torch.")
    to_do = "install what they need: pip install numpy expecttest" if missing else "this torch fails in itself"
    return CaseError(f"{what} cannot be imported ({type(e).__name__}: {e}); {to_do}")


def sample_of(args: tuple[Any, ...], kwargs: dict[str, Any], grads: Callable[[Tensor], bool], beyond: bool = False) -> Sample:
    """The sample of a call. grads: whether a tensor may require a gradient."""
    tensors = tuple(tensors_of((args, kwargs)))
    return Sample(args, kwargs, tensors, tuple(map(grads, tensors)), digest_of((args, kwargs), tensors), beyond)


def draw_sample(kept: Mapping[int, Sample], draw: Draw, on_cpu: bool = False) -> Arguments:
    """One of the samples: its index, a spec per tensor, torch version and digest. Most samples of some entries are empty
    matrices (46 of 64 of svd), so three of four cases are drawn from the others. on_cpu: all operands but the first stay on the
    CPU."""
    full = tuple([index for index, s in kept.items() if all(t.numel() for t in s.tensors)])
    index = draw.choice(full if 0 < len(full) < len(kept) and draw.pick(4) else tuple(kept))
    return call_of(index, kept[index], on_cpu)


def call_of(index: int, sample: Sample, on_cpu: bool = False) -> Arguments:
    """A sample with TensorSpecs for its tensors. on_cpu: all but the first stay on the CPU."""
    specs = tuple(
        TensorSpec(
            dtype_of(t), tuple(t.shape), values=Values("sample", (index, position)), grad=grad, on_cpu=on_cpu and position > 0
        )
        for position, (t, grad) in enumerate(zip(sample.tensors, sample.grads))
    )
    return Arguments((index, *specs), (("torch", torch_version()), ("digest", sample.digest)))


def evenly(indices: list[int], most: int) -> list[int]:
    """At most so many of the indices, evenly spaced."""
    return indices if len(indices) <= most else [indices[k * len(indices) // most] for k in range(most)]


def torch_version() -> str:
    """The version of the installed torch without its build ("2.13.0" for "2.13.0+cpu")."""
    import torch

    return str(torch.__version__).partition("+")[0]


def stored(path: Path) -> dict[str, Any]:
    """The content of a list of entries."""
    tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tree
