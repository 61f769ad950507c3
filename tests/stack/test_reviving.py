"""Model processes that die or freeze under a Triton that lives on are revived; then Triton dies itself."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack, running_stack, words_of
from tests.stack.conftest import synthetic
from tests.stack.test_recovery import family, run_of, shared_memory
from tests.tiers import few
from tests.waiting import soon, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STREAMS = 8
# At this pace all answers together take some seconds, so they are under way when something happens to them.
ENGINE = synthetic(400)
ANSWER_TOKENS = 100
# The router notices within five seconds, and the processes of this engine load in about two; a busy machine
# takes several times as long, and longest where Triton itself has to be started again.
NOTICED_WITHIN_S = 30.0
REVIVED_WITHIN_S = 90.0
# A server is started again within seconds; on a machine that runs other tests beside it, it takes longer.
PATIENT = {"revive_wait_s": 120}
LEAKS = re.compile(
    r"stub|shm|region|/dev/|/tmp/|/root|/home|\.py|_0_0|tensorrt_llm|processing", re.IGNORECASE
)


@pytest.fixture(scope="module")
def own_stack(data_dir: Path) -> Iterator[RunningStack]:
    """Not the one that other tests share: its processes are killed."""
    with running_stack(ENGINE, data_dir=data_dir, router_settings=PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def answers(own_stack: RunningStack) -> list[str]:
    """What is said while all is well."""

    async def ask_all() -> list[str]:
        async with client(own_stack) as http:
            return await asyncio.gather(*(stream(http, own_stack, number) for number in range(STREAMS)))

    return asyncio.run(ask_all())


def client(stack: RunningStack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, timeout=150)


def triton_of(stack: RunningStack) -> psutil.Process:
    (triton,) = (member for member in stack.processes() if member.name() == "tritonserver")
    return triton


def process_of(stack: RunningStack, model: str) -> psutil.Process:
    """The one that runs a model now; those that are dead or frozen do not count."""
    for member in triton_of(stack).children():
        if f"/{model}/" in " ".join(words_of(member)[1:2]) and member.status() != psutil.STATUS_STOPPED:
            return member
    raise LookupError(model)


async def figure(http: httpx.AsyncClient, name: str, model: str) -> float:
    text = (await http.get("/metrics")).text
    (value,) = re.findall(rf'^{name}{{[^}}]*model="{re.escape(model)}"[^}}]*}} (\S+)$', text, re.M)
    return float(value)


async def is_up(http: httpx.AsyncClient, model: str) -> bool:
    return await figure(http, "inflight_replica_up", model) == 1


async def until_down(http: httpx.AsyncClient, model: str) -> None:
    async def is_down() -> bool:
        return not await is_up(http, model)

    await until(is_down, "nobody noticed", NOTICED_WITHIN_S)


async def until_up(http: httpx.AsyncClient, model: str) -> None:
    await until(lambda: is_up(http, model), "it did not come back", REVIVED_WITHIN_S)


async def watch(http: httpx.AsyncClient, model: str) -> None:
    """Until it takes no requests, and until it takes them again."""
    await until_down(http, model)
    await until_up(http, model)


async def stream(
    http: httpx.AsyncClient, stack: RunningStack, number: int, begun: asyncio.Event | None = None
) -> str:
    """The text of one streamed answer, which must be whole."""
    prompt = f"Tell me about number {number}"
    body = {"model": stack.model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    text, finish = "", None
    async with http.stream(
        "POST", "/v1/completions", json={**body, "stream": True, "ignore_eos": True}
    ) as response:
        if response.status_code != 200:
            pytest.fail((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    text, finish = text + choice["text"], choice["finish_reason"] or finish
                if begun is not None:
                    begun.set()
    assert finish == "length"
    return text


@pytest.mark.parametrize(
    ("model", "blow"),
    few(
        [
            ("tensorrt_llm", signal.SIGKILL),
            ("postprocessing", signal.SIGKILL),
            ("tensorrt_llm", signal.SIGSTOP),
        ],
        1,
    ),
)
async def test_streams_go_on_when_a_process_of_the_pipeline_is_lost(
    own_stack: RunningStack, answers: list[str], model: str, blow: signal.Signals
) -> None:
    """Whether Triton lives on or aborts, as this release sometimes does when a process dies under it."""
    triton, process = triton_of(own_stack), process_of(own_stack, model)
    async with client(own_stack) as http:
        replays = await figure(http, "inflight_replays_total", own_stack.model)
        revivals = await figure(http, "inflight_model_revivals_total", own_stack.model)
        begun = [asyncio.Event() for _ in range(STREAMS)]
        running = [
            asyncio.create_task(stream(http, own_stack, number, event)) for number, event in enumerate(begun)
        ]
        await soon(asyncio.gather(*(event.wait() for event in begun)))
        process.send_signal(blow)
        # One that comes while nothing lives waits for what is revived.
        late = asyncio.create_task(stream(http, own_stack, 0))
        await until_down(http, own_stack.model)
        ended = sum(task.done() for task in running)  # before the blow, which a busy machine deals late
        await until_up(http, own_stack.model)
        assert await asyncio.gather(*running, late) == [*answers, answers[0]]
        replays = await figure(http, "inflight_replays_total", own_stack.model) - replays
        revivals = await figure(http, "inflight_model_revivals_total", own_stack.model) - revivals
    assert process_of(own_stack, model).pid != process.pid
    if triton_of(own_stack).pid == triton.pid:
        assert revivals > 0
        # Without the engine none can have ended by itself.
        least = {"tensorrt_llm": STREAMS - ended, "postprocessing": 1}[model]
        assert least <= replays <= STREAMS


async def test_a_dead_embeddings_process_is_revived_and_errors_show_no_internals(
    own_stack: RunningStack,
) -> None:
    body = {"model": "all-minilm-l6-v2", "input": "Hello"}
    async with client(own_stack) as http:
        before = (await http.post("/v1/embeddings", json=body)).json()["data"][0]["embedding"]
        process = process_of(own_stack, "embeddings")
        process.kill()
        watching = asyncio.create_task(watch(http, "all-minilm-l6-v2"))
        replies = []
        while not watching.done():
            replies.append(await http.post("/v1/embeddings", json=body))
            await asyncio.sleep(0.1)
        await watching
        after = (await http.post("/v1/embeddings", json=body)).json()["data"][0]["embedding"]
        assert after == pytest.approx(before, abs=1e-6)  # whichever texts are in one batch
    for reply in replies:
        assert reply.status_code in (200, 503)
        assert reply.status_code == 200 or not LEAKS.search(reply.text), reply.text


async def test_the_launcher_leaves_reviving_to_the_router(own_stack: RunningStack) -> None:
    """After all of the above; what was frozen and has been replaced is gone, too."""
    assert own_stack.process.poll() is None
    children = triton_of(own_stack).children()
    assert not [child for child in children if child.status() == psutil.STATUS_STOPPED]
    async with client(own_stack) as http:
        assert (await http.get("/health/ready")).status_code == 200


async def test_streams_of_the_only_server_go_on_when_it_was_started_again(
    own_stack: RunningStack, answers: list[str], figure: Callable[[str], None]
) -> None:
    """After it all that was watched above is new."""
    async with client(own_stack) as http:
        begun = [asyncio.Event() for _ in range(STREAMS)]
        running = [
            asyncio.create_task(stream(http, own_stack, number, event)) for number, event in enumerate(begun)
        ]
        await soon(asyncio.gather(*(event.wait() for event in begun)))
        died = triton_of(own_stack)
        died.kill()
        died.wait()
        killed_s = time.monotonic()
        # One that comes while nothing is there waits for it too; who wants it sooner is told so at once.
        running.append(asyncio.create_task(stream(http, own_stack, 0)))
        body = {"model": own_stack.model, "prompt": "Hello", "max_tokens": 1}
        hurried = await http.post("/v1/completions", json=body, headers={"x-inflight-deadline-ms": "200"})
        assert hurried.status_code in (429, 503)
        assert int(hurried.headers["retry-after"]) > 0
        assert await asyncio.gather(*running) == [*answers, answers[0]]
    assert triton_of(own_stack).pid != died.pid
    figure(f"the only server: all whole {time.monotonic() - killed_s:.0f} s after it died")


def test_killed_processes_leave_nothing_behind(own_stack: RunningStack) -> None:
    """The last one: it stops the stack."""
    members, run = family(own_stack), run_of(own_stack)
    for member in members:
        if member.name() in ("tritonserver", "triton_python_b"):
            member.send_signal(signal.SIGKILL)
    assert own_stack.stop() == 0
    assert not [member for member in members if member.is_running()]
    assert not shared_memory(run)
