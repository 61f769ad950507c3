"""Signing in with a browser: what a session may, and what nobody may do with one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

from router.core.tenant import Role, Scope
from router.request.identity import CSRF_HEADER, SESSION_COOKIE
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from router.tenants.sessions import LASTS_S
from tests.router.running import MODEL, QUESTION, RunningRouter

PATH = "/admin/session"
CHAT = {"model": MODEL, "messages": QUESTION}


@dataclass
class Signed:
    """A browser with its cookie, and what its page knows."""

    key: str
    tenant: str
    cookie: dict[str, str]
    token: dict[str, str]
    told: dict[str, object]
    set_cookie: str


async def signed_in(router: RunningRouter, platform_admin: bool = True, tenant_name: str = "acme") -> Signed:
    tenant = await router.new_tenant(tenant_name)
    key = await router.new_key(tenant, frozenset(Scope), Role.OWNER, platform_admin=platform_admin)
    answer = await router.http.post(PATH, json={"key": key})
    assert answer.status_code == 201
    router.http.cookies.clear()
    set_cookie = answer.headers["set-cookie"]
    told = answer.json()
    cookie = {"cookie": set_cookie.partition(";")[0]}
    return Signed(key, tenant, cookie, {CSRF_HEADER: told["csrf_token"]}, told, set_cookie)


async def test_a_key_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_can_use(
    router: RunningRouter,
) -> None:
    signed = await signed_in(router)
    assert signed.set_cookie.startswith(f"{SESSION_COOKIE}=")
    assert "HttpOnly; SameSite=Strict" in signed.set_cookie
    assert "Secure" not in signed.set_cookie
    assert signed.key not in signed.set_cookie
    host = f"127.0.0.1:{router.port}"
    over_tls = await router.http.post(PATH, json={"key": signed.key}, headers={"origin": f"https://{host}"})
    assert over_tls.headers["set-cookie"].endswith("; Secure")


async def test_a_session_does_what_its_key_may_and_changes_something_only_with_its_token(
    router: RunningRouter,
) -> None:
    signed = await signed_in(router)
    assert (await router.http.get("/admin/tenants", headers=signed.cookie)).status_code == 200
    refused = await router.http.post("/admin/tenants", json={"name": "mine"}, headers=signed.cookie)
    assert refused.status_code == 403
    assert CSRF_HEADER in refused.json()["error"]["message"]
    wrong = {**signed.cookie, CSRF_HEADER: "0" * 64}
    assert (await router.http.post("/v1/chat/completions", json=CHAT, headers=wrong)).status_code == 403
    headers = {**signed.cookie, **signed.token}
    assert (
        await router.http.post("/admin/tenants", json={"name": "mine"}, headers=headers)
    ).status_code == 201
    assert (await router.http.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200


async def test_a_session_tells_who_it_is_and_what_the_role_allows(router: RunningRouter) -> None:
    signed = await signed_in(router, platform_admin=False)
    told = (await router.http.get(PATH, headers=signed.cookie)).json()
    assert told == signed.told
    assert told["user"]["role"] == "owner"
    assert "key.write" in told["may"]
    assert not {"now.read", "release.read", "organisation.list"} & set(told["may"])
    assert (await router.http.get("/admin/now", headers=signed.cookie)).status_code == 403


async def test_without_a_session_or_a_key_nothing_is_told(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    cookies = ("", f"{SESSION_COOKIE}=x", f"{SESSION_COOKIE}=e30=.00", f'{SESSION_COOKIE}="', "a=b; c")
    paths = (PATH, "/admin/now", "/admin/now/stream", "/admin/requests", "/v1/requests/req-1")
    for path, cookie in product(paths, cookies):
        answer = await router.http.get(path, headers={"cookie": cookie} if cookie else {})
        assert answer.status_code == 401
        assert answer.json().keys() == {"error"}


async def test_a_cookie_that_was_changed_is_nobodys(router: RunningRouter) -> None:
    signed = await signed_in(router)
    value = signed.cookie["cookie"]
    for at in (len(SESSION_COOKIE) + 3, len(value) // 2, len(value) - 1):
        other = "A" if value[at] != "A" else "B"
        forged = value[:at] + other + value[at + 1 :]
        assert (await router.http.get(PATH, headers={"cookie": forged})).status_code == 401


async def test_a_page_of_another_origin_has_no_session_even_on_the_same_host(router: RunningRouter) -> None:
    signed = await signed_in(router)
    for site in ("cross-site", "same-site"):
        headers = {**signed.cookie, "sec-fetch-site": site}
        assert (await router.http.get("/admin/tenants", headers=headers)).status_code == 401


async def test_a_session_ends_when_its_user_signs_out(router: RunningRouter) -> None:
    signed = await signed_in(router)
    assert (await router.http.delete(PATH, headers=signed.cookie)).status_code == 403, (
        "not by a forged request"
    )
    ended = await router.http.delete(PATH, headers={**signed.cookie, **signed.token})
    assert "Max-Age=0" in ended.headers["set-cookie"]
    assert (await router.http.get(PATH, headers=signed.cookie)).status_code == 401


async def test_a_session_ends_with_its_key_and_with_its_secret(router: RunningRouter) -> None:
    signed = await signed_in(router)
    rotated = await signed_in(router, tenant_name="other")
    tenancy = router.parts.tenancy

    def end(admin: Administration) -> None:
        for key in admin.list_keys(SYSTEM, signed.tenant):
            admin.revoke_key(SYSTEM, signed.tenant, key.id)
        for key in admin.list_keys(SYSTEM, rotated.tenant):
            admin.rotate_key(SYSTEM, rotated.tenant, key.id, 0.0)

    await tenancy.administer(end)
    for each in (signed, rotated):
        assert (await router.http.get(PATH, headers=each.cookie)).status_code == 401


async def test_a_session_ends_by_itself(router: RunningRouter) -> None:
    signed = await signed_in(router)
    sessions, token = router.parts.tenancy.sessions, signed.cookie["cookie"].partition("=")[2]
    assert sessions.find(token, time.time() + LASTS_S - 60) is not None
    assert sessions.find(token, time.time() + LASTS_S + 1) is None


async def test_without_keys_everybody_on_this_machine_is_signed_in(router: RunningRouter) -> None:
    told = (await router.http.get(PATH)).json()
    assert told["tenant"]["name"] == "local"
    assert told["csrf_token"] is None
    assert "release.write" in told["may"]


async def test_a_wrong_body_is_told_by_field(router: RunningRouter) -> None:
    for body in ({}, {"key": 1}, {"key": "x", "more": 1}):
        assert (await router.http.post(PATH, json=body)).status_code == 400


async def test_an_unknown_key_signs_nobody_in(router: RunningRouter) -> None:
    await router.new_key(await router.new_tenant())
    answer = await router.http.post(PATH, json={"key": "ik-00000000-" + "0" * 40})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
