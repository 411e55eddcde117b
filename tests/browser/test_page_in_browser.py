"""The page in Chromium: what people see, click, type and print."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from suite.records.published import published_rows
from suite.records.status import Status
from suite.report.page.statements import Names, verdicts
from suite.report.sheets.leaderboard import COLUMNS as COLUMNS_OF_PLACES
from suite.report.sheets.leaderboard import place_lines
from suite.report.standings import leaderboards, standings
from suite.tables.columns import COLUMNS
from suite.tables.quantities import MISSING, binary_bytes
from suite.tables.rows import merged_rows
from tests.browser.chromium import Browser, Page
from tests.browser.page_views import (
    ALL,
    IDENTITY,
    expected_rows,
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
    shown = {key: line for key, line in table(browser).items() if not key[0].endswith("published by others")}
    expected = expected_rows(page)
    assert shown.keys() == expected.keys()
    for key, texts in expected.items():
        assert {head: shown[key][head] for head in shown[key].keys() - set(IDENTITY)} == texts, key


def test_page_opens_with_verdict_and_picture(browser: Browser, page: Page) -> None:
    browser.open(page, height=1400)
    said = browser.one("#verdict").text
    assert all(sentence in said for sentence in verdicts(page.source.groups)[0].sentences)
    picture, first_table = browser.one("#verdict svg"), browser.one("main table")
    assert picture.rect["y"] < 1400
    assert picture.rect["y"] < first_table.rect["y"]
    assert len(browser.all("#verdict svg")) == 1


def test_rows_that_others_published_are_marked_and_verbatim(browser: Browser, page: Page) -> None:
    browser.open(page, f"{ALL}&status=published")
    shown = [{words: line[words] for words in ("system", "dataset", "AUROC", "it/s")} for line in lines_of(browser)]
    workloads = {group.cell.workload: group.title for group in page.source.groups}
    expected = [
        {
            "system": f"{row.system} published by others",
            "dataset": title,
            "AUROC": str(row.auroc),
            "it/s": f"{row.steps_per_s:g}",
        }
        for workload, title in workloads.items()
        for row in published_rows(workload)
    ]
    assert shown
    assert sorted(map(str, shown)) == sorted(map(str, expected))


def test_every_filter_leaves_the_rows_of_its_value(browser: Browser, page: Page) -> None:
    browser.open(page, ALL)
    before = lines_of(browser)
    for facet in ("dataset", "setting", "optimizer", "device", "status"):
        field = Select(browser.one(f"#filters select[name={facet}]"))
        values = [option.text for option in field.options][1:]
        assert sorted(values) == sorted({line[facet] for line in before})
        for value in {values[0], values[-1]}:
            field.select_by_visible_text(value)
            expected = [line for line in before if line[facet] == value]
            assert lines_of(browser) == expected
            assert browser.one("#count").text == f"{len(expected)} of {len(before)} rows"
        browser.one("#filters button[type=reset]").click()
        assert browser.one("#count").text == f"{len(before)} of {len(before)} rows"
        Select(browser.one("select[name=columns]")).select_by_visible_text("all columns")
    assert lines_of(browser) == before


def test_a_link_shows_the_view_that_its_sender_saw(browser: Browser, page: Page) -> None:
    browser.open(page)
    Select(browser.one("select[name=dataset]")).select_by_visible_text("Avazu")
    Select(browser.one("select[name=status]")).select_by_visible_text("ok")
    Select(browser.one("select[name=columns]")).select_by_visible_text("traffic")
    browser.one("#measurements-table thead th:first-child button").click()
    browser.one("#measurements-table thead th:first-child button").click()
    seen = lines_of(browser)
    assert [line["system"] for line in seen] == sorted((line["system"] for line in seen), reverse=True)
    assert {line["dataset"] for line in seen} == {"Avazu"}
    link = browser.driver.current_url
    browser.visit(link)
    assert lines_of(browser) == seen
    assert browser.one("#measurements-table [aria-sort=descending]").text.startswith("system")


def test_a_link_to_what_this_page_does_not_have_filters_nothing(browser: Browser, published: Page) -> None:
    browser.open(published, "dataset=Nowhere&sort=nothing&columns=none&budget=7&scheme=purple")
    shown, of = browser.one("#count").text.removesuffix(" rows").split(" of ")
    assert shown == of
    assert Select(browser.one("select[name=dataset]")).first_selected_option.text == "all"
    assert browser.messages() == []


def test_search_wants_every_word_in_any_case(browser: Browser, published: Page) -> None:
    browser.open(published)
    browser.one("#filters input[name=text]").send_keys("FREQ_cache avazu")
    groups = [group for group in published.source.groups if group.title == "Avazu"]
    expected = [name for group in groups for name in group.rounds_by_system if "freq_cache" in name]
    assert sorted(row[0] for row in browser.rows()) == sorted(expected)
    assert browser.one("#count").get_attribute("aria-live") == "polite"
    browser.one("#filters input[name=text]").send_keys(" nosuchword")
    assert browser.rows() == []
    assert browser.one("#count").text.startswith("0 of ")


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


def test_choice_of_columns_hides_all_others(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, ALL)
    everything = browser.heads()
    Select(browser.one("select[name=columns]")).select_by_visible_text("memory")
    shown = browser.heads()
    assert shown[:2] == ["system", "dataset"]
    assert {"rows MB", "index MB", "GPU GB reserved"} <= set(shown) < set(everything)
    assert "AUROC" not in shown
    assert all(len(row) == len(shown) for row in browser.rows())


def test_every_budget_of_the_slider_gives_the_standings_of_the_leaderboard(browser: Browser, page: Page) -> None:
    browser.open(page)
    made = leaderboards(page.source.groups)
    assert len(browser.all(".leaderboard")) == len(made)
    if not made:
        assert "No leaderboard" in browser.one("#budget").text
        assert not browser.all("#budget-slider")
        return
    slider = browser.one("#budget-slider")
    budgets = sorted({budget for board in made for budget in board.budgets})
    steps = [2**power for power in range(budgets[0].bit_length() - 1, budgets[-1].bit_length())]
    assert int(slider.get_attribute("max")) == len(steps) - 1
    for position, budget in enumerate(steps):
        browser.run(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            slider,
            position,
        )
        assert browser.one("#budget-bytes").text == f"{binary_bytes(budget)} ({budget:,} bytes)"
        shown = browser.run(
            """return [...document.querySelectorAll('.leaderboard')].map(part =>
                 [[...part.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent)),
                  part.querySelector('.outside').textContent])"""
        )
        for board, (lines, outside) in zip(made, shown, strict=True):
            assert lines == [list(line.cells) for line in place_lines(COLUMNS_OF_PLACES, standings(board, budget))]
            for system in {contender.system for contender in board.contenders}:
                least = min(one.size for one in board.contenders if one.system == system)
                words = f"{system} (its smallest cell takes {least:,} bytes)"
                assert (words in outside) == (least > budget)


def test_slider_moves_by_arrow_keys_and_a_link_keeps_the_budget(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    slider = browser.one("#budget-slider")
    last = int(slider.get_attribute("max"))
    browser.run("arguments[0].focus()", slider)
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert int(slider.get_property("value")) == last - 2
    said = browser.one("#budget-bytes").text
    assert slider.get_attribute("aria-valuetext") == said
    link = browser.driver.current_url
    browser.visit(link)
    assert browser.one("#budget-bytes").text == said
    # full_gpu takes 2,000 MiB on Avazu, and this budget is 1 GiB
    assert "full_gpu (its smallest cell takes 2,097,152,000 bytes)" in browser.one("#budget").text


def test_popover_shows_the_rounds_and_links_to_their_files(browser: Browser, page: Page) -> None:
    browser.open(page, ALL)
    keys = list(table(browser))
    names = Names(page.source.groups)
    for group in page.source.groups:
        for system, runs in group.rounds_by_system.items():
            if any(run.measurement is None for run in runs):
                continue
            identity = (system, group.title, names.setting(group.cell), group.cell.optimizer, names.device(group))
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


def test_popover_of_a_published_row_names_its_source(browser: Browser, published: Page) -> None:
    browser.open(published, "status=published")
    browser.all("#measurements-table tbody tr.published .behind > button")[1].click()
    assert "hpcaitech/CachedEmbedding" in browser.one("#behind").text
    assert not browser.all("#behind a")


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
    for part in ("#sheet-paper", "#sheet-leaderboard", ".leaderboard"):
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
