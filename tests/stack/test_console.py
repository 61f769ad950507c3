"""The console in a real browser against a real stack: chats, canaries, objectives, keys.

With INFLIGHT_SCREENSHOTS=DIRECTORY it writes the pictures of the README and the docs there.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack
from benchmarks.traffic import completion, traffic
from router.core.tenant import Role, Scope
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.chromium import PHONE, Watched, chromium
from tests.pace import patience
from tests.stack.conftest import TinyModels
from tests.stack.releasing import ReleaseStack
from tests.stack.router_beside import router_beside

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
LONG_MS = 300_000  # what loads a model takes minutes where many want the processors
PICTURES = os.environ.get("INFLIGHT_SCREENSHOTS", "")


@pytest.mark.thorough("tests/router/console and tests/stack/test_releases.py")
def test_a_model_is_tried_a_canary_added_watched_and_rolled_back_and_an_objective_set(
    release_stack: ReleaseStack,
) -> None:
    added: list[str] = []

    async def use() -> None:
        async with chromium(release_stack.url) as browser:
            watched = await browser.new_page()
            await try_a_chat(watched)
            hurrying = asyncio.create_task(hurry_additions(release_stack.stack))
            added.append(await add_release(watched))
            hurrying.cancel()
            await roll_out_and_back(watched, added[0])
            await set_objective(watched)
            assert watched.problems == []

    with traffic(release_stack.url, completion("tiny", 8), per_s=2, most_in_flight=2):
        asyncio.run(use())
    model, _, version = added[0].partition("@")
    release_stack.unload(release_stack.find_version(model, int(version)))
    assert release_stack.weights("tiny") == {1: 1.0}
    objectives = f"{release_stack.url}/admin/objectives/tiny"
    found = httpx.get(objectives, timeout=patience(30)).json()["tiers"]["standard"]
    assert found["first_token"]["objective_s"] == 30.0
    httpx.delete(objectives, timeout=patience(30)).raise_for_status()


async def try_a_chat(watched: Watched) -> None:
    """The engine's own stages and steps come back with the answer."""
    page = watched.page
    await watched.open("playground")
    await page.evaluate("document.querySelector('.settings details').open = true")  # closed on phones
    await page.get_by_label("Most tokens").fill("16")
    await page.fill("#said", "Hello?")
    await page.keyboard.press("Enter")
    await page.locator(".facts .life").wait_for()
    assert "triton-0" in await page.inner_text(".facts")
    stages = await page.get_attribute(".life-bar", "aria-label")
    assert {"queue", "prefill", "decode"} <= {each.strip().split(" ")[0] for each in stages.split(",")}
    await page.click(".facts a")
    await page.locator(".waterfall .bar.step").first.wait_for()


async def picture(watched: Watched, name: str) -> None:
    if PICTURES:
        await watched.page.evaluate("scrollTo(0, 0)")
        await watched.page.screenshot(path=Path(PICTURES) / f"console-{name}.png")


async def hurry_additions(stack: RunningStack) -> None:
    """The router has them give way to all that runs on the machine, here to the tests beside this one too."""
    while True:
        for addition in stack.processes(" release add "):
            with suppress(psutil.Error):  # it has ended, or only root may
                for each in (addition, *addition.children(recursive=True)):
                    each.nice(os.getpriority(os.PRIO_PROCESS, 0))
        await asyncio.sleep(0.2)


async def add_release(watched: Watched) -> str:
    """By the server, with the launcher's own command, from a folder that its operator has named."""
    page = watched.page
    await watched.open("releases/tiny")
    await page.click("text=Add a release…")
    source = page.locator("dialog select")
    await source.wait_for()
    await source.select_option(await source.locator("option[value$='/unused']").get_attribute("value"))
    await page.get_by_label("Notes").fill("other words")
    await page.click("dialog >> text=Add it")
    done = page.locator(".jobs li").first.locator(".badge", has_not_text="running")
    await done.wait_for(timeout=LONG_MS)
    assert await done.inner_text() == "added", await page.inner_text(".jobs li >> nth=0")
    return str(await page.inner_text(".jobs li >> nth=0 >> b"))


async def roll_out_and_back(watched: Watched, release: str) -> None:
    page = watched.page
    row = page.locator("tr", has_text=release)
    await row.get_by_text("Canary…").click()
    await page.get_by_label("Steps, % of the traffic").fill("50, 100")
    await page.get_by_label("Requests each, at least").fill("1000")
    # Nothing that a busy machine does to its times ends it before it is rolled back here.
    await page.get_by_label("Times as slow, at most").fill("100")
    await page.click("dialog >> text=Begin")
    canary = page.locator(".canary", has_text=release)
    await canary.wait_for(timeout=LONG_MS)
    # Watched until requests were compared: both arms, and the gates as they stand.
    answered = canary.locator("tr", has_text="canary").locator("td.number").first
    await answered.filter(has_text=re.compile("^[1-9]")).wait_for(timeout=LONG_MS)
    await canary.locator(".gates li").first.wait_for(timeout=LONG_MS)
    if PICTURES:
        await page.wait_for_timeout(15_000)  # for gates to have something
    await picture(watched, "releases")
    await canary.get_by_text("Pause").click()
    await canary.get_by_text("paused", exact=True).wait_for()
    await canary.get_by_text("Roll back…").click()
    await page.fill("dialog input", "second thoughts")
    await page.click("dialog >> text=Roll back >> nth=-1")
    await page.locator(".timeline", has_text="second thoughts").wait_for()
    await page.locator(".canary").wait_for(state="detached")
    await page.get_by_label("One release").select_option("1")
    await page.get_by_label("Another release").select_option(release.partition("@")[2])
    await page.locator("tr", has_text="weights (sha256)").wait_for()


async def set_objective(watched: Watched) -> None:
    page = watched.page
    await watched.open("objectives")
    card = page.get_by_role("region", name="Objectives of tiny", exact=True)
    await card.get_by_label("Set the objective of standard").click()
    await page.fill("dialog input >> nth=0", "30000")
    await page.click("dialog >> text=Save")
    await page.locator("tr", has_text="standard").get_by_text("30 s").wait_for()


def test_who_signs_in_chats_makes_a_key_that_works_and_revokes_it_on_a_dark_phone(
    release_stack: ReleaseStack, tiny_models: TinyModels, tmp_path: Path
) -> None:
    """With a router of its own in front of the stack's Triton: from its first key on it needs one."""
    stack = release_stack.stack
    with open_administration(tmp_path) as admin:
        tenant = admin.create_organisation(SYSTEM, "acme").id
        user = admin.create_user(SYSTEM, tenant, "ada", Role.OWNER, platform_admin=True)
        key = admin.create_key(SYSTEM, tenant, user.id, "root", frozenset(Scope))[1]

    async def use(url: str) -> None:
        async with chromium(url) as browser:
            watched = await browser.new_page(dark=True, size=PHONE)
            page = watched.page
            await page.goto(f"{url}/ui")
            await page.fill("input[type=password]", key)
            await page.click("text=Sign in")
            await page.wait_for_selector("nav")
            # That nobody was signed in before is told by a 401, which the browser notes too.
            watched.problems.clear()
            await try_a_chat(watched)
            await make_and_revoke_key(watched, url, stack.model)
            assert watched.problems == []

    with router_beside(stack, tiny_models.usual, tmp_path) as (port, _):
        asyncio.run(use(f"http://127.0.0.1:{port}"))


async def make_and_revoke_key(watched: Watched, url: str, model: str) -> None:
    page = watched.page
    await watched.open("tenants/-/keys")
    await page.click("text=New key…")
    await page.fill("dialog input:not([type])", "laptop")
    await page.click("dialog >> text=Make it")
    headers = {"authorization": f"Bearer {await page.inner_text('.secret')}"}
    body = {"model": model, "prompt": "One, two", "max_tokens": 2}

    async def ask() -> int:
        async with httpx.AsyncClient(timeout=patience(60)) as client:
            return (await client.post(f"{url}/v1/completions", json=body, headers=headers)).status_code

    assert await ask() == 200
    await page.get_by_label("Close").click()
    await page.get_by_label("Revoke laptop").click()
    await page.click("dialog >> text=Revoke >> nth=-1")
    await page.locator("tr", has_text="laptop").get_by_text("revoked").wait_for()
    assert await ask() == 401


@pytest.mark.skipif(not PICTURES, reason="INFLIGHT_SCREENSHOTS names no directory")
def test_pictures_are_taken_for_the_documentation(stack: RunningStack) -> None:
    async def take() -> None:
        async with chromium(stack.url) as browser:
            chat = await browser.new_page()
            await chat.open("playground")
            await chat.page.fill("#said", "Name three rivers of Europe and say one thing about each.")
            await chat.page.keyboard.press("Enter")
            await chat.page.locator(".facts .life").wait_for()
            await picture(chat, "playground")
            now = await browser.new_page(dark=True)
            await now.open("now")
            await now.page.wait_for_timeout(40_000)  # for plots to have something
            await picture(now, "now")
            await chat.open("objectives/what-if")
            await chat.page.get_by_label("Times as fast").fill("12")
            await chat.page.get_by_role("button", name="Compare").click()
            await chat.page.locator(".outcome .scroll").wait_for(timeout=LONG_MS)
            await picture(chat, "what-if")

    objective = {"first_token_s": 2.5, "inter_token_s": 0.25}
    httpx.put(
        f"{stack.url}/admin/objectives/{stack.model}/standard", json=objective, timeout=patience(30)
    ).raise_for_status()
    price = {"prompt": 150_000, "cached_prompt": 50_000, "completion": 600_000}
    httpx.put(f"{stack.url}/admin/prices/{stack.model}", json=price, timeout=patience(30)).raise_for_status()
    with traffic(stack.url, completion(stack.model, 24), per_s=0.7, most_in_flight=4):
        asyncio.run(take())
