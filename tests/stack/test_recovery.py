"""What dies comes back, says so to those it took along, and a stop leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack, words_of
from launcher.stack.runs import SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX
from launcher.stack.triton_services import UNLOAD_TIMEOUT_S
from loadtest.mixed_lengths import all_at_once
from loadtest.replay.sender import Target, send
from tests.pace import is_over
from tests.stack.triton_calls import TritonCalls
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


def family(stack: RunningStack) -> list[psutil.Process]:
    return psutil.Process(stack.process.pid).children(recursive=True)


def engine_process(stack: RunningStack) -> psutil.Process:
    """The only one: that of a release that another test has unloaded may still be about to end."""
    began_s = time.monotonic()
    while True:
        engines = stack.processes("python_backend.engine.process.main")
        if len(engines) == 1:
            return engines[0]
        assert not is_over(began_s, 30), engines
        time.sleep(0.1)


def shared_memory(run: str) -> set[Path]:
    return set(SHARED_MEMORY_DIR.glob(f"{run}*"))


def settled_memory(stack: RunningStack) -> set[Path]:
    """When nothing is being loaded or unloaded any more. Of a model process that a test killed before, Triton
    keeps the region until it ends, so that there may be more regions than processes."""
    run, began_s = run_of(stack), time.monotonic()
    regions: set[Path] = set()
    while (found := shared_memory(run)) != regions:
        assert not is_over(began_s, 30), (regions, found)
        regions = found
        time.sleep(1)
    return regions


def run_of(stack: RunningStack) -> str:
    """How the names of this stack's regions begin: other stacks may come and go on the machine."""
    option = "shm-region-prefix-name="
    words = (word for process in stack.processes(option) for word in words_of(process))
    (name,) = {word.partition(option)[2] for word in words if option in word}
    assert name.startswith(SHARED_MEMORY_PREFIX)
    return name


async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[int, str | None]:
    """How many tokens there are in an answer, and how it ended."""
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        text = (await response.aread()).decode()
    if not body["stream"]:
        whole = json.loads(text)
        return whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    (finish,) = (each["choices"][0]["finish_reason"] for each in events if _finish(each))
    return events[-1]["usage"]["completion_tokens"], finish


def _finish(event: dict[str, Any]) -> str | None:
    assert "error" not in event, event
    return event["choices"][0]["finish_reason"] if event["choices"] else None


async def test_a_killed_engine_is_started_again_and_every_answer_goes_on(
    stack: RunningStack, long_answer_tokens: int, figure: Callable[[str], None]
) -> None:
    tokens = long_answer_tokens // 10
    body = {"model": stack.model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **HELLO}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    before, memory_before = engine_process(stack), settled_memory(stack)
    async with httpx.AsyncClient(base_url=stack.url, timeout=120) as http:
        bodies = [streamed if index % 2 else {**body, "stream": False} for index in range(8)]
        running = [asyncio.create_task(ask(http, each)) for each in bodies]
        while stack.used_blocks() == 0:  # noqa: ASYNC110  # a gauge cannot be waited for
            await asyncio.sleep(0.1)
        before.kill()
        assert await asyncio.gather(*running) == [(tokens, "length")] * len(bodies)
        figure(f"{len(bodies)} of {len(bodies)} answers of the only engine whole")
    after = engine_process(stack)
    assert after.pid != before.pid
    assert not before.is_running()
    wait_until(lambda: stack.used_blocks() == 0, "blocks are still held", 30)
    wait_until(
        lambda: stack.gauge("nv_trt_llm_request_metrics", request_type="active") == 0, "it goes on", 30
    )
    assert settled_memory(stack) <= memory_before


async def test_a_stop_takes_seconds_and_leaves_nothing_behind_however_busy_it_was(
    rapid_stack: RunningStack,
) -> None:
    """Callers are watched while their requests end by the hundred. Asking Triton about them keeps it from
    unloading the model now and then (docs/decisions/006); the launcher ends it then, and cleans up."""
    stack = rapid_stack
    load = await send(Target(stack.url, stack.model), all_at_once(2, 19, 300, 300))
    assert not load.errors
    async with TritonCalls(stack.triton_grpc_url) as triton:
        for _ in range(20):
            await triton.generate_all([[1000, 1001]] * 32, 3)
    members, run = family(stack), run_of(stack)
    assert len(members) >= 5
    began_s = time.monotonic()
    assert stack.stop() == 0
    assert not is_over(began_s, UNLOAD_TIMEOUT_S + 20)
    assert not [member for member in members if member.is_running()]
    assert not shared_memory(run)
