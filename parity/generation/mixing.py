"""Chooses an operand that may stay on the CPU while the others are on a device.

torch accepts this for a 0-d operand of most elementwise ops, values that are written by index or mask, index tensors, and
either side of a copy. To find out, the call runs on the meta device with that operand on the CPU. Each operator that gets
operands on both must be one whose devices the dispatcher does not check (`device_check: NoCheck` in torch's operator table),
and its own shape function must accept them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from parity.catalog.draw import Pick
from parity.catalog.row import Quirk, Row
from parity.core.case import Arg, Case, Slice, TensorSpec, Word, operands_in
from parity.core.errors import DeviceError
from parity.core.observer import Operators
from parity.devices.operator_table import table_path
from parity.execution.execute import Placed, attribute, backward, differentiable, forward, program
from parity.execution.inputs import build, torch_word

Kwargs = tuple[tuple[str, Arg], ...]
# Errors of shape functions that refuse operands on two devices.
REFUSES = ("Expected all tensors to be on the same device", "too many CPU scalars")
WANTS_CPU = "to be on cpu"  # in an error, of an operand that torch reads on the CPU
ATEN_UNSTRUCTURED = (
    *("logical_and", "logical_or", "logical_xor", "floor_divide", "__lshift", "__rshift", "__ilshift", "__irshift"),
    *("where", "fill", "index_put", "_index_put_impl"),
)
# The dispatch key of the shape functions of kernels; on the meta device Python replaces many of them, and checks less.
STRUCTURED = "CompositeExplicitAutogradNonFunctional"
WHOLE = "optimizers"  # they take lists of one device; samples do not say which operands are which
ATEN_COPIES = ("copy_", "_to_copy")
ATEN_BY_INDEX = ("index.Tensor", "index_put", "index_put_", "_index_put_impl_", "index.Tensor_out")  # take indices from the CPU


def is_possible(row: Row, specs: Sequence[TensorSpec]) -> bool:
    """Whether some operand is likely to be accepted on the CPU, so that `pick_operand` is worth its cost."""
    if row.draws.on_cpu == "either":
        return True
    return not row.is_sampled and row.family != WHOLE and any(_likely(row, k, s) for k, s in enumerate(specs))


def _likely(row: Row, k: int, s: TensorSpec) -> bool:
    if k == 0 and row.draws.on_cpu == "rest":
        return False
    return not s.shape or (k > 0 and row.draws.on_cpu == "indices" and s.dtype in ("int64", "bool"))


def pick_operand(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, pick: Pick) -> int | None:
    """The number of a likely operand that may stay on the CPU; None if there is none or torch refuses it."""
    specs = operands_in((args, kwargs))
    if row.draws.on_cpu == "either":
        return pick(len(specs))
    likely = [k for k, s in enumerate(specs) if _likely(row, k, s)]
    if not likely:
        return None
    k = likely[pick(len(likely))]
    return k if may_stay(row, args, kwargs, k) else None


def may_stay(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, k: int) -> bool:
    """Whether torch accepts the call with operand k on the CPU and the others on a device."""
    return _is_number(row, args, k) or _is_accepted(row, args, kwargs, k)


def _is_number(row: Row, args: tuple[Arg, ...], k: int) -> bool:
    """Whether operand k is the argument that torch reads as a number, although its shape functions require one device."""
    return Quirk.NUMBER in row.quirks and isinstance(args[-1], TensorSpec) and k == len(operands_in(args[:-1]))


def _is_accepted(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, k: int) -> bool:
    """Whether torch accepts the call with operand k on the CPU. Cached by dtype and rank of the operands, because sizes other
    than 0 and 1 do not matter."""
    key = row.call, k, _outline(args), tuple([(n, _outline(v)) for n, v in kwargs])
    if key not in _answers:
        if len(_answers) >= REMEMBERED:
            _answers.clear()
        _answers[key] = _run_on_meta(row, args, kwargs, k)
    return _answers[key]


REMEMBERED = 4096
_answers: dict[Any, bool] = {}


def _outline(a: Arg) -> Any:
    if isinstance(a, TensorSpec):
        return a.dtype, len(a.shape), min(a.numel, 2)
    if isinstance(a, tuple):
        return tuple([_outline(x) for x in a])
    return repr(a)  # 1, 1.0 and True are equal, but promote differently


def must_stay(row: Row, args: tuple[Arg, ...], kwargs: Kwargs) -> bool:
    """Whether the call says that one of its operands, which are all on a device, has to be on the CPU."""
    placed, named = _placed(args, kwargs, None)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attribute(row.call)(*placed, **named)
    except Exception as e:  # the meta device may not have the operator, or need the values: that says nothing here
        return WANTS_CPU in str(e).lower()
    return False


def _placed(args: tuple[Arg, ...], kwargs: Kwargs, k: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with tensors on the meta device, but operand k on the CPU."""
    numbers = iter(range(1 << 16))

    def place(a: Arg) -> Any:
        if isinstance(a, TensorSpec):
            device = "cpu" if next(numbers) == k else "meta"
            return torch.zeros(a.shape, dtype=getattr(torch, a.dtype), device=device)
        if isinstance(a, tuple):
            return tuple(place(x) for x in a)
        if isinstance(a, Word):
            return torch_word(a.name)
        return slice(a.start, a.stop, a.step) if isinstance(a, Slice) else a

    return tuple(place(a) for a in args), {n: place(v) for n, v in kwargs}


def _run_on_meta(row: Row, args: tuple[Arg, ...], kwargs: Kwargs, k: int) -> bool:
    placed, named = _placed(args, kwargs, k)
    allowed = True  # whether all operators accept their operands on the devices where they are

    def on_meta(func: Any, args: Any, kwargs: Any) -> Any:
        nonlocal allowed
        name = func.__name__.removesuffix(".default")
        if not name.startswith(ATEN_COPIES):
            given = (args[:1], args[2:]) if name in ATEN_BY_INDEX else (args, kwargs)
            leaves = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
            here = [t for t in leaves if t.is_cpu]
            if here and len(here) < len(leaves):
                first = bool(args) and args[0] is here[0]
                alone = len(here) == 1 and here[0].dim() == 0 and name in _unchecked_overloads()
                allowed &= alone and _accepts_mixed(func, first, args, kwargs)
                args, kwargs = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (args, kwargs))
        return func(*args, **kwargs)

    try:
        with torch.no_grad(), warnings.catch_warnings(), Operators(on_meta):
            warnings.simplefilter("ignore")
            attribute(row.call)(*placed, **named)
    except Exception:  # refused, or it depends on values, which meta tensors do not have: then it is not drawn
        return False
    return allowed


def _accepts_mixed(op: Any, first: bool, args: Any, kwargs: Any) -> bool:
    """Whether torch's own shape function of a structured operator accepts these operands. Of the other operators, some do, but
    allocate the result on the device of the first operand, which then must not be the one on the CPU."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), STRUCTURED):
        return op.__name__.partition(".")[0].rstrip("_") in ATEN_UNSTRUCTURED and not first
    try:
        op._op_dk(getattr(torch._C.DispatchKey, STRUCTURED), *args, **(kwargs or {}))
    except RuntimeError as e:  # other errors come from Python, after the shape function
        return not any(text in str(e) for text in REFUSES)
    return True


@cache
def _unchecked_overloads() -> frozenset[str]:
    """The overloads whose operands the dispatcher does not require on one device; none if torch has no operator table."""
    overloads, name = set[str](), ""
    try:
        lines = table_path().read_text(encoding="utf-8").splitlines()
    except DeviceError:
        return frozenset()
    for line in lines:
        if line.startswith("- func: "):
            name = line[8:].partition("(")[0]
        elif line.startswith("  device_check: NoCheck"):
            overloads.add(name)
    return frozenset(overloads)


def is_taken(row: Row, case: Case, finite: bool = False) -> bool:
    """Whether the CPU computes the call, and its gradients where the case records them; where `finite`, of finite numbers.
    Random numbers are always the same ones; torch's random state stays as it was."""
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = build(case)
            placed = Placed(tuple([o.base for o in inputs.operands]), tuple([o.view for o in inputs.operands]))
            live = forward(program(row), case, inputs, placed, case.under == "grad" and bool(row.grad))
            if cotangents := [torch.ones_like(t) for _, t in differentiable(live)]:
                backward(live, cotangents)
    except Exception:  # whatever torch, or parity's own function around it, raises for a call that it does not take
        return False
    finally:
        torch.set_rng_state(state)
    return not finite or all(bool(t.isfinite().all()) for _, t in live.outputs)
