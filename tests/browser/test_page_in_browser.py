"""The page in Chromium: what people see, sort and filter."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from suite.report.publish import read, sheets
from tests.browser.conftest import Browser

pytestmark = pytest.mark.slow
TABLE = "#comparison table"


def test_page_loads_quietly_asks_for_nothing_and_opens_with_verdict_and_picture(browser: Browser, page: Path) -> None:
    browser.open(page, height=1400)
    assert browser.messages() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
    said = " ".join(browser.one("#verdict").text.split())
    assert all(" ".join(block.summary.split()) in said for block in sheets(read([page.parent]).groups)[0].tables)
    assert browser.one("figure svg").rect["y"] < browser.one("main table").rect["y"]


def test_every_column_sorts_both_ways_with_missing_values_last(browser: Browser, page: Path) -> None:
    browser.open(page)
    sorts = browser.run(
        """return [...document.querySelectorAll('main table')].flatMap(table =>
             [...table.tHead.rows[0].cells].flatMap((head, column) => ['ascending', 'descending'].map(wanted => {
               head.querySelector('button').click();
               const marked = [...table.querySelectorAll('[aria-sort]')];
               const values = [...table.tBodies[0].rows].map(row => row.cells[column].dataset.value);
               const isMarked = marked.length === 1 && head.getAttribute('aria-sort') === wanted;
               return [head.className, isMarked, wanted, values];
             })))"""
    )
    assert sorts
    for kind, is_marked, order, values in sorts:
        assert is_marked
        known = [value for value in values if value]
        assert values == known + [""] * (len(values) - len(known))
        numbers: list[str | float] = [value if kind == "text" else float(value) for value in known]
        assert numbers == sorted(numbers, reverse=order == "descending")


def test_words_filter_the_rows_of_every_table(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = browser.cells(TABLE)
    headings = [block.heading for block in sheets(read([page.parent]).groups)[0].tables]
    browser.one("#filter").send_keys("TORCHREC_uvm avazu")
    expected = [
        [row for row in rows if "torchrec_uvm" in " ".join(row) and "Avazu" in heading]
        for heading, rows in zip(headings, before, strict=True)
    ]
    assert browser.cells(TABLE) == expected
    assert sum(map(len, expected)) > 1
    browser.one("#filter").send_keys(" nosuchword")
    assert not any(table.is_displayed() for table in browser.all("main table"))
    browser.one("#filter").clear()
    browser.one("#filter").send_keys(" ")
    assert browser.cells(TABLE) == before


def test_rows_link_to_the_files_of_their_records(browser: Browser, page: Path) -> None:
    browser.open(page)
    links = browser.run("return [...document.querySelectorAll('#comparison td a')].map(link => link.href)")
    files = {Path(unquote(urlparse(link).path)).resolve() for link in links}
    source = read([page.parent])
    tables = sheets(source.groups)[0].tables
    shown = {key for table in tables for line in table.lines for key in line["records"].split()}
    assert files == {path.resolve() for key, path in source.files.items() if key in shown}
    assert all(path.is_file() for path in files)


@pytest.mark.parametrize("width", [1280, 390])
def test_page_never_scrolls_sideways_and_follows_the_scheme(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    for scheme, bright in (("light", True), ("dark", False)):
        browser.prefer(scheme)
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in ground.removeprefix("rgb(").rstrip(")").split(",")) > 384) == bright
    wide, window = browser.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= window


def test_without_javascript_every_table_is_there(browser: Browser, page: Path) -> None:
    browser.open(page)
    tables = len(browser.all("main table"))
    browser.command("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.driver.refresh()
        assert not browser.one("#controls").is_displayed()
        assert not browser.all("main button")
        assert len(browser.all("main table")) == tables
        assert all(shown.is_displayed() for shown in browser.all("main table"))
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", {"value": False})
