"""The page in Chromium: by touch and keyboard, in both schemes, narrow, printed, and without JavaScript."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.chromium import Browser, Page
from tests.browser.page_scenes import MARKUP, SCRIPT
from tests.browser.page_views import (
    ALL,
    colours,
    expected_rows,
    fits_sideways,
)

pytestmark = pytest.mark.slow


def test_a_tap_opens_the_records_inside_a_narrow_window(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, width=390, height=844)
    browser.command("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        number = browser.one("#measurements-table td.text.behind > button")
        browser.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", number)
        spot = browser.run(
            "const at = arguments[0].getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]",
            number,
        )
        point = {"x": spot[0], "y": spot[1]}
        browser.command("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
        browser.command("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        WebDriverWait(browser.driver, 10).until(lambda _: browser.one("#behind").is_displayed())
        edges = browser.run(
            "const at = document.getElementById('behind').getBoundingClientRect(); return [at.left, at.right]"
        )
        assert edges[0] >= 0
        assert edges[1] <= 390
        assert fits_sideways(browser)
    finally:
        browser.command("Emulation.setTouchEmulationEnabled", enabled=False)


def test_keyboard_alone_reaches_everything_and_shows_where_it_is(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    browser.run(
        """window.stops = [];
           addEventListener('focusin', () => {
             const at = document.activeElement, style = getComputedStyle(at), place = at.closest('[id]');
             const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
             stops.push([`${place ? place.id : ''} ${at.tagName} ${at.name ?? ''} ${at.textContent.trim()}`,
                         outlined && at.matches(':focus-visible')]);
           })"""
    )
    at_end = "return document.activeElement === document.body || stops.filter(([at]) => at === stops[0][0]).length > 1"
    for _ in range(20):
        browser.press(*[Keys.TAB] * 20)
        if browser.run(at_end):
            break
    assert browser.run(at_end)
    stops = browser.run("return stops")
    assert [stop for stop, outlined in stops if not outlined] == []
    seen = [stop for stop, _ in stops]
    if seen[0] in seen[1:]:  # the browser went round
        seen = seen[: seen.index(seen[0], 1)]
    assert seen[0].endswith("Skip to the measurements")
    browser.run("arguments[0].focus()", browser.one(".skip"))
    browser.press(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "measurements"
    assert len([stop for stop in seen if " DIV " in stop or " PRE " in stop]) == len(browser.all(".scroll"))
    walked = "\n".join(seen)
    wanted = ("scheme BUTTON", "SELECT dataset", "SELECT device", "INPUT text", "budget-slider INPUT")
    for stop in wanted:
        assert stop in walked, stop
    # The heads of the main table, and one stop for all of its numbers
    buttons = {stop for stop in seen if stop.startswith("measurements-table BUTTON")}
    assert len(buttons) == len(browser.heads()) + 1


def test_keyboard_sorts_filters_and_enters_and_leaves_the_records(browser: Browser, published: Page) -> None:
    browser.open(published)
    head = browser.one("#measurements-table thead th:nth-child(6) button")
    assert head.text == "it/s"
    browser.run("arguments[0].focus()", head)
    browser.press(Keys.ENTER)
    assert browser.one("#measurements-table thead th[aria-sort]").text.startswith("it/s")
    browser.press(Keys.SPACE)
    assert browser.one("#measurements-table thead th[aria-sort]").get_attribute("aria-sort") == "descending"
    first = browser.one("#measurements-table .behind > button[tabindex='0']")
    browser.run("arguments[0].focus()", first)
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    at = browser.focus()
    cell = browser.run(
        "const cell = document.activeElement.parentElement; return [cell.cellIndex, cell.parentElement.rowIndex]"
    )
    assert (
        browser.run("return [...document.querySelectorAll('#measurements-table .behind > [tabindex=\"0\"]')].length")
        == 1
    )
    assert browser.one("#behind").is_displayed()
    browser.press(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "behind"
    browser.press(Keys.TAB, Keys.TAB)
    assert browser.focus().tag_name == "a"
    browser.press(Keys.ESCAPE)
    assert not browser.one("#behind").is_displayed()
    assert browser.focus() == at
    browser.press(Keys.HOME)
    assert browser.run("return document.activeElement.parentElement.parentElement.rowIndex") == cell[1]
    assert browser.run("return document.activeElement.parentElement.cellIndex") < cell[0]


def test_scheme_follows_the_system_until_the_button_says_otherwise(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    light = colours(browser)
    browser.prefer("dark")
    dark = colours(browser)
    assert all(bright > 0.8 for bright in light)
    assert all(bright < 0.2 for bright in dark)
    button = browser.one("#scheme")
    assert button.text == "Light scheme"
    browser.run("arguments[0].focus()", button)
    browser.press(Keys.ENTER)
    assert colours(browser) == light
    assert button.text == "Dark scheme"
    link = browser.driver.current_url
    browser.visit(link)
    assert colours(browser) == light
    # Figures are drawn on white in both
    browser.one("#scheme").click()
    assert colours(browser) == dark
    card = browser.run("return getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert card == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [1280, 390])
def test_page_never_scrolls_sideways_and_is_not_blank(
    browser: Browser, fabricated: Page, width: int, tmp_path: Path
) -> None:
    browser.open(fabricated, ALL, width=width, height=900)
    assert fits_sideways(browser)
    table_region = browser.one("#measurements .scroll")
    assert browser.run("return arguments[0].scrollWidth > arguments[0].clientWidth", table_region)
    browser.run("arguments[0].scrollIntoView()", table_region)  # figures are white in both schemes
    pictures = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        shot = browser.command("Page.captureScreenshot", format="png")
        (tmp_path / f"{width}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
        pictures[scheme] = np.asarray(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("L"), dtype=float)
        assert pictures[scheme].shape == (900, width)
        assert pictures[scheme].std() > 10
    assert pictures["light"].mean() > 180 > 80 > pictures["dark"].mean()


def test_printed_page_is_light_and_has_no_controls(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, "scheme=dark")
    browser.prefer("dark", media="print")
    try:
        assert all(bright > 0.8 for bright in colours(browser))
        for selector in ("#filters", "#budget-control", "#scheme", "nav"):
            assert not browser.one(selector).is_displayed(), selector
        assert browser.one("#measurements-table").is_displayed()
    finally:
        browser.prefer("light")


def test_without_javascript_every_table_is_there(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated)
    tables = len(browser.all("main table"))
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.visit(fabricated.url)
        assert "JavaScript is off" in browser.one("noscript").text
        assert not browser.one("#filters").is_displayed()
        assert not browser.one("#scheme").is_displayed()
        assert not browser.all("#measurements-table button")
        assert len(browser.all("main table")) == tables
        assert all(shown.is_displayed() for shown in browser.all("main table"))
        expected = expected_rows(fabricated)
        lines = browser.all("#measurements-table tbody tr")
        assert len(lines) == len(expected)
        first = next(iter(expected.values()))
        assert first["AUROC"] in lines[0].text
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_markup_in_names_and_reasons_is_text(browser: Browser, fabricated: Page) -> None:
    browser.open(fabricated, f"{ALL}&text=onerror")
    assert [row[0] for row in browser.rows()] == [MARKUP]
    browser.one("#measurements-table tbody tr:not([hidden]) td.number > button").click()
    box = browser.one("#behind")
    assert MARKUP in box.text
    assert SCRIPT in box.text
    assert browser.all("img") == []
    assert len(browser.all("script")) == 2
    assert SCRIPT in browser.one("#failures").text
    assert browser.messages() == []
