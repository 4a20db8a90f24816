"""What is public says what it takes and raises, and shows a call that does what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

import hypothesis
import pytest
import torch

import parity
from parity.catalog import ROWS

RESULTS = {"Captured", "Comparison", "Generation", "Located", "Needs", "ParityFailure", "ParityWarning", "Training"}
SEEN_IN_OTHERS = {"Call", "Fixture"}  # a call is what a fault's effect gets; the fixture is pytest's to make
SHOWN = sorted({*parity.__all__} - RESULTS - SEEN_IN_OTHERS)


@pytest.mark.parametrize("name", SHOWN)
def test_the_example_of_a_public_name_does_what_it_shows(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = {"parity": parity, "torch": torch, "hypothesis": hypothesis, "ROWS": ROWS, "folder": tmp_path}
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(parity, name), name, globs=names)
    assert example.examples
    texts: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=texts.append)
    assert not texts, "".join(texts)
