"""The page for libraries keeps its promises: its Python blocks run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / ".github" / "LIBRARIES.md").read_text(encoding="utf-8")


def test_every_block_of_python_runs(pytester: pytest.Pytester) -> None:
    """The tests pass on the simulated device, and the models are compared as the page says."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 5
    for k, block in enumerate(blocks[:-1]):
        (pytester.path / f"test_block_{k}.py").write_text(block)
    assert blocks[-1].startswith("# models.py\n")
    (pytester.path / "models.py").write_text(blocks[-1])
    ini = re.findall(r"```ini\n(.*?)```", PAGE, re.S)
    (pytester.path / "pytest.ini").write_text(ini[0].replace("auto", "sim"))
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)
    done = pytester.run(sys.executable, "-m", "parity", "run", "models.py", "--device", "sim")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["compared *1 op, 1 op x dtype pair, 5 checks (forward 1, backward 4)"])
