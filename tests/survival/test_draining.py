"""A stop in the middle of everything: T20."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import httpx

from tests.survival.conftest import Fortress

STREAMS, TOKENS = 50, 600
ENDLESS = 1_000_000


async def test_t20_a_stop_lets_every_stream_end_and_admits_nothing_new(
    mortal: Fortress, figure: Callable[[str], None]
) -> None:
    running = mortal
    router = running.router
    assert running.shared_regions()

    async def stream(http: httpx.AsyncClient, began: asyncio.Event) -> str:
        text = ""
        body = running.completion(TOKENS, stream=True)
        async with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += httpx.Response(200, content=line[6:]).json()["choices"][0]["text"]
                    began.set()
        return text

    begun = [asyncio.Event() for _ in range(STREAMS)]
    async with running.client() as http, running.client() as late:
        assert (await late.get("/health/live")).status_code == 200
        streams = [asyncio.ensure_future(stream(http, event)) for event in begun]
        await asyncio.gather(*(event.wait() for event in begun))
        # Until its client leaves, the stop is not complete, however slow the questions are.
        async with http.stream("POST", "/v1/completions", json=running.completion(ENDLESS, stream=True)):
            os.kill(router.pid, signal.SIGTERM)
            while (ready := await late.get("/health/ready")).status_code == 200:
                pass  # the signal is on its way
            refused = await late.post("/v1/completions", json=running.completion(1))
            live = await late.get("/health/live")
        texts = await asyncio.gather(*streams)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert (live.status_code, ready.status_code) == (200, 503)
    assert set(texts) == {running.text_of(TOKENS)}
    assert running.stack.stop() == 0
    assert not running.shared_regions()
    figure(f"{len(texts)} of {STREAMS} streams whole")
