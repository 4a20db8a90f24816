"""Case -> tensors, from the description alone: dense bases on the CPU, and the views that the layout cuts from them.

The base is what travels to a device; the view is made there, because copying a view would silently repair its layout.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity import layout as layouts
from parity import values
from parity.catalog import opinfo
from parity.dtypes import FACTS, DtypeFacts
from parity.errors import CaseError
from parity.swift import swift
from parity.vocabulary import Arg, Case, Layout, Slice, TensorSpec, Word

# What lies in a base beside the view: no value that a family draws, and a legal index.
FILL = {"float": 7.25, "complex": 7.25, "int": 7, "bool": True}


@dataclass(frozen=True, slots=True)
class Slot:
    """Where operand number `index` stands in an argument tree."""

    index: int


@functools.cache
def _slot(index: int) -> Slot:
    return Slot(index)


@swift
@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor operand on the CPU: its description, the dense base that is uploaded, and the view of it."""

    spec: TensorSpec
    base: Tensor
    view: Tensor


@swift
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
    for cut, given in _cuts(layout, shape):
        t = cut(t, *given)
    return t


def cut(base: Tensor, layout: Layout, shape: tuple[int, ...]) -> Tensor:
    """`apply` in one call, for bases that nothing is differentiated through: torch makes its views by `as_strided` anyway."""
    if not layout:
        return base
    form = layouts.form(shape, layout)
    return apply(base, layout, shape) if form is None else base.as_strided(shape, form[0], base.storage_offset() + form[1])


Cut = tuple[Callable[..., Tensor], tuple[Any, ...]]


@functools.lru_cache(maxsize=8192)
def _cuts(layout: Layout, shape: tuple[int, ...]) -> tuple[Cut, ...]:
    """The view operations of a layout with their arguments behind the tensor: worked out once for all sides and aspects."""
    found: list[Cut] = []
    for k, (word, *ints) in enumerate(layout):
        of, to = (layouts.base_shape(shape, layout[j:]) for j in (k, k + 1))
        found += _STEPS[str(word)]([int(i) for i in ints], of, to)
    return tuple(found)


def _stepped(i: Sequence[int], of: tuple[int, ...]) -> tuple[slice, ...]:
    index = [slice(None)] * len(of)
    index[i[0]] = slice(i[2], None, i[1])
    return tuple(index)


_take = Tensor.__getitem__
# Step -> its view operations; i: its integers, of and to: the shapes before and behind it.
_STEPS: dict[str, Callable[[list[int], tuple[int, ...], tuple[int, ...]], list[Cut]]] = {
    "flat": lambda i, of, to: [(_take, (slice(i[0], of[0] - i[1]),)), (Tensor.view, (to,))],
    "select": lambda i, of, to: [(_take, (i[0],))],
    "slice": lambda i, of, to: [(Tensor.narrow, (i[0], i[1], to[i[0]]))],
    "step": lambda i, of, to: [(_take, (_stepped(i, of),))],
    "transpose": lambda i, of, to: [(Tensor.transpose, (i[0], i[1]))],
    "permute": lambda i, of, to: [(Tensor.permute, (tuple(i),))],
    "channels_last": lambda i, of, to: [(Tensor.permute, (layouts.channels_last_permutation(len(of)),))],
    "expand": lambda i, of, to: [(Tensor.expand, (to,))],
    "conj": lambda i, of, to: [(Tensor.conj, ())],
    "neg": lambda i, of, to: [(torch._neg_view, ())],
}


def fill_like(dtype: torch.dtype) -> float | int | bool:
    """The value that lies beside the views of this dtype."""
    return FILL[_facts(dtype).kind]


@functools.cache
def _facts(dtype: torch.dtype) -> DtypeFacts:
    return FACTS[str(dtype).removeprefix("torch.")]


def lay(made: Tensor, layout: Layout, fill: float | int | bool | None = None) -> tuple[Tensor, Tensor]:
    """(base, view) where the view holds the values of `made` in the layout, and the rest of the base holds `fill`."""
    if not layout:
        return made, made
    shape = tuple(made.shape)
    base = torch.full(layouts.base_shape(shape, layout), fill_like(made.dtype) if fill is None else fill, dtype=made.dtype)
    last = len(layout)
    while last and layout[last - 1][0] == "expand":
        last -= 1
        dim = int(layout[last][1])
        made = made.narrow(dim, 0, min(1, made.shape[dim]))
    view = cut(base, layout[:last], tuple(made.shape)).copy_(made)
    return base, view if last == len(layout) else cut(base, layout, shape)


def operand(spec: TensorSpec, position: int, made: Tensor | None = None) -> Operand:
    """One operand; `made` are its values where they do not come from a family."""
    index = spec.values.family == "index" or spec.values.family == "unique"
    fresh = not spec.layout  # what is copied into a base need not be a copy itself
    base, view = lay(values.dense(spec, position, fresh) if made is None else made, spec.layout, 0 if index else None)
    return Operand(spec, base, view)


def build(case: Case) -> Inputs:
    """All tensors of a case. Raises CaseError where the description cannot be realised here."""
    operands: list[Operand] = []

    def place(arg: Arg) -> Any:
        kind = type(arg)
        if kind is TensorSpec:
            assert isinstance(arg, TensorSpec)
            operands.append(operand(arg, len(operands), _sample(case, arg) if arg.values.family == "sample" else None))
            return _slot(len(operands) - 1)
        return tuple([place(a) for a in arg]) if isinstance(arg, tuple) else arg

    args = tuple([place(a) for a in case.args])
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


def realise(tree: Any, tensors: Sequence[Tensor], word: Callable[[str], Any]) -> Any:
    """An argument tree with the tensors in their slots, slices as slices, and words turned by `word`."""
    kind = type(tree)
    if kind is Slot:
        return tensors[tree.index]
    if kind in _PLAIN:
        return tree
    if isinstance(tree, tuple):
        return tuple([realise(a, tensors, word) for a in tree])
    if kind is Word:
        return word(tree.name)
    if kind is Slice:
        return slice(tree.start, tree.stop, tree.step)
    return tree


_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


def torch_word(name: str) -> Any:
    """A bare word of a case as torch's own attribute. Raises CaseError."""
    try:
        return getattr(torch, name)
    except AttributeError:
        raise CaseError(f"torch has no attribute '{name}', which the case names") from None
