"""Attention, without dropout."""

from __future__ import annotations

from functools import partial

from parity.catalog.draw import Call, Draw, Shape, keywords
from parity.catalog.row import Row
from parity.dtypes import FLOATS
from parity.vocabulary import OpClass, TensorSpec

_row = partial(Row, family="attention", rule=OpClass.COMPOSITE, dtypes=FLOATS, grad=FLOATS)


def _mask(draw: Draw, lead: Shape, queries: int, keys: int) -> TensorSpec | None:
    """None, a bool mask, or numbers that are added; for all heads or for each."""
    kind = draw.pick(4)
    shape = draw.choice(((queries, keys), (*lead, queries, keys), (*(1 for _ in lead), queries, keys), (1, keys)))
    if kind == 3 and draw.pick(4) == 3:
        return draw.tensor(shape)
    return None if kind < 2 else draw.mask(shape) if kind == 2 else draw.between(shape, -8, 2)


def _sdpa(draw: Draw) -> Call:
    """Three or four dimensions; other lengths for keys, another width for values; grouped heads; a scale."""
    heads = draw.choice((1, 2, 3))
    lead: Shape = draw.choice(((1,), (heads,), (1, heads), (2, heads)))
    queries, keys = draw.choice((1, 2, 3, 4, 5, 7, 8, 9)), draw.choice((1, 2, 3, 5, 8, 16, 31, 33, 65))
    width = draw.choice((1, 2, 4, 8, 16, 64))
    kind = draw.pick(16)  # kernels of their own: certain widths, and keys beyond one block
    if kind >= 13:
        lead, width = draw.choice(((1, 1), (1, 2))), draw.choice((64, 96, 128, 80, 32, 256, 72))
        queries = draw.choice((1, 8, 9, 17, 32, 33))
        keys = draw.choice((16, 31, 33, 64, 100)) if kind < 15 else queries
    if draw.rare(40):
        lead, width, queries, keys = (
            (1, 1),
            draw.choice((8, 64)),
            draw.choice((1, 2)),
            draw.choice((1023, 1024, 1025, 2050, 4100)),
        )
    wide = draw.choice((width, 3, 8, 32)) if draw.pick(4) == 3 else width
    scale = draw.option(0.5, 1.0)
    if len(lead) == 2 and draw.pick(6) == 5:
        grouped = (*lead[:-1], lead[-1] * 2)
        operands = (
            draw.tensor((*grouped, queries, width)),
            draw.tensor((*lead, keys, width)),
            draw.tensor((*lead, keys, wide)),
        )
        mask = _mask(draw, grouped, queries, keys)
        causal = None if mask else draw.option(True)
        return Call(operands, keywords(attn_mask=mask, scale=scale, enable_gqa=True, is_causal=causal))
    operands = draw.tensor((*lead, queries, width)), draw.tensor((*lead, keys, width)), draw.tensor((*lead, keys, wide))
    if draw.pick(4) == 3:
        return Call(operands, keywords(is_causal=True, scale=scale))
    return Call(operands, keywords(attn_mask=_mask(draw, lead, queries, keys), scale=scale))


def _multi_head(draw: Draw) -> Call:
    """Self-attention with packed projections."""
    heads, width = draw.choice(((1, 64), (2, 128))) if draw.rare(40) else draw.choice(((1, 2), (2, 4), (2, 8), (4, 16)))
    length, batch = draw.choice((1, 2, 3, 5, 8)), draw.choice((1, 2, 3))
    # Projected values of a usual size: which of two attention kernels runs decides what NaN and overflow become.
    packed, packed_bias = draw.inside((3 * width, width), -1, 1), draw.maybe(draw.inside((3 * width,), -1, 1))
    out, out_bias = draw.inside((width, width), -1, 1), draw.maybe(draw.inside((width,), -1, 1))
    mask = draw.inside((length, length), -8, 2) if draw.flag() else None
    return Call((draw.inside((length, batch, width), -2, 2), packed, packed_bias, out, out_bias, heads, mask))


def _banned(draw: Draw) -> Call:
    """A mask of 0 and -Inf, made from a bool mask by the glue: banned keys, whole rows of them now and then."""
    heads, queries, keys, width = (
        draw.choice((1, 2)),
        draw.choice((1, 2, 5, 9)),
        draw.choice((2, 3, 8, 33)),
        draw.choice((2, 4, 64)),
    )
    shape = draw.choice(((queries, keys), (1, heads, queries, keys), (1, 1, 1, keys)))
    operands = (draw.tensor((1, heads, n, width)) for n in (queries, keys, keys))
    return Call((*operands, draw.mask(shape)))


def _module(draw: Draw) -> Call:
    """A whole layer, (batch, length, features): self-attention with a feed-forward part, before or after its norms."""
    heads, width, inner = draw.choice((1, 2)), draw.choice((2, 4, 8)), draw.choice((2, 3, 8))
    batch, length = draw.choice((1, 2)), draw.choice((1, 2, 5))
    x = draw.inside((batch, length, width), -2, 2)
    shapes: tuple[Shape, ...] = (
        (3 * width, width), (3 * width,), (width, width), (width,), (inner, width), (inner,), (width, inner), (width,),
        (width,), (width,), (width,), (width,),
    )  # fmt: skip
    padded = draw.maybe(draw.mask((batch, length)))
    return Call((x, tuple(draw.inside(s, -1, 1) for s in shapes), heads, draw.flag(), padded))


ROWS = (
    _row(
        name="scaled_dot_product_attention",
        call="torch.nn.functional.scaled_dot_product_attention",
        signature=_sdpa,
        opinfo=("nn.functional.scaled_dot_product_attention",),
    ),
    _row(
        name="multi_head_attention",
        call="parity.catalog.calls.multi_head_attention",
        signature=_multi_head,
        rounds_between=True,  # projections, attention and output projection are kernels of their own
        opinfo=("nn.functional.multi_head_attention_forward",),
    ),
    _row(
        name="attention_banned",
        call="parity.catalog.calls.attention_banned",
        signature=_banned,
    ),
    _row(
        name="transformer_layer",
        call="parity.catalog.calls.transformer_layer",
        signature=_module,
        rounds_between=True,
        dtypes=("float32",),
        grad=("float32",),
    ),
)
