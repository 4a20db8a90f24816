"""Flags of torch that change results: they are turned off and come back, and are refused nowhere."""

from __future__ import annotations

import pytest
import torch

from parity.core.devices import Flag, all_backends, backend_of


@pytest.mark.parametrize("flag", [f for b in all_backends() for f in b.flags], ids=lambda f: f.name)
def test_a_flag_is_off_inside_and_back_outside(flag: Flag) -> None:
    """Also where importing OpInfo has frozen the flags of torch.backends; the names exist in the installed torch."""
    import torch.testing._internal.common_utils  # noqa: F401 -- freezes them

    before = flag.value()
    if before is None:
        assert not flag.in_force()
        pytest.skip("this torch was built without the library")
    with flag.without():
        assert not flag.in_force()
    assert flag.value() == before


def test_only_flags_in_force_are_tried() -> None:
    """By the backend."""
    assert backend_of("cpu").flags == ()
    before = torch.get_float32_matmul_precision()
    (flag,) = (f for f in backend_of("cuda:1").flags if f.name == "torch.set_float32_matmul_precision")
    try:
        torch.set_float32_matmul_precision("high")
        assert flag.in_force()
        torch.set_float32_matmul_precision("highest")
        assert not flag.in_force()
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_flag_that_torch_does_not_give_is_not_tried() -> None:
    """Where convolutions and recurrent cells differ, torch raises."""
    (flag,) = (f for f in backend_of("cuda").flags if f.pair == "cudnn_allow_tf32")
    assert flag.in_force()
    torch._C._set_fp32_precision_setter("cuda", "conv", "ieee")
    try:
        assert flag.value() is None
        assert not flag.in_force()
    finally:
        torch._C._set_cudnn_allow_tf32(True)
    assert flag.in_force()
