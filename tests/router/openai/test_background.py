"""Responses with `background`, as OpenAI's own client uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.response_store import ResponseStore
from router.content.lookup import Owner
from router.content.storage_quota import StorageQuota
from router.core.tenant import LOCAL_CALLER
from router.openai import background
from router.request.permit import Permits
from router.server import drain
from tests.fakes.pipeline import words
from tests.router.running import MODEL, RunningRouter
from tests.waiting import until


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def go_on(router: RunningRouter) -> asyncio.Event:
    """Until it is set, an answer has come to its first word."""
    event = asyncio.Event()
    first, *rest = words("Hello", " world", "!")
    router.pipeline.script = lambda call: [first, event, *rest]
    return event


async def ended(client: openai.AsyncOpenAI, response_id: str) -> Any:
    async def is_over() -> bool:
        return (await client.responses.retrieve(response_id)).status not in ("queued", "in_progress")

    await until(is_over)
    return await client.responses.retrieve(response_id)


async def test_a_background_response_is_queued_then_in_progress_then_completed(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event
) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    await router.until(lambda: bool(router.pipeline.generations))
    assert (await client.responses.retrieve(made.id)).status == "in_progress"
    go_on.set()
    response = await ended(client, made.id)
    assert (response.status, response.output_text) == ("completed", "Hello world!")
    assert response.usage.total_tokens == 10
    items: list[Any] = [item async for item in client.responses.input_items.list(made.id)]
    assert [item.content[0].text for item in items] == ["hi"]
    (used,) = await router.usage("local")
    assert (used.requests, used.completion_tokens) == (1, 3)


async def test_a_reader_that_leaves_resumes_where_it_was(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event
) -> None:
    stream = await client.responses.create(model=MODEL, input="hi", background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert [event.type for event in seen[:3]] == [
        "response.created", "response.queued", "response.in_progress"
    ]  # fmt: skip
    response_id = seen[0].response.id
    resumed = await client.responses.retrieve(
        response_id, stream=True, starting_after=seen[-1].sequence_number
    )
    go_on.set()
    rest = [event async for event in resumed]
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "Hello world!"
    again = [event async for event in await client.responses.retrieve(response_id, stream=True)]
    assert again == [*seen, *rest]
    assert not router.pipeline.generations[0].stopped
    (used,) = await router.usage("local")
    assert used.requests == 1


async def test_a_cancelled_response_ends_the_generation_once(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event
) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True, stream=True)
    events = [await anext(made) for _ in range(4)]
    response_id = events[0].response.id
    cancelled = await client.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    rest: list[Any] = [event async for event in made]
    assert (rest[-1].type, rest[-1].response.status) == ("response.failed", "cancelled")
    assert router.pipeline.generations[0].stopped
    assert (await client.responses.cancel(response_id)).status == "cancelled"
    assert (await client.responses.retrieve(response_id)).status == "cancelled"
    assert router.permits.open_count == 0
    (used,) = await router.usage("local")
    assert (used.requests, used.completion_tokens) == (1, 1)


async def test_a_response_that_is_cancelled_through_another_router_is_no_longer_made(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_RENEWED_S", 0.02)
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    await router.until(lambda: bool(router.pipeline.generations))
    elsewhere = ResponseStore(router.parts.store, StorageQuota(1 << 30))
    assert (await elsewhere.cancel(Owner.of(LOCAL_CALLER), made.id))["status"] == "cancelled"
    await router.until(lambda: router.permits.open_count == 0)
    assert router.pipeline.generations[0].stopped
    assert (await ended(client, made.id)).status == "cancelled"


async def test_a_response_that_has_ended_stays_so_when_it_is_cancelled(
    client: openai.AsyncOpenAI,
) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    await ended(client, made.id)
    assert (await client.responses.cancel(made.id)).status == "completed"


async def test_an_engine_that_fails_fails_the_response(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    first = words("Hello")[0]
    router.pipeline.script = lambda call: [first, InflightError(ErrorKind.ENGINE_FAILED, "it broke")]
    stream = await client.responses.create(model=MODEL, input="hi", background=True, stream=True)
    events: list[Any] = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"
    response = await client.responses.retrieve(events[0].response.id)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_error"


async def test_a_prompt_that_is_refused_before_its_turn_fails_the_response(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    router.pipeline.script = lambda call: [InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, "too long")]
    stream = await client.responses.create(model=MODEL, input="hi", background=True, stream=True)
    events: list[Any] = [event async for event in stream]
    assert [(event.type, event.sequence_number) for event in events] == [
        ("response.created", 0), ("response.queued", 1), ("response.failed", 2)
    ]  # fmt: skip


async def test_a_length_limit_makes_a_background_response_incomplete(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    router.pipeline.script = lambda call: words("cut", finish="length")
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    assert (await ended(client, made.id)).status == "incomplete"


async def test_a_background_response_belongs_to_the_user_who_made_it(
    router: RunningRouter, go_on: asyncio.Event
) -> None:
    tenant = await router.new_tenant()
    keys = [await router.new_key(tenant) for _ in range(2)]
    own, other = ({"authorization": f"Bearer {key}"} for key in keys)
    body = {"model": MODEL, "input": "hi", "background": True}
    made = (await router.http.post("/v1/responses", json=body, headers=own)).json()
    path = f"/v1/responses/{made['id']}"
    for answer in (
        await router.http.get(path, headers=other),
        await router.http.get(f"{path}?stream=true", headers=other),
        await router.http.post(f"{path}/cancel", headers=other),
        await router.http.delete(path, headers=other),
    ):
        assert answer.status_code == 404
    assert (await router.http.get(path, headers=own)).status_code == 200
    go_on.set()


async def test_a_response_that_is_being_made_cannot_be_continued(
    client: openai.AsyncOpenAI, go_on: asyncio.Event
) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    with pytest.raises(openai.BadRequestError, match="is not completed"):
        await client.responses.create(model=MODEL, input="and?", previous_response_id=made.id)
    go_on.set()
    await ended(client, made.id)
    await client.responses.create(model=MODEL, input="and?", previous_response_id=made.id)


async def test_a_deleted_response_is_no_longer_made(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event
) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    await router.until(lambda: bool(router.pipeline.generations))
    await client.responses.delete(made.id)
    await router.until(lambda: router.permits.open_count == 0)
    assert router.pipeline.generations[0].stopped
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_a_router_that_stops_ends_background_responses_and_records_that(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event
) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    await router.until(lambda: bool(router.pipeline.generations))
    hurry = asyncio.Event()
    hurry.set()
    await drain(router.permits, 0.0, hurry, 1.0)
    response = await ended(client, made.id)
    assert response.status == "failed"
    assert "shutting down" in response.error.message
    assert router.permits.open_count == 0


async def test_so_many_background_responses_of_a_tenant_run_at_once(
    router: RunningRouter, client: openai.AsyncOpenAI, go_on: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MOST_RUNS_EACH", 2)
    for _ in range(2):
        await client.responses.create(model=MODEL, input="hi", background=True)
    with pytest.raises(openai.RateLimitError, match="in the background"):
        await client.responses.create(model=MODEL, input="hi", background=True)
    go_on.set()


async def test_a_background_response_waits_for_its_turn_where_others_would_be_refused(
    router: RunningRouter, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_known = Permits.admit, asyncio.Event()
    refused: list[str | None] = []

    async def admit(self: Permits, record: Any, *given: Any) -> Any:
        await is_known.wait()
        if len(refused) < 2:
            refused.append((await client.responses.retrieve(made.id)).status)
            raise InflightError(ErrorKind.OVERLOADED, "too late", retry_after_s=0.01)
        return await real(self, record, *given)

    monkeypatch.setattr(Permits, "admit", admit)
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    is_known.set()
    assert (await ended(client, made.id)).status == "completed"
    assert refused == ["queued", "queued"]
    (used,) = await router.usage("local")
    assert used.requests == 1


async def test_a_background_response_that_waits_can_be_cancelled(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(*given: Any) -> Any:
        raise InflightError(ErrorKind.OVERLOADED, "too late", retry_after_s=30.0)

    monkeypatch.setattr(Permits, "admit", admit)
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    assert (await client.responses.cancel(made.id)).status == "cancelled"


async def test_events_that_are_not_kept_are_refused_clearly(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi", background=True)
    await ended(client, made.id)
    with pytest.raises(openai.BadRequestError, match="no longer, stored"):
        await client.responses.retrieve(made.id, stream=True)
