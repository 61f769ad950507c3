"""Two routers and a real Redis: a stream that one of them began is read, and ended, by the other."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.peers import shared_events
from router.control.peers.shared_events import SharedEventLog
from router.http import sse
from router.resume.event_log import Claim, Moved
from tests.fakes.pipeline import words
from tests.router.control.peers.redis_server import RedisServer
from tests.router.resume.pair import CHAT, KEY, STREAMS, TEXTS, Pair, hold
from tests.router.running import MODEL


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
    look = SharedEventLog._look

    async def look_slowly(*given: Any) -> None:
        await asyncio.sleep(2 * shared_events._LOOKS_S)
        await look(*given)

    monkeypatch.setattr(SharedEventLog, "_look", look_slowly)
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
