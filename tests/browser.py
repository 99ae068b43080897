"""A real Chromium, and what it complains about."""

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright

ROOT = Path(__file__).parent.parent
AXE = ROOT / "clients/js/node_modules/axe-core/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """The machine's Chromium; skips where there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium), so the tests in a browser cannot run")
    # Chromium's sandbox refuses to run as root, which containers of CI often are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watch:
    """What a page did that it should not.

    Attributes:
        complaints: errors of its scripts, and what the browser refused it.
        hosts: whom it asked.
        bodies: what it posted.
    """

    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    bodies: list[Any] = field(default_factory=list)

    def over(self, page: Page) -> None:
        """Watch *page* from now on."""
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._told(message.type, message.text))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or ""))
        page.on("request", lambda request: self.bodies.append(request.post_data_json) if request.post_data else None)

    def _told(self, kind: str, text: str) -> None:
        # An answer with an error status, and a connection that broke, are what many tests are about.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.complaints.append(text)


async def violations(page: Page) -> list[str]:
    """What axe finds wrong with the page as it is now, for people who see, hear or point less well."""
    if not AXE.exists():
        pytest.skip("axe-core is missing: scripts/setup-clients brings it")
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
