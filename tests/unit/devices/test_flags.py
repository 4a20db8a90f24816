"""Flags of torch that change results: they are turned off and come back, and are refused nowhere."""

from __future__ import annotations

import pytest
import torch

from parity.devices.flags import FLAGS, Flag, in_force


@pytest.mark.parametrize("flag", FLAGS["cuda"], ids=lambda f: f.name)
def test_a_flag_is_off_inside_and_back_outside(flag: Flag) -> None:
    """Also where importing OpInfo has frozen the flags of torch.backends; the names exist in the installed torch."""
    import torch.testing._internal.common_utils  # noqa: F401 -- freezes them

    before = flag.in_force()
    with flag.off():
        assert not flag.in_force()
    assert flag.in_force() is before


def test_only_flags_in_force_are_tried() -> None:
    """By the type of the device."""
    assert in_force("cpu") == ()
    before = torch.get_float32_matmul_precision()
    name = "torch.set_float32_matmul_precision"
    try:
        torch.set_float32_matmul_precision("high")
        assert name in {f.name for f in in_force("cuda")}
        torch.set_float32_matmul_precision("highest")
        assert name not in {f.name for f in in_force("cuda")}
    finally:
        torch.set_float32_matmul_precision(before)
