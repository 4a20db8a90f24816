"""What a case takes is known before it runs, and drawn cases take no more than a worker has."""

from __future__ import annotations

from typing import Any

import pytest

from parity.core import machine
from parity.core.errors import CaseError
from parity.core.notation import parse
from parity.engine import suite
from parity.engine.planning import BASE_SECONDS, patience
from parity.generation import generate, room, sweep

SMOOTH = "interpolate_bilinear(float32[1, 2, 65535, 1].integers(seed=2799), scale_factor=4.7, mode='bilinear', antialias=True)"


def made(text: str) -> room.Made:
    case = parse(text)
    return room.made(suite.row(case.op), case)


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("full(float32[()], (4096, 4096), 2.0)", 4096 * 4096),
        ("interpolate_nearest(float32[1, 1, 1024, 1024], scale_factor=3.0, mode='nearest')", 9 << 20),
        ("outer(float32[4096], float32[4097])", 4096 * 4097),
        ("repeat(float32[1024], (1024, 4))", 4 << 20),
        ("conv_transpose2d(float32[3, 1, 3, 5], float32[1, 70000, 1, 1], stride=(2, 3))", 3 * 70000 * 5 * 13),
    ],
)
def test_results_count_and_not_operands_alone(text: str, elements: int) -> None:
    assert made(text).largest == elements
    assert made(text).elements >= elements


def test_what_the_truth_makes_on_the_way_counts() -> None:
    """Its table of the weights of antialiasing is the old size by the new: no result is as large."""
    assert made(SMOOTH).largest == 65535 * 308014
    with pytest.raises(CaseError, match=r"too large: it takes [\d,]+ elements, at most 67,108,864 are checked"):
        room.refuse_giants(suite.row("interpolate_bilinear"), parse(SMOOTH))


@pytest.mark.parametrize("text", ["exp(float32[3])", "mm(float32[3, 50], float32[50, 7])", "sum(float32[255, 3], dim=1)"])
def test_a_small_call_is_not_counted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_counted", lambda *_: pytest.fail("counted"))
    assert made(text) == room.Made()
    room.refuse_giants(suite.row(parse(text).op), parse(text))


@pytest.mark.parametrize("text", ["exp(float32[200000, 200000])", "abs(float32[1000000000])", "sum(int8[1000000000])"])
def test_operands_that_are_too_large_are_refused_as_well(text: str) -> None:
    with pytest.raises(CaseError, match=r"too large: it takes [\d,]+ elements, .*; give it smaller sizes"):
        room.refuse_giants(suite.row(parse(text).op), parse(text))


def test_a_case_takes_no_more_than_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    case = parse("exp(float32[1024, 1024])")
    room.refuse_giants(suite.row("exp"), case)
    monkeypatch.setattr(machine, "total_memory", lambda: 1 << 27)
    with pytest.raises(CaseError, match="it takes 2,097,152 elements, at most 671,088 are checked"):
        room.refuse_giants(suite.row("exp"), case)


def test_a_case_is_allowed_time_for_its_result() -> None:
    small, large = (patience(parse(f"full(float32[()], ({n}, {n}), 2.0)")) for n in (2, 2048))
    assert small < BASE_SECONDS + 1
    assert large > BASE_SECONDS + 80


def test_what_would_make_too_much_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the search, and in the sweep, where a smaller border takes its place."""
    sizes = suite.profile("full").sizes
    before = [generate.nth(suite.row("outer"), "float32", sizes, "0", k).case for k in range(400)]
    monkeypatch.setattr(generate, "MOST", 1 << 16)
    monkeypatch.setattr(generate, "MADE_PER_OPERAND", 0)
    after = [generate.nth(suite.row("outer"), "float32", sizes, "0", k).case for k in range(400)]
    row = suite.row("outer")
    large = [room._counted(row, case).elements > 1 << 16 for case in before]
    assert any(large)
    assert not any(room.made(row, case).elements > 1 << 16 for case in after)


@pytest.fixture(scope="module")
def swept() -> list[tuple[str, int]]:
    """(case, elements that it makes) of the large cases of every row's sweep in a quick run."""
    plan, found = suite.profile("quick").sweep, list[tuple[str, int]]()
    for row in suite.rows("native"):
        dtype = row.dtypes[0]
        if row.family in ("recurrent", "optimizers"):  # loops over steps, none of which makes much
            continue
        for k in range(sum(plan.counts(dtype))):
            one: Any = sweep.swept(row, dtype, plan, "0", k)
            if one is not None and max(n for s in one.case.operands() for n in (*s.shape, 1)) > 1 << 14:
                found.append((row.name, room._counted(row, one.case).elements))
    return found


def test_no_row_squares_a_border(swept: list[tuple[str, int]]) -> None:
    assert len(swept) > 100
    assert not [(name, n) for name, n in swept if n > room.MOST]
