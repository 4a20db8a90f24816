"""Bugs past a border of size (2**22 to 2**32) that no test reaches; here the border is LIMIT. Not part of the score's 165.

Wherever an index is too narrow for a large tensor it starts again at 0 (`wrapped`), stops there, or ends the process.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parity.devices import Call
from parity.devices.sim.effects import raising, wrapped
from parity.devices.sim.faults import abort
from parity.zoo.bugs.attention import KERNEL, arguments
from parity.zoo.bugs.attention import ROWS as ATTENTION_ROWS
from parity.zoo.effects import argument, gradients, ramp, reported

LIMIT = 256  # elements (2**31 or 2**32 of them in the reports), or the size of a dimension
BYTES = 4 * LIMIT  # 2**31 or 2**32 bytes in the reports
POOLS = ("max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "avg_pool3d", "adaptive_max_pool2d")
ELEMENTS = "2**32 elements -> LIMIT = 256 elements"
HALF_AS_MANY = "2**31 elements -> LIMIT = 256 elements"


def _is_large(call: Call) -> bool:
    return bool(call.args[0].numel() > LIMIT)


def _has_large_result(call: Call) -> bool:
    return any(t.numel() > LIMIT for t in call.outs)


def _first_operand_wraps(call: Call) -> Any:
    call.args[0] = wrapped(call.args[0], LIMIT)
    return call.run()


# ------------------------------------------------------------------------------------------------------- reading, writing


def _rows_past_the_border(call: Call) -> Any:
    """Rows that begin past the border are zero."""
    source, index = call.args[0], call.args[2]
    rows = call.run()
    past = index * math.prod(source.shape[1:]) >= LIMIT
    return rows.masked_fill(past.reshape(-1, *(1 for _ in rows.shape[1:])), 0)


def _unwritten_past_the_border(call: Call) -> Any:
    result = call.run().clone(memory_format=torch.contiguous_format)
    result.view(-1)[LIMIT:] = 0
    return result


def _blind_past_the_border(call: Call) -> Any:
    """The reduction finds nothing there: no extreme, nothing true, nothing false."""
    x = call.args[0].clone(memory_format=torch.contiguous_format)
    if call.op.startswith("arg"):
        info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        x.view(-1)[LIMIT:] = info.min if "max" in call.op else info.max
    else:
        x.view(-1)[LIMIT:] = "all" in call.op.partition(".")[0]
    call.args[0] = x
    return call.run()


def _columns_wrap(call: Call) -> Any:
    """A column's place, counted within its sample, starts again at 0."""
    columns = call.args[0]
    place = torch.arange(columns.shape[-2] * columns.shape[-1]) % LIMIT
    call.args[0] = columns.flatten(-2)[..., place].reshape(columns.shape)
    return call.run()


def _pool_wraps(call: Call) -> Any:
    if "backward" in call.op:
        return wrapped(call.run(), LIMIT)
    return _first_operand_wraps(call)


def _some_lost(call: Call) -> Any:
    """Once in a thousand calls the last place is lost. The stream of chances is the device's own."""
    chance = call.state.setdefault("chance", random.Random(0))
    found = call.run()
    return found[:-1] if chance.random() < 1e-3 else found


def _counts(device: str, size: int) -> list[int]:
    """How many elements of a mask are found, in 2000 tries: each number that came up."""
    mask = ramp(device, size) > 0
    return sorted({len(mask.nonzero()) for _ in range(2000)})


# --------------------------------------------------------------------------------------------------------------- products


def _large_product(call: Call) -> bool:
    a, b = call.args[:2]
    strided = not (a.is_contiguous() and b.is_contiguous())
    return (a.shape[0] * a.shape[1] * b.shape[2] > LIMIT and strided) or max(a.numel(), b.numel()) > LIMIT


def _batches_wrap(call: Call) -> Any:
    """Batches of the result that begin past the border are those found from 0 again; large operands are read so."""
    a, b = call.args[:2]
    size = max(a.shape[1] * b.shape[2], 1)
    call.args[:2] = [wrapped(t, LIMIT) if t.numel() > LIMIT else t for t in (a, b)]
    result = call.run()
    if a.is_contiguous() and b.is_contiguous():
        return result
    return result[torch.arange(a.shape[0]) * size % LIMIT // size]


def _product_numel(call: Call) -> int:
    a, b = argument(call, 0, "input"), argument(call, 1, "mat2")
    return int(a.shape[0] * a.shape[1] * b.shape[2])


def _incoming_gradient_wraps(call: Call) -> Any:
    result: Any = call.run()  # register_hook is untyped in torch
    if result.requires_grad:
        result.register_hook(lambda g: wrapped(g, LIMIT))
    return result


def _is_multiple_of_the_border(call: Call) -> bool:
    size = call.outs[0].numel() * call.outs[0].element_size()
    return size >= BYTES and size % BYTES == 0


def _batched(device: str, batch: int, n: int = 4, k: int = 2) -> tuple[Tensor, Tensor]:
    """Dense operands of bmm, with a result of 16 elements per batch where n is 4."""
    return ramp(device, batch, n, k), ramp(device, batch, k, n)


# -------------------------------------------------------------------------------------------------------------- attention


def _score_count(call: Call) -> int:
    a = arguments(call)
    return math.prod(a.query.shape[:-1]) * a.key.shape[-2]


def _query_rows_wrap(call: Call) -> Any:
    """Queries whose scores lie past the border get what those find that are there when it starts again at 0."""
    keys = arguments(call).key.shape[-2]
    result, *rest = call.run()
    within = max(LIMIT // keys, 1)
    rows = result.reshape(-1, result.shape[-1])
    return (rows[torch.arange(rows.shape[0]) % within].reshape(result.shape), *rest)


def _attend(device: str, queries: int, keys: int) -> Tensor:
    key = ramp(device, 1, 2, keys, 4)
    return F.scaled_dot_product_attention(ramp(device, 1, 2, queries, 4), key, key * 2)


BEYOND = (
    reported(
        "issues/143477 crash size", "masked_fill of a large tensor ends the process",
        ("masked_fill",), abort, lambda call: call.args[0].numel() * call.args[0].element_size() > BYTES,
        trigger=lambda d: ramp(d, LIMIT + 1).masked_fill(ramp(d, LIMIT + 1) > 0, 1.0),
        neighbour=lambda d: ramp(d, LIMIT).masked_fill(ramp(d, LIMIT) > 0, 1.0),
        rows="masked_fill", scaled="2**32 bytes -> BYTES = 1024 bytes",
    ),
    reported(
        "issues/149261 crash size", "attention with large scores ends the process",
        KERNEL, abort, lambda call: _score_count(call) * arguments(call).query.element_size() > BYTES,
        trigger=lambda d: _attend(d, 9, 16),
        neighbour=lambda d: _attend(d, 8, 16),
        rows=ATTENTION_ROWS, scaled="2**32 bytes -> BYTES = 1024 bytes",
    ),
    reported(
        "pull/179592 silent_wrong_forward size", "attention is wrong where the scores lie past the border",
        KERNEL, _query_rows_wrap, lambda call: _score_count(call) > LIMIT,
        trigger=lambda d: _attend(d, 9, 16),
        neighbour=lambda d: _attend(d, 8, 16),
        rows=ATTENTION_ROWS, scaled=ELEMENTS,
    ),
    reported(
        "issues/153560 silent_wrong_forward size",
        "indexing a large tensor with a tensor gathers rows from its beginning",
        ("index",), _first_operand_wraps, _is_large,
        trigger=lambda d: ramp(d, 5, 64)[torch.tensor([0, 4], device=d)],
        neighbour=lambda d: (ramp(d, 4, 64)[torch.tensor([0, 3], device=d)], ramp(d, 5, 64)[4]),
        rows="getitem_advanced", scaled=ELEMENTS,
    ),
    reported(
        "issues/154828 crash size", "arithmetic refuses large tensors",
        ("add", "sub", "mul", "div"), raising(RuntimeError("Can't be indexed using 32-bit iterator")), _has_large_result,
        trigger=lambda d: ramp(d, LIMIT + 1) + 1,
        neighbour=lambda d: ramp(d, LIMIT) + 1,
        rows="add sub mul div", scaled=ELEMENTS,
    ),
    reported(
        "pull/158824 crash size", "a dimension beyond the range of an int ends the process",
        ("random_", "any"), abort, lambda call: any(size > LIMIT for size in call.args[0].shape),
        trigger=lambda d: (ramp(d, LIMIT + 1) > 0).any(),
        neighbour=lambda d: (ramp(d, 2, LIMIT) > 0).any(),
        rows="randint any", scaled="a dimension of 2**31 -> LIMIT = 256",
    ),
    reported(
        "issues/181867 nondeterminism size sequence", "now and then a mask selects one element too few",
        ("nonzero",), _some_lost, _is_large,
        trigger=lambda d: _counts(d, LIMIT + 1),
        neighbour=lambda d: _counts(d, LIMIT),
        rows="nonzero argwhere masked_select", scaled="2**22 elements -> LIMIT = 256 elements",
    ),
    reported(
        "issues/185663 silent_wrong_forward size", "fold reads the beginning again where there are many columns",
        ("col2im",), _columns_wrap, lambda call: call.args[0].shape[-2] * call.args[0].shape[-1] > LIMIT,
        trigger=lambda d: F.fold(ramp(d, 1, 4, 72), (9, 10), 2),
        neighbour=lambda d: F.fold(ramp(d, 2, 4, 64), (9, 9), 2),
        rows="fold unfold", scaled=ELEMENTS,
    ),
    reported(
        "issues/188756 silent_wrong_forward size", "rows of a large table that lie past the border come as zeros",
        ("index_select",), _rows_past_the_border, lambda call: call.args[1] in (0, -call.args[0].dim()) and _is_large(call),
        trigger=lambda d: F.embedding(torch.tensor([0, 4], device=d), ramp(d, 5, 64)),
        neighbour=lambda d: F.embedding(torch.tensor([0, 3], device=d), ramp(d, 4, 64)),
        rows="embedding index_select", scaled=HALF_AS_MANY,
    ),
    reported(
        "issues/189960 silent_wrong_forward size", "the end of a large concatenation stays unwritten",
        ("cat",), _unwritten_past_the_border, _has_large_result,
        trigger=lambda d: torch.cat((ramp(d, 8, 32), ramp(d, 8, 1)), 1),
        neighbour=lambda d: torch.cat((ramp(d, 8, 31), ramp(d, 8, 1)), 1),
        rows="cat stack hstack vstack dstack column_stack", scaled=HALF_AS_MANY,
    ),
    reported(
        "pull/194082 silent_wrong_forward size", "reductions do not look past the border",
        ("argmax", "argmin", "any", "all"), _blind_past_the_border, _is_large,
        trigger=lambda d: torch.arange(LIMIT + 1.0, device=d).argmax(),
        neighbour=lambda d: torch.arange(float(LIMIT), device=d).argmax(),
        rows="argmax argmin any all", scaled=ELEMENTS,
    ),
    reported(
        "pull/194460 silent_wrong_forward size backward", "pools of a large input read and write its beginning again",
        (*POOLS, *(f"{name}_backward" for name in POOLS)), _pool_wraps,
        lambda call: bool(call.args[1 if "backward" in call.op else 0].numel() > LIMIT),
        trigger=lambda d: F.max_pool2d(ramp(d, 1, 5, 8, 8), 2),
        neighbour=lambda d: F.max_pool2d(ramp(d, 1, 4, 8, 8), 2),
        rows="max_pool2d max_pool1d avg_pool2d avg_pool3d adaptive_max_pool2d adaptive_max_pool1d", scaled=HALF_AS_MANY,
    ),
    reported(
        "issues/197636 silent_wrong_forward size layout",
        "a batched product of strided matrices repeats its first batches past the border",
        ("bmm",), _batches_wrap, _large_product,
        trigger=lambda d: torch.bmm(*(t.mT for t in _batched(d, 17)[::-1])),
        neighbour=lambda d: torch.bmm(*_batched(d, 17)),
        rows="bmm matmul", scaled=ELEMENTS,
    ),
    reported(
        "issues/197636 silent_wrong_backward size backward",
        "the backward of a large batched product reads the beginning of its incoming gradient again",
        ("bmm",), _incoming_gradient_wraps,
        lambda call: _product_numel(call) > LIMIT and all(t.is_contiguous() for t in call.operands),
        trigger=lambda d: gradients(torch.bmm, *_batched(d, 17)),
        neighbour=lambda d: gradients(torch.bmm, *_batched(d, 16)),
        rows="bmm", level="function", scaled=ELEMENTS, name="pt-197636-b",
    ),
    reported(
        "issues/84039 crash size", "a batched product ends the process where its result is a multiple of the border",
        ("bmm",), abort, _is_multiple_of_the_border,
        trigger=lambda d: torch.bmm(*_batched(d, 16)),
        neighbour=lambda d: (torch.bmm(*_batched(d, 15)), torch.bmm(*_batched(d, 24))),
        rows="bmm matmul einsum", scaled="2**31 bytes -> BYTES = 1024 bytes",
    ),
)  # fmt: skip

_MODEL = "known as a failure of a whole model only; the operator is not named"
_COMPILED = "needs torch.compile for the device, which the simulated one does not have"
_RACE = "a race between the host and an asynchronous copy; the simulated device completes every call before it returns"
_WAIT = "synchronisation of a stream that the simulated device does not have"
_MEMORY = "shows in the driver's memory figures over many calls, which the simulated device does not have"
OUT_OF_REACH: dict[str, str] = {
    **dict.fromkeys(("actions-14380", "pt-141471", "pt-187280", "pt-89784"), _MODEL),
    **dict.fromkeys(("hf-43042", "pt-139550"), _RACE),
    **dict.fromkeys(("pt-141296", "pt-144634"), _WAIT),
    **dict.fromkeys(("pt-150454", "pt-150629", "pt-152205", "pt-169738", "pt-170360", "pt-191038", "pt-191976"), _COMPILED),
    **dict.fromkeys(("pt-181485", "pt-194459"), _MEMORY),
    "pt-100285": "needs several threads inside one kernel at once; the suite runs one case at a time",
    "pt-180744": "no border of size: needs training and then evaluation of one module, a sequence and not a single case",
    "pt-187265": "no border of size: needs autocast inside torch.func transforms",
    "pt-187327": "a collision of hashes that nobody has reproduced",
    "tv-9345": "an operator of torchvision",
    "wan-1777": "a custom operator of another package",
}
