"""Two results that are there already: judged, and what is said where the truth was not asked."""

from __future__ import annotations

import math
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from parity.comparing.comparison import ParityWarning
from parity.comparing.pair import EQUAL, EXPONENT, compare
from parity.core.errors import NothingCompared, UsageError
from parity.core.results import Status
from parity.devices import resolve


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_two_results_are_judged_and_nothing_is_raised() -> None:
    x = normal(6, 4)
    y = torch.softmax(x, -1)
    good = compare(torch.softmax, y * (1 + 2.0**-23), y, x, dim=-1)
    assert not good.findings
    assert 0 < good.share <= 1
    bad = compare(torch.softmax, y * 1.001, y, x, dim=-1)
    assert [v.status for _, v in bad.findings] == [Status.DRIFT]
    assert compare(torch.softmax, y[:3], y, x, dim=-1).findings[0][1].status is Status.MALFORMED
    assert [n for n, _ in compare(torch.sort, (y,), (y, y), x).findings] == ["out[1]"]


def test_results_on_a_device_are_judged_by_its_table() -> None:
    device = resolve("sim")
    x = normal(4)
    got = compare(torch.exp, device.upload(x.exp() * 1.5), x.exp(), x)
    assert got.subject == "exp float32 on sim"
    assert got.findings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_identical_results_are_answered_at_once_as_they_would_be_at_length(dtype: torch.dtype) -> None:
    x = torch.arange(6.0).to(dtype)
    cases: list[tuple[Any, tuple[Any, ...]]] = [(torch.add, (x, x)), (torch.mul, (x, 2)), (lambda a: a * 2, (x,))]
    for fn, inputs in cases:
        result = fn(*inputs)
        at_once = compare(fn, result.clone(), result, *inputs)
        with mock.patch("parity.comparing.pair._same", return_value=None):
            assert at_once == compare(fn, result.clone(), result, *inputs)


def test_equal_results_say_that_no_truth_was_asked() -> None:
    x = normal(5)
    twice = x.exp() * 2  # both wrong
    for inputs in ((), (x,)):
        found = compare(torch.exp, twice, twice.clone(), *inputs)
        assert not found.findings
        assert found.notes == (EQUAL,)
        assert "insist=True" in str(found)
    assert compare(torch.exp, [twice], [twice.clone()], x).notes == (EQUAL,)
    assert EQUAL not in compare(torch.exp, x.exp() * (1 + 2.0**-23), x.exp(), x).notes


def test_who_insists_has_equal_results_judged_by_the_truth() -> None:
    x, n = normal(5), torch.arange(3)
    twice = x.exp() * 2
    assert [v.status for _, v in compare(torch.exp, twice, twice.clone(), x, insist=True).findings] == [Status.WRONG]
    assert [v.status for _, v in compare(torch.neg, n, n.clone(), n, insist=True).findings] == [Status.WRONG]
    right = compare(torch.exp, x.exp(), x.exp(), x, insist=True)
    assert not right.findings
    assert not right.notes
    assert 0 < right.share <= 1
    assert not compare(torch.neg, -n, -n, n, insist=True).findings
    picked = compare(torch.argmax, x.argmax(), x.argmax(), x, insist=True)
    assert picked.notes == ("out is int64 made of rounded numbers: judged against the reference",)


def test_results_and_inputs_belong_to_one_call() -> None:
    x = normal(5)
    y = x.exp()
    with pytest.raises(UsageError, match=r"exp raises with the inputs given, .* TypeError: .*; give the inputs of"):
        compare(torch.exp, y * 1.01, y)
    with pytest.raises(UsageError, match="exp raises with the inputs given"):
        compare(torch.exp, y, y, insist=True)
    with pytest.raises(UsageError, match=r"the results given are out \[5\], and exp gives out \[3\] for these inputs; give"):
        compare(torch.exp, y * 1.01, y, normal(3))
    with pytest.raises(UsageError, match=r"the results given are out\[0\] \[\], out\[1\] \[\], and exp gives out \[5\]"):
        compare(torch.exp, [1, 2], [1, 2], x, insist=True)


def test_arrays_are_results_and_what_holds_no_number_is_named() -> None:
    x = normal(5)
    assert compare(torch.exp, (x.exp() * 1.2).numpy(), x.exp().numpy(), x).findings
    assert not compare(torch.exp, x.exp().numpy(), x.exp(), x, insist=True).findings
    with pytest.raises(NothingCompared, match=r"no tensor with elements was given that parity compares \(out is a str\)"):
        compare(torch.exp, "y", "y", x)
    with pytest.raises(UsageError, match="out is a set, which has no order; return a list"):
        compare(torch.exp, {x}, {x}, x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_nested_tensor_is_compared_by_its_components_and_not_asked_for_its_sizes(factor: float) -> None:
    def made(x: Tensor, by: float = 1.0) -> Tensor:
        return torch.nested.nested_tensor([x[:2].exp(), x.exp() * by])

    found = compare(made, made(normal(3), factor), made(normal(3)), normal(3))
    assert [n for n, _ in found.findings] == (["out[1]"] if factor > 1.0 else [])


@pytest.mark.parametrize("dtype", list(EXPONENT))
def test_results_of_nothing_but_nan_are_told(dtype: torch.dtype) -> None:
    """Also by the way out for equal bits, which looks at the first element alone."""
    x = normal(4).to(dtype)
    with pytest.warns(ParityWarning, match="every element of out is NaN on both sides: this compares"):
        found = compare(torch.exp, x * math.nan, x * math.nan, x)
    assert found.notes[0].startswith("every element of out is NaN on both sides")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        some = torch.where(torch.arange(4) == 0, torch.full_like(x, math.nan), x)
        assert compare(torch.exp, some, some.clone(), x).notes == (EQUAL,)
