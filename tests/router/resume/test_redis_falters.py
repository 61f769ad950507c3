"""Clients that come back while Redis, or a router's way to it, falters: 410 is only for what is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from router.control.peers import answer_outbox, redis_link, shared_events
from router.control.peers.redis_link import RedisAway, RedisLink
from router.control.peers.shared_events import SharedEventLog
from router.http import sse
from router.resume.event_log import Claim, LogAway, Moved, NotKept
from tests.fakes.pipeline import words
from tests.router.control.peers.redis_server import RedisServer
from tests.router.resume.pair import CHAT, KEY, STREAMS, TEXTS, Pair, hold

CLAIM = Claim("f", "id", 1, 0.0)


@pytest.fixture(autouse=True)
def going_on(redis: RedisServer) -> Iterator[None]:
    yield
    redis.thaw()


class Notices(logging.Handler):
    """Sets an event when a router says that Redis is away, or is back."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.back = asyncio.Event(), asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        (self.away if "only in this router" in record.getMessage() else self.back).set()


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> Iterator[Notices]:
    caplog.set_level(logging.INFO, answer_outbox.__name__)
    handler, logger = Notices(), logging.getLogger(answer_outbox.__name__)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_who_comes_back_while_redis_does_not_answer_goes_on_when_it_does(
    pair: Pair, redis: RedisServer, notices: Notices
) -> None:
    go_on = hold(pair.first, *TEXTS[:3])
    seen = await pair.begin(CHAT, events=4, n=1)
    redis.freeze()
    returning = asyncio.ensure_future(pair.again(CHAT, len(sse.split(seen)), n=1))
    await notices.away.wait()  # the second router has given up a question
    redis.thaw()
    go_on.set()
    rest = await returning
    assert rest.status_code == 200, rest.text
    whole = await pair.again(CHAT, n=1)
    assert whole.content == seen + rest.content
    assert not pair.second.pipeline.calls


async def test_who_comes_back_just_after_another_question_had_no_answer_goes_on(
    pair: Pair, redis: RedisServer
) -> None:
    go_on = hold(pair.first, *TEXTS[:3])
    seen = await pair.begin(CHAT, events=4, n=1)
    pair.logs[1]._outbox.lost(RedisAway("another claim had no answer"))
    go_on.set()
    rest = await pair.again(CHAT, len(sse.split(seen)), n=1)
    assert rest.status_code == 200, rest.text
    assert rest.content.endswith(b"data: [DONE]\n\n")


async def test_an_official_client_is_told_when_to_come_back_and_gets_the_rest(
    pair: Pair, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_events, "PATIENCE_S", 0.0)
    go_on = hold(pair.first, *TEXTS[:3])
    answers: list[httpx.Response] = []

    async def look(response: httpx.Response) -> None:
        answers.append(response)
        redis.thaw()
        go_on.set()

    body: Any = {**STREAMS[CHAT], "n": 1}
    async with AsyncExitStack() as closing:
        http = httpx.AsyncClient(event_hooks={"response": [look]}, trust_env=False)
        before, after = [
            await closing.enter_async_context(
                openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", http_client=client)
            )
            for router, client in ((pair.first, None), (pair.second, http))
        ]
        begun: Any = await before.chat.completions.create(**body, extra_headers=KEY)
        texts = [(await anext(begun)).choices[0].delta.content or "" for _ in range(4)]
        await begun.close()
        redis.freeze()
        headers = {**KEY, "last-event-id": "4"}
        rest: Any = await after.chat.completions.create(**body, extra_headers=headers)
        texts += [chunk.choices[0].delta.content or "" async for chunk in rest]
    assert [answer.status_code for answer in answers] == [503, 200]
    assert answers[0].headers["retry-after"] == "2"
    assert "".join(texts) == "".join(TEXTS)


async def test_410_is_told_once_no_router_can_have_the_answer_any_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_events, "PATIENCE_S", 0.0)
    gone = await pair.again(CHAT, 4)
    assert gone.status_code == 410
    assert "use a new key, without Last-Event-ID" in gone.json()["error"]["message"]
    assert not pair.client.keys("inflight:test:answer:*")  # the key is as free as it was
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    assert (await pair.again(CHAT)).content.endswith(b"data: [DONE]\n\n")


async def test_an_answer_begun_while_redis_was_away_goes_on_through_another_router_when_it_is_back(
    pair: Pair, redis: RedisServer, notices: Notices
) -> None:
    redis.freeze()
    go_on = hold(pair.first, *TEXTS[:3])
    seen = await pair.begin(CHAT, events=4, n=1)  # told by the first router alone
    returning = asyncio.ensure_future(pair.again(CHAT, len(sse.split(seen)), n=1))
    redis.thaw()
    go_on.set()
    rest = await returning
    assert rest.status_code == 200, rest.text
    assert (await pair.again(CHAT, n=1)).content == seen + rest.content
    assert not pair.second.pipeline.calls
    assert await pair.billed() == (1, len(TEXTS))


async def test_a_router_that_could_not_say_that_it_lives_is_not_taken_for_dead(
    pair: Pair, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_link, "_GRACE_S", 60.0)
    go_on = hold(pair.first, *TEXTS[:3])
    seen = await pair.begin(CHAT, events=4, n=1)
    redis.freeze()
    with pytest.raises(RedisAway):
        await pair.logs[1]._link.ask(pair.logs[1]._link.redis.ping())
    redis.thaw()
    pair.dies()  # its word has expired meanwhile
    returning = asyncio.ensure_future(pair.again(CHAT, len(sse.split(seen)), n=1))
    looked = "inflight:test:answer:*:read"
    await pair.second.until(lambda: bool(pair.client.keys(looked)), timeout_s=30)
    pair.lives("first")
    go_on.set()
    assert (await returning).content.endswith(b"data: [DONE]\n\n")
    assert not pair.second.pipeline.calls


async def test_events_that_were_told_but_never_stored_are_lost_with_their_router(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again they may be cut elsewhere: who has them cannot go on, and who has fewer can."""
    monkeypatch.setattr(shared_events, "PATIENCE_S", 0.0)
    hold(pair.first, *TEXTS[:3])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    seen = await pair.begin(CHAT, events=4, n=1)
    pair.dies()
    known = len(sse.split(seen))
    assert (await pair.again(CHAT, known + 3, n=1)).status_code == 410
    assert not pair.second.pipeline.calls
    rest = await pair.again(CHAT, known, n=1)
    assert rest.content.endswith(b"data: [DONE]\n\n")


async def test_an_answer_for_which_its_new_router_has_no_room_yet_can_be_continued_later(pair: Pair) -> None:
    hold(pair.first, *TEXTS[:3])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    seen = await pair.begin(CHAT, events=4, n=1)
    pair.dies()
    known = len(sse.split(seen))
    pair.second.permits.draining = True  # it refuses whatever it is asked for, before an engine hears of it
    refused = await pair.again(CHAT, known, n=1)
    assert b"id: " not in refused.content
    assert refused.content.startswith(b'data: {"error"')
    pair.second.permits.draining = False
    rest = await pair.again(CHAT, known, n=1)
    assert rest.content.endswith(b"data: [DONE]\n\n")
    assert (await pair.again(CHAT, n=1)).content == seen + rest.content
    assert await pair.billed() == (1, len(TEXTS))


async def test_a_repeated_request_does_not_prolong_how_long_its_answer_is_kept(pair: Pair) -> None:
    pair.first.pipeline.script = lambda call: words(*TEXTS)
    whole = await pair.first.http.post(CHAT, json=STREAMS[CHAT], headers=KEY)
    (key,) = pair.client.keys("inflight:test:answer:*")
    kept_ms = 1000 * pair.logs[0].memory.limits.kept_s
    await pair.first.until(lambda: pair.client.pttl(key) <= kept_ms)
    assert (await pair.again(CHAT)).content == whole.content
    assert pair.client.pttl(key) <= kept_ms


# How the routers agree on who makes an answer


async def logs_of(redis: RedisServer, closing: AsyncExitStack, *names: str) -> list[SharedEventLog]:
    logs = []
    for name in names:
        log = SharedEventLog(RedisLink(redis.url, "test"), name)
        closing.push_async_callback(log._link.close)
        closing.push_async_callback(log.close)
        logs.append(log)
    return logs


async def all_of(log: SharedEventLog, name: str) -> list[bytes]:
    return [event async for some in await log.follow(name, -1) for event in some]


@pytest.mark.parametrize("after", [1, None])
async def test_an_answer_whose_new_router_lost_redis_as_it_took_over_is_left_to_the_others(
    pair: Pair, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, after: int | None
) -> None:
    monkeypatch.setattr(shared_events, "PATIENCE_S", 0.0)
    async with AsyncExitStack() as closing:
        first, second, third = await logs_of(redis, closing, "first", "second", "third")
        sink = (await first.claim("acme", "a", CLAIM)).sink
        assert sink is not None
        sink.add([b"0", b"1"])
        await anext(await first.follow("a", -1))
        pair.dies()
        read = SharedEventLog._read
        failing = [False, True]  # the second read, behind the take

        async def fail(log: SharedEventLog, key: str) -> Any:
            if log is second and failing and failing.pop(0):
                raise RedisAway("no answer in time")
            return await read(log, key)

        monkeypatch.setattr(SharedEventLog, "_read", fail)
        if after is None:  # which may be a new request: it makes an answer of its own, here alone
            assert (await second.claim("acme", "a", CLAIM)).take == 1
        else:
            with pytest.raises(LogAway):
                await second.claim("acme", "a", CLAIM, after=after)
        # The second router lives: the third would wait for it, if it had not given the answer back.
        with pytest.raises(Moved):
            async for _ in await third.follow("a", 1):
                pass
        taken = await third.claim("acme", "a", CLAIM, after=1)
        assert (taken.told, taken.take) == ((b"0", b"1"), 3)


async def test_of_two_answers_begun_while_redis_was_away_one_is_kept_and_neither_is_mixed(
    pair: Pair, redis: RedisServer
) -> None:
    async with AsyncExitStack() as closing:
        first, second, third = await logs_of(redis, closing, "first", "second", "third")
        redis.freeze()
        claims = [await log.claim("acme", "b", CLAIM) for log in (first, second)]
        for claimed, letter in zip(claims, "xy", strict=True):
            assert claimed.sink is not None
            claimed.sink.add([b"%d%b" % (number, letter.encode()) for number in range(3)])
        redis.thaw()
        for claimed, letter in zip(claims, "xy", strict=True):
            assert claimed.sink is not None
            claimed.sink.add([b"3" + letter.encode()])
            claimed.sink.close()
        owns = [await all_of(log, "b") for log in (first, second)]
        assert owns == [[b"%d%b" % (n, letter) for n in range(4)] for letter in (b"x", b"y")]
        await pair.first.until(lambda: bool(pair.client.exists(third.key_of("b"))), timeout_s=30)
        assert await all_of(third, "b") in owns


async def test_a_router_that_was_taken_for_dead_cannot_delete_what_another_one_makes(
    pair: Pair, redis: RedisServer
) -> None:
    async with AsyncExitStack() as closing:
        first, second, third = await logs_of(redis, closing, "first", "second", "third")
        old = (await first.claim("acme", "c", CLAIM)).sink
        assert old is not None
        old.add([b"0"])
        await anext(await first.follow("c", -1))
        pair.dies()
        new = (await second.claim("acme", "c", CLAIM, after=0)).sink
        assert new is not None
        reader = await first.follow("c", 0)
        old.leave(b"", is_kept=False)  # nobody reads it there any more
        with pytest.raises(Moved):
            await anext(reader)
        new.add([b"1"])
        new.close()
        assert await all_of(third, "c") == [b"0", b"1"]


async def test_a_failed_answer_frees_its_key_for_every_router(pair: Pair, redis: RedisServer) -> None:
    async with AsyncExitStack() as closing:
        first, second = await logs_of(redis, closing, "first", "second")
        sink = (await first.claim("acme", "d", CLAIM)).sink
        assert sink is not None
        reader = await second.follow("d", -1)
        sink.leave(b"", is_kept=False)
        with pytest.raises(NotKept):
            await anext(reader)
        await pair.first.until(lambda: not pair.client.exists(first.key_of("d")), timeout_s=30)
        again = await second.claim("acme", "d", CLAIM)
        assert again.sink is not None
        assert again.take == 1


async def test_a_background_response_is_told_by_the_router_that_took_it_over_alone(
    pair: Pair,
) -> None:
    go_on = hold(pair.first, *TEXTS[:2])
    pair.second.pipeline.script = lambda call: words(*TEXTS)
    seen = await pair.begin("/v1/responses", events=6, background=True)
    response_id = "resp_" + seen.decode().split('"id":"resp_')[1].split('"')[0]
    pair.dies()  # it is only thought to be
    again = await pair.again("/v1/responses", background=True)
    go_on.set()
    await pair.first.until(lambda: pair.first.permits.open_count == 0)
    key = f"inflight:test:answer:{response_id}"
    entries: Any = pair.client.xrange(key)
    assert {entry_id.split(b"-")[0] for entry_id, _ in entries} == {b"2"}
    told = [sse.split(part)[0].split(b"data: ")[1] for part in sse.split(again.content)]
    stored = await pair.second.http.get(f"/v1/responses/{response_id}", params={"stream": "true"})
    events = [part.split(b"data: ")[1] for part in sse.split(stored.content)]
    assert events == told
    assert (await pair.second.http.get(f"/v1/responses/{response_id}")).json()["status"] == "completed"
