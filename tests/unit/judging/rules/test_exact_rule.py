"""Results that are promised to the bit."""

from __future__ import annotations

import torch
from benches import bench_of

from parity.core.results import Status
from parity.judging.judge import judge
from parity.judging.rules import Exact


def test_one_ulp_is_wrong_in_the_forward_and_a_rounding_in_a_gradient() -> None:
    bench = bench_of("clone(float32[3].normal(seed=1))")
    (x,) = bench.oracle.operands
    out = x.float()
    off = torch.nextafter(out, torch.full_like(out, 9.0))
    assert judge(bench, {"out": out}, {"out": out.clone()}, "forward")[0].status is Status.AGREE
    assert judge(bench, {"out": off}, {"out": out}, "forward")[0].status is Status.WRONG
    bench.oracle.differentiate([torch.full((3,), 0.1)])
    gradient = torch.full((3,), 0.1)
    near = torch.nextafter(gradient, torch.ones(3))
    assert judge(bench, {"grad[0]": near}, {"grad[0]": gradient}, "backward")[0].status is Status.AGREE


def test_nothing_is_rounded_on_the_way_or_added_up() -> None:
    assert Exact.exact
    assert not Exact.rounds
    assert not Exact.adds_terms
