"""Errors, times and memory of own functions in two runs: a change is reported, and what honest devices differ by is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.core.results import Fingerprint
from parity.history.change import Group
from parity.history.diff import Diff, compare
from parity.report.diff import about, terminal
from parity.store.rows import End, Header, ItemRow, Run

PRINT = Fingerprint("0.1", "2.13.0", "abc", "3.11", "macOS 15", "arm64", "mps", "Apple M2")
NET = ItemRow(
    "models.py:net", "float32", 1, {"forward": {"agree": 1}, "backward": {"agree": 3}}, ids="ab", memory=64 << 20,
    errors={"forward out": 2.0, **{f"backward grad[{k}]": 3.0 for k in range(3)}},
    device_seconds={"forward": 0.010, "backward": 0.020}, device_spread={"forward": 0.0002, "backward": 0.0002},
)  # fmt: skip
OTHER = replace(NET, op="models.py:other")


def diff(*after: ItemRow, before: tuple[ItemRow, ...] = (NET, OTHER), simulated: bool = False) -> Diff:
    header = Header(replace(PRINT, simulated=simulated), "0", "quick", "models")
    a, b = (Run(header, items=items, end=End(expected=len(items))) for items in (before, after))
    return compare(a, b)


def grown(times: float) -> ItemRow:
    return replace(NET, errors={n: e * times for n, e in NET.errors.items()})


def test_equal_runs_tell_nothing_and_count_what_they_compared() -> None:
    same = diff(NET, OTHER)
    assert (dict(same.groups), same.exit_code(), same.drift.pairs, same.paces.series) == ({}, 0, 8, 4)


@pytest.mark.parametrize(("times", "groups"), [(4.0, [Group.WORSE]), (0.25, [Group.BETTER]), (2.0, []), (0.6, [])])
def test_errors_are_told_from_a_factor_on_that_honest_devices_hardly_reach(times: float, groups: list[Group]) -> None:
    """The two functions have one error each in the forward pass, three in the backward one."""
    found = diff(grown(times), OTHER)
    assert list(found.groups) == groups
    assert all({c for t in told for c in t.cells} == {(NET.op, "float32", a) for a in ("forward", "backward")} for told in
               found.groups.values())  # fmt: skip


def test_most_tensors_decide_and_tiny_errors_do_not() -> None:
    one = replace(NET, errors={**NET.errors, "backward grad[0]": 3000.0})
    exact, nearly = (replace(NET, errors={"forward out": e}) for e in (0.0, 0.2))
    assert dict(diff(one, OTHER).groups) == {}
    assert dict(diff(nearly, before=(exact,)).groups) == {}
    assert list(diff(NET, before=(exact,)).groups) == [Group.WORSE]


def test_the_worst_is_told_first_and_is_the_next_command() -> None:
    worse = replace(OTHER, errors={n: e * 40 for n, e in OTHER.errors.items()})
    found = diff(grown(4.0), worse)
    assert [t.ops for t in found.groups[Group.WORSE]] == [(OTHER.op,), (NET.op,)]
    line = about(found.groups[Group.WORSE][0])
    assert line.endswith("errors 40 times larger in the middle, 40 times at most; 1 of 1 tensors worse, 0 better")
    assert terminal(found).splitlines()[-1].rpartition("; ")[2] == "next: parity run models.py:other --device mps"


def test_times_are_told_beyond_their_noise_and_only_of_one_machine() -> None:
    slow = replace(NET, device_seconds={"forward": 0.030, "backward": 0.021})
    found = diff(slow, OTHER)
    assert [t.cells for t in found.groups[Group.SLOWER]] == [((NET.op, "float32", "forward"),)]
    assert list(diff(NET, OTHER, before=(slow, OTHER)).groups) == [Group.FASTER]
    noisy = replace(slow, device_spread={"forward": 0.008})
    assert dict(diff(noisy, OTHER).groups) == {}
    short = [replace(NET, device_seconds={"forward": t}) for t in (1e-4, 9e-4)]
    assert dict(diff(short[1], before=(short[0],), simulated=True).groups) == {}


def test_memory_is_told_from_a_quarter_and_a_megabyte_on() -> None:
    for size, groups in ((96, [Group.LARGER]), (40, [Group.SMALLER]), (70, [])):
        assert list(diff(replace(NET, memory=size << 20), OTHER).groups) == groups
    small = [replace(NET, memory=n) for n in (1000, 900_000)]
    assert dict(diff(small[1], before=(small[0],)).groups) == {}
    (told,) = diff(replace(NET, memory=96 << 20), OTHER).groups[Group.LARGER]
    assert "64.0 MB -> 96.0 MB" in about(told)


def test_other_inputs_are_not_compared_and_told_so() -> None:
    found = diff(replace(grown(40.0), ids="cd"), OTHER)
    assert list(found.groups) == [Group.INCOMPARABLE]
    assert found.drift.pairs == 4
