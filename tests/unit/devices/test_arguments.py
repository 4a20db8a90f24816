"""What files of faults are written with: arguments by name, ready-made parts, and `parity trace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from parity.core.errors import FaultError
from parity.devices import Call, Device, Fault, load_faults, resolve
from parity.devices.sim import faults as interface
from parity.devices.sim.effects import as_contiguous, has_gaps, replacing, sometimes
from parity.devices.sim.faults import ANY
from parity.faces import cli


def planted(op: str, effect: Callable[[Call], Any], **more: Any) -> Device:
    return resolve("sim", (Fault("one", (op,), effect, **more),))


def asked(device: Device, run: Callable[[torch.device], Any]) -> Any:
    """What a call gives on a device."""
    with device.active():
        return run(device.torch_device)


@pytest.mark.parametrize("level", ["kernel", "function"])
@pytest.mark.parametrize(
    ("op", "run", "found"),
    [
        ("softmax", lambda x: torch.softmax(x, 1), {"dim": 1}),
        ("softmax", lambda x: torch.softmax(x, dim=-1), {"dim": -1}),
        ("add", lambda x: torch.add(x, x, alpha=3), {"alpha": 3}),
        ("add", lambda x: torch.add(x, x), {"alpha": 1}),
        ("avg_pool2d", lambda x: F.avg_pool2d(x[None, None], 2), {"divisor_override": None, "ceil_mode": False}),
        ("leaky_relu", lambda x: F.leaky_relu(x, 0.25), {"negative_slope": 0.25}),
    ],
)
def test_arguments_have_the_names_that_torch_gives_them(
    op: str, run: Callable[[torch.Tensor], Any], found: dict[str, Any], level: str
) -> None:
    """By position, by name, or left out."""
    seen: list[dict[str, Any]] = []

    def look(call: Call) -> Any:
        seen.append({name: call.argument(name) for name in found})
        return call.run()

    name = "_softmax" if (op, level) == ("softmax", "kernel") else op
    device = planted(name, look, level=level)
    asked(device, lambda place: run(device.upload(torch.ones(4, 4))))
    assert seen == [found]


def test_an_argument_is_replaced_however_it_was_passed() -> None:
    def plain(call: Call) -> Any:
        call.replace("alpha", 1)
        return call.run()

    for level in ("kernel", "function"):
        device = planted("add", plain, level=level)
        with device.active():
            one = device.upload(torch.ones(2))
            assert device.download(torch.add(one, one, alpha=5)).tolist() == [2.0, 2.0]
            assert device.download(torch.add(one, one)).tolist() == [2.0, 2.0]


def test_an_unknown_name_is_an_error_of_the_fault() -> None:
    device = planted("exp", lambda call: call.argument("dim"))
    with pytest.raises(FaultError, match=r"exp\.out has no argument 'dim'; it has self, out"), device.active():
        torch.exp(device.upload(torch.ones(2)))


def test_every_call_of_a_level() -> None:
    seen: list[str] = []

    def look(call: Call) -> Any:
        seen.append(f"{call.level} {call.op}")
        return call.run()

    device = resolve("sim", tuple(Fault(level, (ANY,), look, level=level) for level in ("kernel", "function", "transfer")))
    with device.active():
        device.download(torch.exp(device.upload(torch.ones(2))))
    assert {"transfer upload", "transfer download", "function torch.exp", "kernel exp.out"} <= set(seen)
    assert not any(s.startswith("kernel upload") for s in seen)


def test_the_six_examples_run(tmp_path: Path) -> None:
    """Those of the interface's own documentation, as a file."""
    assert interface.__doc__ is not None
    text = interface.__doc__.partition("Six examples:")[2].partition("`parity trace")[0]
    (tmp_path / "faults.py").write_text("\n".join(line[4:] for line in text.splitlines()))
    faults = load_faults(str(tmp_path / "faults.py"))
    assert [f.id for f in faults][:3] == ["linear-last-row", "sdpa-gradient", "pow-cached"]
    device = resolve("sim", faults)
    x, weight = torch.arange(12.0).reshape(3, 4), torch.ones(2, 4)
    image = torch.ones(1, 1, 4, 4)
    with device.active():
        strided = device.upload(x.t().contiguous()).t()
        assert device.download(F.linear(strided, device.upload(weight)))[-1].tolist() == [0.0, 0.0]
        base = device.upload(torch.full((3,), 2.0))
        assert device.download(base**2).tolist() == [4.0] * 3
        assert device.download(base**3).tolist() == [4.0] * 3
        pooled = device.download(F.avg_pool2d(device.upload(image), 2, divisor_override=1))
        assert pooled.flatten().tolist() == [1.0] * 4
        gaps = device.upload(x)[:, :2]
        assert device.download(-gaps).flatten().tolist() == [-0.0, -1.0, -2.0, -3.0, -4.0, -5.0]


def test_ready_made_parts() -> None:
    device = planted("neg", replacing(0, as_contiguous), when=lambda call: has_gaps(call.operands[0]))
    with device.active():
        assert device.download(-device.upload(torch.arange(4.0))[::2]).tolist() == [-0.0, -1.0]
        assert device.download(-device.upload(torch.arange(2.0))).tolist() == [-0.0, -1.0]
    call = Call("exp", "kernel", [], {}, (), [], lambda c: None)
    assert sum(map(sometimes(0.5), [call] * 1000)) in range(400, 600)
    assert not any(map(sometimes(0.0), [call] * 100))


def test_trace_shows_the_calls_as_a_fault_sees_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "addmm(float32[3], float32[4, 3].step(-1, 2, 0), float32[3, 3], alpha=2)"]) == 0
    out = capsys.readouterr().out
    assert "transfer  upload(float32[4, 6]) -> float32[4, 6]" in out
    named = "self=float32[3], mat1=float32[4, 3] strides [6, 2], mat2=float32[3, 3], alpha=2"
    assert f"  function  torch.addmm({named})" in out
    assert f"  kernel    addmm.out({named}, out=float32[4, 3]) -> float32[4, 3]" in out
    assert "mm.out" in out.partition("backward\n")[2]
    assert cli.main(["trace", "cholesky(float32[2, 2].constant())", "--device", "sim:mps"]) in (0, 1)
    capsys.readouterr()
    for argv, words in (
        (["trace", "exp"], "'exp' is no case; one looks like max_pool2d("),
        (["trace", "exp(float32[2])", "--device", "cpu"], "faults can only be planted on a simulated device"),
    ):
        assert cli.main(argv) == 2
        assert words in capsys.readouterr().err
