from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.content.batches import decisions
from router.core.generation import GenerationCall
from router.core.objective import Metric
from router.core.tenant import Limits, Scope
from router.store.content_tables import batch_lines, batches
from tests.fakes.pipeline import words
from tests.router.content.batches.running import (
    QUICK,
    BatchClient,
    batch_client,
    batch_runner,
    jsonl,
    request,
)
from tests.router.running import EMBEDDER, RunningRouter

BATCH_SCOPES = frozenset({Scope.FILES, Scope.INFERENCE, Scope.EMBEDDINGS})


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[BatchClient]:
    async with batch_client(router) as made:
        yield made


def requests(count: int) -> bytes:
    tiers = ("auto", "priority")  # whatever they ask for
    return jsonl([request(f"r{n}", seed=n, service_tier=tiers[n % 2]) for n in range(count)])


def ids(lines: list[dict[str, object]]) -> list[object]:
    return [line["custom_id"] for line in lines]


async def test_every_line_is_answered_in_the_order_of_the_input(
    router: RunningRouter, client: BatchClient
) -> None:
    async with batch_runner(router):
        ended = await client.until_over(await client.make(requests(30)))
    assert ended.status == "completed"
    assert (ended.error_file_id, ended.model) == (None, "tiny")
    lines = await client.lines(ended.output_file_id)
    assert ids(lines) == [f"r{number}" for number in range(30)]
    assert lines[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
    assert lines[0]["response"]["status_code"] == 200
    assert lines[0]["response"]["request_id"] == lines[0]["response"]["body"]["id"]
    assert lines[0]["error"] is None
    assert {call.tier for call in router.pipeline.calls} == {"batch"}
    measured = router.metrics.objectives.window("tiny", Tier.BATCH, Metric.FIRST_TOKEN)
    assert measured.samples == 30
    assert ended.usage is not None
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (7 * 30, 2 * 30)


async def test_a_line_that_fails_is_in_the_error_file_and_the_others_go_on(
    router: RunningRouter, client: BatchClient
) -> None:
    content = jsonl([request("good"), request("bad", temperature=9), request("fine")])
    async with batch_runner(router):
        ended = await client.until_over(await client.make(content))
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert (ended.request_counts.completed, ended.request_counts.failed) == (2, 1)
    assert ids(await client.lines(ended.output_file_id)) == ["good", "fine"]
    [line] = await client.lines(ended.error_file_id)
    assert (line["custom_id"], line["response"]["status_code"]) == ("bad", 400)
    assert line["response"]["body"]["error"]["param"] == "temperature"


async def test_embeddings_completions_and_responses_run_as_batches(
    router: RunningRouter, client: BatchClient
) -> None:
    inputs = jsonl([request("e", "/v1/embeddings", model=EMBEDDER, input="hi")])
    texts = jsonl([request("c", "/v1/completions", prompt="hi")])
    asked = jsonl([request("r", "/v1/responses", input="hi")])
    async with batch_runner(router):
        responded = await client.until_over(await client.make(asked, "/v1/responses"))
        embedded = await client.until_over(await client.make(inputs, "/v1/embeddings"))
        completed = await client.until_over(await client.make(texts, "/v1/completions"))
    [line] = await client.lines(responded.output_file_id)
    assert line["response"]["body"]["output"][0]["content"][0]["text"] == "Hello world"
    [line] = await client.lines(embedded.output_file_id)
    assert line["response"]["body"]["data"][0]["object"] == "embedding"
    [line] = await client.lines(completed.output_file_id)
    assert line["response"]["body"]["choices"][0]["text"] == "Hello world"


async def test_an_input_with_mistakes_fails_with_their_line_numbers(
    router: RunningRouter, client: BatchClient
) -> None:
    content = jsonl([request("a"), request("a"), request("b", "/v1/completions")]) + b"nonsense\n"
    async with batch_runner(router):
        ended = await client.until_over(await client.make(content))
        empty = await client.until_over(await client.make(b"\n\n"))
    assert (ended.status, ended.output_file_id) == ("failed", None)
    assert ended.failed_at is not None
    assert ended.errors is not None
    assert ended.errors.data is not None
    assert [(each.line, each.code) for each in ended.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "mismatched_url"),
        (4, "invalid_json_line"),
    ]
    assert empty.status == "failed"
    assert router.pipeline.calls == []


async def test_at_most_concurrency_lines_are_in_flight_and_progress_shows(
    router: RunningRouter, client: BatchClient
) -> None:
    gate = asyncio.Event()
    router.pipeline.script = lambda call: words("x") if gate.is_set() else [None]
    async with batch_runner(router, replace(QUICK, concurrency=3)):
        batch = await client.make(requests(9))
        await router.until(lambda: len(router.pipeline.calls) == 3)
        await asyncio.sleep(0.1)
        assert len(router.pipeline.calls) == 3
        shown = await client.openai.batches.retrieve(batch.id)
        assert shown.status == "in_progress"
        assert shown.request_counts is not None
        assert shown.request_counts.total == 9


async def test_a_cancelled_batch_keeps_what_is_done(router: RunningRouter, client: BatchClient) -> None:
    router.pipeline.script = lambda call: words("x") if call.seed < 5 else [None]
    async with batch_runner(router):
        batch = await client.make(requests(12))
        await router.until(lambda: len(router.pipeline.calls) == 9)
        await router.until(lambda: sum(each.ended for each in router.pipeline.generations) == 5)
        cancelling = await client.openai.batches.cancel(batch.id)
        assert cancelling.status == "cancelling"
        ended = await client.until_over(batch)
    assert ended.status == "cancelled"
    assert ended.cancelled_at is not None
    assert ids(await client.lines(ended.output_file_id)) == [f"r{number}" for number in range(5)]
    dropped = await client.lines(ended.error_file_id)
    assert ids(dropped) == [f"r{number}" for number in range(5, 12)]
    assert {line["error"]["code"] for line in dropped} == {"batch_cancelled"}
    await router.until(lambda: router.permits.open_count == 0)


async def test_a_batch_out_of_time_keeps_what_is_done(router: RunningRouter, client: BatchClient) -> None:
    router.pipeline.script = lambda call: words("x") if call.seed < 2 else [None]
    async with batch_runner(router):
        batch = await client.make(requests(4))
        await router.until_async(lambda: _completed(client, batch.id), 2)
        await router.parts.store.write(lambda c: c.execute(sql.update(batches).values(expires_s=1.0)))
        ended = await client.until_over(batch)
    assert (ended.status, ended.completed_at) == ("expired", None)
    assert ended.expired_at is not None
    assert len(await client.lines(ended.output_file_id)) == 2
    assert {line["error"]["code"] for line in await client.lines(ended.error_file_id)} == {"batch_expired"}


async def _completed(client: BatchClient, batch_id: str) -> int:
    counts = (await client.openai.batches.retrieve(batch_id)).request_counts
    return 0 if counts is None else counts.completed


async def test_a_line_in_flight_when_its_router_stops_is_run_by_another(
    router: RunningRouter, client: BatchClient
) -> None:
    router.pipeline.script = lambda call: [None]
    async with batch_runner(router):
        batch = await client.make(requests(6))
        await router.until(lambda: len(router.pipeline.calls) == 4)
    router.pipeline.script = lambda call: words("x")
    async with batch_runner(router):
        ended = await client.until_over(batch)
    assert len(await client.lines(ended.output_file_id)) == 6
    assert ended.request_counts is not None
    assert ended.request_counts.completed == 6


async def test_two_routers_share_a_batch_and_answer_each_line_once(
    router: RunningRouter, client: BatchClient
) -> None:
    async with batch_runner(router), batch_runner(router):
        ended = await client.until_over(await client.make(requests(60)))
    assert ids(await client.lines(ended.output_file_id)) == [f"r{number}" for number in range(60)]
    assert Counter(call.seed for call in router.pipeline.calls) == Counter(range(60))


async def test_lines_wait_for_an_unavailable_engine(
    router: RunningRouter, client: BatchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "_BUSY_WAIT_S", 0.05)
    seen: Counter[int] = Counter()

    def flaky(call: GenerationCall) -> list[object]:
        seen[call.seed] += 1
        kind = ErrorKind.ENGINE_FAILED if call.seed else ErrorKind.INTERNAL
        if seen[call.seed] == 1 or call.seed == 2:
            return [InflightError(kind, "gone")]
        return list(words("x"))

    router.pipeline.script = flaky  # type: ignore[assignment]  # a list of steps
    async with batch_runner(router):
        ended = await client.until_over(await client.make(requests(3)))
    assert ids(await client.lines(ended.output_file_id)) == ["r1"]
    failed = await client.lines(ended.error_file_id)
    assert [(line["custom_id"], line["response"]["status_code"]) for line in failed] == [
        ("r0", 500),
        ("r2", 503),
    ]
    assert seen == {0: 1, 1: 2, 2: 3}


async def test_a_tenants_limit_delays_lines_and_fails_none(router: RunningRouter) -> None:
    tenant = await router.new_tenant(limits=Limits(concurrent_requests=2))
    key = await router.new_key(tenant, BATCH_SCOPES)
    router.pipeline.script = lambda call: [0.01, *words("x")]
    async with batch_client(router, key) as client, batch_runner(router):
        ended = await client.until_over(await client.make(requests(6)))
        assert len(await client.lines(ended.output_file_id)) == 6
    assert ended.error_file_id is None
    [used] = await router.usage(tenant)
    assert used.requests == 6


async def test_lines_run_under_the_key_of_their_batch_while_it_is_valid(
    router: RunningRouter,
) -> None:
    tenant = await router.new_tenant()
    key = await router.new_key(tenant, BATCH_SCOPES)
    async with batch_client(router, key) as client:
        batch = await client.make(requests(2))
        await router.parts.store.write(
            lambda c: c.execute(sql.update(batches).values(key_id="key-that-was-revoked"))
        )
        async with batch_runner(router):
            ended = await client.until_over(batch)
        lines = await client.lines(ended.error_file_id)
    assert {line["response"]["status_code"] for line in lines} == {401}
    assert router.pipeline.calls == []


async def test_lines_are_deleted_once_their_results_are_in_files(
    router: RunningRouter, client: BatchClient
) -> None:
    async with batch_runner(router):
        await client.until_over(await client.make(requests(3)))
    assert await router.parts.store.read(lambda c: c.execute(sql.select(batch_lines)).all()) == []
