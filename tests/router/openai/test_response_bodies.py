"""What the body of a response may hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from python_backend.wire.errors import InflightError
from router.core.messages import Message
from router.openai.response_bodies import as_chat, decode_response


def decode(**fields: Any) -> Any:
    return decode_response(msgspec.json.encode({"model": "tiny", "input": "hi", **fields}))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "store"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"reasoning": {"summary": "all"}}, "reasoning.summary"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"tools": [{"type": "juggling"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]},
            "tools[0].tools[0].name",
        ),
        ({"tools": [{"type": "custom", "name": "a", "format": {"type": "grammar"}}]}, "tools[0].format"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"role": 1}]}, "input[0].role"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"metadata": {"a": "x" * 513}}, "metadata[...]"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "text", "name": "a"}}}, "text.format"),
        ({"text": {"verbosity": "chatty"}}, "text.verbosity"),
        ({"previous_response_id": "resp_a", "conversation": "conv_a"}, "previous_response_id"),
        ({"stream_options": {}}, "stream_options"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_an_invalid_field_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InflightError) as caught:
        decode(**fields)
    assert caught.value.kind.http_status == 400
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "cuts"),
    [
        ({}, False),
        ({"previous_response_id": "resp_a"}, False),
        ({"truncation": "auto"}, True),
        ({"conversation": "conv_a"}, True),
        ({"conversation": {"id": "conv_a"}, "truncation": "auto"}, True),
        ({"conversation": "conv_a", "truncation": "disabled"}, False),
    ],
)
def test_history_is_cut_on_request_and_in_conversations(fields: dict[str, object], cuts: bool) -> None:
    assert decode(**fields).cuts_history is cuts


def test_a_response_makes_the_same_calls_as_the_equivalent_chat() -> None:
    body = decode(
        max_output_tokens=5,
        temperature=0,
        top_p=0.5,
        tools=[{"type": "function", "name": "look", "parameters": {}, "strict": True}],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        include=["message.output_text.logprobs"],
        top_logprobs=3,
    )
    chat = as_chat(body, [Message("user", "hi")])
    assert (chat.max_completion_tokens, chat.temperature, chat.top_p) == (5, 0, 0.5)
    assert chat.tools is not None
    assert chat.tools[0].name == "look"
    assert chat.parallel_tool_calls is False
    assert chat.response_format is not None
    assert chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == {"type": "object"}
    assert (chat.logprobs, chat.top_logprobs) == (True, 3)
