"""Keys that read metrics: who hands them out, and those that an earlier version made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from router.core.tenant import PLATFORM_SCOPES, Role, Scope
from router.store import migrate
from router.store.database import Store, sqlite_url
from router.tenants.administration import Administration
from router.tenants.keys import fingerprint
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import ensure_local
from tests.router.running import RunningRouter, running_router
from tests.router.tenants.values import PEPPER

READS = frozenset({Scope.ADMIN_READ})
SCRAPES = frozenset({Scope.METRICS_READ})


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def status(router: RunningRouter, key: str) -> int:
    return (await router.http.get("/metrics", headers=bearer(key))).status_code


async def test_a_tenants_owner_reads_no_metrics_and_hands_out_no_key_that_does(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    owner = await router.new_key(tenant, frozenset(Scope) - PLATFORM_SCOPES, Role.OWNER)
    boss = await router.new_key(await router.new_tenant("us"), frozenset(Scope), platform_admin=True)
    (user, *_) = (await router.http.get(f"/admin/tenants/{tenant}/users", headers=bearer(owner))).json()[
        "data"
    ]
    assert await status(router, owner) == 403
    asked = {"user_id": user["id"], "name": "prometheus", "scopes": ["metrics:read"]}
    path = f"/admin/tenants/{tenant}/keys"
    # Nor with a key that the platform gave it for metrics, which it may read by that itself.
    watching = await router.new_key(tenant, frozenset(Scope), Role.OWNER)
    assert await status(router, watching) == 200
    for key in (owner, watching):
        refused = await router.http.post(path, json=asked, headers=bearer(key))
        assert refused.status_code == 403
    made = await router.http.post(path, json=asked, headers=bearer(boss))
    assert made.status_code == 201, made.text
    assert await status(router, made.json()["key"]) == 200
    rotated = await router.http.post(f"{path}/{made.json()['id']}/rotate", json={}, headers=bearer(owner))
    assert rotated.status_code == 403


async def test_a_key_for_metrics_reads_nothing_else_of_any_tenant(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), SCRAPES, Role.VIEWER)
    for path in ("/admin/now", "/admin/usage", "/v1/usage", "/v1/models", "/admin/requests"):
        assert (await router.http.get(path, headers=bearer(key))).status_code == 403, path


@pytest.fixture
def old_store(tmp_path: Path) -> Iterator[Store]:
    """With the schema of 0.8.0."""
    store = Store(sqlite_url(tmp_path / "store.db"))
    store.prepare(fingerprint(PEPPER))
    ensure_local(store)
    yield store
    store.close()


def made_by_0_8_0(
    store: Store, tenant: str, name: str, scopes: frozenset[Scope], platform_admin: bool = False
) -> str:
    admin = Administration(store, PEPPER)
    tenants = {each.name: each.id for each in admin.list_organisations(SYSTEM)}
    place = tenants.get(tenant) or admin.create_organisation(SYSTEM, tenant).id
    user = admin.create_user(SYSTEM, place, name, Role.OWNER, platform_admin)
    return admin.create_key(SYSTEM, place, user.id, name, scopes)[1]


async def test_keys_that_scraped_go_on_after_an_upgrade_and_tenants_keys_do_not(
    old_store: Store, tmp_path: Path
) -> None:
    usual = frozenset(Scope) - PLATFORM_SCOPES
    expected = {
        made_by_0_8_0(old_store, "local", "deployment-metrics", READS): 200,
        made_by_0_8_0(old_store, "local", "deployment-admin", usual, platform_admin=True): 200,
        made_by_0_8_0(old_store, "local", "by-hand", usual): 403,
        made_by_0_8_0(old_store, "acme", "deployment-metrics", READS): 403,
        made_by_0_8_0(old_store, "acme", "owner", usual): 403,
    }
    migrate.downgrade(old_store.engine, "0010")
    old_store.close()
    async with running_router(data_dir=tmp_path) as router:
        assert {key: await status(router, key) for key in expected} == expected


def test_a_router_of_0_8_0_can_read_every_key_beside_this_version_and_after_a_downgrade(
    old_store: Store,
) -> None:
    """It knows none of the new scopes, and would read no keys at all if it met one."""
    made_by_0_8_0(old_store, "local", "prometheus", SCRAPES)
    made_by_0_8_0(old_store, "local", "root", frozenset(Scope), platform_admin=True)
    as_it_reads = sql.text("SELECT scopes FROM api_keys ORDER BY name")
    known = " ".join(sorted(scope.value for scope in frozenset(Scope) - PLATFORM_SCOPES))
    with old_store.read() as connection:
        assert connection.scalars(as_it_reads).all() == ["", known]
    migrate.downgrade(old_store.engine, "0010")
    with old_store.read() as connection:
        assert connection.scalars(as_it_reads).all() == ["admin:read", known]
