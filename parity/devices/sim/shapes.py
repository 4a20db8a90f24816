"""Calls that are too large to be computed: results of the right form, in memory that nobody writes and that takes no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.devices.sim.plans import Plan


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
