"""Tools: offered to the model, called by it, and answered in the messages that follow."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, grammar_from

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.calls import chat_messages
from router.chat.tools import forced_schema
from router.core.answer_reader import CallList, ToolReader
from router.openai.chat import decode_chat
from router.routing.chat_template import ChatTemplate
from router.routing.models import Registry
from tests.fakes.pipeline import words
from tests.router.openai.test_chat import chunks
from tests.router.running import RunningRouter

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": PLACE}}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def read(
    text: str, cuts: list[int], names: tuple[str, ...] = ("weather",), **how: Any
) -> tuple[str, list[Any]]:
    """The text that left and the calls, when the text came cut at these places."""
    reader = ToolReader(CallList(names, how.pop("at_most", None)), **how)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    parts = [text[start:end] for start, end in pairwise(places)]
    left = "".join(map(reader.feed, parts)) + reader.flush()
    return left, [(call.name, json.loads(call.arguments)) for call in reader.calls]


@given(st.lists(st.integers(0, 200)))
def test_tool_calls_are_found_however_the_text_is_split(cuts: list[int]) -> None:
    text = f"I look. {CALL}{CALL.replace('Paris', 'Rome')} Done <tool."
    left, calls = read(text, cuts)
    assert left == "I look.  Done <tool."
    assert calls == [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})]


@given(st.text(st.sampled_from("<tol_ca>/{} x")), st.lists(st.integers(0, 50)))
def test_text_without_a_tool_call_is_unchanged(text: str, cuts: list[int]) -> None:
    assert read(text, cuts) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>weather in Paris</tool_call>",
        '<tool_call>{"name": "no_such", "arguments": {}}</tool_call>',
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": {}, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>" + "[" * 9000 + "</tool_call>",
    ],
)
def test_text_that_only_looks_like_a_tool_call_stays_text(text: str) -> None:
    assert read(text, [5, 20]) == (text, [])


def test_a_call_without_its_closing_tag_counts_when_nothing_more_comes() -> None:
    assert read(CALL.removesuffix("</tool_call>"), [30]) == ("", [("weather", {"city": "Paris"})])


def test_only_the_first_tool_call_counts_without_parallel_calls() -> None:
    assert read(CALL + CALL, [30], at_most=1) == ("", [("weather", {"city": "Paris"})])


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('"arguments": {"a": "\\u0062lue",\n "b": 1e400}', '{"a": "\\u0062lue",\n "b": 1e400}'),
        ('"parameters": {"a": 1}', '{"a": 1}'),
        ('"arguments": "{\\"a\\": 1}"', '{"a": 1}'),
        ('"arguments": null', "{}"),
        ('"other": 1', "{}"),
    ],
)
def test_arguments_are_passed_on_as_the_model_wrote_them(written: str, told: str) -> None:
    reader = ToolReader(CallList(["weather"]))
    assert reader.feed(f'<tool_call>{{"name": "weather", {written}}}</tool_call>') == ""
    assert [call.arguments for call in reader.calls] == [told]


def test_a_forced_tool_call_is_the_whole_answer() -> None:
    assert read('{"name": "time", "arguments": {}}', [3, 9], ("time",), is_forced=True) == (
        "",
        [("time", {})],
    )


async def test_a_tool_call_is_returned_whole_and_ends_the_answer(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("Let me", " see.", CALL[:20], CALL[20:])
    choice = (await router.chat(tools=[WEATHER])).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}  # as written


async def test_a_tool_call_in_a_stream_comes_as_a_delta_of_its_own(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(CALL[:20], CALL[20:], CALL)
    got = chunks((await router.chat(tools=[WEATHER], stream=True)).text)
    choices = [chunk["choices"][0] for chunk in got]  # type: ignore[index]  # JSON
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert all(call["function"]["name"] == "weather" for call in calls)
    assert not any(choice["delta"].get("content") for choice in choices)
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_without_tools_or_with_tool_choice_none_tags_are_text(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(CALL)
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = (await router.chat(**fields)).json()["choices"][0]
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"
        assert "weather" not in router.pipeline.calls[-1].prompt


async def test_a_required_tool_call_is_guided_by_the_tools_own_schema(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words('{"name": "weather", "arguments": {"city": "Rome"}}')
    named = {"type": "function", "function": {"name": "weather"}}
    response = await router.chat(tools=[WEATHER, TIME], tool_choice=named)
    message = response.json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    guide = router.pipeline.calls[-1].guide
    assert guide is not None
    assert json.loads(guide[1])["properties"] == {"name": {"const": "weather"}, "arguments": PLACE}


def body(**fields: object) -> Any:
    messages = fields.pop("messages", [{"role": "user", "content": "hi"}])
    return decode_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def resolved(schema: Any, reference: str) -> Any:
    for step in reference.removeprefix("#").split("/")[1:]:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


@pytest.mark.parametrize("others", [[], [TIME]])
def test_references_in_a_tools_schema_still_resolve(others: list[Any]) -> None:
    """As pydantic writes them: by the root of the parameters, which is not the root of what is demanded."""
    city = {"type": "string", "enum": ["Paris"]}
    tree = {"$ref": "#"}
    parameters = {"$defs": {"City": city}, "properties": {"city": {"$ref": "#/$defs/City"}, "more": tree}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    schema: Any = forced_schema(body(tools=[*others, tool], tool_choice="required"))
    call = schema["anyOf"][-1] if others else schema
    arguments = call["properties"]["arguments"]
    assert resolved(schema, arguments["properties"]["city"]["$ref"]) == city
    assert resolved(schema, arguments["properties"]["more"]["$ref"]) is arguments
    assert LLMatcher.validate_grammar(grammar_from("json_schema", json.dumps(schema))) == ""


def test_any_of_several_tools_may_be_required() -> None:
    schema = forced_schema(body(tools=[WEATHER, TIME], tool_choice="required"))
    assert schema is not None
    assert [call["properties"]["name"]["const"] for call in schema["anyOf"]] == ["weather", "time"]
    assert forced_schema(body(tools=[WEATHER], tool_choice="auto")) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice: there are no tools"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice: x is not among the tools",
        ),
    ],
)
def test_a_tool_choice_that_cannot_be_met_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InflightError, match=message):
        forced_schema(body(**fields))


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]


def test_a_template_that_knows_tools_gets_calls_and_results_as_they_are() -> None:
    rendered = chat_messages(body(messages=HISTORY, tools=[WEATHER]), knows_tools=True)
    assert [message["role"] for message in rendered] == ["user", "assistant", "tool"]
    assert rendered[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    assert rendered[2]["tool_call_id"] == "c1"


def test_a_template_without_tool_support_gets_calls_and_results_as_text() -> None:
    rendered = chat_messages(body(messages=HISTORY, tools=[WEATHER]), knows_tools=False)
    assert [message["role"] for message in rendered] == ["system", "user", "assistant", "user"]
    assert '"name":"weather"' in rendered[0]["content"]
    assert read(rendered[2]["content"], []) == ("", [("weather", {"city": "Paris"})])
    assert "rain" in rendered[3]["content"]


def test_a_system_message_is_kept_and_the_tools_follow_it() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    rendered = chat_messages(body(messages=messages, tools=[TIME]), knows_tools=False)
    assert rendered[0]["content"].startswith("Be brief.\n\n# Tools")
    assert len(rendered) == 2


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "tool", "content": "rain"}, "tool_call_id: only allowed with the role tool"),
        (
            {"role": "user", "content": "x", "tool_call_id": "c"},
            "tool_call_id: only allowed with the role tool",
        ),
        (
            {"role": "user", "content": "x", "tool_calls": HISTORY[1]["tool_calls"]},
            "tool_calls: only allowed with the role assistant",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "weather", "arguments": "{"}}],
            },
            "arguments: expected JSON",
        ),
    ],
)
def test_an_inconsistent_tool_history_is_refused(message: dict[str, object], problem: str) -> None:
    with pytest.raises(InflightError, match=problem):
        chat_messages(body(messages=[message]))


def test_templates_declare_whether_they_know_tools() -> None:
    assert not ChatTemplate("{{ messages }}").knows_tools
    knowing = ChatTemplate("{% if tools %}{{ tools | length }}{% endif %}")
    assert knowing.knows_tools
    assert knowing.render([], [TIME, WEATHER]) == "2"
    assert knowing.render([]) == ""


CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "date",
        "description": "A day.",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{4}"}},
    },
}


GRAMMARLESS = {"type": "grammar"}


def allowed(mode: str, *names: str) -> dict[str, object]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_only_allowed_tools_are_described_and_read(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(CALL)
    some = await router.chat(tools=[WEATHER, TIME], tool_choice=allowed("auto", "time"))
    assert some.json()["choices"][0]["message"]["content"] == CALL
    assert "weather" not in router.pipeline.calls[-1].prompt
    forced = await router.chat(tools=[WEATHER, TIME], tool_choice=allowed("required", "time"))
    assert forced.status_code == 200
    guide = router.pipeline.calls[-1].guide
    assert guide is not None
    assert json.loads(guide[1])["properties"]["name"] == {"const": "time"}
    unknown = await router.chat(tools=[TIME], tool_choice=allowed("auto", "fly"))
    assert unknown.json()["error"]["message"] == "tool_choice: fly is not among the tools"


async def test_a_custom_tool_is_a_function_to_the_model_and_a_text_to_the_client(
    router: RunningRouter,
) -> None:
    router.pipeline.script = lambda call: words(
        '<tool_call>{"name": "date", "arguments": {"input": "2026"}}</tool_call>'
    )
    [call] = (await router.chat(tools=[CUSTOM])).json()["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "date", "input": "2026"})
    assert "[0-9]{4}" in router.pipeline.calls[-1].prompt
    router.pipeline.script = lambda call: words("2026")
    named = {"type": "custom", "custom": {"name": "date"}}
    forced = (await router.chat(tools=[CUSTOM], tool_choice=named)).json()["choices"][0]
    assert forced["message"]["tool_calls"][0]["custom"] == {"name": "date", "input": "2026"}
    assert router.pipeline.calls[-1].guide == ("regex", "[0-9]{4}")
    history = [{"role": "user", "content": "hi"}, forced["message"]]
    again = await router.chat(messages=history, tools=[CUSTOM])
    assert again.status_code == 200
    assert '"arguments":{"input":"2026"}' in router.pipeline.calls[-1].prompt


async def test_a_tool_without_parameters_takes_none(router: RunningRouter) -> None:
    await router.chat(tools=[TIME], tool_choice="required")
    guide = router.pipeline.calls[-1].guide
    assert guide is not None
    assert json.loads(guide[1])["properties"]["arguments"]["additionalProperties"] is False


async def test_a_required_call_that_is_cut_off_leaks_no_json(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words('{"name": "ti', finish="length")
    for stream in (False, True):
        response = await router.chat(tools=[TIME], tool_choice="required", stream=stream)
        assert "name" not in response.text
        assert '"finish_reason":"length"' in response.text


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        (
            [TIME, WEATHER],
            {"type": "function", "function": {"name": "weather"}},
            "tools[1].function.parameters",
        ),
        ([TIME, WEATHER], "required", "tools"),
        ([CUSTOM], {"type": "custom", "custom": {"name": "date"}}, "tools[0].custom.format"),
    ],
)
async def test_a_bad_tool_schema_is_reported_where_it_was_written(
    router: RunningRouter, tools: list[Any], choice: Any, param: str
) -> None:
    refused = InflightError(ErrorKind.INVALID_REQUEST, "guided_decoding_guide: Unimplemented keys")
    router.pipeline.script = lambda call: [refused]
    error = (await router.chat(tools=tools, tool_choice=choice)).json()["error"]
    assert (error["param"], error["message"]) == (param, f"{param}: Unimplemented keys")


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "function", "custom": {"name": "a"}}, "tools[0].function"),
        ({**TIME, "custom": {"name": "a"}}, "tools[0].custom"),
        (
            {"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}},
            "tools[0].custom.format",
        ),
    ],
)
def test_a_tool_has_what_its_type_promises(tool: dict[str, object], param: str) -> None:
    with pytest.raises(InflightError) as caught:
        body(tools=[tool])
    assert caught.value.param == param


async def test_marks_that_are_special_tokens_are_shown_where_they_are_read(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate("{{ tools }}[TOOL_CALLS]")
    find = Registry.find
    monkeypatch.setattr(Registry, "find", lambda *given: replace(find(*given), template=template))
    router.pipeline.script = lambda call: words("[TOOL_CALLS]", '[{"name": "time", ', '"arguments": {}}]')
    choice = (await router.chat(tools=[TIME])).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "time", "arguments": "{}"}
    assert router.pipeline.calls[-1].shows_special_tokens
    await router.chat()
    assert router.pipeline.calls[-1].shows_special_tokens is None


async def test_arguments_between_tags_come_as_json_of_the_schemas_types(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate("{{ tools }}{{ '<tool_call>\\n<function=' }}{{ '<parameter=' }}")
    find = Registry.find
    monkeypatch.setattr(Registry, "find", lambda *given: replace(find(*given), template=template))
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    forecast = {"type": "function", "function": {"name": "forecast", "parameters": parameters}}
    written = "<tool_call>\n<function=forecast>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
    router.pipeline.script = lambda call: words(*written, "</parameter>\n</function>\n</tool_call>")
    got: Any = chunks((await router.chat(stream=True, tools=[forecast])).text)
    [call] = [call for chunk in got for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert call["function"] == {"name": "forecast", "arguments": '{"city":"Paris","days":3}'}
    assert got[-1]["choices"][0]["finish_reason"] == "tool_calls"
