"""Bad input gets an OpenAI-shaped error that names what is wrong, and hurts nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from benchmarks.stack import RunningStack
from tests.pace import patience

pytestmark = pytest.mark.stack

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def http(stack: RunningStack) -> Any:
    with httpx.Client(base_url=stack.url, timeout=patience(60)) as client:
        yield client


def chat(stack: RunningStack, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": stack.model, "messages": HELLO, "max_tokens": 2, "temperature": 0}
    return {**body, **changes}


def assert_error(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"], error["message"]
    return error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"messages": []}, ["messages"]),
        ({"messages": "hello"}, ["messages"]),
        ({"messages": [{"role": "user"}]}, ["content"]),
        ({"max_tokens": -1}, ["max_tokens", "1"]),
        ({"max_tokens": "ten"}, ["max_tokens"]),
        ({"temperature": 9}, ["temperature", "2"]),
        ({"triton_enable_empty_final_response": False}, ["triton_enable_empty_final_response"]),
        ({"no_such_field": 1}, ["no_such_field"]),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, ["tools[0].function.name"]),
    ],
)
def test_a_bad_field_is_named(
    http: httpx.Client, stack: RunningStack, changes: dict[str, Any], words: list[str]
) -> None:
    assert_error(http.post("/v1/chat/completions", json=chat(stack, **changes)), 400, *words)
    assert http.post("/v1/chat/completions", json=chat(stack)).status_code == 200


def test_an_unknown_model_is_not_found(http: httpx.Client, stack: RunningStack) -> None:
    response = http.post("/v1/chat/completions", json=chat(stack, model="gpt-9"))
    assert assert_error(response, 404, "gpt-9")["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused(
    http: httpx.Client, stack: RunningStack, stream: bool
) -> None:
    messages = [{"role": "user", "content": "word " * 9000}]
    response = http.post("/v1/chat/completions", json=chat(stack, messages=messages, stream=stream))
    assert assert_error(response, 400, "tokens", "8192")["code"] == "context_length_exceeded"
    assert http.post("/v1/chat/completions", json=chat(stack)).status_code == 200


def test_prompts_beyond_the_context_are_refused_at_once_and_affect_none_of_a_hundred_others(
    http: httpx.Client, stack: RunningStack
) -> None:
    long = chat(stack, messages=[{"role": "user", "content": "word " * 9000}])
    short = {"model": stack.model, "prompt": "Hello", "max_tokens": 1}

    def ask(number: int) -> httpx.Response:
        if number % 10:
            return http.post("/v1/completions", json=short)
        return http.post("/v1/chat/completions", json=long)

    refusals = [ask(0) for _ in range(5)]
    assert {each.json()["error"]["code"] for each in refusals} == {"context_length_exceeded"}
    # 0.05 s where the machine is free; another worker's stack takes its share of two cores.
    assert min(each.elapsed.total_seconds() for each in refusals) <= 1
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(111)))
    assert {each.text for each in answers if each.status_code == 503} == set()
    assert [each.status_code for each in answers] == [200 if number % 10 else 400 for number in range(111)]


def test_a_body_that_is_not_json_is_refused(http: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    assert_error(http.post("/v1/chat/completions", content=b"{nope", headers=headers), 400, "JSON")


def test_an_unknown_path_is_not_found(http: httpx.Client) -> None:
    assert_error(http.get("/v1/nothing"), 404, "/v1/nothing")
