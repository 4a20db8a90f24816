"""Tries whether the CPU computes a call, because what torch takes is not known beforehand."""

from __future__ import annotations

import warnings

import torch

from parity.catalog.row import Row
from parity.core.case import Case
from parity.execution.execute import Placed, backward, differentiable, forward, program
from parity.execution.inputs import build


def is_taken(row: Row, case: Case, finite: bool = False) -> bool:
    """Whether the CPU computes the call, and its gradients where the case records them; where `finite`, of finite numbers.
    Leaves torch's random state as it was."""
    inputs = build(case)
    placed = Placed(tuple([o.base for o in inputs.operands]), tuple([o.view for o in inputs.operands]))
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            live = forward(program(row), case, inputs, placed, case.under == "grad" and bool(row.grad))
            if cotangents := [torch.ones_like(t) for _, t in differentiable(live)]:
                backward(live, cotangents)
    except Exception:  # whatever torch, or parity's own function around it, raises for a call that it does not take
        return False
    finally:
        torch.set_rng_state(state)
    return not finite or all(bool(t.isfinite().all()) for _, t in live.outputs)
