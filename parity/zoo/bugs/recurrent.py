"""Bugs of the LSTM, which MPS runs as one kernel with a backward of its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from parity.devices import Call
from parity.devices.sim.faults import abort
from parity.zoo.effects import gradients, ramp, reported

FORWARD, BACKWARD = ("_lstm_mps",), ("lstm_mps_backward",)
ROWS = ("lstm",)
DROPOUT = -4  # its place among the options, which both kernels have at their end


def _options(call: Call) -> tuple[int, float, bool, bool, bool]:
    """(layers, dropout, train, bidirectional, batch_first)."""
    layers, dropout, train, bidirectional, batch_first = call.args[-5:]
    return layers, dropout, train, bidirectional, batch_first


def _drops_between_layers(call: Call) -> bool:
    layers, dropout, train, _, _ = _options(call)
    return layers > 1 and dropout > 0 and train


def _as_if_nothing_was_dropped(call: Call) -> Any:
    call.args[DROPOUT] = 0.0
    return call.run()


def _zero_times_infinity(call: Call) -> Any:
    output, hidden, cell, *workspaces = call.run()
    return (*(torch.full_like(t, math.nan) for t in (output, hidden, cell)), *workspaces)


def _is_batch_first_and_uneven(call: Call) -> bool:
    """More or fewer sequences than steps, batch first."""
    x = call.args[5]
    return _options(call)[4] and x.dim() == 3 and x.shape[0] != x.shape[1]


def _is_both_ways_in_a_batch(call: Call) -> bool:
    _, _, _, bidirectional, batch_first = _options(call)
    return bidirectional and call.args[0].shape[0 if batch_first else 1] > 1


def _reverse_in_a_wrong_order(call: Call) -> Any:
    """The way back turns the batch around as well as time."""
    x, (result, *states) = call.args[0], call.run()
    call.args[0] = x.flip(0 if _options(call)[4] else 1)
    other, *other_states = call.run()
    hidden = result.shape[-1] // 2
    result = torch.cat((result[..., :hidden], other[..., hidden:]), -1)
    for state, wrong in zip(states[:2], other_states[:2]):
        state[1::2] = wrong[1::2]
    return result, *states


def _module(device: str, **options: Any) -> torch.nn.LSTM:
    """An LSTM of 3 features and 4 hidden ones, with parameters that the options alone decide."""
    torch.manual_seed(0)
    return torch.nn.LSTM(3, 4, **options).to(device)


def _outputs(device: str, batch: int, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, hidden and cell state of 5 steps, under a fixed stream of random numbers."""
    module = _module(device, **options)
    torch.manual_seed(1)
    with torch.no_grad():
        output, (hidden, cell) = module(ramp(device, 5, batch, 3))
    return output, hidden, cell


def _input_gradient(device: str, shape: tuple[int, int], **options: Any) -> Tensor:
    """Of the input, under a fixed stream of random numbers."""
    module = _module(device, **options)
    torch.manual_seed(1)
    return gradients(lambda x: module(x)[0], ramp(device, *shape, 3))[0]


BUGS = (
    reported(
        "issues/190056 silent_wrong_backward backward module args",
        "the gradients of an LSTM of several layers ignore its dropout",
        BACKWARD, _as_if_nothing_was_dropped, _drops_between_layers,
        trigger=lambda d: _input_gradient(d, (5, 2), num_layers=2, dropout=0.5),
        neighbour=lambda d: _input_gradient(d, (5, 2), num_layers=2),
        rows=ROWS,
    ),
    reported(
        "issues/190057 nan_mismatch args module",
        "an LSTM of several layers that drops everything between them is NaN throughout",
        FORWARD, _zero_times_infinity, lambda call: _drops_between_layers(call) and _options(call)[1] == 1,
        trigger=lambda d: _outputs(d, 2, num_layers=2, dropout=1.0),
        neighbour=lambda d: _outputs(d, 2, num_layers=2, dropout=0.5),
        rows=ROWS,
    ),
    reported(
        "issues/87579 crash args backward module",
        "the backward of an LSTM, batch first, ends the process unless there are as many steps as sequences",
        BACKWARD, abort, _is_batch_first_and_uneven,
        trigger=lambda d: _input_gradient(d, (5, 3), batch_first=True),
        neighbour=lambda d: _input_gradient(d, (5, 3)),
        rows=ROWS,
    ),
    reported(
        "issues/90421 silent_wrong_forward args size module", "a bidirectional LSTM is wrong for more than one sequence",
        FORWARD, _reverse_in_a_wrong_order, _is_both_ways_in_a_batch,
        trigger=lambda d: _outputs(d, 2, bidirectional=True),
        neighbour=lambda d: _outputs(d, 1, bidirectional=True),
        rows=ROWS,
    ),
)  # fmt: skip
