"""The backend fallback: every operator that reaches the device runs its CPU kernel on host aliases of the arguments."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.core.errors import FaultError
from parity.devices.sim import memory
from parity.devices.sim.call import WRAPPED, Call
from parity.devices.sim.faults import run_through
from parity.devices.sim.memory import NAME, adopt, set_conj, to_host, to_host_in_place, to_sim
from parity.devices.sim.plans import DEVICE, LIST, NUMBERS, TENSOR, Plan, plan_of, plans, shaped
from parity.devices.sim.profile import composing
from parity.devices.sim.seats import SEATS, Seat

_watching, _Unseen = torch._C._len_torch_function_stack, torch._C.DisableTorchFunction
PIECES: list[str] = []  # operators that torch runs as an allocation and their out= overload, for the duration of the call


def run_as(op: Any, ours: bool = True) -> Callable[..., Any]:
    """The kernel of an operator that torch would otherwise decompose or not find: `op` itself, whole, on host aliases.

    ours: whether a profile lets it pass though it is not in its table.
    """
    plans[id(op)] = Plan(op, ours)
    return functools.partial(fallback, op)


def run_at_once(op: Any, key: Any) -> Callable[..., Any]:
    """The kernel of a functional operator that torch makes of an allocation and its out= overload on this device: where nobody
    watches these, both in one call of the CPU's.

    key: the dispatch key under which torch has that way.
    """
    plan = plans[id(op)] = Plan(op)
    plan.pieces = functools.partial(op._op_dk, key)
    return functools.partial(fallback, op)


def run_composed(op: Any, key: Any) -> Callable[..., Any]:
    """The kernel of a composed operator that a profile treats as one: torch's own composition, known to be inside it.

    key: the dispatch key under which torch has that composition.
    """
    plan = Plan(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        on_device = (a for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor) and not a.is_cpu)
        if (first := next(on_device, None)) is not None:
            seat = SEATS[first.get_device()]
            seat.profile.admit(plan.qualified, plan.overload)
            if seat.witness is not None:
                seat.witness(plan.qualified, args, kwargs, first)
        with composing(plan.overload):
            return op._op_dk(key, *args, **kwargs)

    return kernel


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the host and hand its results back as sim tensors; in-place and out= return the caller's own.

    A mode of public functions has seen the call; that it saw each attribute read in here would cost as much as the call.
    """
    if not _watching():
        return _on_aliases(op, args, kwargs)
    with _Unseen():
        return _on_aliases(op, args, kwargs)


def _on_aliases(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    plan = plans.get(id(op)) or plan_of(op)
    if memory.live_zeros and (answer := _with_live_zeros(plan, args, kwargs)) is not None:
        return answer
    host = list(args)
    index, count = -1, len(host)
    numbers: list[int] | None = None
    for i, kind in plan.positions:
        if i >= count:
            break
        a = host[i]
        if a is None:
            continue
        if kind == LIST:
            index, host[i] = _host_list(a, index)
        elif kind == DEVICE:
            index, host[i] = _index_of(a, index), torch.device("cpu")
        elif isinstance(a, Tensor):
            if not a.is_cpu:
                first = index < 0
                if first:
                    index = a.get_device()
                if plan.pieces is not None and (SEATS[index].busy if first else a.get_device() != index):
                    return _in_pieces(plan, args, kwargs)  # torch refuses another device there
                host[i] = to_host(a)
            elif a.dim():
                raise RuntimeError(_mixed(plan, args, kwargs))
        elif not plan.takes_numbers:  # a wrapped number reaches Python as a plain number
            numbers = [*numbers, i] if numbers else [i]
    if numbers:
        _wrap_numbers(plan, host, numbers)
    index, kwhost = _host_kwargs(plan, kwargs, index) if kwargs else (index, kwargs)
    index = max(index, 0)
    seat = SEATS[index]
    if seat.busy and plan.pieces is not None:
        return _in_pieces(plan, args, kwargs)
    result = _on_host(plan, seat, host, kwhost, args, kwargs)
    return _results(plan, result, args, kwargs, index)


def _with_live_zeros(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result where an operand may be zeros by definition (`zeros`); None if that changes nothing."""
    return memory.product_with_zeros(plan.overload, args, kwargs) if plan.pieces is None else _in_pieces(plan, args, kwargs)


def _on_host(
    plan: Plan, seat: Seat, host: list[Any], kwhost: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call the CPU's kernel on host aliases. args, kwargs: the device's own arguments, of which these are the aliases."""
    if seat.busy:
        return _watched(plan, seat, host, kwhost, args, kwargs)
    try:
        return plan.call(*host, **kwhost)
    except RuntimeError as e:
        if not plan.outs or "not resizable" not in str(e):
            raise
        # Imported memory begins at the offset of the tensor, and so does the form that torch has lost.
        forms = {n: (t.shape, t.stride(), 0) for n in plan.outs if isinstance(t := kwargs.get(n), Tensor)}
        return _regrown(plan, host, kwhost, forms)


def _in_pieces(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A functional operator in torch's own way, where somebody watches its allocation and its out= overload."""
    assert plan.pieces is not None
    PIECES.append(plan.base)
    try:
        return _pieces_of(plan, args, kwargs)
    finally:
        PIECES.pop()


def _pieces_of(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, with numbers as tensors where the operator takes none."""
    assert plan.pieces is not None
    if not plan.takes_numbers:
        numbers = [i for i, kind in plan.positions if kind == TENSOR and i < len(args) and isinstance(args[i], NUMBERS)]
        if numbers:
            given = list(args)
            _wrap_numbers(plan, given, numbers)
            WRAPPED.extend(given[i] for i in numbers)
            try:
                return plan.pieces(*given, **kwargs)
            finally:
                del WRAPPED[-len(numbers) :]
    return plan.pieces(*args, **kwargs)


def _wrap_numbers(plan: Plan, host: list[Any], numbers: list[int]) -> None:
    """Numbers become tensors of the dtype that they would not change: they rank below every tensor in type promotion."""
    tensors = [t for i, t in enumerate(host) if isinstance(t, Tensor) and not (plan.base == "where" and i == 0)]
    for i in numbers:
        dtype = None
        for t in tensors:
            wanted = torch.result_type(t, host[i])
            dtype = wanted if dtype is None else torch.promote_types(dtype, wanted)
        past = type(host[i]) is int and dtype in _WHOLE and not _WHOLE[dtype].min <= host[i] <= _WHOLE[dtype].max
        host[i] = _past(plan, host, i, dtype) if past else torch.tensor(host[i], dtype=dtype)


_WHOLE = {d: torch.iinfo(d) for d in (torch.uint8, torch.int8, torch.int16, torch.int32)}


def _past(plan: Plan, host: list[Any], i: int, dtype: torch.dtype | None) -> Tensor:
    """A number past the range of the other integers, in the dtype of the result (copysign of bytes by -1 gives float32).

    Where the result is an integer, it wraps around.
    """
    given = [torch.empty_like(a, device="meta") if isinstance(a, Tensor) else a for a in host]
    given[i] = torch.empty((), dtype=dtype, device="meta")
    result = getattr(torch.ops.aten, plan.base)(*given)
    inexact = isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex())
    return torch.tensor(host[i]).to(result.dtype if inexact else dtype)


def _host_list(values: Any, index: int) -> tuple[int, list[Any]]:
    host = []
    for x in values:
        if isinstance(x, Tensor) and not x.is_cpu:
            if index < 0:
                index = x.get_device()
            x = to_host(x)
        host.append(x)
    return index, host


def _index_of(device: torch.device, index: int) -> int:
    return (device.index or 0) if index < 0 and device.type == NAME else index


def _host_kwargs(plan: Plan, kwargs: dict[str, Any], index: int) -> tuple[int, dict[str, Any]]:
    host: dict[str, Any] = {}
    for name, a in kwargs.items():
        kind = plan.by_name.get(name)
        if kind is not None and a is not None:
            if kind == LIST:
                index, a = _host_list(a, index)
            elif kind == DEVICE:
                index, a = _index_of(a, index), torch.device("cpu")
            elif isinstance(a, Tensor) and not a.is_cpu:
                if index < 0:
                    index = a.get_device()
                # Imported memory owns no allocator and cannot grow: an empty out= gets a fresh host tensor that may.
                may_grow = name in plan.outs and a.numel() == 0
                a = torch.empty_like(a, device="cpu") if may_grow else to_host(a)
        host[name] = a
    return index, host


def _mixed(plan: Plan, args: Any, kwargs: Any) -> str:
    flat = tree_leaves((args, kwargs))
    device = next((str(a.device) for a in flat if isinstance(a, Tensor) and not a.is_cpu), f"{NAME}:0")
    return (
        f"Expected all tensors to be on the same device, but found at least two devices, {device} and cpu! "
        f"(when checking argument in method wrapper_{plan.base})"
    )


def _run(plan: Plan, host: list[Any], kwhost: dict[str, Any]) -> Any:
    before = {n: (t.shape, t.stride(), t.storage_offset()) for n in plan.outs if (t := kwhost.get(n)) is not None}
    try:
        return plan.call(*host, **kwhost)
    except RuntimeError as e:
        if "not resizable" not in str(e) or not plan.outs:
            raise
    return _regrown(plan, host, kwhost, before)


def _regrown(plan: Plan, host: list[Any], kwhost: dict[str, Any], forms: dict[str, tuple[Any, ...]]) -> Any:
    """Repeat a call that failed because a destination (out=) could not be resized, now with destinations that can be.

    forms: (shape, strides, offset) of each destination before the failed call, by name; they are restored first.
    """
    # torch sets the new sizes before it finds that imported memory cannot grow; a fault still has the destination in hand.
    for name, form in forms.items():
        kwhost[name].as_strided_(*form)
    fresh = {n: _able_to_grow(kwhost[n]) for n in plan.outs}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")  # it has said so already
        return plan.call(*host, **kwhost | fresh)


def _able_to_grow(t: Tensor) -> Tensor:
    """The same destination in memory of its own. What a kernel does depends on the form that it finds (LAPACK's leave an
    empty one column by column), and some leave what is there (the statistics of batch norm in evaluation)."""
    span = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 if t.numel() else 0
    return t.as_strided((span,), (1,)).clone().as_strided(t.shape, t.stride())


def _results(plan: Plan, result: Any, args: Any, kwargs: Any, index: int) -> Any:
    returns = plan.returns
    if len(returns) == 1:
        if (place := returns[0]) is not None:
            return _hand_back(place, result, args, kwargs)
        return to_sim(result, index) if isinstance(result, Tensor) else _wrap(result, index)
    if not returns:
        return None
    return tuple(_wrap(r, index) if place is None else _hand_back(place, r, args, kwargs) for r, place in zip(result, returns))


def _wrap(result: Any, index: int) -> Any:
    if isinstance(result, Tensor):
        return to_sim(result, index)
    return tree_map(lambda r: to_sim(r, index) if isinstance(r, Tensor) else r, result)


def _hand_back(place: tuple[int, str, bool], result: Tensor, args: Any, kwargs: Any) -> Tensor:
    position, name, keyword = place
    own: Tensor = kwargs[name] if keyword or position >= len(args) else args[position]
    if memory.live_zeros:
        memory.forget_zeros(own)
    if result.is_conj() != own.is_conj():  # solvers leave their destination so; a copy into it minds the bit
        set_conj(own, result.is_conj())
    # Another memory: the kernel got a destination that may grow, or made one (mse_loss.out grows its own in between).
    # Other strides: reflection_pad3d.out picks its memory format itself.
    if result.stride() != own.stride() or result.data_ptr() != own.data_ptr() or result.shape != own.shape:
        adopt(own, result)
    return own


# ------------------------------------------------------------------------ what costs something and is only sometimes wanted


def _watched(plan: Plan, seat: Seat, host: list[Any], kwhost: dict[str, Any], args: Any, kwargs: Any) -> Any:
    profile = seat.profile
    if not plan.ours:
        profile.admit(plan.qualified, plan.overload)
    if plan.names_dtype and profile.refused_dtypes:
        for a in (*host, *kwhost.values()):
            if isinstance(a, torch.dtype):
                profile.check(a)
    faults = seat.faults_for(plan.overload, plan.base)
    run = _run if seat.computes is None else functools.partial(shaped, seat.computes, _run)
    if faults:
        host = [_true_view(h, a) for h, a in zip(host, args)]
        kwhost = {k: _true_view(h, kwargs[k]) for k, h in kwhost.items()}
        call = Call(
            plan.overload,
            "kernel",
            host,
            kwhost,
            _destinations(plan, host, kwhost),
            seat.history,
            lambda c: run(plan, c.args, c.kwargs),
            (args, kwargs),
            dict(seat.resolved),
            bool(PIECES) and PIECES[-1] == plan.base,
        )
        result = settle(plan.returns, run_through(faults, call), call.outs, plan.overload)
    else:
        result = run(plan, host, kwhost)
    seat.note(plan.overload)
    if seat.resolved:
        seat.resolved.clear()
    if plan.makes and seat.allocation_faults:
        for r in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(r, Tensor):
                allocated(seat, torch.empty_like(r))  # the kernel writes all of its result: what is left there is lost
    if plan.makes and profile.refused_dtypes:
        for r in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(r, Tensor):
                profile.check(r.dtype, r.dim())
    if seat.witness is not None:
        seat.witness(plan.qualified, host, kwhost, result)
    return result


def allocated(seat: Seat, fresh: Tensor) -> Tensor:
    """Fresh host memory as the faults of allocation leave it. Raises what they raise."""
    if not seat.allocation_faults:
        return fresh
    call = Call("empty", "allocation", [fresh.shape], {"dtype": fresh.dtype}, (), seat.history, lambda c: fresh)
    return cast(Tensor, settle((None,), run_through(seat.allocation_faults, call), (), "empty"))


def _true_view(host: Any, own: Any) -> Any:
    """The argument for a fault: with its true storage offset, and the memory next to it in reach."""
    if isinstance(host, list) and isinstance(own, (list, tuple)) and len(host) == len(own):
        return [_true_view(h, o) for h, o in zip(host, own)]
    if isinstance(host, Tensor) and isinstance(own, Tensor) and not own.is_cpu and host.data_ptr() == own.data_ptr() != 0:
        # Not what has no memory yet: a destination that may grow must stay one.
        whole = not own.storage_offset() and host.untyped_storage().nbytes() == own.untyped_storage().nbytes()
        return host if whole else to_host_in_place(own)
    return host


def _destinations(plan: Plan, host: list[Any], kwhost: dict[str, Any]) -> tuple[Tensor, ...]:
    places = (p for p in plan.returns if p is not None)
    return tuple(kwhost[n] if keyword or i >= len(host) else host[i] for i, n, keyword in places)


def settle(returns: tuple[Any, ...], answer: Any, outs: tuple[Tensor, ...], op: str) -> Any:
    """What a fault answered, as the kernel's result: tensors are written into the destinations, None leaves them be."""
    if not returns:
        return None
    answers = (answer,) if len(returns) == 1 else (None,) * len(returns) if answer is None else tuple(answer)
    remaining = iter(outs)
    settled = []
    for place, a in zip(returns, answers):
        if place is not None:
            a = _write(next(remaining), a)
        elif a is None and len(returns) == 1:
            raise FaultError(f"the effect on {op} returned None, and there is no destination to leave alone; return a tensor")
        settled.append(a)
    return settled[0] if len(returns) == 1 else tuple(settled)


def _write(destination: Tensor, answer: Tensor | None) -> Tensor:
    if answer is None or answer is destination:
        return destination
    if answer.shape != destination.shape:
        return answer  # as a kernel that resizes its destination does
    if (
        answer.data_ptr() != destination.data_ptr()
        or answer.stride() != destination.stride()
        or (answer.is_conj() != destination.is_conj() or answer.is_neg() != destination.is_neg())
    ):
        destination.copy_(answer)
    return destination
