"""Thoughts and tool calls in an answer: what is found does not depend on how the text came."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.answer_reader import AnswerReader, CallList, ThoughtReader, ToolReader, WholeCall
from router.core.call_formats import HERMES, LLAMA, MISTRAL, XML, CallFormat, format_of

Read = tuple[str, str, list[tuple[str, Any]]]
FORMATS = (HERMES, LLAMA, MISTRAL, XML)
SCHEMAS = {"weather": {"properties": {"city": {"type": "string"}}}}


def read(text: str, cuts: list[int], form: CallFormat = HERMES, thinks: bool | None = None) -> Read:
    """Thoughts, text and calls, when the text came cut at these places."""
    tools = ToolReader(CallList(["weather", "time"], schemas=SCHEMAS), form=form)
    reader = AnswerReader(None if thinks is None else ThoughtReader(thinks), tools)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    said, thought = "", ""
    for start, end in pairwise(places):
        said += reader.feed(text[start:end])
        thought += reader.take_thoughts()
    said += reader.flush()
    calls = [(call.name, json.loads(call.arguments)) for call in reader.calls]
    return thought + reader.take_thoughts(), said, calls


PARIS: tuple[str, Any] = ("weather", {"city": "Paris"})
NOON: tuple[str, Any] = ("time", {})
XML_PARIS = "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>"
TWO_LLAMA = '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "time", "parameters": {}}'


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, 'So. <tool_call>{"name": "time", "arguments": {}}</tool_call>', ("", "So. ", [NOON])),
        (LLAMA, TWO_LLAMA, ("", "", [PARIS, NOON])),
        (LLAMA, f"<|python_tag|>{TWO_LLAMA}", ("", "", [PARIS, NOON])),
        (LLAMA, f"  {TWO_LLAMA}", ("", "", [PARIS, NOON])),
        (LLAMA, '{"answer": 42}', ("", '{"answer": 42}', [])),
        (LLAMA, '{"name": "other", "parameters": {}}', ("", '{"name": "other", "parameters": {}}', [])),
        (LLAMA, '{"name": "weather", "para', ("", '{"name": "weather", "para', [])),
        (LLAMA, "It is {sunny}.", ("", "It is {sunny}.", [])),
        (
            MISTRAL,
            'Well. [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "time"}]',
            ("", "Well. ", [PARIS, NOON]),
        ),
        (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}', ("", "", [PARIS])),
        (MISTRAL, '[TOOL_CALLS]weather{"city": "Paris"}[TOOL_CALLS]time{}', ("", "", [PARIS, NOON])),
        (MISTRAL, '[TOOL_CALLS]weather[CALL_ID]a1[ARGS]{"city": "Paris"}', ("", "", [PARIS])),
        (MISTRAL, "[TOOL_CALLS]nothing", ("", "[TOOL_CALLS]nothing", [])),
        (MISTRAL, "[1, 2]", ("", "[1, 2]", [])),
        (XML, f"I look.\n\n<tool_call>\n{XML_PARIS}\n</tool_call>", ("", "I look.\n\n", [PARIS])),
        (XML, f"{XML_PARIS}\n</tool_call>", ("", "", [PARIS])),
        (
            XML,
            f"<tool_call>\n{XML_PARIS}\n</tool_call><tool_call>\n<function=time>\n</function>",
            ("", "", [PARIS, NOON]),
        ),
        (XML, "<function=time>{}</function>", ("", "<function=time>{}</function>", [])),
        (XML, "<tool_call>time</tool_call>", ("", "<tool_call>time</tool_call>", [])),
        (XML, "a <function b", ("", "a <function b", [])),
    ],
)
@given(cuts=st.lists(st.integers(0, 120)))
def test_calls_of_each_family_are_found_however_the_text_is_split(
    form: CallFormat, text: str, expected: Read, cuts: list[int]
) -> None:
    assert read(text, cuts, form) == expected


@pytest.mark.parametrize(
    ("thinks", "text", "thought", "said"),
    [
        (False, "<think>\nHm.\n\nYes.\n</think>\n\nParis.", "Hm.\n\nYes.", "Paris."),
        (False, "\n<think>Hm.</think>Paris.", "Hm.", "Paris."),
        (False, "<think>\n\n</think>\n\nParis.", "", "Paris."),
        (True, "Hm.\n</think>\nParis.", "Hm.", "Paris."),
        (True, "Hm, and on", "Hm, and on", ""),
        (False, "<think>Hm <b </thin", "Hm <b </thin", ""),
        (False, "Paris <think>no</think>.", "", "Paris <think>no</think>."),
        (False, "\n\nParis.", "", "\n\nParis."),
        (False, "<thi", "", "<thi"),
        (False, "", "", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 60)))
def test_thoughts_are_told_apart_however_the_text_is_split(
    thinks: bool, text: str, thought: str, said: str, cuts: list[int]
) -> None:
    assert read(text, cuts, thinks=thinks) == (thought, said, [])


pieces = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "{", "}",
         "<function=time>", "</function>", "<parameter=a>", "</parameter>",
         "[", '{"name": "time", "arguments": {}}', "time", "a", " ", "\n", ";", "<", "</"]
    ),
    max_size=12,
)  # fmt: skip


@given(pieces, st.lists(st.integers(0, 100)), st.sampled_from(FORMATS), st.sampled_from([None, False, True]))
def test_any_answer_is_read_the_same_in_one_piece_and_in_many(
    parts: list[str], cuts: list[int], form: CallFormat, thinks: bool | None
) -> None:
    text = "".join(parts)
    assert read(text, cuts, form, thinks) == read(text, [], form, thinks)


@given(st.text(st.sampled_from("ab \n<>{}[]")), st.lists(st.integers(0, 50)), st.sampled_from(FORMATS))
def test_text_without_marks_leaves_unchanged(text: str, cuts: list[int], form: CallFormat) -> None:
    assert read(text, cuts, form, thinks=False) == ("", text, [])


def test_text_leaves_as_soon_as_it_cannot_be_anything_else() -> None:
    reader = AnswerReader(ThoughtReader(), ToolReader(CallList(["time"])))
    assert reader.feed("<") == ""
    assert reader.feed("b> and") == "<b> and"
    reader = AnswerReader(ThoughtReader(is_thinking=True), None)
    assert reader.feed("I think ") == ""
    assert reader.take_thoughts() == "I think"
    assert reader.is_thinking
    assert reader.feed("so</think>. ") == ". "
    assert reader.take_thoughts() == " so"
    assert not reader.is_thinking


def test_a_forced_call_that_was_cut_off_leaks_nothing() -> None:
    reader = ToolReader(CallList(["time"]), is_forced=True)
    assert reader.feed('{"name": "ti') + reader.flush() == ""
    assert reader.calls == []


def test_custom_tools_are_called_with_a_text() -> None:
    reader = ToolReader(CallList(["patch"], custom=["patch"]))
    reader.feed('<tool_call>{"name": "patch", "arguments": {"input": "a\\nb"}}</tool_call>')
    [call] = reader.calls
    assert call.rendered()["custom"] == {"name": "patch", "input": "a\nb"}
    whole = WholeCall("patch")
    assert whole.feed("*** Begin") + whole.feed(" Patch") + whole.flush() == ""
    assert whole.calls[0].arguments == "*** Begin Patch"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ('[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]{{ "[" }}', MISTRAL),
        ("{{ tools }}<|eot_id|><|python_tag|>", LLAMA),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', LLAMA),
        ("{{ messages }}", HERMES),
    ],
)
def test_the_template_shows_how_its_model_writes_calls(template: str, form: CallFormat) -> None:
    assert format_of(template) is form
