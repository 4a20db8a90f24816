"""A fifth round of reported bugs, first half: elementwise functions, reductions, indexing, creation, random numbers, copies.

parity prove zoo --setup tests/zoo/fifth/a.py
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from parity.devices import Call
from parity.devices.sim.effects import has_gaps, is_permuted, skip, write_contiguous
from parity.devices.sim.faults import Effect, abort, fall_back, garbage, hang, refuse
from parity.zoo.bug import Bug
from parity.zoo.effects import argument, is_in_place, ramp, replace, reported, tried

EXACT = 2**24  # the integers that float32 holds without a gap
HALVES = (torch.float16, torch.bfloat16)
AXES = 4  # that some kernels of MPS can tell apart, from the last one on
SIMDGROUP, THREADGROUP = 32, 1024
NDARRAY_BYTES = 2**32
ZEROS_DRAWN = 3.3e-8  # of exponential numbers
NOT_ADDED = (
    "Expected supportedFloatingType(scalar_type) || scalar_type == kInt || scalar_type == kBool to be true, but got false."
)
EMPTY = "[srcBuf length] > 0 INTERNAL ASSERT FAILED. Placeholder tensor is empty!"

# ------------------------------------------------------------------------------------------------------- elementwise


def _is_integral(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _beyond_float32(t: Any) -> bool:
    t = torch.as_tensor(t)
    return bool(((t > EXACT) | (t < -EXACT)).any())


def _large_remainder(call: Call) -> bool:
    a, b = (torch.as_tensor(v) for v in call.args[:2])
    return _is_integral(a) and _is_integral(b) and (_beyond_float32(a) or _beyond_float32(b)) and bool((b != 0).all())


def _remainder_in_float32(call: Call) -> Tensor:
    a, b = (torch.as_tensor(v) for v in call.args[:2])
    dtype = torch.result_type(a, b)
    x, y = a.float(), b.float()
    return (x - (x / y).floor() * y).to(dtype)


def _power_of_complex_zero(call: Call) -> bool:
    x: Tensor = call.args[0]
    return x.is_complex() and bool((x == 0).any())


def _no_number_at_zero(call: Call) -> Tensor:
    zero = call.args[0] == 0
    result: Tensor = call.run()
    return torch.where(zero, torch.complex(torch.tensor(torch.nan), torch.tensor(torch.nan)).to(result.dtype), result)


def _large_integers(call: Call) -> bool:
    return _is_integral(call.args[0]) and _beyond_float32(call.args[0])


def _magnitude_in_float32(call: Call) -> Tensor:
    x: Tensor = call.args[0]
    least, size = torch.iinfo(x.dtype).min, x.float().abs()
    over = size >= -float(least)
    return torch.where(over, torch.tensor(least, dtype=x.dtype), size.masked_fill(over, 0).to(x.dtype))


def _squares_leave_float32(call: Call) -> Tensor:
    """Where the sum of the squares of both parts overflows, or is no normal number."""
    parts = torch.view_as_real(call.args[0].resolve_conj()).float()
    square = parts.square().sum(-1)
    finite = parts.isfinite().all(-1)
    return finite & (square.isinf() | ((square < torch.finfo(torch.float32).tiny) & (parts != 0).any(-1)))


def _is_extreme_complex(call: Call) -> bool:
    return bool(call.args[0].is_complex()) and bool(_squares_leave_float32(call).any())


def _root_of_squares(call: Call) -> Tensor:
    extreme = _squares_leave_float32(call)
    naive = torch.view_as_real(call.args[0].resolve_conj()).float().square().sum(-1).sqrt()
    result: Tensor = call.run()
    return torch.where(extreme, naive.to(result.dtype), result)


def _infinities_cut_away(call: Call) -> Tensor:
    x: Tensor = call.args[0]
    kept = torch.ones(x.shape, dtype=torch.bool).tril(call.argument("diagonal"))
    return ~kept & ~x.isfinite()


def _cuts_infinities_below(call: Call) -> bool:
    x: Tensor = call.args[0]
    return bool(x.is_floating_point()) and call.argument("diagonal") < 0 and bool(_infinities_cut_away(call).any())


def _multiplied_by_mask(call: Call) -> Tensor:
    cut = _infinities_cut_away(call)
    result: Tensor = call.run()
    return result.masked_fill(cut, torch.nan)


def _bounds(call: Call) -> tuple[Any, Any]:
    return argument(call, 1, "min"), argument(call, 2, "max")


def _bounds_look_alike(call: Call) -> bool:
    """Whether an earlier clamp had other bounds of the same six decimals. Remembers the first ones."""
    x, bounds = call.args[0], _bounds(call)
    printed = tuple(None if b is None else f"{float(b):.6f}" for b in bounds)
    first = call.state.setdefault((tuple(x.shape), x.dtype, printed), bounds)
    return bool(first != bounds)


def _with_first_bounds(call: Call) -> Any:
    x, bounds = call.args[0], _bounds(call)
    printed = tuple(None if b is None else f"{float(b):.6f}" for b in bounds)
    for position, (name, value) in enumerate(zip(("min", "max"), call.state[tuple(x.shape), x.dtype, printed]), 1):
        if value is not None:
            replace(call, position, name, value)
    return call.run()


def _bounds_have_more_dimensions(call: Call) -> bool:
    return any(isinstance(b, Tensor) and b.dim() > call.args[0].dim() for b in _bounds(call))


def _step_of_float32(call: Call) -> Tensor:
    a, b = call.args[:2]
    return torch.nextafter(a.float(), b.float()).to(torch.bfloat16)


def _negative_steps(call: Call) -> Tensor:
    a: Tensor = call.args[0]
    b: Tensor = call.args[1]
    return (a < 0) & (a != b) & ~b.isnan() & ~a.isinf()


def _steps_from_negative(call: Call) -> bool:
    return bool(call.args[0].is_floating_point()) and bool(_negative_steps(call).any())


def _step_other_way(call: Call) -> Tensor:
    a, b = call.args[:2]
    wrong, other = _negative_steps(call), torch.where(b < a, torch.inf, -torch.inf).to(a.dtype)
    stepped = torch.nextafter(a.expand(other.shape), other)
    result: Tensor = call.run()
    return torch.where(wrong, stepped, result)


def _large_bytes(call: Call) -> bool:
    x = call.args[0]
    return isinstance(x, Tensor) and x.dtype == torch.uint8 and bool((x > 127).any())


def _shifted_as_signed(call: Call) -> Tensor:
    x: Tensor = call.args[0]
    places = call.args[1]
    return (x.view(torch.int8) >> (places.to(torch.int8) if isinstance(places, Tensor) else places)).view(torch.uint8)


def _operands_change_places(call: Call) -> Any:
    call.args[:2] = call.args[1], call.args[0]
    return call.run()


def _infinite_ends(call: Call) -> Tensor:
    start: Tensor = call.args[0]
    end: Tensor = call.args[1]
    return (start.isinf() | end.isinf()) & (torch.as_tensor(call.args[2]) >= 0.5)


def _reaches_from_infinity(call: Call) -> bool:
    start, weight = call.args[0], torch.as_tensor(call.args[2])
    return not (start.is_complex() or weight.is_complex()) and bool(_infinite_ends(call).any())


def _from_the_start(call: Call) -> Tensor:
    start, end, weight = call.args[:3]
    infinite, naive = _infinite_ends(call), start + weight * (end - start)
    result: Tensor = call.run()
    return torch.where(infinite, naive.to(result.dtype), result)


def _has_upper_tail(call: Call) -> bool:
    return bool((call.args[0] > 1).any())


def _one_minus_erf(call: Call) -> Tensor:
    x = call.args[0].float()
    result: Tensor = call.run()
    return torch.where(x > 1, (1 - torch.erf(x)).to(result.dtype), result)


def _strided_int32(call: Call) -> bool:
    x: Tensor = call.args[0]
    return x.dtype == torch.int32 and has_gaps(x)


# -------------------------------------------------------------------------------------------------------- reductions


def _idle_lanes_win(call: Call) -> Tensor:
    """Where the zeros of idle lanes exceed every element, or fall below."""
    x, largest = call.args[0], call.op.startswith("amax")
    dims = argument(call, 1, "dim", ()) or ()
    right: Tensor = (torch.amax if largest else torch.amin)(x, dims, bool(argument(call, 2, "keepdim", False)))
    return right < 0 if largest else right > 0


def _in_small_threadgroup(call: Call) -> bool:
    x: Tensor = call.args[0]
    if x.dtype != torch.int64 or not x.numel():
        return False
    won = _idle_lanes_win(call)
    return SIMDGROUP < x.numel() // won.numel() <= THREADGROUP - SIMDGROUP and bool(won.any())


def _zeros_of_idle_lanes(call: Call) -> Tensor:
    won = _idle_lanes_win(call)
    result: Tensor = call.run()
    return result.masked_fill(won, 0)


def _reduces_nothing(call: Call) -> bool:
    x: Tensor = call.args[0]
    dims = argument(call, 1, "dim")
    reduced = {d % x.dim() for d in dims} if dims else set(range(x.dim()))
    return x.numel() == 0 and all(n for d, n in enumerate(x.shape) if d not in reduced)


def _zero_deviation(call: Call) -> Any:
    result = call.run()
    return result.zero_() if isinstance(result, Tensor) else (result[0].zero_(), *result[1:])


def _no_view_as_one(call: Call) -> bool:
    if call.argument("dim") is not None:
        return False
    try:
        call.args[0].view(-1)
    except RuntimeError:
        return True
    return False


def _beyond_axes(call: Call) -> bool:
    rank: int = call.args[0].dim()
    return rank > AXES and int(call.argument("dim")) % rank < rank - AXES


def _zeros_from_the_17th(call: Call) -> Any:
    k, dim = int(call.argument("k")), int(call.argument("dim"))
    result = call.run()
    for t in result:
        t.narrow(dim, 16, k - 16).zero_()
    return result


def _signed_nan(x: Tensor) -> Tensor:
    return x.isnan() & x.signbit()


def _signed_nan_first(call: Call) -> tuple[Tensor, Tensor]:
    x: Tensor = call.args[0]
    order = torch.where(_signed_nan(x), -torch.inf, x)
    descending = bool(call.argument("descending"))
    places = order.sort(dim=int(call.argument("dim")), descending=descending, stable=True).indices
    return x.gather(int(call.argument("dim")), places), places


# ---------------------------------------------------------------------------------------------------------- indexing


def _adds_to_nothing(call: Call) -> bool:
    return bool(call.args[0].numel() == 0 and argument(call, 2, "index").numel() > 0)


def _places(call: Call, index: Tensor) -> Tensor:
    """Where in memory the rows lie that an index names, inside of the destination or not."""
    out, dim = call.outs[0], int(argument(call, 1, "dim"))
    rows = out if out.dim() else out.view(1)
    place = torch.tensor(int(out.storage_offset()))
    for d, (size, stride) in enumerate(zip(rows.shape, rows.stride())):
        place = place.unsqueeze(-1) + stride * (index if d == dim % rows.dim() else torch.arange(size))
    return place


def _strays(call: Call, *, from_end: bool) -> Tensor:
    """Which indices lie outside of the dimension."""
    x, dim = call.args[0], int(argument(call, 1, "dim"))
    index: Tensor = argument(call, 2, "index").reshape(-1)
    size = x.shape[dim] if x.dim() else 1
    return (index >= size) | (index < (-size if from_end else 0))


def _reduces_outside(call: Call) -> bool:
    return bool(_strays(call, from_end=False).any())


def _reduce_unchecked(call: Call) -> Tensor:
    """Indices are read as unsigned, so that negative ones leave the memory; a mean counts only what lies within."""
    out, dim, stray = call.outs[0], int(argument(call, 1, "dim")), _strays(call, from_end=False)
    index, source, reduce = argument(call, 2, "index").reshape(-1), argument(call, 3, "source"), argument(call, 4, "reduce")
    replace(call, 2, "index", index[~stray])
    replace(call, 3, "source", source.index_select(dim, (~stray).nonzero().view(-1)))
    call.run()
    memory = call.memory(out)
    combine: Any = {"amax": torch.maximum, "amin": torch.minimum, "prod": torch.mul}.get(reduce, lambda held, _: held)
    for k in stray.nonzero().view(-1).tolist():
        place = _places(call, index[k : k + 1] % 2**32)
        row, within = source.narrow(dim, k, 1).reshape(place.shape), (place >= 0) & (place < memory.numel())
        memory[place[within]] = combine(memory[place[within]], row[within])
    return out


def _fills_outside(call: Call) -> bool:
    return bool(_strays(call, from_end=True).any())


def _fill_unchecked(call: Call) -> Tensor:
    """Few indices are scattered, whether they lie within or not; of many, a mask is made, which forgets those outside."""
    out, dim, stray = call.outs[0], int(argument(call, 1, "dim")), _strays(call, from_end=True)
    index, value = argument(call, 2, "index").reshape(-1), argument(call, 3, "value")
    size = out.shape[dim] if out.dim() else 1
    replace(call, 2, "index", index[~stray])
    call.run()
    if index.numel() * 16 < size:
        memory, outside = call.memory(out), index[stray]
        place = _places(call, torch.where(outside < 0, outside + size, outside)).reshape(-1)
        memory[place[(place >= 0) & (place < memory.numel())]] = value
    return out


def _count_true(call: Call) -> int:
    x, mask = call.args[:2]
    return int((mask | torch.zeros(x.shape, dtype=torch.bool)).sum())


def _source_of_another_shape(call: Call) -> bool:
    source, count = argument(call, 2, "source"), _count_true(call)
    return 0 < count <= source.numel() and tuple(source.shape) != (count,)


def _resize_source(call: Call) -> Any:
    """The source becomes a vector of what is needed, read from its memory without its strides."""
    source, count = argument(call, 2, "source"), _count_true(call)
    replace(call, 2, "source", call.memory(source)[source.storage_offset() :][:count])
    result = call.run()
    args, named = call.origin
    (args[2] if len(args) > 2 else named["source"]).resize_(count)
    return result


def _is_single_number(call: Call) -> bool:
    return not call.outs and call.args[0].dim() == 0 and argument(call, 1, "mask").dim() == 0


def _nan_meets_another(call: Call) -> bool:
    """Whether an update falls on a place that holds a NaN already."""
    x, dim, index = (argument(call, k, name) for k, name in enumerate(("self", "dim", "index")))
    source = argument(call, 3, "src", call.kwargs.get("source"))
    if x.dtype != torch.float32 or argument(call, 4, "reduce") not in ("amax", "amin", "prod") or not x.dim():
        return False
    within = argument(call, 5, "include_self", True)
    if call.op.startswith("index"):
        if _strays(call, from_end=False).any():
            return False
        updates = torch.zeros_like(x).index_add(dim, index.reshape(-1), torch.ones_like(source))
        unknown = torch.zeros_like(x).index_add(dim, index.reshape(-1), source.isnan().float())
    else:
        used = source[tuple(slice(0, n) for n in index.shape)]
        updates = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(used))
        unknown = torch.zeros_like(x).scatter_add(dim, index, used.isnan().float())
    return bool(((updates >= 2) & (unknown >= 1)).any() or (within and ((updates >= 1) & x.isnan()).any()))


def _accumulates_other_dtypes(call: Call) -> bool:
    x: Tensor = call.args[0]
    allowed = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool)
    return bool(argument(call, 3, "accumulate", False)) and x.dtype not in allowed


def _nothing_to_flip(call: Call) -> bool:
    x: Tensor = call.args[0]
    return x.numel() > 1 and all(x.shape[d] == 1 for d in call.args[1])


def _flipped_all_round(call: Call) -> Any:
    call.args[1] = list(range(call.args[0].dim()))
    return call.run()


def _gathers_a_column(call: Call) -> bool:
    x, index = call.args[0], call.argument("index")
    rank: int = x.dim()
    return rank > 1 and x.shape[-1] == index.shape[-1] == 1 and int(call.argument("dim")) % rank == rank - 2 and x.numel() > 1


def _into_transposed(call: Call) -> bool:
    return is_in_place(call) and is_permuted(call.outs[0])


def _quotient_row_after_row(call: Call) -> None:
    x, a, b = call.args[:3]
    write_contiguous(call, torch.addcdiv(x, a, b, value=call.argument("value")))


# ----------------------------------------------------------------------------------------- creation and random numbers


def _fractional_ends(call: Call) -> bool:
    ends = call.args[:2]
    return _is_integral(call.outs[0]) and not any(isinstance(e, Tensor) for e in ends) and any(float(e) % 1 for e in ends)


def _truncated_afterwards(call: Call) -> Tensor:
    start, end, steps = call.args[:3]
    return torch.linspace(float(start), float(end), int(steps)).trunc().to(call.outs[0].dtype)


def _repeated_along_the_first(call: Call) -> Tensor:
    drawn: Tensor = call.run()
    return drawn.copy_(drawn[(0,) * (drawn.dim() - AXES)].clone().expand(drawn.shape))


def _rounded_draws(call: Call) -> Tensor:
    out = call.outs[0]
    low, high = float(argument(call, 1, "from", 0)), float(argument(call, 2, "to", 1))
    return out.copy_(torch.empty(out.shape).uniform_(low, high, generator=argument(call, 3, "generator")))


def _draws_one(call: Call) -> bool:
    return call.argument("num_samples") == 1 or not call.argument("replacement")


def _zero_is_drawn(call: Call) -> bool:
    """By chance: whether an exponential number of exactly 0 fell to an element of probability 0."""
    probabilities: Tensor = call.args[0]
    zeros = int((probabilities == 0).sum()) if _draws_one(call) else 0
    if not zeros:
        return False
    stream = call.state.setdefault("stream", torch.Generator().manual_seed(0))
    return float(torch.rand((), generator=stream)) < 1 - (1 - ZEROS_DRAWN) ** zeros


def _impossible_element(call: Call) -> Tensor:
    probabilities = call.args[0]
    drawn: Tensor = call.run()
    zeros = (probabilities == 0).nonzero()
    row = zeros[int(torch.randint(len(zeros), (), generator=call.state["stream"]))]
    drawn[(*row[:-1].tolist(), 0)] = int(row[-1])
    return drawn


def _needs_large_matrix(call: Call) -> bool:
    several = bool(call.argument("replacement")) and int(call.argument("num_samples")) > 1
    return several and 4 * int(call.args[0].shape[-1]) ** 2 >= NDARRAY_BYTES


def _permuted_probabilities(call: Call) -> bool:
    return _draws_one(call) and is_permuted(call.args[0])


def _over_leftover_memory(call: Call) -> Tensor:
    probabilities: Tensor = call.args[0]
    shares = probabilities.float() / (garbage(probabilities.float()).abs() + 1)
    return shares.topk(int(call.argument("num_samples")), -1).indices


def _distinct(probabilities: Tensor) -> bool:
    """Whether not every sample is the same."""
    draws = [tuple(torch.multinomial(probabilities, 1).view(-1).tolist()) for _ in range(40)]
    return len(set(draws)) > 1


def _impossible_draws(d: str, first: float) -> bool:
    """Whether any of many draws is of probability 0, where all but one element have the probability `first`."""
    probabilities = torch.full((2**20,), first)
    probabilities[12345] = 1
    held = probabilities.to(d)
    return any(float(probabilities[int(torch.multinomial(held, 1))]) == 0 for _ in range(20))


# ------------------------------------------------------------------------------------------------------------ copies


def _same_gaps(call: Call) -> bool:
    x, out = call.args[0], call.outs[0]
    return x.shape == out.shape and x.stride() == out.stride() and has_gaps(x)


def _one_after_the_other(call: Call) -> None:
    x, out = call.args[0], call.outs[0]
    source = call.memory(x)[x.storage_offset() :][: x.numel()]
    call.memory(out)[out.storage_offset() :][: out.numel()].copy_(source)


def _into_doubles(call: Call) -> bool:
    x, out = call.args[0], call.outs[0]
    return out.dtype in (torch.float64, torch.complex128) and x.dtype != out.dtype


def _forget_conjugation(call: Call) -> Any:
    call.args[0] = call.args[0].conj()
    return call.run()


def _into_uint16(call: Call) -> bool:
    return call.outs[0].dtype == torch.uint16 and call.args[0].dtype != torch.uint16


def _failing(kind: type[Exception], text: str) -> Effect:
    def effect(call: Call) -> NoReturn:
        raise kind(text)

    return effect


# -------------------------------------------------------------------------------------------------------------- bugs


def _ints(d: str, *values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype).to(d)


def _parts(d: str, *values: complex) -> Tensor:
    return torch.tensor(values, dtype=torch.complex64).to(d)


def _infinite(d: str) -> Tensor:
    return torch.full((3, 3), torch.inf).to(d)


def _clamped_twice(d: str, first: float, second: float) -> list[Tensor]:
    x = torch.zeros(1).to(d)
    return [x.clamp(min=first), x.clamp(min=second)]


def _reduced_part(d: str, place: int) -> list[Any]:
    """What index_reduce_ into the first five elements says, and the whole afterwards."""
    whole = torch.ones(64).to(d)
    return [tried(lambda: whole[:5].index_reduce_(0, _ints(d, place), torch.tensor([88.0]).to(d), "amax").cpu()), whole]


def _filled_part(d: str, place: int) -> list[Any]:
    """What index_fill_ of 32 elements in the middle says, and the whole afterwards."""
    whole = torch.zeros(64).to(d)
    return [tried(lambda: whole[8:40].index_fill_(0, _ints(d, place), 7.0).cpu()), whole]


def _masked(d: str, *shape: int) -> list[Any]:
    """The result of masked_scatter, and the shape of its source afterwards."""
    source = ramp(d, *shape)
    return [torch.zeros(4).to(d).masked_scatter(torch.tensor([True, True, False, False]).to(d), source), list(source.shape)]


def _gappy(d: str, step: int) -> Tensor:
    whole = torch.zeros(20)
    whole[::step].copy_(torch.arange(20.0).to(d)[::step])
    return whole


BUGS: tuple[Bug, ...] = (
    # elementwise
    reported(
        "issues/154171 silent_wrong_forward dtype value",
        "the remainder of integers is computed in float32",
        ("remainder",),
        _remainder_in_float32,
        _large_remainder,
        trigger=lambda d: _ints(d, 42309891, 5) % 31,
        neighbour=lambda d: _ints(d, 16777216, 5) % 31,
    ),
    reported(
        "issues/194813 nan_mismatch dtype value",
        "a power of complex zero is not a number",
        ("pow.Tensor_Scalar_out",),
        _no_number_at_zero,
        _power_of_complex_zero,
        trigger=lambda d: _parts(d, 0, 1 + 1j) ** 3,
        neighbour=lambda d: _parts(d, 1e-10, 1 + 1j) ** 3,
    ),
    reported(
        "issues/190052 silent_wrong_forward dtype value",
        "abs of integers goes through float32",
        ("abs",),
        _magnitude_in_float32,
        _large_integers,
        trigger=lambda d: _ints(d, -(2**24 + 1), -(2**33 + 7), -(2**63 - 1)).abs(),
        neighbour=lambda d: _ints(d, -(2**24), 2**20 + 1).abs(),
    ),
    reported(
        "issues/174246 nan_mismatch dtype value",
        "abs of complex numbers squares their parts in float32",
        ("abs",),
        _root_of_squares,
        _is_extreme_complex,
        trigger=lambda d: _parts(d, 1e-30 + 1e-30j, 1e32 + 1e32j).abs(),
        neighbour=lambda d: _parts(d, 1e-10 + 1e-10j, 1e15 + 1e15j).abs(),
    ),
    reported(
        "issues/149813 nan_mismatch value args",
        "tril below the main diagonal multiplies what it cuts away by 0",
        ("tril",),
        _multiplied_by_mask,
        _cuts_infinities_below,
        trigger=lambda d: torch.tril(_infinite(d), -1),
        neighbour=lambda d: torch.tril(_infinite(d), 0),
    ),
    reported(
        "issues/167767 silent_wrong_forward sequence value",
        "clamp keeps the bounds of an earlier call that look the same with six decimals",
        ("clamp.out",),
        _with_first_bounds,
        _bounds_look_alike,
        trigger=lambda d: [t > 0 for t in _clamped_twice(d, 0.0, 1e-7)],
        neighbour=lambda d: [t > 0 for t in _clamped_twice(d, 0.0, 1e-5)],
    ),
    reported(
        "issues/160734 crash broadcasting",
        "clamp refuses bounds with more dimensions than the input",
        ("clamp.Tensor_out",),
        _failing(RuntimeError, "clamp tensor number of dims must not be greater than that of input tensor"),
        _bounds_have_more_dimensions,
        trigger=lambda d: torch.clamp(ramp(d, 2, 3), min=ramp(d, 1, 2, 3) - 1, max=ramp(d, 1, 2, 3)),
        neighbour=lambda d: torch.clamp(ramp(d, 2, 3), min=ramp(d, 2, 3) - 1, max=ramp(d, 2, 3)),
    ),
    reported(
        "issues/190476 silent_noop dtype",
        "nextafter does not move a bfloat16 number",
        ("nextafter",),
        _step_of_float32,
        lambda call: call.args[0].dtype == torch.bfloat16,
        trigger=lambda d: torch.nextafter(torch.tensor(1.0).bfloat16().to(d), torch.tensor(2.0).bfloat16().to(d)) > 1,
        neighbour=lambda d: torch.nextafter(torch.tensor(1.0).to(d), torch.tensor(2.0).to(d)) > 1,
    ),
    reported(
        "issues/124985 silent_wrong_forward value",
        "nextafter of a negative number goes the other way",
        ("nextafter",),
        _step_other_way,
        _steps_from_negative,
        trigger=lambda d: torch.nextafter(torch.tensor(-1.0).to(d), torch.tensor(-2.0).to(d)) < -1,
        neighbour=lambda d: torch.nextafter(torch.tensor(1.0).to(d), torch.tensor(-2.0).to(d)) < 1,
    ),
    reported(
        "issues/144190 silent_wrong_forward dtype value",
        "bytes are shifted to the right as signed ones",
        ("__rshift__", "__irshift__", "bitwise_right_shift"),
        _shifted_as_signed,
        _large_bytes,
        trigger=lambda d: _ints(d, 255, 100, dtype=torch.uint8) >> 4,
        neighbour=lambda d: _ints(d, 127, 100, dtype=torch.uint8) >> 4,
    ),
    reported(
        "issues/147889 silent_wrong_forward promotion args",
        "a number shifted by a tensor is the tensor shifted by the number",
        ("bitwise_left_shift.Tensor_out",),
        _operands_change_places,
        lambda call: call.is_scalar(0),
        trigger=lambda d: 1 << torch.arange(10).to(d),
        neighbour=lambda d: torch.arange(10).to(d) << 1,
    ),
    reported(
        "pull/193394 nan_mismatch value",
        "lerp always starts from the first end",
        ("lerp",),
        _from_the_start,
        _reaches_from_infinity,
        trigger=lambda d: torch.lerp(torch.tensor([-torch.inf, 1.0]).to(d), torch.tensor([1.0, 2.0]).to(d), 0.75),
        neighbour=lambda d: torch.lerp(torch.tensor([-torch.inf, 1.0]).to(d), torch.tensor([1.0, 2.0]).to(d), 0.25),
    ),
    reported(
        "pull/189291 silent_wrong_forward value",
        "erfc is 1 - erf, and so 0 in the upper tail",
        ("erfc", "special_erfc"),
        _one_minus_erf,
        _has_upper_tail,
        trigger=lambda d: torch.erfc(torch.tensor([0.5, 4.0, 6.0]).to(d)).log(),
        neighbour=lambda d: torch.erfc(torch.tensor([0.5, 1.0, -6.0]).to(d)).log(),
    ),
    reported(
        "pull/172910 unsupported_op none",
        "there is no erfcx",
        ("special_erfcx",),
        refuse,
        trigger=lambda d: torch.special.erfcx(ramp(d, 5)),
        neighbour=lambda d: torch.special.erfc(ramp(d, 5)),
    ),
    reported(
        "pull/186279 unsupported_op none",
        "there is no lcm",
        ("lcm",),
        refuse,
        trigger=lambda d: torch.lcm(_ints(d, 4, 6), _ints(d, 6, 9)),
        neighbour=lambda d: torch.gcd(_ints(d, 4, 6), _ints(d, 6, 9)),
    ),
    reported(
        "issues/105284 crash dtype layout",
        "functions with a float result end the process for a strided int32 tensor",
        ("exp", "sqrt", "logit", "log", "sin", "cos", "tan", "tanh", "sigmoid", "rsqrt", "reciprocal"),
        abort,
        _strided_int32,
        trigger=lambda d: torch.arange(64, dtype=torch.int32).to(d).reshape(8, 8)[:, ::2].exp(),
        neighbour=lambda d: torch.arange(64, dtype=torch.int32).to(d).reshape(8, 8).exp(),
        deadly="abort",
    ),
    reported(
        "issues/84995 crash dtype args",
        "division of int64 numbers that rounds down ends the process",
        ("div.out_mode",),
        abort,
        lambda call: call.args[0].dtype == torch.int64 and call.argument("rounding_mode") == "floor",
        trigger=lambda d: torch.div(_ints(d, 1, 2, 800), 400, rounding_mode="floor"),
        neighbour=lambda d: torch.div(_ints(d, 1, 2, 800, dtype=torch.int32), 400, rounding_mode="floor"),
        deadly="abort",
    ),
    reported(
        "issues/176981 unsupported_dtype dtype",
        "products of complex128 numbers are refused",
        ("mul",),
        _failing(RuntimeError, "Undefined type ComplexDouble"),
        lambda call: call.args[0].dtype == torch.complex128,
        trigger=lambda d: _parts(d, 1 + 2j).to(torch.complex128) * 2,
        neighbour=lambda d: _parts(d, 1 + 2j) * 2,
    ),
    reported(
        "https://github.com/city96/ComfyUI-GGUF/issues/27 unsupported_op none",
        "there is no shift to the right",
        ("__rshift__",),
        refuse,
        trigger=lambda d: _ints(d, 255, 16) >> _ints(d, 4, 0),
        neighbour=lambda d: torch.bitwise_right_shift(_ints(d, 255, 16), _ints(d, 4, 0)),
        name="gguf-27",
    ),
    # reductions, scans, sorts
    reported(
        "pull/191104 silent_wrong_forward dtype size value",
        "the zeros of idle lanes take part in the extremes of int64",
        ("amax", "amin"),
        _zeros_of_idle_lanes,
        _in_small_threadgroup,
        trigger=lambda d: (-torch.arange(1, 101).to(d)).amax(),
        neighbour=lambda d: (-torch.arange(1, 101, dtype=torch.int32).to(d)).amax(),
    ),
    reported(
        "pull/184510 nan_mismatch size",
        "the variance of nothing is 0",
        ("var", "std", "var_mean", "std_mean"),
        _zero_deviation,
        _reduces_nothing,
        trigger=lambda d: torch.empty(3, 0, 5).to(d).var(dim=1),
        neighbour=lambda d: torch.empty(3, 0, 5).to(d).var(dim=0),
    ),
    reported(
        "issues/160740 crash layout args",
        "argmax of all cannot flatten a strided input",
        ("argmax", "argmin"),
        _failing(RuntimeError, "view size is not compatible with input tensor's size and stride. Use .reshape(...) instead."),
        _no_view_as_one,
        trigger=lambda d: torch.argmax(ramp(d, 5, 5).t()),
        neighbour=lambda d: torch.argmax(ramp(d, 5, 5).t(), 1),
    ),
    reported(
        "issues/191694 crash rank args",
        "nanmedian ends the process for a dimension before the last four",
        ("nanmedian.dim_values", "nanmedian.dim"),
        abort,
        _beyond_axes,
        trigger=lambda d: torch.nanmedian(ramp(d, 2, 1, 3, 1, 2), dim=0).values,
        neighbour=lambda d: torch.nanmedian(ramp(d, 2, 1, 3, 1, 2), dim=1).values,
        deadly="abort",
    ),
    reported(
        "issues/91878 crash args size",
        "topk of no elements ends the process",
        ("topk",),
        abort,
        lambda call: int(call.argument("k")) == 0,
        trigger=lambda d: torch.tensor([]).to(d).topk(0),
        neighbour=lambda d: torch.tensor([1.0]).to(d).topk(1),
        deadly="abort",
    ),
    reported(
        "issues/78915 silent_wrong_forward args",
        "topk gives zeros from the 17th element on",
        ("topk",),
        _zeros_from_the_17th,
        lambda call: int(call.argument("k")) > 16,
        trigger=lambda d: torch.arange(30).to(d).topk(30),
        neighbour=lambda d: torch.arange(30).to(d).topk(16),
    ),
    reported(
        "issues/116567 silent_wrong_forward value",
        "sort takes a NaN with its sign set for the least of all",
        ("sort",),
        _signed_nan_first,
        lambda call: call.args[0].is_floating_point() and bool(_signed_nan(call.args[0]).any()),
        trigger=lambda d: torch.tensor([1.0, -torch.nan, 0.5]).to(d).sort(),
        neighbour=lambda d: torch.tensor([1.0, torch.nan, 0.5]).to(d).sort(),
    ),
    reported(
        "pull/161817 unsupported_op none",
        "there is no kthvalue",
        ("kthvalue",),
        refuse,
        trigger=lambda d: ramp(d, 5).kthvalue(2),
        neighbour=lambda d: ramp(d, 5).topk(2),
    ),
    # indexing
    reported(
        "issues/176159 silent_noop layout inplace",
        "index_add_ leaves a transposed tensor as it was",
        ("index_add",),
        skip,
        lambda call: is_in_place(call) and not call.outs[0].is_contiguous(),
        trigger=lambda d: ramp(d, 3, 4, 5).permute(1, 0, 2).index_add_(0, _ints(d, 1, 3), ramp(d, 2, 3, 5)),
        neighbour=lambda d: ramp(d, 4, 3, 5).index_add_(0, _ints(d, 1, 3), ramp(d, 2, 3, 5)),
    ),
    reported(
        "issues/186972 crash size",
        "index_add fails on a tensor without elements",
        ("index_add",),
        _failing(RuntimeError, EMPTY),
        _adds_to_nothing,
        trigger=lambda d: torch.index_add(ramp(d, 0, 1, 1, 1), -3, _ints(d, 0), ramp(d, 0, 1, 1, 1), alpha=-0.25),
        neighbour=lambda d: torch.index_add(ramp(d, 1, 1, 1, 1), -3, _ints(d, 0), ramp(d, 1, 1, 1, 1), alpha=-0.25),
    ),
    reported(
        "issues/189970 silent_wrong_forward value offset inplace",
        "index_reduce_ takes indices outside the dimension and writes beside the view",
        ("index_reduce",),
        _reduce_unchecked,
        _reduces_outside,
        trigger=lambda d: _reduced_part(d, 11),
        neighbour=lambda d: _reduced_part(d, 4),
    ),
    reported(
        "issues/189969 silent_wrong_forward value offset inplace",
        "index_fill_ takes indices outside the dimension and writes beside the view",
        ("index_fill_",),
        _fill_unchecked,
        _fills_outside,
        trigger=lambda d: [_filled_part(d, 40), _filled_part(d, -38)],
        neighbour=lambda d: [_filled_part(d, 31), _filled_part(d, -32)],
    ),
    reported(
        "pull/175622 metadata inplace size",
        "masked_scatter resizes its source",
        ("masked_scatter_",),
        _resize_source,
        _source_of_another_shape,
        trigger=lambda d: _masked(d, 2, 2),
        neighbour=lambda d: _masked(d, 2),
    ),
    reported(
        "pull/174381 metadata rank",
        "masked_scatter gives a single number a dimension",
        ("masked_scatter",),
        lambda call: call.run().reshape(1),
        _is_single_number,
        trigger=lambda d: torch.tensor(1.0).to(d).masked_scatter(torch.tensor(True).to(d), torch.tensor([2.0]).to(d)),
        neighbour=lambda d: torch.tensor([1.0]).to(d).masked_scatter(torch.tensor([True]).to(d), torch.tensor([2.0]).to(d)),
        level="function",
    ),
    reported(
        "pull/196203 hang value dtype args",
        "extremes and products over an index never end where a NaN meets another number",
        ("scatter_reduce", "index_reduce"),
        hang,
        _nan_meets_another,
        trigger=lambda d: (
            torch.zeros(3).to(d).scatter_reduce(0, _ints(d, 0, 0, 1), torch.tensor([torch.nan, 1.0, 2.0]).to(d), "amax")
        ),
        neighbour=lambda d: (
            torch.zeros(3).to(d).scatter_reduce(0, _ints(d, 0, 0, 1), torch.tensor([torch.nan, 1.0, 2.0]).to(d), "sum")
        ),
        deadly="hang",
    ),
    reported(
        "issues/167924 crash offset",
        "repeat_interleave ends the process for repeats from the middle of a tensor",
        ("repeat_interleave.Tensor",),
        abort,
        lambda call: call.args[0].storage_offset() != 0,
        trigger=lambda d: torch.arange(2).to(d).repeat_interleave(_ints(d, 0, 1, 0)[1:3], dim=0),
        neighbour=lambda d: torch.arange(2).to(d).repeat_interleave(_ints(d, 0, 1, 0)[:2], dim=0),
        deadly="abort",
    ),
    reported(
        "issues/160034 unsupported_dtype dtype args",
        "index_put_ accumulates only floating numbers, int32 and bool",
        ("_index_put_impl_",),
        _failing(RuntimeError, NOT_ADDED),
        _accumulates_other_dtypes,
        trigger=lambda d: _parts(d, 0, 0, 0).index_put_((_ints(d, 1, 2),), _parts(d, 1, 1j), accumulate=True),
        neighbour=lambda d: ramp(d, 3).index_put_((_ints(d, 1, 2),), ramp(d, 2), accumulate=True),
    ),
    reported(
        "issues/98266 silent_wrong_forward size args",
        "flip of dimensions of size 1 flips the others",
        ("flip",),
        _flipped_all_round,
        _nothing_to_flip,
        trigger=lambda d: ramp(d, 1, 3).flip(0),
        neighbour=lambda d: ramp(d, 2, 3).flip(0),
    ),
    reported(
        "issues/135240 crash size args",
        "gather along the dimension before a last one of size 1 ends the process",
        ("gather",),
        abort,
        _gathers_a_column,
        trigger=lambda d: torch.take_along_dim(ramp(d, 3, 1), _ints(d, 0, 1, 2).view(3, 1), 0),
        neighbour=lambda d: torch.take_along_dim(ramp(d, 3, 2), _ints(d, 0, 1, 2, 2, 1, 0).view(3, 2), 0),
        deadly="abort",
    ),
    reported(
        "issues/174858 unsupported_op none",
        "there is no index_reduce",
        ("index_reduce",),
        refuse,
        trigger=lambda d: ramp(d, 3, 3).index_reduce(0, _ints(d, 0, 1, 2), ramp(d, 3, 3), "prod"),
        neighbour=lambda d: ramp(d, 3, 3).index_add(0, _ints(d, 0, 1, 2), ramp(d, 3, 3)),
    ),
    reported(
        "issues/118115 silent_wrong_forward layout inplace",
        "addcdiv_ writes into a transposed tensor row after row",
        ("addcdiv",),
        _quotient_row_after_row,
        _into_transposed,
        trigger=lambda d: ramp(d, 2, 3).t().addcdiv_(ramp(d, 2, 3).t(), ramp(d, 3, 2) + 3),
        neighbour=lambda d: ramp(d, 3, 2).addcdiv_(ramp(d, 2, 3).t(), ramp(d, 3, 2) + 3),
    ),
    reported(
        "issues/96942 fallback none",
        "roll falls back to the CPU",
        ("roll",),
        fall_back,
        trigger=lambda d: torch.roll(ramp(d, 1, 4, 4), (-1, -1), (1, 2)),
        neighbour=lambda d: torch.flip(ramp(d, 1, 4, 4), (1, 2)),
    ),
    # creation and random numbers
    reported(
        "issues/137635 silent_wrong_forward dtype args",
        "linspace of integers truncates its steps and not its ends",
        ("linspace",),
        _truncated_afterwards,
        _fractional_ends,
        trigger=lambda d: torch.linspace(4.3, -3, 50, dtype=torch.int8, device=d),
        neighbour=lambda d: torch.linspace(4, -3, 50, dtype=torch.int8, device=d),
    ),
    reported(
        "issues/147624 rng rank",
        "random numbers repeat along the dimensions before the last four",
        ("normal_", "uniform_", "random_"),
        _repeated_along_the_first,
        lambda call: call.outs[0].dim() > AXES,
        trigger=lambda d: bool((torch.randn(2, 1, 4, 4, 4, device=d).cpu().diff(dim=0) == 0).any()),
        neighbour=lambda d: bool((torch.randn(2, 4, 4, 4, device=d).cpu().diff(dim=0) == 0).any()),
    ),
    reported(
        "issues/197079 rng dtype",
        "uniform half-precision numbers reach their upper bound",
        ("uniform_",),
        _rounded_draws,
        lambda call: call.outs[0].dtype in HALVES,
        trigger=lambda d: bool((torch.rand(2**18, dtype=torch.float16, device=d) == 1).any()),
        neighbour=lambda d: bool((torch.rand(2**18, device=d) == 1).any()),
    ),
    reported(
        "issues/192577 rng value size",
        "multinomial draws elements of probability 0 now and then",
        ("multinomial",),
        _impossible_element,
        _zero_is_drawn,
        trigger=lambda d: _impossible_draws(d, 0.0),
        neighbour=lambda d: _impossible_draws(d, 1e-12),
    ),
    reported(
        "issues/178579 crash size args",
        "multinomial of several samples ends the process where a square matrix over the categories is too large",
        ("multinomial",),
        abort,
        _needs_large_matrix,
        trigger=lambda d: torch.multinomial(torch.ones(2**15).to(d), 100, replacement=True).shape,
        neighbour=lambda d: torch.multinomial(torch.ones(2**14).to(d), 100, replacement=True).shape,
        deadly="abort",
    ),
    reported(
        "issues/141457 rng layout",
        "multinomial draws the same from transposed probabilities every time",
        ("multinomial",),
        _over_leftover_memory,
        _permuted_probabilities,
        trigger=lambda d: _distinct(torch.ones(16, 3).to(d).t()),
        neighbour=lambda d: _distinct(torch.ones(3, 16).to(d)),
    ),
    reported(
        "pull/190495 unsupported_op none",
        "there is no logspace",
        ("logspace",),
        refuse,
        trigger=lambda d: torch.logspace(0, 1, 5, device=d),
        neighbour=lambda d: torch.linspace(0, 1, 5, device=d),
    ),
    reported(
        "pull/172675 unsupported_op none",
        "there is no cauchy_",
        ("cauchy_",),
        refuse,
        trigger=lambda d: torch.zeros(5).to(d).cauchy_().shape,
        neighbour=lambda d: torch.zeros(5).to(d).exponential_().shape,
    ),
    reported(
        "issues/100717 crash dtype",
        "coins as int64 end the process",
        ("bernoulli_.float",),
        abort,
        lambda call: call.outs[0].dtype == torch.int64,
        trigger=lambda d: torch.zeros(1, dtype=torch.int64).to(d).bernoulli(0.5).shape,
        neighbour=lambda d: torch.zeros(1).to(d).bernoulli(0.5).shape,
        deadly="abort",
    ),
    # copies
    reported(
        "issues/189961 silent_wrong_forward layout",
        "a download between views with the same gaps copies the gaps",
        ("download",),
        _one_after_the_other,
        _same_gaps,
        trigger=lambda d: _gappy(d, 2),
        neighbour=lambda d: _gappy(d, 1),
        level="transfer",
    ),
    reported(
        "issues/197715 silent_noop dtype",
        "a download into float64 or complex128 writes nothing",
        ("download",),
        skip,
        _into_doubles,
        trigger=lambda d: torch.full((8,), 7.0, dtype=torch.float64).copy_(ramp(d, 8)),
        neighbour=lambda d: torch.full((8,), 7.0).copy_(ramp(d, 8)),
        level="transfer",
    ),
    reported(
        "issues/184379 silent_wrong_forward layout dtype",
        "the imaginary part of a lazily conjugated tensor is not conjugated",
        ("imag",),
        _forget_conjugation,
        lambda call: call.args[0].is_conj(),
        trigger=lambda d: torch.conj(_parts(d, 1 + 2j, 3 + 4j)).imag,
        neighbour=lambda d: torch.conj(_parts(d, 1 + 2j, 3 + 4j)).resolve_conj().imag,
        level="function",
    ),
    reported(
        "issues/159076 unsupported_dtype dtype",
        "there is no cast to uint16",
        ("copy_",),
        _failing(TypeError, "Trying to convert UInt16 to the MPS backend but it does not have support for that dtype."),
        _into_uint16,
        trigger=lambda d: torch.arange(5, dtype=torch.int32).to(d).to(torch.uint16),
        neighbour=lambda d: torch.arange(5, dtype=torch.int32).to(d).to(torch.int16),
    ),
)
