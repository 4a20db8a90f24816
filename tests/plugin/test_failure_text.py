"""What pytest shows of a comparison that failed is short, begins with what failed, and has no frame of parity's own."""

from __future__ import annotations

import re

import pytest

OPTIONS = ("--parity-device", "sim", "-p", "no:cacheprovider", "--parity-setup", "faults.py")
FAULTY = """
from parity.devices import Fault

FAULTS = [Fault("twice", ops=("tanh",), effect=lambda call: call.run() * 2 + 1)]
"""
TESTS = """
import torch

def compare(parity):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(4, 4), torch.nn.Tanh())]
    parity(torch.nn.Sequential(*layers), torch.randn(2, 4, requires_grad=True))

def test_block(parity):
    names = 1, 2, 3
    compare(parity)

def test_of_something_else():
    numbers = [1, 2]
    assert numbers == [1, 3]
"""


def failure(text: str, test: str) -> list[str]:
    """The lines of one failure."""
    part = re.split(rf"^_+ {test} _+$", text, flags=re.M)[1]
    return re.split(r"^(?:_{9}|-{9}|={9})", part, flags=re.M)[0].splitlines()


@pytest.mark.slow
def test_a_failure_is_short_and_the_summary_says_what_failed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(faults=FAULTY, test_net=TESTS)
    short, whole = (pytester.runpytest_subprocess(*OPTIONS, *more).stdout.str() for more in ((), ("-vv",)))
    for text in (short, whole):
        summary = (
            r"test_net.py::test_block - ParityFailure: Sequential float32 on sim: tanh \S+ times the budget, test_net.py:6\n"
        )
        assert re.search(summary, text)
        assert not re.search(r"parity/\w+/\w+\.py:\d+: ", text), "no frame is of parity's own"
        assert "E       parity.ParityFailure: Sequential float32 on sim diverges from the CPU first in 1 (Tanh)" in text
    block, other = failure(short, "test_block"), failure(short, "test_of_something_else")
    assert len([line for line in block if line]) <= 20
    assert ">       parity(torch.nn.Sequential(*layers), torch.randn(2, 4, requires_grad=True))" in block
    assert any(re.fullmatch(r"E       \.\.\. \d+ more lines \(-vv\)", line) for line in block)
    assert any(line.startswith("E       next: parity run tanh --dtype float32 --device sim") for line in block)
    assert len(failure(whole, "test_block")) > 40
    assert "        numbers = [1, 2]" in other, "what is no comparison is shown as it always was"
    assert "test_net.py::test_of_something_else - assert [1, 2] == [1, 3]" in short
