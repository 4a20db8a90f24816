"""The few lines of plain torch for a report: they show the fault on a faulty device and nothing on a healthy one."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import pytest
import torch

from parity.checks.metadata import ALIASING
from parity.core import notation
from parity.core.results import Cause, Fingerprint, Record
from parity.devices import Call, Fault, resolve
from parity.devices.base import Device
from parity.report import issue
from parity.report.issue import ScriptRun
from parity.report.script_text import on_fewer_lines
from parity.report.short_script import LINES, minimal
from parity.store.rows import Death, Header


def larger(call: Call) -> Any:
    """All results 1 % too large."""
    result = call.run()
    if isinstance(result, torch.Tensor):
        return result * 1.01
    return tuple(x * 1.01 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in result)


def dense(call: Call) -> Any:
    """Destinations are written as if they were contiguous."""
    result = call.run()
    for out in call.outs:
        call.memory(out)[: out.numel()].copy_(out.clone().reshape(-1))
    return result


def shifted(call: Call) -> Any:
    """What is in place, 1 too large."""
    result = call.run()
    call.operands[0].add_(1)
    return result


class _Now:
    """Another result each time."""

    calls = 0

    def __call__(self, call: Call) -> Any:
        self.calls += 1
        return call.run() + self.calls


def accepting(call: Call) -> Any:
    """Computes what must be refused."""
    return call.args[0].clone(), torch.zeros_like(call.run()[1])


def printed(text: str, device: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What the script prints for the CPU and for a device of this process."""
    place = str(device.torch_device)
    monkeypatch.setattr(sys, "argv", ["script", place])
    capsys.readouterr()
    with device.active(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "script", "exec"), {"__name__": "script"})
    out = re.sub(rf", device='{place}(:0)?'|, grad_fn=<[^>]*>", "", capsys.readouterr().out)
    cpu, _, other = out.partition(f"\n{place} ")
    return cpu.removeprefix("cpu ").strip(), other.strip()


KINDS = [
    ("softmax(float32[1, 3], dim=-1)", "forward", "_softmax", larger),
    ("softmax(float16[2, 3].transpose(0, 1), dim=-1)", "backward", "_softmax_backward_data", larger),
    ("exp(float32[4].step(-1, 2, 0))", "in-place", "exp", shifted),
    ('exp(float32[2, 2]).into("transposed")', "out=", "exp", dense),
    ('reflection_pad1d(float32[2, 3], (1, 1)).into("stepped")', "out=", "reflection_pad1d", dense),
    ("max_pool2d_with_indices(float32[1, 3, 2, 2], (2, 1), (1, 1), (0, 0), (1, 1), False)", "out=",
     "max_pool2d_with_indices", larger),
    ("exp(float32[3])", "repeat", "exp", _Now()),
    ("tanh(float32[3])", "double backward", "tanh_backward", larger),
    ('exp(float32[3]).after("larger")', "forward", "exp", larger),
    ("exp(float32[4000])", "forward", "exp", larger),
    ("exp(float32[4000])", "backward", "exp", larger),
    ("exp(bfloat16[300].integers())", "forward", "exp", larger),
    ("batch_norm_train(float32[3, 2], None, None, float32[2], None)", "forward", "native_batch_norm", larger),
    ("conv1d_autocast(0, float16[1, 333].inside(-2, 2), float16[2, 1, 166].inside(-2, 2), stride=(2,))", "forward",
     "convolution", larger),
    ("eigvalsh(float32[20, 20].symmetric())", "forward", "_linalg_eigh", larger),
    ("optim.AdamW((float32[2].frozen(),), ((float32[2].inside(0.125, 2).frozen(),), (float32[2].frozen(),)), amsgrad=True)",
     "forward", "sqrt", larger),
    ('optim.NAdam((float32[2].frozen(),), ((float32[2].inside(0.125, 2).frozen(),),), decoupled_weight_decay=True, '
     'maximize=True, betas=(0.5, 0.75), lr=float32[1].constant().frozen()).under("no_grad")', "forward", "sqrt", larger),
    ("multi_head_cross(float32[1, 1, 2].inside(-2, 2), float32[1, 1, 2].inside(-2, 2), float32[1, 1, 2].inside(-2, 2), "
     "(float32[2, 2].inside(-1, 1), float32[2, 2].inside(-1, 1), float32[2, 2].inside(-1, 1)), float32[2, 2].inside(-1, 1), 1)",
     "double backward", "mm", larger),
    ("optim.Adagrad((float32[2].frozen(),), ((float32[2].inside(0.125, 2).frozen(),),))", "forward", "addcdiv", larger),
    ("fused_sgd((float32[70].frozen(),), (float32[70].frozen(),), (float32[70].frozen(),), None, None, momentum=0.5)",
     "forward", "_fused_sgd_", shifted),
]  # fmt: skip


NAMES = [f"{k[1]}-{k[0].partition('(')[0]}" for k in KINDS]


@pytest.mark.parametrize(("case", "aspect", "operator", "effect"), KINDS, ids=NAMES)
def test_it_shows_the_fault_and_nothing_on_a_healthy_device(
    case: str, aspect: str, operator: str, effect: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In at most fifteen lines."""
    text = minimal(notation.parse(case), aspect, "sim", tried=True)
    assert text is not None
    assert "parity" not in text
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LINES, text
    ours, theirs = printed(text, resolve("sim"), monkeypatch, capsys)
    assert ours == theirs
    ours, theirs = printed(text, resolve("sim", (Fault("off", (operator,), effect),)), monkeypatch, capsys)
    assert theirs
    assert ours != theirs


def test_statements_share_a_line_with_those_of_their_context() -> None:
    """As many as are to go."""
    cast = "with torch.autocast(torch.device(device).type, torch.float16): "
    lines = ["a = 1", "b = a", f"{cast}c = b", f"{cast}d = c", "with x():", "    e = d", "    f = e", "return f"]
    made = ["a = 1; b = a", f"{cast}c = b; d = c", "with x():", "    e = d; f = e", "return f"]
    assert on_fewer_lines(lines, 9) == made
    assert on_fewer_lines(lines, 1) == ["a = 1; b = a", *lines[2:]]


def test_what_must_be_refused_is_tried_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of one, the result of the other."""
    text = minimal(notation.parse('cholesky(float32[1, 1].at(0, "nan")).refused("value")'), "refusal", "sim")
    assert text is not None
    ours, theirs = printed(text, resolve("sim"), monkeypatch, capsys)
    assert ours.startswith("_LinAlgError linalg.cholesky: ")
    assert theirs.startswith("_LinAlgError linalg.cholesky: ")
    faulty = resolve(
        "sim", (Fault("off", ("linalg_cholesky_ex",), lambda c: (c.args[0].clone(), torch.zeros_like(c.run()[1]))),)
    )
    assert printed(text, faulty, monkeypatch, capsys)[1].startswith("tensor(")


def test_a_result_in_the_memory_of_an_operand_shows_in_the_operand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once something is written into the result; numbers alone are the same on both sides."""
    text = minimal(notation.parse("flip(float32[3], (0,))"), "forward", "sim", ALIASING)
    assert text is not None
    ours, theirs = printed(text, resolve("sim"), monkeypatch, capsys)
    assert ours == theirs
    faulty = resolve("sim", (Fault("off", ("flip",), lambda c: c.args[0].view(3)),))
    ours, theirs = printed(text, faulty, monkeypatch, capsys)
    assert theirs.count("7.") == 3
    assert "7." not in ours


def test_a_second_derivative_is_also_by_what_is_fed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gradient that is linear in it has no other one."""
    text = minimal(notation.parse("neg(float32[3])"), "double backward", "sim")
    assert text is not None
    assert printed(text, resolve("sim"), monkeypatch, capsys)[1].count("-1.") == 3


def test_a_nan_with_a_sign_is_written() -> None:
    """Its bits are those of the case."""
    text = minimal(notation.parse('sort(float32[3].at(0, "-nan"))'), "forward", "cuda")
    assert text is not None
    assert "-nan" in text


def test_a_death_has_few_lines_though_its_numbers_are_many_and_its_results_random() -> None:
    """They are drawn anew, and the report says so."""
    case = "dropout(float32[300], 0.5, True)"
    there = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "cuda:0", "a card")
    said = "\n".join(issue._of_death(Death("dropout", "float32", case, signal="SIGSEGV"), there))
    assert "uniform_(" in said
    assert "its numbers are drawn anew" in said
    wide = 'exp(float16[20].step(-1, 3, 0).at(6, "min"))'
    assert "uniform_(-65504.0" not in str(minimal(notation.parse(wide), "forward", "cuda", tried=True))
    many = 'dropout(float32[300].at(3, "nan"), 0.5, True)'
    said = "\n".join(issue._of_death(Death("dropout", "float32", many, signal="SIGSEGV"), there))
    assert "no few lines of torch" in said


def test_a_death_that_came_late_or_whose_call_is_malformed_is_reported() -> None:
    """One that came in the backward pass of a call without gradients is shown by its forward; a call that fails before torch is
    called has no script."""
    there = Fingerprint("0", "2.13.0", "", "3.11", "Linux", "x86_64", "cuda:0", "a card")
    late = Death("exp", "float32", "exp(int64[2])", signal="SIGSEGV", shrunk="exp(int64[2])", shrunk_aspect="backward")
    assert "return torch.exp(t0)" in "\n".join(issue._of_death(late, there))
    group = "(float32[2].frozen(),)"
    malformed = f"fused_adam({', '.join([group] * 5)}, None, amsgrad=True)"  # one None too few
    said = "\n".join(issue._of_death(Death("fused_adam", "float32", malformed, signal="SIGABRT"), there))
    assert "no few lines of torch" in said


def test_a_script_calls_torch_and_no_function_of_parity() -> None:
    """The calls that the function makes, in their order; a copy to the CPU stays one, though it does nothing here."""
    text = minimal(notation.parse("max_unpool3d(float32[2, 2, 2, 2], int64[2, 2, 2, 2].index(0, 8), 1, 1)"), "forward", "mps")
    assert text is not None
    assert text.count("def ") == 1
    assert "return F.max_unpool3d(" in text
    pool = "max_pool3d_with_indices_backward(float32[3, 1, 1, 1], float32[3, 2, 2, 1], (2, 2, 1), (1, 1, 1), (0, 0, 0), False)"
    text = minimal(notation.parse(pool), "forward", "cuda")
    assert text is not None
    assert "max_pool3d_with_indices(t1.detach().cpu(), " in text
    assert "[1].to(device))" in text


def test_a_shorter_script_that_shows_nothing_gives_way_to_the_exact_one() -> None:
    """Numbers that are drawn anew need not show it."""
    ran: list[str] = []

    def run(text: str, device: str) -> ScriptRun:
        ran.append(text)
        return ScriptRun(0, f"cpu 1\n{device} {1 if 'torch.rand' in text or 'uniform_' in text else 2}\n")

    here = Header(Fingerprint("0", str(torch.__version__), "", "3.11", "Linux", "x86_64", "cuda:0", "a card"))
    case = "exp(float32[40])"
    found = Record(case, "exp", "float32", "forward", "wrong", shrunk=case, cause=Cause("aten::exp", "values"))
    assert any("cuda:0 2" in part for part in issue._shown(found, here, run))
    assert ["uniform_(" in text for text in ran] == [True, False]


@pytest.mark.parametrize("here", [False, True])
def test_a_script_that_the_cpu_cannot_run_gives_way_as_well(here: bool) -> None:
    """It shows no error of the device's; one that only the device raises does."""
    ran: list[str] = []

    def run(text: str, device: str) -> ScriptRun:
        ran.append(device)
        return ScriptRun(0, "cpu 1\n") if device == "cpu" and not here else ScriptRun(1, "", "RuntimeError: no such thing")

    made = Header(Fingerprint("0", str(torch.__version__), "", "3.11", "Linux", "x86_64", "cuda:0", "a card"))
    found = Record("exp(float32[2])", "exp", "float32", "forward", "error", shrunk="exp(float32[2])", reason="no such thing")
    assert bool(issue._shown(found, made, run)) != here
    assert ran == ["cuda:0", "cpu"]


@pytest.mark.parametrize(
    "case",
    [
        "optim.SGD((float32[2].frozen(),), ((float32[2].frozen(),),))",
        "batch_norm_without_statistics(float32[2, 1], None, None, 0.125, 1e-05)",
    ],
)
def test_the_calls_of_a_function_run_as_they_are_written(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer writes its parameters without gradients; an operator may be named with its overload."""
    text = minimal(notation.parse(case), "forward", "cuda")
    assert text is not None
    monkeypatch.setattr(sys, "argv", ["script", "cpu"])
    monkeypatch.setattr(torch, "set_printoptions", lambda **_: None)  # of this process
    exec(compile(text, "script", "exec"), {})
