from __future__ import annotations

from dataclasses import replace

import pytest

from parity.core.errors import NothingCompared
from parity.core.results import Fingerprint, Measure, Record
from parity.runs.code import Code
from parity.runs.diff import Change, Shift, compare, render
from parity.runs.rows import Death, End, Header, ItemRow, Run

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2", environment=(("A", "1"),))
HEADER = Header(PRINT, "0", "default", "all")


def record(
    case: str,
    status: str = "agree",
    share: float | None = None,
    op: str = "add",
    *,
    digest: str = "",
    reason: str = "",
    shrunk: str = "",
) -> Record:
    measures = (Measure("output", share, measured=True),) if share is not None else ()
    return Record(case, op, "float32", "forward", status, digest, reason=reason, measures=measures, shrunk=shrunk)


def run(*records: Record, items: tuple[ItemRow, ...] = (), header: Header = HEADER) -> Run:
    return Run(header, records, items, end=End())


def item(op: str = "add", **counts: int) -> ItemRow:
    return ItemRow(op, "float32", sum(counts.values()), {"forward": counts})


def words(changes: tuple[Change, ...]) -> list[tuple[str, str, str, bool]]:
    return [(c.case, c.before, c.after, c.paired) for c in changes]


def test_equal_runs_have_nothing_to_tell() -> None:
    same = run(record("a"), record("b", "wrong"), items=(item(agree=5),))
    diff = compare(same, same)
    assert diff.exit_code == 0
    assert render(diff) == (
        "compared: 2 records of the same case in both runs, and by count 1 op x dtype x aspect cells "
        "(5 checks before, 5 after)\nnothing changed\nnext: nothing to do"
    )


def test_what_agreed_and_is_a_finding_now_has_regressed() -> None:
    diff = compare(run(record("a"), record("b")), run(record("a", "wrong"), record("b", "crash")))
    assert words(diff.regressed) == [("a", "agree", "wrong", True), ("b", "agree", "crash", True)]
    assert (diff.exit_code, diff.fixed) == (1, ())


def test_a_finding_that_agrees_now_is_fixed() -> None:
    diff = compare(run(record("a", "drift")), run(record("a")))
    assert (words(diff.fixed), diff.exit_code) == ([("a", "drift", "agree", True)], 0)


@pytest.mark.parametrize("status", ["unsupported", "fallback"])
def test_what_was_compared_and_is_refused_now_is_lost_and_counts_as_a_regression(status: str) -> None:
    diff = compare(run(record("a"), record("b", "drift")), run(record("a", status), record("b", status)))
    assert [c.before for c in diff.lost] == ["agree", "drift"]
    assert diff.exit_code == 1


def test_what_was_refused_and_agrees_now_is_gained() -> None:
    diff = compare(run(record("a", "unsupported")), run(record("a")))
    assert (words(diff.gained), diff.exit_code) == ([("a", "unsupported", "agree", True)], 0)


@pytest.mark.parametrize("before", ["unsupported", "fallback", "void", "crash", "hang", "error", "oom", "drift"])
def test_a_finding_of_a_new_kind_has_regressed_whatever_came_before(before: str) -> None:
    """The classic upgrade: a device refuses an op, then computes it wrong. By the same case, and by count alone."""
    diff = compare(run(record("a", before)), run(record("a", "wrong")))
    assert (words(diff.regressed), diff.exit_code) == ([("a", before, "wrong", True)], 1)
    assert [diff.gained, diff.eased, diff.fixed, diff.lost] == [()] * 4
    counted = ItemRow("add", "float32", 9, {"forward": {before: 9}})
    diff = compare(run(items=(counted,)), run(record("b", "wrong", shrunk="least"), items=(item(wrong=9),)))
    assert (words(diff.regressed), diff.gained, diff.exit_code) == ([("least", before, "wrong", False)], (), 1)
    assert render(diff).endswith("next: parity replay least --device mps")


def test_a_crash_that_turned_into_wrong_results_has_regressed() -> None:
    """An item that died three times has no counts; the deaths are all that is known of it."""
    died = replace(run(record("x", op="sub")), deaths=(Death("add", "float32", "f", "", "crash", "SIGABRT", "device"),))
    diff = compare(died, run(record("x", op="sub"), record("b", "wrong"), items=(item(wrong=104),)))
    assert (words(diff.regressed), diff.exit_code) == ([("b", "crash", "wrong", False)], 1)


def test_a_finding_in_what_the_first_run_did_not_compare_is_new() -> None:
    """Another aspect of an op that was refused, and an op that was not run."""
    refused = run(items=(item(unsupported=12),))
    backward = ItemRow("add", "float32", 12, {"forward": {"agree": 12}, "backward": {"wrong": 3}})
    assert [(c.aspect, c.before) for c in compare(refused, run(items=(backward,))).regressed] == [("backward", "not compared")]
    diff = compare(refused, run(items=(item(unsupported=12), item("sort", agree=3, hang=1))))
    assert ([(c.op, c.before, c.after) for c in diff.regressed], diff.exit_code) == ([("sort", "not run", "hang")], 1)


def test_each_kind_of_a_cell_is_told_once() -> None:
    """By its case where one is in both runs, and a second kind beside it."""
    before = run(record("a"), items=(item(agree=9),))
    after = run(record("a", "wrong"), record("b", "wrong"), record("c", "error"), items=(item(wrong=5, error=4),))
    assert words(compare(before, after).regressed) == [("a", "agree", "wrong", True), ("c", "agree", "error", False)]


@pytest.mark.parametrize(("before", "after"), [("wrong", "drift"), ("crash", "unsupported"), ("error", "void")])
def test_a_finding_that_became_less_is_told_and_is_no_regression(before: str, after: str) -> None:
    diff = compare(run(record("a", before)), run(record("a", after)))
    assert (words(diff.eased), diff.regressed, diff.exit_code) == ([("a", before, after, True)], (), 0)
    assert "eased: 1\n" in render(diff)


def test_other_inputs_are_another_check() -> None:
    diff = compare(run(record("a", digest="1")), run(record("a", digest="2")))
    assert (diff.paired, diff.only_before, diff.only_after, diff.exit_code) == (0, 1, 1, 0)
    assert diff.warnings == ("no case is in both runs",)


def test_a_new_finding_where_the_cell_had_agreed_throughout_has_regressed() -> None:
    before = run(items=(item(agree=200),))
    after = run(record("b", "wrong", shrunk="least"), record("c", "wrong"), items=(item(agree=198, wrong=2),))
    diff = compare(before, after)
    assert words(diff.regressed) == [("least", "agree", "wrong", False)]
    assert diff.exit_code == 1
    assert words(compare(after, before).fixed) == [("least", "wrong", "agree", False)]


def test_a_new_finding_where_there_were_findings_before_has_not() -> None:
    before = run(record("a", "wrong"), items=(item(agree=199, wrong=1),))
    assert compare(before, run(record("b", "wrong"), items=(item(agree=199, wrong=1),))).exit_code == 0


def test_a_new_finding_in_a_cell_that_had_compared_nothing_has_regressed() -> None:
    diff = compare(run(record("x"), items=(item("sort", void=3),)), run(record("x"), record("b", "wrong", op="sort")))
    assert (words(diff.regressed), diff.exit_code) == ([("b", "void", "wrong", False)], 1)


def test_a_cell_that_is_only_refused_now_is_lost() -> None:
    after = run(record("b", "unsupported", reason="no kernel"), items=(item(unsupported=9),))
    diff = compare(run(items=(item(agree=9),)), after)
    assert diff.lost == (Change("add", "float32", "forward", "b", "compared", "unsupported", "no kernel", paired=False),)
    back = compare(after, run(items=(item(agree=9),)))
    assert [(c.before, c.after) for c in back.gained] == [("unsupported", "compared")]


def test_one_refusal_beside_comparisons_loses_no_cell() -> None:
    assert compare(run(items=(item(agree=9),)), run(items=(item(agree=8, unsupported=1),))).exit_code == 0


# -------------------------------------------------------------------------------------------------------------- shares


def shifts(*pairs: tuple[float, float]) -> tuple[tuple[Shift, ...], tuple[Shift, ...]]:
    before = run(*(record(str(k), share=a) for k, (a, _) in enumerate(pairs)))
    after = run(*(record(str(k), share=b) for k, (_, b) in enumerate(pairs)))
    diff = compare(before, after)
    assert diff.exit_code == 0
    return diff.grown, diff.shrunk


def test_a_share_that_doubled_has_grown_paired_by_case() -> None:
    grown, shrunk = shifts((0.1, 0.1), (0.1, 0.2), (0.05, 0.4))
    assert grown == (Shift("add", "float32", "forward", 3, 2, 1.0, 3.0, "2"),)
    assert shrunk == ()


def test_a_share_that_carried_its_check_over_the_limit_is_told_once() -> None:
    diff = compare(run(record("a", share=0.5)), run(record("a", "drift", share=9.0)))
    assert (words(diff.regressed), diff.grown) == ([("a", "agree", "drift", True)], ())


def test_a_share_that_halved_has_shrunk() -> None:
    assert shifts((0.4, 0.1)) == ((), (Shift("add", "float32", "forward", 1, 1, -2.0, -2.0, "0"),))


@pytest.mark.parametrize("before, after", [(0.1, 0.199), (0.0, 0.015), (1e-9, 1e-4), (0.0, 0.0)])
def test_less_than_a_bit_and_less_than_a_64th_of_the_budget_is_luck(before: float, after: float) -> None:
    assert shifts((before, after)) == ((), ())


def test_from_nothing_to_a_64th_has_grown() -> None:
    assert [s.worst for s in shifts((0.0, 2**-6))[0]] == [1.0]


def test_an_infinite_share_still_has_a_number_and_nan_has_none() -> None:
    assert [s.worst for s in shifts((1.0, float("inf")))[0]] == [64.0]
    assert shifts((1.0, float("nan"))) == ((), ())


def test_upper_limits_from_screens_are_not_shares() -> None:
    screened = replace(record("a"), measures=(Measure("output", 0.9, measured=False, screen="ulp"),))
    assert compare(run(record("a", share=0.1)), run(screened)).grown == ()


# --------------------------------------------------------------------------------------------------------------- frames


def test_runs_without_a_common_check_compare_nothing() -> None:
    other = Header(replace(PRINT, device="cuda:0", device_name="H200"), "1", "deep", "all")
    with pytest.raises(NothingCompared) as e:
        compare(run(record("a")), run(record("b", op="sub"), header=other))
    assert str(e.value) == (
        "the two runs have no comparison in common, so nothing was compared; "
        "the devices differ: mps (Apple M2) and cuda:0 (H200); the seeds differ: '0' and '1'; "
        "the profiles differ: 'default' and 'deep'; no case is in both runs; "
        "run both with the same selection, profile and seed, on a device that runs them"
    )
    assert e.value.exit_code == 3


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Code(), Code("low.py", "1a2b"), ("the setups differ: none and low.py (1a2b)",)),
        (Code("low.py", "1a2b"), Code("low.py", "9f9f"), ("the setups differ: low.py (1a2b) and low.py (9f9f)",)),
        (Code("low.py", "1a2b"), Code("moved.py", "1a2b"), ()),
    ],
)
def test_runs_under_other_setups_are_told(before: Code, after: Code, told: tuple[str, ...]) -> None:
    one, other = (replace(HEADER, setup=s) for s in (before, after))
    assert compare(run(record("a"), header=one), run(record("a"), header=other)).warnings == told


def test_two_empty_runs_compare_nothing() -> None:
    with pytest.raises(NothingCompared):
        compare(run(), run())


def test_the_summary_tells_machines_counts_changes_and_the_next_command() -> None:
    changed = replace(PRINT, os="macOS 26", environment=(("A", "2"), ("B", "on")))
    before = run(record("add(float32[2])", share=0.1), record("f"), record("l", op="sort"), record("g", "unsupported"))
    after = run(
        record("add(float32[2])", share=0.5),
        record("f", "wrong"),
        record("l", "fallback", op="sort"),
        record("g"),
        record("n"),
        header=replace(HEADER, fingerprint=changed),
    )
    assert render(compare(before, replace(after, end=None))) == (
        "compared: 4 records of the same case in both runs, and by count 2 op x dtype x aspect cells "
        "(4 checks before, 5 after)\n"
        "warning: the second run is truncated\n"
        "changed: os macOS 15 -> macOS 26\n"
        "changed: A 1 -> 2\n"
        "changed: B unset -> on\n"
        "records without a partner: 0 before, 1 after\n"
        "regressed: 1\n"
        "  add float32 forward agree -> wrong: f\n"
        "lost: 1\n"
        "  sort float32 forward agree -> fallback: l\n"
        "gained: 1\n"
        "  add float32 forward unsupported -> agree: g\n"
        "grown: 1\n"
        "  add float32 forward 1 of 1 pairs by a bit or more: median +2.3 bits, worst +2.3: add(float32[2])\n"
        "incomplete: what a run lacks cannot be compared; run it again, or take what is there with --partial\n"
        "next: parity replay f --device mps"
    )


def test_a_long_list_is_cut_and_a_case_is_quoted_for_the_shell() -> None:
    cases = [f"add(float32[{k}])" for k in range(20)]
    text = render(compare(run(*map(record, cases)), run(*(record(c, "wrong") for c in cases))))
    assert "regressed: 20\n" in text
    assert "  and 8 more\n" in text
    assert text.endswith("next: parity replay 'add(float32[0])' --device mps")


def test_a_crash_is_a_regression() -> None:
    """Deaths are no records, and yet the worst of findings."""
    died = replace(run(record("g")), deaths=(Death("add", "float32", "f", "", "crash", "SIGABRT", "device"),))
    told = compare(run(record("f"), record("g")), died)
    assert [(c.before, c.after) for c in told.regressed] == [("agree", "crash")]
    assert told.exit_code == 1


def test_a_reference_that_dies_is_no_regression_of_the_device() -> None:
    """The CPU's own trouble is told by the run, not by the diff."""
    died = replace(run(record("g")), deaths=(Death("add", "float32", "f", "", "crash", "SIGSEGV", "reference", blame="cpu"),))
    assert compare(run(record("f"), record("g")), died).exit_code == 0


def test_a_cell_with_findings_is_still_watched() -> None:
    """Drift that turns into wrong regresses; so does a share of findings that doubles."""
    assert compare(run(record("f", "drift")), run(record("f", "wrong"))).exit_code == 1
    few = ItemRow("neg", "float32", 40, {"forward": {"agree": 35, "wrong": 5}})
    many = ItemRow("neg", "float32", 40, {"forward": {"agree": 3, "wrong": 37}})
    told = compare(replace(run(record("f")), items=(few,)), replace(run(record("f")), items=(many,)))
    assert [c.after for c in told.regressed] == ["37 findings of 40"]
