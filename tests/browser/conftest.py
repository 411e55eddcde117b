"""A real browser, and the pages to open in it: one made of fabricated records, one of the published ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from suite.records.store import RecordStore
from suite.report.page import page as make_page
from suite.report.publish import Source, read, write_figures
from suite.report.sheets import sheets
from tests.browser.chromium import Browser, Page
from tests.browser.page_scenes import fabricated_records

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for all tests of a module, with a profile of its own."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--force-color-profile=srgb",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With its path given, selenium does not look for a driver on the network
    driver = webdriver.Chrome(options=options, service=Service(executable_path=chromedriver))
    driver.set_page_load_timeout(60)
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="session")
def fabricated(tmp_path_factory: pytest.TempPathFactory) -> Page:
    root = tmp_path_factory.mktemp("fabricated")
    for record in fabricated_records():
        RecordStore(root).write(record)
    return _published(read([root]), root)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Page:
    source = read([ROOT / "results" / "published"], ROOT / "results" / "simulate")
    if not source.groups:
        pytest.skip("results/published has no record that this version reads")
    return _published(source, tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="session", params=["fabricated", "published"])
def page(request: pytest.FixtureRequest) -> Page:
    """Either page."""
    made: Page = request.getfixturevalue(request.param)
    return made


def _published(source: Source, out: Path) -> Page:
    """A page with everything that one has."""
    path = out / "index.html"
    svgs = {one.stem: one.read_text(encoding="utf-8") for one in write_figures(source, out)}
    path.write_text(make_page(source, sheets(source.groups), svgs, out), encoding="utf-8")
    return Page(path, source)
