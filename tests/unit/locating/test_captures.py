"""A capture of one machine is judged on another: what parts there is named, what is healthy is not, and a file is only data."""

from __future__ import annotations

import argparse
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from three_layers import Net, larger
from torch import Tensor, nn

import parity
from parity.comparing.subject import subject
from parity.core.errors import CaptureError, OutputError, UsageError
from parity.core.results import Status
from parity.devices import Call, Fault, resolve
from parity.devices.sim.honest import FAULTS as HONEST
from parity.engine.reading import read_size
from parity.faces import commandline, locating
from parity.locating import capture_file
from parity.locating.against import TOO_LARGE, _Replay
from parity.locating.capture_file import decoded, encoded
from parity.locating.values import SAMPLES, Sketch, Store, block_sums, key_of, positions, sums_agree


def made(dtype: torch.dtype = torch.float32, batch: int = 6, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The network and its input, the same each time."""
    torch.manual_seed(seed)
    return Net().to(dtype), torch.randint(20, (batch,))


def only(number: int, of: int, effect: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """An effect that strikes one call of each pass."""
    calls: list[None] = []

    def struck(call: Call) -> Any:
        calls.append(None)
        return effect(call) if (len(calls) - 1) % of == number else call.run()

    return struck


def names(found: parity.Located) -> list[tuple[str, str, str]]:
    return [(p.operator, p.pass_, p.place.module) for p in found.divergences]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_struck_layer_is_named_as_with_both_sides_at_hand(dtype: torch.dtype, tmp_path: Path) -> None:
    """Forward and backward, with the line; healthy and honest devices are not blamed."""
    file, (net, ids) = tmp_path / "a.capture", made(dtype)
    for fault in (
        Fault("norm", ("native_layer_norm",), only(1, 3, larger)),
        Fault("gelu", ("gelu_backward",), only(2, 3, larger)),
    ):
        parity.capture(net, ids, device=resolve("sim", (fault,)), path=file)
        found = parity.locate(*made(dtype), against=file)
        both = parity.locate(net, ids, device=resolve("sim", (fault,)))
        assert names(found) == names(both)
        assert len(found.divergences) == 1
        assert found.first is not None
        assert "three_layers.py:" in found.first.place.line
        assert f"Net {str(dtype)[6:]} on sim (a.capture) diverges from the CPU first in layers." in str(found)
        assert "captured on sim (SIMULATED" in str(found)
    for faults in ((), HONEST):
        kept = parity.capture(net, ids, device=resolve("sim", faults), path=file)
        healthy = parity.locate(*made(dtype), against=file)
        assert healthy.agrees
        assert healthy.compared >= kept.operators > 20
        assert kept.sketched == 0
        assert not healthy.left
    assert file.stat().st_size == kept.size
    assert [p.name for p in tmp_path.iterdir()] == ["a.capture"]


def test_what_the_cpu_has_no_operator_for_is_judged_as_a_function(tmp_path: Path) -> None:
    """An LSTM of MPS with its gradients, and attention that is wrong above its operators."""
    torch.manual_seed(0)
    file, net, x = tmp_path / "a.capture", nn.LSTM(5, 7, batch_first=True), torch.randn(2, 4, 5, requires_grad=True)
    parity.capture(net, x, device=resolve("sim", (Fault("lstm", ("lstm_mps_backward",), larger),)), path=file)
    assert names(parity.locate(net, x, against=file)) == [("torch.lstm", "backward", "")]
    parity.capture(net, x, device="sim", path=file)
    assert parity.locate(net, x, against=file).agrees

    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    q, fault = torch.randn(1, 2, 6, 4), Fault("mask", ("scaled_dot_product_attention",), larger, level="function")
    parity.capture(attention, q, device=resolve("sim", (fault,)), path=file)
    found = parity.locate(attention, q, against=file)
    assert [p.operator for p in found.divergences] == ["torch.nn.functional.scaled_dot_product_attention"]


def test_results_that_differ_as_a_whole_and_operators_that_raise_are_told(tmp_path: Path) -> None:
    def off(call: Call) -> Any:
        result = call.run()
        call.args[4].mul_(1.05)
        return result

    def fails(call: Call) -> Any:
        raise RuntimeError("the kernel broke")

    file, norm, x = tmp_path / "a.capture", nn.BatchNorm1d(8), torch.randn(4, 8)
    parity.capture(norm, x, device=resolve("sim", (Fault("bn", ("native_batch_norm",), off),)), path=file)
    found = parity.locate(norm, x, against=file)
    assert (found.first, found.agrees) == (None, False)
    assert "the results differ: buffer[running_var]" in found.headline
    parity.capture(norm, x, device="sim", path=file)
    assert parity.locate(norm, x, against=file).agrees
    net, ids = made()
    kept = parity.capture(net, ids, device=resolve("sim", (Fault("gelu", ("gelu",), fails),)), path=file)
    assert "note: it raises: RuntimeError in run: the kernel broke" in str(kept)
    one = parity.locate(net, ids, against=file).first
    assert one is not None
    assert (one.operator, one.verdict.status, one.place.module) == ("aten::gelu", Status.ERROR, "layers.0")


def test_a_device_here_is_searched_beside_the_capture(tmp_path: Path) -> None:
    """Both answers are given; a capture of the CPU is judged like any other."""
    file, (net, ids) = tmp_path / "a.capture", made()
    parity.capture(net, ids, device="cpu", path=file)
    faulty = resolve("sim", (Fault("norm", ("native_layer_norm",), only(1, 3, larger)),))
    found = parity.locate(net, ids, against=file, device=faulty)
    assert found.first is None
    assert found.here is not None
    assert names(found.here) == [("aten::native_layer_norm", "forward", "layers.1.norm")]
    assert not found.agrees
    assert "\nand here: Net float32 on sim diverges from the CPU first in layers.1.norm" in str(found)
    back = parity.locate(net, ids, against=file, backward=False)
    assert back.agrees
    assert back.compared < found.compared


# ---------------------------------------------------------------------------------------------------------- the limit


@pytest.mark.parametrize("limit", [4 << 10, 40 << 10])
def test_sketches_find_what_is_off_and_blame_no_healthy_device(limit: int, tmp_path: Path) -> None:
    """The weights must be the same here, and calls are judged with those before them."""
    file, (net, ids) = tmp_path / "a.capture", made(batch=64)
    for faults, agrees in (((), True), (HONEST, True), ((Fault("gelu", ("gelu",), only(1, 3, larger)),), False)):
        kept = parity.capture(net, ids, device=resolve("sim", faults), path=file, limit=limit)
        assert kept.sketched > 5
        assert "kept whole up to" in str(kept)
        found = parity.locate(*made(batch=64), against=file)
        assert found.agrees is agrees
        assert "an upper bound" in str(found)
        assert agrees or names(found)[0] == ("aten::gelu", "forward", "layers.1")
    assert file.stat().st_size < limit + (300 << 10)


def test_other_weights_are_replaced_by_those_of_the_capture_or_refused(tmp_path: Path) -> None:
    file, (net, ids) = tmp_path / "a.capture", made()
    parity.capture(net, ids, device=resolve("sim", (Fault("norm", ("native_layer_norm",), only(1, 3, larger)),)), path=file)
    other, more = made(seed=1)
    before = [p.clone() for p in other.parameters()]
    found = parity.locate(other, more, against=file, device="sim")
    assert names(found) == [("aten::native_layer_norm", "forward", "layers.1.norm")]
    assert "'ids', 'words.weight', 'layers.0.up.weight' and 5 more have other values here; those of the capture were" in str(
        found
    )
    assert found.here is not None
    assert found.here.agrees
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters()))
    kept = parity.capture(net, ids, device="sim", path=file, limit=2 << 10)
    assert "the weights are too large for it" in str(kept)
    with pytest.raises(UsageError, match=r"'words.weight', .* have other values here .* capture again with a larger --limit"):
        parity.locate(other, ids, against=file)
    assert parity.locate(*made(), against=file).agrees
    with pytest.raises(UsageError, match="the capture is of Net with 14 tensors, and the function makes Linear with 3"):
        parity.locate(nn.Linear(3, 3), torch.randn(2, 3), against=file)
    with pytest.raises(UsageError, match="they differ in 'ids'"):
        parity.locate(net, ids[:3], against=file)


def test_weights_that_lie_otherwise_are_found_here(tmp_path: Path) -> None:
    """A convolution's channels_last weight, which is too large for the capture."""
    file, x = tmp_path / "a.capture", torch.randn(1, 8, 6, 6)
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3))
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch does not declare it
    parity.capture(net, x, device="sim", path=file, limit=16 << 10)
    found = parity.locate(net, x, against=file)
    assert found.agrees
    assert not any("operands are not in the capture" in why for why in found.left)


def test_a_store_keeps_what_fits_and_sketches_the_rest() -> None:
    """Operands that nothing made are kept before results; equal storages are kept once."""
    store = Store(1000)
    given = store.add(torch.arange(100.0), False)
    assert store.add(torch.arange(100.0), True) == given
    large, small = store.add(torch.ones(200), True), store.add(torch.ones(20), True)
    assert (set(store.whole), set(store.sketches)) == ({given, small}, {large})
    assert store.bytes == 480
    assert key_of(torch.ones(20)) != key_of(torch.ones(20).view(torch.int32))
    assert positions(5).tolist() == [0, 1, 2, 3, 4]
    assert positions(0).tolist() == []
    assert len(positions(1 << 20)) == SAMPLES
    assert int(positions(1 << 20)[-1]) == (1 << 20) - 1


def test_sums_find_what_lies_between_the_samples(tmp_path: Path) -> None:
    """One element of thousands is off, which no sample holds."""

    def off(call: Call) -> Any:
        result = call.run().clone()
        result.view(-1)[1234] += 0.1
        return result

    assert 1234 not in positions(256 * 32)
    torch.manual_seed(0)
    net, x, file = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(256, 32), tmp_path / "a.capture"
    for faults in ((Fault("gelu", ("gelu",), off),), (), HONEST):
        parity.capture(net, x, device=resolve("sim", faults), path=file, limit=36 << 10)
        found = parity.locate(net, x, against=file)
        assert found.agrees is (faults in ((), HONEST))
        if not found.agrees:
            assert names(found)[0] == ("aten::gelu", "forward", "1")
            assert "aten::gelu wrong, sums over its elements are" in found.headline
    wide = torch.randn(1000).to(torch.complex64)
    assert sums_agree(block_sums(wide), block_sums(wide), wide, 1)
    more = wide.clone()
    more[500] += 1j
    assert not sums_agree(block_sums(more), block_sums(wide), wide, 1)
    assert not sums_agree(block_sums(torch.tensor([1, 3])), block_sums(torch.tensor([1, 2])), torch.tensor([1, 2]), 9)


def test_a_sketch_shows_what_it_knows() -> None:
    """Its elements, and a NaN or an Inf that the other side does not have."""
    theirs = torch.linspace(0, 1, 5000)
    ours = theirs.clone()
    assert torch.equal(Sketch.of(theirs).over(ours), ours)
    theirs[0] = 7.0
    assert float(Sketch.of(theirs).over(ours)[0]) == 7.0
    theirs[0], at = 0.0, next(k for k in range(5000) if k not in positions(5000))
    theirs[at] = math.nan
    assert int(Sketch.of(theirs).over(ours).isnan().sum()) == 1
    theirs[at] = math.inf
    assert int(Sketch.of(theirs).over(ours).isinf().sum()) == 1


# ------------------------------------------------------------------------------------------------------------ the file


def test_arguments_come_back_as_they_were() -> None:
    given = (1, -0.5, math.inf, True, None, "none", [1, 2], (3,), torch.float16, torch.strided, torch.channels_last, 1 + 2j)
    assert decoded(json.loads(json.dumps(encoded(given)))) == given
    assert math.isnan(decoded(encoded(math.nan)))
    assert decoded(encoded({"a": slice(1, None), "b": ...})) == {"a": slice(1, None), "b": ...}
    assert decoded(encoded(torch.device("cuda:1"))) == torch.device("cpu")
    with pytest.raises(ValueError, match="Generator is not kept"):
        encoded(torch.Generator())


def rewritten(file: Path, change: Callable[[dict[str, Any]], None], sound: bool = True) -> None:
    """The capture with another description. sound: with the digest of that."""
    with safetensors.safe_open(str(file), "pt") as f:
        said, tensors = f.metadata(), {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 -- it is no dict
    body = json.loads(said["body"])
    change(body)
    said["body"] = json.dumps(body)
    said["digest"] = capture_file._digest(said["body"]) if sound else said["digest"]
    file.write_bytes(safetensors.torch.save(tensors, metadata=said))


def test_a_file_that_is_no_sound_capture_gets_one_sentence(tmp_path: Path) -> None:
    """Truncated, edited, foreign, of another format, missing, a folder."""
    file, (net, ids) = tmp_path / "a.capture", made()
    parity.capture(net, ids, device="sim", path=file)
    raw = file.read_bytes()

    def refused(content: bytes, match: str) -> None:
        file.write_bytes(content)
        with pytest.raises(CaptureError, match=match) as caught:
            parity.locate(net, ids, against=file)
        assert len(str(caught.value).splitlines()) == 1

    for cut in (0, 5, 1000, len(raw) // 2, len(raw) - 1):
        refused(raw[:cut], "not a sound capture, it may be truncated or edited")
    refused(raw[:-8] + b"\x01" * 8, "not what was written")
    refused(raw.replace(b"native_layer_norm", b"native_layer_narm", 1), "its description is not what was written")
    with pytest.raises(OutputError, match="is a folder; name a file for the capture"):
        parity.capture(net, ids, device="sim", path=tmp_path)
    refused(pickle.dumps([print]), "not a sound capture")
    refused(safetensors.torch.save({"a": torch.ones(2)}), "a file of safetensors, but no capture")
    refused(
        raw.replace(b"parity capture 1", b"parity capture 9", 1), "has format 9 of captures, and this parity reads format 1"
    )
    for place in (tmp_path / "none", tmp_path):
        with pytest.raises(CaptureError, match=r"there is no capture|is not a capture"):
            parity.locate(net, ids, against=place)
    for change in (
        lambda body: body["calls"][0].update(place=3),
        lambda body: body.pop("store", None) or body.pop("storages"),
        lambda body: body["calls"][0].update(kind="shell"),
        lambda body: body["machine"].update(more=1),
    ):
        file.write_bytes(raw)
        rewritten(file, change)
        with pytest.raises(CaptureError, match="not a sound capture"):
            parity.locate(net, ids, against=file)


def test_a_view_that_repeats_few_elements_without_end_is_left_out(tmp_path: Path) -> None:
    """Strides of 0 cost a file nothing, and whoever judges it gigabytes. One that repeats them a little is judged."""
    file = tmp_path / "a.capture"
    parity.capture(torch.abs, torch.ones(4), device="cpu", path=file)
    whole = capture_file.read(file)
    for size, left in ((300_000_000, {TOO_LARGE: 1}), (4, {})):
        call = next(c for c in whole.calls if c.name.startswith("abs"))
        args, results = (
            tuple(msgspec.structs.replace(x, shape=(size,), strides=(0,)) for x in some) for some in (call.args, call.results)
        )
        capture_file.write(replace(whole, calls=[replace(call, args=args, results=results)]), file)
        read = capture_file.read(file)
        search = _Replay(read, subject(torch.abs, (torch.ones(4),), {}), False)
        search.replay(read.calls)
        assert dict(search.left) == left


@pytest.mark.slow
def test_a_file_names_nothing_that_is_run_but_operators_and_functions_of_torch(tmp_path: Path) -> None:
    """What it names instead is not judged, and nothing happens; nor are results made that are larger than it says."""
    file, (net, ids), target = tmp_path / "a.capture", made(), tmp_path / "made"
    parity.capture(net, ids, device="sim", path=file)
    raw = file.read_bytes()
    file_args = encoded((str(target), True, 4))
    huge = encoded(([1 << 40], 1.0))

    def tried(change: Callable[[dict[str, Any]], None]) -> parity.Located:
        def first(body: dict[str, Any]) -> None:
            change(body["calls"][0])
            body["calls"][0]["results"] = []

        file.write_bytes(raw)
        rewritten(file, first)
        return parity.locate(net, ids, against=file)

    for name, args in (("from_file", file_args), ("../os.system", file_args), ("__class__", file_args), ("full", huge)):
        found = tried(lambda call, n=name, a=args: call.update(name=n, args=a, kwargs=encoded({})))  # type: ignore[misc]
        assert any("the CPU does not run" in why for why in found.left)
        assert found.compared > 20
    for name in ("os.system", "torch.load", "torch.hub.load", "builtins.exec"):
        found = tried(lambda call, n=name: call.update(kind="function", name=n))  # type: ignore[misc]
        assert f"this torch has no {name}" in found.left
    assert not target.exists()
    assert not found.divergences


# ------------------------------------------------------------------------------------------------------ the command line


MODELS = """
import torch
from torch import nn

def one():
    return nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)

def two():
    return nn.Linear(8, 8), torch.randn(4, 8)
"""
FAULTY = """
from parity.devices import Fault
FAULTS = (Fault("gelu", ("gelu",), lambda call: call.run() * 1.03),)
"""


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    Path("faulty.py").write_text(FAULTY)

    def asked(*words: str) -> argparse.Namespace:
        return commandline.parser().parse_args(words)

    made_by = ("locate", "models.py:one", "--capture", "mac.capture", "--device", "sim", "--limit", "2M")
    assert locating.record(asked(*made_by, "--setup", "faulty.py")) == 0
    told = capsys.readouterr().out
    assert "compare it on another machine: parity locate models.py:one --against mac.capture" in told
    assert locating.run(asked("locate", "models.py:one", "--against", "mac.capture")) == 1
    told = capsys.readouterr().out
    assert told.startswith("judged on the CPU of this machine\nmodels.py:one: Sequential float32 on sim (mac.capture) diverges")
    assert locating.record(asked(*made_by)) == 0
    assert locating.run(asked("locate", "models.py:one", "--against", "mac.capture")) == 0
    with pytest.raises(UsageError, match=r"models.py has 2; name one: models.py:one"):
        locating.record(asked("locate", "models.py", "--capture", "x"))
    with pytest.raises(UsageError, match="a capture is of one function"):
        locating.run(asked("locate", "models.py", "--against", "mac.capture"))
    with pytest.raises(UsageError, match="the capture is of Sequential"):
        locating.run(asked("locate", "models.py:two", "--against", "mac.capture"))
    with pytest.raises(SystemExit):
        asked("locate", "models.py", "--capture", "x", "--limit", "much")
    assert "'much' is no size; give one like 64M or 2G" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--capture", "x.capture", "--against", "y.capture"), "--capture records and compares nothing; leave --against out"),
        (("--capture", "x.capture", "-o", "r.html"), "leave --output out"),
        (("--limit", "2M"), "--limit is of a capture"),
        (("-o", "mac.capture"), "-o mac.capture: give a page, such as report.html, or a script, such as call.py"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_runs(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert commandline.main(["locate", "models.py:one", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_limit_is_a_size() -> None:
    assert [read_size(t) for t in ("5", "2k", "64M", "3G")] == [5, 2 << 10, 64 << 20, 3 << 30]
    for text in ("", "M", "0", "1.5M", "-1", "2T", "2000G"):
        with pytest.raises(argparse.ArgumentTypeError):
            read_size(text)
