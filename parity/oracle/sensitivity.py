"""How far the truth moves if operands, cotangents and intermediate results move by a rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.core.case import Case
from parity.core.dtypes import FACTS, HALF, DtypeFacts
from parity.execution.execute import Named, Placed, Program
from parity.execution.inputs import Inputs, apply
from parity.oracle.float64 import Float64Results, run
from parity.oracle.rounding import DOUBLE, Rounding, perturbed, rounded_at_least, shifted

PERTURBATIONS = 4  # samples of a sensitivity
KEPT = 1 << 15  # elements of a result whose changes are kept sample by sample
# Rules multiply by 16: below the normal numbers a half-type function is off by one of the smallest numbers, a float32 function
# by its bound of about four ULP.
LEAST, LEAST_SINGLE = 16.0, 4.0
# torch.nn.functional checks some operands by assertions; its decompositions divide by the number of elements.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Changes:
    """How a result moved in each sample of its sensitivity.

    moved: float64 [samples, elements], over the flattened real parts, 0 where a change is not finite. every: large results are
    sampled, one in so many elements is kept.
    """

    moved: Tensor
    every: int = 1


@dataclass(frozen=True, slots=True)
class RoundingEffect:
    """What rounding does to the results, by name.

    moved: the largest change of each element, 0 where it is not finite. unsettled: where rounding on the way decides whether
    the result is NaN (0 / 0 of a variance that is 0 only without rounding). changes: how each result moved, sample by sample.
    largest: the largest intermediate magnitude.
    """

    moved: dict[str, Tensor]
    unsettled: dict[str, Tensor]
    changes: dict[str, Changes]
    largest: float


def kept_of(change: Tensor) -> Tensor:
    """The flattened real parts of one signed change, every `stride_of` of them."""
    real = torch.view_as_real(change.resolve_conj()) if change.is_complex() else change
    row = real.reshape(-1)
    return torch.nan_to_num(row[:: stride_of(row.numel())].to(torch.float64), 0.0, 0.0, 0.0)


def stride_of(elements: int) -> int:
    """One in how many elements of a result is kept of its changes."""
    return max(1, -(-elements // KEPT))


def changes_of(kept: Sequence[Tensor], elements: int) -> Changes:
    """The samples of one result with so many real parts."""
    return Changes(torch.stack(tuple(kept)), stride_of(elements))


def least_of(f: DtypeFacts) -> float:
    """The smallest movement of a kernel's result, for numbers below the dtype's normal ones, divided by the rules' scale."""
    return f.smallest / (LEAST if f.name in HALF else LEAST_SINGLE)


def in_double(t: Tensor) -> Tensor:
    """A tensor in the oracle's arithmetic."""
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def sensitivity(
    p: Program,
    case: Case,
    inputs: Inputs,
    placed: Placed,
    cotangents: Sequence[Tensor] | None,
    center: Float64Results,
    u: float,
    between: float,
    samples: int = PERTURBATIONS,
) -> tuple[RoundingEffect, RoundingEffect]:
    """Returns (forward, forward + backward): the movement of results if operands and cotangents move by u and intermediate
    results by `between`.

    Where the op refuses the moved operands, only rounding on the way remains as budget.
    """
    facts = FACTS.get(case.dtype)
    least = least_of(facts) if facts is not None and facts.is_inexact else 0.0
    own_least = least if facts is not None and facts.name not in HALF else least_of(FACTS["float32"])
    moved = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in center.tensors.items()}
    unsettled: dict[str, Tensor] = {}
    changes: dict[str, list[Tensor]] = {n: [] for n in center.tensors}
    halfway, high, shy = 0.0, 0.0, False
    # Singular values, eigenvalues and vectors are those of a matrix whose elements are all off by p(n) u of its norm, the small
    # ones too (LAPACK Users' Guide, 3rd ed., 1999, sections 4.7 and 4.9).
    by_norm = p.row.by_norm
    own = len(placed.views) - inputs.fed
    # In the last sample operands do not move: some encode a choice (a target of 1 or -1) that a movement destroys.
    for k in range(samples + 1):

        def move(t: Tensor, i: int, k: int = k) -> Tensor:
            if k == samples or i in p.row.choices:
                return t
            return (shifted if by_norm and i < own else perturbed)(t, u, 7 * k + i)

        turned = None if cotangents is None else [perturbed(in_double(c), u, 7 * k + 5) for c in cotangents]
        # Strides can select a kernel without a derivative, and moved operands may leave the op's domain: then try again.
        ended: list[tuple[Named, float]] = []  # the forward's results, and the largest intermediate magnitude
        for keep_layout in (False, True):
            operands = replaced(p, inputs, placed, move, keep_layout)
            with Rounding(between, k + k // samples, u, least, own_least) as mode:

                def end(outputs: Named, mode: Rounding = mode, ended: list[tuple[Named, float]] = ended) -> None:
                    ended.append((outputs, mode.largest))

                try:
                    results = run(p, case, inputs, operands, turned, halfway=end)
                except REFUSALS:
                    results = ()
            if results:
                break
        if ended:
            results, halfway = results or ended[-1][0], max(halfway, ended[-1][1])
        high, shy = max(high, mode.largest), shy or mode.met_mode_dependent
        for n, t in results:
            at = center.tensors.get(n)
            if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                signed = mode.unrounded(t) - at
                change = signed.abs().to(torch.float64)
                moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))
                changes[n].append(kept_of(signed))
                if k == samples:  # operands did not move, only results were rounded
                    unsettled[n] = torch.isnan(t.abs()) != torch.isnan(at.abs())
    if cotangents and (shy or any(not bool(m.any()) for n, m in moved.items() if n.startswith("grad["))):
        with contextlib.suppress(*REFUSALS):
            _moved_by_saving(p, case, inputs, placed, cotangents, center, moved, (between, least))
    parts = {n: t.numel() * (2 if t.is_complex() else 1) for n, t in center.tensors.items()}
    kept = {n: changes_of(rows, parts[n]) for n, rows in changes.items() if rows}
    return RoundingEffect(moved, unsettled, kept, halfway), RoundingEffect(moved, unsettled, kept, high)


def _moved_by_saving(
    p: Program,
    case: Case,
    inputs: Inputs,
    placed: Placed,
    cotangents: Sequence[Tensor],
    center: Float64Results,
    moved: dict[str, Tensor],
    off: tuple[float, float],
) -> None:
    """Round the tensors that the forward saves for the backward pass, and enlarge `moved` by how far the gradients then move.

    This is done in two cases only: where no other rounding moves the gradients, and for kernels (`MODE_DEPENDENT`) whose
    gradients torch computes by another formula on a device than under the mode that rounds. For other kernels it would be
    wrong: amax, for example, compares the saved result with its operands to find the largest element.
    """
    between, least = off
    given = {v.untyped_storage().data_ptr() for v in placed.views}

    def save(t: Tensor) -> Tensor:
        return t if t.dtype not in DOUBLE or t.untyped_storage().data_ptr() in given else rounded_at_least(t, between, 0, least)

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        results = run(p, case, inputs, placed, cotangents)
    for n, t in results:
        if n.startswith("grad[") and moved[n].shape == t.shape:
            change = (t - center.tensors[n]).abs().to(torch.float64)
            moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))


def replaced(
    p: Program, inputs: Inputs, placed: Placed, change: Callable[[Tensor, int], Tensor], keep_layout: bool = False
) -> Placed:
    """The operands with every one changed; one that is written into keeps its base.

    keep_layout: operands that share memory keep sharing it, and all copies of a number change alike, so that the same kernels
    run.
    """
    if p.row.mutates:
        bases = tuple(change(b, i) for i, b in enumerate(placed.bases))
        first = inputs.operands[0].spec
        return Placed(bases, (apply(bases[0], first.layout, first.shape), *bases[1:]))
    moved, views = [], []
    for i, (base, view, o) in enumerate(zip(placed.bases, placed.views, inputs.operands)):
        if base is not view and (keep_layout or p.row.memory):
            moved.append(change(base, i))
            views.append(apply(moved[-1], o.spec.layout, o.spec.shape))
        else:
            moved.append(change(view, i))
            views.append(moved[-1])
    return Placed(tuple(moved), tuple(views))
