from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.triton_server import FakeTriton, Reply, story
from tests.pace import patience
from tests.router.process import started_router
from tests.waiting import soon, until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class RouterProcess:
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient
    triton: FakeTriton
    log: list[str]

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await soon(self.process.wait())


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RouterProcess]:
    """A test may say for how many seconds it drains."""
    drain_timeout_s = getattr(request, "param", 600.0)
    triton = await FakeTriton().start()
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    settings = tmp_path / "router.toml"
    settings.write_text(
        f'port = 0\nlog_format = "json"\ntriton_servers = [{{ url = "{triton.url}" }}]\n'
        f"drain_timeout_s = {drain_timeout_s}\nstop_timeout_s = 60.0\nrevive_wait_s = 0.5\n"
        f'data_dir = "{tmp_path}"\n'
        f'[[models]]\nname = "tiny"\ncheckpoint_dir = "{tmp_path}"\n'
    )
    try:
        async with (
            started_router(settings) as started,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{started.port}",
                trust_env=False,
                verify=False,
                timeout=patience(30),
            ) as http,
        ):
            yield RouterProcess(started.process, http, triton, started.log)
    finally:
        await triton.stop()


def _rows(directory: Path, query: str) -> list[tuple[Any, ...]]:
    (path,) = directory.rglob("*.db")
    with closing(sqlite3.connect(path)) as store:
        return store.execute(query).fetchall()


async def _events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") async for line in response.aiter_lines() if line]


async def test_a_request_passes_through_the_server_and_an_idle_router_stops_at_once(
    served: RouterProcess,
) -> None:
    answer = (await served.http.post("/v1/chat/completions", json=CHAT)).json()
    assert answer["choices"][0]["message"]["content"] == "Hello world"
    assert served.triton.requests[0].id == answer["id"]
    assert (await served.http.get("/health/ready")).status_code == 200
    assert await served.stop() == 0
    said = [json.loads(line) for line in served.log]
    (told,) = (line for line in said if line.get("request_id") == answer["id"])
    assert (told["model"], told["release"], told["outcome"], told["status"]) == ("tiny", "1", "finished", 200)


async def test_running_streams_finish_while_draining_and_new_requests_are_refused(
    served: RouterProcess,
) -> None:
    texts, go_on = [f" {number}" for number in range(10)], asyncio.Event()
    first, *others = story(*texts)
    served.triton.script = lambda request: [first, replace(others[0], after=go_on), *others[1:]]
    async with served.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        lines = response.aiter_lines()
        await anext(lines)
        stopping = asyncio.ensure_future(served.stop())
        await until(lambda: any("draining 1 requests" in line for line in served.log))
        assert (await served.http.get("/health/live")).status_code == 200
        assert (await served.http.get("/health/ready")).status_code == 503
        refused = await served.http.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        go_on.set()
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in rest[:-1]) == (
        "".join(texts)
    )
    assert await stopping == 0


@pytest.mark.parametrize("served", [1.0], indirect=True)
async def test_streams_that_outlast_the_drain_end_with_an_error_and_stop_the_engine(
    served: RouterProcess,
) -> None:
    served.triton.script = lambda request: [Reply(" x", pause_s=0.1)] * 1000
    body = {**CHAT, "stream": True}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        stopping = asyncio.ensure_future(served.stop())
        events = await _events(response)
    assert json.loads(events[-1])["error"]["message"] == "the server is shutting down"
    assert "[DONE]" not in events
    assert await stopping == 0
    assert served.triton.running == {}
    assert len(served.triton.stops) >= 1


@pytest.mark.parametrize("served", [1.0], indirect=True)
async def test_background_responses_that_outlast_the_drain_are_ended_and_recorded(
    served: RouterProcess, tmp_path: Path
) -> None:
    served.triton.script = lambda request: [Reply(" x", pause_s=0.1)] * 1000
    body = {"model": "tiny", "input": "hi", "background": True}
    made = (await served.http.post("/v1/responses", json=body)).json()

    async def has_begun() -> bool:
        response = await served.http.get(f"/v1/responses/{made['id']}")
        return bool(response.json()["status"] != "queued")

    await until(has_begun)
    assert await served.stop() == 0
    assert served.triton.running == {}
    ((stored, lease_s),) = _rows(tmp_path, "SELECT body, lease_s FROM responses")
    response = json.loads(stored)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert "shutting down" in response["error"]["message"]
    assert lease_s is None
    assert _rows(tmp_path, "SELECT outcome FROM usage") == [("failed",)]


async def test_a_second_signal_does_not_wait_for_the_drain(served: RouterProcess) -> None:
    served.triton.script = lambda request: [Reply(" x", pause_s=0.1)] * 1000
    body = {**CHAT, "stream": True}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        served.process.send_signal(signal.SIGINT)
        await until(lambda: any("draining 1 requests" in line for line in served.log))
        assert await served.stop() == 0
        await _events(response)


async def test_an_unreachable_triton_is_a_503_and_a_returning_one_serves(served: RouterProcess) -> None:
    await served.triton.stop()
    response = await served.http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert (await served.http.get("/health/ready")).status_code == 503
    again = await FakeTriton(port=served.triton.port).start()

    async def is_answered() -> bool:
        return (await served.http.post("/v1/chat/completions", json=CHAT)).status_code == 200

    await until(is_answered)
    assert await served.stop() == 0
    await again.stop()


async def test_invalid_settings_stop_the_start_with_a_sentence(tmp_path: Path) -> None:
    settings = tmp_path / "router.toml"
    settings.write_text('triton_servers = [{ url = "x:1" }]\nprot = 3\n')
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "--settings", str(settings), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode().startswith("router: unknown setting prot: allowed are ")
