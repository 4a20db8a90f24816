"""The page of a run: its parts are there, nothing in it can run or be fetched, and its filter works in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from parity.core.results import Cause, Fingerprint, Measure, Record
from parity.report import html
from parity.runs.rows import Death, End, Header, ItemRow, Power, Run

EVIL = "<script>alert(1)</script>\"'&"
M = Measure(
    "out",
    37.2,
    measured=True,
    index=(0, 1),
    device="1.5",
    reference="1",
    truth="1.01",
    budget=(("rounding", 0.5), ("sum", 1.5)),
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def run(evil: str = "") -> Run:
    f = Fingerprint("0.1.0", "2.13.0", "cf30", "3.11.7", "Linux" + evil, "x86_64", "sim", "simulated" + evil, simulated=True)
    records = [
        Record("exp(float32[2])", "exp", "float32", "forward", "wrong", reason="37.2 times" + evil, measures=(M,),
               shrunk="exp(float32[2])", cause=Cause("aten::exp" + evil, "values")),
        Record("cos(float32[2])", "cos", "float32", "forward", "agree", measures=(replace(M, share=0.3),)),
    ]  # fmt: skip
    items = [
        ItemRow("exp", "float32", 2, {"forward": {"wrong": 1, "agree": 1}}, void={"reason" + evil: 1}),
        ItemRow("cos", "float32", 2, {"forward": {"agree": 2}}),
        ItemRow("mode", "int64", 1, {"forward": {"unsupported": 1}}),
    ]
    deaths = (Death("sin", "float32", "sin(float32[2])", signal="SIGABRT" + evil, stage="device"),)
    powers = (Power("exp", "float32", "forward", "every element by half", {"seen": 3}),)
    return Run(Header(f, "0", "quick", started="2026-01-01"), tuple(records), tuple(items), deaths, End(1.5), (), powers)


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
    """Causes by weight with script and budget, the matrix, histograms, what was refused, power, the run."""
    page = html.render(run())
    parts = read(page)
    assert {"causes", "matrix", "errors", "lacks", "power", "run", "filter", "odd", "table"} <= parts.ids
    assert page.count('class="weight A"') == 1
    for text in (
        "aten::exp gives wrong values",
        "worst element",
        "at [0, 1]: device 1.5",
        "75 %",
        "torch.exp(t0)",
        "ends the process",
    ):
        assert text in page
    assert "parity replay &#39;exp(float32[2])&#39; --device sim" in page
    assert parts.tags.count("svg") == 1
    assert "float32: 2 comparisons, 1 above the budget" in page
    assert "simulated" in page


def test_nothing_can_be_fetched_and_what_a_file_holds_is_inert() -> None:
    """One script and one style, the page's own; only addresses within the page."""
    page = html.render(run(EVIL))
    parts = read(page)
    assert parts.tags.count("script") == 1
    assert parts.addresses
    assert all(a.startswith("#") for a in parts.addresses)
    assert "alert(1)</script>" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.search(r"https?://", page)


def test_a_run_that_agrees_says_so() -> None:
    healthy = replace(run(), records=(), deaths=(), items=run().items[1:2])
    page = html.render(healthy)
    assert "Everything that was compared agrees" in page
    assert "No finding" in page


def test_a_page_of_a_large_run_is_small() -> None:
    """800 ops in 10 dtypes, 400 causes."""
    big = run()
    items = [
        ItemRow(f"op{k}", d, 9, {"forward": {"agree": 9}}) for k in range(800) for d in ("float32", "float16", "int64", "bool")
    ]
    records = [replace(big.records[0], cause=Cause(f"aten::{k}", "values")) for k in range(400)]
    assert len(html.render(replace(big, items=tuple(items), records=tuple(records)))) < 2_000_000


@pytest.mark.skipif(CHROMIUM is None, reason="no page was tested in a browser: there is no chromium on this machine")
def test_the_filter_works_in_a_browser(tmp_path: Path) -> None:
    """The script runs under the page's own policy: it hides what agrees, and counts what it shows."""
    path = tmp_path / "page.html"
    path.write_text(html.render(run()), encoding="utf-8")
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
        path.as_uri(),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    assert "3 of 4 ops" in shown
    assert re.search(r'<tr hidden=""><th scope="row">cos', shown)
