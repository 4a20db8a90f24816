"""The page of `parity locate`: where a model parts, and a table of its modules."""

from __future__ import annotations

import math
import re

import torch

import parity
from parity.devices import Fault, resolve
from parity.locating.located import Located
from parity.locating.modules import ModuleError
from parity.report.located import page

SPOILT = Fault("gelu", ("gelu_backward",), lambda c: c.run() * 1.01)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def test_the_module_that_parts_is_marked_and_stands_first() -> None:
    """With its error, and those of the modules behind it."""
    found = parity.locate(model(), torch.randn(32, 8), device=resolve("sim", (SPOILT,)), modules=True)
    text = page({"net.py:net": found})
    assert "net.py:net: Sequential float32 on sim diverges from the CPU first in 1 (GELU), backward" in text
    marked = re.findall(r'<tr class="first"><td><code>(.*?)</code> <span class="soft">(.*?)</span>', text)
    assert marked == [("1", "GELU")]
    assert re.findall(r"<td><code>(.*?)</code>", text)[:2] == ["1", "0"]  # the worst first, then the one behind it
    assert "weight" in text
    assert "<script" not in text


def test_a_healthy_model_marks_nothing() -> None:
    """Its modules are there all the same."""
    found = parity.locate(model(), torch.randn(4, 8), device="sim", modules=True)
    text = page({"net.py:net": found})
    assert 'class="first"' not in text
    assert "is marked" not in text
    assert "no operator diverges" in text
    assert text.count("<tr>") == 5  # a head, three layers and the model


def test_names_stay_text_and_numbers_without_end_are_drawn() -> None:
    """A model's names come from its own code."""
    odd = ModuleError("<b>layer</b>", "<script>alert(1)</script>", math.inf, 0.0, {"a.w&b": 3.0})
    text = page({"<i>": Located("Net float32 on sim", "float32", "sim", modules=(odd,))})
    assert "<script>alert" not in text
    assert "&lt;b&gt;layer&lt;/b&gt;" in text
    assert "width: 100.0%" in text
    assert "w&amp;b 3" in text
