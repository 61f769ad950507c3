"""What requests share and what they must not: cached prompts, places in the batch, and random numbers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from benchmarks.stack import RunningStack
from tests.stack.triton_calls import TritonCalls

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]


def tokens_per_block(stack: RunningStack) -> int:
    return int(stack.gauge("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="tokens_per"))


def fresh_prompt(tokens: int) -> list[int]:
    """One that no test before this one has sent."""
    start = time.time_ns() % 40_000
    return [100 + (start + 37 * position) % 40_000 for position in range(tokens)]


async def test_a_system_prompt_shared_by_a_hundred_requests_at_once_is_computed_once(
    stack: RunningStack,
) -> None:
    system_prompt = fresh_prompt(20 * tokens_per_block(stack))
    async with TritonCalls(stack.triton_grpc_url) as triton:
        answers = await asyncio.gather(
            *(
                triton.generate(f"user-{user}", [*system_prompt, 500 + user, 600 + user], 3, {})
                for user in range(100)
            )
        )
    reused = sorted(answer["kv_cache_reused_blocks"][0] for answer in answers)
    assert reused == [0] + [20] * 99
    assert sum(answer["kv_cache_alloc_new_blocks"][0] for answer in answers) == 20 + 100


async def test_tenants_kept_apart_never_meet_in_the_cache(exact_stack: RunningStack) -> None:
    prompt = fresh_prompt(6 * tokens_per_block(exact_stack))
    async with TritonCalls(exact_stack.triton_grpc_url) as triton:

        async def reused_blocks(**parameters: str) -> int:
            answer = await triton.generate("tenant", prompt, 2, parameters)
            count: int = answer["kv_cache_reused_blocks"][0]
            return count

        assert await reused_blocks(tenant="one") == 0
        assert await reused_blocks(tenant="two") == 0
        assert await reused_blocks(tenant="one") > 0
        assert await reused_blocks(tenant="two") > 0
        assert await reused_blocks() == 0
        assert await reused_blocks(tenant="one", inflight_cache_salt="of its own") == 0
        assert await reused_blocks(inflight_cache_salt="one") == 0


async def test_a_flood_of_batch_requests_holds_no_interactive_one_back(stack: RunningStack) -> None:
    """Two places, both taken, and a queue: an urgent request takes the place of one that is not."""
    places, flood, tokens = 2, 14, 16
    at_start = int(stack.gauge("inflight_engine_batch_limit_sequences"))
    ended: list[str] = []
    async with TritonCalls(stack.triton_grpc_url) as triton:

        async def run(name: str, count: int, tier: str) -> int:
            """How long the request waited for its place."""
            answer = await triton.generate(name, fresh_prompt(8), count, {"inflight_tier": tier}, end_id=-1)
            ended.append(name)
            waited_ns: int = answer["first_scheduled_time_ns"][0] - answer["arrival_time_ns"][0]
            return waited_ns

        await triton.configure(max_batch_size=places)
        try:
            batch = [asyncio.create_task(run(f"batch-{n}", tokens, "batch")) for n in range(flood)]
            await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
            ended_before = len(ended)
            urgent_waited_ns = await run("urgent", 4, "interactive")
            overtaken_by = len(ended) - 1 - ended_before
            waited_ns = sorted(await asyncio.gather(*batch))
        finally:
            await triton.configure(max_batch_size=at_start)
    assert len(ended) == flood + 1
    # Those that were about to end did so; nobody else came between.
    assert overtaken_by <= places
    assert urgent_waited_ns < waited_ns[2 * places]
    assert stack.used_blocks() == 0


def question(stack: RunningStack, text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": stack.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 24,
        "temperature": 1,
        **more,
    }


async def test_a_seed_gives_the_same_text_alone_and_among_twenty_others(steady_stack: RunningStack) -> None:
    seeded = question(steady_stack, "Tell me a story about a lighthouse.", seed=7)
    others = [question(steady_stack, f"What comes after {n}?", seed=n, max_tokens=8 + n) for n in range(20)]
    async with httpx.AsyncClient(base_url=steady_stack.url, timeout=60) as http:

        async def text(body: dict[str, Any]) -> str:
            response = await http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            content: str = response.json()["choices"][0]["message"]["content"]
            return content

        alone = await text(seeded)
        together = await asyncio.gather(*(text(body) for body in (*others[:10], seeded, *others[10:])))
        assert together[10] == alone
        assert await text({**seeded, "seed": 8}) != alone
