"""Builds the tensors of a case from its description alone: dense bases on the CPU, and the views of them that the layouts ask
for.

Bases are uploaded and views are made on the device, because copying a view would make it dense.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.catalog import entries
from parity.core import layout as layouts
from parity.core.case import Case, Layout, Slice, TensorSpec, Word, map_operands_in
from parity.core.dtypes import FACTS, DtypeFacts
from parity.core.errors import CaseError
from parity.execution import values

# Value of the elements of a base outside the view: no value that a family draws, and a legal index.
FILL = {"float": 7.25, "complex": 7.25, "int": 7, "bool": True}
LARGE_BASE, HASHED = 1 << 22, 1 << 16  # bytes from which a base is not hashed whole, and what is hashed at its ends


@dataclass(frozen=True, slots=True)
class Slot:
    """Placeholder of operand number `index` in an argument tree."""

    index: int


@functools.cache
def _slot(index: int) -> Slot:
    return Slot(index)


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor operand on the CPU: its description, its dense base, and the view of it."""

    spec: TensorSpec
    base: Tensor
    view: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """All operands of a case in the order of its text, and the argument trees with a Slot for each operand.

    fed: number of operands at the end that are no arguments of the call but cotangents or tangents; they are passed together
    as the keyword argument `fed`.
    """

    operands: tuple[Operand, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fed: int = 0

    def digest(self) -> str:
        """Hash of all bases, 12 hex digits: equal on two machines if they ran the same inputs. Of a large base it takes the
        first and the last bytes, and a sum of all words between them, which costs a tenth of a hash of them."""
        h = hashlib.blake2b(digest_size=6)
        for o in self.operands:
            if not (size := o.base.nbytes):
                continue
            if size <= LARGE_BASE:
                h.update(raw_bytes(o.base))
                continue
            whole = _bytes_of(o.base)
            h.update(whole[:HASHED])
            h.update(whole[-HASHED:])
            h.update(int(np.frombuffer(whole[: len(whole) // 8 * 8], np.int64).sum()).to_bytes(8, "little", signed=True))
        return h.hexdigest()


def raw_bytes(t: Tensor) -> bytes:
    """The bytes of a tensor's elements, row-major; read from the host's memory where they lie so in it."""
    if t.is_contiguous() and t.is_cpu and not (t.is_neg() or t.is_conj()):
        return ctypes.string_at(t.data_ptr(), t.nbytes)
    return _bytes_of(t).tobytes() if t.numel() else b""


def _bytes_of(t: Tensor) -> memoryview:
    """The bytes of the elements of a tensor that has some, row-major; they are copied only where its memory holds others."""
    return t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().data


def apply(base: Tensor, layout: Layout, shape: tuple[int, ...]) -> Tensor:
    """The view of `shape` with this layout of its base; every step is one view operation of torch."""
    t = base
    for cut, given in _cuts(layout, shape):
        t = cut(t, *given)
    return t


def cut(base: Tensor, layout: Layout, shape: tuple[int, ...]) -> Tensor:
    """`apply` in one `as_strided`, for bases that need no gradient."""
    if not layout:
        return base
    form = layouts.form(shape, layout)
    return apply(base, layout, shape) if form is None else base.as_strided(shape, form[0], base.storage_offset() + form[1])


Cut = tuple[Callable[..., Tensor], tuple[Any, ...]]


@functools.lru_cache(maxsize=8192)
def _cuts(layout: Layout, shape: tuple[int, ...]) -> tuple[Cut, ...]:
    """The view operations of a layout, each with its arguments after the tensor."""
    cuts: list[Cut] = []
    for k, (word, *ints) in enumerate(layout):
        of, to = (layouts.base_shape(shape, layout[j:]) for j in (k, k + 1))
        cuts += _STEPS[str(word)]([int(i) for i in ints], of, to)
    return tuple(cuts)


def _stepped(i: Sequence[int], of: tuple[int, ...]) -> tuple[slice, ...]:
    index = [slice(None)] * len(of)
    index[i[0]] = slice(i[2], None, i[1])
    return tuple(index)


_take = Tensor.__getitem__
# Step -> its view operations; i: its integers, of and to: the shapes before and after it.
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
    """The value of elements outside the views of this dtype."""
    return FILL[_facts(dtype).kind]


@functools.cache
def _facts(dtype: torch.dtype) -> DtypeFacts:
    return FACTS[str(dtype).removeprefix("torch.")]


def lay(dense: Tensor, layout: Layout, fill: float | int | bool | None = None) -> tuple[Tensor, Tensor]:
    """(base, view): the view has the values of `dense` in the layout, the rest of the base is `fill`."""
    if not layout:
        return dense, dense
    shape = tuple(dense.shape)
    base = torch.full(layouts.base_shape(shape, layout), fill_like(dense.dtype) if fill is None else fill, dtype=dense.dtype)
    last = len(layout)
    while last and layout[last - 1][0] == "expand":
        last -= 1
        dim = int(layout[last][1])
        dense = dense.narrow(dim, 0, min(1, dense.shape[dim]))
    view = cut(base, layout[:last], tuple(dense.shape)).copy_(dense)
    return base, view if last == len(layout) else cut(base, layout, shape)


def operand(spec: TensorSpec, position: int, dense: Tensor | None = None) -> Operand:
    """One operand. dense: its values, if they do not come from its family."""
    index = spec.values.family == "index" or spec.values.family == "unique"
    fresh = not spec.layout  # values that are copied into a base need no copy before
    base, view = lay(values.dense(spec, position, fresh) if dense is None else dense, spec.layout, 0 if index else None)
    return Operand(spec, base, view)


def build(case: Case) -> Inputs:
    """All tensors of a case. Raises CaseError if this machine cannot build them."""
    operands: list[Operand] = []

    def place(spec: TensorSpec) -> Any:
        alike = (o for o in operands if case.sharing and replace(o.spec, grad=spec.grad) == spec)
        if one := next(alike, None):
            operands.append(replace(one, spec=spec))
        else:
            operands.append(operand(spec, len(operands), _sample(case, spec) if spec.values.family == "sample" else None))
        return _slot(len(operands) - 1)

    args, kwargs = map_operands_in((case.args, case.kwargs), place)
    return Inputs(tuple(operands), args, dict(kwargs))


def _sample(case: Case, spec: TensorSpec) -> Tensor:
    """The tensor of a sample, or its leading corner where the shape is smaller than the sample's."""
    index, position = (int(p) for p in spec.values.params)
    whole = entries.sample_tensor(case.op, case.dtype, index, position).detach()
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
    """The argument tree with tensors for Slots, slices for Slices, and `word(name)` for Words."""
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
    """The attribute of torch with this name. Raises CaseError."""
    try:
        return getattr(torch, name)
    except AttributeError:
        raise CaseError(f"torch has no attribute '{name}', which the case names") from None
