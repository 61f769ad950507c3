"""The engine against transformers, token for token, alone and all in flight together.

In fp32 the ids are the same. In the default precision another token wins here and there where two are almost
equally likely.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack, running_stack
from tests.stack.conftest import EXACT, TinyModels
from tests.stack.triton_calls import TritonCalls

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

NEW_TOKENS = 12
# Prompt lengths from 5 to 300 tokens.
LENGTHS = [5, 12, 30, 71, 300]
TEXT = (
    "In the summer of 1914 the harbour was full of ships, and nobody in the town could have said where all "
    "of them came from. Some carried grain and timber; others, whose captains kept to themselves, lay at "
    "anchor for weeks without loading anything at all. The customs officer wrote down their names in a blue "
    "book: Aurora, Bonaventure, Ceres, Demeter, Esperance. A token is the unit of work. def add(a, b): "
    "return a + b. What is the capital of France? The capital of France is Paris. 2 + 2 = 4, and 3 * 7 = 21. "
)


@pytest.fixture(scope="module")
def prompts(default_checkpoint: Path) -> list[list[int]]:
    ids: list[int] = Tokenizer.from_file(str(default_checkpoint / "tokenizer.json")).encode(TEXT * 5).ids
    return [ids[30 * number :][:length] for number, length in enumerate(LENGTHS)]


async def answers_one_by_one(stack: RunningStack, prompts: list[list[int]]) -> list[list[int]]:
    async with TritonCalls(stack.triton_grpc_url) as triton:
        return [await triton.generate_ids("alone", prompt, NEW_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def expected(exact_stack: RunningStack, prompts: list[list[int]]) -> list[list[int]]:
    """What each prompt is answered when it is alone, which the first test holds against transformers."""
    return asyncio.run(answers_one_by_one(exact_stack, prompts))


def test_the_ids_are_those_of_transformers_for_one_request_alone(
    in_transformers: Any, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    from tests.engine.checkpoints import greedy_choices

    for prompt, answer in zip(prompts, expected, strict=True):
        assert len(answer) == NEW_TOKENS
        assert answer == greedy_choices(in_transformers, prompt, answer)


async def test_the_ids_are_those_of_transformers_for_requests_in_flight_together(
    exact_stack: RunningStack, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    async with TritonCalls(exact_stack.triton_grpc_url) as triton:
        assert await triton.generate_all(prompts, NEW_TOKENS) == expected


async def test_with_cache_for_three_sequences_all_ten_finish(
    data_dir: Path, on_device: dict[str, str], prompts: list[list[int]], tiny_models: TinyModels
) -> None:
    """Blocks run out, sequences are preempted and recomputed, and the pool is checked after every step."""
    short = [prompt[:30] for prompt in prompts]
    engine = {**on_device, **EXACT, "max_tokens_in_paged_kv_cache": "256", "inflight_check_blocks": "true"}
    with running_stack(engine, str(tiny_models.usual), data_dir, embeddings=False) as small:
        alone = await answers_one_by_one(small, short)
        async with TritonCalls(small.triton_grpc_url) as triton:
            assert await triton.generate_all(short * 2, NEW_TOKENS) == alone * 2
        assert small.used_blocks() == 0


async def test_in_the_default_precision_nearly_every_next_id_is_the_same(
    stack: RunningStack, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Asked at several places of each answer, so that one other token does not count for all that follow."""
    places = range(0, NEW_TOKENS, 2)
    beginnings = [p + answer[:place] for p, answer in zip(prompts, expected, strict=True) for place in places]
    following = [answer[place] for answer in expected for place in places]
    async with TritonCalls(stack.triton_grpc_url) as triton:
        found = await triton.generate_all(beginnings, 1)
    equal = sum([ids == [token_id] for ids, token_id in zip(found, following, strict=True)])
    assert equal >= 0.85 * len(following)


@pytest.mark.usefixtures("cpu_kernels")
async def test_on_the_cpu_an_answer_is_the_same_alone_and_in_flight_in_any_precision(
    stack: RunningStack, prompts: list[list[int]]
) -> None:
    async with TritonCalls(stack.triton_grpc_url) as triton:
        together = await triton.generate_all(prompts, NEW_TOKENS)
    some = slice(0, None, 4)
    assert await answers_one_by_one(stack, prompts[some]) == together[some]
