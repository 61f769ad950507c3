"""What requests share and what they must not: cached prompts, places in the batch, and random numbers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.stack import RunningStack
from router.core.tenant import Role
from router.tenants.rbac import SYSTEM as SYSTEM_ROLE
from router.tenants.tenancy import open_administration
from tests.pace import patience
from tests.stack.router_beside import router_beside
from tests.stack.triton_calls import TritonCalls

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]


def tokens_per_block(stack: RunningStack) -> int:
    return int(stack.gauge("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="tokens_per"))


def fresh_prompt(tokens: int) -> list[int]:
    """One that no test before this one has sent."""
    start = time.time_ns() % 40_000
    return [100 + (start + 37 * position) % 40_000 for position in range(tokens)]


async def test_a_system_prompt_shared_by_many_requests_at_once_is_computed_once(
    stack: RunningStack,
) -> None:
    users, blocks = 40, 8
    system_prompt = fresh_prompt(blocks * tokens_per_block(stack))
    async with TritonCalls(stack.triton_grpc_url) as triton:
        answers = await asyncio.gather(
            *(
                triton.generate(f"user-{user}", [*system_prompt, 500 + user, 600 + user], 3, {})
                for user in range(users)
            )
        )
    reused = sorted(answer["kv_cache_reused_blocks"][0] for answer in answers)
    assert reused == [0] + [blocks] * (users - 1)
    assert sum(answer["kv_cache_alloc_new_blocks"][0] for answer in answers) == blocks + users


async def test_tenants_never_meet_in_the_cache_by_default(stack: RunningStack) -> None:
    prompt = fresh_prompt(6 * tokens_per_block(stack))
    async with TritonCalls(stack.triton_grpc_url) as triton:

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


SYSTEM = f"You are assistant number {time.time_ns()} of a clinic. " + "Be kind, brief and exact. " * 20


@dataclass(frozen=True)
class Tenants:
    """Callers of one router, each with a key of its own."""

    url: str
    model: str
    keys: tuple[str, ...]

    def cached_tokens(self, tenant: int, record: str, system: str) -> int:
        """As the answer to a question about a record tells."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": record}]
        answer = httpx.post(
            f"{self.url}/v1/chat/completions",
            json={"model": self.model, "messages": messages, "max_tokens": 1},
            headers={"authorization": f"Bearer {self.keys[tenant]}"},
            timeout=patience(60),
        )
        assert answer.status_code == 200, answer.text
        count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count


@pytest.fixture(scope="module")
def tenants(
    stack: RunningStack, default_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    keys, folder = [], tmp_path_factory.mktemp("tenants")
    with open_administration(folder) as admin:
        for name in ("clinic", "spy"):
            tenant = admin.create_organisation(SYSTEM_ROLE, name).id
            user = admin.create_user(SYSTEM_ROLE, tenant, "ada", Role.MEMBER)
            keys.append(admin.create_key(SYSTEM_ROLE, tenant, user.id, "test")[1])
    settings = f"shared_prefixes = [{json.dumps(SYSTEM)}]"
    with router_beside(stack, default_checkpoint, folder, settings) as (port, _):
        yield Tenants(f"http://127.0.0.1:{port}", stack.model, tuple(keys))


def test_cached_tokens_tell_no_tenant_what_another_has_asked(tenants: Tenants, stack: RunningStack) -> None:
    """Guesses of a name, by a tenant who knows the form of the other's records."""
    form = f"Record {time.time_ns()} of the patient with the surname {{}}, who came because of a headache: "
    record, system = form.format("Lovelace") * 4, "Answer in one word."
    assert tenants.cached_tokens(0, record, system) < 2 * tokens_per_block(stack)
    tenants.cached_tokens(1, form.format("Nobody") * 4, system)  # so that the form is in its own cache
    guesses = [form.format(name) * 4 for name in ("Turing", "Lovelace", "Curie")]
    assert len({tenants.cached_tokens(1, guess, system) for guess in guesses}) == 1
    assert tenants.cached_tokens(0, record, system) > 4 * tokens_per_block(stack)


def test_a_prefix_that_the_operator_names_is_shared_and_nothing_behind_it(
    tenants: Tenants, stack: RunningStack
) -> None:
    record = f"Record {time.time_ns()}: " + "the patient has a headache. " * 20
    assert tenants.cached_tokens(0, record, SYSTEM) == 0
    shared = tenants.cached_tokens(1, record, SYSTEM)
    assert shared >= 6 * tokens_per_block(stack)
    assert tenants.cached_tokens(1, record, SYSTEM) >= shared + 4 * tokens_per_block(stack)


async def test_a_flood_of_batch_requests_holds_no_interactive_one_back(stack: RunningStack) -> None:
    """Two places, both taken, and a queue: an urgent request takes the place of one that is not."""
    places, flood, tokens = 2, 10, 16
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
    others = [
        question(steady_stack, f"What comes after {n}?", seed=n, max_tokens=4 + n // 2) for n in range(20)
    ]
    async with httpx.AsyncClient(base_url=steady_stack.url, timeout=patience(60)) as http:

        async def text(body: dict[str, Any]) -> str:
            response = await http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            content: str = response.json()["choices"][0]["message"]["content"]
            return content

        alone = await text(seeded)
        together = await asyncio.gather(*(text(body) for body in (*others[:10], seeded, *others[10:])))
        assert together[10] == alone
        assert await text({**seeded, "seed": 8}) != alone
