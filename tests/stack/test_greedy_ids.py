"""The engine against transformers in fp32, token for token, alone and all in flight together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.stack import RunningStack
from benchmarks.transformers_model import load_in_transformers
from tests.stack.triton_calls import TritonCalls

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

NEW_TOKENS = 64
# Prompt lengths from 5 to 400 tokens.
LENGTHS = [5, 6, 8, 10, 12, 15, 19, 24, 30, 37, 46, 57, 71, 88, 110, 137, 171, 213, 300, 400]
TEXT = (
    "In the summer of 1914 the harbour was full of ships, and nobody in the town could have said where all "
    "of them came from. Some carried grain and timber; others, whose captains kept to themselves, lay at "
    "anchor for weeks without loading anything at all. The customs officer wrote down their names in a blue "
    "book: Aurora, Bonaventure, Ceres, Demeter, Esperance. A token is the unit of work. def add(a, b): "
    "return a + b. What is the capital of France? The capital of France is Paris. 2 + 2 = 4, and 3 * 7 = 21. "
)


@pytest.fixture(scope="module")
def prompts(default_checkpoint: Path) -> list[list[int]]:
    ids: list[int] = AutoTokenizer.from_pretrained(default_checkpoint)(TEXT * 5)["input_ids"]
    return [ids[start : start + length] for start, length in zip(range(0, 200, 10), LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def expected(default_checkpoint: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = load_in_transformers(default_checkpoint / "model.gguf")
    model.generation_config.eos_token_id = None
    answers = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
            answers.append(output[0, len(prompt) :].tolist())
    return answers


async def test_alone(stack: RunningStack, prompts: list[list[int]], expected: list[list[int]]) -> None:
    async with TritonCalls(stack.triton_grpc_url) as triton:
        answers = [await triton.generate_ids("alone", prompt, NEW_TOKENS) for prompt in prompts]
    assert answers == expected


async def test_all_in_flight_together(
    stack: RunningStack, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    async with TritonCalls(stack.triton_grpc_url) as triton:
        assert await triton.generate_all(prompts, NEW_TOKENS) == expected


async def test_with_room_for_three_sequences_all_twenty_finish(
    data_dir: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Blocks run out, sequences are preempted and recomputed, and the pool is checked after every step."""
    from benchmarks.stack import running_stack

    short = prompts[:10] * 2
    engine = {"max_tokens_in_paged_kv_cache": "304", "inflight_check_blocks": "true"}
    with running_stack(engine, data_dir=data_dir) as small:
        async with TritonCalls(small.triton_grpc_url) as triton:
            answers = await triton.generate_all(short, NEW_TOKENS)
        assert answers == expected[:10] * 2
        assert small.used_blocks() == 0
