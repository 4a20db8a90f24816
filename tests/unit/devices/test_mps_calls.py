"""What MPS makes of an operator by a table, and which of its refusals a call meets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from parity.core.backends import mps
from parity.devices.mps_calls import Answer, answer, refusal
from parity.devices.operator_table import Table, installed

LATER = Table("2.14.0", {"_linalg_svd": frozenset({"MPS"}), "linalg_svd": frozenset()})


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("aten::add.out", Answer.KERNEL),
        ("aten::linear", Answer.KERNEL),
        ("aten::add.Tensor", Answer.KERNEL),  # by structured_delegate
        ("aten::matmul", Answer.COMPOSED),
        ("aten::alias", Answer.COMPOSED),
        ("aten::heaviside.out", Answer.MISSING),
        ("aten::linalg_svd", Answer.ON_CPU),
        ("aten::linalg_lu_solve.out", Answer.KERNEL),  # registered from Python
        ("torchvision::nms", Answer.KERNEL),  # of its wheel for macOS
        ("mine::nms", Answer.UNKNOWN),
        ("aten::of_another_torch", Answer.UNKNOWN),
    ],
)
def test_an_operator(operator: str, expected: Answer) -> None:
    assert answer(operator, installed()) is expected


def test_a_later_torch_may_have_the_kernel() -> None:
    assert answer("aten::linalg_svd", LATER) is Answer.COMPOSED


HALF, WHOLE = torch.ones(1, 2, 3, 3, 3, dtype=torch.float16), torch.ones(1, 2, 3, 3)
PIVOT: dict[str, Any] = {"pivot": False}


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "begins"),
    [
        ("aten::_adaptive_avg_pool2d", (torch.ones(1, 5, 5), [3, 3]), {}, "Adaptive pool MPS: input sizes"),
        ("aten::_adaptive_avg_pool2d", (torch.ones(1, 6, 6), [3, 3]), {}, ""),
        ("aten::adaptive_max_pool2d.out", (torch.ones(1, 2, 2), [3, 3]), {}, "Adaptive pool MPS: output sizes"),
        ("aten::_mps_convolution", (WHOLE.long(), WHOLE.long()), {}, "Convolution is supported only for Floating"),
        ("aten::_mps_convolution", (WHOLE, WHOLE), {}, ""),
        ("aten::_mps_convolution_transpose", (HALF, HALF), {}, "ConvTranspose 3D"),
        ("aten::linear", (torch.ones(2, 2).int(), torch.ones(2, 2).int()), {}, "MPS device does not support linear"),
        ("aten::linear", (torch.ones(2, 2).to(torch.complex64), torch.ones(2, 2)), {}, ""),
        ("aten::_lstm_mps", (WHOLE, [torch.ones(1, 2, 3), torch.ones(1, 2, 4)]), {}, "LSTM with projections"),
        ("aten::_lstm_mps", (WHOLE, [torch.ones(1, 2, 4), torch.ones(1, 2, 4)]), {}, ""),
        ("aten::linalg_lu_factor_ex.out", (torch.eye(2),), PIVOT, "linalg.lu_factor(): MPS doesn't allow pivot"),
        ("aten::linalg_inv_ex.inverse", (torch.eye(2).to(torch.complex64),), {}, "linalg_inv: not supported for complex"),
    ],
)
def test_a_refusal(operator: str, args: Sequence[Any], kwargs: dict[str, Any], begins: str) -> None:
    said = refusal(operator, args, kwargs, "2.13.0")
    assert said.startswith(begins)
    assert bool(said) is bool(begins)
    assert not said or any(w.pattern.search(said) for w in mps.REFUSALS), "no words of MPS"


def test_a_refusal_holds_for_the_versions_that_have_its_text() -> None:
    call: tuple[str, Any, dict[str, Any]] = ("aten::linalg_qr.out", (torch.eye(2, dtype=torch.float16),), {})
    assert refusal(*call, "2.13.0")
    assert not refusal(*call, "2.14.1")
