"""A client that leaves stops the engine, whichever way it was listening."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from benchmarks.stack import RunningStack
from tests.pace import is_over, patience
from tests.stack.triton_calls import TritonCalls, build_request

pytestmark = pytest.mark.stack

STORY = "Tell me a very long story about a lighthouse."


def long_chat(stack: RunningStack, tokens: int, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": STORY}]
    return {
        "model": stack.model,
        "messages": messages,
        "max_tokens": tokens,
        "stream": stream,
        "ignore_eos": True,
        "temperature": 0,
    }


def long_ids(tokens: int) -> dict[str, object]:
    return {"input_ids": [1000, 1001], "input_lengths": 2, "request_output_len": tokens, "streaming": True}


def active(stack: RunningStack) -> float:
    return stack.gauge("nv_trt_llm_request_metrics", request_type="active")


def steps(stack: RunningStack) -> float:
    return stack.gauge("nv_trt_llm_general_metrics", general_type="iteration_counter")


async def assert_the_engine_stopped(stack: RunningStack) -> None:
    """What it tells of itself is a little late, so that one look is not enough."""
    began_s, before = time.monotonic(), -1.0
    while (now := steps(stack)) != before or active(stack) or stack.used_blocks():
        # The answer itself would take longer.
        assert not is_over(began_s, 5.0), "the engine goes on without a client"
        before = now
        await asyncio.sleep(0.5)


async def test_leaving_a_stream_after_five_tokens_frees_the_engine(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    body = long_chat(stack, long_answer_tokens, stream=True)
    async with (
        httpx.AsyncClient(base_url=stack.url, timeout=patience(60)) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        events = 0
        async for line in response.aiter_lines():
            events += line.startswith("data: ")
            if events == 6:  # the role and five tokens
                break
    await assert_the_engine_stopped(stack)


async def test_leaving_before_a_whole_answer_arrives_frees_the_engine(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    body = long_chat(stack, long_answer_tokens, stream=False)
    async with httpx.AsyncClient(base_url=stack.url, timeout=patience(60)) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/chat/completions", json=body, timeout=1.0)
    await assert_the_engine_stopped(stack)


async def test_leaving_at_once_frees_the_engine(stack: RunningStack, long_answer_tokens: int) -> None:
    """So early that the request may still be in preprocessing when its stop arrives."""
    body = long_chat(stack, long_answer_tokens, stream=True)
    for delay_s in (0.0, 0.001, 0.003, 0.01, 0.03):
        async with httpx.AsyncClient(base_url=stack.url, timeout=patience(60)) as http:
            post = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await asyncio.sleep(delay_s)
            post.cancel()
            await asyncio.gather(post, return_exceptions=True)
    await asyncio.sleep(1.0)  # by then even the last one must have arrived, and been stopped
    await assert_the_engine_stopped(stack)


async def test_stop_by_request_id_ends_a_running_request(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    """Triton's own clients cancel with `stop`; the stopped request ends with what it has."""
    base = long_ids(long_answer_tokens)
    async with TritonCalls(stack.triton_grpc_url) as triton:
        received, reasons, is_stopped = 0, [], False
        async for response in triton.stream(build_request("tensorrt_llm", "to-stop", base)):
            received += len(response.get("output_ids", []))
            reasons += response.get("finish_reason", [])
            if received >= 5 and not is_stopped:
                is_stopped = True
                stop = build_request("tensorrt_llm", "to-stop", {**base, "stop": True})
                assert [answer async for answer in triton.stream(stop)] == [{}]
    assert received < long_answer_tokens / 4
    assert reasons == [b"cancelled"]
    await assert_the_engine_stopped(stack)


async def test_stopping_an_unknown_request_is_not_an_error(stack: RunningStack) -> None:
    base = {"input_ids": [0], "input_lengths": 1, "request_output_len": 1, "stop": True}
    async with TritonCalls(stack.triton_grpc_url) as triton:
        stop = build_request("tensorrt_llm", "never-seen", base)
        assert [answer async for answer in triton.stream(stop)] == [{}]


async def test_cancelling_a_call_to_the_engine_itself_stops_it(
    stack: RunningStack, long_answer_tokens: int
) -> None:
    base = long_ids(long_answer_tokens)
    async with TritonCalls(stack.triton_grpc_url) as triton:
        call = triton.stub.ModelStreamInfer(iter([build_request("tensorrt_llm", "to-cancel", base)]))
        await call.read()
        call.cancel()
        await assert_the_engine_stopped(stack)
