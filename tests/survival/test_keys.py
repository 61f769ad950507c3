"""Keys and what they open: T34 to T37."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import string
import time
from collections.abc import Callable
from dataclasses import replace

import httpx

from router.core.tenant import Limits
from router.tenants import keys
from router.tenants.keys import Keyring
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.pace import patience
from tests.router.tenants.values import PEPPER, caller
from tests.survival.conftest import Fortress
from tests.waiting import until

KNOWN_WITHIN_S = 5.0


def test_t34_the_time_of_a_refusal_tells_nothing_of_the_secret(
    thorough: bool, figure: Callable[[str], None]
) -> None:
    """First and last character wrong, one right after the other in random order, without the slowest tenth.

    Student's t of their differences: what makes a machine slow for a while makes both slow.
    """
    text, prefix = keys.mint()
    holder = caller()
    kept = replace(holder.key, prefix=prefix, digest=keys.digest(text, PEPPER))
    keyring = Keyring(PEPPER)
    keyring.replace("org-1", [replace(holder, key=kept)])
    places = (text.index("-", 3) + 1, len(text) - 1)
    pairs_ns: list[tuple[int, int]] = []
    chance = random.Random(34)
    for _ in range(50_000 if thorough else 10_000):
        took_ns = {}
        for place in chance.sample(places, 2):
            characters = list(text)
            characters[place] = chance.choice(string.punctuation)
            wrong = "".join(characters)  # anew each time: where a string lies in memory can be seen, too
            began_ns = time.perf_counter_ns()
            keyring.verify(wrong, 0.0)
            took_ns[place] = time.perf_counter_ns() - began_ns
        pairs_ns.append((took_ns[places[0]], took_ns[places[1]]))
    limit_ns = statistics.quantiles(map(max, pairs_ns), n=10)[-1]
    found = abs(students_t([first - last for first, last in pairs_ns if max(first, last) <= limit_ns]))
    figure(f"Student's t {found:.1f}, of 4.5")
    assert found < 4.5


def students_t(differences: list[int]) -> float:
    return statistics.fmean(differences) / (statistics.stdev(differences) / math.sqrt(len(differences)))


async def status(quick: Fortress, key: str) -> tuple[int, bytes]:
    async with httpx.AsyncClient(
        base_url=quick.stack.url, trust_env=False, verify=False, timeout=patience(30)
    ) as http:
        headers = {"authorization": f"Bearer {key}"}
        response = await http.get("/v1/models", headers=headers)
    return response.status_code, response.content


async def becomes(quick: Fortress, key: str, expected: int) -> None:
    async def is_expected() -> bool:
        return (await status(quick, key))[0] == expected

    await until(is_expected, f"{expected} is not the answer after {KNOWN_WITHIN_S} s", KNOWN_WITHIN_S)


async def test_t35_a_revoked_key_is_refused_soon_and_like_one_that_never_existed(sheet: Fortress) -> None:
    key = sheet.new_tenant("leaving")
    await becomes(sheet, key, 200)
    with open_administration(sheet.state_dir) as admin:
        (tenant,) = (each for each in admin.list_organisations(SYSTEM) if each.name == "leaving")
        (kept,) = admin.list_keys(SYSTEM, tenant.id)
        _, fresh = admin.rotate_key(SYSTEM, tenant.id, kept.id, grace_s=0.0)
    await becomes(sheet, key, 401)
    await becomes(sheet, fresh, 200)
    with open_administration(sheet.state_dir) as admin:
        admin.revoke_key(SYSTEM, tenant.id, kept.id)
    await becomes(sheet, fresh, 401)
    never = f"ik-{'x' * 8}-{'y' * 40}"
    assert await status(sheet, fresh) == await status(sheet, key) == await status(sheet, never)


async def test_t36_no_route_of_the_administration_opens_to_a_tenant(
    sheet: Fortress, figure: Callable[[str], None]
) -> None:
    async with sheet.client() as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        routes = [(method, path) for path in paths if path.startswith("/admin") for method in paths[path]]
        assert len(routes) >= 18
        routes.remove(("get", "/admin/prices"))  # what tokens cost is for every tenant to see
        routes = [each for each in routes if each[1] != "/admin/session"]  # it asks for a key of its own
        for method, path in routes:
            place = path.replace("{tenant}", "local").replace("{", "").replace("}", "")
            kind = {"content-type": "application/json"}
            response = await http.request(method, place, content=b"{}", headers=kind)
            assert response.status_code == 403, (method, path, response.text)
    figure(f"403 from {len(routes)} of {len(routes)} routes")


async def test_t37_another_tenants_objects_do_not_exist(sheet: Fortress, thorough: bool) -> None:
    """Files, batches, responses, conversations: the answer that a made-up id gets, and nothing listed."""
    other = {"authorization": f"Bearer {sheet.new_tenant('curious')}"}
    await becomes(sheet, other["authorization"].removeprefix("Bearer "), 200)
    async with sheet.client() as http:
        upload = await http.post(
            "/v1/files", files={"file": ("a.jsonl", b'{"a": 1}\n')}, data={"purpose": "user_data"}
        )
        mine = {
            "/v1/files": upload.json()["id"],
            "/v1/conversations": (await http.post("/v1/conversations", json={})).json()["id"],
            "/v1/responses": (
                await http.post(
                    "/v1/responses",
                    json={"model": sheet.stack.model, "input": "hi", "max_output_tokens": 16},
                )
            ).json()["id"],
        }
        for path, identifier in mine.items():
            assert (await http.get(f"{path}/{identifier}")).status_code == 200, path
            made_up = identifier[:-4] + "0000"
            for _ in range(300 if thorough else 5):
                theirs = await http.get(f"{path}/{identifier}", headers=other)
                nobodys = await http.get(f"{path}/{made_up}", headers=other)
                assert theirs.status_code == nobodys.status_code == 404
                assert theirs.text.replace(identifier, "") == nobodys.text.replace(made_up, "")
            assert (await http.delete(f"{path}/{identifier}", headers=other)).status_code == 404
        for path in ("/v1/files", "/v1/conversations", "/v1/batches"):
            assert (await http.get(path, headers=other)).json()["data"] == []
        stolen = {
            "input_file_id": mine["/v1/files"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        assert (await http.post("/v1/batches", json=stolen, headers=other)).status_code in (400, 404)
        continued = {
            "model": sheet.stack.model,
            "input": "go on",
            "previous_response_id": mine["/v1/responses"],
        }
        assert (await http.post("/v1/responses", json=continued, headers=other)).status_code in (400, 404)
        assert (await http.get("/v1/usage", headers=other)).json()["data"] == []


async def test_limits_hold_exactly_when_all_requests_come_at_once(sheet: Fortress) -> None:
    tenants = {
        "requests": sheet.new_tenant("many", Limits(requests_per_min=10, request_burst=10)),
        "tokens": sheet.new_tenant("much", Limits(tokens_per_min=10 * 12, token_burst=10 * 12)),
    }
    for limit, key in tenants.items():
        await becomes(sheet, key, 200)
        headers = {"authorization": f"Bearer {key}"}
        async with sheet.client() as http:
            # 2 tokens are reserved for "Hello" and 10 for the answer; 11 are used.
            asking = (
                http.post("/v1/completions", json=sheet.completion(10), headers=headers) for _ in range(64)
            )
            answers = await asyncio.gather(*asking)
        statuses = [each.status_code for each in answers]
        # One request of the ten asked whether the key is known yet.
        assert (9 if limit == "requests" else 10) <= statuses.count(200) <= 11, limit
        assert statuses.count(429) == 64 - statuses.count(200)
        assert all(int(each.headers["retry-after"]) >= 1 for each in answers if each.status_code == 429)
