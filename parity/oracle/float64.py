"""The call in float64 on the CPU, from the same rounded operands.

The results of healthy half-precision kernels: each CPU kernel computes in float32 and rounds its results once.

The CPU's own half kernels are a poor reference if they add up in the half type (gradients of norms and convolutions): their
error would excuse a device's. This run shows whether an error comes from those kernels or from the op.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from parity.catalog.row import Quirk
from parity.core.case import Case
from parity.core.dtypes import FACTS
from parity.core.observer import Operators
from parity.execution.execute import Named, Placed, Program, backward, forward
from parity.execution.inputs import Inputs, apply, torch_word


@dataclass(frozen=True, slots=True)
class Float64Results:
    """Results by name, in float64 or complex128 (integer and bool results in their own dtype)."""

    tensors: dict[str, Tensor]


def wide_word(name: str) -> object:
    """A bare word of a case, with inexact dtypes replaced by float64 or complex128."""
    if name in FACTS:
        return getattr(torch, FACTS[name].wide)
    return torch_word(name)


def widen(t: Tensor, computes: torch.dtype | None) -> Tensor:
    """An operand in the oracle's arithmetic. Integers that torch would promote are first rounded to the result's dtype."""
    facts = FACTS.get(str(t.dtype).removeprefix("torch."))
    if facts is None:
        return t
    if facts.is_inexact:
        return t.to(getattr(torch, facts.wide))
    if computes is not None and facts.kind in ("int", "bool"):
        real = computes.to_real()
        return t.to(real).to(getattr(torch, FACTS[str(real).removeprefix("torch.")].wide))
    return t


def widened(p: Program, case: Case, inputs: Inputs, computes: torch.dtype | None) -> Placed:
    """All operands in the oracle's arithmetic."""
    promoted = (
        computes
        if p.row.forms.promotes and computes is not None and (computes.is_floating_point or computes.is_complex)
        else None
    )
    bases, views = [], []
    for i, o in enumerate(inputs.operands):
        if p.row.forms.mutates and i == 0:
            base = widen(o.base, promoted)
            bases.append(base)
            views.append(apply(base, o.spec.layout, o.spec.shape))
        elif Quirk.MEMORY in p.row.quirks or (
            FACTS[o.spec.dtype].is_inexact and any(step[0] == "expand" for step in o.spec.layout)
        ):
            # Shared memory stays shared: a gradient through as_strided counts every use of an element.
            base = widen(o.base, promoted)
            bases.append(base)
            views.append(apply(base, o.spec.layout, o.spec.shape))
        else:
            view = widen(o.view, None if o.spec.dtype == "bool" and case.dtype != "bool" else promoted)
            if not FACTS[o.spec.dtype].is_inexact:
                # The CPU's kernels for expanded indices are wrong where the index is smaller than what it writes into
                # (scatter_add, torch 2.13).
                view = view.contiguous()
            bases.append(view)
            views.append(view)
    return Placed(tuple(bases), tuple(views))


def run(
    p: Program,
    case: Case,
    inputs: Inputs,
    placed: Placed,
    cotangents: Sequence[Tensor] | None,
    word: Callable[[str], Any] = wide_word,
    halfway: Callable[[Named], None] | None = None,
) -> Named:
    """Forward and, with cotangents, backward in the oracle's arithmetic. Raises whatever the op raises.

    word: maps the dtypes that the call names. halfway: called with the results of the forward before the backward begins. Never
    in inference mode, where a dispatch mode sees composed ops in one piece and misses the roundings inside.
    """
    case = replace(case, under="no_grad") if case.under == "inference" else case
    with sdpa_kernel(SDPBackend.MATH) if inputs.fed or _loses_nan(p, placed) else contextlib.nullcontext(), _fractions(word):
        live = forward(p, case, inputs, placed, cotangents is not None, word)
        results = tuple([(n, t.detach()) for n, t in live.outputs if not n.startswith("base[")])
        if halfway is not None:
            halfway(results)
        if not cotangents:
            return results
        grads = backward(live, [c.to(t.dtype) for c, (_, t) in zip(cotangents, _tracked(live.outputs))])
    return (*results, *[(n, g.detach()) for n, g in grads])


def _loses_nan(p: Program, placed: Placed) -> bool:
    """Whether the CPU's fused attention may lose a NaN among its queries, which happens with few keys (torch 2.13).

    It has no second derivative either.
    """
    return p.row.family == "attention" and any(bool(v.isnan().any()) for v in placed.views if v.is_floating_point())


def _tracked(named: Named) -> Named:
    return tuple((n, t) for n, t in named if t.requires_grad and not n.startswith("base["))


def truth(p: Program, case: Case, inputs: Inputs, placed: Placed, cotangents: Sequence[Tensor] | None) -> Float64Results:
    """The truth of a case. Raises whatever the op raises in float64."""
    return Float64Results(dict(run(p, case, inputs, placed, cotangents)))


@contextlib.contextmanager
def _fractions(word: Callable[[str], Any]) -> Iterator[None]:
    """Set the default dtype, which ops use for fractions of integers, to that of the run."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(word("float32"))
    try:
        yield
    finally:
        torch.set_default_dtype(kept)


HALF = (torch.float16, torch.bfloat16)


def in_float32() -> Operators:
    """Computes every kernel that makes new half-precision results in float32.

    Kernels that write into or return an operand, and those that fail in float32, run unchanged.
    """
    return Operators(_rounded_once)


def _rounded_once(func: Any, args: Any, kwargs: Any) -> Any:
    plain = func(*args, **kwargs)
    if any(r.alias_info is not None for r in func._schema.returns) or not _halves((args, kwargs)) or not _halves(plain):
        return plain
    try:
        wide = func(*tree_map(_wide, args), **tree_map(_wide, kwargs))
    except (RuntimeError, NotImplementedError):
        return plain
    return tree_map(_rounded, wide, plain)


def _halves(tree: Any) -> bool:
    return any(isinstance(a, Tensor) and a.dtype in HALF for a in tree_leaves(tree))


def _wide(a: Any) -> Any:
    if isinstance(a, Tensor):
        return a.to(torch.float32) if a.dtype in HALF else a
    return torch.float32 if a in HALF else a


def _rounded(wide: Any, plain: Any) -> Any:
    fits = isinstance(wide, Tensor) and isinstance(plain, Tensor) and wide.shape == plain.shape
    return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype).copy_(wide) if fits else plain
