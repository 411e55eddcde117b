"""The page in Chromium: what people see, click, type and print."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from suite.records.status import Status
from suite.report.page.statements import verdicts
from suite.report.standings import leaderboards, standings
from suite.tables.columns import COLUMNS
from suite.tables.quantities import MISSING, binary_bytes
from suite.tables.rows import merged_rows
from tests.browser.chromium import Browser, Page
from tests.browser.page_views import (
    ALL,
    IDENTITY,
    expected_rows,
    identity_of,
    lines_of,
    popover,
    table,
)

pytestmark = pytest.mark.slow


def test_page_loads_quietly_and_asks_for_nothing_but_itself(browser: Browser, page: Page) -> None:
    browser.open(page)
    assert browser.all("#measurements-table tbody tr")
    assert browser.messages() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.url]
    assert page.path.stat().st_size < 2_000_000


def test_every_number_of_the_main_table_is_that_of_the_records(browser: Browser, page: Page) -> None:
    browser.open(page, ALL)
    shown = table(browser)
    expected = expected_rows(page)
    assert shown.keys() == expected.keys()
    for key, texts in expected.items():
        assert {head: shown[key][head] for head in shown[key].keys() - set(IDENTITY)} == texts, key


def test_page_opens_with_verdict_and_picture(browser: Browser, published: Page) -> None:
    browser.open(published, height=1400)
    said = browser.one("#verdict").text
    assert all(sentence in said for sentence in verdicts(published.source.groups)[0].sentences)
    picture, first_table = browser.one("#verdict svg"), browser.one("main table")
    assert picture.rect["y"] < 1400
    assert picture.rect["y"] < first_table.rect["y"]
    assert len(browser.all("#verdict svg")) == 1


def test_every_filter_leaves_the_rows_of_its_value(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, ALL)
    before = lines_of(browser)
    for facet in ("dataset", "setting", "optimizer", "device", "status"):
        field = Select(browser.one(f"#filters select[name={facet}]"))
        values = [option.text for option in field.options][1:]
        assert sorted(values) == sorted({line[facet] for line in before})
        field.select_by_visible_text(values[-1])
        expected = [line for line in before if line[facet] == values[-1]]
        assert lines_of(browser) == expected
        assert browser.one("#count").text == f"{len(expected)} of {len(before)} rows"
        browser.one("#filters button[type=reset]").click()
        Select(browser.one("select[name=columns]")).select_by_visible_text("all columns")
    assert lines_of(browser) == before
    browser.one("#filters input[name=text]").send_keys("FBGEMM_uvm avazu")
    assert {(line["system"], line["dataset"]) for line in lines_of(browser)} == {
        (line["system"], "Avazu") for line in before if "fbgemm_uvm" in line["system"] and line["dataset"] == "Avazu"
    }
    browser.one("#filters input[name=text]").send_keys(" nosuchword")
    assert browser.rows() == []
    assert browser.one("#count").text.startswith("0 of ")


def test_a_link_shows_the_view_that_its_sender_saw(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    Select(browser.one("select[name=dataset]")).select_by_visible_text("Avazu")
    Select(browser.one("select[name=status]")).select_by_visible_text("ok")
    Select(browser.one("select[name=columns]")).select_by_visible_text("the paper's columns")
    browser.one("#measurements-table thead th:first-child button").click()
    browser.one("#measurements-table thead th:first-child button").click()
    seen = lines_of(browser)
    assert [line["system"] for line in seen] == sorted((line["system"] for line in seen), reverse=True)
    assert {line["dataset"] for line in seen} == {"Avazu"}
    assert "hit rate" not in seen[0] and "accuracy" in seen[0]
    link = browser.driver.current_url
    browser.one("nav a[href='#failures']").click()  # an anchor of the page changes no choice
    assert lines_of(browser) == seen
    browser.visit(link)
    assert lines_of(browser) == seen
    assert browser.one("#measurements-table [aria-sort=descending]").text.startswith("system")
    browser.open(fabricated, "dataset=Nowhere&sort=nothing&columns=none&budget=7&scheme=purple")
    shown, of = browser.one("#count").text.removesuffix(" rows").split(" of ")
    assert shown == of
    assert Select(browser.one("select[name=dataset]")).first_selected_option.text == "all"
    assert browser.messages() == []


def test_every_column_sorts_both_ways_with_missing_values_last(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, ALL)
    sorts = browser.run(
        """const table = document.getElementById('measurements-table');
           const found = [];
           [...table.tHead.rows[0].cells].forEach((head, column) => {
             for (let press = 0; press < 2; press += 1) {
               head.querySelector('button').click();
               const cells = [...table.tBodies[0].rows].map(row => row.cells[column]);
               const marked = [...table.querySelectorAll('[aria-sort]')];
               found.push([head.textContent, marked.length === 1 && marked[0] === head, head.getAttribute('aria-sort'),
                           cells.map(cell => cell.dataset.value), cells[0].className]);
             }
           });
           return found"""
    )
    assert [sort[0] for sort in sorts[::2]] == browser.heads()
    for (header, is_marked, order, values, kind), wanted in zip(sorts, ["ascending", "descending"] * 99, strict=False):
        assert is_marked, header
        assert order == wanted
        known = [value for value in values if value]
        assert values == known + [""] * (len(values) - len(known)), header
        is_word = header == "system" or "text" in kind
        ordered: list[str | float] = [value if is_word else float(value) for value in known]
        assert ordered == sorted(ordered, reverse=order == "descending"), header


def test_sorting_by_speed_gives_the_order_of_the_records(browser: Browser, published: Page) -> None:
    browser.open(published, "sort=it%2Fs&order=descending&status=ok")
    rows = [(row, group.title) for group in published.source.groups for row in merged_rows(group)]
    speeds = [(row.steps_per_s, row.system, title) for row, title in rows if row.status is Status.OK]
    known = [(system, dataset) for speed, system, dataset in sorted(speeds, key=lambda one: -(one[0] or 0)) if speed]
    shown = [(row[0], row[1]) for row in browser.rows()]
    assert shown[: len(known)] == known
    assert len(shown) == len(speeds)


def test_every_budget_of_the_slider_shows_its_standings_and_a_link_keeps_it(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    boards = leaderboards(fabricated.source.groups)
    budgets = sorted({budget for board in boards for budget in board.budgets})
    slider = browser.one("#budget-slider")
    assert int(slider.get_attribute("max")) == len(budgets) - 1
    browser.run("arguments[0].focus()", slider)
    browser.press(Keys.HOME)
    for budget in budgets:
        assert browser.one("#budget-bytes").text == f"{binary_bytes(budget)} ({budget:,} bytes)"
        assert slider.get_attribute("aria-valuetext") == browser.one("#budget-bytes").text
        shown = browser.run(
            """return [...document.querySelectorAll('#sheet-leaderboard tbody')].map(body =>
                 [...body.rows].filter(row => !row.hidden).map(row => row.cells[2].textContent))"""
        )
        for board, systems in zip(boards, shown, strict=True):
            fitting = standings(board, budget) if budget >= board.budgets[0] else ()
            assert systems == [place.row.system for place in fitting]
        if budget == budgets[-2]:
            link = browser.driver.current_url
        browser.press(Keys.ARROW_RIGHT)
    browser.visit(link)
    assert browser.one("#budget-bytes").text.startswith(f"{binary_bytes(budgets[-2])} (")


def test_popover_shows_the_rounds_and_links_to_their_files(browser: Browser, page: Page) -> None:
    browser.open(page, ALL)
    keys = list(table(browser))
    for group in page.source.groups:
        for system, runs in group.rounds_by_system.items():
            if any(run.measurement is None for run in runs):
                continue
            identity = (system, *identity_of(page, group))
            lines, links, text = popover(browser, row=keys.index(identity), header="it/s")
            assert [(line[0], line[2]) for line in lines] == [(str(run.cell.round + 1), "ok") for run in runs]
            if all(run.turns is not None for run in runs):
                assert all(float(line[1].replace(",", "")) > 0 for line in lines)
            for run, line, link in zip(runs, lines, links, strict=True):
                checks = run.verification.checks if run.verification else ()
                said = f"{sum(check.passed for check in checks)} of {len(checks)} checks passed"
                assert line[4] == (said if checks else "not verified")
                assert line[6].startswith((run.environment.commit or MISSING)[:10])
                file = Path(unquote(urlparse(link).path))
                assert file.is_file()
                assert run.key in file.name
            assert f"Python {group.environment.python}" in text
            assert next(column.definition for column in COLUMNS if column.words == "it/s") in text


def test_numbers_of_a_system_with_a_wrong_answer_are_withheld(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, f"{ALL}&text=half")
    (row,) = browser.rows()
    assert "wrong_answer" in row
    browser.one("#measurements-table tbody tr:not([hidden]) td.number > button").click()
    text = browser.one("#behind").text
    assert "loss differs" in text
    assert "777,777" not in browser.driver.page_source


def test_numbers_of_sheets_and_standings_lead_to_records_too(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    for part in ("#sheet-paper", "#sheet-leaderboard tr:not([hidden])"):
        button = browser.one(f"{part} td.behind > button")
        browser.run("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        files = [Path(unquote(urlparse(link.get_attribute("href")).path)) for link in browser.all("#behind a")]
        assert files
        assert all(file.is_file() for file in files)
        browser.press(Keys.ESCAPE)
        assert not browser.one("#behind").is_displayed()


def test_pointing_at_a_number_shows_its_records_and_leaving_hides_them(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    number = browser.one("#measurements-table td.number > button")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", number)
    box = browser.one("#behind")
    wait = WebDriverWait(browser.driver, 10, poll_frequency=0.02)
    ActionChains(browser.driver).move_to_element(number).perform()
    wait.until(lambda _: box.is_displayed())
    assert number.get_attribute("aria-expanded") == "true"
    # Into the box, which must not vanish on the way to its links
    ActionChains(browser.driver).move_to_element(box).pause(0.4).perform()
    assert box.is_displayed()
    ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    wait.until(lambda _: not box.is_displayed())
