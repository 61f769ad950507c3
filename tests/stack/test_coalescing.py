"""Every token arrives, in order, however fast the engine; and each on its own while there is time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack, running_stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STREAMS, TOKENS = 64, 1000


@pytest.fixture(scope="module", params=[20_000, 8])
def synthetic(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[tuple[RunningStack, int]]:
    engine = {"inflight_runtime": "synthetic", "inflight_synthetic_tokens_per_s": str(request.param)}
    with running_stack(engine, data_dir=data_dir, embeddings=False) as stack:
        yield stack, request.param


async def stream_completion(http: httpx.AsyncClient, model: str, tokens: int) -> list[str]:
    body = {"model": model, "prompt": "Hello", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    pieces = []
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                pieces.append(msgspec.json.decode(line[6:])["choices"][0]["text"])
    return [piece for piece in pieces if piece]


async def test_tokens_arrive_complete_and_in_order(
    synthetic: tuple[RunningStack, int], default_checkpoint: Path
) -> None:
    stack, rate = synthetic
    streams, tokens = (STREAMS, TOKENS) if rate > 1000 else (1, 15)
    tokenizer = Tokenizer.from_file(str(default_checkpoint / "tokenizer.json"))
    first_id = tokenizer.encode("Hello").ids[0]
    expected = tokenizer.decode([first_id + position % 50 for position in range(tokens)])
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120, limits=limits) as http:
        answers = await asyncio.gather(
            *(stream_completion(http, stack.model, tokens) for _ in range(streams))
        )
    assert {"".join(pieces) for pieces in answers} == {expected}
    if streams == 1:
        assert len(answers[0]) == tokens, "one slow stream gets each token as a chunk of its own"
