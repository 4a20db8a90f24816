"""The truth: the same call in float64 on the CPU from the same rounded inputs, and how much it moves when they do.

Sensitivity of an element is the largest change of the truth under random relative perturbations of all operands and
cotangents by one unit roundoff; in backward also of every tensor that forward saved, because a device saves it rounded (so
that gradients which cancel get the scale of their summands). It stands for the condition of the problem at that element:
an error is measured against what rounding alone could do there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from parity import values
from parity.dtypes import FACTS
from parity.execute import Named, Placed, Program, backward, forward
from parity.inputs import Inputs, apply, torch_word
from parity.vocabulary import Case

PERTURBATIONS = 4
WIDE = {"float16", "bfloat16", "float32"}


@dataclass(frozen=True, slots=True)
class Truth:
    """Results by name, in float64 or complex128 (integer and bool results in their own dtype)."""

    tensors: dict[str, Tensor]


def wide_word(name: str) -> object:
    """A bare word of a case in the oracle's arithmetic: dtypes that round become the ones that hardly do."""
    if name in FACTS:
        return getattr(torch, FACTS[name].wide)
    return torch_word(name)


def widen(t: Tensor, computes: torch.dtype | None) -> Tensor:
    """An operand as the oracle takes it. Integers that torch would promote are rounded to the result's dtype first."""
    facts = FACTS.get(str(t.dtype).removeprefix("torch."))
    if facts is None:
        return t
    if facts.is_inexact:
        return t.to(getattr(torch, facts.wide))
    if computes is not None and facts.kind == "int":
        return t.to(computes).to(getattr(torch, FACTS[str(computes).removeprefix("torch.")].wide))
    return t


def widened(p: Program, inputs: Inputs, computes: torch.dtype | None) -> Placed:
    """All operands in the oracle's arithmetic."""
    promoted = (
        computes
        if p.row.promotes and computes is not None and (computes.is_floating_point or computes.is_complex)
        else None
    )
    bases, views = [], []
    for i, o in enumerate(inputs.operands):
        if p.row.mutates and i == 0:
            base = widen(o.base, promoted)
            bases.append(base)
            views.append(apply(base, o.spec.layout, o.spec.shape))
        else:
            view = widen(o.view, promoted)
            bases.append(view)
            views.append(view)
    return Placed(tuple(bases), tuple(views))


def run(p: Program, case: Case, inputs: Inputs, placed: Placed, cotangents: Sequence[Tensor] | None) -> Named:
    """Forward and, with cotangents, backward, in the oracle's arithmetic."""
    live = forward(p, case, inputs, placed, cotangents is not None, wide_word)
    grads: Named = ()
    if cotangents:
        grads = backward(live, [c.to(t.dtype) for c, (_, t) in zip(cotangents, _tracked(live.outputs))])
    return (*((n, t.detach()) for n, t in live.outputs if not n.startswith("base[")), *((n, g.detach()) for n, g in grads))


def _tracked(named: Named) -> Named:
    return tuple((n, t) for n, t in named if t.requires_grad and not n.startswith("base["))


def truth(p: Program, case: Case, inputs: Inputs, placed: Placed, cotangents: Sequence[Tensor] | None) -> Truth:
    """The truth of a case. Raises whatever the op raises in float64."""
    return Truth(dict(run(p, case, inputs, placed, cotangents)))


@functools.lru_cache(maxsize=4)
def _signs(key: int) -> Tensor:
    return torch.from_numpy((values.words(key, 1 << 16) & np.uint64(1)).astype("float64") * 2 - 1)


def perturbed(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative +-u, signs from a fixed stream."""
    if not (t.is_floating_point() or t.is_complex()):
        return t
    n = t.numel()
    signs = _signs(0)
    start = (key * 4099) % (1 << 16)
    index = signs[start : start + n] if start + n <= 1 << 16 else signs[torch.arange(start, start + n) % (1 << 16)]
    return t * (1 + u * index.view(t.shape))


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def rounded(t: Tensor, u: float, key: int) -> Tensor:
    """t with every element moved by a relative +-u, signs from a hash of its value: what is equal stays equal, as under
    rounding, so that backward formulas still find the extremum that they saved."""
    if t.dtype not in (torch.float64, torch.complex128):
        return t
    parts = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    raw = parts.resolve_neg().contiguous().view(torch.int64)
    mixed = (raw ^ (raw >> 29) ^ (key * 0x1234567)) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ (mixed >> 32)) * 0x2545F4914F6CDD1D
    signs = (((mixed >> 61) & 2) - 1).to(torch.float64)
    moved = parts * (1 + u * signs)
    return torch.view_as_complex(moved) if t.is_complex() else moved


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Moves every floating result of every kernel, forward and backward, by a relative +-u, as rounding would. It sees what
    perturbed inputs cannot: sums that cancel whatever goes in (the gradient of a bias before batch_norm is 0), and what a
    backward formula makes of a rounded result that it saved."""

    def __init__(self, u: float, key: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._u, self._key = u, key

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns):
            return result  # views and in-place kernels give tensors that autograd knows already
        return tree_map(self._rounded, result)

    def _rounded(self, x: Any) -> Any:
        dense = isinstance(x, Tensor) and x.layout is torch.strided and not x._is_zerotensor()
        return rounded(x, self._u, self._key) if dense else x


def sensitivity(
    p: Program, case: Case, inputs: Inputs, placed: Placed, cotangents: Sequence[Tensor] | None, center: Truth, u: float
) -> dict[str, Tensor]:
    """Largest change of each result under perturbations by the unit roundoff u; 0 where the change is not finite."""
    moved = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in center.tensors.items()}
    for k in range(PERTURBATIONS):
        if p.row.mutates:
            bases = [perturbed(b, u, 7 * k + i) for i, b in enumerate(placed.bases)]
            first = inputs.operands[0].spec
            views = [apply(bases[0], first.layout, first.shape), *bases[1:]]
        else:
            views = bases = [perturbed(v, u, 7 * k + i) for i, v in enumerate(placed.views)]
        turned = None if cotangents is None else [perturbed(_wide(c), u, 7 * k + 5) for c in cotangents]

        with Rounding(u, k):
            results = run(p, case, inputs, Placed(tuple(bases), tuple(views)), turned)
        for n, t in results:
            at = center.tensors.get(n)
            if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                change = (t - at).abs().to(torch.float64)
                moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))
    return moved


class Oracle:
    """The truth of one case, computed when first asked for; None where the op cannot run in float64."""

    def __init__(self, p: Program, case: Case, inputs: Inputs, computes: torch.dtype | None) -> None:
        self._p, self._case, self._inputs = p, case, inputs
        self._placed = widened(p, inputs, computes)
        self._cotangents: Sequence[Tensor] | None = None
        self._truth: Truth | None = None
        self._asked = False
        self._sensitivity: dict[float, dict[str, Tensor]] = {}

    def differentiate(self, cotangents: Sequence[Tensor]) -> None:
        """Ask for gradients too, with these cotangents (CPU tensors of the outputs' shapes)."""
        self._cotangents, self._asked, self._sensitivity = cotangents, False, {}

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result, or None."""
        if not self._asked:
            self._asked = True
            try:
                self._truth = truth(self._p, self._case, self._inputs, self._placed, self._cotangents)
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                self._truth = None
        return None if self._truth is None else self._truth.tensors.get(name)

    def sensitivity(self, name: str, u: float) -> Tensor:
        """How much that result moves under perturbations by u. Only for results that have a truth."""
        assert self._truth is not None
        if u not in self._sensitivity:
            try:
                moved = sensitivity(self._p, self._case, self._inputs, self._placed, self._cotangents, self._truth, u)
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                moved = {}  # a perturbed operand left the op's domain: rounding alone remains as budget
            self._sensitivity[u] = moved
        found = self._sensitivity[u].get(name)
        return torch.zeros(self._truth.tensors[name].shape, dtype=torch.float64) if found is None else found
