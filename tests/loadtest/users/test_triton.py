"""Triton's own client against a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loadtest.results import RequestResult
from loadtest.tenants import Tenant
from loadtest.users.triton import TritonAsker
from tests.fakes.triton_server import FakeTriton, Reply

WORDS = [Reply(" a", pause_s=0.1), Reply(" b c", tokens=2, pause_s=0.06), Reply("", 0, final=True, bare=True)]


class Asking:
    """One user, and what it told."""

    def __init__(self, triton: FakeTriton) -> None:
        self.triton = triton
        self.told: list[RequestResult] = []
        self.asker = TritonAsker(triton.url, Tenant("acme", "ik-1", tier="batch"), 0.0, self.told.append)

    async def ask(self) -> RequestResult:
        return await asyncio.to_thread(self.asker.stream, "tiny", "hello", 3, 7)


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    triton = await FakeTriton(lambda request: WORDS).start()
    user = Asking(triton)
    yield user
    await asyncio.to_thread(user.asker.close)
    await triton.stop()


async def test_tokens_have_the_times_at_which_their_responses_came(asking: Asking) -> None:
    result = await asking.ask()
    assert result.is_answered
    assert result.first_token_s is not None
    assert result.first_token_s >= 0.1
    (gap_s,) = result.gaps_s
    assert gap_s >= 0.02  # two tokens in 60 ms, give or take a scheduler
    assert result.longest_gap_s >= gap_s
    assert (result.prompt_tokens, result.completion_tokens, result.pieces) == (5, 3, 2)
    assert asking.told == [result]


async def test_key_and_tier_are_sent_and_one_stream_serves_many_requests(asking: Asking) -> None:
    for _ in range(3):
        assert (await asking.ask()).is_answered
    assert [metadata.get("authorization") for metadata in asking.triton.metadata] == ["Bearer ik-1"]
    assert asking.triton.requests[0].parameters["inflight_tier"].string_param == "batch"


async def test_a_refusal_has_a_retry_time_and_the_next_request_is_served(asking: Asking) -> None:
    asking.triton.script = lambda request: [Reply(error="overloaded: no room; try again in 3 s")]
    refused = await asking.ask()
    assert refused.is_refused
    assert (refused.status, refused.retry_after_s) == (503, 3.0)
    asking.triton.script = lambda request: WORDS
    assert (await asking.ask()).is_answered


async def test_an_error_is_a_failure_with_the_servers_message(asking: Asking) -> None:
    asking.triton.script = lambda request: [Reply(" a"), Reply(error="engine_failed: it died")]
    failed = await asking.ask()
    assert failed.has_failed
    assert failed.status == 503
    assert "it died" in failed.error


async def test_a_server_that_stops_is_a_failure(asking: Asking) -> None:
    assert (await asking.ask()).is_answered
    await asking.triton.stop()
    assert (await asking.ask()).has_failed
