"""Short requests do not wait for a long one, by the engine's own clock: a client may hear of them late."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from benchmarks.stack import RunningStack
from tests.stack.triton_calls import TritonCalls

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

SHORT_TOKENS = 4
PROMPT = list(range(1000, 1012))


@dataclass(frozen=True)
class Course:
    arrived_ns: int
    ended_ns: int


async def test_short_requests_that_come_while_a_long_one_runs_end_before_it(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    async with TritonCalls(stack.triton_grpc_url) as triton:

        async def ask(request_id: str, tokens: int) -> Course:
            answer = await triton.generate(request_id, PROMPT, tokens, {})
            assert len(answer["output_ids"]) == tokens
            return Course(answer["arrival_time_ns"][0], answer["last_token_time_ns"][0])

        asking_long = asyncio.create_task(ask("long", long_answer_tokens // 2))
        shorts = list(await asyncio.gather(*(ask(f"short-{index}", SHORT_TOKENS) for index in range(12))))
        while not asking_long.done():
            shorts.append(await ask(f"short-{len(shorts)}", SHORT_TOKENS))
        long = await asking_long
    halfway_ns = (long.arrived_ns + long.ended_ns) / 2
    meanwhile = [each.ended_ns for each in shorts if each.arrived_ns < halfway_ns]
    assert meanwhile
    assert max(meanwhile) < long.ended_ns
