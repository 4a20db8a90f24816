"""torch's operators under their own names: `parity.catalog.glue.aten.gelu_backward` calls `torch.ops.aten.gelu_backward`.

Rows use these paths for operators that have device kernels but no public function. `out=` takes the destinations in the order
of the operator's own out= form, whatever their names there (grad_input, values, indices). The catalog never imports this
module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def __getattr__(name: str) -> Callable[..., Any]:
    """The operator of this name. Raises AttributeError if the installed torch has none."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _operator(name)


@functools.cache
def _operator(name: str) -> Callable[..., Any]:
    packet = getattr(torch.ops.aten, name)
    written = destinations(packet)

    def call(*args: Any, out: Any = None, **options: Any) -> Any:
        if out is None:
            return packet(*args, **options)
        into = out if isinstance(out, (tuple, list)) else (out,)
        return packet(*args, **options, **dict(zip(written, into, strict=True)))

    call.__name__ = name
    return call


def destinations(packet: Any) -> tuple[str, ...]:
    """Names of the destinations in the out= form of an operator; () if it has none."""
    for overload in packet.overloads():
        arguments = getattr(packet, overload)._schema.arguments
        written = tuple(a.name for a in arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write)
        if written:
            return written
    return ()
