"""Laws of ops that drop or scale at random: the dropout family, rrelu, attention and recurrent layers with dropout."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from parity.dtypes import FACTS
from parity.judging.laws.law import EMPTY, Bound, Law, Problems, Results, Sample, coins, count, first, roundoff

ALPHA_PRIME = -1.7580993408473766  # what alpha dropout sets a dropped element to, before it scales (SELU's -lambda alpha)
Shape = tuple[int, ...]


def _smooth(call: Bound) -> bool:
    return True


def _parameters(call: Bound) -> tuple[float, bool]:
    """(p, training) of F.dropout and its kin, and of torch.dropout."""
    silent = "alpha_dropout" in call.op  # torch trains by default, but for these two
    return float(call.get(1, "p", 0.5)), bool(call.get(2, "training", call.kwargs.get("train", not silent)))


def _each(x: Tensor, op: str) -> Shape:
    """The mask's shape: one coin an element."""
    return tuple(x.shape)


def _channel(x: Tensor, op: str) -> Shape:
    """One coin a channel: dimensions 0 and 1, or 0 alone where the op takes its input without a batch."""
    lone = ("dropout1d" in op and x.dim() == 2) or ("dropout3d" in op and x.dim() == 4)
    kept = 1 if lone else 2
    return (*x.shape[:kept], *(1 for _ in x.shape[kept:]))


def _merged(shape: Shape) -> list[int]:
    """The dimensions over which one coin is shared, counted from the end."""
    return [d - len(shape) for d, n in enumerate(shape) if n == 1]


def _affine(alpha: bool, p: float) -> tuple[float, float, float]:
    """(scale, shift) of kept elements, value of dropped ones."""
    if not alpha:
        return 1 / (1 - p), 0.0, 0.0
    a = 1 / math.sqrt((ALPHA_PRIME**2 * p + 1) * (1 - p))
    shift = -a * ALPHA_PRIME * p
    return a, shift, a * ALPHA_PRIME + shift


def _near(y: Tensor, want: Tensor | float, u: float, top: float, size: Tensor | float) -> Tensor:
    """y == want but for four roundings of numbers of this size; beyond the dtype's range Inf is the number."""
    close = (y - want).abs() <= 8 * u * size + 1e-44
    wanted = torch.as_tensor(want, dtype=torch.float64)
    return close | ((wanted.abs() >= top * (1 - 8 * u)) & torch.isinf(y) & (y.sign() == wanted.sign()))


def dropout(mask: Callable[[Tensor, str], Shape] = _each, alpha: bool = False) -> Law:
    """Elements (or channels) kept and scaled with a chance of 1 - p, or dropped."""

    def told(call: Bound, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(elements that tell, kept, dropped), where x is finite, normal, and kept and dropped differ."""
        p, _ = _parameters(call)
        x, y = call.args[0].detach().to(torch.float64), y.detach().to(torch.float64)
        scale, shift, gone = _affine(alpha, p)
        facts, u = FACTS[str(call.args[0].dtype).removeprefix("torch.")], roundoff(call.args[0])
        size = (scale * x).abs() + abs(shift)
        want = scale * x + shift
        tells = torch.isfinite(x) & ((x == 0) | (x.abs() >= facts.tiny))  # a device may take smaller numbers for 0
        tells &= (want - gone).abs() > 64 * u * (size + abs(gone)) + 4 * facts.tiny
        tells = tells.expand(y.shape)
        kept = _near(y, want, u, facts.max, size)
        dropped = _near(y, gone, u, facts.max, abs(gone) + abs(shift))
        return tells, tells & kept, tells & dropped

    def outside(call: Bound, r: Results) -> Problems:
        name, t = first(r)
        x, (p, training) = call.args[0].detach(), _parameters(call)
        if not training or p == 0.0:
            same = (t == x) | (torch.isnan(t) & torch.isnan(x))
            return count(name, ~same, t, "are changed, where nothing is dropped")
        fine = torch.isfinite(x)
        if p == 1.0:
            return count(name, fine & (t != 0), t, "are not 0, where everything is dropped")
        tells, kept, dropped = told(call, t)
        found = count(name, tells & ~kept & ~dropped, t, f"are neither dropped nor scaled as by p={p:g}")
        found = found or count(name, fine & torch.isnan(t), t, "are NaN")
        if found or mask is _each:
            return found
        over = _merged(mask(x, call.op))
        split = kept.amax(over, keepdim=True) & dropped.amax(over, keepdim=True) if over and x.numel() else kept & dropped
        return count(name, split, split, "channels are dropped in part")

    def observe(call: Bound, r: Results) -> list[Sample]:
        t, (p, training) = first(r)[1], _parameters(call)
        if not training or p in (0.0, 1.0) or not t.numel():
            return []
        tells, kept, _ = told(call, t)
        shape = mask(call.args[0], call.op)
        over = _merged(shape)
        if over:
            tells, kept = tells.amax(over), kept.amax(over)
        whole = bool(tells.all())
        return [coins(kept[tells], 1 - p, roundoff(t), shape[-1] if whole and not over and len(shape) > 1 else 0)]

    def gradient(call: Bound, r: Results, cotangent: Tensor, grad: Tensor) -> Problems:
        p, training = _parameters(call)
        g, c = grad.detach().to(torch.float64), cotangent.detach().to(torch.float64)
        u, top = roundoff(call.args[0]), FACTS[str(call.args[0].dtype).removeprefix("torch.")].max
        if not training or p == 0.0:
            return count("grad[0]", ~_near(g, c, u, top, c.abs()), g, "are not the cotangent, where nothing is dropped")
        if p == 1.0:
            return count("grad[0]", g != 0, g, "are not 0, where everything is dropped")
        _, kept, dropped = told(call, first(r)[1])
        want = _affine(alpha, p)[0] * c
        return count("grad[0]", dropped & (g != 0), g, "flow through what forward dropped") or count(
            "grad[0]", kept & ~_near(g, want, u, top, want.abs()), g, "are not the cotangent as scaled where forward kept"
        )

    return Law(outside, observe, gradient, stacks=True)


# --------------------------------------------------------------------------------------------------------------- rrelu


def _rrelu(call: Bound) -> tuple[float, float, bool]:
    low, high = float(call.get(1, "lower", 1 / 8)), float(call.get(2, "upper", 1 / 3))
    return low, high, bool(call.get(3, "training", False))


def _slopes(call: Bound, y: Tensor) -> tuple[Tensor, Tensor]:
    """(elements that tell, slope of each)."""
    x = call.args[0].detach().to(torch.float64)
    facts = FACTS[str(call.args[0].dtype).removeprefix("torch.")]
    tells = torch.isfinite(x) & (x < 0) & (x > -facts.max / 64) & (x.abs() > facts.tiny * 2.0**12)
    return tells.expand(y.shape), y.detach().to(torch.float64) / torch.where(tells, x, 1.0)


def _wrong_slope(call: Bound, r: Results) -> Problems:
    name, t = first(r)
    x, (low, high, training), u = call.args[0].detach(), _rrelu(call), roundoff(call.args[0])
    tells, slope = _slopes(call, t)
    found = count(name, (x > 0) & (t != x), t, "are changed, where the input is positive")
    if not training:
        low = high = (low + high) / 2
    slack = 4 * u * max(abs(low), abs(high))
    return found or count(name, tells & ~((slope >= low - slack) & (slope <= high + slack)), slope, "are no slope to draw")


def _slope_sample(call: Bound, r: Results) -> list[Sample]:
    t = first(r)[1]
    low, high, training = _rrelu(call)
    tells, slope = _slopes(call, t)
    if not training or low == high or not bool(tells.any()):
        return []
    u, width = roundoff(t), high - low
    at = (slope[tells] - low) / width
    grain = u + 4 * u * max(abs(low), abs(high)) / width
    peak = min(1.0, 8 * grain)
    return [
        Sample(
            (at - grain).clamp(0, 1), (at + grain).clamp(0, 1), at, fuzzy=True, peak=peak,
            surprise=-math.log(peak) * at.numel(),
        )
    ]  # fmt: skip


def _slope_gradient(call: Bound, r: Results, cotangent: Tensor, grad: Tensor) -> Problems:
    """The slope that forward drew, where it drew one."""
    x = call.args[0].detach()
    tells, slope = _slopes(call, first(r)[1])
    g, c, u = grad.detach().to(torch.float64), cotangent.detach().to(torch.float64), roundoff(x)
    top = FACTS[str(x.dtype).removeprefix("torch.")].max
    want = torch.where(tells, slope, 1.0) * c
    fine = tells | (x > 0)
    return count("grad[0]", fine & ~_near(g, want, u, top, want.abs()), g, "are not the cotangent times forward's slope")


# ----------------------------------------------------------------------------------------------------------- attention


def _weights(call: Bound) -> Tensor:
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


def _attention(call: Bound, y: Tensor) -> tuple[Tensor, Tensor]:
    """(weights that tell, the result as a share of the kept weight). The values are the unit matrix: the result is the
    matrix of weights after dropout."""
    w, p = _weights(call), float(call.args[3])
    tells = torch.isfinite(w) & (w > 1e-3)
    return tells, y.detach().to(torch.float64) * (1 - p) / torch.where(tells, w, 1.0)


def _wrong_attention(call: Bound, r: Results) -> Problems:
    name, t = first(r)
    w, p = _weights(call), float(call.args[3])
    finite = torch.isfinite(w)
    found = count(name, finite & ~torch.isfinite(t), t, "are not finite")
    if found or p == 1.0:
        return found or count(name, finite & (t != 0), t, "are not 0, where everything is dropped")
    tells, share = _attention(call, t)
    slack = 0.1 if roundoff(t) > 2**-20 else 0.02
    neither = tells & (share.abs() > slack) & ((share - 1).abs() > slack)
    return count(name, neither, t, f"are neither dropped nor the weight as scaled by p={p:g}")


def _attention_sample(call: Bound, r: Results) -> list[Sample]:
    t, p = first(r)[1], float(call.args[3])
    tells, share = _attention(call, t)
    if p in (0.0, 1.0) or not bool(tells.any()):
        return []
    return [coins((share > 0.5)[tells], 1 - p, roundoff(t))]


# ---------------------------------------------------------------------------------------------------- recurrent layers


def _wrong_lstm(call: Bound, r: Results) -> Problems:
    """Finite, below 1, and with p = 1 what zeros between the layers give (`calls.lstm_dropout`: p before the flags)."""
    name, t = first(r)
    if not all(bool(torch.isfinite(a).all()) for a in _tensors(call.args)):
        return []
    found = count(name, ~(t.abs() <= 1 + 4 * roundoff(t)), t, "are NaN or above 1")
    if found or call.args[3] != 1.0:
        return found
    wide = [a.to(torch.float64) for a in call.args[2]]
    hidden = tuple(a.to(torch.float64) for a in call.args[1])
    truth = torch.lstm(call.args[0].to(torch.float64), hidden, wide, call.args[4], call.args[5], 1.0, True, *call.args[6:])[0]
    off = (t.to(torch.float64) - truth).abs() > 256 * roundoff(t) * (1 + len(t)) * (1 + max(w.shape[-1] for w in wide))
    return count(name, off, t, "differ from layers that get zeros")


def _tensors(tree: object) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [t for a in tree for t in _tensors(a)] if isinstance(tree, (tuple, list)) else []


def _lstm_sample(call: Bound, r: Results) -> list[Sample]:
    """No observation; but another mask gives another result, and there are as many coins as hidden values between layers."""
    t, p, layers = first(r)[1], float(call.args[3]), int(call.args[5])
    hidden = int(call.args[1][0].shape[-1])
    if p in (0.0, 1.0) or layers < 2 or hidden < 2 or not t.numel():
        return []
    # A mask that differs in one value may be hidden by rounding: count half of the coins.
    return [Sample(EMPTY, EMPTY, EMPTY, surprise=-math.log(max(p, 1 - p)) * t.numel() / 2)]


MASKS: dict[str, Law] = {
    "dropout": dropout(),
    "dropout1d": dropout(_channel),
    "dropout2d": dropout(_channel),
    "dropout3d": dropout(_channel),
    "alpha_dropout": dropout(alpha=True),
    "feature_alpha_dropout": dropout(_channel, alpha=True),
    "rrelu": Law(_wrong_slope, _slope_sample, _slope_gradient, stacks=True),
    "attention_dropout": Law(_wrong_attention, _attention_sample, slope=_smooth),
    "lstm_dropout": Law(_wrong_lstm, _lstm_sample, bits=False, slope=_smooth),
}
