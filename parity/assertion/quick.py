"""The efforts of `assert_parity`, and the yardstick of the quick one: how far rounding moves each result of a function.

The function runs again on the CPU in its own dtypes, with every result of a kernel moved by a roundoff or two. A device whose
result is about as far from the CPU's as these runs are differs from it by rounding. That costs a few plain runs, where the
float64 truth and its samples cost up to a hundred. It is told of whole tensors: an error that is small beside the tensor's
largest roundings is not seen, whatever it is beside its own element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parity.assertion.comparison import MOVED_RUNS
from parity.assertion.subject import Subject, forward, gradients, known, tracked_outputs, word
from parity.assertion.truth import seeded
from parity.core.dtypes import FACTS
from parity.core.errors import UsageError
from parity.core.results import Measure, Raised, Status, Verdict
from parity.execution import execute as ex
from parity.oracle.rounding import EXACT_KERNELS, perturbed

# Operators whose results are sums of products of two operands, or of the elements of one.
ATEN_SUMS = (
    *("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "linear", "linear_backward", "matmul", "sum"),
    *("convolution", "_convolution", "convolution_overrideable", "convolution_backward", "convolution_backward_overrideable"),
    *("conv1d", "conv2d", "conv3d", "cudnn_convolution", "cudnn_convolution_transpose", "embedding_dense_backward"),
    *("_mps_convolution", "mps_convolution_backward", "_mps_convolution_transpose", "mps_convolution_transpose_backward"),
)  # fmt: skip
# And those that sum besides.
ATEN_CHAINS = frozenset((*ATEN_SUMS, "mean", *(f"native_{n}_norm_backward" for n in ("batch", "group", "layer"))))

QUICK, DEFAULT, FULL = EFFORTS = ("quick", "default", "full")
RUNS = 2  # moved runs; the farther one counts
STEP = 2.0  # roundoffs by which the result of a kernel moves: it stands for the roundings inside the kernel, too
CHAIN = 0.3  # roundoffs of its result, times sqrt(n), that a chain of n additions is off by in the mean square, about
# The honest device of `parity.zoo.honest` is at most 4.7 times as far off, in seven networks of torchvision and torch.
FACTOR = 5.0


def effort_of(word_: object) -> str:
    """The effort that a caller names. Raises UsageError."""
    if word_ not in EFFORTS:
        raise UsageError(f"effort is {word_!r}; allowed: {', '.join(EFFORTS)}")
    return str(word_)


class Moved(TorchDispatchMode):
    """Moves the results of all kernels that round by `STEP` roundoffs of their dtype, to either side by chance. chains: those
    of long sums by as much as a single chain of additions loses."""

    def __init__(self, key: int, chains: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self._key, self._chains = 7919 * key, chains

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if func.is_view or name.rstrip("_") in EXACT_KERNELS:
            return out
        for t in tree_leaves(out):
            f = FACTS.get(word(t.dtype)) if isinstance(t, Tensor) and t.layout is torch.strided else None
            if f is not None and t.numel() and (t.is_floating_point() or t.is_complex()):
                self._key += 1
                u = STEP * f.unit_roundoff
                if self._chains and name in ATEN_CHAINS:
                    u = max(u, CHAIN * math.sqrt(_terms((args, kwargs), t)) * FACTS["float32"].unit_roundoff)
                t.copy_(perturbed(t, u, self._key))
        return out


def _terms(given: Any, t: Tensor) -> float:
    """About how many products each element of a result adds: of two matrices exactly as many, 1 without a sum."""
    sizes = sorted(x.numel() for x in tree_leaves(given) if isinstance(x, Tensor))[-2:]
    return max(1.0, math.sqrt(math.prod(sizes) / t.numel()) if len(sizes) == 2 else sum(sizes) / t.numel())


def by_rounding(
    s: Subject, backward: bool, fed: Sequence[Tensor], theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]
) -> dict[str, Verdict]:
    """The results of the device that are as far from the CPU's as a moved run, each with its verdict. All others, and all if
    the function cannot be run so, are for the judge. fed: the cotangents."""
    doubtful = [n for n, t in ours.items() if n in theirs and _comparable(t, theirs[n])]
    if not doubtful:
        return {}
    runs = [ex.attempt(functools.partial(moved_results, s, backward, fed, k), "run") for k in range(RUNS)]
    moved = [r for r in runs if not isinstance(r, Raised)]
    if len(moved) < RUNS:
        return {}
    verdicts = {}
    for name in doubtful:
        off = _off(theirs[name], ours[name], [m[name] for m in moved if name in m])
        if off <= 1.0:
            measure = Measure(name, share=off, screen=MOVED_RUNS, total=ours[name].numel())
            verdicts[name] = Verdict(Status.AGREE, "as far from the CPU's result as rounding moves it", measure)
    return verdicts


def moved_results(s: Subject, backward: bool, fed: Sequence[Tensor], key: int, chains: bool = False) -> dict[str, Tensor]:
    """All results of one moved run. key: another one for every run; chains: see `Moved`."""
    with seeded(), Moved(key + 1, chains):
        run = forward(s, torch.clone, backward)
        grads = gradients(run, tracked_outputs(run), fed) if fed else ()
    return {n: t.detach() for n, t in (*run.outputs, *run.written, *grads)}


def _comparable(a: Tensor, b: Tensor) -> bool:
    """Whether two results are of numbers that round, and are not equal already."""
    if not (known(a) and known(b)) or a.dtype != b.dtype or a.shape != b.shape or not a.numel():
        return False
    return (a.is_floating_point() or a.is_complex()) and not torch.equal(a, b)


def _off(device: Tensor, cpu: Tensor, moved: Sequence[Tensor]) -> float:
    """How far the device is from the CPU, in units of `FACTOR` times the moved runs: the larger one of the norms' ratio and of
    the largest elements'. Infinite where only one side is finite, or where the others differ."""
    if len(moved) < RUNS or any(m.shape != cpu.shape for m in moved):
        return math.inf
    x, c, *others = (torch.view_as_real(t) if t.is_complex() else t for t in (device, cpu, *moved))
    finite = c.isfinite()
    if not bool(finite.all()):
        if not torch.equal(finite, x.isfinite()) or not torch.equal(x[~finite].nan_to_num(7.0), c[~finite].nan_to_num(7.0)):
            return math.inf
        x, c, *others = (t[finite] for t in (x, c, *others))
        if not c.numel():
            return 0.0
    wide = torch.float64 if c.dtype == torch.float64 or c.numel() < 1 << 16 else torch.float32
    x, c, *others = (t.to(wide) for t in (x, c, *others))
    # A buffer that a kernel writes is moved by nobody: half a step of its own is granted to all.
    u = STEP / FACTOR * FACTS[word(cpu.dtype.to_real())].unit_roundoff
    largest, norm = u * float(c.abs().max()), u * float(c.norm())
    for o in others:
        d = (o - c).nan_to_num_(0.0, 0.0, 0.0)
        largest, norm = max(largest, float(d.abs().max())), max(norm, float(d.norm()))
    d = x - c
    far = (float(d.abs().max()), largest), (float(d.norm()), norm)
    return max(math.inf if not e <= math.inf or (e and not by) else e / (FACTOR * by) if by else 0.0 for e, by in far)
