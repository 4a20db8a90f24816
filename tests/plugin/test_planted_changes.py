"""Changes of a device that are planted, each in its own group of a diff and in no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from torch import Tensor

from parity import tolerance
from parity.devices import Call, Fault, resolve
from parity.devices.base import fingerprint
from parity.devices.sim.faults import refuse
from parity.engine import suite
from parity.engine.examine import examine
from parity.engine.journal import NoJournal
from parity.engine.options import RunOptions
from parity.engine.planning import RunPlan
from parity.history.change import Group, ReportedChange
from parity.history.diff import Diff, compare
from parity.report.diff import terminal
from parity.store.rows import End, Header, Run, totals

pytestmark = pytest.mark.slow

OPS = ("softmax", "layer_norm", "mm", "cumsum")  # those that are healthy show that nothing else is told
THROUGH_MM = ("mm", "matmul", "addmm", "inner", "chain_matmul", "linear", "tensordot", "kron", "corrcoef")


def ran(
    *faults: Fault, ops: Sequence[str] = OPS, dtypes: Sequence[str] = ("float32",), examples: int | None = 20, seed: str = "0"
) -> Run:  # fmt: skip
    """A run of the simulated device in this process."""
    device, profile = resolve("sim", faults), suite.profile("quick")
    plan = RunPlan(device, resolve("cpu"), tolerance.load("sim"), profile, RunOptions(examples=examples, seed=seed))
    items = [i for i in suite.select(ops, dtypes=dtypes) if i.row.name in ops]
    done = [examine(i, plan, NoJournal()) for i in items]
    rows = tuple(d.summary for d in done)
    header = Header(fingerprint(device), "0", "quick", " ".join(ops))
    end = End(1.0, dict(totals(rows)), "", len(items))
    records, figures = tuple(r for d in done for r in d.records), tuple(f for d in done for f in d.figures)
    return Run(header, records, rows, (), end, figures=figures)


@pytest.fixture(scope="module")
def healthy() -> Run:
    return ran()


def struck(run: Run, fault: Fault, op: str) -> Run:
    """The run with a fault in a kernel of this op alone: the other ops are those of the run."""
    made = ran(fault, ops=(op,))
    kept: Any = {k: (*(x for x in getattr(run, k) if x.op != op), *getattr(made, k)) for k in ("records", "items", "figures")}
    return replace(run, **kept, end=End(1.0, dict(totals(kept["items"])), "", len(kept["items"])))


def only(diff: Diff, group: Group) -> tuple[ReportedChange, ...]:
    """The entries of the one group that has any."""
    assert list(diff.groups) == [group], terminal(diff)
    return diff.groups[group]


def floats(change: Callable[[Tensor], Tensor], *dtypes: torch.dtype) -> Callable[[Call], object]:
    """An effect that changes all results of these dtypes."""

    def effect(call: Call) -> object:
        result = call.run()
        if isinstance(result, Tensor):
            return change(result) if result.dtype in dtypes else result
        return type(result)(change(t) if isinstance(t, Tensor) and t.dtype in dtypes else t for t in result)

    return effect


def without_the_last_bit(t: Tensor) -> Tensor:
    return (t.contiguous().view(torch.int16) & ~1).view(t.dtype)


def three_ulp_off(t: Tensor) -> Tensor:
    """Every other element up, the others down."""
    flat = t.contiguous().reshape(-1)
    to = torch.full_like(flat, float("inf"))
    to[::2] = -float("inf")
    for _ in range(3):
        flat = torch.nextafter(flat, to)
    return flat.reshape(t.shape)


def test_equal_runs_tell_nothing(healthy: Run) -> None:
    """The same device, torch and seed: not one error differs, whatever the machine does meanwhile."""
    diff = compare(healthy, ran())
    assert dict(diff.groups) == {}, terminal(diff)
    assert (diff.drift.series, diff.exit_code()) == (0, 0)
    assert diff.drift.pairs > 200


def test_one_bit_lost_in_a_gradient_is_drift_of_that_cell() -> None:
    # In many elements, and with other seeds, the bit alone is more than rounding in some case, which is a finding of its own.
    lost = floats(without_the_last_bit, torch.float16)
    lossy = Fault("bit", ("native_layer_norm_backward",), lost, when=lambda call: call.args[1].numel() <= 128)
    ops, dtypes = ("layer_norm",), ("float16",)
    before, after = (ran(*faults, ops=ops, dtypes=dtypes, examples=90, seed="6") for faults in ((), (lossy,)))
    (told,) = only(compare(before, after), Group.WORSE)
    assert told.cells == (("layer_norm", "float16", "backward"),)
    (back,) = only(compare(after, before), Group.BETTER)
    assert back.cells == told.cells


def test_softmax_three_ulp_worse_is_drift(healthy: Run) -> None:
    off = floats(three_ulp_off, torch.float32)
    fault = Fault("ulp", ("_softmax",), off, when=lambda call: bool((call.args[0].abs() < 1e3).all()))
    (told,) = only(compare(healthy, struck(healthy, fault, "softmax")), Group.WORSE)
    assert (told.ops, told.fails) == (("softmax",), False)
    assert "forward" in told.aspects
    # With huge numbers, too, a second derivative leaves its tolerance: the errors inside it are told with that finding.
    (told,) = only(compare(healthy, struck(healthy, replace(fault, when=lambda call: True), "softmax")), Group.REGRESSED)
    assert told.cells == (("softmax", "float32", "double backward"),)
    assert "forward" in {c[2] for s in told.shifts for c in s.cells}


def test_an_op_that_is_refused_has_lost_its_support(healthy: Run) -> None:
    refused = struck(healthy, Fault("no cumsum", ("cumsum",), refuse), "cumsum")
    (told,) = only(compare(healthy, refused), Group.LOST)
    assert told.ops == ("cumsum",)
    (back,) = only(compare(refused, healthy), Group.SUPPORTED)
    assert back.ops == ("cumsum",)


def test_an_op_of_one_run_alone_is_added_or_removed(healthy: Run) -> None:
    fewer = ran(ops=OPS[:-1])
    assert [t.ops for t in only(compare(healthy, fewer), Group.REMOVED)] == [("cumsum",)]
    assert [t.ops for t in only(compare(fewer, healthy), Group.ADDED)] == [("cumsum",)]


def test_many_ops_through_one_wrong_kernel_are_one_line() -> None:
    wrong = Fault("mm", ("mm",), lambda call: call.run() * 1.01)
    before, after = (ran(*faults, ops=THROUGH_MM, examples=6) for faults in ((), (wrong,)))
    (told,) = only(compare(before, after), Group.REGRESSED)
    assert told.cause is not None
    assert told.cause.subject == "aten::mm"
    assert len(told.ops) >= 6
    (back,) = only(compare(after, before), Group.FIXED)
    assert (back.cause, set(back.ops)) == (told.cause, set(told.ops))


def test_an_op_that_takes_twenty_milliseconds_more_is_slower(healthy: Run) -> None:
    """Both passes: its gradient is a product, too."""

    def late(call: Call) -> object:
        time.sleep(0.02)
        return call.run()

    diff = compare(healthy, struck(healthy, Fault("late", ("mm",), late), "mm"))
    (told,) = only(diff, Group.SLOWER)
    assert told.ops == ("mm",)
    assert all(p.after > 0.02 > p.before for p in told.paces)
    assert (diff.exit_code(), diff.exit_code((Group.SLOWER,))) == (0, 1)


def test_other_seeds_pair_their_pinned_cases(healthy: Run) -> None:
    """Two of each item; a constant error of the device is no change."""
    figures = tuple(replace(f, keys=f.keys[:8] + "A" * len(f.keys[8:])) for f in healthy.figures)
    diff = compare(healthy, replace(healthy, figures=figures))
    assert dict(diff.groups) == {}
    assert 0 < diff.drift.pairs <= 2 * len(diff.before.selection.split()) * 9


ABORT = """
from parity.devices import Fault
from parity.devices.sim.faults import abort
FAULTS = [Fault("aborts", ("erfinv",), abort, when=lambda call: call.args[0].dim() > 1)]
"""


@pytest.mark.usefixtures("examined_once")
def test_a_crash_that_was_not_there_is_newly_dying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("faults.py").write_text(ABORT)
    asked = ("run", "erfinv", "exp", "--device", "sim", "--dtype", "float32", "--examples", "2", "-n", "1", "--power", "0")
    assert commands.told(capfd, *asked, "--output", "before.jsonl")[0] == 0
    assert commands.told(capfd, *asked, "--output", "after.jsonl", "--setup", "faults.py", "--skip", "shrink")[0] == 1
    code, said = commands.told(capfd, "diff", "before.jsonl", "after.jsonl", "--accept", "partial")
    assert code == 1, said
    groups = [line for line in said.splitlines() if line.startswith(tuple(f"{g.words}: " for g in Group))]
    assert len(groups) == 1, said
    assert groups[0].startswith("newly dying: 1 ")
    assert "SIGABRT" in said
