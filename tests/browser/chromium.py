"""A page in Chromium: what a test does with it, and what the browser noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from selenium import webdriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

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
