"""Debian's Chromium without windows, driven by Playwright: pages that note whatever goes wrong in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.debian import debian_program

DESK = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
PAGES = ("playground", "now", "releases", "tenants", "requests", "objectives", "runs")
_SERIOUS = ("serious", "critical")
# What runs beside it may make and remove networks of containers; then pages ask again.
_NETWORK_OF_OTHERS = "ERR_NETWORK_CHANGED"


@dataclass
class Watched:
    """A page, and all that its console and its scripts complained of."""

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)

    def note(self, said: Any) -> None:
        if said.type in ("error", "warning") and _NETWORK_OF_OTHERS not in said.text:
            self.problems.append(said.text)

    async def open(self, place: str) -> None:
        await self.page.goto(f"{self.url}/ui#/{place}")
        heading = self.page.locator("main h1")
        await heading.wait_for(state="attached")
        await self.page.locator("main > [role=status]").first.wait_for(state="detached")

    async def find_barriers(self) -> list[str]:
        """What axe-core finds that keeps people out: contrast, names, roles, order."""
        from axe_playwright_python.base import AXE_SCRIPT

        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(AXE_SCRIPT)
        asked = "axe.run({resultTypes: ['violations'], preload: false})"
        found = (await self.page.evaluate(asked))["violations"]
        return [
            f"{each['id']}: {node['html'][:200]}"
            for each in found
            if each["impact"] in _SERIOUS
            for node in each["nodes"]
        ]


@dataclass
class Browser:
    running: Any
    url: str

    async def new_page(self, *, dark: bool = False, size: dict[str, int] = DESK) -> Watched:
        scheme = "dark" if dark else "light"
        context = await self.running.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page = await context.new_page()
        page.set_default_timeout(60_000)  # a busy machine takes its time
        watched = Watched(page, self.url)
        page.on("pageerror", lambda error: watched.problems.append(str(error)))
        page.on("dialog", lambda dialog: watched.problems.append(f"a dialog: {dialog.message}"))
        page.on("console", watched.note)
        return watched


@asynccontextmanager
async def chromium(url: str) -> AsyncIterator[Browser]:
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed here")
    # The same engine in half of the processor's time.
    program = debian_program("chromium-headless-shell", "chromium-headless-shell")
    async with playwright.async_playwright() as driver:
        # A test's pages are its own, and root has no sandbox to run in.
        running = await driver.chromium.launch(executable_path=str(program), args=["--no-sandbox"])
        try:
            yield Browser(running, url)
        finally:
            await running.close()
