"""Attention, without dropout."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from parity.catalog.draw import Arguments, Draw, Shape, keywords
from parity.catalog.row import COMPOSITE, GLUE, ROUNDED, Counts, Draws, Refuses, Row, Wrong
from parity.core.case import Arg, TensorSpec, Values
from parity.core.dtypes import FLOATS

_row = partial(Row, family="attention", rule=COMPOSITE, dtypes=FLOATS, grad=FLOATS)
LAYERS = "parity.catalog.glue.layers."
# Head dimensions with their own kernels, or next to one; query lengths and numbers of keys around a block.
WIDTHS = (64, 128, 96, 80, 72, 32, 256, 192, 40, 65, 160)
QUERIES = (1, 2, 8, 7, 9, 16, 17, 31, 32, 33, 65)
KEYS = (1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 128, 129)
# More keys than one pass takes, or than half precision can sum.
LONG = (1024, 4100, 1025, 4096, 3333, 8193, 2050)
SQUARE = 257  # the longest sequence of self-attention in the sweep, whose scores are its square
LARGEST = 65504  # in float16
VECTOR = 16  # with fewer keys the CPU's kernel loses a NaN in the scores (torch 2.13); in float64 with fewer than 8


# Families without Inf and NaN, for masked keys: some kernels multiply Inf or NaN by the weight 0, which gives NaN, others skip
# the key.
FINITE = "uniform", "normal", "ties", "constant"


def _finite(draw: Draw, shape: Shape, grad: bool = True) -> TensorSpec:
    families = (
        FINITE if draw.dtype == "float32" else FINITE[:2]
    )  # cancelling values show whether a kernel rounds the weights to the half type
    return replace(draw.tensor(shape, grad=grad), values=Values(draw.choice(families)))


def _anything(draw: Draw, shape: Shape, grad: bool = True) -> TensorSpec:
    """Any values; in half types small ones, because some kernels store scores in the dtype, where large ones overflow."""
    if draw.dtype == "float32":
        return draw.tensor(shape, grad=grad)
    return draw.between(shape, -2, 2, grad=grad)


def _alike(draw: Draw, shape: Shape, grad: bool = True) -> TensorSpec:
    """Large equal numbers, so that all scores are equal. Their sums overflow float16 if the factor 1 / sqrt(width) is applied
    after the product, but not if it is applied before, as in torch's own kernels."""
    number = int(1.2 * math.sqrt(LARGEST / shape[-1]))
    return draw.inside(shape, number, number, grad=grad)


def _unknown(draw: Draw) -> Arguments:
    """One operand has a NaN, in its first query, key or value or in another one; no key is masked, so that it must reach every
    result that depends on it."""
    heads, width = draw.extent((1, 2, 3)), draw.choice(WIDTHS[:3] if draw.flag() else (*WIDTHS, 8, 4))
    queries, keys = draw.choice(QUERIES), draw.choice([n for n in (*KEYS, 1024) if n >= VECTOR])
    lead = draw.choice(((1, 1), (heads,), (1, heads), (2, heads)))
    of_keys = (*lead[:-1], 1) if grouped_heads(draw, lead) else lead
    shapes = (*lead, queries, width), (*of_keys, keys, width), (*of_keys, keys, width)
    plain = [draw.inside(s, -1, 1) for s in shapes]
    k = draw.pick(len(plain))
    where = draw.pick(2) * draw.pick(math.prod(shapes[k]))
    plain[k] = replace(plain[k], values=Values("uniform", specials=((where, "nan"),)))
    return Arguments(tuple(plain), keywords(enable_gqa=True if of_keys != lead else None))


def grouped_heads(draw: Draw, lead: Shape) -> bool:
    """Whether several heads of these leading dimensions share their keys, in one case of four."""
    return len(lead) > 1 and lead[-1] > 1 and draw.pick(4) == 3


def _mask(draw: Draw, lead: Shape, queries: int, keys: int) -> TensorSpec | None:
    """None, a bool mask, or an additive mask (also in float32 with half operands); for all heads or for each."""
    kind = draw.pick(4)
    alike = (*lead[:-1], 1) if lead else ()  # one mask for all heads of a batch element
    before: Shape = draw.choice(((), lead, tuple(1 for _ in lead), alike, alike))
    # A mask with one key broadcasts to all keys, so some queries see no key at all.
    shape = (*before, *draw.choice(((queries, keys), (queries, keys), (queries, 1), (1, keys))))
    if kind == 3 and draw.pick(4) == 3:
        return draw.tensor(shape)
    wide = "float32" if draw.rare(6) else draw.dtype
    return None if kind < 2 else draw.mask(shape) if kind == 2 else draw.between(shape, -8, 2, dtype=wide)


def _extents(draw: Draw) -> tuple[Shape, int, int, int]:
    """Leading dimensions, queries, keys, width: small ones, those of special kernels, sometimes a long sequence."""
    heads = draw.extent((1, 2, 3))
    kind = draw.pick(16)
    if kind < 8:
        lead = draw.choice(((1,), (heads,), (1, heads), (2, heads), (), (2, 1, heads), (0, heads), (0, 1, heads)))
        queries, keys = draw.extent((1, 2, 3, 4, 5, 7, 8, 9)), draw.extent((1, 2, 3, 5, 8, 16, 31, 33))
        return lead, queries, keys, draw.extent((1, 2, 4, 8, 3))
    if kind < 14:
        lead = draw.choice(((1, 1), (1, 2), (2, 2), (1, 1, 2)))
        width, queries = (
            draw.choice(WIDTHS[:3] if draw.flag() else WIDTHS),
            draw.choice(QUERIES[:4] if draw.flag() else QUERIES),
        )
        return lead, queries, draw.choice(KEYS) if kind < 13 else queries, width
    # One short and one long sequence; long queries are rare, because they cost most.
    few, many = draw.choice((1, 2, 9, 0)), draw.choice(LONG)
    pair = (many, max(few, 1)) if draw.rare(6) else (few, many)
    return draw.choice(((1, 1), (1, 1, 1))), *pair, draw.choice((8, 64, 1))


def _sdpa(draw: Draw) -> Arguments:
    """Other lengths for keys, another width for values; grouped heads; a scale; masks of every kind, or a causal one; queries,
    or keys and values, that are broadcast to the leading dimensions of the others."""
    lead, queries, keys, width = _extents(draw)
    long = keys > max(KEYS)
    wide = draw.choice((width, 3, 8, 32, 1)) if draw.pick(4) == 3 else width
    scale = draw.choice((None, 0.5, 1.0, None, 0.125, None))
    # Over long keys mostly numbers of a usual size, and values of one sign: what the weights sum to is what shows. Where no
    # gradient is asked for, other kernels run.
    still, usual = draw.pick(5) < (1 if long else 2), long and draw.pick(4) > 0
    grouped = len(lead) > 1 and draw.pick(4) == 3
    heads = (*lead[:-1], lead[-1] * draw.choice((2, 3, 4))) if grouped else lead
    own = heads
    if not grouped and lead and draw.rare(4):
        own, lead = (draw.broadcastable(lead), lead) if draw.flag() else (lead, draw.broadcastable(lead))
    causal = draw.pick(4) == 3
    mask = None if causal else _mask(draw, heads, queries, keys)
    operand = partial(_finite if causal or mask else _anything, draw, grad=still)
    values = operand
    if usual:
        operand, values = (partial(draw.inside, low=low, high=1, grad=still) for low in (-1, 0.5))
    elif scale is None and width > 3 and draw.rare(8 if draw.dtype != "float16" else 4):
        operand = partial(_alike, draw, grad=still)
    query, key = operand((*own, queries, width)), operand((*lead, keys, width))
    named = keywords(attn_mask=mask, scale=scale, enable_gqa=True if grouped else None, is_causal=True if causal else None)
    return Arguments((query, key, values((*lead, keys, wide))), named)


def _layer(draw: Draw) -> tuple[int, int, int, int, Arg, bool]:
    """Batch, heads, length, width, a mask, whether it is causal."""
    batch, heads, length = draw.extent((1, 2, 1, 0)), draw.extent((1, 2, 3)), min(draw.extent((1, 2, 5, 8, 9, 33)), SQUARE)
    width = draw.choice((2, 4, 8, 64, 80, 128)) if length < 10 or batch * heads == 1 else draw.choice((2, 8))
    kind = draw.pick(4)
    mask = draw.mask((length, length)) if kind == 2 else draw.between((1, 1, length, length), -8, 2) if kind == 3 else None
    return batch, heads, length, width, mask, kind == 1


def _packed(draw: Draw) -> Arguments:
    batch, heads, length, width, mask, causal = _layer(draw)
    return Arguments((_finite(draw, (batch, length, 3, heads, width)), mask, causal))


def _turned(draw: Draw) -> Arguments:
    batch, heads, length, width, mask, causal = _layer(draw)
    return Arguments((*(_finite(draw, (batch, length, heads, width)) for _ in range(3)), mask, causal))


def _multi_head(draw: Draw) -> Arguments:
    """Self-attention with packed projections."""
    heads, width = draw.choice(((1, 64), (2, 128))) if draw.rare(40) else draw.choice(((1, 2), (2, 4), (2, 8), (4, 16)))
    length, batch = min(draw.extent((1, 2, 3, 5, 8)), SQUARE), draw.extent((1, 2, 3, 2, 1, 0))
    # Small projected values: the results for NaN and overflow depend on which of two attention kernels runs.
    packed, packed_bias = draw.inside((3 * width, width), -1, 1), draw.maybe(draw.inside((3 * width,), -1, 1))
    out, out_bias = draw.inside((width, width), -1, 1), draw.maybe(draw.inside((width,), -1, 1))
    mask = draw.inside((length, length), -8, 2) if draw.flag() else None
    return Arguments((draw.inside((length, batch, width), -2, 2), packed, packed_bias, out, out_bias, heads, mask))


def _multi_head_cross(draw: Draw) -> Arguments:
    """Keys and values of other lengths and widths; bias_k and bias_v, padding keys, a mask per head; need_weights."""
    heads, width = draw.choice(((1, 2), (2, 4), (4, 16), (1, 64)))
    queries, keys, batch = draw.extent((1, 2, 5, 9)), draw.extent((1, 2, 5, 33)), draw.extent((1, 2, 3, 2, 1, 0))
    wide = draw.choice((width, 3, 8)), draw.choice((width, 2, 5))
    operands = (draw.inside(s, -2, 2) for s in ((queries, batch, width), (keys, batch, wide[0]), (keys, batch, wide[1])))
    projections = tuple(draw.inside((width, n), -1, 1) for n in (width, *wide))
    extra = draw.rare(3)
    bias = draw.inside((1, 1, width), -1, 1) if extra else None
    kind = draw.pick(4)
    shape = (batch * heads, queries, keys) if draw.flag() else (queries, keys)
    named = keywords(
        bias=draw.maybe(draw.inside((3 * width,), -1, 1)),
        bias_k=bias,
        bias_v=bias,
        add_zero_attn=draw.option(True),
        padded=draw.mask((batch, keys)) if kind == 2 and batch else None,
        attn_mask=draw.inside(shape, -8, 2) if kind == 3 else None,
        need_weights=draw.option(False),
        average_attn_weights=draw.option(False),
    )
    return Arguments((*operands, projections, draw.inside((width, width), -1, 1), heads), named)


def _banned(draw: Draw) -> Arguments:
    """A mask of 0 and -Inf, which the glue makes from a bool mask; sometimes all keys of a query are masked."""
    heads, queries, keys, width = (
        draw.extent((1, 2)),
        draw.extent((1, 2, 5, 9)),
        draw.extent((2, 3, 8, 33, 1)),
        draw.choice((2, 4, 64, 128)),
    )
    shape = draw.choice(((queries, keys), (1, heads, queries, keys), (1, 1, 1, keys), (1, heads, queries, 1)))
    operands = (_finite(draw, (1, heads, n, width)) for n in (queries, keys, keys))
    return Arguments((*operands, draw.mask(shape)))


def _module(draw: Draw) -> Arguments:
    """A whole layer, (batch, length, features): self-attention with a feed-forward part, before or after its norms."""
    heads, width, inner = draw.choice((1, 2)), draw.choice((2, 4, 8)), draw.extent((2, 3, 8))
    batch, length = draw.extent((1, 2, 1, 2, 0)), min(draw.extent((1, 2, 5)), SQUARE)
    x = draw.inside((batch, length, width), -2, 2)
    shapes: tuple[Shape, ...] = (
        (3 * width, width), (3 * width,), (width, width), (width,), (inner, width), (inner,), (width, inner), (width,),
        (width,), (width,), (width,), (width,),
    )  # fmt: skip
    padded = draw.maybe(draw.mask((batch, length))) if batch else None
    return Arguments((x, tuple(draw.inside(s, -1, 1) for s in shapes), heads, draw.flag(), padded))


def _autocast(draw: Draw) -> Arguments:
    """(bits of the operands given in float32, arguments of the call), with small numbers."""
    call = _sdpa(draw)
    plain = tuple(draw.inside(a.shape, -2, 2) if isinstance(a, TensorSpec) else a for a in call.args)
    return Arguments((1 + draw.pick(7), *plain), tuple((n, _narrow(v, draw.dtype)) for n, v in call.kwargs))


def _narrow(v: Arg, dtype: str) -> Arg:
    """A mask of numbers in this dtype."""
    return replace(v, dtype=dtype) if isinstance(v, TensorSpec) and v.dtype == "float32" else v


# Two masks contradict each other. Listed twice, so that half of the error inputs are this one.
_BOTH_MASKS = Wrong("is_causal", True, needs="attn_mask")

ROWS = (
    _row(
        "scaled_dot_product_attention",
        _sdpa,
        call="torch.nn.functional.*",
        draws=Draws(cases=3),
        refuses=Refuses(wrong=(Wrong("dropout_p", 1.5), _BOTH_MASKS, _BOTH_MASKS), fits="filled", alike=True),
        counts=Counts(("*",), mps="own"),
    ),
    # In the backward the CPU's kernel and its formula pass a NaN on to different gradients.
    _row(
        "attention_unknown",
        _unknown,
        call="torch.nn.functional.scaled_dot_product_attention",
        grad=(),
        counts=Counts(under="nn.functional.scaled_dot_product_attention"),
    ),
    _row("attention_packed", _packed, call=LAYERS + "*", counts=Counts(under="nn.functional.scaled_dot_product_attention")),
    _row("attention_turned", _turned, call=LAYERS + "*", counts=Counts(under="nn.functional.scaled_dot_product_attention")),
    # rounds_between: projections, attention and output projection are separate kernels
    _row(
        "multi_head_attention",
        _multi_head,
        call=GLUE,
        judged=ROUNDED,
        counts=Counts(("nn.functional.multi_head_attention_forward",)),
    ),
    # rounds_between: as multi_head_attention
    _row("multi_head_cross", _multi_head_cross, call=LAYERS + "*", judged=ROUNDED),
    # rounds_between: few keys remain, whose weights some kernels round before the product with the values
    _row(
        "attention_banned",
        _banned,
        call=GLUE,
        judged=ROUNDED,
        counts=Counts(under="nn.functional.scaled_dot_product_attention"),
    ),
    _row(
        "transformer_layer", _module, call=GLUE, draws=Draws(cases=0.5), dtypes=("float32",), grad=("float32",), judged=ROUNDED
    ),
    _row(
        "attention_autocast",
        _autocast,
        call=f"{LAYERS}autocast_attention",
        dtypes=FLOATS[1:],
        grad=FLOATS[1:],
        counts=Counts(under="nn.functional.scaled_dot_product_attention"),
    ),
)
