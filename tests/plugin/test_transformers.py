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
LOCATED = """
from parity.faces import commandline as cli

command = ["locate", "hf-small:BertModel", "--device", "sim", "--no-backward"]
print(cli.main(command), end="\\f")
print(cli.main([*command, "--setup", "faults.py"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers: pip install transformers")
def test_a_small_bert_agrees_and_a_fault_in_it_is_named(tmp_path: Path) -> None:
    """In a process of its own, since transformers changes what it finds loaded."""
    (tmp_path / "faults.py").write_text(FAULTS)
    done = subprocess.run([sys.executable, "-P", "-c", LOCATED], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    healthy, faulty = done.stdout.split("\f")
    assert "inputs input_ids=int64[2, 16].index(" in healthy, done.stdout + done.stderr
    assert "hf-small:BertModel agrees" in healthy
    assert healthy.endswith("\n0")
    assert "aten::gelu" in faulty
    assert faulty.endswith("\n1\n")
