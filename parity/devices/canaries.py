"""Calls whose answers are known: what a device must compute rightly before anything is compared on it.

Operands are whole numbers from -4 to 4, so that sums of products are exact in float32 in whatever order, and in any reduced
precision of products, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.devices.base import Device

Place = Callable[[Tensor], Tensor]  # from the CPU to where it is to run: float64 for the truth, or an upload
Canary = Callable[[Place], Tensor]
DEEP = 40_000  # terms of a sum: more than a 16-bit number counts
# Largest absolute error of a canary; the others are exact. A convolution may go by way of a transform with fractions, and
# attention multiplies its weights in the precision that is set for products.
BOUNDS = {"softmax": 1e-5, "layer_norm": 1e-5, "conv2d": 1e-2, "attention": 1e-2, "attention, causal": 1e-2}


def said(e: BaseException) -> str:
    """An exception in one line."""
    try:
        text = str(e)
    except Exception as broken:  # str() of a device's exception may fail, too
        text = f"(its message cannot be made: {type(broken).__name__})"
    return f"{type(e).__name__}: {(text.splitlines() or [''])[0][:200]}"


def _integers(*shape: int) -> Tensor:
    """Whole numbers from -4 to 4, no two neighbours alike, as float32."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + 3) % 9 - 4).to(torch.float32).reshape(shape)


def _strided_copy(at: Place) -> Tensor:
    return at(_integers(6, 8)).t()[1::2, 1:].clone()


def _into_stepped(at: Place) -> Tensor:
    base = at(torch.zeros(6, 8))
    base[1:, ::2].copy_(at(_integers(4, 5)).t())
    base[0, ::3].add_(at(_integers(3)))
    return base


def _index_put(at: Place) -> Tensor:
    """Added where an index stands several times, and stored where each stands once."""
    twice = at(torch.tensor([3, 0, 3, 5, 0, 3])), at(_integers(6, 4))
    once = at(torch.tensor([4, 1])), at(_integers(2, 4))
    base = at(_integers(6, 4)).index_put(twice[:1], twice[1], accumulate=True)
    return base.index_put_(once[:1], once[1])


def _attention(at: Place, causal: bool) -> Tensor:
    q, k, v = (at(_integers(2, 2, n, 8)) for n in (9, 9, 9))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


CANARIES: dict[str, Canary] = {
    "copy": lambda at: at(_integers(5, 7)) + 0,
    "copy of a strided view": _strided_copy,
    "write into a strided view": _into_stepped,
    "index_put, duplicates": _index_put,
    "sum": lambda at: at(_integers(33, 65)).sum(1),
    "cumsum": lambda at: at(_integers(5, 40)).cumsum(-1),
    "matmul": lambda at: at(_integers(17, 33)) @ at(_integers(33, 9)),
    "matmul, transposed": lambda at: at(_integers(33, 17)).t() @ at(_integers(9, 33)).t(),
    "matmul, batched": lambda at: at(_integers(3, 5, 7)) @ at(_integers(3, 7, 4)),
    f"matmul, K = {DEEP}": lambda at: at(_integers(3, DEEP)) @ at(_integers(DEEP, 4)),
    "linear, 2-D": lambda at: F.linear(at(_integers(6, 16)), at(_integers(5, 16))),
    "linear, 2-D, bias": lambda at: F.linear(at(_integers(6, 16)), at(_integers(5, 16)), at(_integers(5))),
    "linear, 3-D": lambda at: F.linear(at(_integers(2, 6, 16)), at(_integers(5, 16))),
    "linear, 3-D, bias": lambda at: F.linear(at(_integers(2, 6, 16)), at(_integers(5, 16)), at(_integers(5))),
    "linear, 1-D input": lambda at: F.linear(at(_integers(16)), at(_integers(5, 16)), at(_integers(5))),
    "conv2d": lambda at: F.conv2d(at(_integers(2, 3, 8, 8)), at(_integers(4, 3, 3, 3)), at(_integers(4)), padding=1),
    "softmax": lambda at: at(_integers(5, 33)).softmax(-1),
    "layer_norm": lambda at: F.layer_norm(at(_integers(5, 33)), (33,), at(_integers(33)), at(_integers(33) + 1)),
    "attention": lambda at: _attention(at, False),
    "attention, causal": lambda at: _attention(at, True),
}


def _exactly(t: Tensor) -> Tensor:
    return t.to(torch.float64) if t.is_floating_point() else t


def problem(device: Device, name: str, run: Canary) -> str | None:
    """What is wrong with this one, or None. The answer is computed in float64 on the CPU from the same whole numbers."""
    truth = run(_exactly)
    try:
        answer = device.download(run(device.upload))
        device.synchronize()
    except Exception as e:
        return f"{name}: raised {said(e)}"
    if answer.shape != truth.shape:
        return f"{name}: shape {list(answer.shape)}, should be {list(truth.shape)}"
    off = (answer.to(torch.float64) - truth).abs()
    bad = ~(off <= BOUNDS.get(name, 0.0))  # NaN is bad
    if not bad.any():
        return None
    worst = int(torch.where(off.isnan(), torch.inf, off).argmax())
    got, right = answer.flatten()[worst].item(), truth.flatten()[worst].item()
    return f"{name}: {int(bad.sum())} of {bad.numel()} elements are wrong, e.g. {got:g} for {right:g}"
