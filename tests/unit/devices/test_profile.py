"""`sim:mps` refuses what MPS refuses, in its words, and nothing in between."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from parity.devices import classify, resolve
from parity.devices.operator_table import dispatch_keys, table_path
from parity.devices.sim.profile import mps_operators, mps_profile

ROOT = Path(__file__).parents[3]
X = torch.rand(3, 4)


def test_the_table_is_torchgens_own_reading() -> None:
    pytest.importorskip("yaml")
    from torchgen.gen import parse_native_yaml  # type: ignore[import-untyped]  # torch ships it without types
    from torchgen.model import DispatchKey  # type: ignore[import-untyped]  # torch ships it without types

    start = time.perf_counter()
    dispatch_keys.cache_clear()
    read = {n for n, keys in dispatch_keys(table_path()).items() if "MPS" in keys}
    assert time.perf_counter() - start < 1.5
    parsed = parse_native_yaml(str(table_path()), str(table_path().with_name("tags.yaml")))
    index = parsed.backend_indices[DispatchKey.MPS]
    with_kernel = {str(f.func.name) for f in parsed.native_functions if index.has_kernel(f)}
    delegates = {
        str(f.func.name)
        for f in parsed.native_functions
        if f.structured_delegate is not None and str(f.structured_delegate) in with_kernel
    }
    assert read == with_kernel | delegates
    assert "linalg_lu_solve.out" in mps_operators()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda d: torch.ones(2, dtype=torch.float64, device=d), "Cannot convert a MPS Tensor to float64 dtype as the MPS "),
        (lambda d: X.to(d).double(), "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't"),
        (lambda d: X.double().to(d), "Please use float32 instead."),
        (lambda d: X.to(d).sum(dtype=torch.float64), "Please use float32 instead."),
        (lambda d: torch.zeros(2, dtype=torch.complex128, device=d), "Trying to convert ComplexDouble to the MPS backend but"),
        (lambda d: torch.zeros(2, dtype=torch.float8_e5m2, device=d), "Trying to convert Float8_e5m2 to the MPS backend but"),
    ],
)
def test_dtypes_that_mps_lacks(make: Callable[[torch.device], object], text: str) -> None:
    with pytest.raises(TypeError) as e:
        make(resolve("sim:mps").torch_device)
    assert text in str(e.value)
    assert classify(e.value) == "refused"


def test_the_permissive_profile_takes_float64_at_the_same_time() -> None:
    resolve("sim:mps")
    assert torch.ones(2, dtype=torch.float64, device=resolve("sim").torch_device).sum().item() == 2


def test_seventeen_dimensions() -> None:
    device = resolve("sim:mps").torch_device
    torch.ones([1] * 16, device=device)
    with pytest.raises(RuntimeError) as e:
        torch.ones([1] * 17, device=device)
    assert str(e.value) == "MPS supports tensors with dimensions <= 16, but got 17."


@pytest.mark.skipif("PYTORCH_ENABLE_MPS_FALLBACK" in os.environ, reason="the fallback is on")
def test_a_missing_operator_forward_and_backward() -> None:
    device = resolve("sim:mps")
    with pytest.raises(NotImplementedError) as e:
        torch.heaviside(device.upload(X), device.upload(X))
    assert str(e.value) == (
        "The operator 'aten::heaviside.out' is not currently implemented for the MPS device. If you want this op to be "
        "considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, "
        f"that resulted in missing op as well as commit hash {torch.version.git_version}. As a temporary fix, you can set "
        "the environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this "
        "will be slower than running natively on MPS."
    )
    image = device.upload(torch.rand(1, 1, 4, 4)).requires_grad_()
    y = F.interpolate(image, size=(2, 2), mode="bilinear", antialias=True)
    with pytest.raises(NotImplementedError, match="_upsample_bilinear2d_aa_backward"):
        y.sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type


def test_operators_of_torchvision_run_and_those_of_others_do_not() -> None:
    """torchvision's wheel for macOS has kernels for Metal; nobody knows of others."""
    mps_profile().admit("torchvision::nms", "nms")
    with pytest.raises(NotImplementedError, match="'mine::nms' is not currently implemented for the MPS device"):
        mps_profile().admit("mine::nms", "nms")


def test_float64_inside_torch_is_no_refusal() -> None:
    device = resolve("sim:mps")
    a = device.upload(X @ X.t() + torch.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.linalg.pinv(a)
        torch.linalg.pinv(a, atol=0.1, rtol=0.1)
        torch.pinverse(a)
    F.batch_norm(device.upload(torch.ones(0, 3)), device.upload(torch.ones(3)), device.upload(torch.ones(3)))
    b = device.upload(X).requires_grad_()
    torch.renorm(b, 2, 0, 0.1).sum().backward()  # type: ignore[no-untyped-call]  # torch tells no type


def test_with_the_fallback_on_the_first_missing_operator_is_told_and_computed() -> None:
    program = (
        "import torch, warnings\nfrom parity.devices import resolve\nd = resolve('sim:mps')\nx = d.upload(torch.ones(2))\n"
        "with warnings.catch_warnings(record=True) as w:\n"
        "    warnings.simplefilter('always')\n"
        "    assert torch.heaviside(x, x).tolist() == [1, 1]\n"
        "    torch.take(x, d.upload(torch.tensor([0])))\n"
        "    first = len(w)\n"
        "    torch.set_warn_always(True)\n"
        "    torch.take(x, d.upload(torch.tensor([0])))\n"
        "text = \"The operator 'aten::%s' is not currently supported on the MPS backend and will fall back \" \\\n"
        "    'to run on the CPU. This may have performance implications.'\n"
        "assert [str(i.message) for i in w] == [text % 'heaviside.out', text % 'take']\n"
        "assert first == 1\n"
    )
    environment = {**os.environ, "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_importing_registers_nothing() -> None:
    program = "import torch, parity.devices\nassert not hasattr(torch, 'sim')\nassert not torch.accelerator.is_available()\n"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
