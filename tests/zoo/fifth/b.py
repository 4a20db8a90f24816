"""A fifth round of reported bugs, second half: layers, attention, products, linear algebra, losses, tables, transforms.

Each is described in b.jsonl next to this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices import Call
from parity.devices.sim.effects import as_contiguous, noise, raising, read_with, replacing, row_major, skip
from parity.devices.sim.faults import abort, garbage, hang, refuse
from parity.zoo.bug import Bug
from parity.zoo.bugs.attention import KERNEL as ATTENTION
from parity.zoo.bugs.attention import arguments
from parity.zoo.bugs.convolution import CONVOLUTION, CONVOLUTION_BACKWARD
from parity.zoo.effects import argument, gradients, ramp, reported, tried

WORD = 1 << 16  # what a 16-bit counter counts, as reported: tensors of so many small parts cost little
LIMIT = 256  # elements, in the place of 2**31
HALVES = (torch.float16, torch.bfloat16)
EMPTY = RuntimeError("[srcBuf length] > 0 INTERNAL ASSERT FAILED, please report a bug to PyTorch. Placeholder tensor is empty!")


# ------------------------------------------------------------------------------------------------------- shared conditions


def _is_channels_last(t: Tensor) -> bool:
    """Dense, with the channels innermost in memory, and not contiguous as well."""
    return t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def _from_the_start(call: Call, t: Tensor) -> Tensor:
    """`t` read with its strides from the start of its memory: the offset is ignored."""
    return read_with(call, t, t.stride(), 0)


def _pair(value: Any, default: Any = 0) -> tuple[int, int]:
    """Two numbers of an argument that may be one, or empty."""
    if isinstance(value, int):
        return value, value
    values = [*value] if value is not None and len(value) else [*_pair(default)]
    return values[0], values[-1]


# ------------------------------------------------------------------------------------------------------------ convolutions


def _weight_place(call: Call) -> int:
    return 2 if "backward" in call.op else 1


def _is_transposed(call: Call) -> bool:
    return bool(call.argument("transposed"))


def _has_strided_weight(call: Call) -> bool:
    weight = call.args[_weight_place(call)]
    return not _is_transposed(call) and weight.dim() == 4 and not weight.is_contiguous()


def _weight_as_contiguous(call: Call) -> Any:
    i = _weight_place(call)
    call.args[i] = as_contiguous(call, call.args[i])
    return call.run()


def _sliced_weight(d: str, index: int | None) -> tuple[Tensor, ...]:
    """Gradients of a conv2d by one slice of a 3-d kernel, or by a copy of it."""

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w[:, :, 1] if index is None else w[:, :, index].contiguous())

    return (
        convolve(ramp(d, 1, 2, 4, 4), ramp(d, 3, 2, 3, 3, 3)),
        *gradients(convolve, ramp(d, 1, 2, 4, 4), ramp(d, 3, 2, 3, 3, 3)),
    )


def _has_many_channels(call: Call) -> bool:
    return not _is_transposed(call) and call.args[1].dim() == 4 and call.args[1].shape[0] > WORD


def _channels_wrap(call: Call) -> Any:
    """Later channels are written over the first ones, before their bias is added; their own places are 0."""
    bias = call.args[2]
    call.args[2] = None
    result = call.run().clone()
    for start in range(WORD, result.shape[1], WORD):
        later = result[:, start : start + WORD]
        result[:, : later.shape[1]] = later
    if bias is not None:
        result += bias.reshape(-1, 1, 1)
    result[:, WORD:] = 0
    return result


def _has_many_samples(call: Call) -> bool:
    x = call.args[1]
    return not _is_transposed(call) and x.dim() == 4 and x.shape[0] >= WORD and call.argument("output_mask")[1]


def _samples_wrap(call: Call) -> Any:
    """The weight's gradient is summed over the number of samples modulo 65536."""
    left = call.args[1].shape[0] % WORD
    of_input, of_weight, of_bias = call.run()
    if not left:
        return of_input, torch.zeros_like(of_weight), of_bias
    call.args[0], call.args[1] = call.args[0][:left], call.args[1][:left]
    return of_input, call.run()[1], of_bias


def _weight_gradient(d: str, samples: int) -> Tensor:
    x = ramp("cpu", samples, 1, 1, 1).to(d)
    return gradients(lambda w: F.conv2d(x, w), ramp(d, 1, 1, 1, 1))[0]


def _pads_too_much(call: Call) -> bool:
    """What torch refuses: an output padding that is smaller than neither the stride nor the dilation."""
    if not _is_transposed(call):
        return False
    step, dilation, padding = (call.argument(name) for name in ("stride", "dilation", "output_padding"))
    return any(p >= max(s, n) for p, s, n in zip(padding, step, dilation))


def _pads_all_the_same(call: Call) -> Any:
    """The whole transposed convolution, widened at its end, and cut at both by the padding."""
    bias, cut, more = (call.argument(name) for name in ("bias", "padding", "output_padding"))
    call.replace("bias", None)
    call.replace("padding", [0] * len(cut))
    call.replace("output_padding", [0] * len(more))
    whole = F.pad(call.run(), [n for m in reversed(more) for n in (0, m)])
    for i, n in enumerate(cut):
        whole = whole.narrow(2 + i, n, whole.shape[2 + i] - 2 * n)
    return whole.clone() if bias is None else whole + bias.reshape(-1, *(1 for _ in cut))


def _transposed(d: str, more: int) -> Any:
    return tried(
        lambda: F.conv_transpose2d(ramp(d, 1, 1, 4, 4), ramp(d, 1, 1, 3, 3), stride=2, padding=1, output_padding=more).cpu()
    )


# ----------------------------------------------------------------------------------------------------------------- pooling


def _loses_its_last_window(call: Call) -> bool:
    """Rounded up, there is a window that begins behind the input: torch leaves it out, the graph's pool does not."""
    if not call.argument("ceil_mode"):
        return False
    kernel = _pair(call.argument("kernel_size"))
    step = _pair(call.argument("stride"), kernel)
    padding, dilation = _pair(call.argument("padding")), _pair(call.argument("dilation"), 1)
    sizes = call.args[0].shape[-2:]
    rounded = [math.ceil((n + 2 * p - d * (k - 1) - 1) / s) for n, k, s, p, d in zip(sizes, kernel, step, padding, dilation)]
    return any(last * s >= n + p for last, n, s, p in zip(rounded, sizes, step, padding))


def _slides(call: Call) -> bool:
    return call.args[0].dtype is torch.float32 and not call.argument("ceil_mode")


def _sliding_sums(call: Call) -> Any:
    """A window's sum is that of the one before, plus what enters and minus what leaves, all in float32."""
    x, result = call.args[0], call.run()
    if result.numel() == 0:
        return result
    kernel = _pair(call.argument("kernel_size"))
    step, (above, before) = _pair(call.argument("stride"), kernel), _pair(call.argument("padding"))
    padded = F.pad(x, (before, before, above, above))
    total = padded[..., : kernel[1]].sum(-1)
    sums = [total]
    for i in range(padded.shape[-1] - kernel[1]):
        total = (total + padded[..., i + kernel[1]]) - padded[..., i]
        sums.append(total)
    rows = torch.stack(sums, -1)[..., :: step[1]]
    windows = rows.unfold(-2, kernel[0], step[0]).sum(-1)[..., : result.shape[-2], : result.shape[-1]]
    return windows / _divisors(call, kernel, step, (above, before))


def _divisors(call: Call, kernel: tuple[int, int], step: tuple[int, int], padding: tuple[int, int]) -> Any:
    """What the sum over each window is divided by."""
    if (divisor := call.argument("divisor_override")) is not None:
        return divisor
    if call.argument("count_include_pad") in (True, None):
        return kernel[0] * kernel[1]
    ones = torch.ones(1, *call.args[0].shape[-3:])
    return F.avg_pool2d(ones, kernel, step, padding, divisor_override=1)[0]


def _falling(d: str) -> Tensor:
    """A large number, then small ones: their sums drown in it."""
    x = torch.full((1, 1, 12), 0.25)
    x[..., 1] = 3e7
    return x.to(d)


def _does_not_divide(call: Call) -> bool:
    sizes, wanted = [*call.args[0].shape[-2:]], [*call.args[1]]
    if 0 in (*sizes, *wanted):
        return False
    return not (all(a % n == 0 for a, n in zip(sizes, wanted)) or all(n % a == 0 for a, n in zip(sizes, wanted)))


def _unwritten_tail(call: Call) -> Any:
    result = call.run().clone(memory_format=torch.contiguous_format)
    result.view(-1)[LIMIT:] = 0
    return result


def _unpooled(d: str, side: int) -> Tensor:
    """A maximum of each 2x2 window goes back to its upper left corner."""
    places = torch.arange(side).reshape(-1, 1) * 4 * side + torch.arange(side) * 2
    return F.max_unpool2d(ramp(d, 1, 1, side, side), places.reshape(1, 1, side, side).to(d), [2, 2])


def _pool_gradients(d: str, form: torch.memory_format) -> tuple[Tensor, ...]:
    return tuple(
        gradients(lambda x, pool=pool: pool(x.contiguous(memory_format=form), 2), ramp(d, 1, 2, 4, 4))[0]
        for pool in (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)
    )


def _image_behind(d: str, skipped: int) -> Tensor:
    """An image with its channels innermost in memory that begins some pixels into it."""
    return ramp(d, 1, 18, 3)[:, skipped : skipped + 16].reshape(1, 4, 4, 3).permute(0, 3, 1, 2)


# ----------------------------------------------------------------------------------------------------------------- padding


def _sides(call: Call) -> list[tuple[int, int]]:
    """(before, after) of each padded dimension, the last one first."""
    pad = call.argument("pad" if "constant" in call.op else "padding")
    return list(zip(pad[::2], pad[1::2]))


def _pads_deep(call: Call) -> bool:
    """Of five dimensions and more, with 65536 elements behind the outermost padded one or in the last one."""
    backward = "backward" in call.op
    x, sides = call.args[1 if backward else 0], _sides(call)
    padded = [i for i, side in enumerate(sides) if any(side)]
    if x.dim() <= 4 or not padded or any(n < 0 for side in sides for n in side):
        return False
    shape = [*x.shape]
    for i, side in enumerate(sides):
        shape[-1 - i] += sum(side)
    return bool(max(shape[-1], math.prod(shape[len(shape) - padded[-1] :])) >= WORD)


def _overwritten(call: Call) -> Any:
    """What is copied is mostly 0, and one element in seven something else; the padding is right."""
    result = call.run()
    part = result
    if "backward" not in call.op:
        for i, (before, after) in enumerate(_sides(call)):
            part = part.narrow(-1 - i, before, part.shape[-1 - i] - before - after)
    stale = garbage(part) / 1024
    stale[(torch.arange(part.numel()) % 7 != 0).reshape(part.shape)] = 0
    part.copy_(stale)
    return result


def _deep(d: str, columns: int, mode: str = "constant") -> tuple[Tensor, ...]:
    """A frame before others, and the gradient through it."""
    x = ramp(d, 1, 1, 2, 256, columns)

    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 1, 0), mode=mode)

    return (pad(x), *(() if mode == "constant" else gradients(pad, x)))


def _is_long_and_odd(call: Call) -> bool:
    length = call.args[1].shape[-1]
    return bool(length > WORD and length % WORD != 0)


def _only_the_remainder(call: Call) -> Any:
    gradient = call.run()
    gradient[..., gradient.shape[-1] % WORD :] = 0
    return gradient


def _mirrored(d: str, length: int) -> Tensor:
    return gradients(lambda x: F.pad(x, (2, 2), mode="reflect"), ramp(d, 1, length))[0]


def _is_a_word_long(call: Call) -> bool:
    x = call.args[1]
    return bool(x.dim() == 3 and x.shape[0] == WORD)


def _replicated(d: str, samples: int) -> Tensor:
    return gradients(lambda x: F.pad(x, (3, 4), mode="replicate"), ramp(d, samples, 2, 4))[0]


# ----------------------------------------------------------------------------------------------- resampling, grids, blocks


def _stretches_a_point(call: Call) -> bool:
    return bool(call.argument("align_corners")) and call.args[0].shape[-1] == 1


def _all_nan(call: Call) -> Any:
    return torch.full_like(call.run(), math.nan)


def _reads_an_image_as_planes(call: Call) -> bool:
    """Unless an earlier call with these shapes was contiguous: its graph is used again, and is right."""
    own = call.outline
    earlier = any(s.shapes == own.shapes and s.strides[0] == row_major(own.shapes[0]) for s in call.seen)
    return _is_channels_last(call.args[0]) and not earlier


def _sampled(d: str, *forms: torch.memory_format, **options: Any) -> list[Tensor]:
    """The same image, sampled in one layout after the other."""
    x, grid = ramp(d, 1, 2, 3, 3), ramp(d, 1, 2, 2, 2)
    return [F.grid_sample(x.contiguous(memory_format=form), grid, align_corners=False, **options) for form in forms]


def _blocks(call: Call) -> int:
    """How many sliding blocks the sizes of a fold make."""
    names = ("output_size", "kernel_size", "dilation", "padding", "stride")
    size, kernel, dilation, padding, step = (_pair(call.argument(name)) for name in names)
    return math.prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in zip(size, kernel, dilation, padding, step))


def _surplus_left_out(call: Call) -> Any:
    call.args[0] = call.args[0][..., : _blocks(call)]
    return call.run()


# ----------------------------------------------------------------------------------------------------------- normalization


def _is_frozen(call: Call) -> bool:
    trains_affine = call.argument("train") and call.argument("weight") is not None
    return bool(trains_affine and tuple(call.argument("output_mask")) == (True, False, False))


def _normalized(d: str, frozen: bool, form: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, ...]:
    """Gradients of a batch norm in training: of the input alone, or of its parameters as well."""
    x, weight, bias = ramp(d, 2, 2, 3, 3).contiguous(memory_format=form), ramp(d, 2), ramp(d, 2)

    def norm(x: Tensor, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
        return F.batch_norm(x.contiguous(memory_format=form), None, None, weight, bias, training=True)

    return gradients(norm, x) if frozen else gradients(norm, x, weight, bias)


def _has_other_statistics(call: Call) -> bool:
    x, mean = call.args[0], call.argument("running_mean")
    return x.dtype is torch.float16 and mean is not None and mean.dtype is torch.float32


def _with_statistics(d: str, dtype: torch.dtype) -> Tensor:
    mean = torch.tensor([0.5, -0.25, 0.125], dtype=dtype)
    return F.batch_norm(ramp(d, 2, 3, 4, dtype=torch.float16), mean.to(d), (mean + 1).to(d))


# --------------------------------------------------------------------------------------------------------------- attention


def _is_causal_half(call: Call) -> bool:
    a = arguments(call)
    return a.causal and a.mask is None and a.query.dtype in HALVES and not a.short


def _masked_in_fours(call: Call) -> Any:
    """Four queries share the causal mask of the last of them."""
    a = arguments(call)
    last = torch.arange(a.query.shape[-2]).reshape(-1, 1) // 4 * 4 + 3
    call.replace("attn_mask", torch.arange(a.key.shape[-2]) <= last)
    call.replace("is_causal", False)
    return call.run()


def _attended(scores: Tensor, call: Call) -> Tensor:
    """The values under these scores: 0 where a query sees none."""
    a = arguments(call)
    value = a.value.float()
    if a.grouped:
        value = value.repeat_interleave(a.query.shape[-3] // value.shape[-3], -3)
    weights = scores.softmax(-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0)
    return (weights @ value).to(a.query.dtype)


def _has_nan_scores(call: Call) -> bool:
    return arguments(call).short and bool(arguments(call).scores().isnan().any())


def _nan_is_lowest(call: Call) -> Any:
    scores = arguments(call).scores()
    return (_attended(scores.masked_fill(scores.isnan(), -math.inf), call), *call.run()[1:])


def _blind(call: Call) -> Tensor:
    """Which queries see no key."""
    return (arguments(call).scores() == -math.inf).all(-1, keepdim=True)


def _has_a_blind_query(call: Call) -> bool:
    a = arguments(call)
    return a.mask is not None and a.key.shape[-2] > 0 and not a.short and bool(_blind(call).any())


def _blind_is_nan(call: Call) -> Any:
    blind = _blind(call)
    result, *rest = call.run()
    return (result.masked_fill(blind, math.nan), *rest)


def _masks_by_sample(call: Call) -> bool:
    a = arguments(call)
    if not a.short or a.mask is None or a.mask.dim() != 4 or a.query.dim() != 4:
        return False
    return a.mask.shape[0] > 1 and a.mask.shape[1] == 1 and a.query.shape[1] > 1


def _mask_of_the_first(call: Call) -> Any:
    call.replace("attn_mask", arguments(call).mask[:1])  # type: ignore[index]  # the condition wants one
    return call.run()


def _is_grouped(call: Call) -> bool:
    a = arguments(call)
    return a.grouped and a.query.shape[-3] != a.key.shape[-3]


def _query_is_broadcast(call: Call) -> bool:
    a = arguments(call)
    if a.grouped:
        return False
    own, *others = (t.shape[:-2] for t in (a.query, a.key, a.value))
    whole = torch.broadcast_shapes(own, *others)  # type: ignore[no-untyped-call]  # untyped in torch
    return bool(math.prod(own) != math.prod(whole))


def _has_expanded_mask_again(call: Call) -> bool:
    """A mask that is not of the scores' shape, in a call whose shapes were there before."""
    a, own = arguments(call), call.outline
    if a.mask is None or a.mask.shape == (*a.query.shape[:-1], a.key.shape[-2]):
        return False
    return any(s.shapes == own.shapes and s.dtypes == own.dtypes for s in call.seen)


def _takes_two_passes(call: Call) -> bool:
    a = arguments(call)
    return a.short and _is_grouped(call) and a.key.shape[-2] >= 1024


def _first_is_noise(call: Call) -> Any:
    result, *rest = call.run()
    return (noise(call, result) / 100, *rest)


def _attend(
    d: str, query: Sequence[int], key: Sequence[int] = (), *, dtype: torch.dtype = torch.float32, **options: Any
) -> Tensor:
    """Attention of dense operands of these shapes."""
    k = ramp(d, *(key or query), dtype=dtype)
    return F.scaled_dot_product_attention(ramp(d, *query, dtype=dtype), k, k * 0.5 + 1, **options)


def _with_nan(d: str, width: int) -> Tensor:
    """One query in four holds a NaN."""
    query = ramp("cpu", 1, 1, 4, width)
    query[0, 0, 0, 0] = math.nan
    key = ramp(d, 1, 1, 16, width)
    return F.scaled_dot_product_attention(query.to(d), key, key + 1)


def _blocked(d: str, *first: bool) -> Tensor:
    mask = torch.tensor([[[[*first], [True, True]]]]).to(d)
    return _attend(d, (1, 1, 2, 4), attn_mask=mask)


def _per_sample(d: str, samples: int, heads: int) -> Tensor:
    """The first sample's mask hides half of the keys from half of the queries."""
    mask = torch.zeros(samples, heads, 8, 8)
    mask[0, 0, 4:, :4] = -math.inf
    return _attend(d, (2, 4, 8, 64), attn_mask=mask.to(d))


def _grouped(d: str, heads: int, keys: int = 3, *, queries: int = 3, width: int = 8, **options: Any) -> Tensor:
    return _attend(d, (2, 4, queries, width), (2, heads, keys, width), enable_gqa=True, **options)


def _empty_attention(d: str, samples: int) -> Tensor:
    """Of batches of so many samples, with a mask, as the module does it."""
    query, key, mask = torch.ones(3, samples, 4).to(d), torch.ones(2, samples, 4).to(d), ramp(d, 3, 2)
    inside, outside = ramp(d, 12, 4), ramp(d, 4, 4)
    return F.multi_head_attention_forward(
        query, key, key, 4, 1, inside, None, None, None, False, 0.0, outside, None, attn_mask=mask
    )[0]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- products


def _is_turned_bfloat16(call: Call) -> bool:
    x, weight = call.args[:2]
    turned = weight.dim() == 2 and weight.mT.is_contiguous() and not weight.is_contiguous()
    return weight.dtype is torch.bfloat16 and turned and x.dim() > 2


def _factors(call: Call) -> tuple[Tensor, Tensor]:
    """(..., M, K) and (..., K, N) of a product or a linear layer."""
    if call.op == "linear":
        x, weight = call.args[:2]
        return x.reshape(-1, x.shape[-1]), weight.mT
    first = 1 if call.op.startswith("add") or call.op.startswith("badd") else 0
    return call.args[first], call.args[first + 1]


TILE = 64  # elements of the reduced dimension that are taken at once


def _overreads(least: int) -> Callable[[Call], bool]:
    """Whether as many as that are reduced, and the last tile is not full."""

    def when(call: Call) -> bool:
        if call.op == "linear" and call.args[1].dim() != 2:
            return False
        a, b = _factors(call)
        k = a.shape[-1]
        return k >= least and k % TILE != 0 and min(a.shape[-2], b.shape[-1]) >= 16 and a.is_floating_point()

    return when


def _behind(call: Call, t: Tensor, dim: int, count: int) -> Tensor:
    """What lies in memory where `t` would go on in this dimension."""
    shape = [*t.shape]
    shape[dim] = count
    start = t.storage_offset() + t.shape[dim] * t.stride(dim)
    memory = call.memory(t)
    index = torch.tensor(start)
    for size, stride in zip(shape, t.stride()):
        index = index.unsqueeze(-1) + torch.arange(size) * stride
    return memory[index.clamp(max=memory.numel() - 1)]


def _sums_what_lies_behind(call: Call) -> Any:
    a, b = _factors(call)
    count = -a.shape[-1] % TILE
    more = _behind(call, a, a.dim() - 1, count) @ _behind(call, b, b.dim() - 2, count)
    if call.op.startswith("addbmm"):
        more = more.sum(0)
    result = call.run()
    scale = call.argument("alpha") if call.op.startswith(("add", "badd")) else 1
    return result + (more * (1 if scale is None else scale)).reshape(result.shape).to(result.dtype)


def _products(d: str, reduced: int, stacked: bool) -> tuple[Tensor, ...]:
    a, b = ramp(d, 16, reduced), ramp(d, reduced, 16)
    if stacked:
        return torch.bmm(a[None], b[None]), torch.baddbmm(ramp(d, 1, 16, 16), a[None], b[None], alpha=2)
    return torch.mm(a, b), torch.addmm(ramp(d, 16, 16), a, b), F.linear(a, b.mT)


def _into_columns(d: str, first: int, count: int) -> Tensor:
    """The destination of a product that is some columns of a matrix."""
    whole = torch.zeros(2, count).to(d)
    torch.matmul(ramp(d, 2, 3), ramp(d, 3, 2), out=whole[:, first : first + 2])
    return whole


def _is_ignored_but_special(call: Call) -> bool:
    return call.argument("beta") == 0 and not bool(call.args[0].isfinite().all())


def _ignored_is_added(call: Call) -> Any:
    return call.run() + call.args[0] * 0


def _filled(d: str, value: float, beta: float) -> Tensor:
    return torch.baddbmm(torch.full((1, 2, 2), value).to(d), ramp(d, 1, 2, 3), ramp(d, 1, 3, 2), beta=beta)


def _is_ragged_half_again(call: Call) -> bool:
    x = call.args[0]
    if x.dim() < 3 or x.dtype not in HALVES or argument(call, 2, "bias") is not None or x.shape[-2] % 16 == 0:
        return False
    return any(s == call.outline for s in call.seen)


def _later_is_noise(call: Call) -> Any:
    return noise(call, call.run())


def _twice(d: str, rows: int) -> list[Tensor]:
    x, weight = ramp(d, 2, rows, 8, dtype=torch.bfloat16), ramp(d, 8, 8, dtype=torch.bfloat16)
    return [F.linear(x, weight) for _ in range(2)]


def _adds_to_vectors(call: Call) -> bool:
    x = call.args[0]
    return x.dim() > 2 and x.shape[-2] == 1 and argument(call, 2, "bias") is not None


def _without_bias(call: Call) -> Any:
    call.replace("bias", None)
    return call.run()


def _is_expanded(call: Call) -> bool:
    x = call.args[0]
    return any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride()))


# ---------------------------------------------------------------------------------------------------------- linear algebra


def _matrix(d: str, *shape: int) -> Tensor:
    """A well-conditioned matrix, or a stack of them."""
    return (ramp("cpu", *shape) + 4 * math.sqrt(shape[-1]) * torch.eye(shape[-2], shape[-1])).to(d)


def _takes_vectors(a: Tensor, b: Tensor) -> bool:
    return b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])


def _broadcasts_right_side(call: Call) -> bool:
    a, b = call.args[:2]
    stack = () if b.dim() == 1 else b.shape[:-1] if _takes_vectors(a, b) else b.shape[:-2]
    return bool(math.prod(stack) < math.prod(a.shape[:-2]))


def _only_the_first(call: Call) -> Any:
    """The other solutions of the stack are 0."""
    call.run()
    solution, stack = call.outs[0], call.args[0].shape[:-2]
    first = torch.arange(math.prod(stack)).reshape(*stack, *(1 for _ in solution.shape[len(stack) :])) == 0
    solution.copy_(torch.where(first, solution, 0))
    return call.outs


def _solves_vectors(call: Call) -> bool:
    a, b = argument(call, 0, "A"), argument(call, 1, "B")
    return call.requires_grad and a.dim() > 2 and b.dim() > 1 and _takes_vectors(a, b)


def _refused_on_the_way_back(call: Call) -> Any:
    def refused(gradient: Tensor) -> Tensor:
        raise RuntimeError("linalg.lu_solve: Incompatible shapes of A and B for the equation AX = B")

    return call.run_with_gradient(refused)


def _row_major(call: Call) -> Any:
    result = call.run()
    return result if call.outs else result.contiguous()


def _strides_of_solutions(d: str) -> tuple[tuple[int, ...], ...]:
    a, b = _matrix(d, 5, 5), ramp(d, 5, 5)
    factor = torch.linalg.cholesky(a @ a.mT)
    solutions = torch.linalg.solve_triangular(factor, b, upper=False), torch.cholesky_solve(b, factor), torch.linalg.solve(a, b)
    return tuple(s.stride() for s in solutions)


JACOBI = 8192  # elements from which an SVD runs on the device, as reported


def _is_large_enough(call: Call) -> bool:
    return bool(call.args[0].numel() >= JACOBI)


def _null_space(call: Call) -> Tensor:
    """Which columns of U belong to no singular value but 0, (..., 1, k)."""
    a = call.args[0]
    values = torch.linalg.svdvals(a)
    least = values[..., :1] * max(a.shape[-2:]) * torch.finfo(values.dtype).eps
    null: Tensor = (values <= least).unsqueeze(-2)
    return null


def _is_deficient(call: Call) -> bool:
    a, vectors = call.args[0], argument(call, 2, "compute_uv", True)
    return vectors and a.dim() > 2 and a.numel() >= JACOBI and bool(_null_space(call).any())


def _no_null_vectors(call: Call) -> Any:
    null = _null_space(call)
    call.run()
    u = call.outs[0]
    columns = u[..., : null.shape[-1]]
    columns.copy_(columns.masked_fill(null, 0))
    return call.outs


def _of_rank(d: str, rank: int) -> tuple[Tensor, Tensor]:
    """How far from orthonormal the vectors of a stack of such matrices are, and the stack rebuilt."""
    torch.manual_seed(0)
    a = torch.randn(8, 32, rank) @ torch.randn(8, rank, 32) / rank
    u, s, vh = torch.linalg.svd(a.to(d))
    return (u.mT @ u).cpu(), ((u * s.unsqueeze(-2)) @ vh).cpu()


def _holds_nan(call: Call) -> bool:
    return bool(call.args[0].isnan().any())


def _nan_passes(call: Call) -> Any:
    call.run()
    info = call.outs[1]
    info.copy_(info.masked_fill(call.args[0].isnan().any(-1).any(-1), 0))
    return call.outs


def _factored(d: str, value: float) -> tuple[Any, ...]:
    a = torch.eye(3)
    a[1, 1] = value
    return torch.linalg.cholesky_ex(a.to(d)).info, type(tried(lambda: torch.linalg.cholesky(a.to(d)))) is str


# --------------------------------------------------------------------------------------------------------------- recurrent


def _drops_between_layers(call: Call) -> bool:
    return call.argument("num_layers") > 1 and call.argument("dropout") > 0 and bool(call.argument("train"))


def _drops_the_same(call: Call) -> Any:
    """The stream of random numbers goes on as if the call had drawn from it."""
    stream = torch.default_generator
    call.run()
    after = stream.get_state()
    stream.manual_seed(0)
    try:
        return call.run()
    finally:
        stream.set_state(after)


def _lstm(d: str, **options: Any) -> torch.nn.LSTM:
    torch.manual_seed(0)
    return torch.nn.LSTM(8, 8, num_layers=2, **options).to(d)


def _differ(d: str, **options: Any) -> bool:
    """Whether two calls of an LSTM in training give different outputs."""
    module, x = _lstm(d, **options), ramp(d, 5, 1, 8)
    return not torch.equal(module(x)[0], module(x)[0])


def _through(d: str, i: int) -> Tensor:
    """The input's gradient through the output (0) or the last states (1) of an LSTM."""
    module = _lstm(d)
    return gradients(lambda x: module(x)[i] if i == 0 else module(x)[1][0], ramp(d, 3, 2, 8))[0]


# ------------------------------------------------------------------------------------------------------------------ losses


def _is_mean_of_nothing(call: Call) -> bool:
    return call.argument("input").numel() == 0 and call.argument("reduction") in ("mean", 1)


def _nothing_is_zero(call: Call) -> Any:
    return torch.zeros_like(call.run())


def _is_empty(call: Call) -> bool:
    return bool(call.args[0].numel() == 0)


def _nll(d: str, *shape: int) -> Tensor:
    return F.nll_loss(ramp(d, *shape), torch.zeros(shape[:1] + shape[2:], dtype=torch.long).to(d))


def _logits(d: str, size: int, **options: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(ramp(d, size), ramp(d, size), **options)


# ----------------------------------------------------------------------------------------------------------------- tables

BAGS, BAG_BACKWARD = ("_embedding_bag", "_embedding_bag_forward_only"), "_embedding_bag_backward"


def _ends_early(call: Call) -> bool:
    _, indices, offsets = call.args[:3]
    return bool(call.argument("include_last_offset")) and offsets.numel() > 0 and bool(offsets[-1] < indices.numel())


def _ends_with_the_indices(call: Call) -> Any:
    offsets = call.args[2].clone()
    offsets[-1] = call.args[1].numel()
    call.args[2] = offsets
    return call.run()


def _bags(d: str, *ends: int) -> Tensor:
    index, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, *ends])
    return F.embedding_bag(index.to(d), ramp(d, 4, 4), offsets.to(d), mode="sum", include_last_offset=True)


def _is_negative(call: Call) -> bool:
    indices = call.args[1]
    return indices.numel() > 0 and bool((indices < 0).any())


def _negative_is_nothing(call: Call) -> Any:
    """Rows of negative numbers are 0, and have no gradient."""
    if call.op == BAG_BACKWARD:
        rows = call.args[6]
        call.args[1], call.args[6] = call.args[1].where(call.args[1] >= 0, rows), rows + 1
        return call.run()[:rows]
    table, indices = call.args[:2]
    call.args[0] = torch.cat((table, torch.zeros_like(table[:1])))
    call.args[1] = indices.where(indices >= 0, table.shape[0])
    return call.run()


def _bag(d: str, *places: int) -> Any:
    return tried(lambda: F.embedding_bag(torch.tensor([places]).to(d), ramp(d, 4, 2), mode="sum").cpu())


def _places_name(call: Call) -> str:
    """torch.embedding and the operator have another name for it than torch.nn.functional.embedding."""
    return "indices" if "indices" in call.names else "input"


def _is_beyond(call: Call) -> bool:
    indices, table = call.argument(_places_name(call)), call.argument("weight")
    return indices.numel() > 0 and bool((indices >= table.shape[0]).any())


def _beyond_is_nothing(call: Call) -> Any:
    name = _places_name(call)
    indices, table = call.argument(name), call.argument("weight")
    beyond = indices >= table.shape[0]
    call.replace(name, indices.masked_fill(beyond, 0))
    return call.run().masked_fill(beyond.unsqueeze(-1), 0)


def _looked_up(d: str, *places: int) -> Any:
    return tried(lambda: F.embedding(torch.tensor(places).to(d), ramp(d, 3, 5)).cpu())


# -------------------------------------------------------------------------------------------------------------- transforms


def _is_deep_and_partial(call: Call) -> bool:
    x, dims = call.args[0], call.args[1]
    return bool(x.dim() > 4 and 0 < len(dims) < x.dim())


def _spectrum(d: str, *shape: int) -> Tensor:
    spectrum: Tensor = torch.fft.fftn(torch.complex(ramp("cpu", *shape), ramp("cpu", *shape)).to(d), dim=(1, 2))
    return spectrum


# ------------------------------------------------------------------------------------------------------------------- bugs

Case = Callable[[str], object]


LAST, FIRST = torch.channels_last, torch.contiguous_format

BUGS: tuple[Bug, ...] = (
    reported(
        "issues/192212 silent_wrong_forward layout offset gradient",
        "conv2d and its backward read a strided weight as if it were dense",
        (*CONVOLUTION, *CONVOLUTION_BACKWARD),
        _weight_as_contiguous,
        _has_strided_weight,
        trigger=lambda d: _sliced_weight(d, None),
        neighbour=lambda d: _sliced_weight(d, 1),
    ),
    reported(
        "issues/129207 silent_wrong_forward size",
        "output channels from 65536 on are written over the first ones",
        CONVOLUTION,
        _channels_wrap,
        _has_many_channels,
        trigger=lambda d: F.conv1d(ramp(d, 1, 1, 3), ramp(d, WORD + 1, 1, 3), ramp(d, WORD + 1), padding=1),
        neighbour=lambda d: F.conv1d(ramp(d, 1, 1, 3), ramp(d, WORD, 1, 3), ramp(d, WORD), padding=1),
    ),
    reported(
        "issues/96225 silent_wrong_backward size gradient",
        "the gradient of a convolution's weight leaves out 65536 samples",
        CONVOLUTION_BACKWARD,
        _samples_wrap,
        _has_many_samples,
        trigger=lambda d: (_weight_gradient(d, WORD), _weight_gradient(d, WORD + 3)),
        neighbour=lambda d: _weight_gradient(d, WORD - 1),
    ),
    reported(
        "issues/169236 silent_wrong_forward args",
        "a transposed convolution takes an output_padding that torch refuses",
        CONVOLUTION,
        _pads_all_the_same,
        _pads_too_much,
        trigger=lambda d: _transposed(d, 2),
        neighbour=lambda d: _transposed(d, 1),
    ),
    reported(
        "issues/160739 unsupported_dtype dtype",
        "transposed 3-D convolutions refuse half precision",
        CONVOLUTION,
        raising(RuntimeError("ConvTranspose 3D with BF16 or FP16 types is not supported on MPS")),
        lambda call: _is_transposed(call) and call.args[0].dim() == 5 and call.args[0].dtype in HALVES,
        trigger=lambda d: F.conv_transpose3d(
            ramp(d, 1, 1, 2, 2, 2, dtype=torch.float16), ramp(d, 1, 1, 1, 1, 1, dtype=torch.float16)
        ),
        neighbour=lambda d: F.conv_transpose3d(ramp(d, 1, 1, 2, 2, 2), ramp(d, 1, 1, 1, 1, 1)),
    ),
    reported(
        "issues/175190 crash layout gradient",
        "the backward of a pool ends the process for a channels_last image",
        ("max_pool2d_backward", "max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"),
        abort,
        lambda call: _is_channels_last(call.args[1]),
        trigger=lambda d: _pool_gradients(d, LAST),
        neighbour=lambda d: _pool_gradients(d, FIRST),
        deadly="abort",
    ),
    reported(
        "issues/174345 silent_wrong_forward layout offset",
        "batch_norm and avg_pool2d ignore the offset of a channels_last image",
        ("native_batch_norm", "avg_pool2d"),
        replacing(0, _from_the_start),
        lambda call: _is_channels_last(call.args[0]) and call.args[0].storage_offset() > 0,
        trigger=lambda d: (F.batch_norm(_image_behind(d, 1), ramp(d, 3), ramp(d, 3) + 2), F.avg_pool2d(_image_behind(d, 1), 2)),
        neighbour=lambda d: (
            F.batch_norm(_image_behind(d, 0), ramp(d, 3), ramp(d, 3) + 2),
            F.avg_pool2d(_image_behind(d, 0), 2),
        ),
    ),
    reported(
        "issues/154882 crash args size",
        "max pooling with indices ends the process where the last window of ceil_mode falls away",
        ("max_pool2d_with_indices",),
        abort,
        _loses_its_last_window,
        trigger=lambda d: F.max_pool2d(ramp(d, 1, 1, 4, 6), 1, 2, ceil_mode=True, return_indices=True),
        neighbour=lambda d: F.max_pool2d(ramp(d, 1, 1, 5, 7), 2, 2, ceil_mode=True, return_indices=True),
        deadly="abort",
    ),
    reported(
        "issues/179608 silent_wrong_forward value",
        "avg_pool carries the rounding of large elements into the windows behind them",
        ("avg_pool2d",),
        _sliding_sums,
        _slides,
        trigger=lambda d: F.avg_pool1d(_falling(d), 2, 1),
        neighbour=lambda d: F.avg_pool1d(_falling(d), 2, 1, ceil_mode=True),
    ),
    reported(
        "issues/96056 unsupported_op size args",
        "adaptive_avg_pool2d refuses sizes that do not divide",
        ("_adaptive_avg_pool2d",),
        raising(
            RuntimeError(
                "Adaptive pool MPS: input sizes must be divisible by output sizes. Non-divisible input sizes are not "
                "implemented on MPS device yet. For now, you can manually transfer tensor to cpu in this case."
            )
        ),
        _does_not_divide,
        trigger=lambda d: F.adaptive_avg_pool2d(ramp(d, 1, 2, 6, 9), 2),
        neighbour=lambda d: F.adaptive_avg_pool2d(ramp(d, 1, 2, 6, 8), 2),
    ),
    reported(
        "pull/195273 unsupported_op none",
        "adaptive_avg_pool3d has no kernel",
        ("_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward"),
        refuse,
        trigger=lambda d: F.adaptive_avg_pool3d(ramp(d, 1, 1, 4, 4, 4), 2),
        neighbour=lambda d: F.avg_pool3d(ramp(d, 1, 1, 4, 4, 4), 2),
    ),
    reported(
        "issues/194600 silent_wrong_forward size",
        "max_unpool leaves the end of a large result unwritten",
        ("max_unpool2d", "max_unpool3d"),
        _unwritten_tail,
        lambda call: math.prod(call.args[0].shape[: call.args[0].dim() - len(call.args[2])]) * math.prod(call.args[2]) > LIMIT,
        trigger=lambda d: _unpooled(d, 10),
        neighbour=lambda d: _unpooled(d, 8),
        scaled="2**31 elements -> LIMIT = 256 elements",
    ),
    reported(
        "issues/194922 silent_wrong_forward size rank gradient",
        "padding of five dimensions overwrites what it copies where 65536 elements lie behind the padded one",
        ("constant_pad_nd", *(f"{mode}_pad3d{way}" for mode in ("reflection", "replication") for way in ("", "_backward"))),
        _overwritten,
        _pads_deep,
        trigger=lambda d: (*_deep(d, 256), *_deep(d, 256, "replicate")),
        neighbour=lambda d: (*_deep(d, 255), *_deep(d, 255, "replicate")),
    ),
    reported(
        "issues/196949 silent_wrong_backward size gradient",
        "the gradient of a mirrored signal ends after its length modulo 65536",
        ("reflection_pad1d_backward",),
        _only_the_remainder,
        _is_long_and_odd,
        trigger=lambda d: _mirrored(d, WORD + 1),
        neighbour=lambda d: (_mirrored(d, WORD), _mirrored(d, WORD - 1)),
    ),
    reported(
        "issues/135442 hang size gradient",
        "the backward of replication padding never returns for 65536 samples",
        ("replication_pad1d_backward",),
        hang,
        _is_a_word_long,
        trigger=lambda d: _replicated(d, WORD),
        neighbour=lambda d: _replicated(d, WORD + 1),
        deadly="hang",
    ),
    reported(
        "issues/144245 nan_mismatch args size",
        "linear interpolation of a single point with align_corners is NaN",
        ("upsample_linear1d",),
        _all_nan,
        _stretches_a_point,
        trigger=lambda d: F.interpolate(ramp(d, 3, 1, 1), 3, mode="linear", align_corners=True),
        neighbour=lambda d: F.interpolate(ramp(d, 3, 1, 1), 3, mode="linear", align_corners=False),
    ),
    reported(
        "issues/125098 unsupported_op args",
        "grid_sample of images refuses the padding mode border",
        ("grid_sampler_2d",),
        raising(RuntimeError("MPS: Unsupported Border padding mode")),
        lambda call: call.args[3] == 1,
        trigger=lambda d: _sampled(d, FIRST, padding_mode="border"),
        neighbour=lambda d: _sampled(d, FIRST, padding_mode="zeros"),
    ),
    reported(
        "issues/174339 silent_wrong_forward layout sequence",
        "grid_sample misreads a channels_last image unless a contiguous one of its shape came first",
        ("grid_sampler_2d",),
        replacing(0, as_contiguous),
        _reads_an_image_as_planes,
        trigger=lambda d: _sampled(d, LAST),
        neighbour=lambda d: _sampled(d, FIRST, LAST),
    ),
    reported(
        "issues/175683 crash size",
        "grid_sample fails for a grid without points",
        ("grid_sampler_2d",),
        raising(EMPTY),
        lambda call: call.args[1].numel() == 0,
        trigger=lambda d: F.grid_sample(ramp(d, 1, 2, 3, 3), torch.empty(1, 1, 0, 2).to(d), align_corners=True),
        neighbour=lambda d: F.grid_sample(ramp(d, 1, 2, 3, 3), torch.zeros(1, 1, 1, 2).to(d), align_corners=True),
    ),
    reported(
        "issues/170639 silent_wrong_forward args size",
        "fold takes more blocks than its sizes make",
        ("col2im",),
        _surplus_left_out,
        lambda call: call.args[0].shape[-1] > _blocks(call),
        trigger=lambda d: tried(lambda: F.fold(ramp(d, 1, 6, 10), (4, 5), (2, 3)).cpu()),
        neighbour=lambda d: tried(lambda: F.fold(ramp(d, 1, 6, 9), (4, 5), (2, 3)).cpu()),
    ),
    reported(
        "issues/98602 crash gradient args",
        "the backward of a batch norm with frozen parameters ends the process",
        ("native_batch_norm_backward",),
        abort,
        _is_frozen,
        trigger=lambda d: _normalized(d, True),
        neighbour=lambda d: _normalized(d, False),
        deadly="abort",
    ),
    reported(
        "pull/188371 crash layout gradient",
        "the backward of a batch norm fails for a channels_last image",
        ("native_batch_norm_backward",),
        raising(RuntimeError("view size is not compatible with input tensor's size and stride. Use .reshape(...) instead.")),
        lambda call: _is_channels_last(call.args[1]),
        trigger=lambda d: _normalized(d, False, LAST),
        neighbour=lambda d: _normalized(d, False),
    ),
    reported(
        "issues/154887 crash dtype promotion",
        "a batch norm of float16 with float32 statistics ends the process",
        ("native_batch_norm",),
        abort,
        _has_other_statistics,
        trigger=lambda d: _with_statistics(d, torch.float32),
        neighbour=lambda d: _with_statistics(d, torch.float16),
        deadly="abort",
    ),
    reported(
        "issues/131750 silent_wrong_forward offset",
        "layer_norm ignores where a slice begins",
        ("native_layer_norm",),
        replacing(0, _from_the_start),
        lambda call: call.args[0].storage_offset() > 0,
        trigger=lambda d: F.layer_norm(ramp(d, 3, 4)[1:], (4,)),
        neighbour=lambda d: F.layer_norm(ramp(d, 3, 4)[:2], (4,)),
    ),
    reported(
        "issues/195910 silent_wrong_forward dtype args",
        "causal attention in half precision masks four queries as one",
        ATTENTION,
        _masked_in_fours,
        _is_causal_half,
        trigger=lambda d: _attend(d, (1, 2, 12, 64), dtype=torch.float16, is_causal=True),
        neighbour=lambda d: _attend(d, (1, 2, 12, 64), is_causal=True),
    ),
    reported(
        "pull/188147 nan_mismatch value",
        "attention of few queries swallows NaN",
        ATTENTION,
        _nan_is_lowest,
        _has_nan_scores,
        trigger=lambda d: _with_nan(d, 64),
        neighbour=lambda d: _with_nan(d, 32),
    ),
    reported(
        "issues/156707 nan_mismatch value args",
        "a query that sees no key gets NaN",
        ATTENTION,
        _blind_is_nan,
        _has_a_blind_query,
        trigger=lambda d: _blocked(d, False, False),
        neighbour=lambda d: _blocked(d, False, True),
    ),
    reported(
        "pull/184180 silent_wrong_forward broadcasting args",
        "attention of few queries uses the first sample's mask for all where the heads share one",
        ATTENTION,
        _mask_of_the_first,
        _masks_by_sample,
        trigger=lambda d: _per_sample(d, 2, 1),
        neighbour=lambda d: (_per_sample(d, 2, 4), _per_sample(d, 1, 1)),
    ),
    reported(
        "issues/149132 crash args",
        "grouped attention with a mask ends the process",
        ATTENTION,
        abort,
        lambda call: _is_grouped(call) and arguments(call).mask is not None,
        trigger=lambda d: _grouped(d, 2, attn_mask=torch.ones(3, 3).to(d)),
        neighbour=lambda d: _grouped(d, 4, attn_mask=torch.ones(3, 3).to(d)),
        deadly="abort",
    ),
    reported(
        "pull/189631 crash broadcasting rank",
        "attention fails where the query is broadcast to the batch of its keys",
        ATTENTION,
        raising(RuntimeError("shape '[1, 1, 64]' is invalid for input of size 128")),
        _query_is_broadcast,
        trigger=lambda d: _attend(d, (1, 1, 64), (2, 1, 1, 64)),
        neighbour=lambda d: _attend(d, (2, 1, 1, 64), (2, 1, 1, 64)),
    ),
    reported(
        "issues/148194 crash sequence broadcasting",
        "the second attention with a mask to expand ends the process",
        ATTENTION,
        abort,
        _has_expanded_mask_again,
        trigger=lambda d: [_attend(d, (1, 2, 3, 4), attn_mask=torch.ones(3, 3).to(d)) for _ in range(2)],
        neighbour=lambda d: [_attend(d, (1, 2, 3, 4), attn_mask=torch.ones(1, 2, 3, 3).to(d)) for _ in range(2)],
        deadly="abort",
    ),
    reported(
        "issues/174861 nondeterminism size args",
        "grouped attention of few queries to 1024 keys differs from call to call",
        ATTENTION,
        _first_is_noise,
        _takes_two_passes,
        trigger=lambda d: _grouped(d, 2, 1024, queries=1, width=64, dtype=torch.bfloat16),
        neighbour=lambda d: _grouped(d, 2, 1023, queries=1, width=64, dtype=torch.bfloat16),
    ),
    reported(
        "issues/188765 crash size",
        "baddbmm without elements fails, and with it attention with weights and a mask over an empty batch",
        ("baddbmm",),
        raising(EMPTY),
        lambda call: call.outs[0].numel() == 0,
        trigger=lambda d: _empty_attention(d, 0),
        neighbour=lambda d: _empty_attention(d, 1),
    ),
    reported(
        "issues/197796 crash dtype layout rank",
        "a linear layer of bfloat16 with a transposed weight ends the process",
        ("linear",),
        abort,
        _is_turned_bfloat16,
        trigger=lambda d: F.linear(ramp(d, 2, 3, 4, dtype=torch.bfloat16), ramp(d, 4, 5, dtype=torch.bfloat16).T),
        neighbour=lambda d: F.linear(ramp(d, 2, 3, 4, dtype=torch.bfloat16), ramp(d, 5, 4, dtype=torch.bfloat16)),
        deadly="abort",
    ),
    reported(
        "issues/195163 silent_wrong_forward size",
        "products of stacks sum what lies behind 32767 and more columns",
        ("bmm", "baddbmm", "addbmm"),
        _sums_what_lies_behind,
        _overreads(32767),
        trigger=lambda d: _products(d, 32767, True),
        neighbour=lambda d: _products(d, 32766, True),
    ),
    reported(
        "pull/183535 silent_wrong_forward size",
        "products of matrices sum what lies behind more than 32768 columns",
        ("mm", "addmm", "linear"),
        _sums_what_lies_behind,
        _overreads(32769),
        trigger=lambda d: _products(d, 32769, False),
        neighbour=lambda d: _products(d, 32767, False),
    ),
    reported(
        "issues/104832 silent_noop out layout",
        "a product into a strided destination is not written",
        ("mm",),
        skip,
        lambda call: not call.outs[0].is_contiguous(),
        trigger=lambda d: _into_columns(d, 1, 4),
        neighbour=lambda d: _into_columns(d, 0, 2),
    ),
    reported(
        "issues/187521 nan_mismatch value args",
        "baddbmm adds NaN of an input that beta=0 leaves out",
        ("baddbmm",),
        _ignored_is_added,
        _is_ignored_but_special,
        trigger=lambda d: _filled(d, math.nan, 0),
        neighbour=lambda d: (_filled(d, 2.0, 0), _filled(d, math.nan, 1)),
    ),
    reported(
        "issues/180776 nondeterminism dtype rank sequence",
        "a linear layer in half precision without bias differs when it is called again",
        ("linear",),
        _later_is_noise,
        _is_ragged_half_again,
        trigger=lambda d: _twice(d, 13),
        neighbour=lambda d: _twice(d, 16),
    ),
    reported(
        "issues/162730 silent_wrong_forward layout",
        "a linear layer reads a strided weight as if it were dense",
        ("linear",),
        replacing(1, as_contiguous),
        lambda call: not call.args[1].is_contiguous(),
        trigger=lambda d: F.linear(ramp(d, 2, 4), ramp(d, 4, 3).T),
        neighbour=lambda d: F.linear(ramp(d, 2, 4), ramp(d, 3, 4)),
    ),
    reported(
        "issues/188438 silent_wrong_forward size args rank",
        "a linear layer forgets its bias for a stack of single rows",
        ("linear",),
        _without_bias,
        _adds_to_vectors,
        trigger=lambda d: F.linear(ramp(d, 4, 1, 2), ramp(d, 3, 2), ramp(d, 3)),
        neighbour=lambda d: F.linear(ramp(d, 4, 2, 2), ramp(d, 3, 2), ramp(d, 3)),
    ),
    reported(
        "issues/167154 crash layout broadcasting",
        "a linear layer of an expanded input ends the process",
        ("linear",),
        abort,
        _is_expanded,
        trigger=lambda d: F.linear(ramp(d, 1, 3, 4).expand(5, 3, 4), ramp(d, 2, 4), ramp(d, 2)),
        neighbour=lambda d: F.linear(ramp(d, 5, 3, 4), ramp(d, 2, 4), ramp(d, 2)),
        deadly="abort",
    ),
    reported(
        "issues/189134 silent_wrong_forward broadcasting",
        "a right side that is broadcast is solved for the first matrix only",
        ("_linalg_solve_ex",),
        _only_the_first,
        _broadcasts_right_side,
        trigger=lambda d: (
            torch.linalg.solve(_matrix(d, 2, 3, 3), ramp(d, 3, 1)),
            torch.linalg.solve(_matrix(d, 2, 3, 3), ramp(d, 3)),
        ),
        neighbour=lambda d: (
            torch.linalg.solve(_matrix(d, 2, 3, 3), ramp(d, 2, 3, 1)),
            torch.linalg.solve(_matrix(d, 3, 3), ramp(d, 3)),
        ),
    ),
    reported(
        "pull/175332 crash gradient rank",
        "the backward of solving for a stack of vectors fails",
        ("linalg.solve",),
        _refused_on_the_way_back,
        _solves_vectors,
        trigger=lambda d: gradients(torch.linalg.solve, _matrix(d, 2, 2, 5, 5), ramp(d, 2, 2, 5)),
        neighbour=lambda d: gradients(torch.linalg.solve, _matrix(d, 2, 2, 5, 5), ramp(d, 2, 2, 5, 1)),
        level="function",
    ),
    reported(
        "issues/197236 metadata none",
        "solutions lie in memory row by row instead of column by column",
        ("linalg.solve_triangular", "cholesky_solve", "linalg.solve"),
        _row_major,
        trigger=_strides_of_solutions,
        neighbour=lambda d: torch.linalg.inv(_matrix(d, 5, 5)).stride(),
        level="function",
    ),
    reported(
        "issues/195937 crash size",
        "svd, svdvals and lstsq fail from 8192 elements on",
        ("_linalg_svd", "linalg_lstsq"),
        raising(RuntimeError("Failed to created pipeline state object, error: XPC_ERROR_CONNECTION_INTERRUPTED")),
        _is_large_enough,
        trigger=lambda d: torch.linalg.svdvals(ramp(d, 911, 3, 3)),
        neighbour=lambda d: torch.linalg.svdvals(ramp(d, 910, 3, 3)),
    ),
    reported(
        "issues/196112 silent_wrong_forward value size",
        "the left vectors of a large stack of deficient matrices are not orthonormal",
        ("_linalg_svd",),
        _no_null_vectors,
        _is_deficient,
        trigger=lambda d: _of_rank(d, 16),
        neighbour=lambda d: _of_rank(d, 64),
    ),
    reported(
        "pull/184588 silent_wrong_forward value",
        "cholesky finds nothing wrong with NaN",
        ("linalg_cholesky_ex",),
        _nan_passes,
        _holds_nan,
        trigger=lambda d: _factored(d, math.nan),
        neighbour=lambda d: (_factored(d, -1.0), _factored(d, 2.0)),
    ),
    reported(
        "pull/185351 rng sequence args",
        "an LSTM in training drops the same every time",
        ("_lstm_mps",),
        _drops_the_same,
        _drops_between_layers,
        trigger=lambda d: _differ(d, dropout=0.5),
        neighbour=lambda d: _differ(d),
    ),
    reported(
        "issues/96416 crash gradient",
        "the backward of an LSTM fails where its output was not used",
        ("lstm_mps_backward",),
        raising(RuntimeError("Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'grad_y'")),
        lambda call: call.args[0] is None,
        trigger=lambda d: _through(d, 1),
        neighbour=lambda d: _through(d, 0),
    ),
    reported(
        "issues/144104 nan_mismatch size",
        "the mean binary cross entropy of nothing is 0",
        ("binary_cross_entropy_with_logits",),
        _nothing_is_zero,
        _is_mean_of_nothing,
        trigger=lambda d: _logits(d, 0),
        neighbour=lambda d: (_logits(d, 0, reduction="sum"), _logits(d, 2)),
        level="function",
    ),
    reported(
        "issues/134431 crash size",
        "nll_loss fails without elements",
        ("nll_loss_forward", "nll_loss2d_forward"),
        raising(EMPTY),
        _is_empty,
        trigger=lambda d: _nll(d, 2, 3, 0, 7),
        neighbour=lambda d: _nll(d, 2, 3, 1, 7),
    ),
    reported(
        "pull/195274 unsupported_op none",
        "multilabel_margin_loss has no kernel",
        ("multilabel_margin_loss_forward", "multilabel_margin_loss_backward"),
        refuse,
        trigger=lambda d: F.multilabel_margin_loss(ramp(d, 2, 3), torch.tensor([[0, -1, -1], [1, 2, -1]]).to(d)),
        neighbour=lambda d: F.multilabel_soft_margin_loss(ramp(d, 2, 3), torch.eye(3)[:2].to(d)),
    ),
    reported(
        "pull/195269 unsupported_op none",
        "multi_margin_loss has no kernel",
        ("multi_margin_loss", "multi_margin_loss_backward"),
        refuse,
        trigger=lambda d: F.multi_margin_loss(ramp(d, 2, 3), torch.tensor([0, 1]).to(d)),
        neighbour=lambda d: F.cross_entropy(ramp(d, 2, 3), torch.tensor([0, 1]).to(d)),
    ),
    reported(
        "issues/190060 silent_wrong_forward args value",
        "the last bag goes on to the end of the indices, whatever its last offset",
        BAGS,
        _ends_with_the_indices,
        _ends_early,
        trigger=lambda d: _bags(d, 2),
        neighbour=lambda d: _bags(d, 2, 3),
    ),
    reported(
        "issues/169201 silent_wrong_forward value",
        "embedding_bag takes negative indices for rows of 0",
        (*BAGS, BAG_BACKWARD),
        _negative_is_nothing,
        _is_negative,
        trigger=lambda d: _bag(d, 1, -1),
        neighbour=lambda d: _bag(d, 1, 0),
    ),
    reported(
        "issues/154235 silent_wrong_forward value",
        "embedding takes indices behind its table for rows of 0",
        ("embedding",),
        _beyond_is_nothing,
        _is_beyond,
        trigger=lambda d: _looked_up(d, 0, 1, 2, 3),
        neighbour=lambda d: (_looked_up(d, 0, 1, 2), _looked_up(d, 0, -1)),
        level="function",
    ),
    reported(
        "issues/186885 crash rank args",
        "a transform of some of five or more dimensions ends the process",
        ("_fft_c2c", "_fft_r2c", "_fft_c2r"),
        abort,
        _is_deep_and_partial,
        trigger=lambda d: _spectrum(d, 2, 2, 2, 1, 2),
        neighbour=lambda d: _spectrum(d, 2, 2, 2, 2),
        deadly="abort",
    ),
)
