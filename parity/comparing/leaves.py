"""The contents of a value: its tensors and numbers by path, and the leaves that hold neither.

pytree's containers are opened with pytree's names. Also opened are mappings, lists, dataclasses, modules, and any object with
attributes that hold a tensor. Values without an order, or that can be read only once, are refused.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, ValuesView
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import MappingKey, SequenceKey, TreeSpec, keystr, tree_flatten, tree_flatten_with_path

from parity.core.errors import UsageError

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
