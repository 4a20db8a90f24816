"""Calls for the rows of torch's modules and optimizers. The catalog never imports this module."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import optimizer as optimizers
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

Group = tuple[Tensor | None, ...]

# ---------------------------------------------------------------------------------------------------------------- modules


def run_module(
    make: Callable[[], Any],
    args: tuple[Any, ...],
    named: dict[str, Any],
    state: dict[str, Tensor],
    lengths: tuple[int, ...] = (),
    padded: str = "",
) -> Any:
    """The result of a module with these parameters and buffers, and, if it has buffers, what they hold after the call.

    make: returns the module on the CPU; its own parameters and buffers are not used. state: the tensors by their names.
    lengths: the first argument is the data of a packed sequence with so many sequences at each step. padded: the keyword
    argument that says which positions are padding, where the fast path of transformers may return anything."""
    module, tensors = make(), dict(state)
    given = [t for t in (*args, *named.values()) if isinstance(t, Tensor)]
    if any(torch.nn.parameter.is_lazy(p) for p in module.parameters()):
        module = _first_call(module, args, named, state)
    if lengths:
        args = (torch.nn.utils.rnn.PackedSequence(args[0], torch.tensor(lengths)), *args[1:])
    result = torch.func.functional_call(module, tensors, args, named)
    if lengths:
        result = (result[0].data, result[1])
    if padded:
        result = result.masked_fill(named[padded].unsqueeze(-1), 0.0)
    if getattr(module, "return_indices", False) or named.get("return_indices"):
        result = _picked(given[0], *result)
    buffers = {name: tensors[name] for name, _ in module.named_buffers()}
    return (result, buffers) if buffers else result


def _first_call(module: Any, args: tuple[Any, ...], named: dict[str, Any], state: dict[str, Tensor]) -> Any:
    """A lazy module after the first call, which gives it its shapes, on the device of the state."""
    like = next(iter(state.values()))
    module = copy.deepcopy(module).to(like.device, like.dtype)
    with torch.no_grad():
        module(*args, **named)
    made, wanted = ({name: tuple(t.shape) for name, t in d.items()} for d in (module.state_dict(), state))
    if made != wanted:
        raise AssertionError(f"the first call made {made}, not {wanted}")
    return module


def _picked(x: Tensor, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled values, and the input at the returned indices, which count through a plane. Any index of an equal element is
    right."""
    pooled = sum(a != b for a, b in zip(x.shape, indices.shape))
    planes, flat = x.detach().flatten(-pooled), indices.flatten(-pooled)
    return values, planes.gather(-1, flat).reshape(indices.shape)


def _layout(t: Tensor) -> list[int]:
    """Strides of the dimensions with more than one element; the others are unspecified."""
    return [s for s, n in zip(t.stride(), t.shape) if n > 1]


def run_state(make: Callable[[], Any], state: dict[str, Tensor]) -> dict[str, Any]:
    """The parameters and buffers of a module that goes to the device, gets its `state_dict` from the CPU, and comes back: their
    values, and whether dtypes, strides and `requires_grad` are kept on both ways."""
    device = next(iter(state.values())).device
    ours = {name: t.detach().to("cpu", copy=True) for name, t in state.items()}
    module = copy.deepcopy(make())
    module.load_state_dict({name: t.clone() for name, t in ours.items()}, assign=True)
    grads = {name: p.requires_grad for name, p in module.named_parameters()}
    module = module.to(device)
    there = {name: t.detach() for name, t in module.state_dict().items()}
    found: dict[str, Any] = {}
    for name, t in there.items():
        back = t.to("cpu", copy=True)
        kept = t.dtype == back.dtype == ours[name].dtype and _layout(t) == _layout(ours[name]) == _layout(back)
        found[f"{name} moved"], found[f"{name} keeps"] = back, kept
    with torch.no_grad():
        for t in there.values():
            t.zero_()
    module.load_state_dict(ours)
    for name, t in module.state_dict().items():
        found[f"{name} loaded"] = t.to("cpu", copy=True)
    found["requires_grad"] = grads == {name: p.requires_grad for name, p in module.named_parameters()}
    return found


# ------------------------------------------------------------------------------------------------------------- optimizers


CAPTURABLE = "_get_capturable_supported_devices"


def _available(options: dict[str, Any], device: str) -> dict[str, Any]:
    """The options without those that torch has for other devices only: `capturable` is for graphs, `fused` needs a kernel."""
    takes = {"capturable": ("cpu", *optimizers._get_capturable_supported_devices())}
    takes["fused"] = tuple(_get_fused_kernels_supported_devices())
    return {name: value for name, value in options.items() if name not in takes or device in takes[name]}


def _capturable_on_the_cpu(kind: type) -> contextlib.ExitStack:
    """Lets the CPU take `capturable`, so that it is a reference for formulas that differ from those without."""
    places = [sys.modules[c.__module__] for c in kind.__mro__]
    stack, devices = contextlib.ExitStack(), ["cpu", *optimizers._get_capturable_supported_devices()]
    for module in dict.fromkeys(m for m in places if m is not optimizers and hasattr(m, CAPTURABLE)):
        stack.enter_context(mock.patch.object(module, CAPTURABLE, return_value=devices))
    return stack


def _sparse(grad: Tensor) -> Tensor:
    """Every second row of a gradient, as a sparse tensor."""
    rows = torch.arange(0, grad.shape[0], 2, device=grad.device)
    return torch.sparse_coo_tensor(rows[None], grad[rows], grad.shape)


def _closure(own: list[Tensor], step: Group) -> Callable[[], Tensor]:
    """A loss whose gradients are the distances to `step`, times weights."""

    def closure() -> Tensor:
        with torch.enable_grad():
            distances = [((p - g).square() * (0.5 + k)).sum() for k, (p, g) in enumerate(zip(own, step)) if g is not None]
            for p in own:
                p.grad = None
            loss = torch.stack(distances).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return closure


def _moved(tree: Any) -> Any:
    """A state_dict on the CPU, as a file holds it."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {k: _moved(v) for k, v in tree.items()}
    return [_moved(v) for v in tree] if isinstance(tree, list) else tree


def _state(optimizer: Any, own: list[Tensor]) -> dict[str, Any]:
    """The tensors and numbers of an optimizer's state, by name and number of the parameter."""
    return {f"{n}{i}": v for i, p in enumerate(own) for n, v in optimizer.state[p].items() if isinstance(v, (Tensor, float))}


def _same_form(a: Any, b: Any) -> bool:
    """Whether two entries of a state have the same type, dtype and strides. torch itself leaves some steps on the CPU."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b)
    return a.dtype == b.dtype and _layout(a) == _layout(b)


def run_optimizer(
    name: str, params: tuple[Tensor, ...], grads: tuple[Group, ...], options: dict[str, Any], kind: str = ""
) -> dict[str, Any]:
    """Parameters after each step of torch.optim's `name`, and its state after the first and the last.

    After the first step the state goes to the CPU as a `state_dict`, and a new optimizer goes on from there. kind: "sparse"
    gradients, a "closure", "differentiable": gradients flow from the results to parameters and gradients, "scaled": by a
    gradient scaler, or "skipped": the scaler found an Inf."""
    options = _available(options, params[0].device.type)
    through = kind == "differentiable"
    dense = torch.contiguous_format if kind == "closure" else torch.preserve_format  # LBFGS takes no other gradients
    own = [p.clone() if through else torch.nn.Parameter(p.detach().clone(memory_format=dense)) for p in params]
    optimizer, found = getattr(torch.optim, name)(own, **options), dict[str, Any]()
    with warnings.catch_warnings(), _capturable_on_the_cpu(type(optimizer)):
        warnings.simplefilter("ignore")  # gradients of results that are no leaves
        for k, step in enumerate(grads, 1):
            if kind in ("scaled", "skipped"):
                optimizer.grad_scale = torch.full((), 4.0, device=own[0].device)
                optimizer.found_inf = torch.full((), float(kind == "skipped" and k == 2), device=own[0].device)
            for p, g in zip(own, step):
                if kind != "closure":
                    p.grad = None if g is None else _sparse(g) if kind == "sparse" else g.clone()
            optimizer.step(*([_closure(own, step)] if kind == "closure" else []))
            found.update({f"step{k}.param{i}": p.clone() if through else p.detach().clone() for i, p in enumerate(own)})
            state = _state(optimizer, own)
            if k in (1, len(grads)) and kind != "closure":
                found.update({f"step{k}.{n}": v.clone() if isinstance(v, Tensor) else v for n, v in state.items()})
            if k == 1 and not through:
                saved = _moved(optimizer.state_dict())
                optimizer = getattr(torch.optim, name)(own, **options)
                optimizer.load_state_dict(saved)
                loaded = _state(optimizer, own)
                found["state_dict"] = set(loaded) == set(state) and all(_same_form(state[n], loaded[n]) for n in state)
    return found
