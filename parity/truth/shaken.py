"""How much the truth moves when operands, cotangents and what one kernel hands to the next move by a rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.dtypes import FACTS, HALF, DtypeFacts
from parity.execute import Named, Placed, Program
from parity.inputs import Inputs, apply
from parity.truth.rounding import DOUBLE, Rounding, handed_on, perturbed, shifted
from parity.truth.wide import Truth, run
from parity.vocabulary import Case

PERTURBATIONS = 4  # samples of a sensitivity
KEPT = 1 << 15  # elements of a result whose changes are kept sample by sample
# What is made of singular values, eigenvalues and their vectors: computed for a matrix beside the given one, off by p(n) u of
# its norm in every element, the small ones too (LAPACK Users' Guide, 3rd ed., 1999, sections 4.7 and 4.9).
SPECTRAL = ("svd", "eig", "cond", "pinv", "matrix_norm_spectral")
# Rules multiply by 16: below the normal numbers a half-type function is off by one of the smallest ones, a float32 function by
# its bound of some four ULP.
LEAST, LEAST_SINGLE = 16.0, 4.0
# torch.nn.functional asserts some of what it asks of its operands; its decompositions divide by the number of elements.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Changes:
    """How a result moved in each sample of its sensitivity.

    moved: float64 [samples, elements], of the result's real parts in a row, 0 where a change is not finite. every: that many
    elements lie between one that is kept and the next (large results are sampled).
    """

    moved: Tensor
    every: int = 1


@dataclass(frozen=True, slots=True)
class Shaken:
    """What rounding does to the results, by name. moved: the largest change of each element, 0 where it is not finite.
    unsettled: where rounding on the way decides whether the result is NaN (0 / 0 of a variance that is 0 only if nothing is
    rounded). changes: how each result moved, sample by sample. largest: magnitude on the way."""

    moved: dict[str, Tensor]
    unsettled: dict[str, Tensor]
    changes: dict[str, Changes]
    largest: float


def kept_of(change: Tensor) -> Tensor:
    """What is kept of one signed change: its real parts in a row, every so many of a large one."""
    real = torch.view_as_real(change.resolve_conj()) if change.is_complex() else change
    row = torch.nan_to_num(real.reshape(-1).to(torch.float64), 0.0, 0.0, 0.0)
    return row[:: stride_of(row.numel())]


def stride_of(elements: int) -> int:
    """One in so many elements of a result is kept of its changes."""
    return max(1, -(-elements // KEPT))


def changes_of(kept: Sequence[Tensor], elements: int) -> Changes:
    """The samples of one result of so many real parts."""
    return Changes(torch.stack(tuple(kept)), stride_of(elements))


def least_of(f: DtypeFacts) -> float:
    """What a kernel may be off by at least, of numbers below the dtype's normal ones, over the rules' scale."""
    return f.smallest / (LEAST if f.name in HALF else LEAST_SINGLE)


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
    least = least_of(facts) if facts is not None and facts.is_inexact else 0.0
    own_least = least if facts is not None and facts.name not in HALF else least_of(FACTS["float32"])
    moved = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in center.tensors.items()}
    unsettled: dict[str, Tensor] = {}
    changes: dict[str, list[Tensor]] = {n: [] for n in center.tensors}
    halfway, high, shy = 0.0, 0.0, False
    by_norm = p.row.name.removeprefix("opinfo:").rpartition(".")[2].startswith(SPECTRAL)
    own = len(placed.views) - inputs.fed
    # The last time operands stay as they are: some stand for a choice (a target of 1 or -1), which ends when they move.
    for k in range(samples + 1):

        def move(t: Tensor, i: int, k: int = k) -> Tensor:
            if k == samples or i in p.row.choices:
                return t
            return (shifted if by_norm and i < own else perturbed)(t, u, 7 * k + i)

        turned = None if cotangents is None else [perturbed(in_double(c), u, 7 * k + 5) for c in cotangents]
        # Operands that lie otherwise in memory may take a kernel that has no derivative; what moves may leave the op's domain.
        ended: list[tuple[Named, float]] = []  # the forward's results, and the largest magnitude on the way to them
        for lying in (False, True):
            shaken = replaced(p, inputs, placed, move, lying)
            with Rounding(between, k + k // samples, u, least, own_least) as mode:

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
                signed = mode.unrounded(t) - at
                change = signed.abs().to(torch.float64)
                moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))
                changes[n].append(kept_of(signed))
                if k == samples:  # the operands are what they are; only what is rounded on the way has moved
                    unsettled[n] = torch.isnan(t.abs()) != torch.isnan(at.abs())
    if cotangents and (shy or any(not bool(m.any()) for n, m in moved.items() if n.startswith("grad["))):
        with contextlib.suppress(*REFUSALS):
            _moved_by_saving(p, case, inputs, placed, cotangents, center, moved, (between, least))
    parts = {n: t.numel() * (2 if t.is_complex() else 1) for n, t in center.tensors.items()}
    kept = {n: changes_of(rows, parts[n]) for n, rows in changes.items() if rows}
    return Shaken(moved, unsettled, kept, halfway), Shaken(moved, unsettled, kept, high)


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
