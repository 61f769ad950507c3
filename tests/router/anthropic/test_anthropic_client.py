"""The official client is the judge of what looks like Anthropic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anthropic
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta
from router.core.tenant import Limits
from tests.fakes.pipeline import words
from tests.router.running import EMBEDDER, MODEL, RunningRouter

QUESTION: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=router.url, api_key="none", max_retries=0) as made:
        yield made


async def test_the_client_reads_a_message(client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(model=MODEL, max_tokens=9, messages=QUESTION, system="be brief")
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello world")]
    assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 2)
    assert message._request_id == message.id


async def test_the_client_reads_a_stream(client: anthropic.AsyncAnthropic) -> None:
    async with client.messages.stream(model=MODEL, max_tokens=9, messages=QUESTION) as stream:
        assert [text async for text in stream.text_stream] == ["Hello", " world"]
        message = await stream.get_final_message()
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 2)


async def test_tokens_out_of_the_cache_are_counted_apart(
    router: RunningRouter, client: anthropic.AsyncAnthropic
) -> None:
    router.pipeline.script = lambda call: [
        Delta("a", completion_tokens=1, prompt_tokens=7, cached_tokens=5),
        Delta("", finish="end_id"),
    ]
    used = (await client.messages.create(model=MODEL, max_tokens=9, messages=QUESTION)).usage
    assert (used.input_tokens, used.cache_read_input_tokens, used.cache_creation_input_tokens) == (2, 5, 0)


async def test_what_is_asked_of_the_engine(router: RunningRouter, client: anthropic.AsyncAnthropic) -> None:
    await client.messages.create(
        model=MODEL,
        max_tokens=9,
        messages=QUESTION,
        extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 3},
        stop_sequences=["a", "b", "c", "d", "e"],
        metadata={"user_id": "ann"},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    (call,) = router.pipeline.calls
    assert (call.max_tokens, call.temperature, call.top_p, call.top_k) == (9, 0.5, 0.25, 3)
    assert call.stop == ("a", "b", "c", "d", "e")


async def test_a_stop_sequence_is_named(router: RunningRouter, client: anthropic.AsyncAnthropic) -> None:
    router.pipeline.script = lambda call: words("one END", " two")
    message = await client.messages.create(
        model=MODEL, max_tokens=9, messages=QUESTION, stop_sequences=["STOP", "END"]
    )
    assert message.content[0].text == "one "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_tokens"), ("end_id", "end_turn")])
async def test_how_the_model_ended_is_told_in_anthropics_words(
    router: RunningRouter, client: anthropic.AsyncAnthropic, finish: str, reason: str
) -> None:
    router.pipeline.script = lambda call: words("a", finish=finish)
    message = await client.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)
    assert message.stop_reason == reason


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_of_a_tool_and_its_result_go_round(
    router: RunningRouter, client: anthropic.AsyncAnthropic, streams: bool
) -> None:
    router.pipeline.script = lambda call: words("Let me look.\n", CALL)
    asked: Any = {"model": MODEL, "max_tokens": 99, "messages": QUESTION, "tools": [WEATHER]}
    if streams:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    text, use = message.content
    assert text.text.strip() == "Let me look."
    assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Rome"})
    assert use.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "Sun"}]}
    router.pipeline.script = lambda call: words("It is sunny.")
    answer = await client.messages.create(
        model=MODEL,
        max_tokens=99,
        messages=[
            *QUESTION,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
        ],
        tools=[WEATHER],
    )
    assert answer.content[0].text == "It is sunny."
    prompt = router.pipeline.calls[-1].prompt
    assert prompt.index('"Rome"') < prompt.index("<tool_response>\nSun") < prompt.index("And?")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_a_call_that_is_demanded_follows_the_schema(
    router: RunningRouter, client: anthropic.AsyncAnthropic, choice: Any
) -> None:
    router.pipeline.script = lambda call: words('{"name": "get_weather", "arguments": {"city": "Rome"}}')
    message = await client.messages.create(
        model=MODEL, max_tokens=99, messages=QUESTION, tools=[WEATHER], tool_choice=choice
    )
    assert [block.type for block in message.content] == ["tool_use"]
    guide = router.pipeline.calls[0].guide
    assert guide is not None
    assert guide[0] == "json_schema"
    assert '"const":"get_weather"' in guide[1]


async def test_calls_are_one_at_a_time_where_others_are_disabled(
    router: RunningRouter, client: anthropic.AsyncAnthropic
) -> None:
    router.pipeline.script = lambda call: words(CALL, CALL)
    asked: Any = {"model": MODEL, "max_tokens": 99, "messages": QUESTION, "tools": [WEATHER]}
    assert len((await client.messages.create(**asked)).content) == 2
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    assert len((await client.messages.create(**asked, tool_choice=one)).content) == 1
    none = await client.messages.create(**asked, tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"]
    assert "get_weather" not in router.pipeline.calls[-1].prompt


@pytest.mark.parametrize("streams", [False, True])
async def test_thoughts_are_blocks_of_their_own_where_they_are_asked_for(
    thinking: RunningRouter, client: anthropic.AsyncAnthropic, streams: bool
) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 2048, "messages": QUESTION}

    async def ask(**more: Any) -> Any:
        if not streams:
            return await client.messages.create(**asked, **more)
        async with client.messages.stream(**asked, **more) as stream:
            return await stream.get_final_message()

    message = await ask(thinking={"type": "enabled", "budget_tokens": 1024})
    thought, text = message.content
    assert (thought.type, thought.thinking, text.text) == ("thinking", "They ask for a city.", "Paris.")
    asked["messages"] = [*QUESTION, {"role": "assistant", "content": message.content}, *QUESTION]
    plain = await ask()
    assert [block.type for block in plain.content] == ["text"]
    prompt = thinking.pipeline.calls[-1].prompt
    assert "<think>They ask for a city.</think>Paris." in prompt
    assert prompt.endswith("<think></think>")


async def test_an_answer_by_a_schema_is_guided(
    router: RunningRouter, client: anthropic.AsyncAnthropic
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await client.messages.create(
        model=MODEL,
        max_tokens=9,
        messages=QUESTION,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    guide = router.pipeline.calls[0].guide
    assert guide is not None
    assert guide[0] == "json_schema"


async def test_the_client_counts_tokens(router: RunningRouter, client: anthropic.AsyncAnthropic) -> None:
    short = await client.messages.count_tokens(model=MODEL, messages=QUESTION)
    long = await client.messages.count_tokens(
        model=MODEL, messages=QUESTION, system="be brief" * 9, tools=[WEATHER]
    )
    assert 0 < short.input_tokens < long.input_tokens
    assert router.pipeline.calls == []


async def test_the_client_lists_models_in_anthropics_shape(
    router: RunningRouter, client: anthropic.AsyncAnthropic
) -> None:
    listed = {model.id: model async for model in client.models.list()}
    assert {MODEL, EMBEDDER} <= listed.keys()
    assert listed[MODEL].type == "model"
    shown = await client.models.retrieve(MODEL)
    assert (shown.id, shown.display_name, shown.max_input_tokens) == (MODEL, MODEL, 8192)
    assert shown.created_at.tzinfo is not None
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.models.retrieve("claude-opus-5-5")
    assert missing.value.body["error"]["type"] == "not_found_error"
    plain = (await router.http.get("/v1/models")).json()
    assert plain["object"] == "list"


def kind(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    assert body["type"] == "error"
    assert body["request_id"]
    return str(body["error"]["type"])


async def test_errors_are_the_exceptions_a_client_expects(
    router: RunningRouter, client: anthropic.AsyncAnthropic
) -> None:
    asked: Any = {"max_tokens": 9, "messages": QUESTION}
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(model="claude-opus-5-5", **asked)
    assert kind(missing.value) == "not_found_error"
    assert missing.value.request_id == missing.value.response.headers["request-id"]
    with pytest.raises(anthropic.BadRequestError, match="temperature") as bad:
        await client.messages.create(model=MODEL, extra_body={"temperature": 3}, **asked)
    assert kind(bad.value) == "invalid_request_error"
    failures = [
        (ErrorKind.OVERLOADED, 529, "overloaded_error"),
        (ErrorKind.ENGINE_FAILED, 500, "api_error"),
        (ErrorKind.INTERNAL, 500, "api_error"),
        (ErrorKind.TOO_LARGE, 413, "request_too_large"),
        (ErrorKind.CONTEXT_LENGTH_EXCEEDED, 400, "invalid_request_error"),
        (ErrorKind.CONTENT_FILTER, 400, "invalid_request_error"),
    ]
    for failure, status, expected in failures:
        error = InflightError(failure, "why")
        router.pipeline.script = partial(lambda error, call: [error], error)
        with pytest.raises(anthropic.APIStatusError) as failed:
            await client.messages.create(model=MODEL, **asked)
        assert (failed.value.status_code, kind(failed.value)) == (status, expected)
        if failure is ErrorKind.CONTEXT_LENGTH_EXCEEDED:
            assert "prompt is too long" in failed.value.message


async def test_an_error_in_mid_stream_is_raised(
    router: RunningRouter, client: anthropic.AsyncAnthropic
) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 1), InflightError(ErrorKind.OVERLOADED, "gone")]
    stream = await client.messages.create(model=MODEL, max_tokens=9, messages=QUESTION, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="gone"):
        _ = [event async for event in stream]


async def test_the_key_is_read_from_either_header(router: RunningRouter) -> None:
    tenant = await router.new_tenant()
    key = await router.new_key(tenant)
    limited = await router.new_key(tenant, limits=Limits(requests_per_min=0))
    for_others = await router.new_key(tenant, models=frozenset({"other"}))
    asked: Any = {"model": MODEL, "max_tokens": 9, "messages": QUESTION}

    async def ask(**credentials: Any) -> anthropic.types.Message:
        async with anthropic.AsyncAnthropic(base_url=router.url, max_retries=0, **credentials) as client:
            return await client.messages.create(**asked)

    assert (await ask(api_key=key)).content
    assert (await ask(auth_token=key)).content
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        await ask(api_key="none")
    assert kind(unknown.value) == "authentication_error"
    with pytest.raises(anthropic.PermissionDeniedError) as forbidden:
        await ask(api_key=for_others)
    assert kind(forbidden.value) == "permission_error"
    with pytest.raises(anthropic.RateLimitError) as too_many:
        await ask(api_key=limited)
    assert kind(too_many.value) == "rate_limit_error"
    assert too_many.value.response.headers["request-id"]
