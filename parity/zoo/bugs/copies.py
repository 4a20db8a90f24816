"""Bugs of copies: casts, uploads and downloads, fills, assignments to parts of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import as_contiguous, has_gaps, skip, write_contiguous
from parity.zoo.effects import ramp, reported

# What makes the host wait until the device has done everything.
SYNCHRONISING = ("upload", "download", "_local_scalar_dense", "nonzero")

# ------------------------------------------------------------------------------------------------------- casts


def _is_cast_from_float(call: Call, dtype: torch.dtype) -> bool:
    return call.args[0].is_floating_point() and call.outs[0].dtype == dtype


def _negative_broadcast_to_uint8(call: Call) -> bool:
    x, out = call.args[0], call.outs[0]
    broadcast = out.numel() > 1 and (x.shape != out.shape or any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride())))
    return broadcast and _is_cast_from_float(call, torch.uint8) and bool((x <= -1).any())


def _clamped(low: int, high: int | None) -> Any:
    def effect(call: Call) -> Any:
        call.args[0] = call.args[0].clamp(low, high)
        return call.run()

    return effect


def _reinterpret(call: Call) -> Tensor:
    """The bytes of the source, element after element, taken for elements of the other dtype; zeros where they run out."""
    x, out = call.args[0], call.outs[0]
    source = x.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    found = torch.zeros(x.numel() * out.element_size(), dtype=torch.uint8)
    found[: source.numel()] = source[: found.numel()]
    elements = found.bool() if out.dtype == torch.bool else found.view(out.dtype)
    return elements.reshape(x.shape).expand(out.shape)


def _four_bytes(call: Call) -> float:
    """The half and what lies behind it in memory, as one float32."""
    t = call.args[0]
    at = call.memory(t)[t.storage_offset() :][:2]
    low, high = torch.cat((at, at.new_zeros(1)))[:2].view(torch.int16).tolist()
    return torch.tensor((high << 16) | (low & 0xFFFF), dtype=torch.int32).view(torch.float32).item()


# ------------------------------------------------------------------------------------------------------- transfers


def _ignore_offset(call: Call) -> None:
    out = call.outs[0]
    call.memory(out).as_strided(out.shape, out.stride(), 0).copy_(call.args[0])


def _in_memory_order(call: Call) -> Any:
    """What lies in the source's memory from its first element on, one after the other."""
    call.args[0] = as_contiguous(call, call.args[0])
    return call.run()


def _is_broadcast_from_host(call: Call) -> bool:
    """A CPU tensor without dimensions is copied into, or assigned to a part of, a device tensor of several elements."""
    x, value = call.args[0], call.args[-1]
    if not (isinstance(value, Tensor) and value.is_cpu and value.dim() == 0 and not x.is_cpu):
        return False
    return bool((x[call.args[1]] if call.op.endswith("__setitem__") else x).numel() > 1)


# ------------------------------------------------------------------------------------------------------- fills and slices


def _bytes_off_word(call: Call) -> bool:
    out = call.outs[0]
    return out.element_size() == 1 and out.is_contiguous() and out.storage_offset() % 4 != 0 and out.numel() > 0


def _fill_from_word(call: Call) -> None:
    """The start is moved down to a multiple of four bytes, the length stays."""
    out = call.outs[0]
    start = out.storage_offset() // 4 * 4
    call.memory(out)[start : start + out.numel()] = call.args[1]


def _write_slice(call: Call) -> None:
    """Stands for fill_(value) and copy_(source)."""
    value = call.args[-1]
    write_contiguous(call, value if isinstance(value, Tensor) else torch.tensor(value))


def _scalar_into_view(call: Call) -> bool:
    """One number into a part of a tensor."""
    out, value = call.outs[0], call.args[-1]
    single = not isinstance(value, Tensor) or call.memory(value).numel() == 1
    return single and 0 < out.numel() < call.memory(out).numel()


def _unsynchronised(call: Call) -> bool:
    """Whether an earlier number is still on its way. Remembers the destination of this one."""
    turn = call.state["turn"] = call.state.get("turn", 0) + 1
    under_way = 0
    for name in reversed(call.history):
        if name in SYNCHRONISING:
            break
        under_way += name.partition(".")[0] in ("copy_", "fill_")
    waiting = [(t, out) for t, out in call.state.get("waiting", ()) if t >= turn - under_way]
    call.state["earlier"] = [out for _, out in waiting if out.dtype == call.outs[0].dtype]
    if _scalar_into_view(call):
        call.state["waiting"] = [*waiting, (turn, call.outs[0])]
        return bool(call.state["earlier"])
    call.state["waiting"] = waiting
    return False


def _write_into_all(call: Call) -> Any:
    """The number lands in the destinations of those before it too."""
    result = call.run()
    for out in call.state["earlier"]:
        out.fill_(result.reshape(-1)[0])
    return result


def _set(x: Tensor, *pairs: tuple[Any, Any]) -> Tensor:
    """`x` after one assignment for each (index, value)."""
    for index, value in pairs:
        x[index] = value
    return x


def _set_slowly(d: str) -> Tensor:
    x = _set(torch.zeros(3, device=d), (1, 1.0))
    x[1].item()
    return _set(x, (2, 3.0))


def _filled(x: Tensor, part: Any, value: Any) -> Tensor:
    x[part].fill_(value)
    return x


BUGS = (
    reported(
        "issues/169058 silent_wrong_forward dtype value",
        "floats outside the range of int8 become its ends where the CPU wraps round",
        ("copy_",), _clamped(-128, 127),
        lambda call: _is_cast_from_float(call, torch.int8) and bool((call.args[0].trunc().abs() > 127).any()),
        trigger=lambda d: torch.tensor([128.0, -3.0]).to(d).to(torch.int8),
        neighbour=lambda d: torch.tensor([127.0, -3.0]).to(d).to(torch.int8),
        rows="to copy_",
    ),
    reported(
        "pull/189038 silent_wrong_forward dtype value broadcasting",
        "a negative float that is copied into several elements of uint8 becomes 0",
        ("copy_",), _clamped(0, None), _negative_broadcast_to_uint8,
        trigger=lambda d: torch.zeros(3, dtype=torch.uint8, device=d).copy_(torch.tensor(-1.0).to(d)),
        neighbour=lambda d: torch.zeros(1, dtype=torch.uint8, device=d).copy_(torch.tensor(-1.0).to(d)),
        rows="copy_ setitem",
    ),
    reported(
        "issues/78091 silent_wrong_forward dtype", "a cast on the device keeps the bits instead of the value",
        ("copy_",), _reinterpret, lambda call: call.args[0].dtype != call.outs[0].dtype,
        trigger=lambda d: [torch.tensor([42.8]).to(d).long(), torch.tensor([True]).to(d).float()],
        neighbour=lambda d: torch.tensor([42.8]).to(d).float().clone(),
        rows="to copy_",
    ),
    reported(
        "issues/78168 silent_wrong_forward dtype", "item() of a half reads four bytes",
        ("_local_scalar_dense",), _four_bytes, lambda call: call.args[0].dtype == torch.float16,
        trigger=lambda d: torch.tensor(0.4496, dtype=torch.float16).to(d).item(),
        neighbour=lambda d: torch.tensor(0.4496).to(d).item(),
        rows="item",
    ),
    reported(
        "issues/108978 silent_wrong_forward offset inplace",
        "a download into a part of a CPU tensor lands at the beginning of its memory",
        ("download",), _ignore_offset, lambda call: call.outs[0].storage_offset() > 0,
        trigger=lambda d: _set(torch.zeros(3, 4), ((1, slice(2, None)), ramp(d, 2))),
        neighbour=lambda d: _set(torch.zeros(3, 4), ((0, slice(None, 2)), ramp(d, 2))),
        rows="copy_ setitem", level="transfer",
    ),
    reported(
        "issues/79383 silent_wrong_forward layout",
        "the upload of a strided CPU tensor takes its elements in the order of memory",
        ("upload",), _in_memory_order, lambda call: not call.args[0].is_contiguous(),
        trigger=lambda d: ramp("cpu", 3, 4).t()[None].to(d),
        neighbour=lambda d: ramp("cpu", 3, 4)[None].to(d),
        rows="to copy_", level="transfer",
    ),
    reported(
        "pull/86056 silent_wrong_forward layout",
        "a tensor made from a slice of host memory gets what lies between its elements",
        ("upload",), _in_memory_order, lambda call: has_gaps(call.args[0]),
        trigger=lambda d: torch.as_tensor(torch.arange(9).reshape(3, 3)[:, :2], device=d),
        neighbour=lambda d: torch.as_tensor(torch.arange(9).reshape(3, 3)[:2], device=d),
        rows="to copy_", level="transfer",
    ),
    reported(
        "issues/86185 silent_noop broadcasting inplace rank",
        "copying a CPU tensor without dimensions into several elements does nothing",
        ("copy_", "__setitem__"), skip, _is_broadcast_from_host,
        trigger=lambda d: [ramp(d, 3).copy_(torch.tensor(4.0)), _set(ramp(d, 3), (slice(None), torch.tensor(4.0)))],
        neighbour=lambda d: [ramp(d, 3).copy_(torch.tensor([4.0])), _set(ramp(d, 3), (1, torch.tensor(4.0)))],
        rows="copy_ setitem", level="function",
    ),
    reported(
        "issues/183631 silent_wrong_forward dtype offset inplace", "fill_ of bytes begins at a multiple of four",
        ("fill_",), _fill_from_word, _bytes_off_word,
        trigger=lambda d: _filled(torch.zeros(13, dtype=torch.bool, device=d), slice(1, None), True),
        neighbour=lambda d: _filled(torch.zeros(13, dtype=torch.bool, device=d), slice(4, None), True),
        rows="fill_",
    ),
    reported(
        "issues/78886 silent_wrong_forward layout inplace",
        "writing into a stepped or column slice fills the memory from its first element on",
        ("fill_", "copy_"), _write_slice, lambda call: has_gaps(call.outs[0]),
        trigger=lambda d: [
            _filled(torch.zeros(6, device=d), slice(None, None, 2), 1.0),
            _set(torch.zeros(3, 4, device=d), ((slice(None), 0), 7.0)),
            _set(torch.zeros(3, 4, device=d), ((slice(None), slice(1, 3)), ramp(d, 3, 2))),
        ],
        neighbour=lambda d: [
            _filled(torch.zeros(6, device=d), slice(2, None), 1.0),
            _set(torch.zeros(3, 4, device=d), (1, 7.0)),
            _set(torch.zeros(3, 4, device=d).t(), (slice(None), ramp(d, 4, 3))),
        ],
        rows="fill_ copy_ setitem",
    ),
    reported(
        "issues/122016 nondeterminism sequence offset inplace",
        "of two numbers assigned to elements in a row, the second lands in both",
        ("copy_", "fill_"), _write_into_all, _unsynchronised,
        trigger=lambda d: _set(torch.zeros(3, device=d), (1, 1.0), (2, 3.0)),
        neighbour=_set_slowly,
        rows="setitem copy_ fill_",
    ),
)  # fmt: skip
