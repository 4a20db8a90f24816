"""How much the truth moves when operands, cotangents and what one kernel hands to the next move by a rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.dtypes import FACTS
from parity.execute import Named, Placed, Program
from parity.inputs import Inputs, apply
from parity.truth.rounding import DOUBLE, Rounding, handed_on, perturbed, shifted
from parity.truth.wide import Truth, run
from parity.vocabulary import Case

PERTURBATIONS = 4  # samples of a sensitivity
# What is made of singular values, eigenvalues and their vectors: computed for a matrix beside the given one, off by p(n) u of
# its norm in every element, the small ones too (LAPACK Users' Guide, 3rd ed., 1999, sections 4.7 and 4.9).
SPECTRAL = ("svd", "eig", "cond", "pinv", "matrix_norm_spectral")
LEAST = 16.0  # rules multiply by as much: a number below the normal ones is off by half the smallest one, twice
# torch.nn.functional asserts some of what it asks of its operands; its decompositions divide by the number of elements.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Shaken:
    """What rounding does to the results, by name. moved: the largest change of each element, 0 where it is not finite.
    unsettled: where rounding on the way decides whether the result is NaN (0 / 0 of a variance that is 0 only if nothing is
    rounded). largest: magnitude on the way."""

    moved: dict[str, Tensor]
    unsettled: dict[str, Tensor]
    largest: float


def in_double(t: Tensor) -> Tensor:
    """A number as the oracle takes it."""
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def sensitivity(
    p: Program,
    case: Case,
    inputs: Inputs,
    placed: Placed,
    cotangents: Sequence[Tensor] | None,
    center: Truth,
    u: float,
    between: float,
    samples: int = PERTURBATIONS,
) -> tuple[Shaken, Shaken]:
    """What becomes of the results when operands and cotangents move by u and whatever one kernel hands to the next by
    `between`: told of the forward alone, and of the forward with its backward. Where the op refuses what has moved, rounding
    alone remains as budget."""
    facts = FACTS.get(case.dtype)
    least = facts.smallest / LEAST if facts is not None and facts.is_inexact else 0.0
    moved = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in center.tensors.items()}
    unsettled: dict[str, Tensor] = {}
    halfway, high, shy = 0.0, 0.0, False
    by_norm = p.row.name.removeprefix("opinfo:").rpartition(".")[2].startswith(SPECTRAL)
    own = len(placed.views) - inputs.fed
    # The last time operands stay as they are: some stand for a choice (a target of 1 or -1), which ends when they move.
    for k in range(samples + 1):

        def move(t: Tensor, i: int, k: int = k) -> Tensor:
            if k == samples:
                return t
            return (shifted if by_norm and i < own else perturbed)(t, u, 7 * k + i)

        turned = None if cotangents is None else [perturbed(in_double(c), u, 7 * k + 5) for c in cotangents]
        # Operands that lie otherwise in memory may take a kernel that has no derivative; what moves may leave the op's domain.
        ended: list[tuple[Named, float]] = []  # the forward's results, and the largest magnitude on the way to them
        for lying in (False, True):
            shaken = replaced(p, inputs, placed, move, lying)
            with Rounding(between, k + k // samples, u, least) as mode:

                def end(found: Named, mode: Rounding = mode, ended: list[tuple[Named, float]] = ended) -> None:
                    ended.append((found, mode.largest))

                try:
                    results = run(p, case, inputs, shaken, turned, halfway=end)
                except REFUSALS:
                    results = ()
            if results:
                break
        if ended:
            results, halfway = results or ended[-1][0], max(halfway, ended[-1][1])
        high, shy = max(high, mode.largest), shy or mode.met_shy
        for n, t in results:
            at = center.tensors.get(n)
            if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                change = (mode.unrounded(t) - at).abs().to(torch.float64)
                moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))
                if k == samples:  # the operands are what they are; only what is rounded on the way has moved
                    unsettled[n] = torch.isnan(t.abs()) != torch.isnan(at.abs())
    if cotangents and (shy or any(not bool(m.any()) for n, m in moved.items() if n.startswith("grad["))):
        with contextlib.suppress(*REFUSALS):
            _moved_by_saving(p, case, inputs, placed, cotangents, center, moved, (between, least))
    return Shaken(moved, unsettled, halfway), Shaken(moved, unsettled, high)


def _moved_by_saving(
    p: Program,
    case: Case,
    inputs: Inputs,
    placed: Placed,
    cotangents: Sequence[Tensor],
    center: Truth,
    moved: dict[str, Tensor],
    off: tuple[float, float],
) -> None:
    """Enlarges `moved` by what becomes of gradients when what the forward saves is rounded: where nothing else moves them, and
    after kernels (`SHY`) whose gradients torch computes by other formulas under a mode than on a device. Not after all kernels:
    some (amax) look for the saved result among the operands."""
    between, least = off
    given = {v.untyped_storage().data_ptr() for v in placed.views}

    def save(t: Tensor) -> Tensor:
        return t if t.dtype not in DOUBLE or t.untyped_storage().data_ptr() in given else handed_on(t, between, 0, least)

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        results = run(p, case, inputs, placed, cotangents)
    for n, t in results:
        if n.startswith("grad[") and moved[n].shape == t.shape:
            change = (t - center.tensors[n]).abs().to(torch.float64)
            moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))


def replaced(
    p: Program, inputs: Inputs, placed: Placed, change: Callable[[Tensor, int], Tensor], lying: bool = False
) -> Placed:
    """The operands with every one changed; what is written into keeps its base. lying: operands that share memory go on doing
    so, all copies of a number changed alike, so that the same kernels take them."""
    if p.row.mutates:
        bases = tuple(change(b, i) for i, b in enumerate(placed.bases))
        first = inputs.operands[0].spec
        return Placed(bases, (apply(bases[0], first.layout, first.shape), *bases[1:]))
    moved, views = [], []
    for i, (base, view, o) in enumerate(zip(placed.bases, placed.views, inputs.operands)):
        if base is not view and (lying or p.row.memory):
            moved.append(change(base, i))
            views.append(apply(moved[-1], o.spec.layout, o.spec.shape))
        else:
            moved.append(change(view, i))
            views.append(moved[-1])
    return Placed(tuple(moved), tuple(views))
