"""The contents of a value: its tensors and numbers by path, and the leaves that hold neither.

pytree's containers are opened with pytree's names. Also opened are mappings, lists, dataclasses, modules, and any object with
attributes that hold a tensor. Values without an order, or that can be read only once, are refused.

Tensors of every kind: the dense parts of those that are not dense themselves, and how one is made anew of its parts.

A wrapper subclass (torchao's weights, nf4, jagged and masked tensors) has no memory of its own but holds tensors: those that
its `__tensor_flatten__` names, else those among its attributes. A sparse tensor holds its places and values. What has neither
is refused by its name.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, ValuesView
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import MappingKey, SequenceKey, TreeSpec, keystr, tree_flatten, tree_flatten_with_path

from parity.core.errors import UsageError
from parity.core.results import Raised
from parity.execution import execute as ex
from parity.execution.execute import with_memory

Leaf = tuple[str, Any]
NUMBERS = (bool, int, float, complex, np.generic)
_BARE = (
    str, bytes, bytearray, type(None), Enum, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_INT64 = 1 << 63
OWN = ("_parameters", "_buffers", "_modules")  # attributes in which a module keeps its parameters, buffers and submodules


def flattened(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[tuple[Any, Any]], TreeSpec]:
    """torch's `tree_flatten_with_path`. If the tree has a container that pytree knows but cannot name the items of, the items
    are numbered."""
    try:
        named, spec = tree_flatten_with_path(tree, is_leaf)
        return list(named), spec
    except ValueError:  # "Did not find a flatten_with_keys_fn for type"
        leaves, spec = tree_flatten(tree, is_leaf)
        return list(zip(_numbered(spec, ()), leaves, strict=True)), spec


def _numbered(spec: TreeSpec, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """A path for each leaf: names where the container is a mapping, else numbers."""
    if spec.is_leaf():
        yield path
        return
    named = spec.type in (dict, OrderedDict) and isinstance(spec.context, list)
    for i, child in enumerate(spec.children() if hasattr(spec, "children") else spec.children_specs):
        yield from _numbered(child, (*path, MappingKey(spec.context[i]) if named else SequenceKey(i)))


def is_number(x: Any) -> bool:
    """Whether it is one number that a tensor can hold."""
    return isinstance(x, NUMBERS) and not (isinstance(x, int) and not -_INT64 <= x < _INT64) and _numeric(x)


def is_array(x: Any) -> bool:
    """Whether it is a numpy array of numbers."""
    return isinstance(x, np.ndarray) and _numeric(x)


def _numeric(x: Any) -> bool:
    """Whether torch has the dtype: it has no number wider than float64 and complex128."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return True
    return x.dtype.kind in "biu" or (x.dtype.kind == "f" and x.itemsize <= 8) or (x.dtype.kind == "c" and x.itemsize <= 16)


def leaves(value: Any, path: str) -> tuple[Leaf, ...]:
    """All leaves of a result, in order: tensors, numbers, arrays, and values that hold none of these.

    Raises UsageError, with the type, for sets, iterators and similar values.
    """
    return tuple(_Walk(strict=True).of(path, value))


def held(value: Any, path: str) -> tuple[tuple[str, Tensor], ...]:
    """The tensors in an argument that pytree does not open (a dataclass, a module, a user-defined object)."""
    return tuple((n, x) for n, x in _Walk(strict=False).of(path, value) if isinstance(x, Tensor))


class _Walk:
    """One traversal of a value. Each object and module is opened only once, even if it occurs several times."""

    def __init__(self, strict: bool, seen: set[int] | None = None) -> None:
        self._strict = strict
        self._seen: set[int] = set() if seen is None else seen

    def of(self, path: str, x: Any) -> Iterator[Leaf]:
        """The leaves below `path`."""
        if isinstance(x, (Tensor, np.ndarray, *_BARE)) or is_number(x):
            yield path, x
            return
        inner = flattened(x, lambda y: y is not x)[0]
        if not (len(inner) == 1 and inner[0][1] is x):
            for keys, child in inner:
                yield from self.of(path + str(keystr(keys)), child)
        elif isinstance(x, nn.Module):
            yield from self._module(path, x)
        elif (children := _children(x)) is not None:
            for key, child in children:
                yield from self.of(path + key, child)
        elif isinstance(x, (Set, Iterator)):
            yield from self._unordered(path, x)
        else:
            yield from self._object(path, x)

    def _module(self, path: str, m: nn.Module) -> Iterator[Leaf]:
        if id(m) not in self._seen:  # a part of it may refer to the whole
            yield from ((f"{path}.{n}", t) for n, t in (*m.named_parameters(), *m.named_buffers()))
            yield from ((f"{path}.{n}", t) for n, t in _Walk(False, self._seen).loose(m))

    def loose(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """As `loose` has it."""
        parts = dict(module.named_modules())
        self._seen |= set(map(id, parts.values()))
        for name, m in parts.items():
            for k, v in vars(m).items():
                if k not in OWN and not isinstance(v, (nn.Module, *_BARE)):
                    found = self.of(f"{name}.{k}" if name else k, v)
                    yield from ((n, x) for n, x in found if isinstance(x, Tensor))

    def _unordered(self, path: str, x: Any) -> Iterator[Leaf]:
        bare = isinstance(x, Set) and all(isinstance(e, _BARE) for e in x)
        if self._strict and not bare:
            why = "has no order" if isinstance(x, Set) else "can be read only once"
            raise UsageError(f"{path} is a {kind(x)}, which {why}; return a list of what it holds")
        if isinstance(x, Set) and not bare:
            yield from (leaf for e in x for leaf in self.of(f"{path}{{...}}", e))
        else:
            yield path, x

    def _object(self, path: str, x: Any) -> Iterator[Leaf]:
        if id(x) in self._seen:
            return
        self._seen.add(id(x))
        inner = [leaf for k, v in attributes(x) for leaf in self.of(f"{path}.{k}", v)]
        # An object counts as a result only if it holds a tensor or array: a clock or a counter holds numbers, too.
        if any(isinstance(v, (Tensor, np.ndarray)) for _, v in inner):
            # What else it holds (a cache's dtype and device) is no part of the result.
            yield from ((n, v) for n, v in inner if isinstance(v, (Tensor, np.ndarray)) or is_number(v))
        else:
            yield path, x


def _children(x: Any) -> Iterable[Leaf] | None:
    """(key, child) of a container that pytree does not know; None for other values."""
    if isinstance(x, Mapping):
        # A key that is a tensor (an optimizer's state) is named by its position, because its repr is its numbers.
        return [(f"[{i if isinstance(k, Tensor) else repr(k)}]", v) for i, (k, v) in enumerate(x.items())]
    if dataclasses.is_dataclass(x):
        return [(f".{f.name}", getattr(x, f.name)) for f in dataclasses.fields(x) if hasattr(x, f.name)]
    if isinstance(x, (list, tuple, deque, ValuesView)):  # other sequences may compute their items on access
        return [(f"[{i}]", v) for i, v in enumerate(x)]
    return None


def attributes(x: Any) -> Iterator[Leaf]:
    """The attributes in an object's dict and slots, without computing any property."""
    yield from getattr(x, "__dict__", {}).items()
    for cls in type(x).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(x, name):
                yield name, getattr(x, name)


def loose(module: nn.Module) -> tuple[tuple[str, Tensor], ...]:
    """Tensors of a module that are neither parameters nor buffers, so that `.to` does not move them."""
    return tuple(_Walk(strict=False).loose(module))


def kind(x: Any) -> str:
    """The name of a value's type, for a message."""
    return type(x).__qualname__ if type(x).__module__ == "builtins" else f"{type(x).__module__}.{type(x).__qualname__}"


PLAIN = (Tensor, nn.Parameter, nn.Buffer)
_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
SPARSE = {  # layout -> the methods that give what a tensor consists of
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}


def is_wrapper(t: Tensor) -> bool:
    """Whether it has no memory of its own, but holds other tensors: a sparse one, or of such a subclass."""
    if type(t) in PLAIN or nn.parameter.is_lazy(t):
        return not nn.parameter.is_lazy(t) and t.layout in SPARSE
    return t.layout in SPARSE or is_traceable_wrapper_subclass(t) or not _has_memory(t)


def _has_memory(t: Tensor) -> bool:
    if t.layout is not torch.strided or t.is_nested:
        return not isinstance(t, MaskedTensor)
    try:
        t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # "Attempted to access the data pointer on an invalid python storage"
        return False
    return True


def unplaced(t: Tensor) -> str:
    """What a tensor is that a simulated device cannot hold, with what it can; empty for all others."""
    if t.is_quantized:
        return "quantized; give its .dequantize()"
    if t.is_nested and t.layout is torch.strided:
        return "nested and strided; give one with layout=torch.jagged"
    if t.layout in (torch.sparse_bsr, torch.sparse_bsc):
        return "sparse in blocks; give its .to_sparse_csr()"
    return "" if t.layout is torch.strided or is_wrapper(t) else f"laid out as {t.layout}; give its .to_dense()"


def refused(name: str, of: str, t: Tensor) -> None:
    """Raise UsageError for a tensor without numbers that could be copied, or of a class that cannot be opened. of: whose."""
    why = ""
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        why = "is a level of torch.func (vmap, grad, jvp), whose numbers nobody else sees: call parity outside of it"
    elif type(t).__module__.startswith("torch._subclasses"):
        why = f"is a {type(t).__name__}, which has no numbers: give a real tensor"
    elif is_wrapper(t) and not _inner(t):
        why = (
            f"is a {kind(t)}, a tensor subclass without memory of its own, and parity does not know what it holds: give its "
            "class __tensor_flatten__ and __tensor_unflatten__"
        )
    if why:
        raise UsageError(f"'{name}' of {of} {why}")
    for inner, part in _inner(t) if is_wrapper(t) else ():
        refused(_path(name, inner), of, part)


def _inner(t: Tensor) -> tuple[tuple[str, Tensor], ...]:
    """The tensors that a wrapper holds, by the names of its attributes."""
    if t.layout in SPARSE:
        return tuple((n, getattr(t.detach(), n)()) for n in SPARSE[t.layout])
    if is_traceable_wrapper_subclass(t):
        return tuple((n, x) for n in t.__tensor_flatten__()[0] if isinstance(x := getattr(t, n), Tensor))
    return tuple(named for k, v in vars(t).items() for named in held(v, k))


def parts(name: str, t: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors with memory that an input or parameter consists of: itself, or those that a wrapper holds."""
    if not is_wrapper(t):
        yield name, t
        return
    for inner, x in _inner(t):
        yield from parts(_path(name, inner), x)


def opened(name: str, t: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The dense tensors in which a result is judged. They carry its gradient where torch differentiates what opens it. Raises
    UsageError as `refused` does."""
    refused(name, "the result", t)
    if type(t) not in PLAIN and not is_wrapper(t):
        with torch._C.DisableTorchFunctionSubclass():
            t = t.as_subclass(Tensor)
    if isinstance(t, MaskedTensor):  # below its mask lies anything
        masked: Any = t  # torch has no types for it
        yield from opened(f"{name}.data", masked.to_tensor(0))
        yield from opened(f"{name}.mask", masked.get_mask())
    elif t.is_nested and t.layout is torch.jagged:
        yield f"{name}.values", t.values()
        yield from ((_path(name, n), x) for n, x in _inner(t) if n in ("_offsets", "_lengths"))
    elif t.is_nested:
        yield from ((f"{name}[{i}]", x) for i, x in enumerate(t.unbind()))
    elif is_wrapper(t) and t.layout not in SPARSE:
        for inner, x in _inner(t):
            yield from opened(_path(name, inner), x)
    elif t.is_quantized:
        yield name, t.dequantize()
    else:
        yield name, with_memory(t) if t.layout is torch.strided else t.to_dense()


def _path(name: str, inner: str) -> str:
    return f"{name}.{inner.lstrip('_')}"


def rebuilt(t: Tensor, place: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor of the same kind, detached. place: the copy of each dense part."""
    if t.layout is torch.sparse_coo:
        places, numbers = (place(x) for _, x in _inner(t))
        return torch.sparse_coo_tensor(places, numbers, t.shape, check_invariants=False, is_coalesced=t.is_coalesced())
    if t.layout in SPARSE:
        begins, places, numbers = (place(x) for _, x in _inner(t))
        return torch.sparse_compressed_tensor(begins, places, numbers, size=t.shape, layout=t.layout, check_invariants=False)
    if is_traceable_wrapper_subclass(t):
        names, context = t.__tensor_flatten__()
        inner: dict[str, Any] = {n: place(x) if isinstance(x := getattr(t, n), Tensor) else x for n in names}
        return type(t).__tensor_unflatten__(inner, context, t.size(), t.stride()).detach()
    memo: dict[int, Any] = {id(x): place(x) for _, x in _inner(t)}
    made: Tensor = torch.Tensor._make_wrapper_subclass(
        type(t), t.size(), t.stride(), 0, dtype=t.dtype, layout=t.layout,
        device=next(iter(memo.values())).device, requires_grad=False,
    )  # fmt: skip
    _hand_on(vars(t), made, memo)
    return made


def dressed(plain: Tensor, t: Tensor) -> Tensor:
    """A dense copy as a tensor of the original's class, with its attributes."""
    if type(t) in PLAIN:
        return plain
    made: Tensor = torch.Tensor._make_subclass(type(t), plain)
    _hand_on({k: v for k, v in vars(t).items() if not isinstance(v, Tensor)}, made, {})
    return made


def _hand_on(attributes: Mapping[str, Any], made: Tensor, memo: dict[int, Any]) -> None:
    """Give a tensor copies of these attributes; what cannot be copied (a lock, a file), and functions as they are: a copy of
    a bound method is one of all that its object holds."""
    for name, value in attributes.items():
        copy_ = value if inspect.isroutine(value) else ex.attempt(functools.partial(copy.deepcopy, value, memo), "run")
        vars(made)[name] = value if isinstance(copy_, Raised) else copy_


def as_parameter(placed: Tensor, t: Tensor) -> Tensor:
    """A copy of a parameter as a parameter of its class."""
    if type(placed) is Tensor:
        return nn.Parameter(placed, requires_grad=t.requires_grad)
    placed._is_param = True  # how torch marks those of a subclass
    return placed.requires_grad_(t.requires_grad)
