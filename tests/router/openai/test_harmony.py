"""A model that answers in harmony's channels, asked by OpenAI's API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from router.routing.chat_template import ChatTemplate
from router.routing.models import Registry
from tests.fakes.pipeline import words
from tests.router.openai.test_chat import chunks
from tests.router.openai.test_tools import WEATHER
from tests.router.running import RunningRouter

# The parts of gpt-oss's template that matter here, in its own words.
TEMPLATE = """
{%- if tools %}{{ "<|start|>developer<|message|>" + tools[0].function.name + "<|end|>" }}{% endif %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' and "tool_calls" in message %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if message.content and message.thinking %}
            {{- raise_exception("Cannot pass both content and thinking with tool calls!") }}
        {%- elif message.thinking %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
        {{- tool_call.arguments|tojson }}
        {{- "<|call|>" }}
    {%- else %}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
THOUGHT = "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
SAID = "<|channel|>final<|message|>Sunny.<|return|>"


@pytest.fixture
def harmonic(router: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> RunningRouter:
    find, template = Registry.find, ChatTemplate(TEMPLATE)
    monkeypatch.setattr(Registry, "find", lambda *given: replace(find(*given), template=template))
    return router


def letters(text: str) -> Any:
    return lambda call: words(*text)


async def test_channels_are_reasoning_and_content(harmonic: RunningRouter) -> None:
    harmonic.pipeline.script = letters(THOUGHT + SAID)
    choice = (await harmonic.chat()).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Sunny."
    assert choice["message"]["reasoning_content"] == "Need the weather."
    [call] = harmonic.pipeline.calls
    assert call.shows_special_tokens
    assert call.prompt.endswith("<|start|>assistant")


async def test_a_call_to_a_function_is_a_tool_call(harmonic: RunningRouter) -> None:
    harmonic.pipeline.script = letters(THOUGHT + CALL)
    choice = (await harmonic.chat(tools=[WEATHER])).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    [made] = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}


async def test_channels_are_told_apart_in_a_stream(harmonic: RunningRouter) -> None:
    harmonic.pipeline.script = letters(THOUGHT + CALL)
    sent: Any = chunks((await harmonic.chat(stream=True, tools=[WEATHER])).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in sent]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Need the weather."
    assert "".join(delta.get("content") or "" for delta in deltas) == ""
    [call] = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert call["function"]["name"] == "weather"
    assert sent[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_what_must_follow_a_schema_is_said_at_once(harmonic: RunningRouter) -> None:
    harmonic.pipeline.script = letters("{}")
    answer = await harmonic.chat(response_format={"type": "json_object"})
    assert answer.json()["choices"][0]["message"]["content"] == "{}"
    assert harmonic.pipeline.calls[-1].prompt.endswith("<|start|>assistant<|channel|>final<|message|>")


async def test_thoughts_before_a_call_are_given_back_to_the_model(harmonic: RunningRouter) -> None:
    harmonic.pipeline.script = letters(SAID)
    function = {"name": "weather", "arguments": '{"city": "Paris"}'}
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Need it.",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "Sun."},
    ]
    answer = await harmonic.chat(messages=messages, tools=[WEATHER])
    assert answer.status_code == 200, answer.text
    assert "<|channel|>analysis<|message|>Need it.\n\nI look.<|end|>" in harmonic.pipeline.calls[-1].prompt
