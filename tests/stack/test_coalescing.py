"""Every token arrives, in order, however fast the engine; and each on its own while there is time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack
from tests.stack.conftest import TinyModels, synthetic
from tests.stack.releasing import releases_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


async def stream_completion(http: httpx.AsyncClient, model: str, tokens: int) -> list[str]:
    body = {"model": model, "prompt": "Hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    pieces = []
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                pieces.append(msgspec.json.decode(line[6:])["choices"][0]["text"])
    return [piece for piece in pieces if piece]


async def streamed(stack: RunningStack, streams: int, tokens: int, tokenizer: Tokenizer) -> list[list[str]]:
    """The pieces of each stream, which must be the whole answer."""
    first_id = tokenizer.encode("Hello").ids[0]
    expected = tokenizer.decode([first_id + position % 50 for position in range(tokens)])
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120, limits=limits) as http:
        answers = await asyncio.gather(
            *(stream_completion(http, stack.model, tokens) for _ in range(streams))
        )
    assert {"".join(pieces) for pieces in answers} == {expected}
    return answers


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_checkpoint / "tokenizer.json"))


async def test_tokens_of_many_rapid_streams_arrive_complete_and_in_order(
    rapid_stack: RunningStack, tokenizer: Tokenizer
) -> None:
    await streamed(rapid_stack, 64, 500, tokenizer)


async def test_one_slow_stream_gets_its_tokens_as_chunks_of_their_own(
    rapid_stack: RunningStack, tiny_models: TinyModels, data_dir: Path, tokenizer: Tokenizer
) -> None:
    """Of a release whose engine leaves time enough for that; a busy machine may put a few together."""
    with releases_of(rapid_stack, data_dir) as releases:
        slow = releases.add("slow", tiny_models.usual, None, **synthetic(30))
        releases.installation.releases.promote("slow", slow.version)
        releases.load(slow)
    (pieces,) = await streamed(replace(rapid_stack, model="slow"), 1, 30, tokenizer)
    assert len(pieces) > 20
