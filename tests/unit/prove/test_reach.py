"""Runs against the operator table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from parity.core.errors import RunFileError
from parity.core.results import Fingerprint
from parity.devices import operator_table
from parity.engine import suite
from parity.faces import commandline
from parity.prove import reach
from parity.prove.reach import SHARED_WITH, State
from parity.store import run_file
from parity.store.rows import End, Header, ItemRow, Run, totals
from parity.store.run_file import Writer

COUNTS = {"forward": {"agree": 3}}


def run(device: str, *items: ItemRow, version: str = "") -> Run:
    machine = ("0.1", version or str(torch.__version__), "abc", "3.11", "Linux", "x86_64", device, "simulated")
    return Run(Header(Fingerprint(*machine, simulated=True), "0", "quick"), items=items, end=End())


def item(op: str, *names: str, idle: dict[str, str] | None = None) -> ItemRow:
    return ItemRow(op, "float32", 3, COUNTS, operators=names, idle=idle or {})


def states(made: reach.Audit) -> dict[str, State]:
    return {o.name: o.state for o in made.operators}


def reason(made: reach.Audit, name: str) -> str:
    return next(o.reason for o in made.operators if o.name == name)


def test_each_overload_counts_for_itself() -> None:
    """What an item names is reached, by that row; the other overloads of the name are not."""
    made = reach.audit([run("sim", item("add", "add.Tensor"), item("sum", "add.Tensor", "sum.dim_IntList"))])
    assert (states(made)["add.Tensor"], states(made)["add_.Tensor"]) == (State.REACHED, State.MISSED)
    assert next(o.rows for o in made.operators if o.name == "add.Tensor") == ("add", "sum")
    assert reason(made, "add_.Tensor") == "never dispatched; reached are add.Tensor"
    assert made.reached == 2
    assert len(made.operators) == len(operator_table.with_kernel("MPS"))


def test_what_only_void_or_refused_cases_dispatched_does_not_count() -> None:
    """The reason says which case it was, and what became of it."""
    made = reach.audit([run("sim", item("mv", "mm"), item("erfinv", idle={"erfinv": "forward void: nobody knows"}))])
    assert states(made)["erfinv"] is State.MISSED
    assert reason(made, "erfinv") == "nothing was compared: erfinv float32, forward void: nobody knows"


def test_operators_on_mps_alone_ask_for_mps() -> None:
    """Another device may have a kernel of that name; its word is not enough."""
    assert states(reach.audit([run("sim", item("linear", "linear"))]))["linear"] is State.MISSED
    made = reach.audit([run("sim", item("add", "add.Tensor")), run("sim:mps", item("linear", "linear"))])
    assert states(made)["linear"] is State.WHOLE
    assert made.reached == 2


@pytest.mark.parametrize(
    ("op", "dispatched", "stands_for"),
    [
        ("conv2d", "convolution_overrideable", "_mps_convolution"),
        ("opinfo:nn.functional.conv2d", "convolution_overrideable", "_mps_convolution"),
        ("conv_transpose1d", "convolution_overrideable", "_mps_convolution_transpose"),
        ("conv3d", "convolution_backward_overrideable", "mps_convolution_backward"),
        ("conv_transpose3d", "convolution_backward_overrideable", "mps_convolution_transpose_backward"),
    ],
)
def test_convolutions_stand_under_another_name(op: str, dispatched: str, stands_for: str) -> None:
    """A simulated device is asked for torch's generic operator, whole; which one that is on MPS, the public op says."""
    made = reach.audit([run("sim:mps", item(op, dispatched))])
    assert [o.name for o in made.of(State.WHOLE)] == [stands_for]


def test_runs_that_say_nothing_are_refused() -> None:
    """Without their study, or of another torch."""
    with pytest.raises(RunFileError, match="noted no operator; make it with: parity run --study reach, on"):
        reach.audit([run("sim", item("add"))])
    with pytest.raises(RunFileError, match=r"was made with torch 1\.2\.3, and the operator table is that of torch"):
        reach.audit([run("sim", item("add", "add.Tensor"), version="1.2.3")])


def test_a_table_of_another_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The operators of a torch that is not installed, against its own runs and those that were made here, which say so."""
    table = operator_table.Table("9.9.0", {"add.Tensor": frozenset({"MPS", "CPU"}), "new_one": frozenset({"MPS", "CPU"})})
    result = reach.audit([run("sim", item("add", "add.Tensor"))], table)
    assert (result.torch, states(result)) == ("9.9.0", {"add.Tensor": State.REACHED, "new_one": State.MISSED})
    assert f"with torch {str(torch.__version__).partition('+')[0]}" in result.runs[0]
    assert "with torch" not in reach.audit([run("mps", item("add", "add.Tensor"), version="9.9.0")], table).runs[0]
    with pytest.raises(RunFileError, match=r"with torch 1\.2\.3, and the operator table is that of torch 9\.9\.0; .*--wheel"):
        reach.audit([run("sim", item("add", "add.Tensor"), version="1.2.3")], table)
    assert commandline.main(["prove", "reach", "--wheel", str(tmp_path / "torch.whl")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_what_is_declared_is_there() -> None:
    """Rows of the catalog, operators of the table; those on MPS alone are the ones that no other device has."""
    words = {r.counts.mps for r in suite.rows("native")}
    assert words == {"", "own", *(word for _, word in reach.ATEN_STANDS_FOR.values())}
    having = operator_table.with_kernel("MPS")
    assert having.issuperset((*reach.ATEN_STANDS_FOR, *reach.EXPLAINED))
    if str(torch.__version__).startswith("2.13."):
        keys = operator_table.dispatch_keys(operator_table.table_path())
        assert len(having) == 890
        assert len([n for n in having if not keys[n].intersection(SHARED_WITH)]) == 13


def test_the_report_ends_with_the_figure(tmp_path: Path) -> None:
    """Reached overloads behind their common name, reasons for the others, N of M (x %) as the last line; JSON holds all."""
    made = reach.audit([run("sim", item("add", "add.Tensor", "add.out", "mm"))])
    lines = reach.render(made).splitlines()
    many = len(made.operators)
    assert lines[-1] == f"3 of {many} ({300 / many:.1f} %)"
    assert "  add.Tensor .out  mm" in lines
    assert any(x.split() == ["_assert_async", *reach.EXPLAINED["_assert_async"].split()] for x in lines)
    assert any(x.startswith("quick profile on sim (SIMULATED): 1 ops, 1 op x dtype pairs, 3 comparisons") for x in lines)
    path = tmp_path / "reach.json"
    reach.write(made, path)
    tree = json.loads(path.read_text())
    assert tree["reached"] == 3
    assert tree["operators"]["mm"] == {"state": "reached", "rows": ["add"], "reason": ""}


def test_the_command_reads_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several files count together; the figure is the last line."""
    files = []
    for k, made in enumerate((run("sim", item("add", "add.Tensor")), run("sim:mps", item("linear", "linear")))):
        files.append(str(tmp_path / f"{k}.jsonl"))
        with Writer(tmp_path / f"{k}.jsonl") as writer:
            writer.write(made.header)
            writer.write(made.items[0])
            writer.write(End(totals=dict(totals(made.items[:1]))))
    assert run_file.read(tmp_path / "0.jsonl").items[0].operators == ("add.Tensor",)
    assert commandline.main(["prove", "reach", *files]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"2 of {len(operator_table.with_kernel('MPS'))} (")
    assert commandline.main(["prove", "reach", str(tmp_path / "none.jsonl")]) == 2
