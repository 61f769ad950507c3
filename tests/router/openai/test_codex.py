"""What coding agents send: tools that OpenAI runs, namespaces, custom tools, and advice."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.fakes.pipeline import words
from tests.router.openai.test_responses import client as client
from tests.router.openai.test_responses import create, prompt
from tests.router.running import MODEL, RunningRouter

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__files__",
    "description": "Files.",
    "tools": [{"type": "function", "name": "list", "parameters": {"type": "object"}}],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
CODEX: dict[str, Any] = {
    "instructions": "You are a coding agent.",
    "tools": [SHELL, {"type": "web_search", "external_web_access": False}, NAMESPACE, PATCH],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "a",
    "client_metadata": {"session": "a"},
    "text": {"verbosity": "low"},
}


async def test_a_coding_agents_request_is_answered(router: RunningRouter) -> None:
    answer = await create(router, **CODEX)
    assert (answer["http_status"], answer["status"]) == (200, "completed")
    assert answer["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert "shell" in prompt(router)
    assert "web_search" not in prompt(router)


async def test_a_tool_of_a_namespace_is_called_by_both_names(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    router.pipeline.script = lambda call: words(
        '<tool_call>{"name": "mcp__files__list", "arguments": {}}</tool_call>'
    )
    tools: Any = CODEX["tools"]
    answer = await client.responses.create(model=MODEL, input="hi", tools=tools)
    [call] = answer.output
    assert call.type == "function_call"
    assert (call.namespace, call.name, call.arguments) == ("mcp__files__", "list", "{}")
    again: Any = [
        {"role": "user", "content": "hi"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"},
    ]
    await client.responses.create(model=MODEL, input=again, tools=tools)
    assert '"name":"mcp__files__list","arguments":{}' in prompt(router)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_is_called_with_a_text(
    client: openai.AsyncOpenAI, router: RunningRouter, stream: bool
) -> None:
    router.pipeline.script = lambda call: words(
        '<tool_call>{"name": "apply_patch", ', '"arguments": {"input": "*** Begin"}}</tool_call>'
    )
    asked: Any = {"model": MODEL, "input": "hi", "tools": CODEX["tools"]}
    if stream:
        async with client.responses.stream(**asked) as streamed:
            events = [event async for event in streamed]
            answer = await streamed.get_final_response()
        assert [e.input for e in events if e.type == "response.custom_tool_call_input.done"] == ["*** Begin"]
    else:
        answer = await client.responses.create(**asked)
    [call] = answer.output
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("apply_patch", "*** Begin")
    again: Any = [
        {"role": "user", "content": "hi"},
        call.model_dump(exclude_none=True),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"},
    ]
    assert (await client.responses.create(**{**asked, "input": again})).status == "completed"
    assert '"arguments":{"input":"*** Begin"}' in prompt(router)


async def test_a_forced_custom_tool_follows_its_grammar(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("*** Be", "gin")
    answer = await create(router, **{**CODEX, "tool_choice": {"type": "custom", "name": "apply_patch"}})
    [call] = answer["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", "*** Begin")
    assert router.pipeline.calls[-1].guide == ("ebnf_grammar", 'start: "x"')


async def test_tools_that_are_not_here_cannot_be_forced(router: RunningRouter) -> None:
    for choice in ({"type": "web_search"}, "required"):
        answer = await create(router, tools=[{"type": "web_search"}], tool_choice=choice)
        assert (answer["http_status"], answer["error"]["param"]) == (400, "tool_choice")
    assert router.pipeline.calls == []


async def test_only_allowed_tools_are_told_of(router: RunningRouter) -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "shell"}]}
    router.pipeline.script = lambda call: words('{"name": "shell", "arguments": {"command": "ls"}}')
    answer = await create(router, **{**CODEX, "tool_choice": allowed})
    assert [item["name"] for item in answer["output"]] == ["shell"]
    assert "apply_patch" not in prompt(router)
    guide = router.pipeline.calls[-1].guide
    assert guide is not None
    assert json.loads(guide[1])["properties"]["name"] == {"const": "shell"}
