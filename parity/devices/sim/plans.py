"""What the simulated device must know of each operator before it runs one, read from its schema once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# What an argument is: a tensor (or what torch has made of one: a plain number), a list of tensors, a device.
TENSOR, LIST, DEVICE = range(3)
NUMBERS = (bool, int, float, complex)


class HostOp:
    """An operator whose kernel is written here, in the shape of torch's OpOverload."""

    __slots__ = ("_schema", "function")

    def __init__(self, schema: Any, function: Callable[..., Any]) -> None:
        self._schema, self.function = schema, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Plan:
    """What must be known of an operator's schema, read once.

    positions: (index, kind) of the arguments that need work; by_name: the same for keyword arguments; returns: per result
    None (fresh) or (position, name, keyword-only) of the argument that it is; outs: names of out= arguments.
    op: the operator; call: the same without torch's Python around it. ours: registered here on purpose, so that no profile
    refuses it. takes_numbers: torch lets numbers stand for tensors in it, and treats them in type promotion as the CPU does.
    makes, names_dtype: whether a result is fresh, or a dtype asked for. pieces: torch's own way to it on this device, by an
    allocation and the out= overload, which whoever watches is to see; None where it has no other.
    """

    __slots__ = (
        "base",
        "by_name",
        "call",
        "makes",
        "names_dtype",
        "op",
        "ours",
        "outs",
        "overload",
        "pieces",
        "positions",
        "qualified",
        "returns",
        "takes_numbers",
    )

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


plans: dict[int, Plan] = {}  # by the id of the operator, which its plan keeps: torch hashes operators in Python


def plan_of(op: Any) -> Plan:
    """The plan of an operator, made when it is first asked for."""
    found = plans.get(id(op))
    if found is None:
        found = plans[id(op)] = Plan(op)
    return found
