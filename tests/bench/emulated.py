"""Devices whose arithmetic is chosen: five ops and their gradients by formula, in float32 or less, in any order of adding.

`detection.py` asks the judge about them. Sums of K terms go through matmul, conv2d, sum, softmax and layer_norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity import catalog, tolerance
from parity.core.case import Case, TensorSpec
from parity.core.dtypes import FACTS
from parity.devices import resolve
from parity.execution import execute as ex
from parity.execution.inputs import Inputs, Slot, operand
from parity.judging.bench import Bench
from parity.oracle.oracle import CaseOracle

PASSES = ("forward", "backward")
EPS = 1e-5
Results = dict[str, Tensor]


# -------------------------------------------------------------------------------------------------------- the arithmetic


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an emulated device computes; float32 inside. order: of adding; carry: the dtype that a running sum is rounded to
    after `every` additions; inputs: what operands are rounded to first; drops: the last term of every sum is left out.
    noise: ULP that functions are off by at most; saved: the dtype in which forward keeps its result for backward."""

    order: str = "pairwise"
    carry: torch.dtype = torch.float32
    every: int = 1
    inputs: str = ""
    drops: bool = False
    noise: float = 0.0
    seed: int = 0
    saved: torch.dtype = torch.float32

    def take(self, t: Tensor) -> Tensor:
        """An operand as the device reads it."""
        t = t.to(torch.float32)
        if self.inputs == "bfloat16":
            return t.to(torch.bfloat16).to(torch.float32)
        if self.inputs == "tf32":  # 10 bits, to nearest
            return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return t

    def function(self, t: Tensor) -> Tensor:
        """The result of exp, a division or rsqrt, off by a little."""
        if not self.noise:
            return t
        g = torch.Generator().manual_seed(self.seed + t.numel())
        ulps = (2 * torch.rand(t.shape, generator=g, dtype=torch.float64) - 1) * self.noise
        return (t.double() * (1 + ulps * 2.0**-23)).float()

    def total(self, terms: Tensor, dim: int) -> Tensor:
        """The sum over a dimension, in this order."""
        t = terms.movedim(dim, 0)
        t = t[:-1] if self.drops else t
        if self.order == "permuted":
            t = t[torch.randperm(t.shape[0], generator=torch.Generator().manual_seed(self.seed))]
        if self.order == "pairwise":
            while t.shape[0] > 1:
                half = t.shape[0] // 2
                t = torch.cat((t[:half] + t[half : 2 * half], t[2 * half :]))
            return t[0]
        block = int(self.order.removeprefix("blocks of ")) if self.order.startswith("blocks") else 1
        if block > 1:
            short = -t.shape[0] % block
            t = torch.cat((t, t.new_zeros(short, *t.shape[1:]))).view(-1, block, *t.shape[1:])
            t = self._chain(t.transpose(0, 1))
        return self._chain(t)

    def _chain(self, t: Tensor) -> Tensor:
        if self.every > 1:
            t = torch.stack([part.sum(0) for part in torch.split(t, self.every)])
        total = torch.zeros_like(t[0])
        for term in t:
            total = total + term
            if self.carry is not torch.float32:
                total = total.to(self.carry).to(torch.float32)
        return total


# --------------------------------------------------------------------------------------------------------------- the ops


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the experiment. shapes: of its operands, by K and pass; sums: the dims of the operands that are added over, by
    pass (what cancels cancels there); call: arguments from operands; formula: (arithmetic, operands, cotangent) -> results in
    float32, the cotangent None forward; noisy: whether it computes functions besides sums."""

    row: str
    shapes: Callable[[int, str], tuple[tuple[int, ...], ...]]
    sums: Callable[[str], tuple[int | None, ...]]
    call: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    formula: Callable[[Arithmetic, Sequence[Tensor], Tensor | None], Results]
    result: Callable[[int], tuple[int, ...]]
    noisy: bool = False


def _matmul(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    if g is None:
        return {"out": a.total(x[0][:, :, None] * x[1][None], 1)}
    return {"grad[0]": a.total(g[:, None] * x[1][None], 2), "grad[1]": a.total(x[0][:, :, None] * g[:, None], 0)}


def _conv2d(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    image, w = x
    (n, channels), (o, _, k, _) = image.shape[:2], w.shape
    patches = F.unfold(image, k)  # n, channels * k * k, places
    if g is None:
        out = a.total(w.view(o, -1)[None, :, :, None] * patches[:, None], 2)
        return {"out": out.view(n, o, *(s - k + 1 for s in image.shape[2:]))}
    fed = F.unfold(F.pad(g, (k - 1,) * 4), k)  # n, o * k * k, places of the image
    turned = w.flip(2, 3).transpose(0, 1).reshape(channels, -1)
    into = a.total(turned[None, :, :, None] * fed[:, None], 2).view_as(image)
    flat = g.reshape(n, o, -1)[:, :, None] * patches[:, None]  # n, o, channels * k * k, places
    return {"grad[0]": into, "grad[1]": a.total(flat.permute(1, 2, 0, 3).reshape(o, patches.shape[1], -1), 2).view_as(w)}


def _sum(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    if g is None:
        return {"out": a.total(x[0], 1)}
    back = g[:, None].expand(x[0].shape).clone()
    if a.drops:
        back[:, -1] = 0
    return {"grad[0]": back}


def _softmax(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    e = a.function(torch.exp(x[0] - x[0].amax(-1, keepdim=True)))
    y = a.function(e / a.total(e, -1)[:, None])
    if g is None:
        return {"out": y}
    y = y.to(a.saved).to(torch.float32)
    return {"grad[0]": y * (g - a.total(g * y, -1)[:, None])}


def _layer_norm(a: Arithmetic, x: Sequence[Tensor], g: Tensor | None) -> Results:
    image, w, b = x
    k = image.shape[-1]
    centred = image - (a.total(image, -1) / k)[:, None]
    rstd = a.function(torch.rsqrt(a.total(centred * centred, -1) / k + EPS))[:, None]
    hat = centred * rstd
    if g is None:
        return {"out": hat * w + b}
    gw = g * w
    into = rstd * (gw - (a.total(gw, -1) / k)[:, None] - hat * (a.total(gw * hat, -1) / k)[:, None])
    return {"grad[0]": into, "grad[1]": a.total(g * hat, 0), "grad[2]": a.total(g, 0)}


OPS = {
    op.row: op
    for op in (
        Op(
            "matmul",
            lambda k, p: ((24, k), (k, 20)) if p == "forward" else ((24, 20), (20, k)),
            lambda p: (1, 0) if p == "forward" else (None, 1),
            lambda t: (tuple(t), {}),
            _matmul,
            lambda k: (24, k),
        ),
        Op(
            "conv2d",
            lambda k, p: ((2, k // 4, 5, 5), (8, k // 4, 2, 2)) if p == "forward" else ((2, 8, 5, 5), (k // 4, 8, 2, 2)),
            lambda p: (1, 1) if p == "forward" else (None, 0),
            lambda t: (tuple(t), {}),
            _conv2d,
            lambda k: (2, k // 4, 4, 4),
        ),
        Op(
            "sum",
            lambda k, p: ((24, k, 20),) if p == "forward" else ((6, k, 5),),
            lambda p: (1,) if p == "forward" else (None,),
            lambda t: ((t[0], (1,)), {}),
            _sum,
            lambda k: (6, 5),
        ),
        Op(
            "softmax",
            lambda k, p: ((24, k),),
            lambda p: (1,),
            lambda t: ((t[0],), {"dim": -1}),
            _softmax,
            lambda k: (24, k),
            True,
        ),
        Op(
            "layer_norm",
            lambda k, p: ((24, k), (k,), (k,)),
            lambda p: (1, None, None),
            lambda t: ((t[0], (_last(t[0]),)), {"weight": t[1], "bias": t[2]}),
            _layer_norm,
            lambda k: (24, k),
            True,
        ),
    )
}


def _last(t: Any) -> int:
    return int(t.shape[-1])


# ------------------------------------------------------------------------------------------------------------- the values


def drawn(shape: tuple[int, ...], family: str, dtype: str, position: int, dim: int | None, g: torch.Generator) -> Tensor:
    """An operand. cancelling: the second half along `dim` is minus the first in one operand of a product, give or take some
    roundoffs (at least 1e-4), and equals it in the other; a lone operand without products has both in one."""
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    if family == "positive":
        x = torch.rand(shape, generator=g, dtype=torch.float64)
    if family == "wide" and position == 0:  # 3 as an exponent overflows float16
        x = x * torch.exp((1.5 if dtype == "float16" else 3.0) * torch.randn(shape, generator=g, dtype=torch.float64))
    if family == "tiny":
        x = x * (1e-4 if position == 0 else 1e-3)
    if family == "cancelling" and dim is not None:
        half = shape[dim] // 2
        part = max(1e-4, 16 * FACTS[dtype].unit_roundoff)
        first = x.narrow(dim, 0, half)
        noise = torch.randn(first.shape, generator=g, dtype=torch.float64)
        minus = position > 0 or len(shape) == 3
        x.narrow(dim, half, half).copy_(-first * (1 + part * noise) if minus else first)
    return x.to(getattr(torch, dtype))


@dataclass(frozen=True, slots=True)
class Setup:
    """One case with all that the judge asks for. cotangent: None forward."""

    op: Op
    bench: Bench
    reference: Results
    operands: tuple[Tensor, ...]
    cotangent: Tensor | None
    dtype: str

    @property
    def pass_(self) -> str:
        """Which pass is judged."""
        return PASSES[self.cotangent is not None]


def setup(op: Op, pass_: str, dtype: str, k: int, family: str, seed: int, always_use_oracle: bool) -> Setup | None:
    """The case, its reference and its oracle; None where the truth overflows the dtype."""
    g = torch.Generator().manual_seed(seed)
    shapes, sums = op.shapes(k, pass_), op.sums(pass_)
    made = [drawn(s, family, dtype, i, d, g) for i, (s, d) in enumerate(zip(shapes, sums))]
    if family == "cancelling" and op.noisy:  # far from 0 together: the maximum, the mean and the squares cancel
        made[0] = (made[0] * 0.5 + 10).to(made[0].dtype)
    specs = [TensorSpec(dtype, s) for s in shapes]
    args, kwargs = op.call(specs)
    case = Case(op.row, dtype, args, tuple(kwargs.items()))
    number = {id(s): Slot(i) for i, s in enumerate(specs)}
    inputs = Inputs(
        tuple(operand(s, i, t) for i, (s, t) in enumerate(zip(specs, made))),
        tuple(number.get(id(a), a) for a in args),
        {n: number.get(id(v), v) for n, v in kwargs.items()},
    )
    row = catalog.row(op.row)
    program = ex.program(row)
    live = ex.forward(program, case, inputs, ex.place(inputs, resolve("cpu")), pass_ == "backward")
    oracle = CaseOracle(program, case, inputs, made[0].dtype)
    fed = None
    results = live.outputs
    if pass_ == "backward":
        fed = drawn(op.result(k), "normal", dtype, 1, None, g)
        if family == "cancelling" and op.row in ("matmul", "conv2d"):  # the summed dim of the cotangent holds everything twice
            half = fed.shape[1] // 2
            fed[:, half:] = fed[:, :half]
        results = ex.backward(live, [fed])
        oracle.differentiate([fed])
    bench = Bench(row, tolerance.load("cpu"), oracle, None, always_use_oracle, whole=always_use_oracle)
    reference = {n: t.detach() for n, t in results}
    limit = FACTS[dtype].max
    for n in reference:
        truth = oracle.truth(n)
        if truth is None or not bool((truth.abs() < limit).all()):
            return None
    return Setup(op, bench, reference, tuple(made), fed, dtype)


def computed(s: Setup, a: Arithmetic) -> Results:
    """What a device with this arithmetic gives, in the dtype."""
    dtype = getattr(torch, s.dtype)
    fed = None if s.cotangent is None else a.take(s.cotangent)
    made = s.op.formula(replace(a, saved=dtype), [a.take(t) for t in s.operands], fed)
    return {n: t.to(dtype) for n, t in made.items()}
