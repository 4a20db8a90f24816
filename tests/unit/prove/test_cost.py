"""What a run would cost on a Mac: the count of graphs, the table of costs, and what comes of both."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from commands import said

from parity.core import project
from parity.core.backends.mps import KEY
from parity.devices import Call, Fault, resolve
from parity.devices.costs import Costs, Spread
from parity.devices.operator_table import with_kernel
from parity.engine.options import RunOptions
from parity.prove import cost
from parity.report.archive import costs_in

FLAT = {
    name: cost.Cost("seconds", "made up", value, value, value)
    for name, value in {"graph": 1.0, "kernel": 0.0, "graph_call": 0.0, "kernel_call": 0.0, "copy": 0.0, "check": 0.5}.items()
} | {name: cost.Cost("", "", 0.0, 0.0, 0.0) for name in ("start", "graph_memory", "process")}
ROWS = ("conv2d", "softmax", "layer_norm", "cat", "var", "mm", "gelu", "cumsum", "avg_pool2d", "linear", "nll_loss", "topk")


def counted(**options: object) -> cost.Counted:
    return cost.count(RunOptions(**options))  # type: ignore[arg-type]  # options by name


def test_an_operator_that_shares_its_function_with_the_cpu_is_a_metal_kernel() -> None:
    """By torch's own table; one with a function of MPS's own may compile a graph, unless source shows that it does not."""
    assert {"exp.out", "mul.out", "sin.out"} <= cost.metal()
    assert {"_softmax.out", "mm.out", "_mps_convolution", "linear"} <= cost.graphs()
    assert {"add.out", "sub.out"} <= cost.known_metal()
    assert not cost.graphs() & (cost.metal() | cost.known_metal())
    assert not {"empty_strided", "_copy_from", "resize_"} & cost.graphs()
    assert cost.metal() | cost.graphs() | cost.known_metal() <= with_kernel(KEY)


def test_graphs_are_counted_by_operator_shapes_dtypes_and_scalars() -> None:
    """Not by strides; a Metal kernel once for its dtype; a copy is neither."""
    made = cost.Counted()
    device = resolve("sim:mps", (Fault("calls", ("*",), Call.run, made.call),))
    x = device.upload(torch.ones(4, 4))
    with device.active():
        for t in (x, x.mT, x * 2):
            torch.softmax(t, 0)
        assert len(made.keys) == 1
        torch.softmax(x, 1)
        torch.softmax(x[:2], 0)
        torch.softmax(x.half(), 0)
        assert len(made.keys) == 4
        before = len(made.kernels)
        torch.exp(x)
        torch.exp(x[:3])
    assert len(made.kernels) == before + 1
    assert len(made.keys) == 4


def test_each_cost_has_a_source_and_three_values_in_order() -> None:
    for name, c in cost.costs().items():
        assert 0 < c.low <= c.middle <= c.high, name
        assert c.unit
        assert c.source
    assert set(cost.costs()) == set(FLAT)


def test_processes_compile_at_once_or_wait_for_one_compiler() -> None:
    """120 checks of half a second and 60 graphs of one, twice as many in the whole run, on three processes."""
    made = cost.Counted(keys={(k,) for k in range(60)}, checks=120, items=1, of=2)
    m = cost.modelled(made, cost.Machine(3, 7), FLAT)
    assert m.seconds == (80.0, 80.0, 80.0)
    assert m.queued == (160.0, 160.0, 160.0)
    dearer = {**FLAT, "graph": replace(FLAT["graph"], high=2.0), "graph_memory": replace(FLAT["start"], high=1e6)}
    m = cost.modelled(made, cost.Machine(3, 7), dearer)
    assert (m.queued[0], m.queued[2], m.memory[2]) == (160.0, 280.0, 120e6)


def test_a_machine_starts_as_many_processes_as_a_run_would() -> None:
    """One a core, at most eight, and no more than fit into its memory."""
    assert [cost.Machine(*m).workers for m in ((3, 7), (8, 16), (12, 32), (8, 3))] == [3, 8, 8, 1]


@pytest.mark.slow
def test_the_profile_mac_needs_a_third_of_the_graphs_of_quick() -> None:
    """For as many checks, over rows of several families."""
    few, many = (counted(op=ROWS, dtype=("float32",), profile=p) for p in ("mac", "quick"))
    assert few.items == many.items
    assert few.rate * 3 < many.rate


@pytest.mark.slow
def test_the_whole_suite_at_the_profile_mac_fits_eight_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three cores and 7 GB, at the middle cost, of one item in 60, with room for so small a sample."""
    monkeypatch.setattr(cost, "ITEMS", 75)
    made = counted(profile="mac")
    m = cost.modelled(made, cost.MACHINES[0], cost.costs())
    assert made.of > 4000
    assert m.seconds[1] < 480
    assert m.queued[1] < 490
    assert m.memory[1] < 7e9


def test_the_process_is_left_as_it_was() -> None:
    threads, parallel = torch.get_num_threads(), torch.autograd.is_multithreading_enabled()
    counted(op=("exp",), dtype=("float32",), examples=2)
    assert (torch.get_num_threads(), torch.autograd.is_multithreading_enabled()) == (threads, parallel)


def test_the_command_says_graphs_minutes_memory_and_sources(capfd: pytest.CaptureFixture[str]) -> None:
    """The last line is what it comes to."""
    code, out, _ = said(capfd, "prove", "cost", "softmax", "--dtype", "float32,float16", "--examples", "3", "--profile", "mac")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("mac profile: 2 of 2 op x dtype pairs on sim:mps, ")
    assert f"{len(cost.graphs())} overloads with a function of MPS's own, which may compile a graph; " in out
    assert [x.split(" cores")[0] for x in lines if " cores, " in x][:3] == ["3", "8", "12"]
    assert "pytorch/pytorch#184779" in out
    assert lines[-1].startswith("MODELLED  ")
    assert said(capfd, "prove", "cost", "sofmax")[0] == 2


def test_the_profile_of_the_settings_is_modelled_and_no_limit_of_time(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.parity]\nprofile = "mac"\n')
    monkeypatch.delenv(project.FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    code, out, _ = said(capfd, "prove", "cost", "exp", "--dtype", "float32", "--examples", "2")
    assert (code, out.partition(" ")[0]) == (0, "mac")
    code, _, err = said(capfd, "prove", "cost", "exp", "--time", "5m")
    assert (code, "a limit of time is not modelled" in err) == (2, True)


def archived(folder: Path, **more: object) -> str:
    """An archive of a Mac whose graphs take ten seconds each."""
    pieces = Spread(9.0, 10.0, 11.0, 120), *[Spread(1e-6, 1e-6, 1e-6, 9)] * 5
    costs = Costs("mps", "Apple M4", "macOS 15.5 (24F74)", "2.13.0", False, 4, 16_000_000_000, *pieces)
    path = folder / "parity-archive-20270101-120000.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name, tree in {"first.json": {}, "costs.json": asdict(costs), **more}.items():
            if tree is not None:
                made.writestr(name.replace("_", "."), json.dumps(tree))
    return str(path)


ASKED = ("softmax", "--dtype", "float32", "--examples", "3", "--profile", "mac")


def test_what_was_measured_on_a_mac_takes_the_place_of_the_table(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And the run is modelled on that machine; without the archive all is as before."""
    code, out, _ = said(capfd, "prove", "cost", archived(tmp_path), *ASKED)
    lines = out.splitlines()
    assert code == 0
    assert "Costs, measured on mps (Apple M4), macOS 15.5 (24F74), torch 2.13.0: low, middle, high" in lines
    assert "  9, 10, 11 seconds to compile a graph (MPSGraph) of a small call: measured there, 120 times" in lines
    assert [x.split(" cores")[0] for x in lines if " cores, " in x] == ["4", lines[-1].split(" cores")[0]]
    assert "; 4 cores, 16 GB: " in lines[-1]
    made = counted(op=("softmax",), dtype=("float32",), examples=3, profile="mac")
    costs = cost.measured(costs_in(Path(archived(tmp_path))))
    assert {n for n, c in costs.items() if c == cost.costs()[n]} == {"check", "start", "process"}  # nothing measures these
    here, there = (cost.modelled(made, cost.MACHINES[0], t).queued[1] for t in (cost.costs(), costs))
    assert there > here + 9 * len(made.keys)
    assert "measured on" not in said(capfd, "prove", "cost", *ASKED)[1]
    assert said(capfd, "doctor", archived(tmp_path), *ASKED)[:2] == (0, out)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"costs.json": None},
            "20000.zip holds no costs.json: its device compiles no graphs, or its --time was too short to measure any; ",
        ),
        ({"costs.json": {"device": "mps"}}, "its costs.json is damaged (object missing required field"),
        ({"costs.json": {"x": 1}, "first.json": {"parity": "0.0.1"}}, "; parity 0.0.1 wrote it, and this is "),
        ({"costs.json": []}, "its costs.json is damaged (no object)"),
        ({"first.json": None}, "it holds no first.json"),
    ],
)
def test_an_archive_without_costs_is_one_sentence(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, more: dict[str, object], why: str
) -> None:
    code, _, err = said(capfd, "prove", "cost", archived(tmp_path, **more), *ASKED)
    assert (code, err.count("\n")) == (2, 1)
    assert why in err


def test_one_archive_that_is_there(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = said(capfd, "prove", "cost", "gone.zip", *ASKED)
    assert (code, "cannot read gone.zip: No such file or directory" in err) == (2, True)
    assert "name one archive" in said(capfd, "prove", "cost", "a.zip", "b.zip", *ASKED)[2]
