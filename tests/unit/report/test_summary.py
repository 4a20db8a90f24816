"""The end of a run, in one screen."""

from __future__ import annotations

from parity.report import summary
from parity.store import Death, Header, Item
from parity.vocabulary import Fingerprint, Measure, Record, Status


def header(simulated: bool = True) -> Header:
    f = Fingerprint(
        "0", "2.13.0", "", "3.11", "Linux", "x86_64", "sim:mps" if simulated else "mps", "Apple M4", simulated=simulated
    )
    return Header(f, "0", "quick")


ITEMS = (
    Item("add", "float32", 10, {"forward": {"agree": 9, "drift": 1}}),
    Item("mode", "float32", 3, {"forward": {"unsupported": 3}}),
    Item("mode", "int64", 3, {"forward": {"unsupported": 3}}),
    Item("log", "float32", 3, {"forward": {"agree": 3}}),
    Item("log", "int64", 3, {"forward": {"unsupported": 3}}),
    Item("view", "float32", 4, {"forward": {"agree": 3, "void": 1}}, void={"the reference refuses: size": 1}),
)


def test_a_simulated_device_is_never_taken_for_hardware() -> None:
    """Every report says so."""
    assert "SIMULATED" in summary.render(header(), ITEMS, (), (), 1.0)
    assert "SIMULATED" not in summary.render(header(simulated=False), ITEMS, (), (), 1.0)


def test_it_counts_per_status_and_dtype() -> None:
    """One line per dtype, one column per status that occurred."""
    text = summary.render(header(), ITEMS, (), (), 1.0)
    assert "dtype" in text
    row = next(x for x in text.splitlines() if x.split()[:1] == ["float32"])
    assert row.split() == ["float32", "4", "15", "1", "3", "1"]


def test_it_names_what_the_device_lacks() -> None:
    """Whole ops apart from single dtypes."""
    text = summary.render(header(), ITEMS, (), (), 1.0)
    assert "no kernel in any dtype: mode" in text
    assert "not in int64: log" in text


def test_it_names_findings_deaths_voids_and_a_worse_reference() -> None:
    """Each in a part of its own."""
    bad = Record(
        "add(float32[2])", "add", "float32", "forward", Status.DRIFT, measures=(Measure("out", 40.0),), shrunk="add(float32[1])"
    )
    worse = Record("x", "gelu", "float32", "forward", Status.AGREE, measures=(Measure("out", 0.5, 12.0, True),))
    death = Death("cosh", "float32", "cosh(float32[1])", "", "crash", "SIGABRT", "device")
    text = summary.render(header(), ITEMS, (bad, worse), (death,), 1.0)
    assert "drift add float32 forward: add(float32[1])" in text
    assert "crash (SIGABRT) of cosh float32 at stage device: cosh(float32[1])" in text
    assert "view float32: 1 of 4 cases (the reference refuses: size)" in text
    assert "gelu (12)" in text


def test_nothing_compared_is_no_success() -> None:
    """The last line says so."""
    assert "no success" in summary.last_line((), (), "run.jsonl", 3)
    assert "everything that was compared agrees" in summary.last_line(ITEMS[3:4], (), "run.jsonl", 0)
