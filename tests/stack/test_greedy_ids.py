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

from benchmarks.stack import RunningStack
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


async def answers_together(stack: RunningStack, prompts: list[list[int]]) -> list[list[int]]:
    async with TritonCalls(stack.triton_grpc_url) as triton:
        return await triton.generate_all(prompts, NEW_TOKENS)


async def test_the_ids_are_those_of_transformers_alone_and_in_flight_together(
    exact_stack: RunningStack, tiny_in_transformers: Any, prompts: list[list[int]]
) -> None:
    from tests.engine.checkpoints import greedy_choices

    alone = await answers_one_by_one(exact_stack, prompts)
    for prompt, answer in zip(prompts, alone, strict=True):
        assert len(answer) == NEW_TOKENS
        assert answer == greedy_choices(tiny_in_transformers, prompt, answer)
    assert await answers_together(exact_stack, prompts) == alone


@pytest.fixture(scope="module")
def together(stack: RunningStack, prompts: list[list[int]]) -> list[list[int]]:
    """What the default model answers in its default precision."""
    return asyncio.run(answers_together(stack, prompts))


def test_in_the_default_precision_nearly_every_next_id_is_the_same(
    in_transformers: Any, prompts: list[list[int]], together: list[list[int]]
) -> None:
    """After what was said so far, so that one other token does not count for all that follow; transformers
    takes seconds for the longest prompt."""
    from tests.engine.checkpoints import greedy_choices

    equal = [
        said == likeliest
        for prompt, answer in zip(prompts[:-1], together[:-1], strict=True)
        for said, likeliest in zip(answer, greedy_choices(in_transformers, prompt, answer), strict=True)
    ]
    assert len(equal) == NEW_TOKENS * (len(prompts) - 1)
    assert sum(equal) >= 0.85 * len(equal)


@pytest.mark.usefixtures("cpu_kernels")
async def test_on_the_cpu_an_answer_is_the_same_alone_and_in_flight_in_any_precision(
    stack: RunningStack, prompts: list[list[int]], together: list[list[int]]
) -> None:
    some = slice(0, None, 4)
    assert await answers_one_by_one(stack, prompts[some]) == together[some]
