"""A stop in the middle of everything: T20."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx

from tests.survival.conftest import Fortress

STREAMS, TOKENS = 50, 600


async def test_t20_a_stop_lets_every_stream_end_and_admits_nothing_new(mortal: Fortress) -> None:
    running = mortal
    router = running.router
    assert running.shared_regions()

    async def stream(http: httpx.AsyncClient, began: asyncio.Semaphore) -> str:
        text = ""
        body = running.completion(TOKENS, stream=True)
        async with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += httpx.Response(200, content=line[6:]).json()["choices"][0]["text"]
                    began.release()
        return text

    began = asyncio.Semaphore(0)
    async with running.client() as http, running.client() as late:
        assert (await late.get("/health/live")).status_code == 200
        streams = [asyncio.ensure_future(stream(http, began)) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            await began.acquire()
        os.kill(router.pid, signal.SIGTERM)
        await asyncio.sleep(0.3)
        refused = await late.post("/v1/completions", json=running.completion(1))
        live, ready = await late.get("/health/live"), await late.get("/health/ready")
        texts = await asyncio.gather(*streams)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert (live.status_code, ready.status_code) == (200, 503)
    assert set(texts) == {running.text_of(TOKENS)}
    assert running.stack.stop() == 0
    assert not running.shared_regions()
