"""torch's compiler stays out of parity's own processes, and works where a program compiles something all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from parity.core import compiler

EXAMINES = """
import sys
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import run_plan

plan = run_plan(RunOptions(device="sim:honest", skip=("shrink",)), 0.0, None)
cases = [examine(i, plan, NoJournal()).summary.cases for name in ("add", "index_add", "gelu_backward")
         for i in suite.select([name], dtypes=["float32"])]
print(len(cases), min(cases), [m for m in ("torch._dynamo", "torch._inductor", "hypothesis") if m in sys.modules])
"""
COMPILES = """
import sys, torch
from parity.core import processes
processes.prepare_torch()
x = torch.ones(3, device="meta")
torch._refs.add(x, x)
print("torch._dynamo" in sys.modules)
print(torch.compile(lambda x: torch._refs.add(x.sin(), x), backend="eager")(torch.zeros(2)).tolist())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.cold
@pytest.mark.slow
@pytest.mark.parametrize(
    "code, told", [(EXAMINES, "3 "), (COMPILES, "False\n[0.0, 0.0]\nTrue\n")], ids=["a worker", "a program that compiles"]
)
def test_the_compiler_is_imported_by_those_who_compile(code: str, told: str) -> None:
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.startswith(told), done.stdout + done.stderr
    assert code is not EXAMINES or done.stdout.endswith(" []\n")


def test_deterministic_algorithms_are_asked_for_without_it() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        compiler.set_deterministic(True, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        compiler.set_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()
