"""The end of a run, in one screen."""

from __future__ import annotations

from dataclasses import replace

from parity.core.results import Cause, Fingerprint, Measure, MetadataNote, Record, Status
from parity.report.summary import SummaryData, last_line, render
from parity.store.code import Code
from parity.store.features import Coverage
from parity.store.rows import Death, Header, ItemRow


def header(simulated: bool = True) -> Header:
    f = Fingerprint(
        "0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim:mps" if simulated else "mps", "Apple M4", simulated=simulated
    )
    return Header(f, "0", "quick")


ITEMS = (
    ItemRow("add", "float32", 10, {"forward": {"agree": 9, "drift": 1}}),
    ItemRow("mode", "float32", 3, {"forward": {"unsupported": 3}}),
    ItemRow("mode", "int64", 3, {"forward": {"unsupported": 3}}),
    ItemRow("log", "float32", 3, {"forward": {"agree": 3}}),
    ItemRow("log", "int64", 3, {"forward": {"unsupported": 3}}),
    ItemRow("view", "float32", 4, {"forward": {"agree": 3, "void": 1}}, void={"the reference refuses: size": 1}),
)
DRAWN = Coverage("binary", 9, {"into rows": 2, "special nan": 3}, {"into rows": {"special nan": 2}})


def test_a_simulated_device_is_never_taken_for_hardware() -> None:
    """Every report says so."""
    assert "SIMULATED" in render(SummaryData(header(), ITEMS))
    assert "SIMULATED" not in render(SummaryData(header(simulated=False), ITEMS))


def test_it_counts_per_status_and_dtype() -> None:
    """One line per dtype, one column per status that occurred."""
    text = render(SummaryData(header(), ITEMS))
    assert "dtype" in text
    row = next(x for x in text.splitlines() if x.split()[:1] == ["float32"])
    assert row.split() == ["float32", "4", "15", "1", "3", "1"]


def test_it_names_what_the_device_lacks() -> None:
    """Whole ops apart from single dtypes."""
    text = render(SummaryData(header(), ITEMS))
    assert "no kernel in any dtype: mode" in text
    assert "not in int64: log" in text


def test_it_names_findings_deaths_voids_and_a_worse_reference() -> None:
    """Each in a part of its own."""
    bad = Record(
        "add(float32[2])", "add", "float32", "forward", Status.DRIFT, measures=(Measure("out", 40.0),), shrunk="add(float32[1])"
    )
    worse = Record("x", "gelu", "float32", "forward", Status.AGREE, measures=(Measure("out", 0.5, 12.0, True),))
    death = Death("cosh", "float32", "cosh(float32[1])", "", "crash", "SIGABRT", "device")
    text = render(SummaryData(header(), ITEMS, (bad, worse), (death,)))
    assert "2 causes (A 2) of 1 kind of findings in 1 check and 1 death of the process" in text
    assert "drift in out, forward: " in text
    assert "reproduce: parity replay 'add(float32[1])' --device sim:mps" in text
    assert "the device ends the process (SIGABRT in cosh); 1 death in cosh (float32)" in text
    assert "reproduce: parity replay 'cosh(float32[1])' --device sim:mps" in text
    assert "view float32: 1 of 4 cases (the reference refuses: size)" in text
    assert "gelu (12)" in text


def test_nothing_compared_is_no_success() -> None:
    """The last line says so."""
    assert "no success" in last_line(SummaryData(header()), 3)
    assert "everything that was compared agrees" in last_line(SummaryData(header(), ITEMS[3:4]), 0)


def test_the_counts_of_a_run_are_told_together() -> None:
    """Findings are kinds of difference, each told by its least case; other records hold checks as they were drawn."""
    items = (ItemRow("add", "float32", 60, {"forward": {"agree": 7, "wrong": 53}}),)
    drawn = [Record(f"add(float32[{k}])", "add", "float32", "forward", Status.WRONG) for k in range(30)]
    least = [replace(drawn[9], shrunk=f"add(float32[1, {k}])") for k in range(1, 11)]
    text = render(SummaryData(header(), items, (*drawn, *least), coverage=(DRAWN,), run_file="my run.jsonl"))
    assert "1 cause (A 1) of 10 kinds of findings in 53 checks" in text
    assert "drawn      1 pair of features; those that are lacking: parity prove coverage 'my run.jsonl'" in text
    assert "add(float32[3])" not in text
    assert last_line(SummaryData(header(), items, (*drawn, *least), run_file="run.jsonl"), 1) == (
        "10 findings in 53 checks; stored in run.jsonl; every cause in full: parity report run.jsonl; all again: parity replay "
        "run.jsonl"
    )
    given = replace(header(), faults=Code("my faults.py", "12"), setup=Code("flags.py", "34"))
    line = last_line(SummaryData(given, items, (*drawn, *least), run_file="run.jsonl"), 1)
    assert line.endswith("all again: parity replay run.jsonl --setup 'my faults.py' --setup flags.py")


def test_the_end_fits_a_screen_whatever_was_found() -> None:
    """Sixty lines with the last ones of the run; with everything asked for, all is told."""
    items = tuple(ItemRow(f"op{k}", "float32", 60, {"forward": {"wrong": 2}}, void={"why": 1}) for k in range(300))
    records = [
        Record(
            f"add(float32[{k}])",
            f"op{k}",
            "float32",
            "forward",
            Status.WRONG,
            shrunk=f"add(float32[{k}])",
            cause=Cause(f"aten::{k}", "values"),
        )
        for k in range(1, 301)
    ]
    deaths = [Death(f"d{k}", "float32", f"sin(float32[{k}])", "", "crash", f"signal {'x' * k}", "device") for k in range(1, 60)]
    acquitted = [replace(d, blame="cpu", why="it dies alone") for d in deaths]
    data = SummaryData(header(), items, records, (*deaths, *acquitted), lost=[f"item{k}" for k in range(99)])
    text = render(data).splitlines()
    assert len(text) <= 56
    assert "causes" in "\n".join(text)
    assert any(line.startswith("... and") and "more causes" in line for line in text)
    whole = render(replace(data, verbose=True))
    assert all(f"aten::{k} " in whole for k in range(1, 301))


def test_what_fails_on_demand_is_told_with_one_of_them() -> None:
    """Agreement is not all there is to say where the run failed."""
    refused = (Record("mode(float32[2])", "mode", "float32", "forward", Status.UNSUPPORTED),)
    text = render(SummaryData(header(), ITEMS[1:], refused, fail_on=("unsupported", "void", "fallback")))
    assert "failed by --fail-on\n  unsupported: 9 checks; one of them: mode(float32[2])\n" in text
    assert "  void: 1 check; one of them: view float32: the reference refuses: size" in text
    assert "fallback" not in text.split("failed by")[1]
    line = last_line(SummaryData(header(), ITEMS[1:], refused, fail_on=("unsupported",)), 1)
    assert line.startswith("everything that was compared agrees, but --fail-on fails the run for 9 checks unsupported: see ")
    assert "but parity itself failed in some items: see above" in last_line(SummaryData(header(), ITEMS[3:4]), 1)
    assert "--fail-on" not in render(SummaryData(header(), ITEMS, refused))


def test_it_names_what_fell_back_by_pass_and_dtype() -> None:
    """With the number of checks."""
    items = (
        ItemRow("svd", "float32", 3, {"forward": {"fallback": 3}, "backward": {"fallback": 2, "agree": 1}}),
        ItemRow("svd", "complex64", 3, {"forward": {"fallback": 1}}),
        ItemRow("exp", "float32", 3, {"forward": {"agree": 3}}),
    )
    text = render(SummaryData(header(), items))
    assert "  svd: forward float32 3, complex64 1; backward float32 2" in text
    assert "fallback: " not in render(SummaryData(header(), items[2:]))


def test_it_names_leaks_and_the_memory_of_workers() -> None:
    leaky = replace(ITEMS[0], leaks={"add(float32[2], float32[2])": 4096})
    text = render(SummaryData(header(), (leaky, *ITEMS[1:]), memory="a worker occupied 1.0 GB at most"))
    assert "  add float32: 4,096 bytes per call of add(float32[2], float32[2])" in text
    assert "memory     a worker occupied 1.0 GB at most" in text
    assert "leaks:" not in render(SummaryData(header(), ITEMS))


def test_it_tells_other_strides_in_one_line_and_each_with_v() -> None:
    note = MetadataNote("forward", "out", (2, 3), (1, 2), (3, 1), "add(float32[2, 3], float32[3])", 4)
    rare = replace(note, device=(6, 2), count=1)
    items = (replace(ITEMS[0], metadata=(rare, note)), *ITEMS[1:])
    text = render(SummaryData(header(), items))
    told = [x for x in text.splitlines() if "strides" in x]
    assert told == [
        "metadata: 1 op gives other strides than the CPU: add (permuted instead of contiguous) (no failure; --fail-on metadata "
        "makes findings of them; all: parity run -v)"
    ]
    verbose = render(SummaryData(header(), items, verbose=True))
    one = "  add float32: out permuted instead of contiguous, in 4 checks: strides (1, 2), the CPU's (3, 1): "
    assert one + "add(float32[2, 3], float32[3])" in verbose
    assert "with gaps instead of contiguous, in 1 check" in verbose
    assert "metadata" not in render(SummaryData(header(), ITEMS))
