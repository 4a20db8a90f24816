"""Argument trees of OpInfo samples (lists, tuples and dicts with tensors): traversal, digests, reproducible generation."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from parity.core.compiler import set_deterministic

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
