"""A real browser, what a test does with it and what it noticed, and a page of fabricated records to open in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from suite.records.store import RecordStore
from suite.report.publish import publish, read
from tests.browser.page_scenes import fabricated_records

_LOADED = "return location.protocol === arguments[0] && document.readyState === 'complete'"


class Browser:
    """Chromium without a window, and what it noticed while a page was open."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.run, self.command = driver.execute_script, driver.execute_cdp_cmd

    def open(self, page: Path, *, width: int = 1280, height: int = 900) -> None:
        """Load a page afresh, in the light scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", size)
        self.prefer("light")
        self.messages()
        self.requests()
        for address in ("about:blank", page.as_uri()):
            self.driver.get(address)
            # the driver may come back before the page has replaced the one that was open
            scheme = f"{urlparse(address).scheme}:"
            WebDriverWait(self.driver, 30).until(lambda _, scheme=scheme: self.run(_LOADED, scheme))

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", {"features": features})

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def messages(self) -> list[dict[str, Any]]:
        """What the console said since the last call."""
        return list(self.driver.get_log("browser"))

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def cells(self, selector: str) -> list[list[list[str]]]:
        """Text of every cell of the tables, by visible row."""
        return self.run(
            """return [...document.querySelectorAll(arguments[0])].map(table =>
                [...table.tBodies[0].rows].filter(row => row.checkVisibility())
                    .map(row => [...row.cells].map(cell => cell.textContent.trim())))""",
            selector,
        )


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
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of records with all that one must cope with, in the folder of their files."""
    root = tmp_path_factory.mktemp("fabricated")
    for record in fabricated_records():
        RecordStore(root).write(record)
    publish(read([root]), root)
    return root / "index.html"
