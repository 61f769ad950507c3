"""Releases added over HTTP: from named places alone, by a command of the operator's, and on record."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.control.releases.additions import Additions
from router.control.releases.commands import ReleaseCommands
from router.core.manifest import Kind, Manifest
from router.core.tenant import Role, Scope
from router.tenants.rbac import SYSTEM
from tests.router.running import RunningRouter, running_router
from tests.waiting import until

# Says what it was given, and does what the model's name says.
COMMAND = (
    "import sys, time\n"
    "*options, dashes, model, path = sys.argv[1:]\n"
    "print('given', options, model, path, flush=True)\n"
    "if model == 'slow': time.sleep(3600)\n"
    "if model == 'bad': sys.exit('inflight: ' + path + ' has no weights')\n"
    "print(model + '@3 is added.')\n"
)


@dataclass
class Place:
    router: RunningRouter
    models: Path

    async def add(self, **fields: Any) -> httpx.Response:
        return await self.router.http.post("/admin/releases", json=fields)

    async def finished(self, answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 202, answer.text
        name = answer.json()["id"]
        found: dict[str, Any] = {}

        async def is_over() -> bool:
            nonlocal found
            found = (await self.router.http.get(f"/admin/additions/{name}")).json()
            return bool(found["state"] != "running")

        await until(is_over, limit_s=60)
        return found


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    models = tmp_path / "models"
    for name in ("alpha", "beta"):
        (models / name).mkdir(parents=True)
        (models / name / "config.json").write_text("{}")
    (models / "gamma.gguf").touch()
    (models / "notes").mkdir()
    additions = Additions([sys.executable, "-S", "-c", COMMAND], [str(models)])
    async with running_router(additions=additions) as router:
        yield Place(router, models)
        await additions.close()


async def test_places_are_told_by_name_and_never_by_path(place: Place) -> None:
    def keep() -> None:
        known = Manifest("m", 1, Kind.TEXT, ("m-1",), checkpoint_dir=str(place.models / "beta"))
        ReleaseCommands(place.router.parts.tenancy.store, SYSTEM).add(known)

    await asyncio.to_thread(keep)
    answer = await place.router.http.get("/admin/release-sources")
    assert [(each["name"], each["what"]) for each in answer.json()["data"]] == [
        ("m@1", "checkpoint"),
        ("models/alpha", "checkpoint"),
        ("models/gamma.gguf", "gguf"),
    ]
    assert answer.json()["can_add"]
    assert str(place.models) not in answer.text


async def test_a_release_is_added_by_the_operators_command_and_the_asking_is_on_record(place: Place) -> None:
    answer = await place.add(
        model="tiny", source="models/alpha", parameters={"inflight_precision": "int4"}, notes="--notes"
    )
    found = await place.finished(answer)
    assert (found["state"], found["release"], found["reason"]) == ("added", "tiny@3", "")
    options = ["--set=inflight_precision=int4", "--notes=--notes"]
    assert found["said"][0] == f"given {options} tiny models/alpha"
    assert str(place.models) not in str(found)
    audit = (await place.router.http.get("/admin/audit")).json()["data"]
    (entry,) = (each for each in audit if each["action"] == "release.ask_to_add")
    assert entry["detail"] == {"source": "models/alpha", "parameters": {"inflight_precision": "int4"}}


async def test_why_it_failed_is_told_without_where_things_lie(place: Place) -> None:
    found = await place.finished(await place.add(model="bad", source="models/gamma.gguf"))
    assert (found["state"], found["reason"]) == ("failed", "models/gamma.gguf has no weights")


async def test_one_is_added_at_a_time_and_can_be_stopped(place: Place) -> None:
    began = await place.add(model="slow", source="models/alpha")
    assert began.status_code == 202
    second = await place.add(model="tiny", source="models/alpha")
    assert (second.status_code, "already" in second.text) == (409, True)
    stopped = await place.router.http.delete(f"/admin/additions/{began.json()['id']}", timeout=60)
    assert stopped.json()["state"] == "stopped"
    assert (await place.finished(await place.add(model="tiny", source="models/alpha")))["state"] == "added"
    states = [each["state"] for each in (await place.router.http.get("/admin/additions")).json()["data"]]
    assert states == ["added", "stopped"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"source": "models/nobody"}, "GET /admin/release-sources lists all sources"),
        ({"source": "../../etc"}, "GET /admin/release-sources lists all sources"),
        ({"model": "--config"}, "model"),
        ({"parameters": {"gpt_model_path": "/etc/passwd"}}, "parameters"),
        ({"parameters": {"inflight_runtimes_dir": "tmp"}}, "parameters"),
        ({"parameters": {"inflight_max_images": "1\n"}}, "parameters"),
        ({"notes": "a line\n"}, "notes"),
        ({"parameters": {"inflight_runtime_options": '{"trust_remote_code": true}'}}, "parameters"),
        ({"parameters": {"--config": "x"}}, "parameters"),
        ({"notes": "two\nlines"}, "notes"),
        ({"source": "hf://org/name"}, "GET /admin/release-sources lists all sources"),
        ({"source": "file:///etc"}, "GET /admin/release-sources lists all sources"),
        ({"runs_code": True}, "runs_code"),
        ({"parameters": {"--runs-code": "yes"}}, "parameters"),
    ],
)
async def test_nothing_but_known_places_and_plain_values_is_taken(
    place: Place, fields: dict[str, Any], words: str
) -> None:
    answer = await place.add(**{"model": "tiny", "source": "models/alpha", **fields})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


async def test_only_who_may_change_releases_adds_them(place: Place) -> None:
    tenant = await place.router.new_tenant()
    reader = await place.router.new_key(tenant, frozenset({Scope.ADMIN_READ}), platform_admin=True)
    owner = await place.router.new_key(tenant, frozenset(Scope), Role.OWNER)
    body = {"model": "tiny", "source": "models/alpha"}
    for key, statuses in ((reader, (403, 200, 200)), (owner, (403, 403, 403))):
        headers = {"authorization": f"Bearer {key}"}
        asked = [
            await place.router.http.post("/admin/releases", json=body, headers=headers),
            await place.router.http.get("/admin/release-sources", headers=headers),
            await place.router.http.get("/admin/additions", headers=headers),
        ]
        assert tuple(each.status_code for each in asked) == statuses


async def test_a_router_without_the_files_says_where_to_add_one(router: RunningRouter) -> None:
    told = (await router.http.get("/admin/release-sources")).json()
    assert (told["can_add"], told["data"]) == (False, [])
    answer = await router.http.post("/admin/releases", json={"model": "tiny", "source": "x"})
    assert answer.status_code == 409
    assert "inflight release add" in answer.json()["error"]["message"]
