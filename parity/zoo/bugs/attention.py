"""Bugs of scaled dot product attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from parity.devices import Call
from parity.devices.sim.effects import as_contiguous
from parity.devices.sim.faults import abort, garbage
from parity.zoo.effects import argument, ramp, replace, reported

SDPA = ("scaled_dot_product_attention",)
# What MPS runs as one kernel, of the module too, wherever no gradient is wanted and nothing is dropped out.
KERNEL = ("_scaled_dot_product_attention_math_for_mps",)
ROWS = (*SDPA, "multi_head_attention")
NAMES = ("query", "key", "value")
SHORT, WIDTHS = 8, (64, 96, 128)  # query lengths up to SHORT of these head dimensions take a kernel of their own
LONG = 3068  # keys from which half precision shows, unscaled
BLOCK = 32  # keys that one group of threads sums


@dataclass(frozen=True, slots=True)
class Attention:
    """The arguments of scaled_dot_product_attention, wherever they stood."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    grouped: bool

    @property
    def short(self) -> bool:
        """Whether it is one of the few queries and the head dimensions that have a kernel of their own."""
        return self.query.shape[-2] <= SHORT and self.query.shape[-1] in WIDTHS

    def scores(self) -> Tensor:
        """What the softmax gets, in float32: (..., queries, keys)."""
        key = self.key
        if self.grouped:
            key = key.repeat_interleave(self.query.shape[-3] // key.shape[-3], -3)
        scale = 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale
        s = self.query.float() @ key.float().mT * scale
        if self.causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)
        if self.mask is not None:
            s = s.masked_fill(~self.mask, -math.inf) if self.mask.dtype is torch.bool else s + self.mask
        return s


def arguments(call: Call) -> Attention:
    """The call's arguments by name."""
    return Attention(
        query=argument(call, 0, "query"),
        key=argument(call, 1, "key"),
        value=argument(call, 2, "value"),
        mask=argument(call, 3, "attn_mask"),
        dropout=argument(call, 4, "dropout_p", 0.0),
        causal=argument(call, 5, "is_causal", False),
        scale=call.kwargs.get("scale"),
        grouped=call.kwargs.get("enable_gqa", False),
    )


# ------------------------------------------------------------------------------------------------------------- autocast


def _mixed_under_autocast(call: Call) -> bool:
    a = arguments(call)
    return torch.is_autocast_enabled(a.query.device.type) and len({a.query.dtype, a.key.dtype, a.value.dtype}) > 1


def _without_autocast(call: Call) -> Any:
    """No rule names this function, so torch finds its operands as they are, and refuses."""
    with torch.autocast(call.operands[0].device.type, enabled=False):
        return call.run()


def _autocast(device: str, *dtypes: torch.dtype) -> Tensor:
    query, key, value = (ramp(device, 1, 2, 3, 4, dtype=dtype) for dtype in dtypes)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        return F.scaled_dot_product_attention(query, key, value)


# ------------------------------------------------------------------------------------------------------------ fast path


def _reads_strided(call: Call) -> bool:
    a = arguments(call)
    return a.short and not all(t.is_contiguous() for t in (a.query, a.key, a.value))


def _read_as_contiguous(call: Call) -> Any:
    for i, name in enumerate(NAMES):
        t = argument(call, i, name)
        if not t.is_contiguous():
            replace(call, i, name, as_contiguous(call, t))
    return call.run()


def _has_ragged_keys(call: Call) -> bool:
    a = arguments(call)
    return a.short and not a.causal and a.key.shape[-2] % BLOCK != 0


def _reads_past_the_keys(call: Call) -> Any:
    """The last block of keys and values is filled up with what lies behind them."""
    a = arguments(call)
    beyond = BLOCK - a.key.shape[-2] % BLOCK
    for i, t in ((1, a.key), (2, a.value)):
        left_over = garbage(t.new_empty(*t.shape[:-2], beyond, t.shape[-1])) / 1024
        replace(call, i, NAMES[i], torch.cat((t, left_over), -2))
    if a.mask is not None:
        mask = a.mask.expand(*a.mask.shape[:-1], a.key.shape[-2])
        allowed = mask.new_ones if mask.dtype is torch.bool else mask.new_zeros
        replace(call, 3, "attn_mask", torch.cat((mask, allowed(*mask.shape[:-1], beyond)), -1))
    return call.run()


# ---------------------------------------------------------------------------------------------------------------- others


def _masked_dropout_of_a_view(call: Call) -> bool:
    """Of the function itself, or of multi_head_attention_forward, which masks and drops out inside. With dropout MPS takes
    a composition, so that there is no kernel to name."""
    if "multi_head" not in call.op:
        a = arguments(call)
        return a.mask is not None and a.dropout > 0 and not a.query.is_contiguous()
    masked = any(argument(call, i, name) is not None for i, name in ((14, "key_padding_mask"), (16, "attn_mask")))
    dropped = argument(call, 10, "dropout_p") > 0 and argument(call, 13, "training", True)
    return masked and dropped and not argument(call, 0, "query").is_contiguous()


def _nothing_but_nan(call: Call) -> Any:
    return tree_map(lambda t: t * math.nan if isinstance(t, Tensor) else t, call.run())


def _has_nan(device: str, whole: bool) -> bool:
    """Self-attention in training with a mask and dropout, batch first, so that it turns its input around."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=whole).to(device)
    x = ramp(device, 2, 3, 8)
    result, _ = module(x, x, x, attn_mask=torch.zeros(x.shape[1 if whole else 0], x.shape[1 if whole else 0], device=device))
    return bool(result.isnan().any())


def _other_width(call: Call) -> bool:
    a = arguments(call)
    return a.value.shape[-1] != a.query.shape[-1]


def _as_wide_as_the_query(call: Call) -> Any:
    a = arguments(call)
    result, *rest = call.run()
    return (F.pad(result, (0, a.query.shape[-1] - a.value.shape[-1])), *rest)


def _masked_twice(call: Call) -> bool:
    a = arguments(call)
    return a.mask is not None and a.causal


def _mask_and_causal(device: str) -> str:
    q = ramp(device, 1, 2, 3, 4)
    try:
        F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(3, 3, device=device), is_causal=True)
    except RuntimeError:
        return "refused"
    return "computed"


def _long_and_narrow(call: Call) -> bool:
    a = arguments(call)
    return a.query.dtype in (torch.float16, torch.bfloat16) and a.key.shape[-2] > LONG


def _sums_in_half(call: Call) -> Any:
    """The softmax divides by a sum that was kept in the operands' own dtype, block after block."""
    a = arguments(call)
    scores = a.scores()
    terms = (scores - scores.amax(-1, keepdim=True)).exp().to(a.query.dtype)
    padded = F.pad(terms.float(), (0, -terms.shape[-1] % BLOCK))
    blocks = padded.reshape(*padded.shape[:-1], -1, BLOCK).sum(-1)
    total = torch.zeros_like(blocks[..., 0], dtype=a.query.dtype)
    for block in blocks.unbind(-1):
        total = total + block.to(a.query.dtype)
    off = (blocks.sum(-1) / total.float()).nan_to_num(1.0).unsqueeze(-1)
    result, *rest = call.run()
    return (result * off.to(result.dtype), *rest)


def _attend(device: str, lengths: tuple[int, int], width: int, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    """Attention of dense operands, (1, 2, length, width)."""
    queries, keys = lengths
    key = ramp(device, 1, 2, keys, width, dtype=dtype)
    return F.scaled_dot_product_attention(ramp(device, 1, 2, queries, width, dtype=dtype), key, key * 0.5 + 1, **options)


def _attend_turned(device: str, width: int) -> Tensor:
    """Attention of operands that lie as (1, length, heads, width)."""
    q, k = (ramp(device, 1, n, 3, width).transpose(1, 2) for n in (4, 5))
    return F.scaled_dot_product_attention(q, k, k)


def _wide_values(device: str, width: int) -> Tensor:
    q = ramp(device, 1, 2, 3, 4)
    return F.scaled_dot_product_attention(q, q, ramp(device, 1, 2, 3, width))


BUGS = (
    reported(
        "issues/141774 crash promotion module", "autocast does not bring the operands of attention to one dtype",
        SDPA, _without_autocast, _mixed_under_autocast,
        trigger=lambda d: _autocast(d, torch.float32, torch.float32, torch.bfloat16),
        neighbour=lambda d: _autocast(d, torch.bfloat16, torch.bfloat16, torch.bfloat16),
        rows=SDPA, level="function",
    ),
    reported(
        "issues/151667 nan_mismatch module layout args", "attention of a view with a mask and dropout is NaN throughout",
        (*SDPA, "multi_head_attention_forward"), _nothing_but_nan, _masked_dropout_of_a_view,
        trigger=lambda d: _has_nan(d, whole=True),
        neighbour=lambda d: _has_nan(d, whole=False),
        rows=ROWS, level="function",
    ),
    reported(
        "issues/163597 silent_wrong_forward layout", "attention of few queries reads strided operands as if they were dense",
        KERNEL, _read_as_contiguous, _reads_strided,
        trigger=lambda d: _attend_turned(d, 64),
        neighbour=lambda d: (_attend_turned(d, 32), _attend(d, (4, 5), 64)),
        rows=ROWS,
    ),
    reported(
        "pull/169222 silent_wrong_forward size args", "attention of few queries attends to memory behind the last keys",
        KERNEL, _reads_past_the_keys, _has_ragged_keys,
        trigger=lambda d: _attend(d, (4, 33), 64),
        neighbour=lambda d: (_attend(d, (4, 32), 64), _attend(d, (9, 33), 64), _attend(d, (4, 33), 64, is_causal=True)),
        rows=ROWS,
    ),
    reported(
        "issues/176767 metadata args size", "attention gives its result the width of the query where that of the value differs",
        KERNEL, _as_wide_as_the_query, _other_width,
        trigger=lambda d: _wide_values(d, 5),
        neighbour=lambda d: _wide_values(d, 4),
        rows=ROWS,
    ),
    reported(
        "pull/181856 crash args", "a mask given to causal attention ends the process",
        KERNEL, abort, _masked_twice,
        trigger=_mask_and_causal,
        neighbour=lambda d: _attend(d, (3, 3), 4, is_causal=True),
        rows=ROWS,
    ),
    reported(
        "pull/190791 drift dtype size", "the softmax of long attention in half precision is summed in half precision",
        KERNEL, _sums_in_half, _long_and_narrow,
        trigger=lambda d: _attend(d, (2, LONG + 1), 4, torch.bfloat16),
        neighbour=lambda d: (_attend(d, (2, LONG), 4, torch.bfloat16), _attend(d, (2, LONG + 1), 4)),
        rows=ROWS,
    ),
)  # fmt: skip
