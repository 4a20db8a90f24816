"""Samples of torch's own test data: one call each, whose tensors become the operands of a case, and the trees of arguments that
they come in.

A case names its sample by index, torch version and digest; layouts, special values and the rest are drawn as for other rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.catalog.draw import Arguments, Draw
from parity.core.case import TensorSpec, Values
from parity.core.compiler import set_deterministic
from parity.core.errors import CaseError

if TYPE_CHECKING:
    from torch import Tensor


@contextlib.contextmanager
def generators(seeded: bool = False) -> Iterator[None]:
    """Restores the global random generators at exit. seeded: seeds them, and makes torch fill uninitialised memory (out=
    tensors), so that the code inside is reproducible."""
    import numpy
    import torch

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if seeded:
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        set_deterministic(True, warn_only=True)
    try:
        yield
    finally:
        set_deterministic(*before)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of an argument tree in order; one that occurs twice is yielded twice."""
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(part)


def dtype_of(t: Tensor) -> str:
    """The name of a tensor's dtype without `torch.`."""
    return str(t.dtype).removeprefix("torch.")


def outline(t: Tensor) -> str:
    """A tensor's dtype and shape as text."""
    return f"{dtype_of(t)}{list(t.shape)}"


def rebuilt(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The tree with `leaf` applied to all leaves (no list, tuple or dict), in the order of `tensors_of`."""
    if isinstance(tree, dict):
        return {k: rebuilt(v, leaf) for k, v in tree.items()}
    if isinstance(tree, list):
        return [rebuilt(part, leaf) for part in tree]
    if type(tree) is tuple:
        return tuple(rebuilt(part, leaf) for part in tree)
    return leaf(tree)


def digest_of(tree: Any, tensors: Iterable[Tensor]) -> str:
    """8 hex digits over the bytes of the tensors and the text of everything else (without the addresses of functions)."""
    import torch

    h = hashlib.blake2b(digest_size=4)
    shown = repr(rebuilt(tree, lambda x: outline(x) if isinstance(x, torch.Tensor) else x))
    h.update(re.sub(r" at 0x[0-9a-f]+", "", shown).encode())
    for t in tensors:
        flat = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        h.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return h.hexdigest()


def runs_dense(function: Callable[..., Any], sample: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a function accepts dense copies of the tensors of (args, kwargs): some samples are windows of larger memory that
    the op reads."""
    import torch

    def dense(leaf: Any) -> Any:
        return leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = rebuilt(sample, dense)
    try:
        function(*args, **kwargs)
    except RuntimeError:
        return False
    return True


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
