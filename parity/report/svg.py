"""Pictures of errors as inline SVG: a finding's elements on a grid, and histograms.

Drawn by hand, for three reasons. A page must load nothing, and a plotting library would add 1 to 4 MB of script to each one. A
static picture needs no script, takes its colours from the page (light and dark), and is read out by its title. And a path for
each step of the scale keeps a picture at some hundred bytes, so that every finding of a run can have its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from parity.core import picture
from parity.core.results import Measure
from parity.report.words import plural

WIDTH, HEIGHT = 220, 75  # of a histogram, in pixels
SQUARE = 14  # pixels of a place of the grid
LOW, HIGH = -10, 10  # range of the histograms of error ratios, as powers of two
OVER = 1.0  # the budget


def level_class(letter: str) -> str:
    """The style of a letter of `parity.core.picture`: none, within the budget (1 to 3), above it (1 to 4), without a size."""
    if letter == picture.NOT_JUDGED:
        return "e-un"
    k = picture.LETTERS.index(letter)
    if k == 0:
        return "e-no"
    if k == len(picture.LETTERS) - 1:
        return "e-odd"
    if k < picture.ONE:
        return f"e-in{1 + 3 * (k - 1) // (picture.ONE - 1)}"
    return f"e-out{1 + 4 * (k - picture.ONE) // (len(picture.LETTERS) - 1 - picture.ONE)}"


def heat_map(m: Measure) -> Markup | None:
    """The elements of a finding's tensor, the worst one framed; None if the run file holds no picture of it."""
    if not m.errors:
        return None
    g = picture.grid(m.shape)
    paths: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for row in range(g.rows):
        line = m.errors[row * g.columns : (row + 1) * g.columns]
        start = 0
        for column in range(1, g.columns + 1):
            if column == g.columns or line[column] != line[start]:
                length = column - start
                paths[line[start]].append(f"M{start} {row}h{length}v1h-{length}z")
                counts[line[start]] += length
                start = column
    parts = [
        Markup('<path class="{}" d="{}"><title>{}</title></path>').format(level_class(x), "".join(d), _said(x, counts[x], g))
        for x, d in sorted(paths.items())
    ]
    lines = [f"M{k} 0v{g.rows}" for k in range(1, g.columns)] + [f"M0 {k}h{g.columns}" for k in range(1, g.rows)]
    parts.append(Markup('<path class="grid" d="{}"></path>').format("".join(lines)))
    where = picture.place(m.shape, m.index)
    if where is not None:
        parts.append(Markup('<rect class="worst" x="{}" y="{}" width="1" height="1"></rect>').format(where[1], where[0]))
    shape = " x ".join(map(str, m.shape)) or "one element"
    label = f"errors of {m.tensor or 'the result'}, {shape}: {m.mismatched:,} of {m.total:,} above the budget"
    wide, tall = g.columns + 0.2, g.rows + 0.2  # room for the frame of the worst
    text = '<svg class="map" viewBox="-.1 -.1 {:.1f} {:.1f}" width="{:.0f}" height="{:.0f}" role="img" aria-label="{}">'
    head = Markup(text).format(wide, tall, SQUARE * wide, SQUARE * tall, label)
    return head + Markup("").join(parts) + Markup("</svg>")


def map_caption(m: Measure) -> str:
    """What a place of the grid stands for."""
    g = picture.grid(m.shape)
    shape = f"{list(m.shape)}"
    if g.tall * g.wide == 1:
        return f"each square is an element of {shape}" if len(m.errors) > 1 else f"the one element of {shape}"
    return f"each square is the worst of {g.tall} x {g.wide} elements of {shape}"


def _said(letter: str, n: int, g: picture.Grid) -> str:
    what = "square" if g.tall * g.wide > 1 else "element"
    words = "not judged" if letter == picture.NOT_JUDGED else picture.between(picture.LETTERS.index(letter))
    return f"{plural(n, what)}: {words}"


def of_bins(m: Measure) -> Markup | None:
    """How many elements of a finding's tensor are how far off; None if the run file does not say."""
    if not m.bins or not any(m.bins):
        return None
    step, most = WIDTH / len(m.bins), max(m.bins)
    bars = [
        _bar(k * step, step, HEIGHT * _root(n / most), level_class(picture.LETTERS[k]), f"{n:,}: {picture.between(k)}")
        for k, n in enumerate(m.bins)
        if n
    ]
    label = f"error of each of {sum(m.bins):,} elements: {m.mismatched:,} above the budget"
    axis = [(0.0, "none", "start"), (picture.ONE * step, "1", "middle"), (WIDTH, f"{2.0**picture.HIGHEST:g} or more", "end")]
    return _framed(bars, picture.ONE * step, axis, label)


def of_ratios(ratios: Sequence[float], earlier: Sequence[float] | None, label: str) -> Markup:
    """Error ratios in powers of two, as fractions of all; those of an earlier run as an outline. What is below the range
    stands in the first bar, Inf in the last."""
    step = WIDTH / (HIGH - LOW)
    now, before = _binned(ratios), _binned(earlier or ())
    shares = [n / max(1, sum(now)) for n in now]
    shares_before = [n / max(1, sum(before)) for n in before]
    most = max([*shares, *shares_before]) or 1.0
    bars = []
    for k, n in enumerate(now):
        low, high = 2.0 ** (k + LOW), 2.0 ** (k + LOW + 1)
        words = f"{n:,} between {low:g} and {high:g}" if k else f"{n:,} below {high:g}"
        words = f"{n:,} of {low:g} or more" if k == len(now) - 1 else words
        if n:
            bars.append(_bar(k * step, step, HEIGHT * _root(shares[k] / most), "over" if k + LOW >= 0 else "fill", words))
    if earlier is not None:
        points = "".join(
            f"{'L' if k else 'M'}{k * step:.1f} {HEIGHT - HEIGHT * _root(x / most):.1f}h{step:.1f}"
            for k, x in enumerate(shares_before)
        )
        bars.append(Markup('<path class="earlier" d="{}"><title>the earlier run</title></path>').format(points))
    ends = [(0.0, f"{2.0**LOW:.2g}", "start"), (-LOW * step, "1", "middle"), (WIDTH, f"{2.0 ** (HIGH - 1):g} or more", "end")]
    return _framed(bars, -LOW * step, ends, label)


def _root(x: float) -> float:
    """Heights are square roots, so that one element of thousands can be seen."""
    return math.sqrt(x)


def _binned(ratios: Sequence[float]) -> list[int]:
    bins = [0] * (HIGH - LOW)
    for x in ratios:
        k = HIGH - 1 if math.isinf(x) or math.isnan(x) else math.floor(math.log2(x)) if x > 0.0 else LOW
        bins[min(max(k, LOW), HIGH - 1) - LOW] += 1
    return bins


def _bar(x: float, step: float, height: float, style: str, words: str) -> Markup:
    height = max(height, 1.5)
    text = '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
    return Markup(text).format(style, x, HEIGHT - height, step - 1, height, words)


def _framed(bars: Sequence[Markup], one: float, axis: Sequence[tuple[float, str, str]], label: str) -> Markup:
    head = '<svg class="bars" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
    marks = [Markup('<line x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"></line>').format(one, HEIGHT)]
    marks += [
        Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(x, HEIGHT + 12, anchor, word)
        for x, word, anchor in axis
    ]
    frame = Markup(head).format(WIDTH, HEIGHT + 15, WIDTH, HEIGHT + 15, label)
    return frame + Markup("").join([*bars, *marks]) + Markup("</svg>")
