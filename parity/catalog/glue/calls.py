"""Functions for rows of most families. The catalog never imports this module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Triple = tuple[Tensor, Tensor, Tensor]


def setitem(x: Tensor, *parts: Any) -> None:
    """x[index] = value for each index and value, one right after the other."""
    for index, value in zip(parts[::2], parts[1::2]):
        x[index] = value


def batch_norm_train(
    x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None, bias: Tensor | None, **options: Any
) -> Tensor | Triple:
    """batch_norm in training mode, and the running statistics that it updated (copies)."""
    if mean is None or var is None:
        return F.batch_norm(x, None, None, weight, bias, training=True, **options)
    running = mean.detach().clone(), var.detach().clone()
    return (F.batch_norm(x, *running, weight, bias, training=True, **options), *running)


def instance_norm_running(x: Tensor, mean: Tensor, var: Tensor, **options: Any) -> Triple:
    """instance_norm, and the running statistics that it updated (copies)."""
    running = mean.detach().clone(), var.detach().clone()
    return (F.instance_norm(x, *running, use_input_stats=True, **options), *running)


def max_unpool1d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:
    """max_unpool1d; window: its size and stride."""
    return F.max_unpool1d(x, indices, *window)


def max_unpool2d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:
    """max_unpool2d with flat indices, (..., H * W), which can be drawn without repeats."""
    return F.max_unpool2d(x, indices.reshape(x.shape), *window)


def max_unpool3d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:
    """max_unpool3d with flat indices."""
    return F.max_unpool3d(x, indices.reshape(x.shape), *window)


def ctc_loss(logits: Tensor, targets: Tensor, inputs: Any, lengths: Any, **options: Any) -> Tensor:
    """ctc_loss of the log_softmax of logits. Makes targets dense: the CPU reads outside strided ones (torch 2.13)."""
    return F.ctc_loss(logits.log_softmax(-1), targets.contiguous(), inputs, lengths, **options)


def lstsq(a: Tensor, b: Tensor) -> Any:
    """The solution of linalg.lstsq (the other fields depend on the driver)."""
    return torch.linalg.lstsq(a, b).solution


def lu_solve(a: Tensor, b: Tensor, **options: Any) -> Any:
    """linalg.lu_solve with the factors of a; the factors themselves may differ by pivoting."""
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, **options)


def cholesky_solve(a: Tensor, b: Tensor, upper: bool = False) -> Tensor:
    """cholesky_solve with the Cholesky factor of a."""
    return torch.cholesky_solve(b, torch.linalg.cholesky(a, upper=upper), upper=upper)


def cholesky_inverse(a: Tensor, upper: bool = False) -> Tensor:
    """cholesky_inverse of the Cholesky factor of a."""
    return torch.cholesky_inverse(torch.linalg.cholesky(a, upper=upper), upper=upper)


def lstm(x: Tensor, hidden: tuple[Tensor, ...], weights: tuple[Tensor, ...], *flags: Any) -> Triple:
    """torch.lstm; flags: has_biases, layers, dropout (evaluation leaves it out), train, bidirectional, batch_first."""
    return torch.lstm(x, hidden, weights, *flags)


def gru(x: Tensor, hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> tuple[Tensor, Tensor]:
    """torch.gru with the flags of `lstm`."""
    return torch.gru(x, hidden, weights, *flags)


def rnn_tanh(x: Tensor, hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> tuple[Tensor, Tensor]:
    """torch.rnn_tanh with the flags of `lstm`."""
    return torch.rnn_tanh(x, hidden, weights, *flags)


def rnn_relu(x: Tensor, hidden: Tensor, weights: tuple[Tensor, ...], *flags: Any) -> tuple[Tensor, Tensor]:
    """torch.rnn_relu with the flags of `lstm`."""
    return torch.rnn_relu(x, hidden, weights, *flags)


def multi_head_attention(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, out_bias: Tensor | None, heads: int, mask: Tensor | None
) -> Tensor:
    """Self-attention by multi_head_attention_forward, (length, batch, features), without weights and dropout."""
    width = x.shape[-1]
    return F.multi_head_attention_forward(
        x, x, x, width, heads, weight, bias, None, None, False, 0.0, out, out_bias,
        training=False, need_weights=False, attn_mask=mask,
    )[0]  # fmt: skip


def stft(x: Tensor, n_fft: int, window: Tensor | None, **options: Any) -> Tensor:
    """stft with a complex result."""
    return torch.stft(x, n_fft, window=window, return_complex=True, **options)


def round_trip_stft(x: Tensor, n_fft: int, window: Tensor | None, length: int) -> Tensor:
    """istft of a stft: the signal again, and a backward through overlapping windows."""
    spectrum = torch.stft(x, n_fft, n_fft // 2, window=window, return_complex=True)
    return torch.istft(spectrum, n_fft, n_fft // 2, window=window, length=length)


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """The truth for _int_mm: the product in int32."""
    return a.to(torch.int32) @ b.to(torch.int32)


# ------------------------------------------------------- creation: on the device and in the dtype of the first operand


def arange(like: Tensor, start: float, stop: float, step: float, out: Tensor | None = None) -> Tensor:
    """arange in the dtype and on the device of `like`."""
    return torch.arange(start, stop, step, dtype=like.dtype, device=like.device, out=out)


def linspace(like: Tensor, start: float, stop: float, steps: int, out: Tensor | None = None) -> Tensor:
    """linspace in the dtype and on the device of `like`."""
    return torch.linspace(start, stop, steps, dtype=like.dtype, device=like.device, out=out)


def logspace(like: Tensor, start: float, stop: float, steps: int, base: float = 10.0, out: Tensor | None = None) -> Tensor:
    """logspace in the dtype and on the device of `like`."""
    return torch.logspace(start, stop, steps, base, dtype=like.dtype, device=like.device, out=out)


def eye(like: Tensor, n: int, m: int, out: Tensor | None = None) -> Tensor:
    """eye in the dtype and on the device of `like`."""
    return torch.eye(n, m, dtype=like.dtype, device=like.device, out=out)


def full(like: Tensor, shape: tuple[int, ...], value: float, out: Tensor | None = None) -> Tensor:
    """full in the dtype and on the device of `like`."""
    return torch.full(shape, value, dtype=like.dtype, device=like.device, out=out)


def tril_indices(like: Tensor, n: int, m: int, offset: int) -> Tensor:
    """tril_indices in the dtype and on the device of `like`."""
    return torch.tril_indices(n, m, offset, dtype=like.dtype, device=like.device)


def fftfreq(like: Tensor, n: int, d: float) -> Any:
    """fftfreq in the dtype and on the device of `like`."""
    return torch.fft.fftfreq(n, d, dtype=like.dtype, device=like.device)


def hann_window(like: Tensor, n: int, periodic: bool) -> Tensor:
    """hann_window in the dtype and on the device of `like`."""
    return torch.hann_window(n, periodic, dtype=like.dtype, device=like.device)


def window(like: Tensor, name: str, n: int, periodic: bool) -> Any:
    """A window in the dtype and on the device of `like`."""
    return getattr(torch, f"{name}_window")(n, periodic, dtype=like.dtype, device=like.device)


def reference_activation(name: str, x: Tensor) -> Any:
    """torch's Python reference of a function."""
    return _reference(name)(x)


def reference_along_dim(name: str, x: Tensor, dim: int) -> Any:
    """torch's Python reference of a function along a dimension."""
    return _reference(name)(x, (dim,) if name == "flip" else dim)


def _reference(name: str) -> Any:
    """A function of torch._refs, which takes half a second to import."""
    import torch._refs.nn.functional

    return getattr(torch._refs.nn.functional, name, None) or getattr(torch._refs, name)


def randperm(like: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """randperm in the dtype and on the device of `like`."""
    return torch.randperm(n, dtype=like.dtype, device=like.device, generator=generator)


def randint(like: Tensor, low: int, high: int) -> Tensor:
    """randint_like."""
    return torch.randint_like(like, low, high)


def integers(like: Tensor, low: int, high: int, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """randint in the dtype and on the device of `like`."""
    return torch.randint(low, high, shape, dtype=like.dtype, device=like.device, generator=generator)


def rand(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """rand in the dtype and on the device of `like`."""
    return torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)


def randn(like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
    """randn in the dtype and on the device of `like`."""
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def binomial(count: Tensor, chance: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """binomial with counts that are rounded to whole numbers first."""
    return torch.binomial(count.round(), chance, generator=generator)


def with_zeros(x: Tensor) -> Tensor:
    """Weights [0, relu(x) ..., 1, 0]: some categories have probability 0."""
    rim = torch.zeros_like(x[..., :1])
    return torch.cat([rim, x.relu(), rim + 1, rim], -1)


def multinomial_zeros(x: Tensor, count: int, replacement: bool = False, generator: torch.Generator | None = None) -> Tensor:
    """multinomial with some categories of probability 0."""
    return torch.multinomial(with_zeros(x), count, replacement, generator=generator)


def attention_dropout(q: Tensor, k: Tensor, mask: Tensor | None, p: float, causal: bool) -> Tensor:
    """Attention with dropout whose values are the unit matrix: the result is the matrix of weights after dropout."""
    unit = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-2], -1, -1)
    return F.scaled_dot_product_attention(q, k, unit, mask, p, causal)


def lstm_dropout(x: Tensor, hidden: tuple[Tensor, ...], weights: tuple[Tensor, ...], p: float, *flags: Any) -> Triple:
    """torch.lstm in training with dropout between its layers; flags: has_biases, layers, bidirectional, batch_first."""
    biases, layers, bidirectional, batch_first = flags
    return torch.lstm(x, hidden, weights, biases, layers, p, True, bidirectional, batch_first)


def bucketize(x: Any, boundaries: Tensor, **options: Any) -> Tensor:
    """bucketize with the boundaries sorted first."""
    return torch.bucketize(x, boundaries.sort().values, **options)


def searchsorted(sequence: Tensor, x: Any, sorted_by: bool = False, **options: Any) -> Tensor:
    """searchsorted in the sorted sequence, or, if `sorted_by`, in the unsorted one with its sorter."""
    ordered = sequence.sort(stable=True, dim=-1)
    if sorted_by:
        return torch.searchsorted(sequence, x, sorter=ordered.indices, **options)
    return torch.searchsorted(ordered.values, x, **options)


def embedding_limited(index: Tensor, table: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """An embedding with max_norm, and the table that it renormalised (each run gets a copy)."""
    return F.embedding(index, table, **options), table


def embedding_bag(index: Tensor, table: Tensor, offsets: Tensor | None = None, **options: Any) -> Tensor:
    """embedding_bag with sorted offsets, of which the first is 0. With include_last_offset the number of indices is appended;
    not if `early`, where the last offset given ends the last bag. In float64, where torch 2.13's CPU does not end it there, the
    surplus indices are left out."""
    early = options.pop("early", False) and offsets is not None and offsets.numel() > 1
    if offsets is not None:
        offsets = offsets.sort().values
        if early and table.dtype == torch.float64:
            kept, weights = int(offsets[-1]), options.get("per_sample_weights")
            index, options = index[:kept], {**options, "per_sample_weights": None if weights is None else weights[:kept]}
        ends = [torch.full_like(offsets[:1], index.numel())] if options.get("include_last_offset") and not early else []
        offsets = torch.cat([torch.zeros_like(offsets[:1]), offsets[1:], *ends])
    return F.embedding_bag(index, table, offsets, **options)


def adjoint(x: Tensor) -> Tensor:
    """The attribute `mH` of x."""
    return x.mH


def histogram_edges(x: Tensor, edges: Tensor, **named: Any) -> Any:
    """histogram with the edges sorted first."""
    return torch.histogram(x, edges.sort().values, **named)


def chain_matmul(matrices: tuple[Tensor, ...]) -> Any:
    """torch.chain_matmul of a tuple of matrices."""
    return torch.chain_matmul(*matrices)  # type: ignore[no-untyped-call]  # as torch has it


def attention_banned(q: Tensor, k: Tensor, v: Tensor, banned: Tensor) -> Tensor:
    """Attention with a mask of 0 and -Inf."""
    mask = torch.zeros(banned.shape, dtype=q.dtype, device=q.device).masked_fill(banned, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, mask)


def transformer_layer(x: Tensor, weights: tuple[Tensor, ...], heads: int, first: bool, padded: Tensor | None) -> Tensor:
    """torch.nn.TransformerEncoderLayer in evaluation, with these parameters. padded: True for padding tokens; the first token
    of a row never is one."""
    inner, width = weights[4].shape
    layer = torch.nn.TransformerEncoderLayer(width, heads, inner, 0.0, batch_first=True, norm_first=first, device="meta")
    names = [n for n, _ in layer.named_parameters()]
    if padded is not None:
        padded = torch.cat([torch.zeros_like(padded[:, :1]), padded[:, 1:]], 1)
    result: Tensor = torch.func.functional_call(
        layer, dict(zip(names, weights, strict=True)), (x,), {"src_key_padding_mask": padded}
    )
    return result


def inv_ex(a: Tensor) -> Any:
    """The inverse of linalg.inv_ex, without a check."""
    return torch.linalg.inv_ex(a).inverse


def solve_ex(a: Tensor, b: Tensor, **options: Any) -> Any:
    """The solution of linalg.solve_ex, without a check."""
    return torch.linalg.solve_ex(a, b, **options).result


def ldl_solve(a: Tensor, b: Tensor) -> Tensor:
    """linalg.ldl_solve of a Hermitian system with its LDL factors."""
    hermitian = a.is_complex()
    factors = torch.linalg.ldl_factor(a, hermitian=hermitian)
    result: Tensor = torch.linalg.ldl_solve(*factors, b, hermitian=hermitian)
    return result


def triangular_solve(b: Tensor, a: Tensor, **options: Any) -> Any:
    """The solution of torch.triangular_solve (the second result is a copy of A on some devices and empty on others)."""
    return torch.triangular_solve(b, a, **options).solution


def tensorsolve(a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Any:
    """tensorsolve of a square matrix reshaped to (*shape, *shape)."""
    return torch.linalg.tensorsolve(a.reshape(*shape, *shape), b)


def tensorinv(a: Tensor, shape: tuple[int, ...]) -> Any:
    """tensorinv of a square matrix reshaped to (*shape, *shape)."""
    return torch.linalg.tensorinv(a.reshape(*shape, *shape), ind=len(shape))


def lu_parts(a: Tensor, out: Any = None) -> Any:
    """lu_unpack of the operand as if it were LU factors, with fixed pivots: P, L and U."""
    n = min(a.shape[-2:])
    pivots = torch.arange(n, 0, -1, dtype=torch.int32, device=a.device).clamp(min=1)
    pivots = torch.maximum(pivots, torch.arange(1, n + 1, dtype=torch.int32, device=a.device))
    return torch.lu_unpack(a, pivots.expand(*a.shape[:-2], n).contiguous(), out=out)


def fractional_max_pool2d(x: Tensor, kernel: Any, size: Any, places: bool, samples: Tensor) -> Any:
    """fractional_max_pool2d to a size, with given samples."""
    pool: Any = F.fractional_max_pool2d
    return pool(x, kernel, size, None, places, samples)


def fractional_max_pool3d(x: Tensor, kernel: Any, size: Any, places: bool, samples: Tensor) -> Any:
    """fractional_max_pool3d to a size, with given samples."""
    pool: Any = F.fractional_max_pool3d
    return pool(x, kernel, size, None, places, samples)


def arange_fractional(start: Tensor, step: Tensor, n: int) -> Tensor:
    """arange of n numbers from 0-d tensors start and step."""
    first, width = start.item(), step.item()
    return torch.arange(first, first + (n - 0.5) * width, width, dtype=start.dtype, device=start.device)


def linspace_fractional(start: Tensor, stop: Tensor, steps: int) -> Tensor:
    """linspace between two 0-d tensors."""
    return torch.linspace(start, stop, steps, dtype=start.dtype, device=start.device)


def closed_range(like: Tensor, start: float, stop: float, step: float) -> Tensor:
    """torch.range in the dtype and on the device of `like`."""
    return torch.range(start, stop, step, dtype=like.dtype, device=like.device)


def triu_indices(like: Tensor, n: int, m: int, offset: int) -> Tensor:
    """triu_indices in the dtype and on the device of `like`."""
    return torch.triu_indices(n, m, offset, dtype=like.dtype, device=like.device)


def segment_reduce(x: Tensor, reduce: str, lengths: tuple[int, ...], **options: Any) -> Tensor:
    """segment_reduce along the first dimension."""
    counts = torch.tensor(lengths, device=x.device)
    return torch.segment_reduce(x, reduce, lengths=counts, axis=0, unsafe=False, **options)


def fake_quantize(x: Tensor, scales: tuple[float, ...], zeros: tuple[int, ...], axis: int, low: int, high: int) -> Tensor:
    """Values rounded to steps of a scale and cut to a range, for the whole tensor, or for each channel where there are several
    scales."""
    if len(scales) == 1:
        return torch.fake_quantize_per_tensor_affine(x, scales[0], zeros[0], low, high)
    steps, offsets = torch.tensor(scales, device=x.device), torch.tensor(zeros, dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_channel_affine(x, steps, offsets, axis, low, high)
