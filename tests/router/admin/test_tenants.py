"""The administration over HTTP, and who may use it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import httpx
import pytest

from router.core.tenant import Role, Scope
from router.tenants.rbac import SYSTEM
from tests.router.running import MODEL, RunningRouter

EVERYTHING = frozenset(Scope)


class Admin:
    """An administrator's client: every call must succeed."""

    def __init__(self, router: RunningRouter, key: str = "") -> None:
        self._router = router
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self._router.http.request(method, path, json=body, headers=self._headers)

    async def __call__(self, method: str, path: str, body: object = None) -> Any:
        response = await self.ask(method, path, body)
        assert response.is_success, response.text
        return response.json()


async def test_a_tenant_is_created_changed_and_deleted_over_the_api(router: RunningRouter) -> None:
    admin = Admin(router)
    tenant = f"/admin/tenants/{(await admin('POST', '/admin/tenants', {'name': 'acme'}))['id']}"
    boss = await admin("POST", f"{tenant}/users", {"name": "ann", "role": "owner", "platform_admin": True})
    asked = {"user_id": boss["id"], "name": "laptop", "scopes": sorted(EVERYTHING)}
    made = await admin("POST", f"{tenant}/keys", asked)
    admin = Admin(router, made["key"])  # there is a key now, so one is needed
    assert made["key"].startswith("ik-")
    (kept,) = (await admin("GET", f"{tenant}/keys"))["data"]
    assert made["key"] not in str(kept)
    assert "digest" not in kept
    limits = {"requests_per_min": 600, "monthly_budget_microdollars": 5_000_000, "weight": 2}
    assert (await admin("PUT", f"{tenant}/limits", limits))["requests_per_min"] == 600
    await admin("PUT", f"{tenant}/keys/{kept['id']}/limits", {"tokens_per_min": 10_000})
    listed = await admin("GET", f"{tenant}/limits")
    assert sorted(each["weight"] or 0 for each in listed.values()) == [0, 2]
    await admin("PUT", f"/admin/prices/{MODEL}", {"prompt": 1_000_000, "completion": 2_000_000})
    assert (await admin("GET", "/admin/prices"))["data"][0]["cached_prompt"] == 1_000_000
    question = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    await admin("POST", "/v1/chat/completions", question)
    await router.parts.tenancy.administer(lambda _: router.parts.tenancy.deliver())
    (used,) = (await admin("GET", "/v1/usage?by=model"))["data"]
    assert (used["model"], used["prompt_tokens"], used["completion_tokens"]) == (MODEL, 7, 2)
    assert used["cost_microdollars"] == 7 + 2 * 2
    assert (await admin("GET", f"{tenant}/usage"))["data"][0]["requests"] == 1
    assert (await admin("GET", "/admin/usage?by=organisation"))["data"][0]["requests"] == 1
    rotated = await admin("POST", f"{tenant}/keys/{kept['id']}/rotate", {"grace_s": 60})
    assert rotated["key"] != made["key"]
    admin = Admin(router, rotated["key"])
    exported = await admin("GET", f"{tenant}/export")
    assert exported["organisation"]["name"] == "acme"
    actions = [entry["action"] for entry in (await admin("GET", "/admin/audit"))["data"]]
    assert {"organisation.create", "key.write", "key.rotate", "price.write"} <= set(actions)
    await admin("DELETE", tenant)
    assert (await admin.ask("GET", "/admin/tenants")).status_code == 401  # its key went with it


async def test_taken_names_unknown_objects_and_bad_values_are_refused(router: RunningRouter) -> None:
    admin = Admin(router)
    await admin("POST", "/admin/tenants", {"name": "acme"})
    wrong = [
        ("POST", "/admin/tenants", {"name": "acme"}, 409),
        ("POST", "/admin/tenants", {"name": ""}, 400),
        ("POST", "/admin/tenants", {"nam": "x"}, 400),
        ("GET", "/admin/tenants/nobody/export", None, 404),
        ("DELETE", "/admin/tenants/local/keys/nothing", None, 404),
        ("POST", "/admin/tenants/local/users", {"name": "x", "role": "king"}, 400),
        ("POST", "/admin/tenants/local/keys", {"user_id": "nobody", "name": "x"}, 404),
        ("PUT", "/admin/prices/no name", {"prompt": 1, "completion": 1}, 400),
        ("PUT", "/admin/prices/x", {"prompt": -1, "completion": 1}, 400),
        ("PUT", "/admin/prices/x", {"prompt": 10**30, "completion": 1}, 400),
        ("GET", "/v1/usage?by=colour", None, 400),
        ("GET", "/v1/usage?since=yesterday", None, 400),
        ("GET", "/v1/usage?until=2026-02-30", None, 400),
        ("GET", "/admin/tenants/nobody/users", None, 404),
        ("GET", "/admin/audit?tenant=%00", None, 400),
        ("POST", "/admin/tenants/local/keys", {"user_id": "\0", "name": "x"}, 400),
        ("POST", "/admin/tenants/local/keys", {"user_id": "x", "name": "x", "expires_at": 1}, 400),
        ("GET", "/admin/audit?limit=0", None, 400),
        ("PUT", "/admin/tenants/local/limits", {"weight": 0}, 400),
        ("PUT", "/admin/tenants/local/limits", {"slot_percent": 101}, 400),
        ("PUT", "/admin/tenants/local/keys/nothing/limits", {"weight": 2}, 400),
    ]
    for method, path, body, status in wrong:
        response = await admin.ask(method, path, body)
        assert response.status_code == status, (method, path, response.text)
        assert response.json()["error"]["message"]


async def admin_routes(router: RunningRouter) -> list[tuple[str, str]]:
    paths = (await router.http.get("/openapi.json")).json()["paths"]
    return [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in paths.items()
        if path.startswith("/admin")
        for method in methods
    ]


@pytest.mark.parametrize("scopes", [frozenset({Scope.INFERENCE}), EVERYTHING], ids=["usual", "every scope"])
async def test_a_tenants_key_is_refused_on_every_route_of_the_administration(
    router: RunningRouter, scopes: frozenset[Scope]
) -> None:
    """T36. The routes name another tenant: neither all scopes nor the highest role in one's own help."""
    other = await router.new_tenant("other")
    key = await router.new_key(await router.new_tenant(), scopes, Role.OWNER)
    bodies: dict[str, object] = {
        "users": {"name": "x"},
        "keys": {"user_id": "x", "name": "x"},
        "tenants": {"name": "x"},
        "user": {"role": "owner"},
        "split": {"arms": [{"version": 1, "weight": 1}]},
        "canary": {"version": 1},
    }
    routes = await admin_routes(router)
    assert len(routes) >= 31
    for method, path in routes:
        if path == "/admin/session":
            continue  # it asks for a key of its own, and opens nothing that the key does not
        if (method, path) == ("GET", "/admin/prices") and scopes == EVERYTHING:
            continue  # what tokens cost is for every tenant to see
        if path.startswith("/admin/requests") and scopes == EVERYTHING:
            continue  # of its own alone: the next test
        default = {"prompt": 1, "completion": 1} if "prices" in path else {}
        body = bodies.get(path.rpartition("/")[2], default) if method in ("POST", "PUT", "PATCH") else None
        place = path.replace("/tenants/tenant", f"/tenants/{other}")
        response = await Admin(router, key).ask(method, place, body)
        assert response.status_code == 403, (method, path, response.text)
        assert response.json()["error"]["code"] == "permission_denied"


async def test_a_tenants_administrator_sees_its_own_recent_requests_and_no_others(
    router: RunningRouter,
) -> None:
    mine, other = await router.new_tenant(), await router.new_tenant("other")
    key = await router.new_key(mine, EVERYTHING, Role.OWNER)
    others_key = await router.new_key(other, EVERYTHING, Role.OWNER)
    for each in (key, others_key):
        await Admin(router, each)("POST", "/v1/completions", {"model": MODEL, "prompt": "hi"})
    listed = (await Admin(router, key).ask("GET", "/admin/requests", None)).json()["data"]
    assert {row["tenant"] for row in listed} == {mine}
    assert (await Admin(router, key).ask("GET", f"/admin/requests?tenant={other}", None)).status_code == 403
    (others,) = (await Admin(router, others_key).ask("GET", "/admin/requests?limit=1", None)).json()["data"]
    assert (await Admin(router, key).ask("GET", f"/admin/requests/{others['id']}", None)).status_code == 403


async def test_reads_do_not_wait_for_the_stores_thread(router: RunningRouter) -> None:
    """Nor does that thread, by which keys and leases come, wait for somebody who looks."""
    may_go_on = threading.Event()
    router.parts.tenancy.worker.submit(may_go_on.wait)
    try:
        assert (await Admin(router)("GET", "/v1/usage"))["data"] == []
        assert (await Admin(router).ask("HEAD", "/v1/usage?by=colour")).status_code == 400
    finally:
        may_go_on.set()


async def test_the_last_owner_stays(router: RunningRouter) -> None:
    admin = Admin(router)
    tenant = f"/admin/tenants/{(await admin('POST', '/admin/tenants', {'name': 'acme'}))['id']}"
    ann = await admin("POST", f"{tenant}/users", {"name": "ann", "role": "owner"})
    for method, body in (("DELETE", None), ("PATCH", {"role": "member"})):
        refusal = await admin.ask(method, f"{tenant}/users/{ann['id']}", body)
        assert refusal.status_code == 400
        assert "ann is the last owner" in refusal.json()["error"]["message"]
    await admin("POST", f"{tenant}/users", {"name": "bob", "role": "owner"})
    await admin("DELETE", f"{tenant}/users/{ann['id']}")
    assert [user["name"] for user in (await admin("GET", f"{tenant}/users"))["data"]] == ["bob"]


async def test_a_tenant_sees_no_usage_but_its_own(router: RunningRouter) -> None:
    """T37, usage."""
    mine, other = await router.new_tenant("mine"), await router.new_tenant("other")
    key = await router.new_key(mine)
    question = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    await Admin(router, await router.new_key(other))("POST", "/v1/chat/completions", question)
    await router.parts.tenancy.administer(lambda _: router.parts.tenancy.deliver())
    assert (await Admin(router, key)("GET", "/v1/usage"))["data"] == []
    assert (await Admin(router, key).ask("GET", f"/admin/tenants/{other}/usage")).status_code == 403


async def test_an_owner_cannot_delete_the_tenant_with_its_bill(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    owner = Admin(router, await router.new_key(tenant, EVERYTHING, Role.OWNER))
    question = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    await owner("POST", "/v1/chat/completions", question)
    assert (await owner.ask("DELETE", f"/admin/tenants/{tenant}")).status_code == 403
    platform = Admin(
        router,
        await router.new_key(await router.new_tenant("us"), EVERYTHING, Role.OWNER, platform_admin=True),
    )
    await platform("DELETE", f"/admin/tenants/{tenant}")
    await router.parts.tenancy.administer(lambda _: router.parts.tenancy.deliver())
    bills = (await platform("GET", "/admin/usage?by=organisation"))["data"]
    assert [(each["organisation"], each["requests"]) for each in bills] == [(tenant, 1)]
    trail = (await platform("GET", f"/admin/audit?tenant={tenant}"))["data"]
    assert [entry["allowed"] for entry in trail if entry["action"] == "organisation.delete"] == [True, False]
    assert {entry["address"] for entry in trail if entry["key_id"]} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"scopes": ["files"]}, "it lacks the scopes files"),
        ({"models": ["another"]}, f"it is limited to {MODEL}"),
    ],
)
async def test_a_key_makes_no_stronger_key(router: RunningRouter, asked: dict[str, object], why: str) -> None:
    tenant = await router.new_tenant()
    scopes = frozenset({Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN_WRITE})
    owner = Admin(router, await router.new_key(tenant, scopes, Role.OWNER, models=frozenset({MODEL})))
    (user,) = (await owner("GET", f"/admin/tenants/{tenant}/users"))["data"]
    body = {"user_id": user["id"], "name": "mine"}
    refused = await owner.ask("POST", f"/admin/tenants/{tenant}/keys", {**body, **asked})
    assert refused.status_code == 403
    assert why in refused.json()["error"]["message"]
    made = await owner("POST", f"/admin/tenants/{tenant}/keys", body)
    assert (made["scopes"], made["models"]) == (["inference"], [MODEL])


async def test_refused_looks_write_no_audit_row_each(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), EVERYTHING, Role.OWNER)
    for number in range(60):
        path = "/admin/releases" if number % 2 else f"/admin/tenants/t{number}/users"
        assert (await Admin(router, key).ask("GET", path)).status_code == 403
    refused = [
        entry
        for entry in await router.parts.tenancy.administer(lambda admin: admin.audit_log(SYSTEM, None))
        if not entry.allowed
    ]
    assert Counter(entry.action for entry in refused) == {"release.read": 10, "user.read": 10}
