"""Facts that the simulated device needs about each operator before it runs it, read from its schema once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
