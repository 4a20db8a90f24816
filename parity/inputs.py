"""Case -> tensors, from the description alone: dense bases on the CPU, and the views that the layout cuts from them.

The base is what travels to a device; the view is made there, because copying a view would silently repair its layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity import layout as layouts
from parity import values
from parity.catalog import opinfo
from parity.dtypes import FACTS
from parity.errors import CaseError
from parity.vocabulary import Arg, Case, Layout, Slice, TensorSpec, Word

# What lies in a base beside the view: no value that a family draws, and a legal index.
FILL = {"float": 7.25, "complex": 7.25, "int": 7, "bool": True}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where operand number `index` stands in an argument tree."""

    index: int


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor operand on the CPU: its description, the dense base that is uploaded, and the view of it."""

    spec: TensorSpec
    base: Tensor
    view: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """All operands of a case in the order of its text, and the argument trees with a Slot where each stands.

    fed: how many operands at the end are no arguments of the call but cotangents or tangents; they are handed over together,
    as the keyword argument `fed`.
    """

    operands: tuple[Operand, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fed: int = 0

    def digest(self) -> str:
        """12 hex digits over the bytes of all bases: two machines that agree on it judged the same inputs."""
        h = hashlib.blake2b(digest_size=6)
        for o in self.operands:
            h.update(raw_bytes(o.base))
        return h.hexdigest()


def raw_bytes(t: Tensor) -> bytes:
    """The bytes of a tensor's elements, row-major."""
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def apply(base: Tensor, layout: Layout, shape: tuple[int, ...]) -> Tensor:
    """The view of `shape` that the layout cuts from its base; every step is one torch view operation."""
    t = base
    for k, (word, *ints) in enumerate(layout):
        if word == "flat" or word == "expand":  # these go by the shape behind them
            t = _STEPS[word](t, ints, layouts.base_shape(shape, layout[k + 1 :]))
        else:
            t = _STEPS[str(word)](t, ints)
    return t


def _flat(t: Tensor, i: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    return t[i[0] : t.shape[0] - i[1]].view(shape)


def _step(t: Tensor, i: Sequence[int]) -> Tensor:
    dim, k, start = i
    index: list[Any] = [slice(None)] * t.dim()
    index[dim] = slice(start, None, k)
    return t[tuple(index)]


_STEPS: dict[str, Callable[..., Tensor]] = {
    "flat": _flat,
    "select": lambda t, i: t[i[0]],
    "slice": lambda t, i: t.narrow(i[0], i[1], t.shape[i[0]] - i[1] - i[2]),
    "step": _step,
    "transpose": lambda t, i: t.transpose(*i),
    "permute": lambda t, i: t.permute(i),
    "channels_last": lambda t, i: t.permute(layouts.channels_last_permutation(t.dim())),
    "expand": lambda t, i, shape: t.expand(shape),
    "conj": lambda t, i: t.conj(),
    "neg": lambda t, i: torch._neg_view(t),
}


def fill_like(dtype: torch.dtype) -> float | int | bool:
    """The value that lies beside the views of this dtype."""
    return FILL[FACTS[str(dtype).removeprefix("torch.")].kind]


def lay(made: Tensor, layout: Layout, fill: float | int | bool | None = None) -> tuple[Tensor, Tensor]:
    """(base, view) where the view holds the values of `made` in the layout, and the rest of the base holds `fill`."""
    if not layout:
        return made, made
    shape = tuple(made.shape)
    base = torch.full(layouts.base_shape(shape, layout), fill_like(made.dtype) if fill is None else fill, dtype=made.dtype)
    cut = len(layout)
    while cut and layout[cut - 1][0] == "expand":
        cut -= 1
        dim = int(layout[cut][1])
        made = made.narrow(dim, 0, min(1, made.shape[dim]))
    apply(base, layout[:cut], tuple(made.shape)).copy_(made)
    return base, apply(base, layout, shape)


def operand(spec: TensorSpec, position: int, made: Tensor | None = None) -> Operand:
    """One operand; `made` are its values where they do not come from a family."""
    index = spec.values.family == "index" or spec.values.family == "unique"
    base, view = lay(values.dense(spec, position) if made is None else made, spec.layout, 0 if index else None)
    return Operand(spec, base, view)


def build(case: Case) -> Inputs:
    """All tensors of a case. Raises CaseError where the description cannot be realised here."""
    operands: list[Operand] = []

    def place(arg: Arg) -> Any:
        if isinstance(arg, TensorSpec):
            made = None
            if arg.values.family == "sample":
                made = _sample(case, arg)
            operands.append(operand(arg, len(operands), made))
            return Slot(len(operands) - 1)
        return tuple(place(a) for a in arg) if isinstance(arg, tuple) else arg

    args = tuple(place(a) for a in case.args)
    kwargs = {k: place(v) for k, v in case.kwargs}
    return Inputs(tuple(operands), args, kwargs)


def _sample(case: Case, spec: TensorSpec) -> Tensor:
    """The tensor of an OpInfo sample, or its leading corner where the shape is smaller than the sample's."""
    index, position = (int(p) for p in spec.values.params)
    whole = opinfo.sample_tensor(case.op, case.dtype, index, position).detach()
    smaller = len(spec.shape) == whole.dim() and all(n <= m for n, m in zip(spec.shape, whole.shape))
    if not smaller or whole.dtype != getattr(torch, spec.dtype):
        raise CaseError(
            f"sample {index} of {case.op} has another tensor {position} here: {whole.dtype}{list(whole.shape)}; "
            "a case may hold a leading corner of it, no more"
        )
    raw = whole[tuple(slice(n) for n in spec.shape)].clone(memory_format=torch.contiguous_format)
    flat = raw.view(-1)
    for where, word in spec.values.specials:
        if flat.numel():
            flat[where % flat.numel()] = values.special(word, FACTS[spec.dtype])
    return raw


def realise(tree: Any, tensors: list[Tensor], word: Callable[[str], Any]) -> Any:
    """An argument tree with the tensors in their slots, slices as slices, and words turned by `word`."""
    if isinstance(tree, Slot):
        return tensors[tree.index]
    if isinstance(tree, tuple):
        return tuple(realise(a, tensors, word) for a in tree)
    if isinstance(tree, Word):
        return word(tree.name)
    if isinstance(tree, Slice):
        return slice(tree.start, tree.stop, tree.step)
    return tree


def torch_word(name: str) -> Any:
    """A bare word of a case as torch's own attribute. Raises CaseError."""
    try:
        return getattr(torch, name)
    except AttributeError:
        raise CaseError(f"torch has no attribute '{name}', which the case names") from None
