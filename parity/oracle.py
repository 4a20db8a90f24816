"""The truth: the same call in float64 on the CPU from the same rounded inputs, and how much it moves when they do.

Sensitivity of an element is the largest change of the truth under random relative perturbations of all operands and
cotangents by one unit roundoff; in backward also of every tensor that forward saved, because a device saves it rounded (so
that gradients which cancel get the scale of their summands). It stands for the condition of the problem at that element:
an error is measured against what rounding alone could do there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parity.dtypes import FACTS
from parity.execute import Named, Placed, Program, backward, forward
from parity.inputs import Inputs, apply, torch_word
from parity.rounding import Rounding, extremes, perturbed
from parity.vocabulary import Case

PERTURBATIONS = 4
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
FACTORS = ("alpha", "beta")  # of a sum, that are no tensors
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
    if computes is not None and facts.kind in ("int", "bool"):
        real = computes.to_real()
        return t.to(real).to(getattr(torch, FACTS[str(real).removeprefix("torch.")].wide))
    return t


def widened(p: Program, case: Case, inputs: Inputs, computes: torch.dtype | None) -> Placed:
    """All operands in the oracle's arithmetic."""
    promoted = (
        computes if p.row.promotes and computes is not None and (computes.is_floating_point or computes.is_complex) else None
    )
    bases, views = [], []
    for i, o in enumerate(inputs.operands):
        if p.row.mutates and i == 0:
            base = widen(o.base, promoted)
            bases.append(base)
            views.append(apply(base, o.spec.layout, o.spec.shape))
        elif any(step[0] == "expand" for step in o.spec.layout):
            # What shares memory goes on sharing it: a gradient through as_strided counts every use of an element.
            base = widen(o.base, promoted)
            bases.append(base)
            views.append(apply(base, o.spec.layout, o.spec.shape))
        else:
            view = widen(o.view, None if o.spec.dtype == "bool" and case.dtype != "bool" else promoted)
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


def _wide(t: Tensor) -> Tensor:
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
) -> tuple[dict[str, Tensor], tuple[float, float]]:
    """(largest change of each result, 0 where it is not finite; smallest and largest magnitude on the way) when operands and
    cotangents move by u and whatever one kernel hands to the next by `between`."""
    moved = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in center.tensors.items()}
    low, high = float("inf"), 0.0
    # The last time operands stay as they are: some stand for a choice (a target of 1 or -1), which ends when they move.
    for k in range(PERTURBATIONS + 1):

        def move(t: Tensor, i: int, k: int = k) -> Tensor:
            return perturbed(t, u, 7 * k + i) if k < PERTURBATIONS else t

        shaken = _replaced(p, inputs, placed, move)
        turned = None if cotangents is None else [perturbed(_wide(c), u, 7 * k + 5) for c in cotangents]
        with Rounding(between, k + k // PERTURBATIONS, u) as mode:
            results = run(p, case, inputs, shaken, turned)
        low, high = min(low, mode.smallest), max(high, mode.largest)
        for n, t in results:
            at = center.tensors.get(n)
            if at is not None and at.shape == t.shape and (t.is_floating_point() or t.is_complex()):
                change = (mode.unrounded(t) - at).abs().to(torch.float64)
                moved[n] = torch.maximum(moved[n], torch.nan_to_num(change, 0.0, 0.0, 0.0))
    return moved, (low, high)


def _replaced(p: Program, inputs: Inputs, placed: Placed, change: Callable[[Tensor, int], Tensor]) -> Placed:
    """The operands with every one changed; what is written into keeps its base."""
    if not p.row.mutates:
        views = tuple(change(v, i) for i, v in enumerate(placed.views))
        return Placed(views, views)
    bases = tuple(change(b, i) for i, b in enumerate(placed.bases))
    first = inputs.operands[0].spec
    return Placed(bases, (apply(bases[0], first.layout, first.shape), *bases[1:]))


def _floating(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _unsigned(p: Program) -> Program:
    """The program with the scalar factors of its sum as magnitudes."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return p.function(*args, **{k: abs(v) if k in FACTORS else v for k, v in kwargs.items()})

    return replace(p, function=function)


class Oracle:
    """The truth of one case and its conditioning, each computed when first asked for; None where the op cannot run in
    float64."""

    def __init__(self, p: Program, case: Case, inputs: Inputs, computes: torch.dtype | None) -> None:
        self._p, self._case, self._inputs, self._computes = p, case, inputs, computes
        self._made: Placed | None = None
        self._cotangents: Sequence[Tensor] | None = None
        self._truth: Truth | None = None
        self._asked = False
        self._sensitivity: dict[tuple[float, float], tuple[dict[str, Tensor], tuple[float, float]]] = {}
        self._variants: dict[str, dict[str, Tensor]] = {}

    @property
    def _placed(self) -> Placed:
        if self._made is None:
            self._made = widened(self._p, self._case, self._inputs, self._computes)
        return self._made

    def differentiate(self, cotangents: Sequence[Tensor]) -> None:
        """Ask for gradients too, with these cotangents (CPU tensors of the outputs' shapes)."""
        self._cotangents, self._asked = cotangents, False
        self._sensitivity, self._variants = {}, {}

    def truth(self, name: str) -> Tensor | None:
        """The truth of one result, or None."""
        if not self._asked:
            self._asked = True
            try:
                self._truth = truth(self._p, self._case, self._inputs, self._placed, self._cotangents)
            except REFUSALS:
                self._truth = None
        return None if self._truth is None else self._truth.tensors.get(name)

    def sensitivity(self, name: str, u: float, between: float) -> Tensor:
        """How much that result moves when operands move by u and intermediate results by `between`. Only for results that
        have a truth."""
        assert self._truth is not None
        found = self._shaken(u, between)[0].get(name)
        return torch.zeros(self._truth.tensors[name].shape, dtype=torch.float64) if found is None else found

    def extremes(self, u: float, between: float) -> tuple[float, float]:
        """(smallest magnitude but 0 among the operands, largest that an operand holds or a kernel gave on the way)."""
        low, high = float("inf"), self._shaken(u, between)[1][1]
        for v in (*self._placed.views, *(self._cotangents or ())):
            if _floating(v):
                least, most = extremes(v)
                low, high = min(low, least), max(high, most)
        return low, high

    def holds(self, what: str) -> bool:
        """Whether an operand or a cotangent holds NaN ("nan"), or NaN or Inf ("nonfinite")."""
        test = torch.isnan if what == "nan" else _nonfinite
        return any(_floating(v) and bool(test(v.abs()).any()) for v in (*self._placed.views, *(self._cotangents or ())))

    def ignores_a_product(self) -> bool:
        """Whether a factor of 0 (alpha, beta) lets a device leave a product out, with the NaN in it."""
        return any(k in FACTORS and v == 0 for k, v in self._case.kwargs)

    def bias(self) -> float | None:
        """The largest magnitude that a sum of products adds at its end; 0 without one, None if the row has no place for it."""
        name = self._p.row.name.removeprefix("opinfo:").rpartition(".")[2].partition(":")[0]
        first = name.startswith("add") or name == "baddbmm"
        if not first and not name.startswith("conv"):
            return None
        floats = [v for v in self._placed.views if _floating(v)]
        if len(floats) < 3:
            return 0.0
        added = floats[0 if first else 2]
        return float(torch.nan_to_num(added.abs(), 0.0, 0.0, 0.0).max()) if added.numel() else 0.0

    def coarsest(self) -> float:
        """The largest unit roundoff among the floating operands, 0 where all operands have the result's dtype."""
        own = {o.spec.dtype for o in self._inputs.operands if FACTS[o.spec.dtype].is_inexact}
        return max((FACTS[d].unit_roundoff for d in own), default=0.0) if len(own) > 1 else 0.0

    def operand(self, index: int) -> Tensor:
        """An operand in the oracle's arithmetic."""
        return self._placed.views[index]

    def _shaken(self, u: float, between: float) -> tuple[dict[str, Tensor], tuple[float, float]]:
        assert self._truth is not None
        if (u, between) not in self._sensitivity:
            try:
                found = sensitivity(self._p, self._case, self._inputs, self._placed, self._cotangents, self._truth, u, between)
            except REFUSALS:
                found = {}, (float("inf"), 0.0)  # a perturbed operand left the op's domain: rounding alone remains as budget
            self._sensitivity[u, between] = found
        return self._sensitivity[u, between]

    def magnitudes(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(S, n) of a sum of products: the same sum over the magnitudes of its operands, and how many terms it has. None
        where the op does not run on them."""
        sums, counts = self._variant("magnitudes", _magnitude), self._variant("ones", _one)
        if name not in sums or name not in counts:
            return None
        s, n = sums[name].abs().to(torch.float64), counts[name].abs().to(torch.float64)
        if not name.startswith("grad["):
            # Means divide their count away; their operand's size over the result's still tells it.
            sizes = [v.numel() for v in self._placed.views if _floating(v)]
            n = torch.clamp(n, min=max(sizes, default=1) / max(1, n.numel())) if len(sizes) == 1 else n
        return s, n

    def flushed(self, name: str, smallest_normal: float) -> Tensor | None:
        """The truth when subnormal operands count as zero; None where no operand holds one."""
        subnormal = any(
            bool(((v.abs() > 0) & (v.abs() < smallest_normal)).any()) for v in self._placed.views if v.is_floating_point()
        )
        if not subnormal:
            return None

        def flush(t: Tensor, i: int) -> Tensor:
            return torch.where(t.abs() < smallest_normal, 0.0 * t, t) if t.is_floating_point() else t

        return self._variant(f"flushed {smallest_normal}", flush).get(name)

    def _variant(self, word: str, change: Callable[[Tensor, int], Tensor]) -> dict[str, Tensor]:
        """All results of the same call on changed operands and cotangents."""
        if word not in self._variants:
            program = _unsigned(self._p) if word in ("magnitudes", "ones") else self._p
            fed = None if self._cotangents is None else [change(_wide(c), -1) for c in self._cotangents]
            try:
                placed = _replaced(self._p, self._inputs, self._placed, change)
                self._variants[word] = dict(run(program, self._case, self._inputs, placed, fed))
            except REFUSALS:
                self._variants[word] = {}
        return self._variants[word]


def _nonfinite(t: Tensor) -> Tensor:
    return ~torch.isfinite(t)


def _magnitude(t: Tensor, i: int) -> Tensor:
    return t.abs().to(t.dtype) if _floating(t) else t


def _one(t: Tensor, i: int) -> Tensor:
    return torch.ones_like(t) if _floating(t) else t
