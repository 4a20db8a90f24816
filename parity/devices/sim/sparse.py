"""Sparse and nested tensors on the simulated device: real ones, of sim tensors, whose operators run on the host.

A tensor in coordinates (COO) or compressed rows or columns (CSR, CSC) has no memory of its own that could be relabelled. Its
indices and values have, and torch's constructors for the CPU make a tensor of any device of them. So has what a nested strided
tensor is a view of. Operators that write into a sparse tensor are refused. Faults reach the operators that only sparse tensors
have (`_coalesce`, `_to_dense`), and every public function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.devices.operator_table import with_kernel
from parity.devices.sim.call import Call
from parity.devices.sim.faults import run_through
from parity.devices.sim.kernels import settle
from parity.devices.sim.memory import NAME, to_host, to_sim
from parity.devices.sim.plans import Plan, plan_of
from parity.devices.sim.profile import Profile
from parity.devices.sim.seats import SEATS, Seat
from parity.devices.sim.storage import allocating_on

_aten = torch.ops.aten
_keys: Any = torch._C.DispatchKey
# Device key -> the key of the CPU's kernels, and the operators that read or set what a tensor is made of: the CPU's will do.
NESTED = "NestedTensorPrivateUse1"
KINDS = {"SparsePrivateUse1": _keys.SparseCPU, "SparseCsrPrivateUse1": _keys.SparseCsrCPU, NESTED: _keys.NestedTensorCPU}
ATEN_PARTS = {
    "SparsePrivateUse1": (
        *("_indices", "_values", "indices", "values", "is_coalesced", "_coalesced_", "sparse_dim", "dense_dim"),
        *("_nnz", "_dimI", "_dimV", "_sparse_coo_tensor_with_dims_and_tensors"),
    ),
    "SparseCsrPrivateUse1": (
        *("crow_indices", "col_indices", "ccol_indices", "row_indices", "values", "sparse_dim", "dense_dim", "_nnz"),
    ),
    NESTED: ("values", "_to_copy", "copy_", *(f"_nested_tensor_{what}" for what in ("size", "strides", "storage_offsets"))),
}
ATEN_NESTED = ("_nested_tensor_from_tensor_list", "_nested_view_from_buffer", "_nested_tensor_from_mask", "_nested_from_padded")
ATEN_MOVED = ("t", "transpose.int", "permute")  # of a sparse tensor a copy
ATEN_TO_SPARSE = ("_to_sparse", "_to_sparse.sparse_dim", *(f"_to_sparse_{layout}" for layout in ("csr", "csc", "bsr", "bsc")))
REFUSED = (
    "Could not run '{op}' with arguments from the 'Sparse{device}' backend: the simulated device writes into no sparse tensor."
)
COO, CSR, NESTED_KEYS = (torch._C.DispatchKeySet(key) for key in KINDS.values())
DENSE = torch._C.DispatchKeySet(_keys.CPU)
COMPOSED = (_keys.CompositeExplicitAutograd, _keys.CompositeImplicitAutograd)
COMPRESSED = {torch.sparse_csr: ("crow_indices", "col_indices"), torch.sparse_csc: ("ccol_indices", "row_indices")}


def register(library: Callable[[str, str, str], Any]) -> Iterator[Any]:
    """The libraries that register the kernels. library: makes one of a namespace, "IMPL" and a dispatch key."""
    for key, cpu in KINDS.items():
        everything = library("_", "IMPL", "")
        everything.fallback(_fallback, key)
        parts = library("aten", "IMPL", key)
        for name in ATEN_PARTS[key]:
            parts.impl(name, _as_on_the_cpu(getattr(_aten, name).default, torch._C.DispatchKeySet(cpu)))
        for name in sorted((_with_kernels(str(cpu)) | {*ATEN_MOVED}) - {*ATEN_PARTS[key]}):
            parts.impl(name, _kernel(_overload(name)))
        yield from (everything, parts)
    dense = library("aten", "IMPL", "PrivateUse1")
    for name in (*ATEN_TO_SPARSE, *ATEN_NESTED):
        dense.impl(name, _kernel(_overload(name)))
    yield dense


def _with_kernels(key: str) -> set[str]:
    """The functional operators with a kernel for sparse tensors of the CPU. torch would compose some of them otherwise."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(key.rpartition(".")[2])
    names = {n.removeprefix("aten::") for n in registered if n.startswith("aten::")}
    return {n for n in names if not any(a.alias_info for a in _overload(n)._schema.arguments)}


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _as_on_the_cpu(op: Any, keys: Any) -> Callable[..., Any]:
    def part(*args: Any, **kwargs: Any) -> Any:
        with allocating_on(max((x.get_device() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), default=0)):
            return op.redispatch(keys, *args, **kwargs)

    return part


def _kernel(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _fallback(op, *args, **kwargs)

    return kernel


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the host. Raises NotImplementedError for one that writes into a sparse tensor."""
    plan = plan_of(op)
    written = [p and (kwargs[p[1]] if p[1] in kwargs else args[p[0]]) for p in plan.returns]
    if not written or any(w is not None and w.layout is not torch.strided for w in written):
        raise NotImplementedError(REFUSED.format(op=plan.qualified, device=NAME))
    leaves = tree_leaves((args, kwargs))
    index = next((_index_of(x) for x in leaves if _index_of(x) is not None), 0) or 0
    host, kwhost = list(tree_map(_to_host, list(args))), tree_map(_to_host, kwargs)
    seat = SEATS[index]
    result = _watched(plan, seat, host, kwhost, (args, kwargs)) if seat.busy else plan.call(*host, **kwhost)
    if len(written) == 1:
        return written[0] if written[0] is not None else tree_map(lambda r: _to_sim(r, index), result)
    return tuple(_to_sim(r, index) if w is None else w for r, w in zip(result, written))


def _watched(plan: Plan, seat: Seat, host: list[Any], kwhost: dict[str, Any], origin: tuple[Any, Any]) -> Any:
    """Run an operator where limits, faults or a log must see it."""
    _admit(plan, seat, host)
    has_dense = torch._C._dispatch_has_kernel_for_dispatch_key(plan.qualified, "CPU")
    unseen = (has_dense and plan.overload not in ATEN_TO_SPARSE) or _has_nested(host)
    faults = () if unseen else seat.faults_for(plan.overload, plan.base)
    if faults:
        call = Call(
            plan.overload, "kernel", host, kwhost, (), seat.history, lambda c: plan.call(*c.args, **c.kwargs), origin=origin
        )
        result = settle(plan.returns, run_through(faults, call), (), plan.overload)
    else:
        result = plan.call(*host, **kwhost)
    seat.note(plan.overload)
    return result


def _admit(plan: Plan, seat: Seat, host: list[Any]) -> None:
    """Refuse what MPS has no kernel for: it has tables of its own for each kind of sparse tensor. What torch composes for every
    device is no operator of MPS's."""
    nested = plan.overload in ATEN_NESTED or _has_nested(host)
    if seat.profile.table is None or (any(map(plan.op.has_kernel_for_dispatch_key, COMPOSED)) and not nested):
        return
    layouts = {x.layout for x in tree_leaves(host) if isinstance(x, Tensor)} - {torch.strided}
    key = "NestedTensorMPS" if nested else "SparseCsrMPS" if layouts & {*COMPRESSED} else "SparseMPS"
    if plan.overload not in with_kernel(key):
        Profile.admit(seat.profile, plan.qualified, "")  # a lenient one's too: it would not see that they are not there


def _index_of(x: Any) -> int | None:
    """The index of the simulated device that a tensor lies on, or that a device is."""
    if isinstance(x, torch.device):
        return (x.index or 0) if x.type == NAME else None
    return x.get_device() if isinstance(x, Tensor) and x.device.type == NAME else None


def _to_host(x: Any) -> Any:
    """An argument for the CPU's kernel: tensors with the same memory."""
    if isinstance(x, torch.device):
        return torch.device("cpu")
    if not isinstance(x, Tensor) or x.device.type != NAME:
        return x
    return to_host(x) if x.layout is torch.strided and not x.is_nested else _made_of(x, to_host)


def _to_sim(x: Any, index: int) -> Any:
    if not isinstance(x, Tensor):
        return x
    whole = x.layout is torch.strided and not x.is_nested
    return to_sim(x, index) if whole else _made_of(x, lambda part: to_sim(part, index))


def _has_nested(host: list[Any]) -> bool:
    return any(isinstance(x, Tensor) and x.is_nested for x in tree_leaves(host))


def _made_of(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A sparse or nested tensor of the changed parts of another one, below autograd. Raises NotImplementedError for blocks."""
    if x.is_nested:
        where = (_part(f"_nested_tensor_{n}", NESTED_KEYS)(x) for n in ("size", "strides", "storage_offsets"))
        buffer = change(_part("values", NESTED_KEYS)(x))
        return _aten._nested_view_from_buffer.default.redispatch(DENSE, buffer, *where)  # type: ignore[no-any-return]
    size = list(x.shape)
    if x.layout is torch.sparse_coo:
        places, values = (change(part(x)) for part in (_part("_indices"), _part("_values")))
        dims, coalesced = (_part("sparse_dim")(x), _part("dense_dim")(x)), _part("is_coalesced")(x)
        how = {"dtype": values.dtype, "layout": x.layout, "device": values.device}
        make = _aten._sparse_coo_tensor_with_dims_and_tensors.default
        with allocating_on(max(0, values.get_device())):
            return make.redispatch(COO, *dims, size, places, values, is_coalesced=coalesced, **how)  # type: ignore[no-any-return]
    if x.layout not in COMPRESSED:
        raise NotImplementedError(
            f"Could not run '{x.layout}' with arguments from the 'Sparse{NAME}' backend: the simulated device has no such "
            "tensors; take torch.sparse_csr or torch.sparse_coo"
        )
    begin, places, values = (change(_part(name, CSR)(x)) for name in (*COMPRESSED[x.layout], "values"))
    how = {"dtype": values.dtype, "layout": x.layout, "device": values.device}
    return _aten._sparse_compressed_tensor_unsafe.default(begin, places, values, size, **how)  # type: ignore[no-any-return]


def _part(name: str, keys: Any = None) -> Callable[[Tensor], Any]:
    """What a sparse tensor of either device is made of, by an operator of the CPU's."""
    return functools.partial(getattr(_aten, name).default.redispatch, keys or COO)
