"""A model of the real transformers, where it is installed: `tests/unit/comparing/test_named.py` has packages of its shape."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
from parity.devices import Fault

FAULTS = [Fault("gelu", ("gelu",), lambda call: call.run() * 1.01, level="kernel")]
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers: pip install transformers")
def test_a_small_bert_agrees_and_a_fault_in_it_is_named(tmp_path: Path) -> None:
    """In processes of their own, since transformers changes what it finds loaded."""
    (tmp_path / "faults.py").write_text(FAULTS)
    command = [sys.executable, "-P", "-m", "parity", "locate", "hf-small:BertModel", "--device", "sim", "--no-backward"]

    def located(*more: str) -> tuple[int, str]:
        done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    code, said = located()
    assert code == 0, said
    assert "inputs input_ids=int64[2, 16].index(" in said
    assert "hf-small:BertModel agrees" in said
    code, said = located("--setup", "faults.py")
    assert code == 1, said
    assert "aten::gelu" in said
