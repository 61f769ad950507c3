"""Embeddings through router and Triton: the official client, the published values, shared batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from benchmarks.stack import RunningStack
from launcher.settings import StackSettings
from python_backend.embeddings.model import EmbeddingModel
from tests.embeddings.checkpoints import embed, embeddings_checkpoint
from tests.embeddings.published import PUBLISHED
from tests.pace import patience

pytestmark = pytest.mark.stack

MODEL = StackSettings().embeddings
HUNDRED = [f"sentence number {number} is about {number % 7} things" for number in range(100)]


@pytest.fixture(scope="module")
def model(data_dir: Path) -> EmbeddingModel:
    return EmbeddingModel.load(embeddings_checkpoint(data_dir))


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def vectors(answer: Any) -> np.ndarray[Any, Any]:
    return np.array([item.embedding for item in answer.data])


async def test_values_are_the_published_ones_in_both_forms(client: openai.AsyncOpenAI) -> None:
    plain = await client.embeddings.create(model=MODEL, input=list(PUBLISHED), encoding_format="float")
    packed = await client.embeddings.create(model=MODEL, input=list(PUBLISHED))  # asks for base64 by itself
    for answer in (plain, packed):
        assert vectors(answer)[:, :3] == pytest.approx(np.array(list(PUBLISHED.values())), abs=1e-6)
        assert np.linalg.norm(vectors(answer), axis=1) == pytest.approx(1, abs=1e-6)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == 13


async def test_a_hundred_texts_come_back_in_order_and_as_if_each_were_alone(
    client: openai.AsyncOpenAI, model: EmbeddingModel
) -> None:
    answer = await client.embeddings.create(model=MODEL, input=HUNDRED)
    assert [item.index for item in answer.data] == list(range(100))
    assert np.abs(vectors(answer)[::9] - np.array(embed(model, *HUNDRED[::9]))).max() < 1e-6
    assert answer.usage.total_tokens == sum(map(len, model.word_pieces.encode(HUNDRED)))


async def test_embeddings_accept_token_ids_and_fewer_dimensions(
    client: openai.AsyncOpenAI, model: EmbeddingModel
) -> None:
    framed = model.word_pieces.encode(HUNDRED[:20])
    whole = np.array(embed(model, *HUNDRED[:20]))
    answer = await client.embeddings.create(model=MODEL, input=[ids[1:-1] for ids in framed], dimensions=64)
    cut = whole[:, :64]
    assert vectors(answer) == pytest.approx(cut / np.linalg.norm(cut, axis=1, keepdims=True), abs=1e-6)
    alone = await client.embeddings.create(model=MODEL, input=framed[0])
    assert vectors(alone)[0] == pytest.approx(whole[0], abs=1e-6)


async def test_requests_of_many_callers_share_batches(
    stack: RunningStack, client: openai.AsyncOpenAI
) -> None:
    def counts() -> tuple[float, float]:
        """Rows, and how often the model ran."""
        families = ("nv_inference_count", "nv_inference_exec_count")
        rows, runs = (stack.gauge(family, model="embeddings") for family in families)
        return rows, runs

    rows_before, runs_before = counts()
    answers = await asyncio.gather(
        *(client.embeddings.create(model=MODEL, input=text) for text in HUNDRED[:64])
    )
    assert len({tuple(answer.data[0].embedding) for answer in answers}) == 64
    rows, runs = counts()
    assert 64 <= rows - rows_before <= 80, "and a few of the router's own, which look whether it lives"
    assert runs - runs_before <= 32, "Triton's dynamic batcher puts requests together"


async def test_an_embedding_model_is_listed_ready_and_distinct_from_text_models(
    stack: RunningStack, client: openai.AsyncOpenAI
) -> None:
    assert [each.id async for each in client.models.list()] == [stack.model, MODEL]
    async with httpx.AsyncClient(base_url=stack.url, timeout=patience(30)) as http:
        assert (await http.get("/health/ready")).json()["models"] == {stack.model: True, MODEL: True}
    with pytest.raises(openai.BadRequestError, match="use /v1/embeddings"):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match=f"use '{MODEL}' instead"):
        await client.embeddings.create(model=stack.model, input="hi")
    with pytest.raises(openai.BadRequestError, match=r"dimensions: 385 is more .* allowed: 1 to 384"):
        await client.embeddings.create(model=MODEL, input="hi", dimensions=385)
