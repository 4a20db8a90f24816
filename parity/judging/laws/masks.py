"""Laws of ops that drop or scale at random: the dropout family, rrelu, attention and recurrent layers with dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from parity.core.dtypes import FACTS
from parity.judging.laws.law import EMPTY, CallLike, Law, Observations, Problems, Results, coins, count, first, roundoff

ALPHA_PRIME = -1.7580993408473766  # value of a dropped element in alpha dropout, before scaling (SELU's -lambda alpha)
Shape = tuple[int, ...]


def _smooth(call: CallLike) -> bool:
    return True


def _parameters(call: CallLike, trains: bool) -> tuple[float, bool]:
    """(p, training) of F.dropout and its kin, and of torch.dropout. trains: the default of training."""
    return float(call.get(1, "p", 0.5)), bool(call.get(2, "training", call.kwargs.get("train", trains)))


def _each(x: Tensor) -> Shape:
    """The mask's shape with one coin per element."""
    return tuple(x.shape)


def _channel(x: Tensor, batched: int = 0) -> Shape:
    """The mask's shape with one coin per channel: dimensions 0 and 1. batched: the only rank that torch takes for a batch; at
    every other one dimension 0 is the channel. 0 if torch does so at no rank."""
    kept = 1 if batched and x.dim() != batched else 2
    return (*x.shape[:kept], *(1 for _ in x.shape[kept:]))


def _merged(shape: Shape) -> list[int]:
    """The dimensions along which one coin is shared, counted from the end."""
    return [d - len(shape) for d, n in enumerate(shape) if n == 1]


def _affine(alpha: bool, p: float) -> tuple[float, float, float]:
    """(scale of kept elements, their shift, value of dropped elements)."""
    if not alpha:
        return 1 / (1 - p), 0.0, 0.0
    a = 1 / math.sqrt((ALPHA_PRIME**2 * p + 1) * (1 - p))
    shift = -a * ALPHA_PRIME * p
    return a, shift, a * ALPHA_PRIME + shift


def _near(y: Tensor, want: Tensor | float, u: float, top: float, size: Tensor | float) -> Tensor:
    """y == want up to four roundings of numbers of this size; past the dtype's range, Inf is accepted."""
    close = (y - want).abs() <= 8 * u * size + 1e-44
    wanted = torch.as_tensor(want, dtype=torch.float64)
    return close | ((wanted.abs() >= top * (1 - 8 * u)) & torch.isinf(y) & (y.sign() == wanted.sign()))


@dataclass(frozen=True, slots=True)
class _Dropout:
    """The parts of a law of dropout. mask: the shape of the coins; alpha: whether dropped elements keep mean and variance."""

    mask: Callable[[Tensor], Shape]
    alpha: bool

    def masks(self, call: CallLike, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(decidable, kept, dropped) elements. Decidable: x is finite and normal, and the results of keeping and dropping
        differ."""
        p, _ = _parameters(call, trains=not self.alpha)
        x, y = call.args[0].detach().to(torch.float64), y.detach().to(torch.float64)
        scale, shift, gone = _affine(self.alpha, p)
        facts, u = FACTS[str(call.args[0].dtype).removeprefix("torch.")], roundoff(call.args[0])
        size = (scale * x).abs() + abs(shift)
        want = scale * x + shift
        decidable = torch.isfinite(x) & ((x == 0) | (x.abs() >= facts.tiny))  # a device may flush smaller numbers
        decidable &= (want - gone).abs() > 64 * u * (size + abs(gone)) + 4 * facts.tiny
        decidable = decidable.expand(y.shape)
        kept = _near(y, want, u, facts.max, size)
        dropped = _near(y, gone, u, facts.max, abs(gone) + abs(shift))
        return decidable, decidable & kept, decidable & dropped

    def outside(self, call: CallLike, r: Results) -> Problems:
        """What no draw explains."""
        name, t = first(r)
        x, (p, training) = call.args[0].detach(), _parameters(call, trains=not self.alpha)
        if not training or p == 0.0:
            same = (t == x) | (torch.isnan(t) & torch.isnan(x))
            return count(name, ~same, t, "are changed, where nothing is dropped")
        fine = torch.isfinite(x)
        if p == 1.0:
            return count(name, fine & (t != 0), t, "are not 0, where everything is dropped")
        decidable, kept, dropped = self.masks(call, t)
        problems = count(name, decidable & ~kept & ~dropped, t, f"are neither dropped nor scaled as by p={p:g}")
        problems = problems or count(name, fine & torch.isnan(t), t, "are NaN")
        if problems or self.mask is _each:
            return problems
        over = _merged(self.mask(x))
        split = kept.amax(over, keepdim=True) & dropped.amax(over, keepdim=True) if over and x.numel() else kept & dropped
        return count(name, split, split, "channels are dropped in part")

    def observe(self, call: CallLike, r: Results) -> list[Observations]:
        """The coins: which elements or channels were kept."""
        t, (p, training) = first(r)[1], _parameters(call, trains=not self.alpha)
        if not training or p in (0.0, 1.0) or not t.numel():
            return []
        decidable, kept, _ = self.masks(call, t)
        shape = self.mask(call.args[0])
        over = _merged(shape)
        if over:
            decidable, kept = decidable.amax(over), kept.amax(over)
        whole = bool(decidable.all())
        return [coins(kept[decidable], 1 - p, roundoff(t), shape[-1] if whole and not over and len(shape) > 1 else 0)]

    def gradient(self, call: CallLike, r: Results, cotangent: Tensor, grad: Tensor) -> Problems:
        """What is not the cotangent through the mask of the forward pass."""
        p, training = _parameters(call, trains=not self.alpha)
        g, c = grad.detach().to(torch.float64), cotangent.detach().to(torch.float64)
        u, top = roundoff(call.args[0]), FACTS[str(call.args[0].dtype).removeprefix("torch.")].max
        if not training or p == 0.0:
            return count("grad[0]", ~_near(g, c, u, top, c.abs()), g, "are not the cotangent, where nothing is dropped")
        if p == 1.0:
            return count("grad[0]", g != 0, g, "are not 0, where everything is dropped")
        _, kept, dropped = self.masks(call, first(r)[1])
        want = _affine(self.alpha, p)[0] * c
        return count("grad[0]", dropped & (g != 0), g, "flow through what forward dropped") or count(
            "grad[0]", kept & ~_near(g, want, u, top, want.abs()), g, "are not the cotangent as scaled where forward kept"
        )


def dropout(mask: Callable[[Tensor], Shape] = _each, alpha: bool = False) -> Law:
    """The law of dropout: elements (or channels) are kept and scaled with a chance of 1 - p, or dropped."""
    parts = _Dropout(mask, alpha)
    return Law(parts.outside, parts.observe, parts.gradient, stacks=True)


# --------------------------------------------------------------------------------------------------------------- rrelu


def _rrelu(call: CallLike) -> tuple[float, float, bool]:
    low, high = float(call.get(1, "lower", 1 / 8)), float(call.get(2, "upper", 1 / 3))
    return low, high, bool(call.get(3, "training", False))


def _slopes(call: CallLike, y: Tensor) -> tuple[Tensor, Tensor]:
    """(where the slope that rrelu drew can be read from the result, result / input).

    It can be read where the input is finite, negative, and neither so small nor so large that rounding or the range of the
    dtype would spoil the quotient. The quotient means nothing elsewhere.
    """
    x = call.args[0].detach().to(torch.float64)
    facts = FACTS[str(call.args[0].dtype).removeprefix("torch.")]
    decidable = torch.isfinite(x) & (x < 0) & (x > -facts.max / 64) & (x.abs() > facts.tiny * 2.0**12)
    return decidable.expand(y.shape), y.detach().to(torch.float64) / torch.where(decidable, x, 1.0)


def _wrong_slope(call: CallLike, r: Results) -> Problems:
    name, t = first(r)
    x, (low, high, training), u = call.args[0].detach(), _rrelu(call), roundoff(call.args[0])
    decidable, slope = _slopes(call, t)
    problems = count(name, (x > 0) & (t != x), t, "are changed, where the input is positive")
    if not training:
        low = high = (low + high) / 2
    slack = 4 * u * max(abs(low), abs(high))
    return problems or count(
        name, decidable & ~((slope >= low - slack) & (slope <= high + slack)), slope, "are no slope to draw"
    )


def _slope_sample(call: CallLike, r: Results) -> list[Observations]:
    t = first(r)[1]
    low, high, training = _rrelu(call)
    decidable, slope = _slopes(call, t)
    if not training or low == high or not bool(decidable.any()):
        return []
    u, width = roundoff(t), high - low
    at = (slope[decidable] - low) / width
    grain = u + 4 * u * max(abs(low), abs(high)) / width
    peak = min(1.0, 8 * grain)
    return [
        Observations(
            (at - grain).clamp(0, 1), (at + grain).clamp(0, 1), at, fuzzy=True, peak=peak,
            surprise=-math.log(peak) * at.numel(),
        )
    ]  # fmt: skip


def _slope_gradient(call: CallLike, r: Results, cotangent: Tensor, grad: Tensor) -> Problems:
    """The gradient must be the slope that forward drew."""
    x = call.args[0].detach()
    decidable, slope = _slopes(call, first(r)[1])
    g, c, u = grad.detach().to(torch.float64), cotangent.detach().to(torch.float64), roundoff(x)
    top = FACTS[str(x.dtype).removeprefix("torch.")].max
    want = torch.where(decidable, slope, 1.0) * c
    fine = decidable | (x > 0)
    return count("grad[0]", fine & ~_near(g, want, u, top, want.abs()), g, "are not the cotangent times forward's slope")


# ----------------------------------------------------------------------------------------------------------- attention


def _weights(call: CallLike) -> Tensor:
    """softmax(q k^T / sqrt(width) + mask) in float64, for `calls.attention_dropout(q, k, mask, p, causal)`."""
    q, k = (a.detach().to(torch.float64) for a in call.args[:2])
    mask, causal = call.args[2], bool(call.args[4])
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.to(torch.float64)
    weights: Tensor = scores.softmax(-1)
    return weights


def _attention(call: CallLike, y: Tensor) -> tuple[Tensor, Tensor]:
    """(decidable weights, the result relative to the kept weight). The values are the unit matrix, so the result is the matrix
    of weights after dropout."""
    w, p = _weights(call), float(call.args[3])
    decidable = torch.isfinite(w) & (w > 1e-3)
    return decidable, y.detach().to(torch.float64) * (1 - p) / torch.where(decidable, w, 1.0)


def _wrong_attention(call: CallLike, r: Results) -> Problems:
    name, t = first(r)
    w, p = _weights(call), float(call.args[3])
    finite = torch.isfinite(w)
    problems = count(name, finite & ~torch.isfinite(t), t, "are not finite")
    if problems or p == 1.0:
        return problems or count(name, finite & (t != 0), t, "are not 0, where everything is dropped")
    decidable, kept_part = _attention(call, t)
    slack = 0.1 if roundoff(t) > 2**-20 else 0.02
    neither = decidable & (kept_part.abs() > slack) & ((kept_part - 1).abs() > slack)
    return count(name, neither, t, f"are neither dropped nor the weight as scaled by p={p:g}")


def _attention_sample(call: CallLike, r: Results) -> list[Observations]:
    t, p = first(r)[1], float(call.args[3])
    decidable, kept_part = _attention(call, t)
    if p in (0.0, 1.0) or not bool(decidable.any()):
        return []
    return [coins((kept_part > 0.5)[decidable], 1 - p, roundoff(t))]


# ---------------------------------------------------------------------------------------------------- recurrent layers


def _wrong_lstm(call: CallLike, r: Results) -> Problems:
    """Results must be finite and at most 1; with p = 1 they must be those of zeros between the layers (`calls.lstm_dropout`: p
    before the flags)."""
    name, t = first(r)
    if not all(bool(torch.isfinite(a).all()) for a in _tensors(call.args)):
        return []
    problems = count(name, ~(t.abs() <= 1 + 4 * roundoff(t)), t, "are NaN or above 1")
    if problems or call.args[3] != 1.0:
        return problems
    wide = [a.to(torch.float64) for a in call.args[2]]
    hidden = tuple(a.to(torch.float64) for a in call.args[1])
    truth = torch.lstm(call.args[0].to(torch.float64), hidden, wide, call.args[4], call.args[5], 1.0, True, *call.args[6:])[0]
    off = (t.to(torch.float64) - truth).abs() > 256 * roundoff(t) * (1 + len(t)) * (1 + max(w.shape[-1] for w in wide))
    return count(name, off, t, "differ from layers that get zeros")


def _tensors(tree: object) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [t for a in tree for t in _tensors(a)] if isinstance(tree, (tuple, list)) else []


def _lstm_sample(call: CallLike, r: Results) -> list[Observations]:
    """No observation, only the surprise: another mask, of as many coins as hidden values between layers, changes the result."""
    t, p, layers = first(r)[1], float(call.args[3]), int(call.args[5])
    hidden = int(call.args[1][0].shape[-1])
    if p in (0.0, 1.0) or layers < 2 or hidden < 2 or not t.numel():
        return []
    # A mask that differs in one value may be hidden by rounding: count half of the coins.
    return [Observations(EMPTY, EMPTY, EMPTY, surprise=-math.log(max(p, 1 - p)) * t.numel() / 2)]


MASKS: dict[str, Law] = {
    "dropout": dropout(),
    "dropout1d": dropout(partial(_channel, batched=3)),
    "dropout2d": dropout(_channel),
    "dropout3d": dropout(partial(_channel, batched=5)),
    "alpha_dropout": dropout(alpha=True),
    "feature_alpha_dropout": dropout(_channel, alpha=True),
    "rrelu": Law(_wrong_slope, _slope_sample, _slope_gradient, stacks=True),
    "attention_dropout": Law(_wrong_attention, _attention_sample, slope=_smooth),
    "lstm_dropout": Law(_wrong_lstm, _lstm_sample, bits=False, slope=_smooth),
}
