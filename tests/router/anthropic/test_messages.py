"""Event by event, and the way that Claude Code speaks."""

from __future__ import annotations

import json
from typing import Any

import httpx

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta
from tests.fakes.pipeline import words
from tests.router.running import BARE_MODEL, EMBEDDER, MODEL, RunningRouter

QUESTION = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
LOOK = {"name": "look", "input_schema": {"type": "object"}}
PING = ("ping", {"type": "ping"})


async def ask(router: RunningRouter, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 9, "messages": QUESTION, **fields}
    headers = {"anthropic-version": "2023-06-01"}
    return await router.http.post(
        path, json={name: value for name, value in body.items() if value is not None}, headers=headers
    )


def events(response: httpx.Response) -> list[tuple[str, Any]]:
    """Name and data of each, what differs from run to run taken out."""
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        if "message" in value:
            value["message"]["id"] = "ID"
        if "content_block" in value and "id" in value["content_block"]:
            value["content_block"]["id"] = "ID"
        found.append((name.removeprefix("event: "), value))
    return found


def begun(input_tokens: int = 7, output_tokens: int = 1) -> tuple[str, Any]:
    used = {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
    }
    message: dict[str, Any] = {
        "id": "ID",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": used,
    }
    return ("message_start", {"type": "message_start", "message": message})


def block(index: int, start: Any, delta: Any, *more: Any) -> list[tuple[str, Any]]:
    deltas = [
        ("content_block_delta", {"type": "content_block_delta", "index": index, "delta": each})
        for each in (delta, *more)
    ]
    start = {"type": "content_block_start", "index": index, "content_block": start}
    stop = {"type": "content_block_stop", "index": index}
    return [("content_block_start", start), *deltas, ("content_block_stop", stop)]


def text_block(index: int, *texts: str) -> list[tuple[str, Any]]:
    deltas = [{"type": "text_delta", "text": text} for text in texts]
    return block(index, {"type": "text", "text": ""}, *deltas)


def ended(reason: str, output_tokens: int, sequence: str | None = None) -> list[tuple[str, Any]]:
    (_, first) = begun(output_tokens=output_tokens)
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    told = {"type": "message_delta", "delta": delta, "usage": first["message"]["usage"]}
    return [("message_delta", told), ("message_stop", {"type": "message_stop"})]


async def test_the_events_of_a_text(router: RunningRouter) -> None:
    response = await ask(router, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert events(response) == [begun(), PING, *text_block(0, "Hello", " world"), *ended("end_turn", 2)]


async def test_the_events_of_text_and_calls(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("Well.", "\n", CALL, CALL)
    response = await ask(router, stream=True, tools=[LOOK])
    use = {"type": "tool_use", "id": "ID", "name": "look", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"at":"x"}'}
    assert events(response) == [
        begun(),
        PING,
        *text_block(0, "Well.", "\n"),
        *block(1, use, delta),
        *block(2, use, delta),
        *ended("tool_use", 4),
    ]


async def test_blank_text_before_a_call_is_no_block(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("\n\n", CALL, "\n")
    response = await ask(router, stream=True, tools=[LOOK])
    starts = [data["content_block"]["type"] for name, data in events(response) if "block_start" in name]
    assert starts == ["tool_use"]
    whole = (await ask(router, tools=[LOOK])).json()
    assert [each["type"] for each in whole["content"]] == ["tool_use"]


async def test_a_stop_sequence_ends_the_stream_by_its_name(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("one", " END", " two")
    response = await ask(router, stream=True, stop_sequences=["END"])
    assert events(response)[-2:] == ended("stop_sequence", 2, "END")


async def test_an_error_in_mid_stream_is_an_event(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 7), InflightError(ErrorKind.ENGINE_FAILED, "gone")]
    response = await ask(router, stream=True)
    name, data = events(response)[-1]
    assert name == "error"
    assert data["error"] == {"type": "api_error", "message": "gone"}
    assert data["request_id"] == response.headers["request-id"]


SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=71fea;"},
    {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "Work.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
]
TOOLS: list[dict[str, Any]] = [
    {
        "name": f"mcp__server_with_a_rather_long_name__tool_number_{number}_of_many_that_are_offered",
        "description": "d" * 100,
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "edits": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"old": {"type": "string"}}},
                }
            },
            "additionalProperties": False,
        },
        "eager_input_streaming": True,
    }
    for number in range(150)
]


async def test_claude_codes_way_of_speaking_is_understood(router: RunningRouter) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "system": SYSTEM,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>r</system-reminder>"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": "a.py",
                        "is_error": False,
                        "cache_control": {"type": "ephemeral"},
                    }
                ],
            },
        ],
        "tools": TOOLS,
        "metadata": {"user_id": '{"device_id": "d"}'},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "temperature": 1,
        "stream": True,
    }
    headers = {
        "x-api-key": "none",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
        "user-agent": "claude-cli/2.1.117 (external, cli)",
        "x-stainless-lang": "js",
    }
    response = await router.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert response.status_code == 200, response.text
    assert events(response)[-1][0] == "message_stop"
    (call,) = router.pipeline.calls
    assert "cch=" not in call.prompt
    assert "hm" not in call.prompt.partition("<user>")[2]
    assert "You are an agent.\nWork." in call.prompt
    assert TOOLS[149]["name"] in call.prompt
    counted = await router.http.post(
        "/v1/messages/count_tokens?beta=true",
        json={name: body[name] for name in ("model", "messages", "system", "tools")},
        headers=headers,
    )
    assert counted.json()["input_tokens"] > 1000


async def test_turns_of_one_side_are_one_and_late_system_messages_are_the_users(
    router: RunningRouter,
) -> None:
    messages = [
        {"role": "system", "content": "s2"},
        {"role": "user", "content": "a"},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
        {"role": "user", "content": "d"},
    ]
    assert (await ask(router, system="s1", messages=messages)).status_code == 200
    (call,) = router.pipeline.calls
    late = "a\n<system>\nlate\n</system>"
    turns = f"<system>s1\ns2</system><user>{late}</user><assistant>b\nc</assistant><user>d</user><assistant>"
    assert call.prompt == turns


async def test_an_answer_that_is_begun_is_continued(router: RunningRouter) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "The answer is ("}]
    answer = (await ask(router, messages=messages)).json()
    assert answer["content"][0]["text"] == "Hello world"
    assert router.pipeline.calls[0].prompt.endswith("<assistant>The answer is (")


async def test_probes_are_answered_without_a_model(router: RunningRouter) -> None:
    for method in ("HEAD", "GET"):
        assert (await router.http.request(method, "/")).status_code == 200
        probe = await router.http.request(method, "/v1/messages")
        assert probe.status_code == 405
        assert probe.headers["allow"] == "POST"
    assert (await router.http.get("/v1/messages/unknown")).json()["error"]["type"] == "not_found_error"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"surprise": 1}, "surprise"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "f"}, "tools": [LOOK]}, "f is not among the tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: there are no tools"),
    ({"tool_choice": {"type": "some"}}, "tool_choice"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
]
BLOCKS: list[tuple[str, dict[str, Any], str]] = [
    ("user", {"type": "image", "source": {"type": "url", "url": "x"}}, "reads text, not images"),
    ("user", {"type": "image", "source": {"type": "url"}}, "messages[0].content[0].source.url: expected"),
    ("user", {"type": "image", "source": {"type": "s3"}}, "messages[0].content[0].source"),
    ("user", {"type": "image"}, "messages[0].content[0].source"),
    ("assistant", {"type": "image", "source": {"type": "url", "url": "x"}}, "image blocks are not supported"),
    (
        "user",
        {"type": "document", "source": {"type": "text", "data": "x"}},
        "document blocks are not supported",
    ),
    ("user", {"type": "tool_use", "id": "a", "name": "f", "input": {}}, "tool_use blocks are not supported"),
    ("assistant", {"type": "tool_result", "tool_use_id": "a"}, "tool_result blocks are not supported"),
    ("user", {"type": "thinking", "thinking": "x"}, "thinking blocks are not supported"),
    ("user", {"type": "tool_result", "content": "x"}, "tool_use_id"),
    ("assistant", {"type": "tool_use", "id": "a", "name": "f"}, "an id, a name and an input"),
    (
        "user",
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]},
        "messages[0].content[0].content[0]: image blocks are not supported here",
    ),
]


async def test_what_is_wrong_or_not_done_here_is_named(router: RunningRouter) -> None:
    blocks = [
        ({"messages": [{"role": role, "content": [block]}, *QUESTION]}, named)
        for role, block, named in BLOCKS
    ]
    for fields, named in [*WRONG, *blocks]:
        response = await ask(router, **fields)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert named in error["message"]
    assert router.pipeline.calls == []


async def test_models_of_another_kind_are_refused(router: RunningRouter) -> None:
    for model, named in ((BARE_MODEL, "no chat template"), (EMBEDDER, "makes embeddings")):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = await ask(router, path, model=model, max_tokens=9 if path == "/v1/messages" else None)
            assert response.status_code == 400
            assert named in response.json()["error"]["message"]


async def test_a_large_message_is_answered_like_any_other(router: RunningRouter) -> None:
    response = await ask(router, messages=[{"role": "user", "content": "hi " * 20_000}])
    assert response.json()["content"][0]["text"] == "Hello world"


async def test_a_body_that_is_no_json_gets_anthropics_error(router: RunningRouter) -> None:
    response = await router.http.post(
        "/v1/messages", content=b"{", headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    untyped = await router.http.post("/v1/messages", content=b"{}", headers={"content-type": "text/plain"})
    assert (untyped.status_code, untyped.json()["type"]) == (415, "error")
