"""Short requests do not wait for a long one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from benchmarks.stack import RunningStack
from tests.stack.triton_calls import TritonCalls, build_request

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

SHORT_REQUESTS, SHORT_TOKENS = 12, 4
PROMPT = list(range(1000, 1012))


@dataclass
class Race:
    """How far the long request was when each short one of the two rounds ended."""

    long_tokens: int = 0
    when_first_round_ended: tuple[int, ...] = ()
    when_second_round_ended: tuple[int, ...] = ()


async def run_race(stack: RunningStack, long_tokens: int) -> Race:
    """The short requests together with a long one; then, while the long one runs, one short one more."""
    race = Race()
    async with TritonCalls(stack.triton_grpc_url) as triton:

        async def run_long() -> None:
            inputs = {
                "input_ids": PROMPT,
                "input_lengths": len(PROMPT),
                "request_output_len": long_tokens,
                "streaming": True,
            }
            async for response in triton.stream(build_request("tensorrt_llm", "long", inputs)):
                race.long_tokens += len(response.get("output_ids", []))

        async def run_short(index: int) -> int:
            assert len(await triton.generate_ids(f"short-{index}", PROMPT, SHORT_TOKENS)) == SHORT_TOKENS
            return race.long_tokens

        long_request = asyncio.create_task(run_long())
        race.when_first_round_ended = tuple(
            await asyncio.gather(*(run_short(index) for index in range(SHORT_REQUESTS)))
        )
        race.when_second_round_ended = (await run_short(SHORT_REQUESTS),)
        await long_request
    assert race.long_tokens == long_tokens
    return race


async def test_short_requests_end_before_the_long_one_is_a_quarter_done(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    long_tokens = long_answer_tokens // 4
    race = await run_race(stack, long_tokens)
    assert max(race.when_first_round_ended) < long_tokens / 4
    assert max(race.when_second_round_ended) < long_tokens / 2
