"""A headless Chromium, for tests of pages that must work offline.

A test module imports the fixture: ``from browser import chromium as chromium``.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PLACES = {
    "chromium": ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome"),
    "chromedriver": ("/usr/bin/chromedriver", "chromedriver"),
}
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    """A browser window; ``driver`` is selenium's object."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Clear the logs and open a page from a file, with a window size and a colour scheme."""
        self.resize(width, height)
        self.set_dark(dark)
        self.console_errors()
        self.requests()
        self.driver.get(page.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of a piece of JavaScript."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def resize(self, width: int, height: int) -> None:
        """Emulate a screen, which may be narrower than any window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def set_dark(self, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def hover(self, element: Any, dx: float = 0.5, dy: float = 0.5) -> None:
        """Move the mouse to a point of an element, given as fractions of its width and height."""
        box = self.run(
            "arguments[0].scrollIntoView({block: 'center'}); return arguments[0].getBoundingClientRect()", element
        )
        for nudge in (2, 0):
            place = {"x": box["x"] + dx * box["width"] + nudge, "y": box["y"] + dy * box["height"]}
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page, including what does not fit on the screen."""
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(picture["data"]))

    def console_errors(self) -> list[str]:
        """Return the messages since the last call, including failed requests."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Return the addresses requested since the last call, except files and data of the page."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [address for address in asked if not address.startswith(("file:", "data:", "blob:"))]

    def overflow(self) -> int:
        """Return the number of pixels by which the page is wider than the screen."""
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for the tests of one module; they are skipped if Chromium or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    found = {name: next(filter(None, map(shutil.which, places)), None) for name, places in PLACES.items()}
    for name, place in found.items():
        if place is None:
            pytest.skip(f"{name} is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = str(found["chromium"])
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(found["chromedriver"])))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
