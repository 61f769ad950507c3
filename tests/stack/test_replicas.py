"""One of two Triton servers is killed: no answer is lost."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack, running_stack, words_of
from tests.pace import patience
from tests.stack.releasing import quick_engine
from tests.stack.router_beside import router_beside
from tests.waiting import soon, until

if TYPE_CHECKING:
    from tests.stack.conftest import TinyModels

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STREAMS = 14
ANSWER_TOKENS = 160
# In which nothing is heard of an answer: while it is generated again, its server is started again beside it.
GAP_LIMIT_S = 3.0 + 12.0
# What is said must be the same again however it is asked for; each stream is one of these.
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.0, "seed": 8, "n": 2},
    {"temperature": 0.7, "seed": 9, "logprobs": 2},
    {"temperature": 0, "echo": True},
    {"temperature": 0, "echo": True, "logprobs": 1},
    {"temperature": 1.0, "seed": 10, "stop": ["\u2603 never"]},
)
SERVERS = ("triton-0", "triton-1")
LEARNED = 25  # first tokens, before one is known to be late
ENGINE_PROGRAM = "python_backend.engine.process.main"


@dataclass
class Answer:
    """What a stream said: a text and log probabilities a choice, the usage, and the longest silence in it."""

    texts: dict[int, str] = field(default_factory=dict)
    logged: dict[int, list[Any]] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    finish: set[str] = field(default_factory=set)
    error: str = ""
    gap_s: float = field(default=0.0, compare=False)

    def take(self, event: dict[str, Any]) -> None:
        self.error = event.get("error", {}).get("message", self.error)
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            if choice.get("logprobs"):
                log = choice["logprobs"]
                pairs = zip(log["tokens"], log["token_logprobs"], log["text_offset"], strict=True)
                self.logged.setdefault(index, []).extend(pairs)
            if choice["finish_reason"]:
                self.finish.add(choice["finish_reason"])


@pytest.fixture(scope="module")
def pair(tiny_models: TinyModels, data_dir: Path) -> Iterator[RunningStack]:
    """Not shared with other tests: its servers are killed."""
    engine = {**quick_engine(), "max_tokens_in_paged_kv_cache": "16384"}
    model = str(tiny_models.usual)
    with running_stack(engine, model, data_dir, triton_servers=2, embeddings=False) as running:
        yield running


def client(stack: RunningStack) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=stack.url, timeout=patience(60), limits=limits)


def tritons(stack: RunningStack) -> dict[str, psutil.Process]:
    """By their ports, as the router counts them."""
    found = {}
    for number, url in enumerate(stack.triton_grpc_urls):
        port = url.rpartition(":")[2]
        for member in stack.processes(f"--grpc-port={port} "):
            if member.name() == "tritonserver":
                found[f"triton-{number}"] = member
    return found


def body_of(stack: RunningStack, number: int) -> dict[str, Any]:
    return {
        "model": stack.model,
        "prompt": f"Tell me about number {number}",
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **KINDS[number % len(KINDS)],
    }


async def events(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            pytest.fail((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def ask(http: httpx.AsyncClient, body: dict[str, Any], begun: asyncio.Event | None = None) -> Answer:
    answer, last_s = Answer(), 0.0
    async for event in events(http, body):
        now_s = time.monotonic()
        answer.gap_s, last_s = max(answer.gap_s, now_s - (last_s or now_s)), now_s
        answer.take(event)
        if begun is not None:
            begun.set()
    return answer


async def figures(http: httpx.AsyncClient, name: str, label: str, model: str) -> dict[str, float]:
    text = (await http.get("/metrics")).text
    rows = re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", text, re.M)
    labelled = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in rows]
    return {labels[label]: value for labels, value in labelled if labels["model"] == model}


async def total(http: httpx.AsyncClient, name: str, model: str) -> float:
    return sum((await figures(http, name, "release", model)).values())


async def up(http: httpx.AsyncClient, stack: RunningStack) -> set[str]:
    found = await figures(http, "inflight_replica_up", "replica", stack.model)
    return {server for server, value in found.items() if value == 1}


async def busy(http: httpx.AsyncClient, stack: RunningStack) -> set[str]:
    found = await figures(http, "inflight_replica_outstanding_tokens", "replica", stack.model)
    return {server for server, value in found.items() if value > 0}


async def sent(http: httpx.AsyncClient, stack: RunningStack) -> dict[str, float]:
    return await figures(http, "inflight_replica_requests_total", "replica", stack.model)


async def server_of(http: httpx.AsyncClient, stack: RunningStack, prompt: str) -> str:
    """Who answers it; nothing else is under way."""
    before = await sent(http, stack)
    await ask(http, {**body_of(stack, 0), "prompt": prompt, "max_tokens": 1})
    (server,) = (name for name, count in (await sent(http, stack)).items() if count > before[name])
    return server


async def homes_of(http: httpx.AsyncClient, stack: RunningStack, turn: str) -> dict[str, str]:
    openings = [f"Conversation {number}. " + "All of it is known. " * 40 for number in range(8)]
    return {opening: await server_of(http, stack, f"{opening} This is {turn}") for opening in openings}


async def until_up(http: httpx.AsyncClient, stack: RunningStack, servers: set[str], limit_s: float) -> None:
    found: set[str] = set()

    async def are_up() -> bool:
        nonlocal found
        found = await up(http, stack)
        return found == servers

    await until(are_up, lambda: f"only {found} are up", limit_s)


async def until_idle(http: httpx.AsyncClient, stack: RunningStack) -> None:
    async def is_idle() -> bool:
        return not await busy(http, stack)

    await until(is_idle, "something is counted that has ended")


@pytest.fixture(scope="module")
def homes(pair: RunningStack) -> dict[str, str]:
    """Which server answers which conversation while all is well."""

    async def find() -> dict[str, str]:
        async with client(pair) as http:
            return await homes_of(http, pair, "the first")

    return asyncio.run(find())


async def test_the_turns_of_a_conversation_go_to_one_server(
    pair: RunningStack, homes: dict[str, str]
) -> None:
    assert set(homes.values()) == set(SERVERS)
    async with client(pair) as http:
        assert await homes_of(http, pair, "the first, and much more, and the second") == homes


async def test_a_late_first_token_is_asked_for_at_the_other_server_and_comes_from_there(
    pair: RunningStack,
    tiny_models: TinyModels,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    """One server is late: its engine is stopped until the answers are there, which come of the other one."""
    with router_beside(pair, tiny_models.usual, tmp_path, "hedge_percent = 50") as (port, _):
        hedging = replace(pair, url=f"http://127.0.0.1:{port}")
        async with client(hedging) as http:
            await until_up(http, pair, set(SERVERS), 60)
            prompts = [f"Tell me about number {number}" for number in range(8)]
            homes = {each: await server_of(http, pair, each) for each in prompts}
            late = [each for each in prompts if homes[each] == homes[prompts[0]]]
            bodies = [{**body_of(pair, 0), "prompt": each, "max_tokens": 8} for each in late]
            expected = [await ask(http, body) for body in bodies]
            for _ in range(LEARNED):  # what is late is known by what came before
                await ask(http, bodies[0])
            before = await total(http, "inflight_hedges_total", pair.model)
            engine = engine_of(tritons(pair)[homes[prompts[0]]])
            began_s = time.monotonic()
            engine.suspend()
            try:
                answers = await asyncio.gather(*(ask(http, body) for body in bodies))
            finally:
                with suppress(psutil.NoSuchProcess):  # found hanging, and replaced
                    engine.resume()
            took_s = time.monotonic() - began_s
            assert answers == expected
            assert await total(http, "inflight_hedges_total", pair.model) > before
            await until_up(http, pair, set(SERVERS), 60)
    figure(f"{len(answers)} answers of a server that hangs after {took_s:.1f} s")


def engine_of(triton: psutil.Process) -> psutil.Process:
    family = triton.children(recursive=True)
    return next(each for each in family if ENGINE_PROGRAM in words_of(each))


async def test_no_answer_is_lost_when_one_of_two_servers_dies(
    pair: RunningStack, figure: Callable[[str], None]
) -> None:
    bodies = [body_of(pair, number) for number in range(STREAMS)]
    async with client(pair) as http:
        expected = await asyncio.gather(*(ask(http, body) for body in bodies))
        delivered = await total(http, "inflight_completion_tokens_total", pair.model)
        begun = [asyncio.Event() for _ in bodies]
        running = [
            asyncio.create_task(ask(http, body, event)) for body, event in zip(bodies, begun, strict=True)
        ]
        await soon(asyncio.gather(*(event.wait() for event in begun)))
        victim = min(await busy(http, pair) or SERVERS)  # what the other one had may be answered by now
        (left,) = set(SERVERS) - {victim}
        triton = tritons(pair)[victim]
        triton.suspend()
        await asyncio.sleep(0.3)  # in which the router hears what it had said
        has_more = victim in await busy(http, pair)  # a busy machine comes late, and all may be answered
        triton.kill()
        # Who is gone is sent nothing more, and what it would have been sent is answered all the same.
        await until_up(http, pair, {left}, 30)
        before = await sent(http, pair)
        later = [asyncio.create_task(ask(http, body)) for body in bodies[:8]]
        answers = await soon(asyncio.gather(*running), 60)
        assert answers == expected
        assert await asyncio.gather(*later) == expected[:8]
        assert (await sent(http, pair))[left] >= before[left] + len(later)
        assert not has_more or await total(http, "inflight_replays_total", pair.model) > 0
        delivered = await total(http, "inflight_completion_tokens_total", pair.model) - delivered
        assert delivered == sum(answer.usage["completion_tokens"] for answer in (*answers, *expected[:8]))
        await until_idle(http, pair)
    for number, answer in enumerate(answers):
        assert (answer.error, answer.finish) == ("", {"length"})
        assert answer.usage["completion_tokens"] == ANSWER_TOKENS * bodies[number].get("n", 1)
    longest_s = max(answer.gap_s for answer in answers)
    figure(f"{STREAMS} of {STREAMS} streams whole, longest silence {longest_s:.1f} s")
    assert longest_s <= patience(GAP_LIMIT_S)


async def test_a_server_that_comes_back_gets_its_conversations_back(
    pair: RunningStack, homes: dict[str, str]
) -> None:
    """After the above: it is being started again."""
    async with client(pair) as http:
        await until_up(http, pair, set(SERVERS), 60)
        assert await homes_of(http, pair, "and the last") == homes
