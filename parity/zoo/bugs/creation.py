"""Bugs of ranges and bins, and of random numbers.

What shows a bug of random numbers is a property that every draw of a healthy device has, and no draw of the bug's.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from parity.devices.sim.call import Call
from parity.devices.sim.effects import has_repeats, skip
from parity.devices.sim.faults import abort, refuse
from parity.zoo.effects import argument, ramp, reported

REACH = 4e-6  # how far beyond the first and last edge the bins extend
MOST_BYTES = 32 * 1024  # of bin edges: what a group of threads shares
HISTOGRAMS = ("histc", "histogram", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors")

# ------------------------------------------------------------------------------------------------------- ranges


def _through_float32(call: Call) -> Tensor:
    start, end, steps = call.args[:3]
    return torch.linspace(float(start), float(end), steps).to(call.outs[0].dtype)


def _is_large_integral(call: Call) -> bool:
    dtype, ends = call.outs[0].dtype, call.args[:2]
    return dtype in (torch.int32, torch.int64) and max(abs(e) for e in ends) > 2**20


def _step_is_no_power_of_two(call: Call) -> bool:
    step = argument(call, 2, "step", 1)
    return call.outs[0].dtype == torch.float32 and abs(math.frexp(step)[0]) != 0.5


def _steps_in_float32(call: Call) -> Tensor:
    result: Tensor = call.run()
    start, step = (torch.tensor(v, dtype=torch.float32) for v in (call.args[0], argument(call, 2, "step", 1)))
    return result.copy_(start + torch.arange(result.numel(), dtype=torch.float32) * step)


# ------------------------------------------------------------------------------------------------------- bins


def _edges(call: Call) -> list[Tensor | None]:
    """First and last edge of each dimension of bins, or None where they come from the elements themselves."""
    x, bins = call.args[0], argument(call, 1, "bins", 100)
    if call.op.startswith("histc"):
        low, high = argument(call, 2, "min", 0), argument(call, 3, "max", 0)
        return [torch.tensor((low, high), dtype=x.dtype) if low < high else None]
    if isinstance(bins, Tensor):
        return [bins[[0, -1]]]
    if isinstance(bins, (list, tuple)) and bins and isinstance(bins[0], Tensor):
        return [b[[0, -1]] for b in bins]
    span = call.kwargs.get("range")
    return list(torch.tensor(span, dtype=x.dtype).view(-1, 2)) if span else [None]


def _drawn_in(call: Call) -> Tensor:
    """The elements, those within REACH of the edges moved onto them."""
    x = call.args[0]
    columns = list(x.unbind(-1)) if "dd" in call.op else [x]
    for k, ends in enumerate(_edges(call)):
        if ends is not None:
            low, high = ends
            near = (columns[k] >= low - REACH) & (columns[k] <= high + REACH)
            columns[k] = torch.where(near, columns[k].clamp(low, high), columns[k])
    return torch.stack(columns, -1) if "dd" in call.op else columns[0]


def _some_at_the_edge(call: Call) -> bool:
    x = call.args[0]
    return x.is_floating_point() and bool((_drawn_in(call) != x)[~x.isnan()].any())


def _bins_reach_out(call: Call) -> Any:
    call.args[0] = _drawn_in(call)
    return call.run()


def _many_bins(call: Call) -> bool:
    bins = argument(call, 1, "bins", 100)
    counts = (b.numel() if isinstance(b, Tensor) else b + 1 for b in (bins if isinstance(bins, (list, tuple)) else [bins]))
    return any(n * call.args[0].element_size() > MOST_BYTES for n in counts)


# ------------------------------------------------------------------------------------------------------- streams


@contextlib.contextmanager
def _stream(state: Tensor | None, seed: int = 0) -> Iterator[None]:
    """The CPU's default generator from another state, or another seed, for as long as this lasts."""
    own = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed) if state is None else torch.set_rng_state(state)
        yield
    finally:
        torch.set_rng_state(own)


def _unseeded(call: Call) -> Any:
    """Draws from a stream of the device's own, which no seed and no generator reaches."""
    with _stream(call.state.get("stream")):
        if "generator" in call.kwargs:
            call.kwargs["generator"] = None
        result = call.run()
        call.state["stream"] = torch.get_rng_state()
    return result


def _frozen(call: Call) -> Any:
    """Draws from the same place of one stream at every call with these shapes."""
    with _stream(None, zlib.crc32(repr(call.outline.shapes).encode())):
        if "generator" in call.kwargs:
            call.kwargs["generator"] = None
        return call.run()


def _two_runs(call: Call) -> Tensor:
    """Two ascending runs, from a random half of the numbers and from the rest."""
    order: Tensor = call.run()
    half = order.numel() // 2
    return torch.cat((order[:half].sort().values, order[half:].sort().values))


def _is_complex(call: Call) -> bool:
    return any(t.is_complex() for t in call.operands)


def _parts_count_apart(call: Call) -> Any:
    """Each part of a random complex number has the deviation of the whole; and a deviation is that of all parts."""
    if call.op.startswith("normal"):
        drawn: Tensor = call.run()
        mean = argument(call, 1, "mean", 0)
        return drawn.copy_((drawn - mean) * math.sqrt(2) + mean)
    parts = torch.view_as_real(call.args[0].resolve_conj())
    dim = argument(call, 1, "dim")
    dims = [d % call.args[0].dim() for d in dim] if dim else list(range(call.args[0].dim()))
    keep = call.kwargs.get("keepdim", False)
    result = torch.std(parts, [*dims, -1], correction=call.kwargs.get("correction"), keepdim=keep)
    return result.squeeze(-1) if keep else result


def _again(draw: Callable[[], Tensor]) -> bool:
    """Whether two draws after the same seed are the same."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(11)
        drawn.append(draw().cpu())
    return torch.equal(*drawn)


def _fresh(*draws: Tensor) -> bool:
    """Whether no number comes twice."""
    return not has_repeats(torch.cat([x.cpu().reshape(-1) for x in draws]))


def _filled(x: Any) -> list[bool]:
    """Whether each of the fills writes a tensor of zeros: no element of any can stay 0, or, of coins, all."""
    fills: tuple[Callable[[], Any], ...] = (
        lambda: x.zero_().uniform_(1, 2).all(),
        lambda: x.zero_().normal_().all(),
        lambda: x.zero_().exponential_().any(),
        lambda: x.zero_().bernoulli_(0.5).any(),
        lambda: x.zero_().random_(1, 9).all(),
    )
    return [bool(fill()) for fill in fills]


def _deviation(x: Tensor) -> float:
    """Of all elements of a complex tensor from their mean, rounded to what thousands of them settle."""
    return round(float(x.cpu().abs().square().mean().sqrt()), 1)


def _breaks(x: Tensor) -> bool:
    """Whether a permutation falls more than once."""
    x = x.cpu()
    return int((x[1:] < x[:-1]).sum()) > 1


BUGS = (
    reported(
        "issues/104170 rng none", "randperm consists of two ascending runs",
        ("randperm",), _two_runs, lambda call: argument(call, 0, "n") > 2,
        trigger=lambda d: _breaks(torch.randperm(100, device=d)),
        neighbour=lambda d: torch.randperm(2, device=d).sort().values,
        rows="randperm",
    ),
    reported(
        "issues/124029 silent_noop layout inplace", "random fills leave a strided tensor as it was",
        ("uniform_", "normal_", "exponential_", "bernoulli_", "random_"), skip, lambda call: not call.outs[0].is_contiguous(),
        trigger=lambda d: _filled(torch.zeros(3, 4, 5, device=d).permute(2, 0, 1)),
        neighbour=lambda d: _filled(torch.zeros(3, 4, 5, device=d)),
        rows="rand_like randn_like randint_like uniform_ normal_ exponential_ bernoulli_ random_",
    ),
    reported(
        "issues/135210 rng dtype",
        "the parts of complex random numbers spread as far as the whole should, and std of complex numbers is of parts",
        ("normal", "std"), _parts_count_apart, _is_complex,
        trigger=lambda d: [
            _deviation(torch.randn(8000, dtype=torch.complex64, device=d)),
            round(float((ramp(d, 9) * (3 + 1j)).std()), 3),
        ],
        neighbour=lambda d: [
            _deviation(torch.complex(torch.randn(8000, device=d), torch.zeros(8000, device=d))),
            round(float(ramp(d, 9).std()), 3),
        ],
        rows="randn_like normal_ std",
    ),
    reported(
        "issues/78009 rng sequence", "normal numbers of one shape are the same at every call",
        ("normal",), _frozen,
        trigger=lambda d: _fresh(torch.randn(5, device=d), torch.randn(5, device=d)),
        neighbour=lambda d: _fresh(torch.randn(5, device=d), torch.randn(6, device=d)),
        rows="randn_like normal_",
    ),
    reported(
        "issues/84288 rng sequence", "normal numbers do not depend on the seed",
        ("normal",), _unseeded,
        trigger=lambda d: _again(lambda: torch.randn(5, device=d)),
        neighbour=lambda d: _again(lambda: torch.rand(5, device=d)),
        rows="randn_like normal_",
    ),
    reported(
        "issues/84516 rng module sequence", "what dropout keeps does not depend on the seed",
        ("native_dropout", "bernoulli"), _unseeded,
        trigger=lambda d: [
            _again(lambda: torch.nn.Dropout(0.5)(torch.ones(64, device=d))),
            _again(lambda: torch.ones(64, device=d).bernoulli_(0.5)),
        ],
        neighbour=lambda d: _again(lambda: (torch.rand(64, device=d) < 0.5).float()),
        rows="dropout bernoulli bernoulli_",
    ),
    reported(
        "issues/98118 unsupported_op none", "random_ without bounds has no kernel",
        ("random_",), refuse,
        # The forms with bounds are other operators (random_.from, random_.to), and had kernels.
        lambda call: call.op == "random_",
        trigger=lambda d: bool(torch.zeros(64, device=d).random_().any()),
        neighbour=lambda d: bool(torch.zeros(64, device=d).random_(1, 9).all()),
        rows="random_",
    ),
    reported(
        "issues/99802 rng none", "multinomial always draws the first class",
        ("multinomial",), lambda call: torch.zeros_like(call.run()),
        trigger=lambda d: torch.tensor([0.0, 0.5]).to(d).multinomial(4, replacement=True),
        neighbour=lambda d: torch.tensor([0.5, 0.0]).to(d).multinomial(4, replacement=True),
        rows="multinomial",
    ),
    reported(
        "pull/191060 silent_wrong_forward dtype value args", "linspace of integers goes through float32",
        ("linspace",), _through_float32, _is_large_integral,
        trigger=lambda d: torch.linspace(2**40, 2**40 + 8, 9, dtype=torch.int64, device=d),
        neighbour=lambda d: torch.linspace(2**19, 2**19 + 8, 9, dtype=torch.int64, device=d),
        rows="linspace_whole",
    ),
    reported(
        "pull/193737 drift dtype value args", "arange multiplies and adds in float32",
        ("arange", "range"), _steps_in_float32, _step_is_no_power_of_two,
        # Where a range crosses zero, the error of a far start is all that is left.
        trigger=lambda d: torch.arange(-100, 100, 0.1, device=d),
        neighbour=lambda d: torch.arange(-100, 100, 0.125, device=d),
        rows="arange",
    ),
    reported(
        "issues/195076 silent_wrong_forward value", "histograms count elements a little beyond the first and the last edge",
        HISTOGRAMS, _bins_reach_out, _some_at_the_edge,
        trigger=lambda d: [
            torch.tensor([-2e-6, 0.5, 1.000003]).to(d).histc(2, 0, 1),
            torch.tensor([-2e-6, 0.5, 1.000003]).to(d).histogram(2, range=(0.0, 1.0)).hist,
            torch.histogramdd(torch.tensor([[0.5, -2e-6], [0.5, 0.5]]).to(d), [1, 2], range=[0.0, 1.0, 0.0, 1.0]).hist,
        ],
        neighbour=lambda d: [
            torch.tensor([-8e-6, 0.5, 1.000008]).to(d).histc(2, 0, 1),
            torch.tensor([-8e-6, 0.5, 1.000008]).to(d).histogram(2, range=(0.0, 1.0)).hist,
            torch.histogramdd(torch.tensor([[0.5, -8e-6], [0.5, 0.5]]).to(d), [1, 2], range=[0.0, 1.0, 0.0, 1.0]).hist,
        ],
        rows="histc opinfo:histogram opinfo:histogramdd",
    ),
    reported(
        "issues/195446 crash args size", "histograms end the process where the edges take more than 32 KiB",
        (*HISTOGRAMS, "_histogramdd_bin_edges"), abort, _many_bins,
        trigger=lambda d: ramp(d, 9).histc(8192, -1, 1),
        neighbour=lambda d: ramp(d, 9).histc(8191, -1, 1),
        rows="histc opinfo:histogram opinfo:histogramdd", deadly="abort",
    ),
)  # fmt: skip
