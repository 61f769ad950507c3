"""What the router tells those who have no key, once there are keys."""

from __future__ import annotations

from importlib.metadata import version

import httpx
import pytest

from tests.router.kserve.running import running_kserve
from tests.router.running import BARE_MODEL, EMBEDDER, MODEL, RunningRouter, running_router

OPEN = ("/", "/version", "/api/version", "/health", "/health/live", "/health/ready", "/ping", "/ui")
DESCRIPTIONS = ("/openapi.json", "/docs")


async def asked(router: RunningRouter, path: str) -> httpx.Response:
    response = await router.http.get(path, headers={"accept": "text/html" if path == "/docs" else "*/*"})
    assert response.status_code == 200, path
    return response


@pytest.mark.parametrize("path", [*OPEN, *DESCRIPTIONS])
async def test_strangers_learn_no_model_and_no_version_of_the_software(path: str) -> None:
    async with running_router() as router:
        await router.new_key(await router.new_tenant())
        for accept in ("*/*", "text/html"):
            told = (await router.http.get(path, headers={"accept": accept})).text
            assert version("inflight") not in told
            assert BARE_MODEL not in told
            assert EMBEDDER not in told
            assert f'"{MODEL}"' not in told


async def test_health_is_told_in_one_word(router: RunningRouter) -> None:
    assert (await asked(router, "/health/ready")).json()["models"][MODEL]
    await router.new_key(await router.new_tenant())
    for path in ("/health", "/health/ready", "/ping"):
        assert (await asked(router, path)).json() == {"status": "ready"}
    assert (await asked(router, "/health/live")).json() == {"status": "live"}


async def test_kserves_health_is_told_in_one_word() -> None:
    async with running_kserve() as kserve:
        await kserve.router.new_key(await kserve.router.new_tenant())
        async with httpx.AsyncClient(base_url=f"http://{kserve.http_url}", trust_env=False) as http:
            assert (await http.get("/v2/health/live")).json() == {"live": True}
            assert set((await http.get("/v2/health/ready")).json()) == {"ready"}


async def test_versions_that_strangers_learn_are_constants(router: RunningRouter) -> None:
    with_version = (await asked(router, "/version")).json()
    ollama = (await asked(router, "/api/version")).json()
    await router.new_key(await router.new_tenant())
    assert (await asked(router, "/version")).json() == {"api_version": "v1"}
    assert with_version == {"version": version("inflight"), "api_version": "v1"}
    assert (await asked(router, "/api/version")).json() == ollama
    assert (await asked(router, "/openapi.json")).json()["info"]["version"] == "v1"
