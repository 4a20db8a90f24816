"""The page of a run, read as text: its parts are there, nothing in it can run or be fetched, and it stays small."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import stored

from parity.core.errors import NothingCompared
from parity.core.results import Cause, Measure
from parity.report import html, svg
from parity.store.rows import End, Run

OTHER = "another_op"


class Reader(HTMLParser):
    """What the page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.ids |= {given["id"] or ""} if "id" in given else set()
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action", "data") and v]


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_parts_are_there() -> None:
    """Causes with script, budget and picture, the matrix, distributions, what was refused, power, coverage, the run."""
    page = html.render(stored.run(), name="my run.jsonl")
    parts = read(page)
    assert {"causes", "checks", "matrix", "errors", "refused", "power", "coverage", "run", "filter", "table"} <= parts.ids
    assert "trends" not in parts.ids
    assert re.search(r"<title>parity: FAIL on sim( \(.*?\))?, torch .*</title>", page)
    assert page.count('class="weight A"') == 1
    for text in (
        "aten::exp gives wrong values, with offset operand",
        "37.2 times the budget; the CPU&#39;s own: 0.5",
        '<td>float64 truth</td><td class="mono">1.01</td>',
        '<td class="n">75 %</td><td>sum</td>',
        "1 of 2 elements above the budget",
        "each square is an element of [1, 2]",
        "torch.exp(t0)",
        "each square is an element of [4, 6]",
        "<dt>which is wrong</dt><dd><code>exp(float32[4, 6])</code></dd>",
        "ends the process",
        "parity replay &#39;exp(float32[2])&#39; --device sim --setup faults.py",
        "parity report &#39;my run.jsonl&#39; ",
        "A simulated device",
        "float32: 4 cells, 2 above the budget",
        "elementwise: 4 cells",
        "no kernel in any dtype: mode",
        "<li>pinv</li>",
        '<td class="n">3 of 3</td>',
        "PYTORCH_X",
    ):
        assert text in page, text


def test_nothing_can_be_fetched_and_what_a_file_holds_is_inert() -> None:
    """The scripts are the page's own, and all addresses lie within it."""
    honest, page = read(html.render(stored.run())), html.render(stored.run(stored.EVIL))
    parts = read(page)
    assert parts.tags.count("script") == honest.tags.count("script") == 2
    assert "img" not in parts.tags
    assert parts.addresses
    assert all(a.startswith("#") for a in parts.addresses)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page)


def test_a_run_that_agrees_and_one_that_compared_nothing_say_so() -> None:
    whole = stored.run()
    healthy = replace(whole, records=(), deaths=(), items=whole.items[1:2], end=End(1.0, {"agree": 2}, expected=1))
    page = html.render(healthy)
    assert "Everything that was compared agrees" in page
    assert "no success" not in page
    idle = html.render(replace(healthy, items=whole.items[3:4], end=End(1.0, {"unsupported": 1}, expected=1)))
    assert "<h1>Nothing was compared</h1>" in idle
    assert "this is no success" in idle


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (None, "The run file is cut: it has no end row"),
        (End(1.0, stopped="interrupted", expected=9), "The run did not end: interrupted"),
        (End(1.0, expected=9, lost=("sin-float32",)), "Items are missing: 4 of 9 were not compared: sin-float32"),
        (End(1.0, expected=5, broken=("it broke",)), "Parity itself failed: it broke"),
    ],
)
def test_a_run_that_is_not_whole_says_so_first(end: End | None, said: str) -> None:
    assert said in html.render(replace(stored.run(), end=end)).partition("<main>")[0]


def test_a_finding_that_did_not_come_again_is_listed_and_is_no_cause() -> None:
    whole = stored.run()
    records = tuple(replace(r, gone=True, count=3) if r.shrunk else r for r in whole.records)
    page = html.render(replace(whole, records=records, deaths=()))
    assert "2 findings near the budget, not reproduced; everything else agrees" in page
    assert "exp float32 forward wrong, in 3 cases of the run" in page


def test_two_runs_give_trends() -> None:
    """New, gone and common causes, counts, changes, and both machines."""
    before, after = stored.run(), stored.run()
    moved = replace(after.records[0], op=OTHER, cause=Cause("aten::other", "values"))
    items = (*after.items, replace(after.items[0], op=OTHER))
    fingerprint = replace(after.header.fingerprint, torch="2.14.0")
    after = replace(
        after, records=(*after.records[2:], moved), items=items, header=replace(after.header, fingerprint=fingerprint)
    )
    page = html.render(after, before)
    for text in (
        "Causes of what the earlier run did not run: 1",
        "Causes that are gone: 1",
        "Causes in both: 1",
        '<td class="bad">2.13.0</td><td class="bad">2.14.0</td>',
        "Regressed: ",
        "the line is the earlier run",
        'class="earlier"',
    ):
        assert text in page, text
    assert "by chance" not in page
    assert "by chance" in html.render(replace(after, header=replace(after.header, seed="7")), before)
    other: Run = replace(stored.run(), records=(), deaths=(), items=(replace(after.items[0], op=OTHER, dtype="int8"),))
    with pytest.raises(NothingCompared):
        html.render(replace(after, records=(), deaths=(), items=after.items[1:2]), other)


def test_a_death_that_a_finding_joins_is_not_gone() -> None:
    """By the same words in both runs, whether the later one shows a finding by the same call, too."""
    after = stored.run()
    before = replace(after, records=tuple(r for r in after.records if not r.shrunk))
    found = next(r for r in after.records if r.shrunk)
    same = replace(after.deaths[0], op=found.op, dtype=found.dtype, case=found.case, blame="device", known="")
    page = html.render(replace(after, deaths=(same,)), replace(before, deaths=(same,)))
    assert "Causes that are gone" not in page
    assert "Causes in both: 1" in page


def test_a_page_of_200000_checks_has_less_than_5_megabytes() -> None:
    """Although every finding has the largest picture, a script and a budget; what finds no room is one line."""
    big = stored.large()
    assert sum(n for i in big.items for c in i.counts.values() for n in c.values()) == 200_000
    page = html.render(big)
    assert len(page.encode()) < 5_000_000
    assert page.count("exp(float32[") >= 450


@pytest.mark.slow
def test_a_page_has_an_end_whatever_a_file_holds() -> None:
    """9,000 findings of 2,500 causes, each with a long case; what finds no room is counted."""
    base, big = stored.run().records[0], stored.large()
    case = "no_op_of_this_parity(float32[" + "2, " * 60 + "2])"
    records = [replace(base, shrunk=case, op=f"op{k}", cause=Cause(f"aten::{k % 2500}", "values")) for k in range(9_000)]
    page = html.render(replace(big, records=tuple(records)))
    assert len(page.encode()) < 8_000_000
    assert "and 500 more causes" in page
    assert "for which the page has no room" in page


def test_a_picture_frames_the_worst_element_and_names_its_steps() -> None:
    """A path for each step, runs of equal elements in one piece."""
    m = Measure("out", index=(1, 0), mismatched=1, total=6, shape=(2, 3), errors="aaar-x", bins=(3, *[0] * 16, 1, *[0] * 5, 1))
    text = str(svg.heat_map(m))
    assert text.count("<path") == 5
    assert 'class="grid" d="M1 0v2M2 0v2M0 1h3"' in text
    assert '<path class="e-no" d="M0 0h3v1h-3z"><title>3 elements: no error</title></path>' in text
    assert '<rect class="worst" x="0" y="1"' in text
    assert "1 element: not judged" in text
    assert svg.heat_map(replace(m, errors="", shape=(), bins=())) is None
    assert [svg.level_class(x) for x in "-ablmwx"] == ["e-un", "e-no", "e-in1", "e-in3", "e-out1", "e-out4", "e-odd"]
    bars = str(svg.of_bins(m))
    assert bars.count("<rect") == 3
    assert "1: differs where no size says how far" in bars
