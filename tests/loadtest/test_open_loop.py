from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.mixed_lengths import LONG, SHORT, all_at_once, steady
from loadtest.open_loop import PlannedRequest, percentile, run_plan

SLOW_S = 0.3


async def answer(request: web.Request) -> web.StreamResponse:
    """A server that takes its time, and fails those who ask it to."""
    body = await request.json()
    if body["prompt"] == "refuse":
        return web.json_response({"error": {"message": "no"}}, status=503)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for piece in ("a", "b"):
        await asyncio.sleep(SLOW_S / 2)
        await response.write(f"data: {json.dumps({'choices': [{'text': piece}]})}\n\n".encode())
    if body["prompt"] == "break":
        await response.write(b'data: {"error": {"message": "broken"}}\n\n')
    usage = {"choices": [], "usage": {"completion_tokens": 2}}
    await response.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
    return response


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


async def test_requests_are_sent_on_time_whatever_became_of_the_earlier_ones(url: str) -> None:
    plan = [PlannedRequest(index * 0.05, "x", 2, "x") for index in range(4)]
    result = await run_plan(url, "m", plan)
    assert result.errors == []
    assert result.tokens == 8
    one_after_the_other_s = 4 * SLOW_S
    assert result.duration_s < one_after_the_other_s
    assert all(SLOW_S <= latency_s < one_after_the_other_s - 0.2 for latency_s in result.latencies_s("x"))


async def test_what_fails_is_counted_and_not_timed(url: str) -> None:
    plan = [PlannedRequest(0.0, prompt, 2, "x") for prompt in ("refuse", "break", "fine")]
    result = await run_plan(url, "m", plan)
    assert len(result.errors) == 2
    assert len(result.latencies_s("x")) == 1


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([3.0], 0.01) == 3.0


def test_every_group_has_one_long_answer() -> None:
    plan = all_at_once(groups=3, short_per_long=31, short_tokens=8, long_tokens=400)
    assert [request.label for request in plan].count(LONG) == 3
    assert len(plan) == 96
    assert {request.max_tokens for request in plan if request.label == SHORT} == {8}


def test_steady_arrivals_keep_to_their_rate() -> None:
    plan = steady(10.0, 100.0, short_per_long=31, short_tokens=8, long_tokens=400)
    assert 900 < len(plan) < 1100
    assert all(first.at_s <= second.at_s < 100 for first, second in itertools.pairwise(plan))
