"""parity's commands on a device that torch takes for MPS, without a line of parity's own about it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from standin_runs import HERE, ROOT, SECONDS, environment, needs_standin, parity, plain, python
from workflow import machine

from parity import catalog
from parity.core import stored
from parity.core.results import COMPARED, FINDINGS, Status
from parity.devices.costs import Costs
from parity.faces import archive
from parity.store import run_file
from parity.store.rows import Run

pytestmark = [needs_standin, pytest.mark.slow]

# Two rows of each family, and what MPS has operators of its own for; beyond the first row of a family, the one in its middle.
OWN = ("linear", "conv2d", "conv_transpose2d", "max_pool2d", "lstm", "scaled_dot_product_attention", "rms_norm")
BRIEF = ("--examples", "6", "--skip", "shrink", "--power", "0")
# What torch's own code does on MPS and not on `sim:mps`: (op, aspect) -> why.
OTHERWISE: dict[tuple[str, str], str] = {}


def few() -> tuple[str, ...]:
    """The rows of the quick profile that are run here."""
    families: dict[str, list[str]] = {}
    for row in catalog.ROWS.values():
        if "float32" in row.dtypes and row.family != "sparse":  # of which the stand-in has no tensors
            families.setdefault(row.family, []).append(row.name)
    return tuple(dict.fromkeys([*OWN, *(n for names in families.values() for n in (names[0], names[len(names) // 2]))]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The rows of `few` on the stand-in and on the simulated MPS."""
    folder = tmp_path_factory.mktemp("runs")
    read = {}
    for device in ("mps", "sim:mps"):
        path = folder / f"{device.partition(':')[0]}.jsonl"
        files = ("--output", str(path), "--findings", str(folder / "findings"))
        done = parity("run", *few(), *BRIEF, "--dtype", "float32", "-n", "2", *files, device=device, cwd=folder)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        read[device] = run_file.read(path)
    return read


def test_the_quick_profile_finds_nothing(runs: dict[str, Run]) -> None:
    """Sixty rows spread over the families."""
    run = runs["mps"]
    assert len({i.op for i in run.items}) >= 60
    assert run.header.fingerprint.device == "mps"
    assert not run.header.fingerprint.simulated
    assert run.header.fingerprint.device_name == "Apple M2 Pro (stand-in)"
    assert [(r.case, r.aspect, r.reason) for r in run.records if r.status in FINDINGS] == []
    assert not run.deaths
    assert sum(n for i in run.items for c in i.counts.values() for s, n in c.items() if s in COMPARED) > 1000


def refusals(run: Run) -> dict[tuple[str, str], dict[str, int]]:
    """What is not computed on the device: how often, by op and aspect."""
    kinds = (Status.UNSUPPORTED, Status.FALLBACK)
    counts = {(i.op, a): {s: n for s, n in c.items() if s in kinds} for i in run.items for a, c in i.counts.items()}
    return {k: c for k, c in counts.items() if c}


def test_the_simulated_mps_refuses_what_torch_refuses(runs: dict[str, Run]) -> None:
    """The same aspects of the same cases of every row; what differs is listed with its reason."""
    there, here = refusals(runs["mps"]), refusals(runs["sim:mps"])
    assert there, "nothing is refused, so that nothing is said"
    different = {k for k in {*there, *here} if there.get(k) != here.get(k)}
    assert different == set(OTHERWISE), {k: (there.get(k), here.get(k)) for k in different ^ set(OTHERWISE)}


# Rows for which torch's code for MPS calls other operators than its code for a device like `sim:mps`, and why.
FUSED_CELLS = "a fused cell on such a device, written in C++; linear and elementwise operators on MPS"
DOT = "a dot product of two vectors; a product of matrices on MPS"
NO_KERNEL = "the stand-in has no kernel of it, because torch has none for the CPU"
NO_SPARSE = "the stand-in has no sparse tensors: their kernels for MPS are in torch's builds for macOS alone"
DISPATCHED_OTHERWISE = {
    **dict.fromkeys((r.name for r in catalog.ROWS.values() if r.family == "sparse"), NO_SPARSE),
    **dict.fromkeys(("lstm_cell", "gru_cell", "gru", "lstm_packed", "gru_packed"), FUSED_CELLS),
    **dict.fromkeys(("inner", "tensordot"), DOT),
    **dict.fromkeys(("sparse_csr_tensor", "sparse_csc_tensor"), "torch refuses it on MPS"),
    **dict.fromkeys(("norm_public", "normalize"), "torch.norm calls another operator on MPS, whose dtype= is broken"),
    "svd": "computed on the CPU, in one call on MPS",
    "sgn": "the zeros of its gradient are made where they are needed on MPS",
    "renorm": "its derivative accumulates in float64 elsewhere",
    "weight_int4pack_mm": NO_KERNEL,
}


def test_the_simulated_mps_takes_the_branches_of_mps(tmp_path: Path) -> None:
    """Every row dispatches the same operators on both, forward and backward, but for those that are listed."""
    names = {}
    for device in ("mps", "sim:mps"):
        path = tmp_path / "names.json"
        more = [str(HERE / "standin.py")] if device == "mps" else []
        command = [sys.executable, str(HERE / "dispatched.py"), device, str(path), *more]
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        names[device] = json.loads(path.read_text())
    there, here = names["mps"], names["sim:mps"]
    assert set(there) == set(here) == set(catalog.ROWS)
    assert sum(map(bool, there.values())) > 750
    different = {op for op in there if there[op] != here[op]}
    assert different == set(DISPATCHED_OTHERWISE), {op: (there[op], here[op]) for op in different ^ set(DISPATCHED_OTHERWISE)}


# ------------------------------------------------------------------------------------------------------------- the doctor


@pytest.mark.parametrize(
    ("setup", "code", "words"),
    [
        ("standin.py", 0, ("mps (Apple M2 Pro (stand-in))", "healthy", "math precise")),
        ("fast_math.py", 0, ("healthy", "math fast")),
        ("full_memory.py", 4, ("unusable", "out of memory at 1048576 bytes")),
        ("late_error.py", 4, ("unusable", "AcceleratorError: index 7 is out of bounds for dimension 0 with size 3")),
    ],
)
def test_the_doctor_examines_the_device(setup: str, code: int, words: tuple[str, ...]) -> None:
    """Healthy, with fast math, without memory, with an error that somebody left behind."""
    done = parity("doctor", setup=setup)
    assert done.returncode == code, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert [w for w in words if w not in said] == [], said


# ------------------------------------------------------------------------------------------------------ runs and their files


def run_of(folder: Path, *ops: str, code: int = 0, dtype: str = "float32", setup: str = "standin.py", **env: str) -> Run:
    """A short run of some ops; what comes last of an option counts."""
    files = ("--output", str(folder / "run.jsonl"), "--findings", str(folder / "findings"))
    done = parity("run", *BRIEF, *ops, "--dtype", dtype, "-n", "1", *files, cwd=folder, setup=setup, **env)
    assert done.returncode == code, done.stdout + done.stderr
    return run_file.read(folder / "run.jsonl")


def test_what_graphs_and_calls_take_is_measured(tmp_path: Path) -> None:
    """By `torch.mps` alone, and with nothing to compile."""
    step = archive._costs(("mps", "", str(HERE / "standin.py")), tmp_path, SECONDS)
    held = stored.convert(json.loads((tmp_path / "costs.json").read_text()), Costs)
    assert (step.code, held.device, held.simulated) == (0, "mps", False)
    assert 0 < held.graph_call.middle < 0.01
    assert held.graph.middle < 0.01
    assert held.graph_memory.middle < 1 << 18


def test_a_missing_operator_falls_back_or_is_refused(tmp_path: Path) -> None:
    """As the environment says; operands on two devices are no finding where torch's fallback takes them."""
    told = {}
    for on in ("0", "1"):
        run = run_of(tmp_path, "exp", "heaviside", "frexp", PYTORCH_ENABLE_MPS_FALLBACK=on)
        told[on] = {s for i in run.items if i.op != "exp" for s in i.counts["forward"]}
    assert told == {"0": {"unsupported"}, "1": {"fallback"}}


def test_a_finding_has_a_script_and_can_be_replayed(tmp_path: Path) -> None:
    """torch's own lu_solve is wrong on MPS where batches are broadcast: found, written in plain torch, found again."""
    run = run_of(tmp_path, "lu_solve", "--examples", "90", code=1)
    record = next(r for r in run.records if r.status == Status.WRONG)
    assert (record.op, record.aspect) == ("lu_solve", "forward")
    done = parity("replay", record.case, cwd=tmp_path)
    assert done.returncode == 1
    assert "wrong in" in done.stdout
    (script,) = (tmp_path / "findings").glob("*forward-out.py")
    done = python(f"import runpy\nrunpy.run_path({str(script)!r}, run_name='__main__')\n")
    assert "mps" in done.stdout, done.stderr
    assert done.returncode == 1


def test_a_run_on_mps_is_audited(tmp_path: Path) -> None:
    """Its operators count as dispatched on a real device, those too that exist on MPS alone."""
    run = run_of(tmp_path, "conv2d", "conv_transpose2d", "--study", "reach")
    operators = {o.partition(".")[0] for i in run.items for o in i.operators}
    convolutions = {"_mps_convolution", "_mps_convolution_transpose"}
    assert operators >= convolutions | {"mps_convolution_backward", "mps_convolution_transpose_backward"}
    done = plain("prove", "reach", "run.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "quick profile on mps: 2 ops" in done.stdout
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 2


def test_nothing_is_read_before_the_device_is_waited_for(tmp_path: Path) -> None:
    """With kernels that run late every result agrees, and an index out of range is blamed on the call that it is in."""
    run = run_of(tmp_path, "linear", "index_select", "copy_from", "cumsum", "to", setup="late_kernels.py")
    assert [(r.case, r.aspect, r.reason) for r in run.records if r.status in FINDINGS] == []
    past = 'index_select(float32[4], 0, int64[2].index(0, 4).at(0, "4")).refused("index")'
    done = parity("replay", past, setup="late_kernels.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both refuse" in done.stdout


# --------------------------------------------------------------------------------------------------- people's own tests

PEOPLE = """
import functools
import pytest
import torch
from parity import assert_parity
from parity import ParityFailure
from parity.core.errors import UsageError

def test_fixture(parity):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU())
    parity(model, torch.randn(2, 2, 5, 5, requires_grad=True))

def test_model_that_was_moved():
    model = torch.nn.Linear(4, 3)
    weight = model.weight
    assert model.to("mps").weight is weight and weight.device.type == "mps"
    assert_parity(model, torch.randn(2, 4), device="mps")

def test_missing():
    with pytest.raises(ParityFailure, match="unsupported"):
        assert_parity(torch.heaviside, torch.randn(3), torch.randn(3), device="mps")

@functools.cache
def kept(place):
    return torch.Generator(place).manual_seed(2)

def seeded_again(x):
    g = torch.Generator(x.device)
    a, b = (torch.randn(x.shape, generator=g.manual_seed(3), device=x.device) for _ in "ab")
    c = torch.empty_like(x).uniform_(generator=g)
    state = g.get_state()
    d = torch.rand(x.shape, generator=g, device=x.device)
    g.set_state(state)
    return x + a - b + c, d - torch.rand(x.shape, generator=g, device=x.device)

def kept_between_calls(x):
    return torch.rand_like(x, generator=kept(x.device.type))

def set_by_hand(x):
    g = torch.Generator(x.device).manual_seed(3)
    if not x.is_cpu:
        g.set_offset(8)
    return x + torch.randn(x.shape, generator=g, device=x.device)

def test_generators():
    assert_parity(seeded_again, torch.rand(5), device="mps")
    with pytest.raises(ParityFailure):
        assert_parity(lambda x: seeded_again(x)[0] * (1.0 if x.is_cpu else 1.01), torch.rand(5), device="mps")
    for odd in (kept_between_calls, set_by_hand):
        with pytest.raises(UsageError, match="from a generator in another state on mps than on the CPU"):
            assert_parity(odd, torch.rand(5), device="mps")

def test_wrong(parity):
    parity(torch.Tensor.conj_physical_, torch.ones(2, dtype=torch.complex64))
"""


def test_the_fixture_and_assert_parity(tmp_path: Path) -> None:
    """On the device that --parity-setup brings; the command to go on with names it."""
    (tmp_path / "test_people.py").write_text(PEOPLE)
    options = ("--parity-device", "mps", "--parity-setup", str(HERE / "standin.py"), "-p", "no:cacheprovider", "-q")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert "1 failed, 4 passed" in done.stdout, done.stdout
    assert f"--device mps --setup {HERE / 'standin.py'}" in done.stdout


# ------------------------------------------------------------------------------------------------------------ the workflow


def test_the_action_of_the_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, twice; the set-up file is the only thing that a Mac does not have."""
    inputs = {"device": "mps", "setup": str(HERE / "standin.py"), "ops": "linear"}
    runner = machine(tmp_path, inputs | {"arguments": shlex.join([*BRIEF, "--dtype", "float32", "-n", "1"])})
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", environment()["OMP_NUM_THREADS"])
    for number in (1, 2):
        runner.run_id = number
        result = runner.job("gate", [{"uses": "./.github/actions/parity"}], runner.given())
        assert result["result"] == "success", runner.output
    summary = (tmp_path / "store/summary.md").read_text()
    assert "device mps (Apple M2 Pro (stand-in))" in runner.output
    assert "nothing changed (" in summary
    assert "Everything that counts agrees." in summary
    assert "Everything that was compared agrees" in (runner.folder / "parity-out/report.html").read_text()
