"""The stand-in is what torch takes for MPS: its tensors, its words, its memory, and kernels that run late."""

from __future__ import annotations

import signal

import pytest
import torch
from standin_library import MINOR, missing
from standin_runs import HERE, ROOT, needs_standin, python

pytestmark = pytest.mark.slow

TENSORS = """
import torch
x = torch.ones(3, device="mps", requires_grad=True)
assert str(x.device) == "mps:0" and torch.backends.mps.is_available()
assert torch.accelerator.current_accelerator().type == "mps"
(x * 2).sum().backward()
assert x.grad.tolist() == [2, 2, 2]
with torch.autocast("mps", dtype=torch.float16):
    assert torch.mm(x[None], x[:, None]).dtype is torch.float16
c = torch.tensor([1 + 2j, 3 - 1j], device="mps")
assert torch.dot(c.conj(), c).item() == torch.vdot(c, c).item() == 15
assert (c[None].conj() @ c[:, None]).item() == 15
import torch.autograd.forward_ad as fwAD
with fwAD.dual_level():
    d = torch.dot(fwAD.make_dual(c, torch.ones_like(c)), c)
assert fwAD is not None and d.device.type == "mps"
t = torch.ones(3, device="mps")
t.set_()
assert t.shape == (0,) and t.device.type == "mps"
out = torch.zeros(6, device="mps")[::2]
assert torch.sgn(torch.tensor([-2.0, 0.0, 5.0], device="mps"), out=out).tolist() == [-1, 0, 1]
def drawn(draw):
    torch.manual_seed(3)
    return draw().tolist()
for draw in (
    lambda: torch.nn.functional.dropout(torch.ones(9, device="mps")),
    lambda: torch.native_dropout(torch.ones(9, device="mps"), 0.5, True)[0],
    lambda: torch.randn(9, device="mps"),
):
    assert drawn(draw) == drawn(draw) and drawn(draw) != draw().tolist()
torch.save({"x": t}, "/dev/null")
import copy
model = copy.deepcopy(torch.nn.LSTM(3, 4, num_layers=2).to("mps"))
model(torch.ones(2, 1, 3, device="mps"))[0].sum().backward()
assert model.weight_ih_l0.grad.device.type == "mps"
q = torch.ones(1, 2, 3, device="mps")
mask = torch.zeros(2, 2, device="mps", requires_grad=True)
try:
    torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum().backward()
except RuntimeError as e:
    assert "_scaled_dot_product_attention_math_for_mps" in str(e)
else:
    raise AssertionError("torch asks the mask, and sim:mps need not do otherwise")
"""

WORDS = """
import torch, warnings
one = torch.ones(2, device="mps")
def said(function):
    try:
        function()
    except Exception as e:
        return type(e).__name__, str(e)
missing = "The operator 'aten::heaviside.out' is not currently implemented for the MPS device. If you want this op"
kind, text = said(lambda: torch.heaviside(one, one))
assert kind == "NotImplementedError" and text.startswith(missing) and torch.version.git_version in text
double = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
assert said(lambda: one.double()) == ("TypeError", double + " Please use float32 instead.")
eighth = "Trying to convert Float8_e5m2 to the MPS backend but it does not have support for that dtype."
assert said(lambda: one.to(torch.float8_e5m2)) == ("TypeError", eighth)
rank = "MPS supports tensors with dimensions <= 16, but got 17."
assert said(lambda: torch.ones([1] * 17, device="mps")) == ("RuntimeError", rank)
kind, text = said(lambda: torch.mm(one[None], torch.ones(2, 1)))
assert text.startswith("Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!")
kind, text = said(lambda: torch.eye(2, device="mps").to_sparse())
assert kind == "NotImplementedError" and text == "only strided tensors are supported on MPS"
kind, text = said(lambda: torch.eye(2, device="mps").to_sparse_csr())
assert kind == "NotImplementedError" and "is not currently implemented for the MPS device" in text
with warnings.catch_warnings(record=True) as w:
    warnings.simplefilter("always")
    torch.linalg.svd(torch.eye(2, device="mps"))
(warned,) = [str(i.message) for i in w]
told = "The operator 'aten::linalg_svd' is not currently supported on the MPS backend and will fall back to run on the CPU."
assert warned.startswith(told + " This may have performance implications.")
"""

LATE = """
import torch
x = torch.arange(6.0, device="mps")
here = torch.full((6,), -1.0)
here.copy_(x * 2, non_blocking=True)
assert here.tolist() == [-1] * 6, "a copy that does not wait has nothing yet"
torch.mps.synchronize()
assert here.tolist() == [0, 2, 4, 6, 8, 10]
there = torch.ones(3)
later = torch.empty(3, device="mps").copy_(there, non_blocking=True)
there.fill_(7)
assert later.tolist() == [7, 7, 7], "an upload that does not wait reads what is there when it runs"
past = torch.tensor([9], device="mps")
picked = x.index_select(0, past) + 1
assert picked.shape == (1,), "no error yet"
for wait in (torch.mps.synchronize, x.cpu, lambda: x.sum().item()):
    x.index_select(0, past)
    try:
        wait()
    except torch.AcceleratorError as e:
        assert "out of range" in str(e)
    else:
        raise AssertionError("the error is lost")
    torch.mps.synchronize()
linear = torch.nn.Linear(6, 3).to("mps")
linear(x[None]).sum().backward()
assert linear.weight.grad.tolist() == [x.tolist()] * 3
x[2:4].mul_(2)
torch._foreach_add_([x, x[:2]], 1.0)
assert x.tolist() == [2, 3, 5, 7, 5, 6]
assert torch.nonzero(x > 5).flatten().tolist() == [3, 5]
"""


FALLING = f"""
import sys
sys.path.append({str(HERE)!r})
import standin_library
standin_library.with_kernel = lambda: []
standin_library.install()
import torch
out = torch.empty(0, device="mps")
torch.arange(3, out=out)
assert out.tolist() == [0, 1, 2] and out.device.type == "mps"
"""


@needs_standin
def test_every_operator_may_fall_back() -> None:
    """A result that grows needs no kernel to be resized, which would fall back in its turn, for ever."""
    done = python(FALLING, "", PYTORCH_ENABLE_MPS_FALLBACK="1")
    assert done.returncode == 0, done.stderr[-3000:]


@needs_standin
@pytest.mark.parametrize(
    ("program", "setup"),
    [(TENSORS, "standin.py"), (WORDS, "standin.py"), (LATE, "late_kernels.py")],
    ids=["tensors", "words", "late kernels"],
)
def test_the_stand_in_behaves_as_mps(program: str, setup: str) -> None:
    """Each program asserts; it runs plain torch on the stand-in."""
    done = python(program, setup)
    assert done.returncode == 0, done.stderr[-3000:]


@needs_standin
def test_reading_device_memory_on_the_host_ends_the_process() -> None:
    """As on a device with memory of its own: no reader of a data_ptr stays unnoticed."""
    done = python("import ctypes, torch\nt = torch.ones(3, device='mps')\nctypes.string_at(t.data_ptr(), 4)\n")
    assert done.returncode == -signal.SIGSEGV


@needs_standin
def test_why_there_is_no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason is said in words."""
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    assert missing.__wrapped__() == f"the stand-in is made for torch {MINOR}; this is 2.10.0"
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert missing.__wrapped__() == "there is no compiler 'no-such-compiler' to build the stand-in with"


def test_the_stand_in_is_in_no_wheel() -> None:
    """The wheel takes the package, the tables and the suite."""
    text = (ROOT / "pyproject.toml").read_text()
    wheel = text[text.index("[tool.hatch.build.targets.wheel]") : text.index("[tool.hatch.build.targets.sdist]")]
    assert 'packages = ["parity"]' in wheel
    assert "tests" not in wheel.replace('"tests/conformance"', "")


@needs_standin
def test_the_set_up_file_does_nothing_where_torch_has_mps() -> None:
    """A person with a Mac may leave the option in place."""
    program = f"import runpy, sys, torch\nsys.path.append({str(HERE)!r})\ntorch._C._has_mps = True\n"
    program += f"runpy.run_path({str(HERE / 'standin.py')!r})\nassert not hasattr(torch.ops.standin, 'install')\n"
    done = python(program, setup="")
    assert done.returncode == 0, done.stderr[-3000:]
