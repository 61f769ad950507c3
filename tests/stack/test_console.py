"""The console in a real browser against a real stack: a chat, a canary that is rolled back, an objective.

With INFLIGHT_SCREENSHOTS=DIRECTORY it writes the pictures of the README and the docs there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.stack import RunningStack
from benchmarks.traffic import completion, traffic
from router.core.manifest import Manifest
from tests.chromium import PAGES, Watched, chromium
from tests.stack.conftest import TinyModels
from tests.stack.releasing import ReleaseStack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
PICTURES = os.environ.get("INFLIGHT_SCREENSHOTS", "")


@pytest.fixture
def second(release_stack: ReleaseStack, tiny_models: TinyModels) -> Iterator[Manifest]:
    made = release_stack.add("tiny", tiny_models.other_words)
    release_stack.load(made)
    yield made
    release_stack.unload(made)


def test_a_model_is_tried_rolled_out_rolled_back_and_held_to_an_objective(
    release_stack: ReleaseStack, second: Manifest
) -> None:
    async def use() -> None:
        async with chromium(release_stack.url) as browser:
            watched = await browser.new_page()
            for place in PAGES:
                await watched.open(place)
            await try_a_chat(watched)
            await roll_out_and_back(watched, second)
            await set_objective(watched)
            assert watched.problems == []

    with traffic(release_stack.url, completion("tiny", 8), per_s=2, most_in_flight=2):
        asyncio.run(use())
    assert release_stack.weights("tiny") == {1: 1.0}
    objectives = f"{release_stack.url}/admin/objectives/tiny"
    found = httpx.get(objectives).json()["tiers"]["standard"]
    assert found["first_token"]["objective_s"] == 30.0
    httpx.delete(objectives).raise_for_status()


async def try_a_chat(watched: Watched) -> None:
    """The engine's own stages and steps come back with the answer."""
    page = watched.page
    await watched.open("playground")
    await page.fill("#said", "Hello?")
    await page.keyboard.press("Enter")
    await page.locator(".facts .life").wait_for()
    assert "triton-0" in await page.inner_text(".facts")
    stages = await page.get_attribute(".life-bar", "aria-label")
    assert {"queue", "prefill", "decode"} <= {each.strip().split(" ")[0] for each in stages.split(",")}
    await page.click(".facts a")
    await page.locator(".waterfall .bar.step").first.wait_for()


async def roll_out_and_back(watched: Watched, second: Manifest) -> None:
    page = watched.page
    await watched.open("releases/tiny")
    await page.locator("tr", has_text=second.name).get_by_text("Canary…").click()
    await page.click("dialog >> text=Begin")
    await page.locator(".canary", has_text=second.name).wait_for()
    await page.locator(".canary").get_by_text("Pause").click()
    await page.locator(".canary").get_by_text("paused").wait_for()
    await page.locator(".canary").get_by_text("Roll back…").click()
    await page.fill("dialog input", "second thoughts")
    await page.click("dialog >> text=Roll back >> nth=-1")
    await page.locator(".timeline", has_text="second thoughts").wait_for()
    assert await page.locator(".canary").count() == 0


async def set_objective(watched: Watched) -> None:
    page = watched.page
    await watched.open("objectives")
    await page.locator(".card", has_text="tiny").get_by_label("Set the objective of standard").click()
    await page.fill("dialog input >> nth=0", "30000")
    await page.click("dialog >> text=Save")
    await page.locator("tr", has_text="standard").get_by_text("30 s").wait_for()


@pytest.mark.skipif(not PICTURES, reason="INFLIGHT_SCREENSHOTS names no directory")
def test_pictures_are_taken_for_the_documentation(stack: RunningStack) -> None:
    async def take() -> None:
        async with chromium(stack.url) as browser:
            chat = await browser.new_page()
            await chat.open("playground")
            await chat.page.fill("#said", "Name three rivers of Europe and say one thing about each.")
            await chat.page.keyboard.press("Enter")
            await chat.page.locator(".facts .life").wait_for()
            await chat.page.screenshot(path=Path(PICTURES) / "console-playground.png")
            now = await browser.new_page(dark=True)
            await now.open("now")
            await now.page.wait_for_timeout(40_000)  # for plots to have something
            await now.page.screenshot(path=Path(PICTURES) / "console-now.png")

    objective = {"first_token_s": 2.5, "inter_token_s": 0.25}
    httpx.put(f"{stack.url}/admin/objectives/{stack.model}/standard", json=objective).raise_for_status()
    price = {"prompt": 150_000, "cached_prompt": 50_000, "completion": 600_000}
    httpx.put(f"{stack.url}/admin/prices/{stack.model}", json=price).raise_for_status()
    with traffic(stack.url, completion(stack.model, 24), per_s=0.7, most_in_flight=4):
        asyncio.run(take())
