from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from router.content.batches import rows
from router.core.tenant import Scope
from tests.router.content.batches.running import BatchClient, batch_client, batch_runner, jsonl, request
from tests.router.running import RunningRouter

INPUT = jsonl([request("a")])


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[BatchClient]:
    async with batch_client(router) as made:
        yield made


async def test_a_new_batch_is_shown_as_openai_shows_one(client: BatchClient) -> None:
    file_id = await client.upload(INPUT)
    made = await client.openai.batches.create(
        input_file_id=file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"job": "nightly"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (made.object, made.status, made.input_file_id) == ("batch", "validating", file_id)
    assert made.metadata == {"job": "nightly"}
    assert made.expires_at == made.created_at + 86_400
    assert made.completion_window == "24h"
    assert made.output_file_id is None
    assert made.errors is None
    assert await client.openai.batches.retrieve(made.id) == made


async def test_output_files_expire_as_requested(router: RunningRouter, client: BatchClient) -> None:
    made = await client.openai.batches.create(
        input_file_id=await client.upload(INPUT),
        endpoint="/v1/chat/completions",
        completion_window="24h",
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    async with batch_runner(router):
        ended = await client.until_over(made)
    assert ended.output_file_id is not None
    output = await client.openai.files.retrieve(ended.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{made.id}_output.jsonl")
    assert output.expires_at == output.created_at + 3600


async def test_batches_are_listed_newest_first_in_pages(client: BatchClient) -> None:
    made = [(await client.make(INPUT)).id for _ in range(5)]
    assert [batch.id async for batch in client.openai.batches.list(limit=2)] == made[::-1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"input_file_id": None}, "input_file_id"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_an_invalid_batch_is_refused(router: RunningRouter, fields: dict[str, Any], param: str) -> None:
    body = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h", **fields}
    answer = await router.http.post("/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_the_input_must_be_a_file_for_batches(client: BatchClient) -> None:
    other = await client.openai.files.create(file=b"x", purpose="user_data")
    for file_id, error in ((other.id, openai.BadRequestError), ("file-none", openai.NotFoundError)):
        with pytest.raises(error):
            await client.openai.batches.create(
                input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
            )


async def test_an_input_cannot_be_deleted_while_its_batch_needs_it(
    router: RunningRouter, client: BatchClient
) -> None:
    batch = await client.make(INPUT)
    with pytest.raises(openai.ConflictError, match=f"is the input of {batch.id}"):
        await client.openai.files.delete(batch.input_file_id)
    async with batch_runner(router):
        await client.until_over(batch)
    assert (await client.openai.files.delete(batch.input_file_id)).deleted


async def test_only_an_unfinished_batch_can_be_cancelled(router: RunningRouter, client: BatchClient) -> None:
    batch = await client.make(INPUT)
    assert (await client.openai.batches.cancel(batch.id)).status == "cancelling"
    assert (await client.openai.batches.cancel(batch.id)).status == "cancelling"
    async with batch_runner(router):
        ended = await client.until_over(batch)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("cancelled", None, None)
    with pytest.raises(openai.ConflictError, match="is cancelled: only a batch that"):
        await client.openai.batches.cancel(batch.id)
    assert router.pipeline.calls == []


@pytest.mark.parametrize("batch_id", ["nope", "%01", "x" * 300])
async def test_an_unknown_batch_is_not_found(router: RunningRouter, batch_id: str) -> None:
    assert (await router.http.get(f"/v1/batches/{batch_id}")).status_code == 404
    assert (await router.http.post(f"/v1/batches/{batch_id}/cancel")).status_code == 404
    assert (await router.http.get(f"/v1/batches?after={batch_id}")).status_code == 404


async def test_batches_are_invisible_to_other_organisations(router: RunningRouter) -> None:
    scopes = frozenset({Scope.FILES, Scope.INFERENCE})
    ours = await router.new_key(await router.new_tenant("ours"), scopes)
    theirs = await router.new_key(await router.new_tenant("theirs"), scopes)
    async with batch_client(router, ours) as we, batch_client(router, theirs) as they:
        batch = await we.make(INPUT)
        for act in (they.openai.batches.retrieve, they.openai.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await act(batch.id)
        with pytest.raises(openai.NotFoundError):
            await they.openai.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"
            )
        assert (await they.openai.batches.list()).data == []
        assert (await we.openai.batches.retrieve(batch.id)).status == "validating"


async def test_a_batch_needs_a_key_that_could_send_its_lines(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(), frozenset({Scope.FILES, Scope.EMBEDDINGS}))
    async with batch_client(router, key) as client:
        with pytest.raises(openai.PermissionDeniedError, match="lacks the scope inference"):
            await client.make(INPUT)


async def test_an_organisation_has_a_bounded_number_of_open_batches(
    client: BatchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_OPEN", 2)
    await client.make(INPUT)
    await client.make(INPUT)
    with pytest.raises(openai.RateLimitError, match="has 2 unfinished batches"):
        await client.make(INPUT)
