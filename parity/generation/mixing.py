"""Which operands of a call may stay on the CPU while the others are on a device.

torch lets a 0-d operand of most elementwise ops, the numbers that are written by index or mask, index tensors, and either side
of a copy be on the CPU. Which ones is asked of torch itself: the call runs on the meta device with that operand on the CPU,
and each operator that is handed both must be one whose operands no dispatcher checks (`device_check: NoCheck` in torch's
operator table), and whose own shape function takes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from parity.catalog.draw import Pick
from parity.catalog.row import Row
from parity.errors import DeviceError
from parity.execute import attribute
from parity.inputs import torch_word
from parity.operators import table_path
from parity.vocabulary import Arg, Slice, TensorSpec, Word

Kwargs = tuple[tuple[str, Arg], ...]
# What torch reads as a number on any device; its shape-only implementation asks for one device.
NUMBERS = {"masked_fill": 2, "index_fill": 3}
# Where torch has the shape functions of its kernels; on the meta device Python stands in for many of them, and checks less.
REFUSES = ("Expected all tensors to be on the same device", "too many CPU scalars")
UNSTRUCTURED = (
    *("logical_and", "logical_or", "logical_xor", "floor_divide", "__lshift", "__rshift", "__ilshift", "__irshift"),
    *("where", "fill", "index_put", "_index_put_impl"),
)
STRUCTURED = "CompositeExplicitAutogradNonFunctional"
WHOLE = ("opinfo", "optimizers")  # tensors of samples that cannot be told apart; lists of one device
INDEXED = (
    *("getitem_advanced", "setitem_advanced", "index", "index_put", "index_put_accumulate", "index_put_mask"),
    "index_put_kernel",
)
FIRST_THERE = ("isclose", "allclose")  # write into what they make of the first operand, save where a mode looks on
COPIES = ("copy_", "setitem")  # either side may be on the CPU, whatever its shape
BY_INDEX = ("index.Tensor", "index_put", "index_put_", "_index_put_impl_", "index.Tensor_out")  # take indices from the CPU


def may(row: Row, specs: Sequence[TensorSpec]) -> bool:
    """Whether it is worth asking."""
    if row.name in COPIES:
        return True
    return row.family not in WHOLE and any(_likely(row, k, s) for k, s in enumerate(specs))


def _likely(row: Row, k: int, s: TensorSpec) -> bool:
    if k == 0 and row.name in FIRST_THERE:
        return False
    return not s.shape or (k > 0 and row.name in INDEXED and s.dtype in ("int64", "bool"))


def on_cpu(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, pick: Pick) -> int | None:
    """The number of an operand that may stay on the CPU, one of those for which that is likely; None where torch refuses it."""
    specs = list(_specs((args, tuple(v for _, v in kwargs))))
    if row.name in COPIES:
        return pick(len(specs))
    likely = [k for k, s in enumerate(specs) if _likely(row, k, s)]
    if not likely:
        return None
    k = likely[pick(len(likely))]
    return k if _is_number(row, args, k) or _passes(row, args, kwargs, k) else None


def _is_number(row: Row, args: tuple[Arg, ...], k: int) -> bool:
    at = NUMBERS.get(row.name, 0)
    return bool(at) and isinstance(args[at], TensorSpec) and k == len(list(_specs(args[:at])))


def _specs(tree: Any) -> Iterator[TensorSpec]:
    if isinstance(tree, TensorSpec):
        yield tree
    elif isinstance(tree, tuple):
        for a in tree:
            yield from _specs(a)


def _passes(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, k: int) -> bool:
    """Whether torch takes the call with operand k on the CPU. Asked once for all operands of one dtype and rank: where they may
    lie does not depend on their sizes, save 0 and 1."""
    key = row.call, k, _outline(args), tuple([(n, _outline(v)) for n, v in kwargs])
    if key not in _asked:
        if len(_asked) >= REMEMBERED:
            _asked.clear()
        _asked[key] = _ask(row, args, kwargs, k)
    return _asked[key]


REMEMBERED = 4096
_asked: dict[Any, bool] = {}


def _outline(a: Arg) -> Any:
    if isinstance(a, TensorSpec):
        return a.dtype, len(a.shape), min(a.numel, 2)
    if isinstance(a, tuple):
        return tuple([_outline(x) for x in a])
    return repr(a)  # 1, 1.0 and True are equal, and promote otherwise


def _ask(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, k: int) -> bool:
    made = iter(range(1 << 16))

    def place(a: Arg) -> Any:
        if isinstance(a, TensorSpec):
            device = "cpu" if next(made) == k else "meta"
            return torch.zeros(a.shape, dtype=getattr(torch, a.dtype), device=device)
        if isinstance(a, tuple):
            return tuple(place(x) for x in a)
        if isinstance(a, Word):
            return torch_word(a.name)
        return slice(a.start, a.stop, a.step) if isinstance(a, Slice) else a

    placed, named = tuple(place(a) for a in args), {n: place(v) for n, v in kwargs}
    watch = _Watch()
    try:
        with torch.no_grad(), warnings.catch_warnings(), watch:
            warnings.simplefilter("ignore")
            attribute(row.call)(*placed, **named)
    except Exception:  # refused, or not to be told without numbers: then it is not drawn
        return False
    return watch.fine


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Whether every operator so far takes its operands from where they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self.fine = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.removesuffix(".default")
        if not name.startswith("copy_") and not name.startswith("_to_copy"):
            given = (args[:1], args[2:]) if name in BY_INDEX else (args, kwargs)
            leaves = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
            here = [t for t in leaves if t.is_cpu]
            if here and len(here) < len(leaves):
                first = bool(args) and args[0] is here[0]
                alone = len(here) == 1 and here[0].dim() == 0 and name in _lenient()
                self.fine &= alone and _iterates(func, first, args, kwargs)
                args, kwargs = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _iterates(op: Any, first: bool, args: Any, kwargs: Any) -> bool:
    """Whether torch's own shape function of a structured operator takes these operands. Of the others, some do, and make their
    result beside the first operand, which then cannot be the one on the CPU."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), STRUCTURED):
        return op.__name__.partition(".")[0].rstrip("_") in UNSTRUCTURED and not first
    try:
        op._op_dk(getattr(torch._C.DispatchKey, STRUCTURED), *args, **(kwargs or {}))
    except RuntimeError as e:  # whatever else it says comes from Python, behind the shape function
        return not any(text in str(e) for text in REFUSES)
    return True


@cache
def _lenient() -> frozenset[str]:
    """The overloads whose operands the dispatcher lets stand on different devices; none where torch has no table."""
    found, name = set[str](), ""
    try:
        lines = table_path().read_text(encoding="utf-8").splitlines()
    except DeviceError:
        return frozenset()
    for line in lines:
        if line.startswith("- func: "):
            name = line[8:].partition("(")[0]
        elif line.startswith("  device_check: NoCheck"):
            found.add(name)
    return frozenset(found)
