"""Two routers and a real Redis: a stream that one of them began is read, and ended, by the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from redis import Redis

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.peers import shared_events
from router.control.peers.redis_link import RedisLink
from router.control.peers.shared_events import SharedEventLog
from router.http import sse
from router.resume.event_log import Claim, Moved
from tests.fakes.pipeline import words
from tests.router.control.peers.redis_server import RedisServer, running_redis
from tests.router.running import MODEL, QUESTION, RunningRouter, running_router

KEY = {"idempotency-key": "one"}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": QUESTION, "stream": True, "n": 2},
    "/v1/completions": {"model": MODEL, "prompt": "hi", "stream": True, "stop": "never"},
    "/v1/responses": {"model": MODEL, "input": "hi", "stream": True},
    "/v1/messages": {"model": MODEL, "messages": QUESTION, "max_tokens": 9, "stream": True},
}
CHAT = "/v1/chat/completions"
TEXTS = ("He", "llo ", "wo", "rld", ", and ", "more", "!")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as running:
        yield running


@dataclass
class Pair:
    """Of routers; the first `dies`, which the second hears of as it would in a deployment."""

    first: RunningRouter
    second: RunningRouter
    client: Redis

    def lives(self, name: str) -> None:
        self.client.set(f"inflight:test:{name}", b"")

    def dies(self, name: str = "first") -> None:
        self.client.delete(f"inflight:test:{name}")

    async def begin(self, path: str, events: int = 1, **more: object) -> bytes:
        """By the first router, read until there are so many events, then cut."""
        http, body = self.first.http, {**STREAMS[path], **more}
        async with http.stream("POST", path, json=body, headers=KEY) as response:
            seen = b""
            async for some in response.aiter_raw():
                seen += some
                if len(sse.split(seen)) >= events:
                    return seen
        raise AssertionError(seen)

    async def again(self, path: str, at: int = 0, **more: object) -> httpx.Response:
        headers = {**KEY, "last-event-id": str(at)}
        return await self.second.http.post(path, json={**STREAMS[path], **more}, headers=headers)

    async def billed(self) -> tuple[int, int]:
        """Requests and completion tokens, by both."""
        await self.first.usage("local")
        (used,) = await self.second.usage("local")
        return used.requests, used.completion_tokens


@pytest.fixture
async def pair(redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(shared_events, "_LOOKS_S", 0.05)
    async with AsyncExitStack() as closing:
        routers = []
        for name in ("first", "second"):
            log = SharedEventLog(RedisLink(redis.url, "test"), name)
            closing.push_async_callback(log._link.close)
            closing.push_async_callback(log.close)
            routers.append(await closing.enter_async_context(running_router(data_dir=tmp_path, events=log)))
        client = closing.enter_context(Redis.from_url(redis.url))
        client.flushall()
        made = Pair(routers[0], routers[1], client)
        made.lives("first")
        made.lives("second")
        yield made
        for router in routers:
            router.permits.cut_all(lambda: InflightError(ErrorKind.CANCELLED, "the test is over"))


def hold(router: RunningRouter, *texts: str) -> asyncio.Event:
    """Until it is set, an answer has come to the end of these words, and each choice of it."""
    event = asyncio.Event()
    router.pipeline.script = lambda call: [*words(*texts)[:-1], event, *words(*TEXTS[len(texts) :])]
    return event


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_whose_router_died_is_ended_by_another_without_a_gap_or_a_repetition(
    pair: Pair, path: str
) -> None:
    hold(pair.first, *TEXTS[:3])
    # The second router's engine cuts the same answer in other places.
    pair.second.pipeline.script = lambda call: words("Hel", "lo w", "orld", ", and more!")
    seen = await pair.begin(path, events=3)
    pair.dies()
    known = len(sse.split(seen))
    rest = await pair.again(path, known)
    whole = await pair.again(path)
    assert whole.content == seen + rest.content
    numbers = [event.split(b"\n")[0] for event in sse.split(whole.content)]
    assert numbers == [b"id: %d" % number for number in range(1, len(numbers) + 1)]
    told = whole.content.decode()
    if path == "/v1/responses":
        assert '"text":"Hello world, and more!"' in told
        assert len({part[:40] for part in told.split('"id":"resp_')[1:]}) == 1
    first, second = pair.first.pipeline.calls[0], pair.second.pipeline.calls[0]
    assert (first.seed, second.request_id) == (second.seed, f"{first.request_id}-t2")
    assert len({part[:10] for part in told.split('"created":')[1:]}) < 2


async def test_an_answer_is_billed_once_though_two_routers_made_it(pair: Pair) -> None:
    go_on = hold(pair.first, *TEXTS[:3])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    await pair.begin(CHAT, events=4, n=1)
    pair.dies()
    assert (await pair.again(CHAT, 4, n=1)).content.endswith(b"data: [DONE]\n\n")
    go_on.set()  # the first was not dead at all, but what it still says counts no more
    await pair.first.until(lambda: pair.first.permits.open_count == 0)
    assert await pair.billed() == (1, len(TEXTS))


async def test_an_answer_that_another_router_makes_is_read_there_and_not_made_again(pair: Pair) -> None:
    go_on = hold(pair.first, *TEXTS[:3])
    seen = await pair.begin(CHAT, events=4)
    joined = asyncio.ensure_future(pair.again(CHAT))
    await asyncio.sleep(0.1)
    go_on.set()
    content = (await joined).content
    assert content.startswith(seen)
    assert content.endswith(b"data: [DONE]\n\n")
    assert not pair.second.pipeline.calls
    assert (await pair.again(CHAT)).content == content
    assert (await pair.second.http.post(CHAT, json={"model": MODEL}, headers=KEY)).status_code == 409


async def test_who_reads_through_another_router_waits_for_no_look_at_who_makes_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = SharedEventLog._is_made

    async def look_slowly(*given: Any) -> bool:
        await asyncio.sleep(2 * shared_events._LOOKS_S)
        return await look(*given)

    monkeypatch.setattr(SharedEventLog, "_is_made", look_slowly)
    go_on = hold(pair.first, *TEXTS[:3])
    seen = await pair.begin(CHAT, events=4)
    reading = asyncio.ensure_future(pair.again(CHAT))
    await asyncio.sleep(6 * shared_events._LOOKS_S)
    go_on.set()
    content = (await asyncio.wait_for(reading, 5)).content
    assert content.startswith(seen)
    assert content.endswith(b"data: [DONE]\n\n")


async def test_who_reads_through_another_router_sees_no_break_when_the_one_that_makes_it_dies(
    pair: Pair,
) -> None:
    hold(pair.first, *TEXTS[:3])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    await pair.begin(CHAT, events=4)
    reading = asyncio.ensure_future(pair.again(CHAT))
    await asyncio.sleep(0.1)
    pair.dies()
    content = (await reading).content
    assert content.endswith(b"data: [DONE]\n\n")
    assert len(pair.second.pipeline.calls) == 2  # its two choices


async def test_a_router_that_shuts_down_leaves_its_streams_to_the_others(pair: Pair) -> None:
    hold(pair.first, *TEXTS[:3])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    seen = await pair.begin(CHAT, events=4, n=1)
    pair.first.permits.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "the server is shutting down"))
    await pair.first.until(lambda: pair.first.permits.open_count == 0)
    rest = await pair.again(CHAT, len(sse.split(seen)), n=1)
    assert rest.content.endswith(b"data: [DONE]\n\n")
    assert await pair.billed() == (1, len(TEXTS))


async def test_another_answer_than_the_one_that_was_told_is_an_error(pair: Pair) -> None:
    hold(pair.first, *TEXTS[:3])

    def differ(call: Any) -> list[Any]:
        return [InflightError(ErrorKind.ENGINE_FAILED, "the answer could not be continued")]

    pair.second.pipeline.script = differ
    seen = await pair.begin(CHAT, events=4, n=1)
    pair.dies()
    rest = await pair.again(CHAT, len(sse.split(seen)), n=1)
    assert rest.content.startswith(b'data: {"error"')


async def test_a_background_response_whose_router_died_is_made_by_who_is_asked_for_it_again(
    pair: Pair,
) -> None:
    hold(pair.first, *TEXTS[:2])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    seen = await pair.begin("/v1/responses", events=6, background=True)
    response_id = seen.decode().split('"id":"resp_')[1].split('"')[0]
    pair.dies()
    again = await pair.again("/v1/responses", background=True)
    assert again.content.startswith(seen)
    stored = await pair.second.http.get(f"/v1/responses/resp_{response_id}")
    assert stored.json()["status"] == "completed"
    assert stored.json()["output"][0]["content"][0]["text"] == "Hello world, and more!"


async def test_streams_go_on_while_redis_is_away_and_are_kept_there_when_it_is_back(
    pair: Pair, redis: RedisServer
) -> None:
    go_on = hold(pair.first, *TEXTS[:3])
    reading = asyncio.ensure_future(pair.first.http.post(CHAT, json=STREAMS[CHAT], headers=KEY))
    await pair.first.until(lambda: bool(pair.first.pipeline.generations))
    redis.stop()
    go_on.set()
    content = (await reading).content
    assert content.endswith(b"data: [DONE]\n\n")
    redis.start()
    again = await pair.first.http.post(CHAT, json=STREAMS[CHAT], headers=KEY)
    assert again.content == content


async def test_one_router_alone_takes_an_answer_over_and_the_other_is_fenced_off(pair: Pair) -> None:
    logs = [router.parts.events for router in (pair.first, pair.second)]
    claim = Claim("f", "id", 1, 0.0)
    old = (await logs[0].claim("acme", "a", claim)).sink
    assert old is not None
    assert (await logs[1].claim("acme", "a", claim)).sink is None
    old.add([b"1"], b"x")
    assert await anext(await logs[0].follow("a", -1)) == [b"1"]
    pair.dies()
    taken = await logs[1].claim("acme", "a", claim)
    assert taken.sink is not None
    assert (taken.told, taken.bases, taken.take) == ((b"1",), (b"x",), 2)
    reader = await logs[0].follow("a", 0)
    old.add([b"late"])
    with pytest.raises(Moved):
        await anext(reader)
    assert old.is_taken
    taken.sink.add([b"2"])
    taken.sink.close()
    events = [event async for some in await logs[0].follow("a", -1) for event in some]
    assert events == [b"1", b"2"]


async def test_the_events_of_a_background_response_are_followed_through_another_router(pair: Pair) -> None:
    go_on = hold(pair.first, *TEXTS[:2])
    clients = [
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        for router in (pair.first, pair.second)
    ]
    made = await clients[0].responses.create(model=MODEL, input="hi", background=True, stream=True)
    seen: list[Any] = []
    async for event in made:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await made.close()
    resumed = await clients[1].responses.retrieve(
        seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    go_on.set()
    rest: list[Any] = [event async for event in resumed]
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    assert rest[-1].response.output_text == "Hello world, and more!"
    for client in clients:
        await client.close()
