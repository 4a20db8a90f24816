"""Which operands may stay on the CPU: asked of torch itself."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

from parity import catalog
from parity.catalog.draw import Sizes
from parity.core.case import TensorSpec
from parity.core.notation import case_text, parse
from parity.generation.generate import search
from parity.generation.mixing import is_taken, pick_operand


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("add(float32[()], float32[3])", [0]),
        ("add(float32[3], float32[()])", [1]),
        ("addcmul(float32[3], float32[3], float32[()])", [2]),
        ("addcdiv(float32[3], float32[3], float32[()])", []),  # torch 2.13 asks for one device there
        ("clamp(float32[3], min=float32[()])", []),
        ("lerp(float32[3], float32[3], float32[()])", [2]),
        ("where(bool[3], float32[3], float32[()])", [2]),
        ("logical_and(float32[()], float32[3])", []),  # its result would be made on the CPU
        ("masked_fill(float32[3], bool[3], float32[()])", [2]),
        ("index_fill(float32[3], 0, int64[2].index(0, 3), float32[()])", [2]),
        ("fill_(float32[3], float32[()])", [1]),
        ("copy_(float32[3], float32[3])", [0, 1]),
        ("index_put(float32[3], (int64[2].unique(3),), float32[2])", [1]),
        ("mm(float32[2, 2], float32[2, 2])", []),
        ("gather(float32[3], 0, int64[2].index(0, 3))", []),
    ],
)
def test_operands_that_may_stay(text: str, wanted: list[int]) -> None:
    case = parse(text)
    drawn = {pick_operand(catalog.row(case.op), case.args, case.kwargs, functools.partial(operator.mod, k)) for k in range(3)}
    assert sorted(k for k in drawn if k is not None) == wanted


@pytest.mark.parametrize("name", ["hypot", "copy_", "setitem", "masked_fill", "index_put", "lerp"])
def test_they_are_drawn_and_read_back(name: str) -> None:
    cases = [d.case for d in search(catalog.row(name), "float32", Sizes(), "1", 400)]
    mixed = [c for c in cases if ".on_cpu()" in case_text(c)]
    assert len(mixed) >= 5
    assert all(case_text(parse(case_text(c))) == case_text(c) for c in mixed)
    if name in ("hypot", "copy_"):
        assert any(isinstance(c.args[0], TensorSpec) and c.args[0].on_cpu for c in mixed)


def test_whether_random_numbers_are_finite_depends_on_no_earlier_draws() -> None:
    """Else a seed would draw other cases in another process: some draws of this distribution overflow, some don't."""
    row, case = catalog.row("cauchy_"), parse("cauchy_(float16[30000].normal(), 0.0, 1.0)")
    answers = set()
    with torch.random.fork_rng(devices=[]):
        for seed in range(12):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            answers.add(is_taken(row, case, finite=True))
            assert torch.equal(torch.get_rng_state(), before)
    assert len(answers) == 1
