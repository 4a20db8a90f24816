"""The simulated MPS refuses what torch itself expects MPS to refuse (float32, forward), and nothing else.

torch's list is UNIMPLEMENTED_XFAILLIST of `torch/testing/_internal/common_mps.py`, exact in both directions
on its own Macs. The profile is not built from it, but from torch's operator table.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SAMPLES = 8  # per OpInfo at least, where there are as many, evenly spaced

# On torch's list for a reason that no operator table can tell.
RUNTIME_LIMITS = {
    "nn.functional.adaptive_avg_pool1d": "sizes must be divisible",
    "nn.functional.adaptive_avg_pool2d": "sizes must be divisible",
    "double": "float64",
    "cdouble": "complex128",
    "float_power": "float64",
    "log_softmaxwith_dtype": "float64",
    "to": "float64 in its samples",
    "masked.median": "unexplained",
    "svd_lowrank": "every operator is there; it starts from random numbers, which differ, and fails the comparison",
}
# Refused by the table, and expected to fail on MPS by a decorator of the OpInfo itself.
NAMED_ELSEWHERE = {"nn.functional.channel_shuffle"}
# Computed by torch with float64 in between, except where it finds a tensor on MPS: these must not be refused for it.
FLOAT64_IN_BETWEEN = {  # name -> why it is refused nevertheless
    "linalg.lstsq": "refused for want of a kernel",
    "linalg.lstsqgrad_oriented": "refused for want of a kernel",
    "linalg.matrix_rank": "refused for want of a kernel",
    "linalg.matrix_rankhermitian": "refused for want of a kernel",
    "linalg.pinv": "",
    "linalg.pinvhermitian": "refused for want of a kernel",
    "linalg.pinvsingular": "",
    "nn.functional.batch_norm": "",
    "pinverse": "",
    "renorm": "",
}
# Their samples ask for float64 themselves.
ASKED_FOR_FLOAT64 = {
    *("double", "float_power", "full_like", "log_softmaxwith_dtype", "nn.functional.softminwith_dtype", "ones_like"),
    *("rand_like", "randn_like", "softmaxwith_dtype", "to", "zeros_like", "empty_like", "new_empty", "new_empty_strided"),
    *("new_full", "new_ones", "new_zeros", "randint", "randint_like"),
}


@pytest.fixture(scope="module")
def found() -> Any:
    """What every OpInfo met on sim:mps."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTORCH_ENABLE_MPS_FALLBACK", None)
    command = [sys.executable, __file__]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_float64_is_refused_only_to_those_who_ask_for_it(found: Any) -> None:
    met = {name for name, text in found["errors"].items() if "float64" in text}
    assert met <= ASKED_FOR_FLOAT64
    for name, why in FLOAT64_IN_BETWEEN.items():
        assert (name in found["refused"]) == bool(why), name
        assert why or name in found["ran"], name


def test_the_simulated_mps_refuses_exactly_what_torch_lists(found: Any) -> None:
    expected = _expected_to_be_refused()
    refused = found["refused"]
    assert len(found["ran"]) > 550, "too few ops ran for this to say anything"
    assert {k: v for k, v in refused.items() if k not in expected | NAMED_ELSEWHERE} == {}
    assert (expected & set(found["ran"])) - RUNTIME_LIMITS.keys() == set()
    assert set(refused) >= NAMED_ELSEWHERE


def _expected_to_be_refused() -> set[str]:
    """Keys of torch's lists that hold for float32, read from the source: they are local to a function for Macs.

    ON_MPS_XFAILLIST stands first for the forward ops: those that need an operator of the other list.
    """
    import torch

    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "testing/_internal/common_mps.py").read_text()
    tables: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.AnnAssign, ast.Assign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = getattr(target, "id", "")
            if name in ("UNIMPLEMENTED_XFAILLIST", "ON_MPS_XFAILLIST") and name not in tables and node.value is not None:
                tables[name] = eval(compile(ast.Expression(node.value), "common_mps", "eval"), {"torch": torch})
    assert len(tables) == 2, "torch's lists have moved; this test must follow them"
    return {name for t in tables.values() for name, dtypes in t.items() if dtypes is None or torch.float32 in dtypes}


def _probe() -> dict[str, Any]:
    """Every OpInfo on sim:mps, forward, float32. Runs in a process of its own: the import freezes torch's backend flags."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from parity.devices import classify, resolve

    torch.set_num_threads(1)
    device = resolve("sim:mps")

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            return x.detach().to(device.torch_device)
        return torch.device(device.torch_device) if isinstance(x, torch.device) else x

    found: dict[str, Any] = {"refused": {}, "ran": [], "errors": {}}
    rows: Any = op_db  # untyped in torch
    for op in rows:
        name = op.name + op.variant_test_name
        if torch.float32 not in op.dtypes or "jiterator" in name:
            continue
        ran = False
        torch.manual_seed(0)
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
        for sample in samples[:: max(1, len(samples) // SAMPLES)]:
            try:
                s = sample.transform(move)
                if "device" in s.kwargs:  # a factory: its samples name the device they were made for
                    s.kwargs["device"] = device.torch_device
                op(s.input, *s.args, **s.kwargs)
                ran = True
            except Exception as e:
                kind = classify(e) if not isinstance(e, TypeError) else "error"
                key = "refused" if kind == "refused" else "errors"
                found[key].setdefault(name, str(e)[:150])
                if key == "refused":
                    break
        if name not in found["refused"] and ran:
            found["ran"].append(name)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(_probe()))
