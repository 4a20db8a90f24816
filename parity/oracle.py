"""The truth: the same call in float64 on the CPU from the same rounded inputs, and how much it moves when they do.

Sensitivity of an element is the largest change of the truth under random relative perturbations of all operands and
cotangents by one unit roundoff; in backward also of every tensor that forward saved, because a device saves it rounded (so
that gradients which cancel get the scale of their summands). It stands for the condition of the problem at that element:
an error is measured against what rounding alone could do there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
DOUBLE = (torch.float64, torch.complex128)
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
LONG = 16  # terms of a sum whose order matters beside its own rounding
FACTORS = ("alpha", "beta")  # of a sum, that are no tensors
# Kernels that move numbers without rounding them.
_MOVERS = """_to_copy abs amax amin aminmax bernoulli cat ceil clamp clamp_max clamp_min clone complex conj_physical
    constant_pad_nd copysign cummax cummin _cummax_helper diag_embed diagonal_backward embedding empty empty_like
    empty_strided expand_copy flip floor fmax fmin full full_like gather hardshrink hardtanh heaviside im2col imag index
    index_copy index_fill index_select kthvalue masked_fill masked_scatter masked_select max maximum median min minimum mode
    msort nan_to_num nanmedian neg new_empty new_empty_strided new_full new_zeros ones ones_like pixel_shuffle
    pixel_unshuffle real reflection_pad1d reflection_pad2d reflection_pad3d relu repeat replication_pad1d
    replication_pad2d replication_pad3d roll round scalar_tensor scatter select_backward select_scatter sgn sign
    slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu trunc unfold_copy
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy where zeros zeros_like max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d max_unpool2d max_unpool3d"""
# Fused kernels whose formulas lose digits inside.
FUSED = """gelu gelu_backward native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    silu_backward mish_backward elu_backward softplus softplus_backward log_sigmoid_forward log_sigmoid_backward glu
    glu_backward hardswish_backward logit logit_backward huber_loss_backward smooth_l1_loss_backward
    binary_cross_entropy binary_cross_entropy_backward upsample_bicubic2d upsample_bilinear2d grid_sampler_2d
    _fused_rms_norm _fused_rms_norm_backward logaddexp logaddexp2 _euclidean_dist hann_window xlogy special_entr
    special_log_ndtr special_xlog1py sinc lerp addcmul addcdiv addr cumprod logcumsumexp var std var_mean std_mean"""
_MOVERS += " copy fill zero set resize normal uniform bernoulli exponential"
# These turn a tensor in place and write none of its elements.
TURNS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_", "detach_")
EXACT_KERNELS = frozenset(_MOVERS.split())
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
    """t with every element moved by a relative +-u. Even keys: signs from a hash of its value, so that what is equal stays
    equal, as under rounding. Odd keys: of value and place, as where equal numbers come about in different ways."""
    if t.dtype not in (torch.float64, torch.complex128):
        return t
    parts = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    raw = parts.resolve_neg().contiguous().view(torch.int64)
    if key % 2:
        raw = raw + torch.arange(raw.numel()).view(raw.shape) * 0x9E3779B9
    mixed = (raw ^ (raw >> 29) ^ (key * 0x1234567)) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ (mixed >> 32)) * 0x2545F4914F6CDD1D
    signs = (((mixed >> 61) & 2) - 1).to(torch.float64)
    moved = parts * (1 + u * signs)
    return torch.view_as_complex(moved) if t.is_complex() else moved


def extremes(t: Tensor) -> tuple[float, float]:
    """(smallest, largest) finite magnitude of the elements that are not 0; (inf, 0) without one."""
    size = t.detach().abs()
    size = size[torch.isfinite(size) & (size > 0)]
    return (float(size.min()), float(size.max())) if size.numel() else (float("inf"), 0.0)


@functools.cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Formulas of the fused kernels that torch can take apart; empty where this torch has none."""
    try:
        from torch._decomp import get_decompositions
    except ImportError:
        return {}
    packets = [getattr(torch.ops.aten, name) for name in FUSED.split() if hasattr(torch.ops.aten, name)]
    found: Mapping[Any, Callable[..., Any]] = get_decompositions(packets)
    return found


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Moves the floating result of every kernel that rounds, forward and backward, by a relative +-u, as rounding would. It
    sees what perturbed inputs cannot: sums that cancel whatever goes in (the gradient of a bias before batch_norm is 0), what
    a backward formula makes of a rounded result that it saved, and what half-precision kernels hand to each other.

    A fused kernel that torch has a decomposition for is taken apart, its steps rounded by `inside`: the formula cancels there
    too. largest, smallest: the extreme finite magnitudes, without 0, that any kernel gave.
    """

    def __init__(self, u: float, key: int, inside: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._u, self._key, self._inside = u, key, u if inside is None else inside
        self._fused = _decompositions()
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}
        self._within = False
        self.largest, self.smallest = 0.0, float("inf")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._within and func in self._fused:
            self._within = True
            try:
                with self:
                    result = self._fused[func](*args, **(kwargs or {}))
            finally:
                self._within = False
        else:
            result = func(*args, **(kwargs or {}))
        aliases = [r.alias_info for r in func._schema.returns]
        if any(a is not None for a in aliases):
            if any(a is not None and a.is_write for a in aliases):
                self._rounded_in_place(func._schema.name.removeprefix("aten::"), result)
            return result
        name = func._schema.name.removeprefix("aten::")
        if name in EXACT_KERNELS:
            return result
        if name in ("sum", "mean") and args[0].dtype is torch.float64 and args[0].numel() >= LONG * result.numel() > 0:
            return self._summed(func, result, args, kwargs or {})
        return tree_map(self._rounded, result)

    def _summed(self, func: Any, x: Tensor, args: Any, kwargs: Any) -> Tensor:
        """A long sum or mean: one chain loses about sqrt(n) / 4 roundings of the magnitudes that it adds."""
        lost = self._inside * (args[0].numel() / x.numel()) ** 0.5 / 4.0
        moved: Tensor = self._rounded(x)
        size: Tensor = func(args[0].abs(), *args[1:], **kwargs)
        return moved + torch.where(moved < x, -lost, lost) * size

    def _rounded(self, x: Any) -> Any:
        if not (isinstance(x, Tensor) and x.layout is torch.strided and not x._is_zerotensor() and x.dtype in DOUBLE):
            return x
        low, high = extremes(x)
        self.smallest, self.largest = min(self.smallest, low), max(self.largest, high)
        moved = rounded(x, self._inside if self._within else self._u, self._key)
        if moved is not x and moved.stride() == x.stride() and x.storage_offset() == 0:
            self._moved[moved.data_ptr()] = moved, x  # `moved` is kept alive, so that nothing else gets its address
        return moved

    def _rounded_in_place(self, name: str, x: Any) -> None:
        """What a kernel wrote into a tensor that autograd knows already."""
        if not isinstance(x, Tensor) or name in TURNS:
            return
        self._moved.pop(x.data_ptr(), None)
        if name.rstrip("_") not in EXACT_KERNELS and x.dtype in DOUBLE and x.layout is torch.strided and not x.is_conj():
            x.copy_(rounded(x, self._inside if self._within else self._u, self._key))

    def unrounded(self, t: Tensor) -> Tensor:
        """A final result as its kernel gave it: the rounding of the result itself is no part of the sensitivity."""
        found = self._moved.get(t.data_ptr())
        if found is None or found[0].dtype != t.dtype or t.storage_offset() or t.is_conj() or t.is_neg():
            return t
        return found[1].detach().as_strided(t.shape, t.stride())  # kernels turn their results in place


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
