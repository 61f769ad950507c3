"""What dies comes back, says so to those it took along, and a stop leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack
from launcher.stack.runs import SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX
from loadtest.mixed_lengths import all_at_once
from loadtest.replay.sender import Target, send
from tests.stack.triton_calls import TritonCalls

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


def family(stack: RunningStack) -> list[psutil.Process]:
    return psutil.Process(stack.process.pid).children(recursive=True)


def living(stack: RunningStack) -> list[psutil.Process]:
    """Without the model processes that died: Triton keeps those until it ends."""
    return [process for process in family(stack) if words_of(process)]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none of one that has ended, which it may do at any time."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


def engine_process(stack: RunningStack) -> psutil.Process:
    """The only one: that of a release that another test has unloaded may still be about to end."""
    deadline_s = time.monotonic() + 30
    while True:
        engines = [each for each in living(stack) if "python_backend.engine.process.main" in words_of(each)]
        if len(engines) == 1:
            return engines[0]
        assert time.monotonic() < deadline_s, engines
        time.sleep(0.1)


def shared_memory(run: str) -> set[Path]:
    return set(SHARED_MEMORY_DIR.glob(f"{run}*"))


def settled_memory(stack: RunningStack) -> set[Path]:
    """One region for each model process. While a release of another test is still being unloaded, or a model
    is loaded again, there may be more."""
    run, deadline_s = run_of(stack), time.monotonic() + 30
    while True:
        models = [each for each in living(stack) if is_model(each)]
        regions = shared_memory(run)
        if len(regions) == len(models):
            return regions
        assert time.monotonic() < deadline_s, (regions, models)
        time.sleep(0.1)


def is_model(process: psutil.Process) -> bool:
    """Triton's Python backend runs each in a process of its own."""
    return any(word.endswith("triton_python_backend_stub") for word in words_of(process)[:1])


def run_of(stack: RunningStack) -> str:
    """How the names of this stack's regions begin: other stacks may come and go on the machine."""
    option = "shm-region-prefix-name="
    words = (word for process in living(stack) for word in words_of(process))
    (name,) = {word.partition(option)[2] for word in words if option in word}
    assert name.startswith(SHARED_MEMORY_PREFIX)
    return name


async def ask_until_answered(stack: RunningStack, http: httpx.AsyncClient, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    body = {"model": stack.model, "max_tokens": 2, **HELLO}
    while (response := await http.post("/v1/chat/completions", json=body)).status_code != 200:
        assert response.status_code == 503, response.text
        assert time.monotonic() < deadline_s, response.text
        await asyncio.sleep(0.2)


async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """What went wrong, or nothing; a stream that had begun can only say so at its end."""
    response = await http.post("/v1/chat/completions", json=body)
    if body["stream"] and response.status_code == 200:
        last = json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))
        return str(last["error"]["message"])
    assert response.status_code == 503, response.text
    assert int(response.headers["retry-after"]) > 0
    return str(response.json()["error"]["message"])


async def test_a_killed_engine_fails_its_requests_and_is_started_again(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    body = {"model": stack.model, "max_tokens": max(1000, long_answer_tokens), "ignore_eos": True, **HELLO}
    before, memory_before = engine_process(stack), settled_memory(stack)
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:
        running = [asyncio.create_task(ask(http, {**body, "stream": index % 2 == 0})) for index in range(20)]
        while stack.used_blocks() == 0:  # noqa: ASYNC110  # a gauge cannot be waited for
            await asyncio.sleep(0.1)
        before.kill()
        killed_s = time.monotonic()
        errors = await asyncio.wait_for(asyncio.gather(*running), timeout=10)
        assert time.monotonic() - killed_s < 2
        assert all("the model cannot answer at the moment" in error for error in errors), errors
        await ask_until_answered(stack, http, limit_s=60)
    after = engine_process(stack)
    assert after.pid != before.pid
    assert not before.is_running()
    assert stack.used_blocks() == 0
    assert stack.gauge("nv_trt_llm_request_metrics", request_type="active") == 0
    assert len(settled_memory(stack)) == len(memory_before)


async def test_a_stop_takes_seconds_and_leaves_nothing_behind_however_busy_it_was(
    rapid_stack: RunningStack,
) -> None:
    """Callers are watched while their requests end by the hundred. Asking Triton about them can keep it from
    unloading the model (docs/decisions/006); then the launcher ends it after 20 s."""
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
    assert time.monotonic() - began_s < 15
    assert not [member for member in members if member.is_running()]
    assert not shared_memory(run)


def test_killed_processes_leave_nothing_behind(slow_stack: RunningStack) -> None:
    stack = slow_stack
    members, run = family(stack), run_of(stack)
    for member in members:
        if member.name() in ("tritonserver", "triton_python_b"):
            member.send_signal(signal.SIGKILL)
    assert stack.stop() == 0
    assert not [member for member in members if member.is_running()]
    assert not shared_memory(run)
