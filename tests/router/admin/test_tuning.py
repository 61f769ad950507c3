"""The administration of tuning over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from router.control.releases.states import State
from router.control.tuning.decisions import TuningDecision, keep_decision
from tests.router.admin.test_tenants import Admin
from tests.router.control.releases.stored import keep_release
from tests.router.running import RunningRouter


@pytest.fixture
async def admin(router: RunningRouter) -> Admin:
    store = router.parts.tenancy.store

    def keep() -> None:
        keep_release(store, "m", 1, State.READY)
        for action, sentence in (("raise", "up it goes"), ("hold", "as it is")):
            with store.begin() as connection:
                keep_decision(
                    TuningDecision(1.0, "m", 1, "m.1", None, action, sentence, {"delay_ms": 5.0}), connection
                )

    await asyncio.to_thread(keep)
    return Admin(router)


async def test_queue_delays_are_explained_paused_and_resumed(admin: Admin) -> None:
    found = await admin("GET", "/admin/tuning/m")
    assert (found["model"], found["has_objective"], found["paused_s"]) == ("m", False, None)
    assert found["standing"][0]["sentence"] == "as it is"
    assert found["changes"][0]["sentence"] == "up it goes"
    assert "m" in [each["model"] for each in (await admin("GET", "/admin/tuning"))["data"]]
    (change,) = (await admin("GET", "/admin/tuning/m/history?limit=5"))["data"]
    assert change["action"] == "raise"
    assert (await admin("POST", "/admin/tuning/m/pause"))["paused"] is True
    assert (await admin("GET", "/admin/tuning/m"))["paused_s"] > 0
    assert (await admin("POST", "/admin/tuning/m/resume"))["paused"] is False
    audited = [entry["action"] for entry in (await admin("GET", "/admin/audit"))["data"]]
    assert {"tuning.pause", "tuning.resume"} <= set(audited)


async def test_tuning_of_an_unknown_model_is_not_found(admin: Admin) -> None:
    for method, path in (("GET", "x"), ("GET", "x/history"), ("POST", "x/pause"), ("GET", "..x")):
        answer = await admin.ask(method, f"/admin/tuning/{path}")
        assert answer.status_code == 404
