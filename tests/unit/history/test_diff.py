from __future__ import annotations

from dataclasses import replace

import pytest

from parity.core.errors import NothingCompared, UsageError
from parity.core.results import BOTH_REFUSE, MISSING, OTHER_SIGNATURE, Cause, Fingerprint, Record
from parity.core.status import Conclusion
from parity.history.change import Change, Group
from parity.history.diff import PROMOTED, Diff, compare
from parity.report.diff import about
from parity.store.code import Code
from parity.store.rows import EXPIRED, GROWN, SEEN, Death, End, Header, ItemRow, Run, Sighting

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2", environment=(("A", "1"),))
HEADER = Header(PRINT, "0", "default", "all")


def record(
    case: str,
    status: str = "agree",
    op: str = "add",
    *,
    digest: str = "",
    reason: str = "",
    shrunk: str = "",
    pinned: bool = False,
    dtype: str = "float32",
    cause: Cause | None = None,
) -> Record:
    return Record(case, op, dtype, "forward", status, digest, pinned, reason, shrunk=shrunk, cause=cause)


def run(*records: Record, items: tuple[ItemRow, ...] = (), header: Header = HEADER) -> Run:
    return Run(header, records, items, end=End())


def item(op: str = "add", **counts: int) -> ItemRow:
    return ItemRow(op, "float32", sum(counts.values()), {"forward": counts})


def of(diff: Diff, group: Group) -> tuple[Change, ...]:
    """The changes of a group."""
    return tuple(c for told in diff.groups.get(group, ()) for c in told.changes)


def words(diff: Diff, group: Group) -> list[tuple[str, str, str, bool]]:
    return [(c.case, c.before, c.after, c.paired) for c in of(diff, group)]


def test_equal_runs_have_nothing_to_tell() -> None:
    same = run(record("a"), record("b", "wrong"), items=(item(agree=5),))
    diff = compare(same, same)
    assert (dict(diff.groups), diff.exit_code()) == ({}, 0)


def test_what_agreed_and_is_a_finding_now_has_regressed() -> None:
    diff = compare(run(record("a"), record("b")), run(record("a", "wrong"), record("b", "crash")))
    assert words(diff, Group.REGRESSED) == [("a", "agree", "wrong", True)]
    assert words(diff, Group.DYING) == [("b", "agree", "crash", True)]
    assert (diff.exit_code(), of(diff, Group.FIXED)) == (1, ())


def test_a_finding_that_agrees_now_is_fixed() -> None:
    diff = compare(run(record("a", "drift")), run(record("a")))
    assert (words(diff, Group.FIXED), diff.exit_code()) == ([("a", "drift", "agree", True)], 0)


@pytest.mark.parametrize(("status", "group"), [("unsupported", Group.LOST), ("fallback", Group.FALLBACK)])
def test_what_was_compared_and_is_refused_now_is_lost_and_counts_as_a_regression(status: str, group: Group) -> None:
    diff = compare(run(record("a"), record("b", "drift")), run(record("a", status), record("b", status)))
    assert [c.before for c in of(diff, group)] == ["agree", "drift"]
    assert list(diff.groups) == [group]
    assert diff.exit_code() == 1


def test_what_was_refused_and_agrees_now_is_gained() -> None:
    diff = compare(run(record("a", "unsupported")), run(record("a")))
    assert (words(diff, Group.SUPPORTED), diff.exit_code()) == ([("a", "unsupported", "agree", True)], 0)


@pytest.mark.parametrize("before", ["unsupported", "fallback", "void", "crash", "hang", "error", "oom", "drift"])
def test_a_finding_of_a_new_kind_has_regressed_whatever_came_before(before: str) -> None:
    """The classic upgrade: a device refuses an op, then computes it wrong. By the same case, and by count alone."""
    diff = compare(run(record("a", before)), run(record("a", "wrong")))
    assert (words(diff, Group.REGRESSED), diff.exit_code()) == ([("a", before, "wrong", True)], 1)
    assert [of(diff, Group.SUPPORTED), of(diff, Group.EASED), of(diff, Group.FIXED), of(diff, Group.LOST)] == [()] * 4
    counted = ItemRow("add", "float32", 9, {"forward": {before: 9}})
    diff = compare(run(items=(counted,)), run(record("b", "wrong", shrunk="least"), items=(item(wrong=9),)))
    assert (words(diff, Group.REGRESSED), of(diff, Group.SUPPORTED), diff.exit_code()) == (
        [("least", before, "wrong", False)],
        (),
        1,
    )
    assert [t.case for t in diff.groups[Group.REGRESSED]] == ["least"]


def test_a_crash_that_turned_into_wrong_results_has_regressed() -> None:
    """An item that died three times has no counts; the deaths are all that is known of it."""
    died = replace(run(record("x", op="sub")), deaths=(Death("add", "float32", "f", "", "crash", "SIGABRT", "device"),))
    diff = compare(died, run(record("x", op="sub"), record("b", "wrong"), items=(item(wrong=104),)))
    assert (words(diff, Group.REGRESSED), diff.exit_code()) == ([("b", "crash", "wrong", False)], 1)


def test_a_finding_in_what_the_first_run_did_not_compare_is_new() -> None:
    """Another aspect of an op that was refused, and an op that was not run."""
    refused = run(items=(item(unsupported=12),))
    backward = ItemRow("add", "float32", 12, {"forward": {"agree": 12}, "backward": {"wrong": 3}})
    assert [(c.aspect, c.before) for c in of(compare(refused, run(items=(backward,))), Group.REGRESSED)] == [
        ("backward", "not compared")
    ]
    diff = compare(refused, run(items=(item(unsupported=12), item("sort", agree=3, hang=1))))
    assert ([(c.op, c.before, c.after) for c in of(diff, Group.DYING)], diff.exit_code()) == ([("sort", "not run", "hang")], 1)


def test_each_kind_of_a_cell_is_told_once() -> None:
    """By its case where one is in both runs, and a second kind as well."""
    before = run(record("a"), items=(item(agree=9),))
    after = run(record("a", "wrong"), record("b", "wrong"), record("c", "error"), items=(item(wrong=5, error=4),))
    assert words(compare(before, after), Group.REGRESSED) == [("a", "agree", "wrong", True), ("c", "agree", "error", False)]


@pytest.mark.parametrize(("before", "after"), [("wrong", "drift"), ("crash", "unsupported"), ("error", "void")])
def test_a_finding_that_became_less_is_told_and_is_no_regression(before: str, after: str) -> None:
    other = record("x", op="sub")
    diff = compare(run(record("a", before), other), run(record("a", after), other))
    assert (words(diff, Group.EASED), of(diff, Group.REGRESSED), diff.exit_code()) == ([("a", before, after, True)], (), 0)
    assert list(diff.groups) == [Group.EASED]


NEAR = replace(record("a", "drift", reason="1.3 times the budget"), near=("a",))


def test_marginal_that_drifts_has_regressed_and_its_reason_says_if_it_is_no_larger() -> None:
    """Paired and by cell: other cases of the run decide what is marginal."""
    little, far = replace(NEAR, status="marginal"), replace(NEAR, near=(), reason="9 times the budget")
    diff = compare(run(little), run(NEAR))
    assert words(diff, Group.REGRESSED) == [("a", "marginal", "drift", True)]
    assert of(diff, Group.REGRESSED)[0].reason == f"1.3 times the budget; {PROMOTED}"
    assert diff.exit_code() == 1
    assert of(compare(run(little), run(far)), Group.REGRESSED)[0].reason == "9 times the budget"
    counts = item(agree=8, marginal=1), item(agree=8, drift=1)
    diff = compare(run(little, items=counts[:1]), run(replace(NEAR, case="b", shrunk="b"), items=counts[1:]))
    assert words(diff, Group.REGRESSED) == [("b", "marginal", "drift", False)]
    assert of(diff, Group.REGRESSED)[0].reason.endswith(PROMOTED)


def test_drift_that_is_marginal_now_is_eased_and_not_fixed() -> None:
    little = replace(NEAR, status="marginal")
    diff = compare(run(NEAR), run(little))
    assert (words(diff, Group.EASED), diff.exit_code()) == ([("a", "drift", "marginal", True)], 0)
    counts = item(agree=8, drift=1), item(agree=8, marginal=1)
    diff = compare(run(NEAR, items=counts[:1]), run(replace(little, case="b"), items=counts[1:]))
    assert (words(diff, Group.EASED), of(diff, Group.FIXED)) == ([("a", "drift", "marginal", False)], ())


def test_what_agreed_and_is_marginal_now_is_named_and_fails_nothing() -> None:
    """And the other way round; what was marginal before, or is new, or of another profile, is no change."""
    little = replace(NEAR, status="marginal", shrunk="least")
    had, has = run(items=(item(agree=9),)), run(little, items=(item(agree=8, marginal=1),))
    diff = compare(had, has)
    assert (words(diff, Group.WORSE), list(diff.groups)) == ([("least", "agree", "marginal", False)], [Group.WORSE])
    assert (diff.exit_code(), diff.exit_code([Group.WORSE])) == (0, 1)
    back = compare(has, had)
    assert (words(back, Group.BETTER), list(back.groups)) == ([("least", "marginal", "agree", False)], [Group.BETTER])
    assert list(compare(has, has).groups) == []
    assert list(compare(had, replace(has, header=replace(HEADER, profile="mac"))).groups) == []
    assert list(
        compare(run(record("a"), items=(item("sub", agree=3),)), run(little, items=(item("sub", agree=3),))).groups
    ) == [Group.WORSE]
    with_findings = run(replace(little, shrunk=""), record("c", "wrong"), items=(item(agree=7, marginal=1, wrong=1),))
    assert list(compare(had, with_findings).groups) == [Group.REGRESSED]


def test_a_regression_that_a_person_has_accepted_is_named_and_fails_nothing() -> None:
    """Else a baseline from before the entry would fail each run after it. What grew, expired or is new fails."""
    cause = Cause("aten::add", "values")
    known = replace(record("b", "wrong", shrunk="least", cause=cause), known="add-1")
    had, has = run(items=(item(agree=9),)), run(known, items=(item(agree=5, wrong=4),))
    diff = compare(had, has)
    assert (words(diff, Group.REGRESSED), diff.exit_code()) == ([("least", "agree", "wrong", False)], 0)
    assert "known to the second run" in about(diff.groups[Group.REGRESSED][0])
    grown = Sighting("add-1", "add", "float32", GROWN, "forward", "least", fails=True)
    assert compare(had, replace(has, known=(grown,))).exit_code() == 1
    assert compare(had, replace(has, known=(replace(grown, fails=False),))).exit_code() == 0
    assert compare(had, replace(has, records=(known, record("c", "error", shrunk="c")))).exit_code() == 1
    died = Death("add", "float32", "f", "", "crash", "SIGABRT", "device", known="add-2")
    for death, code in ((died, 0), (replace(died, known=""), 1)):
        ended = replace(run(record("x", op="sub")), deaths=(death,))
        assert compare(run(record("x", op="sub"), items=(item(agree=9),)), ended).exit_code() == code


def test_a_known_regression_does_not_excuse_that_other_passes_compare_nothing() -> None:
    """But where its own calls raise, nothing of them can be compared."""
    cause, sub = Cause("aten::add", "values"), item("sub", agree=9)
    known = replace(record("a", "error", shrunk="a", pinned=True, cause=cause), known="add-1")
    backward = replace(record("a", pinned=True), aspect="backward")
    both = replace(item(agree=9), counts={"forward": {"agree": 9}, "backward": {"agree": 9}})
    had = run(record("a", pinned=True), backward, items=(both, sub))
    void = replace(both, counts={"forward": {"error": 9}, "backward": {"void": 9}})
    assert compare(had, run(known, items=(void, sub))).exit_code() == 1
    assert compare(had, run(known, items=(item(error=9), sub))).exit_code() == 0
    wrong = replace(known, status="wrong")
    missing = compare(had, run(wrong, items=(item(agree=8, wrong=1), sub)))
    assert [c.aspect for c in of(missing, Group.REGRESSED) if c.fails] == ["backward"]
    also = replace(both, counts={"forward": {"agree": 8, "wrong": 1}, "backward": {"agree": 9}})
    assert compare(had, run(wrong, backward, items=(also, sub))).exit_code() == 0
    assert compare(had, run(known, items=(item(agree=8, error=1), sub))).exit_code() == 0


def test_lost_support_that_a_person_has_accepted_fails_nothing() -> None:
    """In its own op, dtype and pass, and of its own kind: an entry holds for all cases there, and names none."""
    seen = Sighting("no-add", "add", "float32", SEEN, "forward")
    had, sub = run(record("a"), items=(item(agree=9), item("sub", agree=9))), item("sub", agree=9)
    for status in ("unsupported", "fallback"):
        lost = run(record("a", status), items=(replace(item(), counts={"forward": {status: 9}}), sub))
        assert compare(had, lost).exit_code() == 1
        assert compare(had, replace(lost, known=(seen,))).exit_code() == 0
    for other in ({"op": "mul"}, {"aspect": "backward"}, {"case": "a"}, {"state": EXPIRED, "fails": True}):
        assert compare(had, replace(lost, known=(replace(seen, **other),))).exit_code() == 1
    both = run(record("a", "fallback"), items=(item(unsupported=4, fallback=5), sub))
    assert compare(had, replace(both, known=(seen,))).exit_code() == 1
    assert compare(had, replace(lost, records=(record("a", "wrong"),), known=(seen,))).exit_code() == 1


def test_other_inputs_are_another_check() -> None:
    diff = compare(run(record("a", digest="1")), run(record("a", digest="2")))
    assert (diff.paired, diff.only_before, diff.only_after, diff.exit_code()) == (0, 1, 1, 0)
    assert diff.warnings == ("no case is in both runs",)


def test_a_new_finding_where_the_cell_had_agreed_throughout_has_regressed() -> None:
    before = run(items=(item(agree=200),))
    after = run(record("b", "wrong", shrunk="least"), record("c", "wrong"), items=(item(agree=198, wrong=2),))
    diff = compare(before, after)
    assert words(diff, Group.REGRESSED) == [("least", "agree", "wrong", False)]
    assert diff.exit_code() == 1
    assert words(compare(after, before), Group.FIXED) == [("least", "wrong", "agree", False)]


def test_a_finding_that_another_profile_did_not_draw_is_not_fixed() -> None:
    """Its cell agrees in the later run, in other cases; with the same profile that counts."""
    before = run(record("b", "wrong", shrunk="least"), items=(item(agree=199, wrong=1),))
    quick, mac = (run(items=(item(agree=200),), header=replace(HEADER, profile=p)) for p in (HEADER.profile, "mac"))
    assert words(compare(before, quick), Group.FIXED) == [("least", "wrong", "agree", False)]
    diff = compare(before, mac)
    assert of(diff, Group.FIXED) == ()
    assert "another profile" in of(diff, Group.INCOMPARABLE)[0].reason


def test_a_finding_that_the_first_profile_did_not_draw_may_be_new() -> None:
    """So the diff is inconclusive and red, and calls it no regression. With one profile, in a case that both have, in an own
    function and where nothing was compared it is one."""
    mac = replace(HEADER, profile="mac")
    before, drawn = run(record("a"), items=(item(agree=200),), header=mac), record("b", "wrong", shrunk="least")
    diff = compare(before, run(record("a"), drawn, items=(item(agree=199, wrong=1),)))
    assert (of(diff, Group.REGRESSED), words(diff, Group.INCOMPARABLE)) == ((), [("least", "agree", "wrong", False)])
    assert (diff.conclusion(), diff.exit_code()) == (Conclusion.INCONCLUSIVE, 1)
    assert "may be new, or only not drawn by the profile 'mac' of the first run (add float32)" in diff.doubts[0]
    paired = compare(before, run(record("a", "wrong"), items=(item(agree=199, wrong=1),)))
    assert (words(paired, Group.REGRESSED), paired.doubts) == ([("a", "agree", "wrong", True)], ())
    refused = run(record("a"), items=(item(agree=200), item("sort", unsupported=3)), header=mac)
    found = run(record("a"), record("b", "wrong", op="sort"), items=(item(agree=200), item("sort", wrong=1)))
    assert (words(compare(refused, found), Group.REGRESSED)) == [("b", "unsupported", "wrong", False)]
    same = compare(before, run(record("a"), drawn, items=(item(agree=199, wrong=1),), header=mac))
    assert (words(same, Group.REGRESSED), same.doubts) == ([("least", "agree", "wrong", False)], ())


def test_a_new_finding_where_there_were_findings_before_has_not() -> None:
    before = run(record("a", "wrong"), items=(item(agree=199, wrong=1),))
    assert compare(before, run(record("b", "wrong"), items=(item(agree=199, wrong=1),))).exit_code() == 0


def test_a_new_finding_in_a_cell_that_had_compared_nothing_has_regressed() -> None:
    diff = compare(run(record("x"), items=(item("sort", void=3),)), run(record("x"), record("b", "wrong", op="sort")))
    assert (words(diff, Group.REGRESSED), diff.exit_code()) == ([("b", "void", "wrong", False)], 1)


def test_a_cell_that_is_only_refused_now_is_lost() -> None:
    after = run(record("b", "unsupported", reason="no kernel"), items=(item(unsupported=9),))
    diff = compare(run(items=(item(agree=9),)), after)
    assert of(diff, Group.LOST) == (
        Change("add", "float32", "forward", "b", "compared", "unsupported", "no kernel", False, Group.LOST),
    )
    back = compare(after, run(items=(item(agree=9),)))
    assert [(c.before, c.after) for c in of(back, Group.SUPPORTED)] == [("unsupported", "compared")]


def test_one_refusal_beside_comparisons_loses_no_cell() -> None:
    assert compare(run(items=(item(agree=9),)), run(items=(item(agree=8, unsupported=1),))).exit_code() == 0


# --------------------------------------------------------------------------------------------------------------- frames


def test_runs_without_a_common_check_compare_nothing() -> None:
    other = Header(replace(PRINT, device="cuda:0", device_name="H200"), "1", "deep", "all")
    with pytest.raises(NothingCompared) as e:
        compare(run(record("a")), run(record("b", op="sub"), header=other))
    assert str(e.value) == (
        "the two runs have no comparison in common, so nothing was compared; "
        "these are two devices: mps (Apple M2, arm64) and cuda:0 (H200, arm64); the seeds differ: '0' and '1'; "
        "the profiles differ: 'default' and 'deep'; no case is in both runs; "
        "run both with the same selection, profile and seed, on a device that runs them"
    )
    assert e.value.exit_code == 3


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Code(), Code("low.py", "1a2b"), (("setup", "none", "low.py (1a2b)"),)),
        (Code("low.py", "1a2b"), Code("low.py", "9f9f"), (("setup", "low.py (1a2b)", "low.py (9f9f)"),)),
        (Code("low.py", "1a2b"), Code("moved.py", "1a2b"), ()),
    ],
)
def test_runs_under_other_setups_are_told(before: Code, after: Code, told: tuple[tuple[str, str, str], ...]) -> None:
    one, other = (replace(HEADER, setup=s) for s in (before, after))
    assert compare(run(record("a"), header=one), run(record("a"), header=other)).changed == told


def test_two_empty_runs_compare_nothing() -> None:
    with pytest.raises(NothingCompared):
        compare(run(), run())


def test_a_crash_is_a_regression() -> None:
    """Deaths are no records, and yet the worst of findings."""
    died = replace(run(record("g")), deaths=(Death("add", "float32", "f", "", "crash", "SIGABRT", "device"),))
    told = compare(run(record("f"), record("g")), died)
    assert [(c.before, c.after) for c in of(told, Group.DYING)] == [("agree", "crash")]
    assert told.exit_code() == 1


def test_a_reference_that_dies_is_no_regression_of_the_device() -> None:
    """The CPU's own trouble is reported by the run, not by the diff."""
    died = replace(run(record("g")), deaths=(Death("add", "float32", "f", "", "crash", "SIGSEGV", "reference", blame="cpu"),))
    assert compare(run(record("f"), record("g")), died).exit_code() == 0


def test_a_cell_with_findings_is_still_watched() -> None:
    """Drift that turns into wrong regresses; so does a share of findings that doubles."""
    assert compare(run(record("f", "drift")), run(record("f", "wrong"))).exit_code() == 1
    few = ItemRow("neg", "float32", 40, {"forward": {"agree": 35, "wrong": 5}})
    many = ItemRow("neg", "float32", 40, {"forward": {"agree": 3, "wrong": 37}})
    told = compare(replace(run(record("f")), items=(few,)), replace(run(record("f")), items=(many,)))
    assert [c.after for c in of(told, Group.REGRESSED)] == ["37 findings of 40"]


# ------------------------------------------------------------------------------------------------------------- groups


def test_one_kernel_behind_forty_ops_is_one_entry() -> None:
    """Forty ops that call it, in two dtypes, and an op that is wrong for itself."""
    cause, own = Cause("aten::mul", "values"), Cause("torch.sort", "values")
    ops = [f"op{k}" for k in range(40)]
    cells = [(op, d) for op in ops for d in ("float32", "float16")]
    healthy = tuple(ItemRow(op, d, 9, {"forward": {"agree": 9}}) for op, d in [*cells, ("sort", "float32")])
    broken = tuple(replace(i, counts={"forward": {"agree": 8, "wrong": 1}}) for i in healthy)
    found = [record(f"{op}(2)", "wrong", op, dtype=d, shrunk=f"{op}(1)", cause=cause) for op, d in cells]
    found.append(record("sort(2)", "wrong", "sort", shrunk="sort(1)", cause=own))
    diff = compare(run(items=healthy), run(*found, items=broken))
    assert list(diff.groups) == [Group.REGRESSED]
    many, one = diff.groups[Group.REGRESSED]
    assert (many.cause, len(many.ops), len(many.cells)) == (cause, 40, 80)
    assert (one.cause, one.case) == (own, "sort(1)")
    back = compare(run(*found, items=broken), run(items=healthy))
    assert [(t.cause, len(t.ops)) for t in back.groups[Group.FIXED]] == [(cause, 40), (own, 1)]
    assert (list(back.groups), back.exit_code()) == ([Group.FIXED], 0)


def test_the_worst_status_comes_first() -> None:
    before = run(record("a"), record("b"), record("c"), record("d", "wrong"), record("e", "unsupported"))
    after = run(record("a", "drift"), record("b", "wrong"), record("c", "hang"), record("d"), record("e"))
    diff = compare(before, after)
    assert list(diff.groups) == [Group.DYING, Group.REGRESSED, Group.SUPPORTED, Group.FIXED]
    assert [t.changes[0].after for t in diff.groups[Group.REGRESSED]] == ["wrong", "drift"]


def test_refusals_with_the_same_words_are_one_entry() -> None:
    before = run(*(record(op, op=op) for op in ("add", "mul", "sort")))
    words = {"add": "no kernel for 'aten::add'", "mul": "no kernel for 'aten::mul'", "sort": "sort takes no bool"}
    diff = compare(before, run(*(record(op, "unsupported", op=op, reason=words[op]) for op in words)))
    assert [t.ops for t in diff.groups[Group.LOST]] == [("add", "mul"), ("sort",)]


def test_a_fallback_that_ended_is_told_and_fails_only_when_asked() -> None:
    diff = compare(run(record("a", "fallback")), run(record("a")))
    assert list(diff.groups) == [Group.FALLBACK]
    assert (diff.exit_code(), diff.exit_code([Group.FALLBACK])) == (0, 1)
    assert compare(run(record("a")), run(record("a", "fallback"))).exit_code() == 1


def test_items_of_one_run_are_added_or_removed() -> None:
    one, two = run(items=(item(agree=3),)), run(items=(item(agree=3), item("sort", agree=3)))
    diff, back = compare(one, two), compare(two, one)
    assert [(g, [t.ops for t in told]) for g, told in diff.groups.items()] == [(Group.ADDED, [("sort",)])]
    assert [(g, [t.ops for t in told]) for g, told in back.groups.items()] == [(Group.REMOVED, [("sort",)])]
    assert (diff.exit_code(), diff.exit_code([Group.ADDED]), back.exit_code()) == (0, 1, 1)


@pytest.mark.parametrize("header", [replace(HEADER, selection="add"), replace(HEADER, shard="1/2")])
def test_a_run_of_fewer_ops_fails_until_the_ops_are_named(header: Header) -> None:
    """On either side, and whatever --accept partial says, which is for what broke off."""
    part, whole = run(items=(item(agree=3),), header=header), run(items=(item(agree=3), item("sort", agree=3)))
    what = "run is missing 1 of the 2 op x dtype pairs of the other one (sort float32)"
    text = f"{what}: name the ops to compare: parity diff BEFORE AFTER PATTERN"
    for runs, word in (((part, whole), "first"), ((whole, part), "second")):
        diff = compare(*runs, partial=True)
        assert (diff.incomplete, diff.exit_code()) == ((f"the {word} {text}",), 1)
        assert compare(*runs, ops=["ad*"]).exit_code() == 0
        with pytest.raises(UsageError, match=f"the {word} run has no op 'sort'"):
            compare(*runs, ops=["add", "sort"])
    assert compare(part, replace(whole, items=whole.items[:1])).exit_code() == 0, "another selection of the same ops"


def test_the_ops_that_are_named_are_compared_alone() -> None:
    """A regression of another op is left out, one of theirs is not, and an item that is missing still is."""
    before, after = run(items=(item(agree=3), item("sort", agree=3))), run(items=(item(agree=3), item("sort", wrong=3)))
    assert [compare(before, after, ops=[name]).exit_code() for name in ("add", "sort")] == [0, 1]
    cut = replace(after, items=after.items[:1], end=End(expected=3))
    assert [compare(before, cut, ops=["add"], partial=p).exit_code() for p in (False, True)] == [1, 0]


def test_a_second_run_that_compared_nothing_is_no_comparison() -> None:
    """What both sides refuse says nothing either; a crash of it is reported all the same."""
    before = run(items=(item(agree=9),))
    refusals = ItemRow("add", "float32", 9, {"forward": {"void": 9}, "refusal": {"agree": 3}})
    for after in (item(void=9), ItemRow("add", "float32"), refusals):
        with pytest.raises(NothingCompared, match="the second run compared nothing, so nothing was compared"):
            compare(before, run(items=(after,)))
    assert compare(before, run(items=(item(void=8, crash=1),))).exit_code() == 1


def test_an_op_of_which_nothing_is_compared_any_more_has_regressed() -> None:
    """In a dtype, without a threshold; one that compared nothing before has not."""
    sub = item("sub", agree=3)
    void = replace(item(void=2), void={"it raises there": 2})
    diff = compare(run(items=(item(agree=2), sub)), run(items=(void, sub)))
    assert (words(diff, Group.REGRESSED), diff.exit_code()) == ([("", "compared", "nothing compared", False)], 1)
    assert [t.reason for t in diff.groups[Group.REGRESSED]] == ["it raises there"]
    assert compare(run(items=(void, sub)), run(items=(void, sub))).exit_code() == 0


def test_an_aspect_of_which_nothing_is_compared_any_more_has_regressed() -> None:
    """However few cells it is of, where a pinned case that had it ran again; not where no such case did, or fewer aspects were
    asked for, or other cases still have it."""
    ten = tuple(item(f"op{k}", agree=9) for k in range(10))
    both = replace(ten[0], counts={"forward": {"agree": 9}, "backward": {"agree": 3}})
    forward, backward = record("a", op="op0", pinned=True), replace(record("a", op="op0", pinned=True), aspect="backward")
    before, after = run(forward, backward, items=(both, *ten[1:])), run(forward, items=ten)
    diff = compare(before, after)
    assert [(c.cell, c.after) for c in of(diff, Group.REGRESSED)] == [(("op0", "float32", "backward"), "nothing compared")]
    assert (diff.exit_code(), compare(after, before).exit_code(), compare(after, after).exit_code()) == (1, 0, 0)
    fewer = replace(after, header=replace(HEADER, options="--skip=screens"))
    for other in (run(record("b", op="op0", pinned=True), items=ten), fewer, run(forward, items=before.items)):
        assert Group.REGRESSED not in compare(before, other).groups


def test_what_an_interrupted_run_did_not_reach_is_not_removed() -> None:
    two = run(items=(item(agree=3), item("sort", agree=3)))
    broken_off = replace(run(items=(item(agree=3),)), end=End(stopped="interrupted", expected=2))
    diff = compare(two, broken_off)
    assert (dict(diff.groups), diff.exit_code()) == ({}, 1)
    assert compare(two, broken_off, partial=True).exit_code() == 0


def test_a_cell_that_says_nothing_any_more_is_not_comparable() -> None:
    """In one aspect; of the others something is compared."""
    before, after = (
        run(items=(ItemRow("add", "float32", 9, {"forward": {"agree": 9}, "backward": {status: 9}}),))
        for status in ("agree", "void")
    )
    diff = compare(before, after)
    assert list(diff.groups) == [Group.INCOMPARABLE]
    assert (diff.exit_code(), diff.doubts) == (
        1, ("only 1 of 2 cells of op x dtype x aspect that both could have were compared in both",),
    )  # fmt: skip


def test_nine_tenths_of_the_cells_are_enough_for_a_verdict() -> None:
    """Ops that one side cannot run are reported as that, and say nothing about the rest."""
    ten = [ItemRow(f"op{k}", "float32", 18, {"forward": {"agree": 9}, "backward": {"agree": 9}}) for k in range(10)]
    silent = [replace(i, counts={"forward": {"agree": 9}, "backward": {"void": 9}}) for i in ten]
    one, two = (run(items=(*ten[n:], *silent[:n])) for n in (2, 3))
    assert (compare(run(items=tuple(ten)), one).exit_code(), compare(run(items=tuple(ten)), two).exit_code()) == (0, 1)
    gained = run(items=(*ten[2:], *(item(f"op{k}", unsupported=9) for k in range(2))))
    assert (compare(gained, run(items=tuple(ten))).doubts, compare(gained, gained).doubts) == ((), ())


@pytest.mark.parametrize(
    ("reason", "group"),
    [
        (f"{MISSING} torch.sub", Group.LOST),
        (f"{OTHER_SIGNATURE}: sub() got", Group.SIGNATURE),
        (f"{BOTH_REFUSE}: no", Group.REFUSED),
    ],
)
def test_what_this_torch_cannot_run_is_told_in_its_own_word_and_fails(reason: str, group: Group) -> None:
    """By a case that is in both runs, and where no case is left that could be recorded."""
    rest, was = item("add", agree=9), item("sub", agree=9)
    gone = replace(item("sub"), void={reason: 9})
    for before, after in (
        (run(record("s", op="sub"), items=(rest, was)), run(record("s", "void", op="sub", reason=reason), items=(rest, gone))),
        (run(items=(rest, was)), run(items=(rest, gone))),
    ):
        diff = compare(before, after)
        assert [t.ops for t in diff.groups[group]] == [("sub",)]
        assert (list(diff.groups), diff.fails(), diff.doubts) == ([group], (group,), ())
    assert not compare(run(items=(rest, gone)), run(items=(rest, gone))).groups


def test_what_parity_cannot_make_costs_one_op_and_fails_for_an_own_function() -> None:
    """It is counted, and nothing is missing for that."""
    ten = [item(f"op{k}", agree=9) for k in range(10)]
    broken = run(items=tuple(ten[1:]))
    broken = replace(broken, end=End(expected=10, broken=("op0-float32: KeyError: x (rows.py:1)",)))
    diff = compare(run(items=tuple(ten)), broken)
    assert [t.ops for t in diff.groups[Group.UNMADE]] == [("op0",)]
    assert (diff.exit_code(), diff.incomplete) == (0, ())
    own = item("models.py:net", agree=1)
    failed = replace(run(items=tuple(ten)), end=End(expected=11, broken=("models.py:net raises on the CPU",)))
    assert compare(run(items=(*ten, own)), failed).fails() == (Group.UNMADE,)
    other = replace(run(items=tuple(ten)), end=End(expected=10, broken=("pytest ended with INTERNAL_ERROR",)))
    assert compare(run(items=tuple(ten)), other).incomplete


def test_another_health_and_other_numerics_make_no_verdict() -> None:
    """The torch, the system and the device are what a diff is about."""

    def of_print(**more: object) -> Run:
        return run(record("a"), header=Header(replace(PRINT, **more), "0", "default", "all"))  # type: ignore[arg-type]

    doctor = compare(of_print(), of_print(facts=(("doctor", "suspect: mm"),)))
    assert (doctor.doubts, doctor.exit_code()) == (("the health of the device changed: healthy -> suspect: mm",), 1)
    flushed, kept = (of_print(facts=(("subnormals float32", word),)) for word in ("flushed", "kept"))
    assert compare(flushed, kept).doubts == ("subnormals float32 changed: flushed -> kept",)
    newer = of_print(torch="2.14.0", os="macOS 26", environment=(*PRINT.environment, ("ImageVersion", "2")))
    image = compare(of_print(), newer)
    assert (image.doubts, image.exit_code()) == ((), 0)
    other = of_print(device_name="Apple M4", facts=(("subnormals float32", "kept"),))
    assert compare(flushed, other).doubts == ()


def test_a_pinned_case_with_other_inputs_is_not_comparable() -> None:
    before, after = run(record("a", digest="1", pinned=True)), run(record("a", digest="2", pinned=True))
    diff = compare(before, after)
    assert [(c.before, c.after) for c in of(diff, Group.INCOMPARABLE)] == [("inputs 1", "inputs 2")]


def test_another_set_of_pinned_cases_is_told() -> None:
    before, after = run(record("a", pinned=True), record("b")), run(record("c", pinned=True), record("b"))
    assert "the pinned cases differ in 1 item: add float32" in compare(before, after).warnings


def test_a_finding_of_another_status_has_the_cause_of_its_cell() -> None:
    """A kind of finding is recorded by its least case, which may drift where others are wrong."""
    cause = Cause("aten::mm", "values")
    after = run(record("a", "wrong", pinned=True), record("b", "drift", shrunk="c", cause=cause))
    diff = compare(run(record("a", pinned=True)), after)
    assert [(t.cause, len(t.changes)) for t in diff.groups[Group.REGRESSED]] == [(cause, 2)]


def test_a_death_by_the_call_of_a_finding_is_newly_dying_in_its_own_words() -> None:
    before = run(record("a", "wrong", shrunk="a", pinned=True, cause=Cause("aten::add", "values")))
    died = Death("add", "float32", "a", "", "crash", "SIGSEGV", "device")
    (new,) = compare(before, replace(before, deaths=(died,))).groups[Group.DYING]
    assert new.cause == Cause("crash: SIGSEGV in add", "dies")


def test_what_did_not_come_again_is_no_difference() -> None:
    """Neither its record nor the count of its item."""
    healthy = Run(
        Header(Fingerprint("0", "2", "", "3", "", "", "sim", "")),
        items=(ItemRow("exp", "float32", 2, {"forward": {"agree": 2}}),),
    )
    found = Record("exp(float32[2])", "exp", "float32", "forward", "wrong", shrunk="exp(float32[2])", count=1, gone=True)
    flaky = replace(healthy, records=(found,), items=(ItemRow("exp", "float32", 2, {"forward": {"agree": 1, "wrong": 1}}),))
    assert not compare(healthy, flaky, partial=True).groups
    assert compare(healthy, replace(flaky, records=(replace(found, gone=False),)), partial=True).groups


def test_a_check_that_says_nothing_beside_new_findings_of_its_op_is_not_told() -> None:
    diff = compare(run(record("a"), record("b")), run(record("a", "wrong"), record("b", "void")))
    assert list(diff.groups) == [Group.REGRESSED]
