"""Laws of ops that pick a permutation, a category or a pooling window."""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor

from parity.catalog.glue.calls import with_zeros
from parity.judging.laws.law import (
    EMPTY,
    CallLike,
    Law,
    Observations,
    Problems,
    Results,
    Tallies,
    count,
    first,
    reals,
    roundoff,
)

FEW = 256  # at most this many categories are counted one by one


# -------------------------------------------------------------------------------------------------------- permutations


def _no_permutation(call: CallLike, r: Results) -> Problems:
    name, t = first(r)
    if not torch.equal(t.reshape(-1).to(torch.int64).sort().values, torch.arange(t.numel())):
        return [(name, f"is no permutation of 0..{t.numel() - 1}")]
    return []


def _permutation(call: CallLike, r: Results) -> list[Observations]:
    """Coins that are fair and independent in a uniform permutation.

    They are: which of two neighbours is larger, over disjoint pairs; the same over pairs half the length apart; small values in
    the first half (hypergeometric: tails below the binomial's). The number of fixed points has at most the factorial moments of
    Poisson(1).
    """
    p = first(r)[1].to(torch.float64)
    n = p.numel()
    half = n // 2
    if n < 2:
        return []
    pairs = (p[: 2 * half : 2], p[1 : 2 * half : 2]), (p[1 : n - (n % 2 == 0) : 2], p[2::2]), (p[:half], p[half : 2 * half])
    counts = [float((a[: b.numel()] < b).sum()) for a, b in pairs]
    trials = [float(b.numel()) for _, b in pairs]
    counts.append(float((p[:half] < half).sum()))
    trials.append(float(half))
    chances = [0.5, 0.5, 0.5, half / n]
    # The places of the ends are uniform over many calls; the quarters in which they fall are counted.
    for where, quarter in itertools.product((0, half, n - 1), range(4)):
        low, high = math.ceil(quarter * n / 4), math.ceil((quarter + 1) * n / 4)
        counts.append(float(low <= float(p[where]) < high))
        trials.append(1.0)
        chances.append((high - low) / n)
    c, t, q = (torch.tensor(v, dtype=torch.float64) for v in (counts, trials, chances))
    fixed = int((p == torch.arange(n)).sum())
    return [Observations(EMPTY, EMPTY, EMPTY, surprise=math.lgamma(n + 1), tallies=Tallies(c, t, q, q), matches=fixed)]


# ---------------------------------------------------------------------------------------------------------- categories


def _atom(chances: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """The intervals of the picked categories [m, n] in the cumulated chances [m, k] of their rows."""
    edge = torch.cat([torch.zeros(chances.shape[0], 1, dtype=torch.float64), chances.cumsum(1).clamp(max=1)], 1)
    return edge.gather(1, picked), torch.where(picked == chances.shape[1] - 1, 1.0, edge.gather(1, picked + 1))


def _category(low: Tensor, high: Tensor, likely: Tensor, picked: Tensor, grain: float) -> Observations:
    """Observations of independent picks. low, high: the atom of each; likely: the largest chance in its row."""
    likely, fuzzy = (likely + grain).clamp(max=1), grain > 2.0**-20
    return Observations(
        (low - grain).clamp(0, 1).reshape(-1) if fuzzy else low.reshape(-1),
        (high + grain).clamp(0, 1).reshape(-1) if fuzzy else high.reshape(-1),
        picked.reshape(-1).to(torch.float64),
        fuzzy=fuzzy,
        peak=float(likely.max()),
        surprise=float(-torch.log(likely).sum()),
    )


def _weights(call: CallLike, zeros: bool) -> Tensor:
    """Weights as float64 rows. zeros: apply the row's own function first, which sets some of them to 0."""
    w: Tensor = with_zeros(call.args[0]) if zeros else call.args[0]
    return w.detach().to(torch.float64).reshape(-1, w.shape[-1])


def _impossible_category(call: CallLike, r: Results, zeros: bool = False) -> Problems:
    name, t = first(r)
    w, picked = _weights(call, zeros), t.to(torch.int64).reshape(-1, t.shape[-1])
    bad = (picked < 0) | (picked >= w.shape[1])
    if bool(bad.any()):
        return count(name, bad, picked, f"are no category of {w.shape[1]}")
    none = w.gather(1, picked) == 0
    if bool(none.any()):
        return count(name, none, picked, "have a chance of 0, and were drawn")
    if not call.get(2, "replacement", False) and bool((picked.sort(1).values.diff(dim=1) == 0).any()):
        return [(name, "a category is drawn twice without replacement")]
    return []


def _multinomial(call: CallLike, r: Results, zeros: bool = False) -> list[Observations]:
    """With replacement the picks of a row are independent; without, each has the chances of what is left.

    torch promises the order of drawing.
    """
    w = _weights(call, zeros)
    picked = first(r)[1].to(torch.int64).reshape(w.shape[0], -1)
    again = bool(call.get(2, "replacement", False))
    # Cumulated chances are rounded to the dtype of the weights.
    grain = w.shape[1] * roundoff(call.args[0])
    if grain > 0.25 or not picked.numel():
        return []
    p = w / w.sum(1, keepdim=True)
    low, high, likely, left = [], [], [], p
    for j in range(1 if again else picked.shape[1]):
        at = picked if again else picked[:, j : j + 1]
        ends = _atom(left, at)
        low.append(ends[0])
        high.append(ends[1])
        likely.append(left.max(1, keepdim=True).values.expand(at.shape))
        if not again:
            left = left.scatter(1, at, 0.0)
            left = left / left.sum(1, keepdim=True)
    sample = _category(torch.cat(low, 1), torch.cat(high, 1), torch.cat(likely, 1), picked, grain)
    if w.numel() > FEW:
        return [sample]
    draws = picked if again else picked[:, :1]
    counts = torch.zeros_like(w).scatter_add(1, draws, torch.ones(draws.shape, dtype=torch.float64)).reshape(-1)
    tallies = Tallies(counts, torch.full_like(counts, draws.shape[1]), p.reshape(-1) - grain, p.reshape(-1) + grain)
    return [
        Observations(
            sample.low, sample.high, sample.values, fuzzy=sample.fuzzy, peak=sample.peak, surprise=sample.surprise,
            row=picked.shape[1], tallies=tallies,
        )
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- gumbel


def _gumbel_rows(call: CallLike, t: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, result) as float64 rows over the dimension that is normalised."""
    dim = int(call.get(4, "dim", -1))
    return tuple(x.detach().to(torch.float64).movedim(dim, -1).reshape(-1, x.shape[dim]) for x in (call.args[0], t))  # type: ignore[return-value]  # two


def _no_simplex(call: CallLike, r: Results) -> Problems:
    name, t = first(r)
    if not t.dim() or not t.numel():
        return []
    logits, y = _gumbel_rows(call, t)
    fine = torch.isfinite(logits).all(1, keepdim=True)
    u = roundoff(t)
    problems = count(name, fine & ~((y >= -2 * u) & (y <= 1 + 4 * u)), y, "are outside of [0, 1]")
    total = y.sum(1, keepdim=True)
    problems = problems or count(name, fine & ~((total - 1).abs() <= 4 * u * (y.shape[1] + 2)), total, "rows do not sum to 1")
    if not problems and bool(call.get(2, "hard", False)):
        problems = count(name, fine & (((y - 1).abs() > 4 * u) & (y.abs() > 4 * u)), y, "are not one-hot")
    return problems


def _gumbel(call: CallLike, r: Results) -> list[Observations]:
    """The largest element is a pick with the chances softmax(logits), whatever the temperature."""
    t = first(r)[1]
    if not t.dim() or not t.numel():
        return []
    logits, y = _gumbel_rows(call, t)
    top = y.max(1, keepdim=True).values
    fine = torch.isfinite(logits).all(1) & ((y == top).sum(1) == 1)
    # Half types round many rows to a tie, and the remaining rows are no fair sample.
    if not bool(fine.any()) or (roundoff(t) > 2**-20 and not bool(call.get(2, "hard", False))):
        return []
    chances, picked = logits[fine].softmax(1), y[fine].argmax(1, keepdim=True)
    low, high = _atom(chances, picked)
    return [_category(low, high, chances.max(1, keepdim=True).values, picked, 2.0**-18)]


# ------------------------------------------------------------------------------------------------- fractional max pool


def _starts(inside: int, window: int, out: int) -> list[range]:
    """Possible starts of window i: floor((i + s) a) - floor(s a) for a sample s in [0, 1); the last window is at the end."""
    if out == 1:
        return [range(inside - window, inside - window + 1)]
    a = (inside - window) / (out - 1)
    first_ones = [range(math.floor(i * a + 1e-6) - (1 if i else 0), math.floor(i * a - 1e-6) + 3) for i in range(out - 1)]
    return [*first_ones, range(inside - window, inside - window + 1)]


@functools.lru_cache(maxsize=256)
def _windows(inside: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """All pairs (element of the result, corner of a window that it may come from), as flat indices; corners count the places
    where a window fits."""
    fits = [n - k + 1 for n, k in zip(inside, kernel)]
    starts = [_starts(*sizes) for sizes in zip(inside, kernel, out)]
    cells, corners = list[int](), list[int]()
    for flat, cell in enumerate(itertools.product(*map(range, out))):
        for corner in itertools.product(*(starts[d][i] for d, i in enumerate(cell))):
            if all(0 <= c < n for c, n in zip(corner, fits)):
                cells.append(flat)
                corners.append(functools.reduce(lambda at, step: at * step[1] + step[0], zip(corner, fits), 0))
    return torch.tensor(cells, dtype=torch.int64), torch.tensor(corners, dtype=torch.int64)


def _outside_window(call: CallLike, r: Results) -> Problems:
    """Every result must be the maximum of a possible window and the input at its index."""
    name, t = first(r)
    x: Tensor = call.args[0].detach()
    spatial = call.row.draws.spatial
    kernel = call.get(1, "kernel_size")
    kernel = (kernel,) * spatial if isinstance(kernel, int) else tuple(map(int, kernel))
    planes = reals(x).reshape(-1, *x.shape[-spatial:])
    got = reals(t).reshape(-1, *t.shape[-spatial:])
    if not torch.isfinite(planes).all() or not got.numel() or math.prod(got.shape[1:]) > 4096:
        return []
    windows = planes
    for d, size in enumerate(kernel):
        windows = windows.unfold(d + 1, size, 1)
    cells, corners = _windows(tuple(planes.shape[1:]), kernel, tuple(got.shape[1:]))
    hits = windows.amax(tuple(range(-spatial, 0))).flatten(1)[:, corners] == got.flatten(1)[:, cells]
    drawable = (
        torch.zeros(got.flatten(1).shape, dtype=torch.int64).index_add_(1, cells, hits.to(torch.int64)).view(got.shape) > 0
    )
    wrong = count(name, ~drawable, got, "are the maximum of no window that may be drawn")
    index = next((v for n, v in r.items() if n == "out[1]"), None)
    if wrong or index is None:
        return wrong
    flat, at = planes.flatten(1), index.reshape(got.shape[0], -1).to(torch.int64)
    if bool(((at < 0) | (at >= flat.shape[1])).any()):
        return [("out[1]", "an index is outside the plane")]
    return [] if torch.equal(flat.gather(1, at), got.flatten(1)) else [("out[1]", "the input at the index is not the maximum")]


def _to_index(call: CallLike, r: Results, cotangent: Tensor, grad: Tensor) -> Problems:
    """The cotangent must flow to the element that forward chose."""
    if "out[1]" not in r or not r["out[1]"].numel():
        return []
    spatial = call.row.draws.spatial
    planes = grad.detach().to(torch.float64).flatten(-spatial)
    index = r["out[1]"].to(torch.int64).flatten(-spatial)
    fed = cotangent.detach().to(torch.float64).flatten(-spatial)
    want, size = (torch.zeros_like(planes).scatter_add(-1, index, c) for c in (fed, fed.abs()))
    off = (planes - want).abs() > 16 * roundoff(grad) * size
    return count("grad[0]", off, planes, "are not what the chosen elements got")


def _nothing(call: CallLike, r: Results) -> list[Observations]:
    return []


PICKS: dict[str, Law] = {
    "randperm": Law(_no_permutation, _permutation, generator=True),
    "multinomial": Law(_impossible_category, _multinomial, generator=True),
    "multinomial_zeros": Law(
        functools.partial(_impossible_category, zeros=True), functools.partial(_multinomial, zeros=True), generator=True
    ),
    "gumbel_softmax": Law(_no_simplex, _gumbel, slope=lambda call: not call.get(2, "hard", False)),
    "fractional_max_pool": Law(_outside_window, _nothing, _to_index),
}
