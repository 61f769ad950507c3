"""The console in a real browser, in front of a whole router with a pipeline that says what tests want."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.control.releases.states import State
from router.core.tenant import Role, Scope
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.chromium import PAGES, PHONE, Browser, Watched, chromium
from tests.fakes.pipeline import words
from tests.router.control.releases.stored import keep_release
from tests.router.running import MODEL, RunningRouter, running_router

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

EVIL = '<img src=x onerror="window.hacked=1">'
MORE_EVIL = "\"'><script>window.hacked=1</script><svg onload=window.hacked=1>{{7*7}}"


@dataclass
class Console:
    router: RunningRouter
    browser: Browser
    admin_key: str
    member_key: str

    async def sign_in(self, key: str = "", **given: Any) -> Watched:
        watched = await self.browser.new_page(**given)
        await watched.page.goto(f"{self.router.url}/ui")
        await watched.page.fill("input[type=password]", key or self.admin_key)
        await watched.page.click("text=Sign in")
        await watched.page.wait_for_selector("nav")
        # That nobody was signed in before is told by a 401, which the browser notes too.
        watched.problems[:] = [each for each in watched.problems if "401" not in each]
        return watched


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console() -> AsyncIterator[Console]:
    async with running_router() as router, chromium(router.url) as browser:
        looking = asyncio.get_running_loop().create_task(router.parts.overview.run())
        tenant = await router.new_tenant(EVIL)
        admin = await router.new_key(tenant, frozenset(Scope), Role.OWNER, platform_admin=True)
        member = await router.new_key(tenant)
        await seed(router, tenant, admin)
        yield Console(router, browser, admin, member)
        looking.cancel()


async def seed(router: RunningRouter, tenant: str, key: str) -> None:
    """Whatever a tenant or an administrator may write has markup in it."""
    tenancy = router.parts.tenancy

    def write(admin: Administration) -> None:
        user = admin.create_user(SYSTEM, tenant, MORE_EVIL, Role.MEMBER)
        admin.create_key(SYSTEM, tenant, user.id, EVIL, frozenset({Scope.INFERENCE}))
        for version in (1, 2):
            keep_release(tenancy.store, MODEL, version, State.READY)

    await tenancy.administer(write)
    headers = {"authorization": f"Bearer {key}"}
    for what, body in (("promote", {"version": 1, "reason": EVIL}), ("canary", {"version": 2})):
        answer = await router.http.post(f"/admin/releases/{MODEL}/{what}", json=body, headers=headers)
        assert answer.is_success, answer.text
    answer = await router.http.post(
        f"/admin/releases/{MODEL}/rollback", json={"reason": MORE_EVIL}, headers=headers
    )
    assert answer.is_success
    await router.http.put(f"/admin/objectives/{MODEL}/standard", json={"first_token_s": 0.5}, headers=headers)
    router.pipeline.script = lambda call: words(EVIL, MORE_EVIL, *[" word"] * 20)
    body = {"model": MODEL, "messages": [{"role": "user", "content": EVIL}]}
    for _ in range(3):
        assert (await router.http.post("/v1/chat/completions", json=body, headers=headers)).is_success


async def test_before_signing_in_nothing_is_shown_and_a_wrong_key_is_told(console: Console) -> None:
    watched = await console.browser.new_page()
    page = watched.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{console.router.url}/ui#/tenants")
    await page.wait_for_selector("input[type=password]")
    assert await page.locator("nav").count() == 0
    told = [url for url in asked if "/ui" not in url]
    assert told == [f"{console.router.url}/admin/session"]
    await page.fill("input[type=password]", "ik-nobody")
    await page.click("text=Sign in")
    assert "not valid" in await page.inner_text(".problem")
    assert await watched.find_barriers() == []
    await page.context.close()


@pytest.mark.parametrize(("dark", "size"), [(False, None), (True, PHONE)], ids=["light desk", "dark phone"])
async def test_every_page_opens_without_a_complaint_and_keeps_nobody_out(
    console: Console, dark: bool, size: dict[str, int] | None
) -> None:
    watched = await console.sign_in(dark=dark, **({"size": size} if size else {}))
    page = watched.page
    for place in (*PAGES, *(f"tenants/-/{view}" for view in ("keys", "users", "limits", "audit", "prices"))):
        await watched.open(place)
        assert await watched.find_barriers() == [], place
        too_wide = "document.documentElement.scrollWidth > innerWidth"
        assert not await page.evaluate(too_wide), place
    assert await page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_the_theme_is_chosen_by_hand_and_kept(console: Console) -> None:
    watched = await console.sign_in()
    page = watched.page
    await page.get_by_label("Use the dark theme").click()
    await page.reload()
    await page.wait_for_selector("nav")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.context.close()


async def test_an_answer_streams_as_text_and_tells_its_life(console: Console) -> None:
    go_on = asyncio.Event()
    console.router.pipeline.script = lambda call: [
        *words(EVIL, " and")[:-1],
        go_on,
        *words(" more", MORE_EVIL),
    ]
    watched = await console.sign_in()
    page = watched.page
    await watched.open("playground")
    await page.select_option("label:has-text('Beside it') select", index=1)
    await page.fill("#said", EVIL)
    await page.keyboard.press("Enter")
    said = page.locator(".answer .said")
    await said.nth(1).filter(has_text="and").wait_for()
    assert not re.search("more", await said.first.inner_text()), "told piece by piece"
    go_on.set()
    await page.locator(".facts .life").nth(1).wait_for()
    assert EVIL in await said.first.inner_text()
    facts = await page.inner_text(".facts >> nth=0")
    assert re.search(r"answer\s*4", facts)
    assert "queue" in (await page.get_attribute(".life-bar >> nth=0", "aria-label") or "")
    await page.click("text=As curl / Python >> nth=0")
    code = await page.inner_text("dialog pre")
    assert code.startswith(f"curl -N {console.router.url}/v1/chat/completions")
    assert json.loads(code[code.index("{") : code.rindex("}") + 1])["messages"][-1]["content"] == EVIL
    await page.keyboard.press("Escape")
    await page.click(".facts a >> nth=0")
    await page.wait_for_selector(".waterfall")
    assert await watched.find_barriers() == []
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_a_key_is_made_shown_once_and_revoked(console: Console) -> None:
    watched = await console.sign_in()
    page = watched.page
    await watched.open("tenants/-/keys")
    await page.click("text=New key…")
    await page.fill("dialog input:not([type])", f"laptop {MORE_EVIL[:20]}")
    assert await watched.find_barriers() == []
    await page.click("dialog >> text=Make it")
    secret = await page.inner_text(".secret")
    headers = {"authorization": f"Bearer {secret}"}
    assert (await console.router.http.get("/v1/models", headers=headers)).status_code == 200
    await page.get_by_label("Close").click()
    await page.locator("tr", has_text="laptop").get_by_text("Revoke…").click()
    await page.click("dialog >> text=Revoke >> nth=-1")
    await page.locator("tr", has_text="laptop").get_by_text("revoked").wait_for()
    assert (await console.router.http.get("/v1/models", headers=headers)).status_code == 401
    assert watched.problems == []
    await page.context.close()


async def test_who_may_less_is_shown_less_and_signs_out(console: Console) -> None:
    watched = await console.sign_in(console.member_key)
    page = watched.page
    assert await page.locator("nav >> nth=0").inner_text() == "Playground\nTenants\nTest runs"
    await page.goto(f"{console.router.url}/ui#/releases")
    await page.wait_for_selector(".playground")
    await page.click("text=Sign out")
    await page.wait_for_selector("input[type=password]")
    assert await page.context.cookies() == []
    await page.context.close()


async def test_a_load_test_opens_in_the_browser_and_goes_nowhere(console: Console, tmp_path: Path) -> None:
    from loadtest.report.storage import to_json
    from loadtest.results import LoadRun, RequestResult, Slo

    answered = [
        RequestResult(
            "chat", 0.1 * at, EVIL, "standard", MODEL, "1", 200, first_token_s=0.2, ended_s=1.0,
            completion_tokens=8, gaps_s=[0.01] * 7,
        )
        for at in range(50)
    ]  # fmt: skip
    run = LoadRun(
        EVIL, "2026-11-16T12:00:00+00:00", 5.0, answered, slo={"standard": Slo(0.5)}, about={EVIL: EVIL}
    )
    file = tmp_path / "results.json"
    file.write_text(json.dumps(to_json(run)))
    watched = await console.sign_in()
    page = watched.page
    await watched.open("runs")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.set_input_files("input[type=file]", str(file))
    await page.wait_for_selector(".card .stats")
    assert "100 %" in await page.inner_text(".card .stats")
    await page.set_input_files("input[type=file]", {"name": "x.json", "mimeType": "", "buffer": b"{}"})
    assert "not a results.json" in await page.inner_text(".problem")
    assert asked == []
    assert await watched.find_barriers() == []
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()
