"""Text put together chunk by chunk inside Triton is the text of decoding at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack
from python_backend.wire.stream_mark import StreamMark, following
from tests.stack.triton_calls import TritonCalls, build_request, outputs
from tests.text.corpus import TEXTS

pytestmark = pytest.mark.stack


def streams_open(stack: RunningStack) -> float:
    return stack.gauge("inflight_engine_postprocessing_streams")


async def decode_one_by_one(triton: TritonCalls, stream: int, ids: list[int]) -> str:
    """Feeds postprocessing as the engine does: one token a response, the stream's mark in the padding."""
    text, turn = b"", 0
    for position, token_id in enumerate(ids):
        mark = StreamMark(0, stream, turn, position == len(ids) - 1).to_padding_id()
        turn = following(turn)
        request = build_request(
            "postprocessing",
            f"text-{stream}",
            {"TOKENS_BATCH": [token_id, mark], "SEQUENCE_LENGTH": 1},
            {"TOKENS_BATCH": [1, 1, 2]},
        )
        text += outputs(await triton.stub.ModelInfer(request))["OUTPUT"][0]
    return text.decode()


async def test_every_token_of_texts_in_all_scripts_gives_exactly_the_text(
    stack: RunningStack, default_checkpoint: Path, thorough: bool
) -> None:
    """Some of those that tests/text decodes without Triton; all with --thorough."""
    tokenizer = Tokenizer.from_file(str(default_checkpoint / "tokenizer.json"))
    open_before = streams_open(stack)  # of requests that died with an engine; they are forgotten in time
    texts = [text for text in TEXTS if text][:: 1 if thorough else 8]
    encoded = [tokenizer.encode(text).ids for text in texts]
    async with TritonCalls(stack.triton_grpc_url) as triton:
        decoded: list[str] = []
        for start in range(0, len(encoded), 16):
            group = encoded[start : start + 16]
            decoded += await asyncio.gather(
                *(decode_one_by_one(triton, start + index, ids) for index, ids in enumerate(group))
            )
    assert decoded == [tokenizer.decode(ids) for ids in encoded]
    assert not any("\ufffd" in text for text in decoded)
    assert streams_open(stack) <= open_before


async def test_a_stream_without_an_id_keeps_its_characters_whole(
    steady_stack: RunningStack, default_checkpoint: Path
) -> None:
    """Clients may leave the request id empty; streams are still told apart."""
    open_before = streams_open(steady_stack)
    inputs = {"text_input": "🙂 🙃 🙂 🙃 🙂 🙃 🙂", "max_tokens": 24, "stream": True, "end_id": -1}
    async with TritonCalls(steady_stack.triton_grpc_url) as triton:

        async def generate() -> tuple[str, int]:
            pieces = []
            async for response in triton.stream(build_request("ensemble", "", inputs)):
                pieces += [piece.decode() for piece in response.get("text_output", [])]
            return "".join(pieces), len(pieces)

        answers = await asyncio.gather(*(generate() for _ in range(4)))
    assert len({text for text, _ in answers}) == 1
    assert "\ufffd" not in answers[0][0]
    assert streams_open(steady_stack) <= open_before
