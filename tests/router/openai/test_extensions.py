"""Fields of other servers of open models, as far as they are honoured here."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.guides import chat_demand, demand_of
from router.core.generation import Delta, LoggedToken
from router.openai.chat import decode_chat
from router.openai.completions import decode_completion
from tests.fakes.pipeline import words
from tests.router.openai.test_bodies import with_fields
from tests.router.openai.test_chat import chunks
from tests.router.running import RunningRouter

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ENCODED = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({"guided_json": SCHEMA}, ("json_schema", ENCODED, "guided_json")),
        ({"guided_json": ENCODED}, ("json_schema", ENCODED, "guided_json")),
        ({"guided_regex": "a+"}, ("regex", "a+", "guided_regex")),
        ({"guided_choice": ["yes", "no?"]}, ("regex", "yes|no\\?", "guided_choice")),
        ({"guided_grammar": 'root ::= "a"'}, ("ebnf_grammar", 'root ::= "a"', "guided_grammar")),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", ENCODED, "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a"}}, ("regex", "a", "structured_outputs.regex")),
        (
            {"structured_outputs": {"json_object": True}},
            ("json_schema", '{"type":"object"}', "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json_object": False}, "guided_regex": None}, None),
    ],
)
async def test_a_guide_is_asked_for_as_vllm_does(
    router: RunningRouter, fields: dict[str, Any], guide: tuple[str, str, str] | None
) -> None:
    assert (await router.chat(**fields)).status_code == 200
    assert (await router.complete(**fields)).status_code == 200
    for call in router.pipeline.calls:
        assert (None if call.guide is None else (*call.guide, call.guide_field)) == guide


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_an_answer_follows_one_guide(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InflightError, match="follow both") as caught:
        chat_demand(decode_chat(with_fields(**fields)))
    assert caught.value.param == param


@given(st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), min_size=1, max_size=4))
def test_a_choice_of_texts_is_a_pattern_of_exactly_these(texts: list[str]) -> None:
    body = decode_chat(with_fields(guided_choice=texts))
    demand = demand_of(body)
    assert demand is not None
    assert all(re.fullmatch(demand.text, text) for text in texts)
    assert not re.fullmatch(demand.text, texts[0] + "\x01")
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(demand.text)) == ""


async def test_an_invalid_guide_is_reported_by_the_field_it_came_in(router: RunningRouter) -> None:
    error = InflightError(ErrorKind.INVALID_REQUEST, "guided_decoding_guide: unclosed group")
    router.pipeline.script = lambda call: [error]
    for response in (await router.chat(guided_regex="("), await router.complete(guided_regex="(")):
        told = response.json()["error"]
        assert (told["param"], told["message"]) == ("guided_regex", "guided_regex: unclosed group")


async def test_sampling_and_stop_extensions_reach_the_engine(router: RunningRouter) -> None:
    fields = {"min_p": 0.1, "stop_token_ids": [2, 7], "skip_special_tokens": False, "top_k": -1}
    await router.chat(**fields)
    await router.complete(**fields, add_special_tokens=False)
    for call in router.pipeline.calls:
        assert (call.min_p, call.stop_token_ids, call.shows_special_tokens) == (0.1, (2, 7), True)
        assert call.top_k == 0
        assert call.add_special_tokens is False
    await router.chat(min_p=0, stop_token_ids=[], skip_special_tokens=True)
    last = router.pipeline.calls[-1]
    assert (last.min_p, last.stop_token_ids, last.shows_special_tokens) == (None, None, None)


@pytest.mark.parametrize("fields", [{"min_p": 1.1}, {"stop_token_ids": [-1]}, {"stop_token_ids": [1] * 65}])
async def test_extensions_out_of_range_are_refused(router: RunningRouter, fields: dict[str, Any]) -> None:
    assert (await router.chat(**fields)).status_code == 400


async def test_usage_so_far_comes_with_each_chunk_on_request(router: RunningRouter) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for response in (
        await router.chat(stream=True, stream_options=options),
        await router.complete(stream=True, stream_options=options),
    ):
        got: Any = chunks(response.text)
        counts = [chunk["usage"]["completion_tokens"] for chunk in got]
        assert (counts[-3:], counts) == ([2, 2, 2], sorted(counts))
        assert {chunk["usage"]["prompt_tokens"] for chunk in got} == {7}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_alone_is_scored(router: RunningRouter, stream: bool) -> None:
    tokens = (LoggedToken(b"Once", None, 4), LoggedToken(b" upon", -1.5, 5))
    router.pipeline.script = lambda call: [
        Delta("Once upon", 2, 2, tokens=tokens),
        Delta(" a", 1, 2, tokens=(LoggedToken(b" a", -0.5, 2),)),
        Delta("", finish="length"),
    ]
    response = await router.complete(prompt="Once upon", max_tokens=0, echo=True, logprobs=0, stream=stream)
    if stream:
        got: Any = chunks(response.text)
        assert "".join(chunk["choices"][0]["text"] for chunk in got) == "Once upon"
        assert got[-1]["choices"][0]["finish_reason"] == "length"
        return
    answer = response.json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Once upon", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 0)
    assert router.pipeline.calls[-1].max_tokens == 1


async def test_an_echo_of_the_prompt_alone_needs_no_log_probabilities(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(" a", " b")
    answer = (await router.complete(prompt="Once", max_tokens=0, echo=True)).json()
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("Once", 0)
    assert (await router.complete(max_tokens=0)).json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ("/v1/completions", {"prompt": "x"}, "prompt"),
        ("/v1/responses", {"input": "x"}, "input"),
    ],
)
async def test_a_prompt_too_long_is_told_in_openais_words(
    router: RunningRouter, path: str, body: dict[str, Any], param: str
) -> None:
    said = "the prompt has 9000 tokens; prompt and answer together may have at most 8192"
    router.pipeline.script = lambda call: [InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, said)]
    error = (await router.http.post(path, json={"model": "tiny", **body})).json()["error"]
    assert error["message"].startswith(
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"
    )
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_prompt_scoring_wants_an_echo() -> None:
    with pytest.raises(InflightError, match="only allowed with echo"):
        decode_completion(b'{"model": "m", "prompt": "x", "max_tokens": 0}')
