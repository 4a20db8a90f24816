"""Scripts of findings: they need torch alone, hold the same bits, make the same views, and distinguish wrong from right."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.catalog import opinfo
from parity.catalog.draw import Sizes
from parity.core import notation
from parity.core.devices import BACKENDS
from parity.devices import Fault, resolve
from parity.execution.inputs import build, raw_bytes
from parity.generation.generate import nth
from parity.report.script import standalone
from parity.report.short_script import minimal

STDLIB = {"__future__", "base64", "sys", "zlib", "operator", "typing"}
SAMPLES = [
    ('softmax(float16[1, 3].flat(1, 0), dim=-1).cotangent("normal", "expanded", 3)', "backward"),
    ('softmax(float32[3, 4].transpose(0, 1).normal(seed=7).at(5, "nan"), dim=-1)', "forward"),
    ('add(bfloat16[20, 9].step(-1, 2, 1).at(3, "-inf"), bfloat16[9].expand(0))', "forward"),
    ('mul(complex64[2, 2].conj(), complex64[2, 2].at(0, "inf"))', "backward"),
    ("mul(complex64[9, 9].neg(), complex64[9, 9])", "forward"),
    ("add(float32[4, 3].slice(0, 1, 1), float32[3])", "in-place"),
    ('exp(float32[2, 3, 4, 5].channels_last()).into("transposed")', "out="),
    ("copy_(float32[3, 4].transpose(0, 1), float32[3, 4])", "in-place"),
    ("copy_(float32[3, 4].permute(1, 0), float32[3, 4])", "backward"),
    ("logical_not(bool[3, 70].select(1, 2))", "forward"),
    ('neg(float32[()].at(0, "-0.0"))', "repeat"),
    ('sort(float16[4].at(1, "-nan"))', "forward"),
    ('signbit(float32[3].at(0, "-nan").at(1, "-nan").at(2, "-nan"))', "forward"),
    ('exp(complex64[3].at(1, "-nan"))', "forward"),
    ('abs(int64[4].at(0, "min"))', "forward"),
    ('max_unpool1d(float32[1, 1, 2], int64[1, 1, 2].unique(4, -1), 2, 2).cotangent("ones", "stepped", 0)', "backward"),
    ("sum(float32[0, 3], dtype=float32)", "forward"),
    ("getitem(float32[5, 3], (slice(1, None, 2), ...))", "backward"),
]
LAYOUTS = (
    "flat(2, 1)",
    "select(1, 3)",
    "slice(-1, 1, 2)",
    "step(0, 3, 1)",
    "step(-1, 2, 0)",
    "transpose(0, -1)",
    "permute(2, 0, 1)",
    "channels_last()",
    "expand(1)",
    "step(1, 2, 1).transpose(0, 1)",
    "slice(0, 1, 1).expand(2)",
)


def script(text: str, aspect: str = "forward", device: str = "cpu") -> str:
    made = standalone(notation.parse(text), aspect, device, "softmax float32 on mps: drift")
    assert made is not None
    return made


def space(text: str) -> dict[str, Any]:
    """The names that a script defines."""
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, "script", "exec"), names)
    return names


def ended(text: str, *argv: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "argv", ["script.py", *argv])
    return space(text)["main"]()


@pytest.fixture(autouse=True)
def _printing() -> Any:
    yield
    torch.set_printoptions(profile="default")  # type: ignore[no-untyped-call]  # torch tells no type


@pytest.mark.parametrize(("text", "aspect"), SAMPLES)
def test_a_script_imports_torch_alone_and_agrees_with_itself_on_the_cpu(
    text: str, aspect: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = script(text, aspect)
    nodes = [n for n in ast.walk(ast.parse(made)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in nodes if isinstance(n, ast.ImportFrom)}
    assert {n.partition(".")[0] for n in names} - STDLIB == {"torch"}
    assert notation.case_text(notation.parse(text)) in " ".join(made.split())
    assert ended(made, "cpu", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "raises" not in out
    assert out.endswith("they agree\n")


@pytest.mark.parametrize(("text", "aspect"), [SAMPLES[0], SAMPLES[2], SAMPLES[6]])
def test_a_script_runs_by_itself(text: str, aspect: str, tmp_path: Path) -> None:
    path = tmp_path / "finding.py"
    path.write_text(script(text, aspect, "sim:mps"), encoding="utf-8")
    run = subprocess.run([sys.executable, "-I", str(path), "cpu"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"torch {torch.__version__}, device cpu\ndevice ")


@pytest.mark.parametrize(("text", "aspect"), SAMPLES)
def test_the_bases_hold_the_same_bits(text: str, aspect: str) -> None:
    names, inputs = space(script(text, aspect)), build(notation.parse(text))
    for i, o in enumerate(inputs.operands):
        base = names[f"BASE_{i}"]
        assert (base.dtype, base.shape, raw_bytes(base)) == (o.base.dtype, o.base.shape, raw_bytes(o.base))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_views_have_the_same_strides_and_offsets(layout: str) -> None:
    text = f"exp(float32[2, 3, 4].{layout})"
    names, (o,) = space(script(text)), build(notation.parse(text)).operands
    seen: list[torch.Tensor] = []

    def watch(t: torch.Tensor) -> torch.Tensor:
        seen.append(t)
        return t

    names["torch"] = type("Watched", (), {"exp": staticmethod(watch), "Tensor": torch.Tensor})
    names["put"] = lambda base, device, wide: base
    names["run"]("cpu", False)
    assert (seen[0].stride(), seen[0].storage_offset()) == (o.view.stride(), o.view.storage_offset())
    assert torch.equal(seen[0], o.view)


@pytest.mark.parametrize(
    ("text", "aspect", "op", "effect"),
    [
        ("exp(float32[2, 3])", "forward", "exp", lambda c: c.run() * 1.001),
        ("exp(float32[2, 3])", "out=", "exp", lambda c: None),
        ("add(float32[4, 3].slice(0, 1, 1), float32[3])", "in-place", "add", lambda c: c.run() * 2),
        ("neg(int64[4])", "forward", "neg", lambda c: c.run() + 1),
        ("exp(float32[3])", "backward", "mul", lambda c: c.run() * float("nan")),
    ],
)
def test_a_wrong_device_ends_with_1(
    text: str, aspect: str, op: str, effect: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = script(text, aspect)
    healthy, planted = resolve("sim"), resolve("sim", (Fault("f", (op,), effect),))
    assert ended(made, str(healthy.torch_device), monkeypatch=monkeypatch) == 0
    assert ended(made, str(planted.torch_device), monkeypatch=monkeypatch) == 1


def test_a_refusing_device_ends_with_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(c: Any) -> Any:
        raise RuntimeError("kaput")

    planted = resolve("sim", (Fault("f", ("exp",), refuse),))
    assert ended(script("exp(float32[3])"), str(planted.torch_device), monkeypatch=monkeypatch) == 1
    out = capsys.readouterr().out
    assert "device raises RuntimeError: kaput" in out
    assert out.endswith("they differ: the device raises where the CPU does not\n")


@pytest.mark.parametrize(("argv", "said"), [
    (("nowhere",), "device 'nowhere' cannot be used here, so nothing was compared: RuntimeError: Expected one of cpu"),
    (("meta",), "device 'meta' cannot be used here, so nothing was compared: "),
    (("--device", "mps"), "usage: python script.py [DEVICE], like mps, cuda:1 or cpu; not '--device mps'"),
    (("--help",), "usage: python script.py [DEVICE]"),
    (("",), "usage: python script.py [DEVICE]"),
])  # fmt: skip
def test_where_nothing_is_compared_it_ends_with_2_and_one_line(
    argv: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = script("exp(float32[3])")
    assert "and with 2 where nothing\nwas compared" in made
    assert ended(made, *argv, monkeypatch=monkeypatch) == 2
    got = capsys.readouterr()
    assert got.out == ""
    assert got.err.startswith(said)
    assert got.err.count("\n") == 1


@pytest.mark.skipif(torch.backends.mps.is_available() or torch.cuda.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("device", ["mps", "cuda", "sim:mps"])
def test_a_machine_without_the_device_is_no_finding(device: str, tmp_path: Path) -> None:
    path = tmp_path / "finding.py"
    path.write_text(script("exp(float32[3])", device=device), encoding="utf-8")
    run = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "no accelerator found; name a device" in run.stderr or f"device '{device}' cannot be used here" in run.stderr


def test_a_call_that_the_cpu_refuses_is_judged_by_its_truth_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = space(script("exp(float32[3])"))
    real = names["run"]
    monkeypatch.setattr(sys, "argv", ["script.py", str(resolve("sim").torch_device)])

    def picky(device: str, wide: bool) -> Any:
        if device == "cpu" and not wide:
            raise RuntimeError("not implemented for 'Half'")
        return real(device, wide)

    def never(device: str, wide: bool) -> Any:
        raise RuntimeError("gone")

    names["run"] = picky
    assert names["main"]() == 0
    names["run"] = lambda device, wide: {n: t * 2 if device != "cpu" else t for n, t in picky(device, wide).items()}
    assert names["main"]() == 1
    names["run"] = never
    assert names["main"]() == 2
    assert capsys.readouterr().err == "the CPU raises RuntimeError, so nothing was compared: gone\n"


def test_the_device_of_the_finding_is_the_default_and_a_simulated_one_asks_for_a_real_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert space(script("exp(float32[3])", device="mps"))["default_device"]() == "mps"
    names = space(script("exp(float32[3])", device="sim:mps"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert names["default_device"]() is None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for name in BACKENDS:
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda name=name: torch.device(name))
        assert names["default_device"]() == name


def test_few_elements_are_written_out_and_many_are_packed() -> None:
    assert "BASE_0 = torch.tensor([" in script("exp(float32[64])")
    assert "BASE_0 = unpacked(\n" in script("exp(float32[65])")


def test_glue_of_the_catalog_comes_with_its_source() -> None:
    made = script("max_unpool1d(float32[1, 1, 2], int64[1, 1, 2].unique(4, -1), 2, 2)")
    assert "def max_unpool1d(x: Tensor, indices: Tensor, *window: Any) -> Tensor:" in made
    assert "from torch.nn import functional as F\n" in made


def test_what_torch_alone_cannot_tell_has_no_script() -> None:
    assert standalone(notation.parse("bernoulli(float32[3])"), "forward", "mps", "t") is None
    assert standalone(notation.parse("exp(float32[3].frozen())"), "backward", "mps", "t") is None


@pytest.mark.parametrize(
    "text",
    [
        *("exp(float32[1000000000])", "exp(float32[1000000000].expand(0))", "sum(3)", "full((300000000,), 1.0)"),
        *("sum(float16[2], dtype=flo)", "add(float32[2], alph5)"),
    ],
)
def test_a_case_that_would_fill_the_memory_or_names_nothing_has_no_script(text: str) -> None:
    """As somebody may write it into a run file; a small one has a script."""
    for one, has in ((text, False), ("exp(float32[10].expand(0))", True)):
        assert (minimal(notation.parse(one), "forward", "sim") is not None) is has
        assert (standalone(notation.parse(one), "forward", "sim", "t") is not None) is has


def test_a_sample_of_opinfo_is_written_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {r.name: r for r in opinfo.rows()}
    for ordinal in range(3):
        case = nth(rows["opinfo:cumsum"], "float32", Sizes(), "s", ordinal).case
        made = standalone(case, "forward", "cpu", "t")
        assert made is not None
        assert "torch.cumsum(t0, " in made
        assert ended(made, "cpu", monkeypatch=monkeypatch) == 0
    private = nth(rows["opinfo:einsum"], "float32", Sizes(), "s", 0).case
    assert standalone(private, "forward", "cpu", "t") is None


@pytest.mark.parametrize("mode, said", [("no_grad", "with torch.no_grad():"), ("inference", "with torch.inference_mode():")])
def test_a_script_runs_in_the_autograd_mode_of_the_case(mode: str, said: str, tmp_path: Path) -> None:
    text = standalone(notation.parse(f'exp(float32[3]).under("{mode}")'), "forward", "cpu", "t")
    assert text is not None
    assert said in text
    path = tmp_path / "script.py"
    path.write_text(text)
    assert subprocess.run([sys.executable, str(path), "cpu"], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("route", ['.after("garbage")', '.refused("dim")'])
def test_what_needs_more_than_one_call_or_raises_has_no_script(route: str) -> None:
    assert standalone(notation.parse(f"softmax(float32[3], dim=0){route}"), "forward", "cpu", "t") is None
    assert standalone(notation.parse("exp(float32[3])"), "double backward", "cpu", "t") is None


def test_a_script_of_strides_compares_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no part of other scripts."""
    case = notation.parse("outer(float32[2], float32[3])")
    made = standalone(case, "forward", "cpu", "title", strides=True)
    assert made is not None
    assert ended(made, "cpu", monkeypatch=monkeypatch) == 0
    assert "strides of dimensions longer than 1 are [3, 1] on the device, [3, 1] on the CPU" in capsys.readouterr().out
    wrong = made.replace(
        'run(device, False), run("cpu"', '{n: t.mT.contiguous().mT for n, t in run(device, False).items()}, run("cpu"'
    )
    assert ended(wrong, "cpu", monkeypatch=monkeypatch) == 1
    assert "they differ" in capsys.readouterr().out
    assert "stride()" not in script("outer(float32[2], float32[3])")
