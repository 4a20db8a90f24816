"""The end of a run, in one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from parity.core.results import Cause, Fingerprint, Measure, MetadataNote, Record, Status
from parity.findings.verdict import RunResult
from parity.report.summary import SummaryData, opening, render, verdict
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
OF_RESULT = {f.name for f in fields(RunResult)}


def data_of(header: Header, items: Sequence[ItemRow] = (), *results: Any, **more: Any) -> SummaryData:
    """The input of a summary. results, more: the fields of `RunResult` after its items, and those of `SummaryData`."""
    result = RunResult(items, *results, **{n: v for n, v in more.items() if n in OF_RESULT})
    return SummaryData(header, result, **{n: v for n, v in more.items() if n not in OF_RESULT})


DRAWN = Coverage("binary", 9, {"into rows": 2, "special nan": 3}, {"into rows": {"special nan": 2}})


def test_a_simulated_device_is_never_taken_for_hardware() -> None:
    """The beginning of a run says so, and the end of one that is not short."""
    found = (Record("add(float32[2])", "add", "float32", "forward", Status.DRIFT, shrunk="add(float32[1])"),)
    for simulated in (True, False):
        h = header(simulated)
        for text in (opening(h.fingerprint, "1 op"), render(data_of(h, ITEMS, found)), render(data_of(h, ITEMS, verbose=True))):
            assert ("SIMULATED" in text) is simulated
    assert "device " not in render(data_of(header(), ITEMS)), "a healthy run is eight lines"


def test_it_counts_per_status_and_dtype() -> None:
    """One line per dtype, one column per status that occurred."""
    text = render(data_of(header(), ITEMS, verbose=True))
    assert "dtype" in text
    row = next(x for x in text.splitlines() if x.split()[:1] == ["float32"])
    assert row.split() == ["float32", "4", "15", "1", "3", "1"]


def test_it_names_what_the_device_lacks() -> None:
    """Whole ops apart from single dtypes."""
    for verbose in (False, True):
        text = render(data_of(header(), ITEMS, verbose=verbose))
        assert "no kernel in any dtype: mode" in text
        assert "not in int64: log" in text


def test_refusals_of_several_dtypes_are_one_number_in_short_and_apart_with_v() -> None:
    more = [ItemRow("exp", d, 3, {"forward": {s: 3}}) for d, s in (("int32", "unsupported"), ("float32", "agree"))]
    data = data_of(header(), (*ITEMS, *more))
    assert "\nrefused    1 op, no kernel in any dtype: mode; 2 ops, not in some dtypes: log, exp\n" in render(data)
    whole = render(replace(data, verbose=True))
    assert "  not in int64: log\n" in whole
    assert "  not in int32: exp\n" in whole


def test_it_names_findings_deaths_voids_and_a_worse_reference() -> None:
    """Each in a part of its own."""
    bad = Record(
        "add(float32[2])", "add", "float32", "forward", Status.DRIFT, measures=(Measure("out", 40.0),), shrunk="add(float32[1])"
    )
    worse = Record("x", "gelu", "float32", "forward", Status.AGREE, measures=(Measure("out", 0.5, 12.0, True),))
    death = Death("cosh", "float32", "cosh(float32[1])", "", "crash", "SIGABRT", "device")
    data = data_of(header(), ITEMS, (bad, worse), (death,))
    text = render(data)
    of = "1 kind of findings in 1 check and 1 death of the process"
    assert text.startswith(f"\n1 cause (A 1) of {of}, and 1 operator not looked into\n")
    assert "drift in out, forward: " in text
    assert "reproduce: parity replay 'add(float32[1])' --device sim:mps" in text
    assert "the device ends the process (SIGABRT in cosh); 1 death in cosh (float32)" in text
    assert "reproduce: parity replay 'cosh(float32[1])' --device sim:mps" in text
    assert "\nvoid       1 case compared nothing: view float32; the reference refuses: size" in text
    whole = render(replace(data, verbose=True))
    assert "view float32: 1 of 4 cases (the reference refuses: size)" in whole
    assert "gelu (12)" in whole


def test_nothing_compared_is_no_success() -> None:
    """The last line says so."""
    assert verdict(data_of(header()), 3).startswith("INCONCLUSIVE  nothing was compared: this is no success")
    assert verdict(data_of(header(), ITEMS[3:4], seconds=75.2), 0) == (
        "PASS  everything that was compared agrees (1 op, 3 checks), in 1:15; stored in RUN; next: parity diff RUN OTHER"
    )
    cut = data_of(header(), ITEMS[3:4], stopped="interrupted after 1 of 4 items", go_on="parity run --resume RUN")
    assert verdict(cut, 130) == (
        "INCONCLUSIVE  everything that was compared agrees (1 op, 3 checks); the run was interrupted after 1 of 4 items, in "
        "0.0 s; stored in RUN; next: parity run --resume RUN"
    )
    assert verdict(cut, 0).startswith("INCONCLUSIVE  ")
    nothing = data_of(header(), stopped="interrupted after 0 of 4 items", go_on="parity run --resume RUN")
    assert verdict(nothing, 130).startswith(
        "INCONCLUSIVE  nothing was compared; the run was interrupted after 0 of 4 items, in "
    )


def test_the_counts_of_a_run_are_told_together() -> None:
    """Findings are kinds of difference, each shown by its least case; other records hold checks as they were drawn."""
    items = (ItemRow("add", "float32", 60, {"forward": {"agree": 7, "wrong": 53}}),)
    drawn = [Record(f"add(float32[{k}])", "add", "float32", "forward", Status.WRONG) for k in range(30)]
    least = [replace(drawn[9], shrunk=f"add(float32[1, {k}])") for k in range(1, 11)]
    data = data_of(header(), items, (*drawn, *least), coverage=(DRAWN,), run_file="my run.jsonl", verbose=True)
    text = render(data)
    assert "1 operator not looked into: 10 kinds of findings in 53 checks" in text
    assert "drawn      1 pair of features; missing ones: parity prove coverage 'my run.jsonl'" in text
    assert "add(float32[3])" not in text
    assert verdict(data, 1) == (
        "FAIL  10 findings in 53 of 60 checks, in 0.0 s; stored in 'my run.jsonl'; next: parity report 'my run.jsonl'"
    )


def test_the_end_fits_a_screen_whatever_was_found() -> None:
    """Thirty lines with the first and the last ones of the run, at any width; with -v, all is shown."""
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
    data = data_of(header(), items, records, (*deaths, *acquitted), lost=[f"item{k}" for k in range(99)])
    for width in (None, 120, 80):
        text = render(data, width).splitlines()
        assert len(text) <= 27, width
        assert max(map(len, text)) <= (width or 1000)
    assert "causes" in text[1]
    assert any(line.startswith("... and") and "more causes" in line for line in text)
    whole = render(replace(data, verbose=True))
    assert all(f"aten::{k} " in whole for k in range(1, 301))


def test_what_fails_on_demand_is_told_with_one_of_them() -> None:
    """Agreement is not all there is to say where the run failed."""
    refused = (Record("mode(float32[2])", "mode", "float32", "forward", Status.UNSUPPORTED),)
    text = render(data_of(header(), ITEMS[1:], refused, fail_on=("unsupported", "void", "fallback")))
    assert "failed by --fail-on\n  unsupported: 9 checks; one of them: mode(float32[2])\n" in text
    assert "  void: 1 check; one of them: view float32: the reference refuses: size" in text
    assert "fallback" not in text.split("failed by")[1]
    line = verdict(data_of(header(), ITEMS[1:], refused, fail_on=("unsupported",)), 1)
    assert line.startswith("FAIL  everything that was compared agrees, but --fail-on fails the run for 9 checks unsupported: ")
    assert "but parity itself failed in some items: see above" in verdict(data_of(header(), ITEMS[3:4]), 1)
    assert "--fail-on" not in render(data_of(header(), ITEMS, refused))


def test_it_names_what_fell_back_by_pass_and_dtype() -> None:
    """With the number of checks."""
    items = (
        ItemRow("svd", "float32", 3, {"forward": {"fallback": 3}, "backward": {"fallback": 2, "agree": 1}}),
        ItemRow("svd", "complex64", 3, {"forward": {"fallback": 1}}),
        ItemRow("exp", "float32", 3, {"forward": {"agree": 3}}),
    )
    assert "\nfallback   6 checks ran on the CPU unasked: svd" in render(data_of(header(), items))
    text = render(data_of(header(), items, verbose=True))
    assert "  svd: forward float32 3, complex64 1; backward float32 2" in text
    assert "fallback" not in render(data_of(header(), items[2:]))


def test_it_names_leaks_and_the_memory_of_workers() -> None:
    leaky = replace(ITEMS[0], leaks={"add(float32[2], float32[2])": 4096})
    data = data_of(header(), (leaky, *ITEMS[1:]), memory="a worker occupied 1.0 GB at most")
    assert "\nleaks      every repeat of a call leaves memory on the device in 1 call: add float32" in render(data)
    text = render(replace(data, verbose=True))
    assert "  add float32: 4,096 bytes per call of add(float32[2], float32[2])" in text
    assert "memory     a worker occupied 1.0 GB at most" in text
    assert "leaks:" not in render(data_of(header(), ITEMS))


def test_it_lists_other_strides_with_v() -> None:
    note = MetadataNote("forward", "out", (2, 3), (1, 2), (3, 1), "add(float32[2, 3], float32[3])", 4)
    rare = replace(note, device=(6, 2), count=1)
    items = (replace(ITEMS[0], metadata=(rare, note)), *ITEMS[1:])
    assert "strides" not in render(data_of(header(), items))
    verbose = render(data_of(header(), items, verbose=True))
    title = (
        "metadata: 1 op gives other strides than the CPU: add (permuted instead of contiguous) (no failure; --fail-on metadata"
    )
    assert f"{title} makes findings of them)" in verbose
    one = "  add float32: out permuted instead of contiguous, in 4 checks: strides (1, 2), the CPU's (3, 1): "
    assert one + "add(float32[2, 3], float32[3])" in verbose
    assert "with gaps instead of contiguous, in 1 check" in verbose
    assert "metadata" not in render(data_of(header(), ITEMS, verbose=True))
