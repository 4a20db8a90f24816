"""Tensors of every kind: the dense parts of those that are not dense themselves, and how one is made anew of its parts.

A wrapper subclass (torchao's weights, nf4, jagged and masked tensors) has no memory of its own but holds tensors: those that
its `__tensor_flatten__` names, else those among its attributes. A sparse tensor holds its places and values. What has neither
is refused by its name.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from parity.comparing.leaves import held, kind
from parity.core.errors import UsageError
from parity.core.results import Raised
from parity.execution import execute as ex
from parity.execution.execute import with_memory

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
