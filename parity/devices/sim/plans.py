"""Facts that the simulated device needs about each operator before it runs it, read from its schema once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

# Kinds of arguments: a tensor (or the plain number that torch turned it into), a list of tensors, a device.
TENSOR, LIST, DEVICE = range(3)
NUMBERS = (bool, int, float, complex)


class HostOp:
    """An operator whose kernel is implemented in parity, with the interface of torch's OpOverload."""

    __slots__ = ("_schema", "function")

    def __init__(self, schema: Any, function: Callable[..., Any]) -> None:
        self._schema, self.function = schema, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Plan:
    """What is needed of an operator's schema, read once.

    positions: (index, kind) of the arguments that must be converted; by_name: the same for keyword arguments; returns: for each
    result None (fresh) or (position, name, keyword-only) of the argument that it is; outs: names of out= arguments. op: the
    operator; call: the same without torch's Python wrapper. ours: registered by parity, so no profile refuses it.
    takes_numbers: torch accepts numbers for tensors and treats them in type promotion as the CPU does. makes, names_dtype:
    whether a result is fresh, or an argument names a dtype. pieces: torch's own implementation on this device, an allocation
    and the out= overload, used when either is observed; None if there is none.
    """

    __slots__ = (
        "base", "by_name", "call", "makes", "names_dtype", "op", "ours", "outs", "overload", "pieces", "positions", "qualified",
        "returns", "takes_numbers",
    )  # fmt: skip

    def __init__(self, op: Any, ours: bool = False) -> None:
        self.op = op
        self.call: Callable[..., Any] = getattr(op, "_op", op)
        schema = op._schema
        space, _, self.base = schema.name.partition("::")
        self.overload = self.base + (f".{schema.overload_name}" if schema.overload_name else "")
        self.qualified = f"{space}::{self.overload}"
        self.takes_numbers = torch._C._should_allow_numbers_as_tensors(self.base) and not isinstance(op, HostOp)
        self.ours = ours or isinstance(op, HostOp)
        self.pieces: Callable[..., Any] | None = None
        kinds = {i: k for i, a in enumerate(schema.arguments) if (k := _kind(str(a.type))) is not None}
        self.by_name: dict[str, int] = {schema.arguments[i].name: k for i, k in kinds.items()}
        self.positions = tuple((i, k) for i, k in kinds.items() if not schema.arguments[i].kwarg_only)
        written = {
            frozenset(a.alias_info.before_set): (i, a.name, a.kwarg_only)
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        }
        self.returns = tuple(
            written.get(frozenset(r.alias_info.before_set)) if r.alias_info is not None and r.alias_info.is_write else None
            for r in schema.returns
        )
        self.makes = None in self.returns
        self.names_dtype = any("dtype" in a.name for a in schema.arguments)
        self.outs = tuple(a.name for a in schema.arguments if a.is_out)


def _kind(type_name: str) -> int | None:
    if type_name in ("Tensor", "Optional[Tensor]"):
        return TENSOR
    if "Tensor" in type_name:
        return LIST
    return DEVICE if "Device" in type_name else None


plans: dict[int, Plan] = {}  # by id, because torch hashes operators in Python; the plan keeps the operator alive


def plan_of(op: Any) -> Plan:
    """The plan of an operator, created at the first call."""
    plan = plans.get(id(op))
    if plan is None:
        plan = plans[id(op)] = Plan(op)
    return plan


# ------------------------------------------------------------------------------ calls that are too large to be computed


def unwritten(t: Tensor, limit: int) -> Tensor:
    """A tensor on the CPU with the form of `t`. Up to `limit` elements it is zeros; above, whatever the system gives: zeros, as
    a rule, for which it takes no memory before somebody writes."""
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu")
    return made.zero_() if t.numel() <= limit else made


def shaped(limit: int, run: Callable[..., Any], plan: Plan, host: list[Any], kwhost: dict[str, Any]) -> Any:
    """The results of an operator: computed by `run` where its tensors have at most `limit` elements together, or where their
    form depends on values; otherwise by torch's own kernels for tensors without memory."""
    elements = sum(x.numel() for x in tree_leaves((host, kwhost)) if isinstance(x, Tensor))
    if elements <= limit:
        return run(plan, host, kwhost)
    try:
        made = plan.call(*tree_map(_form, host), **tree_map(_form, kwhost))
    except (RuntimeError, NotImplementedError, TypeError):  # as torch says it of data-dependent forms, and of missing kernels
        return run(plan, host, kwhost)
    results = made if isinstance(made, (tuple, list)) else (made,)
    own = [_own(place, r, host, kwhost, limit) for place, r in zip((*plan.returns, *(None,) * len(results)), results)]
    return type(made)(own) if type(made) in (tuple, list) else tuple(own) if isinstance(made, tuple) else own[0]


def _form(x: Any) -> Any:
    """An argument without its values."""
    if isinstance(x, torch.device):
        return torch.device("meta")
    if not isinstance(x, Tensor) or (not x.dim() and x.device.type == "cpu" and x.numel() == 1 and not x.is_floating_point()):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _own(place: tuple[int, str, bool] | None, result: Any, host: list[Any], kwhost: dict[str, Any], limit: int) -> Any:
    """One result on the CPU: the destination itself where it has one that fits."""
    if not isinstance(result, Tensor):
        return tree_map(lambda r: unwritten(r, limit) if isinstance(r, Tensor) else r, result)
    if place is not None:
        position, name, keyword = place
        destination: Tensor = kwhost[name] if keyword or position >= len(host) else host[position]
        if destination.shape == result.shape:
            return destination
    return unwritten(result, limit) if result.device.type == "meta" else result
