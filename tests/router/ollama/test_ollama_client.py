"""The official client is the judge of what looks like Ollama."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta
from router.core.stages import EngineTimes
from tests.fakes.embedder import vector
from tests.fakes.pipeline import words
from tests.router.running import BARE_MODEL, EMBEDDER, MODEL, RunningRouter

QUESTION: list[Any] = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=router.url) as made:
        yield made


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: which one
    """
    return f"Sun in {city}"


async def test_the_client_reads_a_chat(client: ollama.AsyncClient) -> None:
    answer = await client.chat(model=MODEL, messages=QUESTION)
    assert (answer.message.role, answer.message.content) == ("assistant", "Hello world")
    assert (answer.model, answer.done, answer.done_reason) == (MODEL, True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (7, 2)
    assert answer.created_at is not None


async def test_the_client_reads_a_stream_with_what_was_measured_at_its_end(
    client: ollama.AsyncClient,
) -> None:
    parts = [part async for part in await client.chat(model=MODEL, messages=QUESTION, stream=True)]
    assert [part.message.content for part in parts] == ["Hello", " world", ""]
    assert [part.done for part in parts] == [False, False, True]
    last = parts[-1]
    assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("stop", 7, 2)
    assert last.total_duration is not None
    assert last.prompt_eval_duration is not None
    assert last.eval_duration is not None
    assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0
    assert parts[0].total_duration is None


async def test_durations_are_the_engines_where_it_tells_them(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    def script(call: Any) -> Any:
        now_s = time.monotonic()
        times = EngineTimes(now_s, now_s, now_s + 1e-6, now_s + 3e-6)
        return [Delta("a", 1, 7), 0.01, Delta("", finish="end_id", engine=times)]

    router.pipeline.script = script
    answer = await client.generate(model=MODEL, prompt="hi")
    assert answer.prompt_eval_duration is not None
    assert answer.eval_duration is not None
    assert answer.prompt_eval_duration == pytest.approx(1000, abs=50)
    assert answer.eval_duration == pytest.approx(2000, abs=50)


async def test_text_with_every_kind_of_line_end_survives_streaming(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    nasty = ["a\r\n\n", "\u2028\u2029\x85\x0b\x0c\x1c", "\x00"]
    router.pipeline.script = lambda call: words(*nasty)
    stream = await client.generate(model=MODEL, prompt="hi", stream=True)
    assert [part.response async for part in stream][:-1] == nasty


async def test_a_prompt_is_a_message_and_a_raw_one_is_not(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    await client.generate(model=MODEL, prompt="hi", system="be brief")
    await client.generate(model=MODEL, prompt="hi", raw=True)
    await client.generate(model=BARE_MODEL, prompt="hi")
    rendered, raw, bare = router.pipeline.calls
    assert rendered.prompt == "<system>be brief</system><user>hi</user><assistant>"
    assert not rendered.add_special_tokens
    assert (raw.prompt, bare.prompt) == ("hi", "hi")
    assert raw.add_special_tokens
    with pytest.raises(ollama.ResponseError, match="system"):
        await client.generate(model=MODEL, prompt="hi", system="be brief", raw=True)


async def test_options_are_asked_of_the_engine(router: RunningRouter, client: ollama.AsyncClient) -> None:
    options = {
        "num_predict": 5,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.125,
        "seed": 42,
        "stop": ["a", "b", "c", "d", "e"],
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "num_ctx": 4096,
        "num_thread": 8,
        "mirostat": 0,
    }
    await client.chat(model=MODEL, messages=QUESTION, options=options, keep_alive="5m")
    await client.chat(model=MODEL, messages=QUESTION, options={"num_predict": -1, "seed": -1})
    call, free = router.pipeline.calls
    assert (call.max_tokens, call.temperature, call.top_p, call.top_k, call.seed) == (5, 0.5, 0.25, 3, 42)
    assert call.stop == ("a", "b", "c", "d", "e")
    assert call.min_p == 0.125
    assert (call.repetition_penalty, call.presence_penalty, call.frequency_penalty) == (1.5, 0.5, -0.5)
    assert free.max_tokens > 100_000


async def test_a_call_of_a_tool_and_its_result_go_round(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    router.pipeline.script = lambda call: words(CALL)
    answer = await client.chat(model=MODEL, messages=QUESTION, tools=[get_weather])
    assert answer.message.tool_calls is not None
    (made,) = answer.message.tool_calls
    assert (made.function.name, made.function.arguments) == ("get_weather", {"city": "Rome"})
    assert answer.done_reason == "stop"
    stream = await client.chat(model=MODEL, messages=QUESTION, tools=[get_weather], stream=True)
    calls = [part.message.tool_calls async for part in stream if part.message.tool_calls]
    assert [call.function.arguments for (call,) in calls] == [{"city": "Rome"}]
    router.pipeline.script = lambda call: words("It is sunny.")
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Rome")}
    last = await client.chat(model=MODEL, messages=[*QUESTION, answer.message, result], tools=[get_weather])
    assert last.message.content == "It is sunny."
    prompt = router.pipeline.calls[-1].prompt
    assert prompt.index('"Rome"') < prompt.index("<tool_response>\nSun in Rome")


async def test_a_format_is_a_guide(router: RunningRouter, client: ollama.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await client.chat(model=MODEL, messages=QUESTION, format="json")
    await client.generate(model=MODEL, prompt="hi", format=schema)
    await client.generate(model=MODEL, prompt="hi", format=schema, raw=True)
    await client.generate(model=MODEL, prompt="hi", format="")
    assert [call.guide is not None for call in router.pipeline.calls] == [True, True, True, False]


async def test_the_client_reads_embeddings(client: ollama.AsyncClient) -> None:
    answer = await client.embed(model=EMBEDDER, input=["a", "bc"], dimensions=4)
    assert [list(row) for row in answer.embeddings] == [vector("a", 4), vector("bc", 4)]
    assert answer.prompt_eval_count == 7
    assert answer.total_duration
    one = await client.embeddings(model=EMBEDDER, prompt="a")
    assert list(one.embedding) == vector("a", 8)


async def test_the_client_lists_and_shows_models(client: ollama.AsyncClient) -> None:
    listed = {each.model: each for each in (await client.list()).models}
    assert {MODEL, EMBEDDER} <= listed.keys()
    assert listed[MODEL].modified_at is not None
    assert len(listed[MODEL].digest or "") == 64
    assert {each.model for each in (await client.ps()).models} == listed.keys()
    shown = await client.show(MODEL)
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["inflight.context_length"] == 8192
    assert (await client.show(EMBEDDER)).capabilities == ["embedding"]
    assert (await client.show(f"{MODEL}:latest")).capabilities == ["completion", "tools"]


async def test_thoughts_come_apart_from_the_answer(
    thinking: RunningRouter, client: ollama.AsyncClient
) -> None:
    answer = await client.chat(model=MODEL, messages=QUESTION)
    assert (answer.message.thinking, answer.message.content) == ("They ask for a city.", "Paris.")
    parts = [part async for part in await client.generate(model=MODEL, prompt="hi", stream=True)]
    assert "".join(part.thinking or "" for part in parts) == "They ask for a city."
    assert "".join(part.response for part in parts) == "Paris."
    await client.chat(model=MODEL, messages=[*QUESTION, answer.message, *QUESTION], think=False)
    prompt = thinking.pipeline.calls[-1].prompt
    assert "<think>They ask for a city.</think>Paris." in prompt
    assert prompt.endswith("<think></think>")
    assert "thinking" in ((await client.show(MODEL)).capabilities or ())


async def test_an_answer_that_is_begun_is_continued(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    await client.chat(model=MODEL, messages=[*QUESTION, {"role": "assistant", "content": "Well,"}])
    assert router.pipeline.calls[0].prompt.endswith("<assistant>Well,")


async def test_a_model_that_is_asked_nothing_is_loaded(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    assert (await client.chat(model=f"{MODEL}:latest")).done_reason == "load"
    assert (await client.generate(model=MODEL)).done_reason == "load"
    assert router.pipeline.calls == []


async def test_errors_are_the_exception_a_client_expects(
    router: RunningRouter, client: ollama.AsyncClient
) -> None:
    with pytest.raises(ollama.ResponseError, match="does not exist") as missing:
        await client.chat(model="llama3", messages=QUESTION)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature") as bad:
        await client.chat(model=MODEL, messages=QUESTION, options={"temperature": 3})
    assert bad.value.status_code == 400
    router.pipeline.script = lambda call: [InflightError(ErrorKind.OVERLOADED, "busy")]
    with pytest.raises(ollama.ResponseError, match="busy") as busy:
        await client.chat(model=MODEL, messages=QUESTION)
    assert busy.value.status_code == 503


async def test_an_error_in_mid_stream_is_raised(router: RunningRouter, client: ollama.AsyncClient) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 1), InflightError(ErrorKind.ENGINE_FAILED, "gone")]
    stream = await client.chat(model=MODEL, messages=QUESTION, stream=True)
    with pytest.raises(ollama.ResponseError, match="gone"):
        _ = [part async for part in stream]


async def test_models_are_managed_by_commands(client: ollama.AsyncClient) -> None:
    asked = [
        client.pull("llama3"),
        client.push("llama3"),
        client.create("mine", from_="llama3"),
        client.copy("a", "b"),
        client.delete("a"),
    ]
    for asking in asked:
        with pytest.raises(ollama.ResponseError, match="inflight release"):
            await asking


async def test_the_key_is_the_one_of_any_client(router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant())
    async with ollama.AsyncClient(host=router.url, headers={"authorization": f"Bearer {key}"}) as known:
        assert (await known.chat(model=MODEL, messages=QUESTION)).done
    async with ollama.AsyncClient(host=router.url) as unknown:
        with pytest.raises(ollama.ResponseError, match="API key") as refused:
            await unknown.chat(model=MODEL, messages=QUESTION)
    assert refused.value.status_code == 401
