"""The page in Chromium: what people see, sort, filter and print."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from selenium.webdriver.common.keys import Keys

from suite.report.leaderboard import leaderboards, standings
from suite.report.sheets import sheets
from suite.tables.comparison import comparison
from tests.browser.chromium import Browser, Page
from tests.browser.page_scenes import MARKUP, SCRIPT

pytestmark = pytest.mark.slow
TABLE = "#comparison table"


def test_page_loads_quietly_and_asks_for_nothing_but_itself(browser: Browser, page: Page) -> None:
    browser.open(page)
    assert browser.messages() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.url]
    assert page.path.stat().st_size < 2_000_000


def test_every_number_is_that_of_the_tables(browser: Browser, page: Page) -> None:
    browser.open(page)
    groups = page.source.groups
    for sheet in (comparison(groups), *sheets(groups)):
        if sheet.name == "leaderboard":
            continue  # the slider hides rows of it
        shown = [[row[:-1] for row in table] for table in browser.cells(f"#{sheet.name} table")]
        assert shown == [block.shown((*block.columns, *block.more)).to_numpy().tolist() for block in sheet.tables]


def test_page_opens_with_verdict_and_picture(browser: Browser, published: Page) -> None:
    browser.open(published, height=1400)
    said = browser.one("#verdict").text
    assert all(block.summary in said for block in comparison(published.source.groups).tables)
    assert browser.one("figure svg").rect["y"] < browser.one("main table").rect["y"]


def test_every_column_sorts_both_ways_with_missing_values_last(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
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


def test_words_filter_the_rows_of_every_table(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    before = browser.cells(TABLE)
    headings = [block.heading for block in comparison(fabricated.source.groups).tables]
    browser.one("#filter").send_keys("FBGEMM_uvm avazu")
    expected = [
        [row for row in rows if "fbgemm_uvm" in " ".join(row) and "Avazu" in heading]
        for heading, rows in zip(headings, before, strict=True)
    ]
    assert browser.cells(TABLE) == expected
    assert sum(map(len, expected)) > 1
    browser.one("#filter").send_keys(" nosuchword")
    assert not any(table.is_displayed() for table in browser.all("main table"))
    browser.one("#filter").clear()
    browser.one("#filter").send_keys(" ")
    assert browser.cells(TABLE) == before


def test_every_budget_of_the_slider_shows_its_standings(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    boards = leaderboards(fabricated.source.groups)
    budgets = sorted({budget for board in boards for budget in board.budgets})
    browser.run("arguments[0].focus()", browser.one("#budget"))
    browser.press(Keys.HOME)
    for budget in budgets:
        assert browser.one("#budget-words").text == f"{budget // 2**20:,} MiB"
        shown = [[row[2] for row in table] for table in browser.cells("#leaderboard table")]
        fitting = [standings(board, budget) if budget >= board.budgets[0] else () for board in boards]
        assert shown == [[place["system"] for place in places] for places in fitting]
        browser.press(Keys.ARROW_RIGHT)


def test_rows_link_to_the_files_of_their_records(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    links = browser.run("return [...document.querySelectorAll('#comparison td a')].map(link => link.href)")
    files = {Path(unquote(urlparse(link).path)).resolve() for link in links}
    tables = comparison(fabricated.source.groups).tables
    shown = {key for table in tables for line in table.lines for key in line["records"].split()}
    assert files == {path.resolve() for key, path in fabricated.source.files.items() if key in shown}
    assert all(path.is_file() for path in files)


def test_heads_are_reached_and_pressed_from_the_keyboard(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    browser.run("arguments[0].focus()", browser.one(f"{TABLE} thead th:nth-child(4) button"))
    browser.press(Keys.ENTER)
    assert browser.one(f"{TABLE} [aria-sort=ascending]").text.startswith("it/s")
    browser.press(Keys.SPACE)
    assert browser.one(f"{TABLE} [aria-sort=descending]").text.startswith("it/s")


@pytest.mark.parametrize("width", [1280, 390])
def test_page_never_scrolls_sideways_and_follows_the_scheme(browser: Browser, fabricated: Page, width: int) -> None:
    browser.open(fabricated, width=width)
    for scheme, bright in (("light", True), ("dark", False)):
        browser.prefer(scheme)
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in ground.removeprefix("rgb(").rstrip(")").split(",")) > 384) == bright
    wide, window = browser.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= window


def test_printed_page_has_no_controls(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    browser.prefer("dark", media="print")
    try:
        assert not browser.one("#controls").is_displayed()
        assert not browser.one("nav").is_displayed()
        assert browser.one(TABLE).is_displayed()
    finally:
        browser.prefer("light")


def test_without_javascript_every_table_is_there(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    tables = len(browser.all("main table"))
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.visit(fabricated.url)
        assert not browser.one("#controls").is_displayed()
        assert not browser.all("main button")
        assert len(browser.all("main table")) == tables
        assert all(shown.is_displayed() for shown in browser.all("main table"))
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_markup_in_names_and_reasons_is_text(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    assert MARKUP in {row[0] for table in browser.cells(TABLE) for row in table}
    assert SCRIPT in browser.one("main").text
    assert browser.all("img") == []
    assert len(browser.all("script")) == 1
    assert browser.messages() == []
