"""Functions for the rows of layers and of linear algebra. The catalog never imports this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]
HALF = torch.float16, torch.bfloat16


# ------------------------------------------------------------------------------------------------------------- attention


def attention_packed(packed: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Self-attention of (batch, length, 3, heads, width), as layers call it: query, key and value are transposed views of one
    tensor. Returns (batch, length, heads * width)."""
    query, key, value = (t.transpose(1, 2) for t in packed.unbind(2))
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal).transpose(1, 2).flatten(2)


def attention_turned(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Attention of (batch, length, heads, width) operands, which are transposed for the call, and the result back."""
    turned = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(*turned, mask, is_causal=causal).transpose(1, 2)


def multi_head_cross(
    q: Tensor, k: Tensor, v: Tensor, projections: tuple[Tensor, ...], out: Tensor, heads: int, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """multi_head_attention_forward in evaluation with a projection for each operand, (length, batch, features). Returns
    (result, weights or None). padded: mask of keys that are padding; the first key of a sequence never is."""
    padded = options.pop("padded", None)
    if padded is not None:
        padded = torch.cat([torch.zeros_like(padded[:, :1]), padded[:, 1:]], 1)
    bias, bias_k, bias_v = (options.pop(n, None) for n in ("bias", "bias_k", "bias_v"))
    return F.multi_head_attention_forward(
        q, k, v, q.shape[-1], heads, None, bias, bias_k, bias_v, options.pop("add_zero_attn", False), 0.0, out, None,
        training=False, key_padding_mask=padded, use_separate_proj_weight=True, q_proj_weight=projections[0],
        k_proj_weight=projections[1], v_proj_weight=projections[2], **options,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- recurrent


def _sizes(lengths: tuple[int, ...]) -> Tensor:
    """The batch_sizes of a packed sequence: number of sequences longer than each step. lengths: longest first."""
    return torch.tensor([sum(n > step for n in lengths) for step in range(lengths[0])])


def lstm_packed(x: Tensor, lengths: tuple[int, ...], hidden: Pair, weights: tuple[Tensor, ...], *flags: Any) -> Triple:
    """torch.lstm of packed sequences, (total steps, features). lengths: longest first.

    flags: has_biases, layers, dropout (evaluation leaves it out), train, bidirectional."""
    biases, layers, dropout, train, bidirectional = flags
    return torch.lstm(x, _sizes(lengths), hidden, weights, biases, layers, dropout, train, bidirectional)


def gru_packed(x: Tensor, lengths: tuple[int, ...], hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> Pair:
    """torch.gru of packed sequences, as `lstm_packed`."""
    biases, layers, dropout, train, bidirectional = flags
    return torch.gru(x, _sizes(lengths), hidden, weights, biases, layers, dropout, train, bidirectional)


def lstm_output(x: Tensor, hidden: Pair, weights: tuple[Tensor, ...], *flags: Any) -> Tensor:
    """Only the output of torch.lstm, so that its states get no gradient. flags: of `parity.catalog.glue.calls.lstm`."""
    biases, layers, dropout, train, bidirectional, batch_first = flags
    return torch.lstm(x, hidden, weights, biases, layers, dropout, train, bidirectional, batch_first)[0]


def lstm_states(x: Tensor, hidden: Pair, weights: tuple[Tensor, ...], *flags: Any) -> Pair:
    """Only the last states of torch.lstm, so that its output gets no gradient."""
    biases, layers, dropout, train, bidirectional, batch_first = flags
    return torch.lstm(x, hidden, weights, biases, layers, dropout, train, bidirectional, batch_first)[1:]


# -------------------------------------------------------------------------------------------------------------- autocast


def _cast(function: Any) -> Any:
    """The function under autocast to its operands' half type, with some of them given in float32.

    wide: bit k is set if operand k is given in float32. Its values are exact in the half type, so the cast rounds nothing."""

    def run(wide: int, *operands: Tensor, **options: Any) -> Tensor:
        if not operands or not isinstance(operands[0], Tensor):
            raise TypeError("the first operand must be a tensor")
        asked = operands[0].dtype
        if asked not in HALF:
            plain: Tensor = function(*operands, **options)
            return plain
        mixed = [
            t.float() if isinstance(t, Tensor) and t.dtype is asked and wide >> k & 1 else t for k, t in enumerate(operands)
        ]
        with torch.autocast(operands[0].device.type, dtype=asked):
            result: Tensor = function(*mixed, **options)
        return result

    return run


def _rounded(function: Any) -> Any:
    """The same, cast to the dtype of the item: some backends run it in float32 under autocast, others in the half type."""
    return lambda wide, *operands, **options: _cast(function)(wide, *operands, **options).to(operands[0].dtype)


autocast_attention = _cast(F.scaled_dot_product_attention)
autocast_linear = _cast(F.linear)
autocast_matmul = _cast(torch.matmul)
autocast_addmm = _cast(torch.addmm)
autocast_baddbmm = _cast(torch.baddbmm)
autocast_conv1d = _cast(F.conv1d)
autocast_conv2d = _cast(F.conv2d)
autocast_conv3d = _rounded(F.conv3d)
autocast_conv_transpose1d = _rounded(F.conv_transpose1d)
autocast_conv_transpose2d = _rounded(F.conv_transpose2d)
autocast_conv_transpose3d = _rounded(F.conv_transpose3d)
autocast_bmm = _rounded(torch.bmm)
autocast_addbmm = _rounded(torch.addbmm)

# ------------------------------------------------------------------------------------- changed in place by the next operator

IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda y: F.relu(y, inplace=True),
    "leaky_relu": lambda y: F.leaky_relu(y, 0.25, inplace=True),
    "hardtanh": lambda y: F.hardtanh(y, -1.5, 1.5, inplace=True),
    "mul": lambda y: y.mul_(0.5),
    "abs": lambda y: y.abs_(),
}


def _then(function: Any) -> Any:
    """The function with its result changed in place, as by a layer with inplace=True."""

    def run(act: str, *operands: Tensor, **options: Any) -> Tensor:
        if act not in IN_PLACE:
            raise ValueError(f"no such step: '{act}'; one of {', '.join(IN_PLACE)}")
        return IN_PLACE[act](function(*operands, **options))

    return run


conv1d_then = _then(F.conv1d)
conv2d_then = _then(F.conv2d)
linear_then = _then(F.linear)
bmm_then = _then(torch.bmm)

# ------------------------------------------------------------------------------- made by the operator before, and not copied

SIDE = 2  # elements of padding, and the shift of roll
OPERAND_FROM: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda x: x.roll(SIDE, -1),
    "flip": lambda x: x.flip(-1),
    "turned": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x.clone(),
    "where": lambda x: torch.where(x > 0, x, x * 0.5),
    "select": lambda x: x.index_select(-1, torch.arange(x.shape[-1], device=x.device)),
    # the following make the last dimension longer
    "upsample": lambda x: F.interpolate(x.reshape(1, -1, x.shape[-1]), scale_factor=2.0).reshape(*x.shape[:-1], -1),
    "pad": lambda x: F.pad(x.reshape(1, -1, x.shape[-1]), (1, 1), mode="circular").reshape(*x.shape[:-1], -1),
    "cat": lambda x: torch.cat((x, x), -1),
    "constant": lambda x: F.pad(x, (SIDE, SIDE), value=0.5),
}
ALIKE = tuple(OPERAND_FROM)[:5]  # those that keep the shape


def _of(function: Any) -> Any:
    """The function of the result of another operator."""

    def run(how: str, x: Tensor, *operands: Tensor, **options: Any) -> Tensor:
        if how not in OPERAND_FROM:
            raise ValueError(f"no such step: '{how}'; one of {', '.join(OPERAND_FROM)}")
        result: Tensor = function(OPERAND_FROM[how](x), *operands, **options)
        return result

    return run


conv1d_of = _of(F.conv1d)
conv2d_of = _of(F.conv2d)
linear_of = _of(F.linear)
bmm_of = _of(torch.bmm)

# ----------------------------------------------------------------------- whether a matrix has factors, and the first pivots


def lu_factor_info(a: Tensor) -> Tensor:
    """Whether linalg.lu_factor_ex reports a zero pivot (its number may depend on the order of elimination)."""
    failed: Tensor = torch.linalg.lu_factor_ex(a).info != 0
    return failed


def cholesky_info(a: Tensor) -> Tensor:
    """Whether linalg.cholesky_ex reports that the matrix is not positive definite."""
    failed: Tensor = torch.linalg.cholesky_ex(a).info != 0
    return failed


def inv_info(a: Tensor) -> Tensor:
    """Whether linalg.inv_ex reports that there is no inverse."""
    failed: Tensor = torch.linalg.inv_ex(a).info != 0
    return failed


def solve_info(a: Tensor) -> Tensor:
    """Whether linalg.solve_ex reports that the matrix is singular."""
    failed: Tensor = torch.linalg.solve_ex(a, torch.ones_like(a[..., :1])).info != 0
    return failed


# ------------------------------------------------------------------------------------- convolutions in another memory format


def conv2d_last(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """conv2d with input and weight in channels_last, as after `model.to(memory_format=...)`."""
    last = torch.channels_last
    return F.conv2d(x.contiguous(memory_format=last), weight.contiguous(memory_format=last), bias, **options)


def conv_transpose2d_last(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """conv_transpose2d with input and weight in channels_last."""
    last = torch.channels_last
    return F.conv_transpose2d(x.contiguous(memory_format=last), weight.contiguous(memory_format=last), bias, **options)


# --------------------------------------------------------------------------------------------------------- sparse, compressed


def compressed(values: Tensor, each: int, width: int, by_rows: bool) -> Tensor:
    """Shape and layout of a compressed sparse matrix with `each` numbers in each row of `width` (or column). Returns [rows,
    columns, whether the layout is the expected one]; the contents are not compared."""
    if each < 1:
        raise ValueError(f"each row holds 1 number or more, not {each}")
    count = values.shape[0] // each
    begin = torch.arange(0, values.shape[0] + 1, each, device=values.device)
    places = torch.arange(each, device=values.device).repeat(count)
    if by_rows:
        result, layout = torch.sparse_csr_tensor(begin, places, values, (count, width)), torch.sparse_csr
    else:
        result, layout = torch.sparse_csc_tensor(begin, places, values, (width, count)), torch.sparse_csc
    return torch.tensor([*result.shape, result.layout == layout], device=values.device)


def grouped_mm(a: Tensor, b: Tensor, ends: tuple[int, ...]) -> Tensor:
    """The product of each group of rows, columns or terms, which end at these. Gradients reach torch as dense tensors, which
    its kernels require: multiplying by ones makes them so. In float64, which they refuse, one product after the other."""
    if a.dtype == torch.float64:
        return _groups(a, b, ends)
    offsets = torch.tensor(ends, dtype=torch.int32, device=a.device) if ends else None
    product = torch._grouped_mm(a, b, offs=offsets)
    return product * torch.ones_like(product)


def _groups(a: Tensor, b: Tensor, ends: tuple[int, ...]) -> Tensor:
    parts = [slice(low, high) for low, high in zip((0, *ends), ends, strict=False)]
    if not ends:
        return a @ b
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, p] @ b[p] for p in parts])
    if a.dim() == 2:
        return torch.cat([a[p] @ b[k] for k, p in enumerate(parts)])
    return torch.cat([a[k] @ b[:, p] for k, p in enumerate(parts)], -1)


def _float8(x: Tensor, name: str) -> Tensor:
    return x.to(getattr(torch, name))


def scaled_mm(a: Tensor, b: Tensor, left: Tensor, right: Tensor, names: tuple[str, str]) -> Tensor:
    """A product of float8 matrices, the first one in rows and the second one in columns, as cuBLAS takes them, times a scale of
    each."""
    first, second = _float8(a.contiguous(), names[0]), _float8(b.mT.contiguous(), names[1]).mT
    return torch._scaled_mm(first, second, left, right, out_dtype=a.dtype)


def scaled(a: Tensor, b: Tensor, left: Tensor, right: Tensor, names: tuple[str, str]) -> Tensor:
    """The truth for `scaled_mm`: a product of what float8 holds."""
    first, second = (_float8(x.float(), n).to(x.dtype) for x, n in zip((a, b), names, strict=True))
    return (first @ second) * (left * right).to(a.dtype)


def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """Q and R of the Householder vectors that geqrf gives."""
    packed, factors = torch.geqrf(a)
    k = factors.shape[-1]
    return torch.linalg.householder_product(packed[..., :k].contiguous(), factors), packed.triu()[..., :k, :]


def masked_extreme(name: str, x: Tensor, dim: int, mask: Tensor) -> Tensor:
    """The element at the place that argmax or argmin gives; 0 where that is masked."""
    place = getattr(torch.masked, name)(x, dim, keepdim=True, dtype=torch.int64, mask=mask)
    kept = x.masked_fill(~mask, 0)
    return kept.gather(dim, place) if x.dim() else kept
