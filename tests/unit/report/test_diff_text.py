"""A diff as text in five formats: nothing is lost, nothing is executed, and a screen holds it."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from parity.core.results import Cause, Fingerprint, Record
from parity.history.change import Change, Group, ReportedChange
from parity.history.diff import Diff, compare
from parity.history.drift import Drift, Pace, Paces, Shift
from parity.report.diff import FORMATS, SCREEN, as_html, as_json, as_junit, as_markdown, headline, terminal
from parity.store.code import Code
from parity.store.rows import End, Header, ItemRow, Run

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2", environment=(("A", "1"),))
HEADER = Header(PRINT, "0", "quick", "all")
FAILING = (Group.DYING, Group.REGRESSED, Group.LOST, Group.SIGNATURE, Group.REFUSED)


def record(case: str, status: str = "agree", op: str = "add", **more: object) -> Record:
    return Record(case, op, "float32", "forward", status, **more)  # type: ignore[arg-type]


def run(*records: Record, header: Header = HEADER) -> Run:
    return Run(header, records, end=End())


def full(entries: int) -> Diff:
    """Every group with as many entries."""
    groups = {}
    for g in Group:
        told = []
        for k in range(entries):
            cells = ((f"op{k}", "float32", "forward"),)
            shift = Shift(cells, "", 30, 29, 1, 1.0 if g is Group.WORSE else -1.0, 2.0, 1e-6)
            pace = Pace(cells[0], 30, 4.0 if g is Group.SLOWER else 0.25, 1e-4, 4e-4, 1.2)
            drifts, paces = g in (Group.WORSE, Group.BETTER), g in (Group.SLOWER, Group.FASTER)
            changes = () if drifts or paces else (Change(*cells[0], f"op{k}(float32[2])", "agree", "wrong", "why", group=g),)
            cause = Cause("aten::mul", "values") if g is Group.REGRESSED else None
            told.append(
                ReportedChange(
                    g, cells, cause, "A" if cause else "", changes,
                    (shift,) if drifts else (), (pace,) if paces else (), f"op{k}(float32[2])" if changes else "",
                )
            )  # fmt: skip
        groups[g] = tuple(told)
    many = tuple(f"warning {k}" for k in range(20))
    return Diff(HEADER, HEADER, 5, 5, (9, 9), groups, Drift((), 100, 5, 3), Paces((), (), 1.0, 7), 1, 1, (), many)


def test_equal_runs_have_nothing_to_tell() -> None:
    same = run(record("a"), record("b", "wrong"))
    assert terminal(compare(same, same)) == (
        "same fingerprint: mps (Apple M2), torch 2.13.0, macOS 15, parity 0.1\n"
        "compared: 2 records and 0 errors of equal cases, and by count 1 cell of op x dtype x aspect "
        "(2 checks before, 2 after)\n"
        "drift: no case with equal inputs is in both runs\n"
        "speed: not compared, no case with a time is in both runs\n"
        "PASS  nothing changed (2 checks before, 2 after)\n"
    )


def test_a_simulated_device_is_told() -> None:
    simulated = replace(HEADER, fingerprint=replace(PRINT, device="sim", device_name="sim", simulated=True))
    same = run(record("a"), header=simulated)
    assert "SIMULATED" in terminal(compare(same, same)).splitlines()[0]


def test_the_first_line_tells_the_fingerprint_s_change_and_the_last_the_next_command() -> None:
    changed = replace(PRINT, os="macOS 26", torch="2.14.0", environment=(("A", "2"), ("B", "on")))
    header = replace(HEADER, fingerprint=changed, setup=Code("/some/low.py", "1a2b"))
    before = run(record("add(float32[2])"), record("l", op="sort"))
    after = run(record("add(float32[2])", "wrong"), record("l", "unsupported", op="sort", reason="no kernel"), header=header)
    text = terminal(compare(before, after)).splitlines()
    assert text[0] == (
        "changed: torch 2.13.0 -> 2.14.0; os macOS 15 -> macOS 26; setup none -> /some/low.py (1a2b); A 1 -> 2; B unset -> on"
    )
    assert text[-1] == (
        "FAIL  regressed 1, lost support 1, INCONCLUSIVE; fails for regressed, lost support (2 checks before, 2 after); "
        "next: parity replay 'add(float32[2])' --device mps --setup /some/low.py"
    )
    assert "  sort (float32), forward: agree -> unsupported (no kernel)" in text


def test_a_long_value_does_not_fill_the_first_line() -> None:
    header = replace(HEADER, faults=Code("/deep" * 60 + "/faults.py", "1a2b"))
    diff = compare(run(record("a")), run(record("a"), header=header))
    assert len(terminal(diff).splitlines()[0]) < 100
    assert "faults.py (1a2b)" in terminal(diff).splitlines()[0]


def test_what_an_incomplete_run_lacks_is_told() -> None:
    diff = compare(run(record("a")), replace(run(record("a")), end=None))
    assert "incomplete: " in terminal(diff)
    assert "\nINCONCLUSIVE  nothing changed, but a run is incomplete: see above (1 checks before, 1 after)\n" in terminal(diff)
    assert headline(diff, ()) == "a run is incomplete; fails: incomplete"
    tree = ElementTree.fromstring(as_junit(diff))
    assert (tree.get("errors"), tree.get("failures")) == ("1", "0")


@pytest.mark.parametrize("entries", [1, 3, 200])
def test_a_screen_holds_it_and_v_leaves_nothing_out(entries: int) -> None:
    diff = full(entries)
    short, whole = terminal(diff), terminal(diff, (), True)
    assert len(short.splitlines()) <= SCREEN
    for group in Group:
        assert f"\n{group.words}: {entries}" in short
    assert f"op{entries - 1}(float32[2])" in whole
    assert "here (-v for all)" not in whole
    assert all(f"warning {k}" in whole for k in range(20))


def test_every_format_tells_every_group() -> None:
    for name, form in FORMATS.items():
        text = form(full(2), (), False)
        for group in Group:
            assert group.value in text or group.words in text, (name, group)


def test_json_holds_everything_and_the_exit_code() -> None:
    tree = json.loads(as_json(full(3), (Group.SLOWER,)))
    assert list(tree["groups"]) == [g.value for g in Group]
    assert all(len(told) == 3 for told in tree["groups"].values())
    assert (tree["exit_code"], tree["fails"]) == (1, [*map(str, FAILING), "slower"])
    worse = tree["groups"]["drifted-worse"][0]["shifts"][0]
    assert (worse["median"], worse["percentile_99"], worse["cases"]) == (2.0, 4.0, 30)
    assert tree["groups"]["slower"][0]["times"][0]["factor"] == 4.0
    assert tree["groups"]["regressed"][0]["cause"]["id"] == Cause("aten::mul", "values").id


def test_junit_fails_where_the_diff_fails() -> None:
    """Also for groups of --fail-on; a group that changed nothing passes."""
    tree = ElementTree.fromstring(as_junit(full(1), (Group.FASTER,)))
    failing = [c.get("name") for c in tree if c.find("failure") is not None]
    assert failing == [*map(str, FAILING), "faster"]
    assert (tree.get("tests"), tree.get("failures")) == (str(len(Group)), str(len(FAILING) + 1))
    clean = compare(run(record("a")), run(record("a")))
    assert all(c.find("failure") is None for c in ElementTree.fromstring(as_junit(clean)))


SIGNS = "<script>alert(1)</script>`x` **b** @someone #1 \x1b[2J ]]> &"


def test_texts_of_a_device_stay_texts() -> None:
    after = run(record("a", "unsupported", reason=SIGNS))
    diff = compare(run(record("a")), after)
    page = as_html(diff)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    markdown = as_markdown(diff)
    assert "<script>" not in markdown.replace("\\<script\\>", "")
    assert "@someone" not in markdown
    text = ElementTree.fromstring(as_junit(diff)).findtext(".//failure")
    assert text is not None
    assert "\\x1b" in text


def test_markdown_stays_within_the_limit_of_a_comment() -> None:
    before, after = (run(*(record(f"op{k}({'1, ' * 400})", s, f"op{k}") for k in range(300))) for s in ("agree", "wrong"))
    text = as_markdown(compare(before, after))
    assert len(text) <= 65_536
    assert "more: `parity diff BEFORE AFTER -v`" in text


def test_one_kernel_behind_forty_ops_is_one_line() -> None:
    cause = Cause("aten::mul", "values")
    ops = [f"op{k}" for k in range(40)]
    items = tuple(ItemRow(op, "float32", 9, {"forward": {"agree": 9}}) for op in ops)
    broken = tuple(replace(i, counts={"forward": {"agree": 8, "wrong": 1}}) for i in items)
    found = tuple(record(f"{op}(2)", "wrong", op, shrunk=f"{op}(1)", cause=cause) for op in ops)
    text = terminal(compare(Run(HEADER, items=items, end=End()), Run(HEADER, found, broken, end=End())))
    (line,) = [line for line in text.splitlines() if cause.id in line]
    assert "40 cells in " in line
    assert len(text.splitlines()) < 12
