"""The administration of objectives over HTTP, and who may use it."""

from __future__ import annotations

import asyncio

import pytest

from python_backend.wire.tiers import Tier
from router.control.objectives.recorder import ObjectiveRecorder
from router.core.tenant import Role, Scope
from tests.router.admin.test_tenants import EVERYTHING, Admin
from tests.router.control.releases.stored import keep_release
from tests.router.running import RunningRouter

PATH = "/admin/objectives"
M = f"{PATH}/m"


@pytest.fixture
async def admin(router: RunningRouter) -> Admin:
    await asyncio.to_thread(keep_release, router.parts.tenancy.store, "m", 1)
    return Admin(router)


async def test_an_objective_is_set_shown_beside_what_is_measured_and_deleted(
    router: RunningRouter, admin: Admin
) -> None:
    made = await admin("PUT", f"{M}/standard", {"first_token_s": 0.5, "inter_token_s": 0.05})
    assert made == {
        "object": "objective",
        "model": "m",
        "tier": "standard",
        "first_token_s": 0.5,
        "inter_token_s": 0.05,
        "end_to_end_s": None,
    }
    for _ in range(30):
        router.metrics.objectives.first_token("m", Tier.STANDARD, 0.25)
    await ObjectiveRecorder(router.parts.store, router.metrics.objectives).write()
    (found,) = (await admin("GET", PATH))["data"]
    assert found == await admin("GET", M)
    assert (found["model"], found["kind"], set(found["tiers"])) == (
        "m",
        "text",
        {"interactive", "standard", "batch"},
    )
    first = found["tiers"]["standard"]["first_token"]
    assert first["p95_s"] == pytest.approx(0.25, rel=0.03)
    assert (first["objective_s"], first["samples"], first["attained"]) == (0.5, 30, 1.0)
    assert first["verdict"] == "kept"
    assert found["tiers"]["standard"]["inter_token"]["verdict"] == "nothing measured"
    assert found["tiers"]["batch"]["first_token"]["verdict"] == "no objective"
    replaced = await admin("PUT", f"{M}/standard", {"first_token_s": 1})
    assert (replaced["first_token_s"], replaced["inter_token_s"]) == (1.0, None)
    await admin("PUT", f"{M}/batch", {"first_token_s": 60})
    assert await admin("DELETE", f"{M}/standard") == {"deleted": True}
    assert await admin("DELETE", M) == {"deleted": True}
    assert (await admin.ask("DELETE", M)).status_code == 404
    audited = [entry["action"] for entry in (await admin("GET", "/admin/audit"))["data"]]
    assert audited[:5] == ["objective.clear"] * 2 + ["objective.set"] * 3


REFUSED: list[tuple[str, str, object, int, str]] = [
    ("PUT", f"{M}/standard", {"first_token_s": 0}, 400, "first_token_s"),
    ("PUT", f"{M}/standard", {"first_token_s": 3601}, 400, "3600"),
    ("PUT", f"{M}/standard", {"first_token_ms": 5}, 400, "first_token_ms"),
    ("PUT", f"{M}/standard", {"end_to_end_s": 1}, 400, "m generates text"),
    ("PUT", f"{M}/fast", {"first_token_s": 1}, 404, "allowed: interactive, standard, batch"),
    ("PUT", f"{PATH}/x/standard", {"first_token_s": 1}, 404, "model x not found; there are: m"),
    ("GET", f"{PATH}/x", None, 404, "model x not found"),
    ("GET", f"{PATH}/M@1", None, 404, "model not found"),
    ("DELETE", f"{M}/batch", None, 404, "m has no objective for batch"),
]


async def test_an_objective_that_makes_no_sense_is_refused_with_the_allowed_values(admin: Admin) -> None:
    for method, path, body, status, words in REFUSED:
        response = await admin.ask(method, path, body)
        assert response.status_code == status, (path, response.text)
        assert words in response.json()["error"]["message"]


async def test_a_tenants_own_administrators_may_neither_see_nor_set_objectives(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    owner = Admin(router, await router.new_key(tenant, EVERYTHING, Role.OWNER))
    reading = frozenset({Scope.ADMIN_READ})
    reader = Admin(router, await router.new_key(tenant, reading, Role.OWNER, platform_admin=True))
    assert (await owner.ask("GET", PATH)).status_code == 403
    assert (await owner.ask("PUT", f"{M}/fast", {"first_token_s": 1})).status_code == 403
    assert (await reader.ask("GET", PATH)).status_code == 200
    assert (await reader.ask("DELETE", M)).status_code == 403
