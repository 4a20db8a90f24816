"""The page of `parity locate`: where a model diverges, and the tree of its modules."""

from __future__ import annotations

import math
import re

import torch

import parity
from parity.core.status import Conclusion
from parity.devices import Fault, resolve
from parity.locating.located import Located
from parity.locating.modules import ModuleError
from parity.report.located import page

SPOILT = Fault("gelu", ("gelu_backward",), lambda c: c.run() * 1.01)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def test_the_module_that_diverges_is_marked_in_the_tree() -> None:
    """With its error, and those of the modules behind it; what a person needs first is above."""
    found = parity.locate(model(), torch.randn(32, 8), device=resolve("sim", (SPOILT,)), modules=True)
    text = page({"net.py:net": found}, Conclusion.FAIL)
    assert f"<title>parity locate: FAIL on sim, torch {torch.__version__}: net.py:net</title>" in text
    assert "net.py:net: Sequential float32 on sim diverges from the CPU first in 1 (GELU), backward" in text
    assert "<dt>operator</dt><dd>aten::gelu_backward drift" in text
    assert f"<dt>workaround</dt><dd>{found.workaround}</dd>" in text
    marked = re.findall(r'<li class="first"><div class="leaf"><code>(.*?)</code> <span class="soft">(.*?), ran as', text)
    assert marked == [("1", "GELU")]
    assert re.findall(r"<code>(.*?)</code> <span", text) == ["the model", "0", "1", "2"]  # in the order in which they ran
    assert text.count("diverges first</b>") == 1
    assert "gradient of weight" in text
    assert "<script" not in text
    assert "<pre" not in text


def test_a_healthy_model_marks_nothing() -> None:
    """Its modules are there all the same."""
    found = parity.locate(model(), torch.randn(4, 8), device="sim", modules=True)
    text = page({"net.py:net": found}, Conclusion.PASS)
    assert "<title>parity locate: PASS on sim, torch " in text
    assert 'class="first"' not in text
    assert "is marked" not in text
    assert "no operator diverges" in text
    assert "<p>the results are equal to the CPU&#39;s</p>" in text
    assert text.count("<li>") == 4  # the model and its three layers


def test_containers_hold_their_modules_and_what_agrees_is_closed() -> None:
    """A keyboard opens them: they are details with a summary."""
    errors = tuple(ModuleError(n, "Linear", far) for n, far in (("", 5.0), ("near.0", 0.5), ("far.0", 5.0)))
    text = page({"net.py:net": Located("Net float32 on sim", "float32", "sim", modules=errors)}, Conclusion.PASS)
    assert re.findall(r"<details( open)?><summary>\s*<code>(.*?)</code>", text) == [
        (" open", "the model"),
        ("", "near"),
        (" open", "far"),
    ]


def test_names_stay_text_and_numbers_without_end_are_drawn() -> None:
    """A model's names come from its own code."""
    odd = ModuleError("<b>layer</b>", "<script>alert(1)</script>", math.inf, 0.0, {"a.w&b": 3.0})
    text = page({"<i>": Located("Net float32 on sim", "float32", "sim", modules=(odd,))}, Conclusion.PASS)
    assert "<script>alert" not in text
    assert "&lt;b&gt;layer&lt;/b&gt;" in text
    assert "width: 100.0%" in text
    assert '<span class="soft">gradient of w&amp;b</span> 3' in text


def test_the_page_has_colours_for_light_and_dark_and_fits_a_phone() -> None:
    """Every colour is a token, and no width is larger than the screen's."""
    text = page({"net.py:net": Located("Net float32 on sim", "float32", "sim")}, Conclusion.PASS)
    style = text.partition("<style>")[2].partition("</style>")[0]
    rules = style.partition("* {")[2]
    assert "prefers-color-scheme: dark" in style
    assert not re.findall(r"#[0-9a-f]{3,6}\b", rules)
    assert not re.findall(r"(?<!max-)width: *\d{3,}px", rules)
