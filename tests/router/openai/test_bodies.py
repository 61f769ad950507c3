from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import ChatBody
from router.chat.calls import chat_calls, chat_messages
from router.openai.chat import decode_chat
from router.openai.completions import CompletionBody, completion_calls, decode_completion
from router.routing.checkpoint import SamplingDefaults
from tests.router.running import MODEL, QUESTION, RunningRouter
from tests.tiers import examples

GOOD: dict[str, Any] = {"model": MODEL, "messages": QUESTION}


def refusal(body: bytes) -> InflightError:
    with pytest.raises(InflightError) as caught:
        decode_chat(body)
    return caught.value


def with_fields(**fields: object) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body: expected `object`, got `array`"),
        (b"null", "the body: expected `object`, got `null`"),
        (b'{"model": "tiny"}', "Missing required parameter: messages"),
        (b'{"messages": [{"content": "x"}], "model": "m"}', "Missing required parameter: messages[0].role"),
        (b'{"model": "\xff"}', "the body is not valid UTF-8"),
        (b'{"model": "\\ud800"}', "the body is not valid JSON"),
        (b'{"temperature": NaN}', "the body is not valid JSON"),
        (b'{"temperature": 1e309}', "temperature: number out of range"),
        (b'{"prediction": ' + b"[" * 20_000, "the JSON is nested too deeply"),
        (b"[" * 20_000, "the body: expected `object`, got `array`"),
        (b'{"prediction": ' + b"[" * 200_000, "the JSON has 200002 lists, objects and texts or more"),
    ],
)
def test_an_unreadable_body_is_refused_with_a_reason(body: bytes, message: str) -> None:
    error = refusal(body)
    assert error.kind is ErrorKind.INVALID_REQUEST
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": -1}, "max_tokens: expected `int` >= 1"),
        ({"max_tokens": 0}, "max_tokens: expected `int` >= 1"),
        ({"max_tokens": 10**30}, "max_tokens: expected `int` <= 1000000"),
        ({"max_tokens": 1.5}, "max_tokens: expected `int | null`, got `float`"),
        ({"max_tokens": True}, "max_tokens: expected `int | null`, got `bool`"),
        ({"max_tokens": "5"}, "max_tokens: expected `int | null`, got `str`"),
        ({"temperature": 2.1}, "temperature: expected `float` <= 2.0"),
        ({"temperature": -0.1}, "temperature: expected `float` >= 0.0"),
        ({"top_p": 1.1}, "top_p: expected `float` <= 1.0"),
        ({"stop": ["a"] * 5}, "stop: expected `array` of length <= 4"),
        ({"stop": ""}, "stop: expected `str` of length >= 1"),
        ({"stop": ["a", ""]}, "stop[1]: expected `str` of length >= 1"),
        ({"stop": 3}, "stop: expected `str | array | null`, got `int`"),
        ({"seed": 2**64}, "seed: "),
        ({"stream": "yes"}, "stream: expected `bool | null`, got `str`"),
        ({"messages": []}, "messages: expected `array` of length >= 1"),
        ({"messages": "hi"}, "messages: expected `array`, got `str`"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: expected"),
        ({"triton_enable_empty_final_response": True}, "Unrecognized request argument supplied: triton_"),
        ({"no_such_field": 1}, "Unrecognized request argument supplied: no_such_field"),
        (
            {"messages": [{"role": "user", "text": "x"}]},
            "Unrecognized request argument supplied: messages[0].text",
        ),
        (
            {"service_tier": "scale"},
            "service_tier: invalid enum value 'scale'; allowed: auto, default, flex, priority",
        ),
        ({"n": 0}, "n: expected `int` >= 1"),
        ({"n": 17}, "n: expected `int` <= 16"),
        ({"n": True}, "n: expected `int | null`, got `bool`"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]: expected -100 to 100, got 101"),
        ({"logit_bias": {"five": 1}}, "logit_bias: a key: expected a token id, as digits"),
        (
            {"logit_bias": {str(token): 1 for token in range(301)}},
            "logit_bias: expected `object` of length",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type: "),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format: json_schema is only allowed with type json_schema",
        ),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
            "response_format: json_schema is only allowed with type json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "Missing required parameter: response_format.json_schema.schema",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options is only allowed when stream is true"),
    ],
)
def test_a_wrong_value_is_refused_naming_the_field_and_what_is_allowed(
    fields: dict[str, object], message: str
) -> None:
    assert refusal(with_fields(**fields)).message.startswith(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content"}),
        ("functions", [{}]),
        ("web_search_options", {}),
        ("use_beam_search", True),
        ("best_of", 2),
        ("length_penalty", 1.5),
        ("prompt_logprobs", 1),
        ("chat_template", "{{ messages }}"),
    ],
)
def test_chat_fields_that_are_not_supported_yet_are_refused_by_name(field: str, value: object) -> None:
    error = refusal(with_fields(**{field: value}))
    assert error.kind is ErrorKind.UNSUPPORTED
    assert error.message.startswith(f"{field} is not supported yet")
    assert error.param == field


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": 0, "logit_bias": {}},
        {"modalities": ["text"], "service_tier": "auto"},
        {"service_tier": "default", "max_completion_tokens": 5, "seed": -1},
        {"temperature": None, "max_tokens": None, "stop": None, "stream": None, "seed": None, "tools": None},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "prompt_cache_key": "k"},
        {"safety_identifier": "u", "client_metadata": {"a": "b"}, "request_id": "r", "verbosity": "low"},
        {"use_beam_search": False, "best_of": 1, "length_penalty": 1.0, "early_stopping": False},
        {"echo": False, "add_special_tokens": False, "priority": 0, "return_token_ids": False, "top_k": -1},
        {"include_stop_str_in_output": False, "spaces_between_special_tokens": True},
        {"guided_decoding_backend": "xgrammar", "bad_words": [], "documents": [], "min_p": 0},
        {"reasoning_effort": "xhigh"},
    ],
)
def test_neutral_values_of_unsupported_fields_are_accepted(fields: dict[str, object]) -> None:
    decode_chat(with_fields(**fields))


PLAIN = b'"model": "m", "messages": [{"role": "user", "content": "x"}]'


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        (b'{"max_tokens": 96.0, ' + PLAIN + b"}", "max_tokens", 96),
        (b'{"seed": 4.0, "n": 2.0, ' + PLAIN + b"}", "n", 2),
        (b"\xef\xbb\xbf{" + PLAIN + b"}", "model", "m"),
    ],
)
def test_whole_numbers_with_a_point_and_a_byte_order_mark_are_understood(
    body: bytes, field: str, value: object
) -> None:
    decoded = getattr(decode_chat(body), field)
    assert (decoded, type(decoded)) == (value, type(value))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"no_such_field": 1}, "unknown_parameter"),
        ({"messages": None}, "invalid_type"),
        ({"max_tokens": "5"}, "invalid_type"),
        ({"max_tokens": 1.5}, "invalid_type"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter"),
    ],
)
def test_a_refusal_carries_openais_code(fields: dict[str, object], code: str) -> None:
    assert refusal(with_fields(**fields)).code == code


@pytest.mark.parametrize(("field", "value"), [("suffix", "x"), ("best_of", 2)])
def test_completion_fields_that_are_not_supported_yet_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InflightError, match=f"{field} is not supported yet"):
        decode_completion(json.dumps({"model": MODEL, "prompt": "x", field: value}).encode())


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "robot", "content": "x"}], "messages[0].role: expected one of system, developer, user"),
        ([{"role": "user"}], "messages[0].content: expected a string or a list of text parts"),
        ([{"role": "user", "content": None}], "messages[0].content: expected"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: expected a string"),
        (
            [{"role": "user", "content": [{"type": "\n" * 99}]}],
            "messages[0].content[0]: other parts are not supported; allowed: text, image_url, file",
        ),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
            "Missing required parameter: messages[0].tool_calls[0].function",
        ),
    ],
)
def test_messages_that_no_template_could_take_are_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(InflightError) as caught:
        chat_messages(decode_chat(with_fields(messages=messages)))
    assert caught.value.message.startswith(message)


def test_both_names_of_the_token_limit_at_once_are_refused() -> None:
    body = decode_chat(with_fields(max_tokens=5, max_completion_tokens=6))
    with pytest.raises(InflightError, match="not both"):
        chat_calls(body, "x", "id", "local", SamplingDefaults())


def test_a_token_minimum_above_the_maximum_is_refused() -> None:
    body = decode_chat(with_fields(max_tokens=5, min_tokens=6))
    with pytest.raises(InflightError, match="min_tokens: 6 is more than the 5 allowed"):
        chat_calls(body, "x", "id", "local", SamplingDefaults())


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, -2], "prompt: expected one or more token ids"),
        ([1, 2**31], "prompt: expected one or more token ids"),
        ([[1, 2], []], r"prompt\[1\]: expected one or more token ids"),
        ([[1, 2], [True]], r"prompt\[1\]: expected one or more token ids"),
        ([[1]] * 65, "expected 1 to 64 prompts"),
        ([], "expected 1 to 64 prompts"),
        (["x"] * 65, "expected 1 to 64 prompts"),
        (["x", None], "expected a string, a list of strings, token ids"),
        (["x", 1], "expected a string, a list of strings, token ids"),
        ([{"a": 1}], "expected a string, a list of strings, token ids"),
    ],
)
def test_prompts_of_unsupported_kinds_are_refused(prompt: object, message: str) -> None:
    body = decode_completion(json.dumps({"model": MODEL, "prompt": prompt}).encode())
    with pytest.raises(InflightError, match=message):
        completion_calls(body, "id", "local", SamplingDefaults())


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_fields = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "triton_x"}


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fields=st.dictionaries(st.sampled_from(sorted(_fields)), _values, max_size=4), chat=st.booleans())
async def test_no_value_of_any_field_causes_a_server_error(
    router: RunningRouter, fields: dict[str, Any], chat: bool
) -> None:
    fields.pop("stream", None)
    base = {"model": MODEL, "messages": QUESTION} if chat else {"model": MODEL, "prompt": "x"}
    body = json.dumps({**base, **fields}).encode()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    response = await router.http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=st.binary(max_size=64))
async def test_no_bytes_cause_a_server_error(router: RunningRouter, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = await router.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
