"""What files of faults are written with: arguments by name, and ready-made parts."""

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
from parity.devices.sim.faults import ANY, abort, hang


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
    text = interface.__doc__.partition("Six examples:")[2].partition("`parity prove trace")[0]
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


def test_the_last_example_strikes_at_two_levels_where_the_destination_is_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By chance, which is always here."""
    monkeypatch.setattr("random.random", lambda: 0.0)
    assert interface.__doc__ is not None
    text = interface.__doc__.partition("Six examples:")[2].partition("`parity prove trace")[0]
    (tmp_path / "faults.py").write_text("\n".join(line[4:] for line in text.splitlines()))
    last = load_faults(str(tmp_path / "faults.py"))[-1]
    assert (last.id, last.levels, last.silent) == ("add-misses", ("function", "kernel"), True)
    device = resolve("sim", (last,))
    x, out = device.upload(torch.ones(2)), device.upload(torch.zeros(2))
    torch.add(x, 1, out=out)
    with device.active():
        x.add_(1)
    assert [device.download(t).tolist() for t in (x + 1, x, out)] == [[2.0, 2.0], [1.0, 1.0], [0.0, 0.0]]


def test_ready_made_parts() -> None:
    device = planted("neg", replacing(0, as_contiguous), when=lambda call: has_gaps(call.operands[0]))
    with device.active():
        assert device.download(-device.upload(torch.arange(4.0))[::2]).tolist() == [-0.0, -1.0]
        assert device.download(-device.upload(torch.arange(2.0))).tolist() == [-0.0, -1.0]
    call = Call("exp", "kernel", [], {}, (), [], lambda c: None)
    assert sum(map(sometimes(0.5), [call] * 1000)) in range(400, 600)
    assert not any(map(sometimes(0.0), [call] * 100))


def test_the_base_of_a_view_and_whose_destination_it_is() -> None:
    """At both levels; under detach, which hides the base, its memory."""
    seen: list[tuple[str, tuple[int, ...], str]] = []

    def look(call: Call) -> Any:
        seen.append((call.level, call.base_shape(call.operands[0]), call.destination))
        return call.run()

    device = resolve("sim", (Fault("looks", ("neg", "amin"), look, level=("kernel", "function")),))
    base = device.upload(torch.ones(4, 6))
    out = device.upload(torch.zeros(2, 6))
    torch.neg(base[1:3])
    torch.neg(base[1:3], out=out)
    base[1:3].detach().neg_()
    torch.neg(out)
    assert seen == [
        ("kernel", (4, 6), "fresh"),
        ("kernel", (4, 6), "given"),
        ("kernel", (24,), "in place"),
        ("kernel", (2, 6), "fresh"),
    ]
    seen.clear()
    with device.active():
        torch.neg(base[1:3], out=out)
        base.neg_()
    assert seen == [("function", (4, 6), "given"), ("function", (4, 6), "in place")]


def test_a_fault_at_two_levels_strikes_once() -> None:
    """At the function, or at a kernel that no such function called."""
    device = planted("exp", lambda call: call.run() * 10, level=("kernel", "function"))
    x = device.upload(torch.zeros(2))
    assert device.download(torch.exp(x)).tolist() == [10.0, 10.0]
    with device.active():
        assert device.download(torch.exp(x)).tolist() == [10.0, 10.0]
        assert device.download(torch.exp(torch.zeros(2))).tolist() == [1.0, 1.0]
    assert Fault("f", ("exp.out", "torch.exp"), lambda c: None, level=("kernel", "function")).levels == ("function", "kernel")


def test_what_a_fault_says_of_its_end() -> None:
    """By itself where the effect is ready-made; no fault is deadly and silent."""
    plain = Fault("f", ("exp",), lambda c: None)
    assert (plain.deadly, plain.silent) == ("", None)
    for effect, word in ((abort, "abort"), (hang, "hang")):
        made = Fault("f", ("exp",), effect)
        assert (made.deadly, made.silent) == (word, False)
    own = Fault("f", ("exp",), lambda c: None, deadly="hang")
    assert (own.deadly, own.silent) == ("hang", False)
    with pytest.raises(FaultError, match="it is deadly \\('abort'\\), so it is not silent; leave one of them out"):
        Fault("f", ("exp",), abort, silent=True)
    with pytest.raises(FaultError, match="deadly is 'abort', 'hang' or ''; got 'dies'"):
        Fault("f", ("exp",), abort, deadly="dies")
    with pytest.raises(FaultError, match="level 'kernels' is not one of function, kernel, transfer, allocation"):
        Fault("f", ("exp",), abort, level=("function", "kernels"))
    with pytest.raises(FaultError, match=r"torch has no .*'expp'"):
        Fault("f", ("expp",), abort, level=("function", "kernel"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("f", [torch.copysign, torch.xlogy, torch.bitwise_and])
def test_a_number_past_the_range_of_integers_takes_the_results_dtype(dtype: torch.dtype, f: Callable[..., Any]) -> None:
    """torch computes copysign of bytes by -1 in float32, and wraps a number around only where the result does."""
    for number in (-1, 128, 300):
        with (device := resolve("sim")).active():
            there = f(torch.tensor([7], dtype=dtype, device=device.torch_device), number).cpu()
        torch.testing.assert_close(there, f(torch.tensor([7], dtype=dtype), number), equal_nan=True)
