"""The page of a run in a real browser: its parts show, its filters work, it fetches nothing, what a file holds stays text.

The browser is Debian's chromium, driven by Playwright. Where either is missing the tests skip in words, which `.ci/run` repeats
in its last line.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stored

from parity.report import html, support
from parity.store.rows import Run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NARROW, WIDE = 400, 1200
SECONDS = 20.0  # in which a large page must be there; how fast it is on a quiet machine is not a test

if CHROMIUM is None:
    pytest.skip("no page was tested in a browser: there is no chromium here", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="no page was tested in a browser: playwright is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium refuses its sandbox to root
    with playwright.sync_playwright() as p:
        started = p.chromium.launch(executable_path=CHROMIUM, args=[*root, "--disable-gpu"])
        yield started
        started.close()


class Opened:
    """A page, and what happened on it. asked: all that it loaded; said: its console, its errors and its dialogs."""

    def __init__(self, browser: Any, path: Path, width: int = WIDE, scheme: str = "light") -> None:
        self.asked: list[str] = []
        self.said: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = context.new_page()
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("dialog", self._dismiss)
        started = time.monotonic()
        self.page.goto(path.as_uri(), wait_until="load")
        self.seconds = time.monotonic() - started

    def _dismiss(self, dialog: Any) -> None:
        self.said.append(dialog.message)
        dialog.dismiss()

    def ops(self) -> list[str]:
        """The ops that the matrix shows."""
        rows = self.page.locator("#table tbody tr:visible th")
        return [str(x) for x in rows.all_inner_texts()]

    def choose(self, select: str, value: str) -> None:
        """Choose in a list by value."""
        self.page.locator(f"#{select}").select_option(value=value)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a run; ends with no page having said or fetched anything."""
    pages: list[Opened] = []

    def of(run: Run, before: Run | None = None, **how: Any) -> Opened:
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(html.render(run, before), encoding="utf-8")
        pages.append(Opened(browser, path, **how))
        return pages[-1]

    yield of
    for p in pages:
        assert p.said == []
        assert len(p.asked) == 1, p.asked
        p.page.context.close()


def test_parts_show_and_a_cause_opens(opened: Callable[..., Opened]) -> None:
    page = opened(stored.run()).page
    for part in ("causes", "checks", "matrix", "errors", "refused", "power", "coverage", "run"):
        assert page.locator(f"#{part}").is_visible()
    cause = page.locator("details.cause").first
    assert not cause.locator("pre").first.is_visible()
    cause.locator("summary").first.click()
    assert "torch.exp(t0)" in cause.locator("pre").first.inner_text()
    box = cause.locator("svg.map").first.bounding_box()
    assert box is not None
    assert (round(box["width"]), round(box["height"])) == (31, 17)
    assert cause.locator("svg.map").first.get_attribute("aria-label") == "errors of out, 1 x 2: 1 of 2 above the budget"
    assert page.locator("#errors ~ .pictures svg").count() >= 3


def test_the_matrix_filters_by_op_dtype_pass_and_status(opened: Callable[..., Opened]) -> None:
    o = opened(stored.run())
    assert sorted(o.ops()) == ["exp", "mode", "pinv", "sin"]
    assert o.page.locator("#shown").inner_text() == "4 of 5 ops"
    o.choose("status", "all")
    assert sorted(o.ops()) == ["cos", "exp", "mode", "pinv", "sin"]
    o.page.locator("#filter").fill("EX")
    assert o.ops() == ["exp"]
    o.page.locator("#filter").fill("")
    o.choose("status", "u")
    assert o.ops() == ["mode"]
    o.choose("status", "f")
    assert o.ops() == ["pinv"]
    o.choose("status", "finding")
    assert sorted(o.ops()) == ["exp", "sin"]
    o.choose("pass", "1")
    assert o.ops() == ["exp"]
    assert o.page.locator("#table tbody tr:visible td").first.inner_text() == "D"
    o.choose("dtype", "int64")
    assert o.ops() == []
    o.choose("pass", "")
    o.choose("status", "all")
    assert sorted(o.ops()) == ["exp", "mode"]
    assert o.page.locator("#table thead th:visible").all_inner_texts() == ["op", "int64"]


def test_causes_filter_by_any_word_of_theirs(opened: Callable[..., Opened]) -> None:
    page = opened(stored.run()).page
    assert page.locator("#found").inner_text() == "2 of 2 causes"
    page.locator("#search").fill("OFFSET float32[3]")
    assert page.locator("details.cause:visible").count() == 1
    page.locator("#search").fill("no such word")
    assert page.locator("#found").inner_text() == "0 of 2 causes"


def test_names_with_quotes_brackets_and_script_tags_stay_text(opened: Callable[..., Opened]) -> None:
    """In every part, with trends too; the fixture sees to it that nothing is said or fetched."""
    bad = stored.run(stored.EVIL)
    for o in (opened(bad), opened(bad, stored.run())):
        o.choose("status", "all")
        for d in o.page.locator("details").all():
            d.evaluate("d => { d.open = true; }")
        assert o.page.evaluate("window.evil") is None
        assert o.page.locator("script").count() == 2
        assert o.page.locator("img").count() == 0
        assert stored.EVIL in o.page.locator("details.cause").first.inner_text()
        assert any(stored.EVIL in op for op in o.ops())
        o.page.locator("#table td").first.hover()


def test_the_page_works_with_keys_alone(opened: Callable[..., Opened]) -> None:
    """The first stop leads to the causes; Enter opens one; its script can be copied; the table can be scrolled."""
    page = opened(stored.run()).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("details.cause summary").first.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("details.cause").first.get_attribute("open") is not None
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "copy"
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('button.copy').textContent !== 'copy the script'")
    assert page.locator("div.scroll:not([tabindex])").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_at_400_pixels(opened: Callable[..., Opened], scheme: str) -> None:
    """With everything open; and the colours are those of the scheme."""
    o = opened(stored.run(), stored.run(), width=NARROW, scheme=scheme)
    for d in o.page.locator("details").all():
        d.evaluate("d => { d.open = true; }")
    assert o.page.evaluate("document.documentElement.scrollWidth") <= NARROW
    colour = o.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")


def test_a_page_of_200000_checks_opens_within_two_seconds(opened: Callable[..., Opened]) -> None:
    """Until its script has run and the first filter is drawn."""
    run = stored.large()
    pages = [opened(run) for _ in range(2)]  # another process may take the machine meanwhile
    o = pages[-1]
    assert o.page.locator("#shown").inner_text() == "800 of 800 ops"
    assert min(p.seconds for p in pages) < SECONDS
    started = time.monotonic()
    o.page.locator("#filter").fill("length_77")
    assert len(o.ops()) == 11
    assert time.monotonic() - started < SECONDS


def test_an_address_opens_its_cause(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run = stored.run()
    path.write_text(html.render(run), encoding="utf-8")
    cause = run.records[0].cause
    assert cause is not None
    page = Opened(browser, path).page
    page.goto(f"{path.as_uri()}#{cause.id}")
    page.wait_for_selector(f"details#{cause.id}[open]")


@pytest.mark.parametrize("width", [NARROW, 1280])
def test_runs_side_by_side_fit_the_window_and_are_searched(browser: Any, tmp_path: Path, width: int) -> None:
    """By op, dtype and answer; nothing is loaded, and what the files hold stays text."""
    path = tmp_path / "page.html"
    path.write_text(support.as_html(support.answer([("a.jsonl", stored.run(stored.EVIL)), ("b.jsonl", stored.run())])))
    made = Opened(browser, path, width)
    assert made.page.evaluate("document.documentElement.scrollWidth") <= width
    made.choose("word", "wrong")
    assert made.ops() == ["exp"]
    made.choose("dtype", "int64")
    assert made.ops() == []
    made.choose("word", "refused")
    assert made.ops() == ["mode"]
    assert (made.said, [x for x in made.asked if not x.startswith("file:")]) == ([], [])
    assert made.page.evaluate("window.evil") is None
    made.page.context.close()
