"""The administration of releases over HTTP, and who may use it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.admin import releases
from router.control.releases.states import State
from router.core.tenant import Role, Scope
from router.telemetry.prompt_log import PromptLog
from tests.router.admin.test_tenants import EVERYTHING, Admin
from tests.router.control.releases.stored import keep_release, move_release
from tests.router.running import RunningRouter, running_router

PATH = "/admin/releases"
M = f"{PATH}/m"
ALL_TO_1 = {"arms": [{"version": 1, "weight": 1}]}


@pytest.fixture
async def admin(router: RunningRouter) -> Admin:
    return await with_releases(router)


async def with_releases(router: RunningRouter) -> Admin:
    """There are m@1, which gets everything, and m@2, both ready, and m@3, which was never loaded."""
    store = router.parts.tenancy.store

    def keep() -> None:
        for version, state in ((1, State.READY), (2, State.READY), (3, State.ADDED)):
            keep_release(store, "m", version, state)

    await asyncio.to_thread(keep)
    made = Admin(router)
    await made("POST", f"{M}/promote", {"version": 1})
    return made


async def roles(admin: Admin) -> list[tuple[str, float]]:
    return [(each["role"], each["share"]) for each in (await admin("GET", M))["releases"]]


async def test_a_release_is_canaried_promoted_and_rolled_back(admin: Admin) -> None:
    begun = await admin("POST", f"{M}/canary", {"version": 2, "weights": [0.1, 1], "min_requests": 5})
    assert (begun["stable"], begun["canary"], begun["state"]) == (1, 2, "running")
    assert (begun["plan"]["weights"], begun["plan"]["min_requests"]) == ([0.1, 1.0], 5)
    assert await roles(admin) == [("stable", 1.0), ("canary", 0.0), ("", 0.0)]
    assert (await admin("POST", f"{M}/pause"))["rollout"]["state"] == "paused"
    assert (await admin("POST", f"{M}/resume"))["rollout"]["state"] == "running"
    promoted = await admin("POST", f"{M}/promote", {"reason": "it is good"})
    assert promoted["split"]["arms"] == [{"version": 2, "weight": 1.0}]
    assert promoted["rollout"] is None
    assert await roles(admin) == [("standby", 0.0), ("stable", 1.0), ("", 0.0)]
    back = await admin("POST", f"{M}/rollback", {})
    assert (back["split"]["stable"], back["split"]["standby"]) == (1, 2)
    (rollout,) = (await admin("GET", f"{M}/rollouts"))["data"]
    assert (rollout["state"], rollout["reason"]) == ("promoted", "it is good")
    events = (await admin("GET", f"{M}/events"))["data"]
    assert [each["what"] for each in events[:5]] == ["rollback", "promote", "resume", "pause", "canary"]
    assert len((await admin("GET", f"{M}/events?limit=2"))["data"]) == 2
    audited = [(entry["action"], entry["target"]) for entry in (await admin("GET", "/admin/audit"))["data"]]
    assert ("release.canary", "m@2") in audited


async def test_a_rollout_is_ended_with_its_stable_release(admin: Admin) -> None:
    await admin("POST", f"{M}/canary", {"version": 2})
    back = await admin("POST", f"{M}/rollback", {"reason": "a feeling"})
    assert (back["split"]["stable"], back["rollout"]) == (1, None)
    (rollout,) = (await admin("GET", f"{M}/rollouts"))["data"]
    assert (rollout["state"], rollout["reason"]) == ("rolled back", "a feeling")


async def test_requests_are_divided_by_hand(admin: Admin) -> None:
    body = {
        "arms": [{"version": 2, "weight": 0.25}, {"version": 1, "weight": 0.75}],
        "sticky": "user",
    }
    split = await admin("PUT", f"{M}/split", body)
    assert (split["arms"], split["sticky"], split["shadow"]) == (body["arms"], "user", None)
    assert await roles(admin) == [("stable", 0.75), ("arm", 0.25), ("", 0.0)]
    shadowed = {**ALL_TO_1, "shadow": {"version": 2, "share": 0.5}}
    split = await admin("PUT", f"{M}/split", shadowed)
    assert (split["sticky"], split["shadow"]) == ("user", {"version": 2, "share": 0.5})


async def test_a_release_is_loaded_and_unloaded_on_request(admin: Admin, router: RunningRouter) -> None:
    third = f"{M}/versions/3"
    loaded = await admin("POST", f"{third}/load")
    assert (loaded["release"], loaded["wanted"], loaded["state"]) == ("m@3", True, "added")
    store = router.parts.tenancy.store
    await asyncio.to_thread(move_release, store, "m", 3, State.FAILED, "it is broken")
    assert (await admin("GET", third))["reason"] == "it is broken"
    again = await admin("POST", f"{third}/load")
    assert (again["state"], again["reason"]) == ("unloaded", "")  # asked again: tried again
    assert (await admin("POST", f"{third}/unload"))["wanted"] is False


async def test_a_release_is_shown_with_its_parts_and_never_with_its_path(admin: Admin) -> None:
    shown = await admin.ask("GET", f"{M}/versions/1")
    body = shown.json()
    assert (body["digest"] != "", body["needs"]["weights_bytes"], body["file_bytes"]) == (True, 100, 111)
    assert (body["kind"], body["triton_models"], body["parameters"]) == (
        "text",
        ["m.1"],
        {"max_batch_size": "8"},
    )
    assert "secret" not in shown.text
    listed = (await admin("GET", PATH))["data"]
    assert [(each["release"], each["state"]) for each in listed] == [
        ("m@1", "ready"),
        ("m@2", "ready"),
        ("m@3", "added"),
    ]
    assert (await admin("GET", M))["kind"] == "text"


GOLDEN = {"version": 2, "golden": [{"prompt": "2+2", "contains": "4"}]}


async def test_a_rollout_takes_golden_prompts_and_tolerances(admin: Admin) -> None:
    begun = await admin("POST", f"{M}/canary", {**GOLDEN, "tolerance": {"latency_ratio": 2}})
    assert begun["golden"][0]["contains"] == "4"
    assert begun["plan"]["tolerance"]["latency_ratio"] == 2
    assert begun["plan"]["tolerance"]["error_rate"] == 0.002


async def test_rollouts_of_a_model_have_its_tolerances_unless_they_say_otherwise(admin: Admin) -> None:
    assert (await admin("GET", f"{M}/tolerance"))["latency_ratio"] == 1.25
    put = await admin("PUT", f"{M}/tolerance", {"latency_ratio": 3, "error_rate": 0.01})
    assert (put["latency_ratio"], put["error_rate"], put["length_ratio"]) == (3, 0.01, 1.5)
    begun = await admin("POST", f"{M}/canary", {"version": 2, "tolerance": {"error_rate": 0.005}})
    tolerance = begun["plan"]["tolerance"]
    assert (tolerance["latency_ratio"], tolerance["error_rate"]) == (3, 0.005)
    with pytest.raises(AssertionError, match=r"error_margin is 0\.001; allowed: error_rate to"):
        await admin("PUT", f"{M}/tolerance", {"error_margin": 0.001})


async def test_a_rollout_is_mirrored_and_not_rehearsed_where_it_says_so(admin: Admin) -> None:
    begun = await admin("POST", f"{M}/canary", {"version": 2, "mirror_per_s": 2, "is_rehearsed": False})
    assert (begun["plan"]["mirror_per_s"], begun["plan"]["is_rehearsed"]) == (2, False)


async def test_recorded_prompts_are_asked_again_only_where_prompts_are_logged(
    admin: Admin, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=r"replay_per_s: .* where prompts are logged: .*prompt_log_dir"):
        await admin("POST", f"{M}/canary", {"version": 2, "replay_per_s": 1})
    async with running_router(prompt_log=PromptLog(tmp_path, 0)) as router:
        logging = await with_releases(router)
        begun = await logging("POST", f"{M}/canary", {"version": 2, "replay_per_s": 1})
        assert begun["plan"]["replay_per_s"] == 1
        event = (await logging("GET", f"{M}/events"))["data"][0]
    assert event["reason"] == "replays prompts of the prompt log, up to 1 per second"


async def test_a_rollout_takes_schemas_and_likenesses_of_golden_prompts(admin: Admin) -> None:
    golden = [{"prompt": "a", "schema": {"type": "object"}}, {"prompt": "b", "similar": "c"}]
    begun = await admin("POST", f"{M}/canary", {"version": 2, "golden": golden})
    assert [each["schema"] for each in begun["golden"]] == [{"type": "object"}, None]
    assert [each["similar"] for each in begun["golden"]] == ["", "c"]


async def test_a_rollout_takes_how_much_slower_its_canary_is_meant_to_be(admin: Admin) -> None:
    begun = await admin("POST", f"{M}/canary", {"version": 2, "accept_slower": 4.2})
    assert begun["plan"]["tolerance"]["latency_ratio"] == 4.2


WRONG: list[tuple[str, str, Any, int, str]] = [
    ("GET", f"{PATH}/other", None, 404, "no releases"),
    ("GET", f"{PATH}/M%20M", None, 404, "model not found"),
    ("GET", f"{PATH}/{'m' * 300}", None, 404, "model not found"),
    ("GET", f"{PATH}/other/rollouts", None, 404, "no releases"),
    ("GET", f"{PATH}/other/events", None, 404, "no releases"),
    ("GET", f"{M}/events?limit=0", None, 400, "limit"),
    ("GET", f"{M}/versions/9", None, 404, "there are m@1, m@2, m@3"),
    ("GET", f"{M}/versions/x", None, 404, "no release of this number"),
    ("GET", f"{M}/versions/{'9' * 30}", None, 404, "no release of this number"),
    ("POST", f"{M}/versions/9/load", None, 404, "release m@9 not found"),
    ("POST", f"{M}/versions/0/load", None, 404, "no release of this number"),
    ("POST", f"{M}/versions/1/unload", None, 400, "gets 100% of the requests"),
    ("PUT", f"{M}/split", {"arms": []}, 400, "arms"),
    ("PUT", f"{M}/split", {"arms": [{"version": 1, "weight": 0.5}]}, 400, "add up to 0.5"),
    ("PUT", f"{M}/split", {"arms": [{"version": 3, "weight": 1}]}, 400, "m@3 is added"),
    ("PUT", f"{M}/split", {**ALL_TO_1, "sticky": "mood"}, 400, "sticky"),
    ("PUT", f"{M}/split", {**ALL_TO_1, "shadow": {"version": 2, "share": 0}}, 400, "share"),
    ("PUT", f"{M}/split", {"arms": [{"version": 2**40, "weight": 1}]}, 400, "version"),
    ("PUT", f"{PATH}/other/split", ALL_TO_1, 404, "release other@1 not found"),
    ("POST", f"{M}/canary", {"version": 1}, 400, "already gets 100% of the requests"),
    ("POST", f"{M}/canary", {"version": 9}, 404, "release m@9 not found"),
    ("POST", f"{M}/canary", {"version": 2, "weights": [0.5, 0.1]}, 400, "increase"),
    ("POST", f"{M}/canary", {"version": 2, "weights": [0.5]}, 400, "last step of a rollout has to be 1"),
    ("POST", f"{M}/canary", {"version": 2, "alpha": 0}, 400, "alpha"),
    ("POST", f"{M}/canary", {"version": 2, "golden": [{"prompt": "x"}]}, 400, "contains, equals or matches"),
    ("POST", f"{M}/canary", {"version": 2, "golden": [{"prompt": "x", "matches": "("}]}, 400, "expression"),
    ("POST", f"{M}/canary", {"version": 2, "golden": [{"prompt": "x", "schema": {"type": 4}}]}, 400, "$."),
    ("POST", f"{M}/canary", {"version": 2, "min_likeness": 0.9}, 400, "--shadow 2=10%"),
    ("POST", f"{M}/canary", {"version": 2, "accept_slower": 0.5}, 400, "accept_slower"),
    ("POST", f"{M}/canary", {}, 400, "Missing required parameter: version"),
    ("POST", f"{M}/promote", {}, 400, "m has no rollout"),
    ("POST", f"{M}/promote", {"version": 3}, 400, "m@3 is added"),
    ("POST", f"{M}/promote", {"version": 1, "reason": "a\0b"}, 400, "reason"),
    ("POST", f"{M}/promote", {"versoin": 1}, 400, "versoin"),
    ("POST", f"{M}/rollback", {}, 400, "neither a rollout nor a standby release"),
    ("POST", f"{PATH}/other/rollback", {}, 400, "other is not served"),
    ("POST", f"{M}/pause", None, 404, "no rollout in progress"),
    ("POST", f"{M}/resume", None, 404, "no rollout in progress"),
]  # fmt: skip


async def test_unknown_releases_and_invalid_rollouts_are_refused_with_a_message(admin: Admin) -> None:
    before = await admin("GET", M)
    for method, path, body, status, message in WRONG:
        response = await admin.ask(method, path, body)
        assert response.status_code == status, (method, path, body, response.text)
        assert message in response.json()["error"]["message"], (method, path, body, response.text)
    assert await admin("GET", M) == before, "nothing of it was half done"


async def test_a_second_rollout_waits_for_the_first(admin: Admin) -> None:
    await admin("POST", f"{M}/canary", {"version": 2})
    for path, body in (("canary", {"version": 3}), ("split", ALL_TO_1)):
        response = await admin.ask("POST" if path == "canary" else "PUT", f"{M}/{path}", body)
        assert response.status_code == 400
        assert "m@2 is being rolled out" in response.json()["error"]["message"]


BODIES = {"split": ALL_TO_1, "canary": {"version": 2}}


async def test_a_tenants_key_neither_sees_nor_changes_any_release(
    admin: Admin, router: RunningRouter
) -> None:
    key = await router.new_key(await router.new_tenant(), EVERYTHING, Role.OWNER)
    boss = await router.new_key(await router.new_tenant("boss"), EVERYTHING, Role.OWNER, platform_admin=True)
    before = await Admin(router, boss)("GET", M)
    for name, version in (("m", "1"), ("m", "x"), ("other", "1"), ("A b", "1")):
        for route in releases.routes(router.parts.tenancy):
            place = route.path.replace("{model}", name).replace("{version}", version)
            body = BODIES.get(place.rpartition("/")[2], {}) if route.method != "GET" else None
            response = await Admin(router, key).ask(route.method, place, body)
            assert response.status_code == 403, (route.method, place, response.text)
    assert await Admin(router, boss)("GET", M) == before
    refused = [
        each for each in (await Admin(router, boss)("GET", "/admin/audit"))["data"] if not each["allowed"]
    ]
    assert {each["action"] for each in refused} == {"release.read", "release.write"}
    assert "PUT /admin/releases/{model}/split" in {each["detail"]["asked"] for each in refused}


async def test_a_read_only_key_changes_nothing(admin: Admin, router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    reads = await router.new_key(tenant, frozenset({Scope.ADMIN_READ}), Role.OWNER, platform_admin=True)
    writes = await router.new_key(tenant, frozenset({Scope.ADMIN_WRITE}), Role.OWNER, platform_admin=True)
    assert (await Admin(router, reads).ask("GET", M)).status_code == 200
    assert (await Admin(router, reads).ask("POST", f"{M}/promote", {"version": 2})).status_code == 403
    assert (await Admin(router, writes).ask("GET", M)).status_code == 403
    done = await Admin(router, writes)("POST", f"{M}/promote", {"version": 2})
    assert done["split"]["stable"] == 2
