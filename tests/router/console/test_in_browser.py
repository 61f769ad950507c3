"""The console in a real browser, in front of a whole router with a pipeline that says what tests want."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.control.releases.additions import Additions
from router.control.releases.commands import ReleaseCommands
from router.control.releases.states import State
from router.core.generation import GenerationCall
from router.core.tenant import Role, Scope
from router.telemetry.prompt_log import PromptLog
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from tests.chromium import DESK, PAGES, PHONE, Browser, Watched, chromium
from tests.fakes.pipeline import Step, words
from tests.router.control.releases.stored import keep_release, manifest_of
from tests.router.running import MODEL, RunningRouter, running_router

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

EVIL = '<img src=x onerror="window.hacked=1">'
MORE_EVIL = "\"'><script>window.hacked=1</script><svg onload=window.hacked=1>{{7*7}}"

EVIL_NAME = "<img src=x onerror=window.hacked=1>"
# In place of the launcher: says what a hostile model might have it say.
ADDING = f"import sys, time; print({EVIL!r}, flush=True); time.sleep(0.5); print('tiny@3 is added.')"

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@dataclass
class Console:
    router: RunningRouter
    browser: Browser
    admin_key: str
    member_key: str
    tenant: str

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
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "models" / EVIL_NAME).mkdir(parents=True)
    (folder / "models" / EVIL_NAME / "config.json").write_text("{}")
    additions = Additions([sys.executable, "-S", "-c", ADDING], [str(folder / "models")])
    log = PromptLog(folder / "log", 7)
    log.start()
    async with (
        running_router(prompt_log=log, additions=additions) as router,
        chromium(router.url) as browser,
    ):
        looking = asyncio.get_running_loop().create_task(router.parts.overview.run())
        tenant = await router.new_tenant(EVIL)
        admin = await router.new_key(tenant, frozenset(Scope), Role.OWNER, platform_admin=True)
        member = await router.new_key(tenant)
        await seed(router, tenant, admin)
        yield Console(router, browser, admin, member, tenant)
        looking.cancel()
        await additions.close()
    await asyncio.to_thread(log.stop)


async def seed(router: RunningRouter, tenant: str, key: str) -> None:
    """Whatever a tenant or an administrator may write has markup in it."""
    tenancy = router.parts.tenancy

    def write(admin: Administration) -> None:
        user = admin.create_user(SYSTEM, tenant, MORE_EVIL, Role.MEMBER)
        admin.create_key(SYSTEM, tenant, user.id, EVIL, frozenset({Scope.INFERENCE}))
        for version in (1, 2):
            keep_release(tenancy.store, MODEL, version, State.READY)
        ReleaseCommands(tenancy.store, SYSTEM).add(manifest_of(MODEL, 4), MORE_EVIL)

    await tenancy.administer(write)
    headers = {"authorization": f"Bearer {key}"}
    acts: dict[str, Any] = {
        "promote": {"version": 1, "reason": EVIL},
        "canary": {"version": 2},
        "rollback": {"reason": MORE_EVIL},
    }
    for what, body in acts.items():
        answer = await router.http.post(f"/admin/releases/{MODEL}/{what}", json=body, headers=headers)
        assert answer.is_success, answer.text
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


@pytest.mark.parametrize(("dark", "size"), [(False, DESK), (True, PHONE)], ids=["light desk", "dark phone"])
async def test_every_page_opens_without_a_complaint_and_keeps_nobody_out(
    console: Console, dark: bool, size: dict[str, int]
) -> None:
    watched = await console.sign_in(dark=dark, size=size)
    page = watched.page
    views = ("all", "keys", "users", "limits", "audit", "prices")
    for place in (*PAGES, "objectives/what-if", *(f"tenants/-/{view}" for view in views)):
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


async def test_what_a_tool_found_is_given_back_and_the_chat_goes_on_with_it(console: Console) -> None:
    calls = [f'<tool_call>{{"name": "look", "arguments": {{"at": "{place}"}}}}</tool_call>' for place in "ab"]
    asked: list[str] = []

    def script(call: GenerationCall) -> list[Step]:
        asked.append(call.prompt)
        return words(*calls) if len(asked) == 1 else words(f"{MORE_EVIL} it is.")

    console.router.pipeline.script = script
    watched = await console.sign_in()
    page = watched.page
    await watched.open("playground")
    await page.click("summary:has-text('Tools')")
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    await page.get_by_label("Functions it may call").fill(json.dumps([look]))
    await page.fill("#said", "What is there?")
    await page.keyboard.press("Enter")
    found = page.get_by_label("What look found")
    await found.nth(1).wait_for()
    assert await watched.find_barriers() == []
    back = page.get_by_text("Send the results")
    await found.nth(0).fill(EVIL)
    assert await back.is_disabled(), "until each call has its result"
    await found.nth(1).fill("a lake")
    await back.click()
    await page.locator(".said", has_text="it is.").wait_for()
    told = [f"<tool_response>\n{each}\n</tool_response>" for each in (EVIL, "a lake")]
    assert [each for each in told if each not in asked[-1]] == []
    assert await found.count() == 0, "only the last answer's calls wait for results"
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_an_image_is_picked_shown_and_sent_where_the_model_sees(console: Console) -> None:
    async def see(route: Any) -> None:
        """No runtime here sees: the list of models says that this one does, and its answer is made up."""
        told = await (await route.fetch()).json()
        for each in told["data"]:
            each["capabilities"]["vision"] = True
        await route.fulfill(json=told)

    async def answer(route: Any) -> None:
        await route.fulfill(content_type="text/event-stream", body="data: [DONE]\n\n")

    watched = await console.sign_in()
    page = watched.page
    await page.route("**/v1/models", see)
    await page.route("**/v1/chat/completions", answer)
    await page.reload()
    await watched.open("playground")
    image = {"name": "dot.png", "mimeType": "image/png", "buffer": DOT}
    pick, drop = page.locator(".composer input[type=file]"), page.get_by_label("Do not send the image")
    await pick.set_input_files(image)
    await drop.click()
    await drop.wait_for(state="detached")
    await pick.set_input_files([])
    await pick.set_input_files(image)
    await drop.wait_for()
    assert await watched.find_barriers() == []
    await page.fill("#said", "What is it?")
    async with page.expect_response("**/v1/chat/completions") as answered:
        await page.keyboard.press("Enter")
    await page.locator(".asked img").wait_for()
    sent = (await answered.value).request.post_data_json
    url = f"data:image/png;base64,{base64.b64encode(DOT).decode()}"
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    assert sent["messages"] == [{"role": "user", "content": parts}]
    await page.wait_for_function("document.querySelector('.asked img').naturalWidth === 1")
    assert watched.problems == []
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


async def test_a_release_is_added_in_the_browser_from_a_place_that_the_server_knows(console: Console) -> None:
    watched = await console.sign_in()
    page = watched.page
    await watched.open("releases")
    await page.click("text=Add a release…")
    await page.locator("dialog select").wait_for()
    assert f"models/{EVIL_NAME}" in await page.inner_text("dialog select")
    assert await watched.find_barriers() == []
    await page.fill("dialog textarea", "no value")
    await page.click("dialog >> text=Add it")
    assert "no value: expected NAME=VALUE" in await page.inner_text("dialog .problem")
    await page.fill("dialog textarea", "inflight_precision=int4")
    await page.click("dialog >> text=Add it")
    await page.locator(".jobs li", has_text="tiny@3").get_by_text("added", exact=True).wait_for()
    assert await watched.find_barriers() == []
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_two_policies_are_compared_on_a_recorded_hour_and_on_a_file(
    console: Console, tmp_path: Path
) -> None:
    await console.router.usage(console.tenant)
    watched = await console.sign_in()
    page = watched.page
    await watched.open("objectives")
    await page.get_by_label("Set the objective of standard").first.click()
    await page.fill("dialog input >> nth=0", "250")
    await page.click("dialog >> text=What if?")
    compare = page.get_by_role("button", name="Compare")
    await compare.wait_for()
    assert "requests" in await page.inner_text("label:has-text('Requests of') select >> nth=0")
    wanted = page.get_by_label("standard, first token")
    assert [await wanted.nth(at).input_value() for at in range(2)] == ["", "250"]
    await compare.click()
    await page.locator(".outcome").wait_for()
    assert "Goodput" in await page.inner_text(".outcome table")
    assert await watched.find_barriers() == []
    file = tmp_path / f"{EVIL_NAME}.csv"
    rows = "".join(f"{0.02 * at},300,80,{EVIL_NAME}\n" for at in range(200))
    file.write_text(f"arrival_s,prompt_tokens,output_tokens,tenant\n{rows}")
    await page.select_option("label:has-text('Requests of') select", "file")
    await page.set_input_files("input[type=file]", str(file))
    await page.select_option("label:has-text('Policy') select >> nth=1", "first-come")
    await compare.click()
    await page.locator(".outcome", has_text="200 requests").wait_for()
    async with page.expect_download() as saved:
        await page.click(".outcome >> text=CSV")
    text = await text_of(saved)
    assert text.startswith("figure,A: objectives,B: first-come\r\n")
    await page.set_input_files("input[type=file]", {"name": "x.csv", "mimeType": "", "buffer": b"a,b\n1,2\n"})
    await compare.click()
    assert "no column for 'at'" in await page.inner_text(".problem")
    # The browser notes that this was refused.
    assert [each for each in watched.problems if "400" not in each] == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_stored_content_is_shown_as_text_to_who_may_read_it(console: Console) -> None:
    headers = {"authorization": f"Bearer {console.admin_key}"}
    (found,) = (await console.router.http.get("/admin/requests?limit=1&status=200", headers=headers)).json()[
        "data"
    ]
    watched = await console.sign_in()
    page = watched.page
    await watched.open(f"requests/{found['id']}")
    assert EVIL not in await page.inner_text("main")
    await page.locator(".card", has_text="Stored content").get_by_text("Show it").click()
    await page.locator(".card pre.code").first.wait_for()
    assert "<user>" in await page.inner_text(".card pre.code >> nth=0")
    assert await watched.find_barriers() == []
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def test_a_run_of_faults_opens_with_zoom_hover_and_csv(console: Console, tmp_path: Path) -> None:
    from loadtest.chaos.storage import to_json
    from tests.loadtest.chaos.test_page import results

    made = results()
    made[2].victim, made[3].violations = EVIL, [MORE_EVIL]
    file = tmp_path / "chaos.json"
    file.write_text(json.dumps(to_json(EVIL, made, {EVIL: EVIL}, "here")))
    watched = await console.sign_in()
    page = watched.page
    await watched.open("runs")
    await page.set_input_files("input[type=file]", str(file))
    await page.locator(".card", has_text="Injected faults").wait_for()
    shown = await page.inner_text(".card .stats")
    assert re.search(r"Faults\s*25", shown)
    assert re.search(r"Violations\s*1", shown)
    plot = page.locator(".u-over").first
    await plot.scroll_into_view_if_needed()
    assert await told_at(watched, 0.01) < 10
    box = await plot.bounding_box()
    await page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 40, steps=5)
    await page.mouse.up()
    assert await told_at(watched, 0.02) > 60, "zoomed in on its second half"
    async with page.expect_download() as saved:
        await page.click(".card-head >> text=CSV")
    assert len((await text_of(saved)).splitlines()) >= 76
    assert await watched.find_barriers() == []
    assert watched.problems == []
    assert await page.evaluate("window.hacked") is None
    await page.context.close()


async def text_of(saved: Any) -> str:
    """What was downloaded."""
    file = Path(await (await saved.value).path())
    return await asyncio.to_thread(lambda: file.read_bytes().decode())


async def told_at(watched: Watched, part: float) -> float:
    """The moment, in seconds, that the legend of the first plot tells where the mouse is."""
    page = watched.page
    box = await page.locator(".u-over").first.bounding_box()
    await page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
    told = page.locator(".u-legend .u-value").first
    await told.filter(has_text=re.compile(r"\d")).wait_for()
    number, unit = (await told.inner_text()).split()
    return float(number) * (60 if unit == "min" else 1)


async def test_everything_is_reached_with_the_keyboard_alone(console: Console) -> None:
    watched = await console.sign_in()
    page = watched.page
    await watched.open("requests")
    await page.locator("td a").first.wait_for()
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.matches('td a')"):
            break
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where one is can be seen"
    await page.keyboard.press("Enter")
    await page.locator("h1", has_text=re.compile("^Request$")).wait_for()
    await watched.open("tenants/-/keys")
    await page.focus("text=New key…")
    await page.keyboard.press("Enter")
    await page.locator("dialog[open]").wait_for()
    assert await page.evaluate("document.activeElement.closest('dialog') !== null")
    await page.keyboard.press("Escape")
    await page.locator("dialog").wait_for(state="detached")
    assert watched.problems == []
    await page.context.close()
