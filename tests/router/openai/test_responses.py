"""/v1/responses as OpenAI's own client uses it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, GenerationCall, LoggedToken
from router.core.tenant import Limits, Price
from router.request.token_counting import Tokenizers
from router.store.database import StoreAccess
from router.tenants.rbac import SYSTEM
from tests.fakes.pipeline import Step, words
from tests.router.running import BARE_MODEL, MODEL, RunningRouter

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def create(router: RunningRouter, **fields: object) -> Any:
    answer = await router.http.post("/v1/responses", json={"model": MODEL, "input": "hi", **fields})
    return answer.json() | {"http_status": answer.status_code}


def prompt(router: RunningRouter) -> str:
    return router.pipeline.calls[-1].prompt


async def test_a_question_is_answered(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    answer = await client.responses.create(
        model=MODEL,
        input="hi",
        instructions="Be brief.",
        max_output_tokens=50,
        temperature=0.5,
        metadata={"for": "test"},
        user="ann",
    )
    assert answer.output_text == "Hello world"
    assert answer.status == "completed"
    assert answer.id.startswith("resp_")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (7, 2, 9)
    assert (answer.instructions, answer.temperature, answer.metadata) == ("Be brief.", 0.5, {"for": "test"})
    assert prompt(router) == "<system>Be brief.</system><user>hi</user><assistant>"
    assert router.pipeline.calls[-1].max_tokens == 50


async def test_a_previous_response_is_part_of_the_prompt(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    first = await client.responses.create(model=MODEL, input="one", instructions="Only now.")
    second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    await client.responses.create(model=MODEL, input="three", previous_response_id=second.id)
    assert prompt(router) == (
        "<user>one</user><assistant>Hello world</assistant>"
        "<user>two</user><assistant>Hello world</assistant><user>three</user><assistant>"
    )


async def test_a_stored_response_can_be_read_again_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    )
    assert await client.responses.retrieve(made.id) == made
    with pytest.raises(openai.BadRequestError, match="can only be streamed"):
        await client.responses.retrieve(made.id, stream=True)
    items: list[Any] = [item async for item in client.responses.input_items.list(made.id, limit=1)]
    assert [item.content[0].text for item in items] == ["b", "a"]
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(made.id)
    await client.responses.delete(made.id)
    for attempt in (
        client.responses.retrieve(made.id),
        client.responses.delete(made.id),
        client.responses.cancel(made.id),
        client.responses.create(model=MODEL, input="x", previous_response_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt


async def test_a_response_that_is_not_stored_is_gone(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi", store=False)
    assert made.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_an_answer_can_be_sent_back_as_it_came(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    first = await client.responses.create(model=MODEL, input="hi", store=False)
    history: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "and?"}]
    await client.responses.create(model=MODEL, input=history)
    assert prompt(router) == ("<user>hi</user><assistant>Hello world</assistant><user>and?</user><assistant>")


async def test_an_answer_that_reaches_its_limit_is_incomplete(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    router.pipeline.script = lambda call: words("cut", finish="length")
    answer = await client.responses.create(model=MODEL, input="hi", max_output_tokens=1)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    message = answer.output[0]
    assert message.type == "message"
    assert message.status == "incomplete"
    follow = await client.responses.create(model=MODEL, input="go on", previous_response_id=answer.id)
    assert follow.status == "incomplete"


async def test_a_schema_is_followed(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer = await client.responses.create(
        model=MODEL,
        input="hi",
        text={"format": {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}},
    )
    guide = router.pipeline.calls[-1].guide
    assert guide is not None
    assert (guide[0], json.loads(guide[1])) == ("json_schema", schema)
    assert answer.text is not None
    await client.responses.create(model=MODEL, input="hi", text={"format": {"type": "json_object"}})
    assert router.pipeline.calls[-1].guide == ("json_schema", '{"type":"object"}')


async def test_a_tool_is_called_and_answered(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words("I look. ", CALL, "\n")
    first = await client.responses.create(model=MODEL, input="weather?", tools=[WEATHER])
    message, call = first.output
    assert message.type == "message"
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})
    assert '"name":"weather"' in prompt(router)
    router.pipeline.script = lambda call: words("Sunny.")
    second = await client.responses.create(
        model=MODEL,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
        previous_response_id=first.id,
        tools=[WEATHER],
    )
    assert second.output_text == "Sunny."
    assert "<user>weather?</user><assistant>I look.\n<tool_call>" in prompt(router)
    assert "<tool_response>\nsun\n</tool_response>" in prompt(router)


async def test_a_tool_call_can_be_required(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words('{"name": "weather", "arguments": {}}')
    answer = await client.responses.create(
        model=MODEL, input="hi", tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}
    )
    assert [item.type for item in answer.output] == ["function_call"]
    guide = router.pipeline.calls[-1].guide
    assert guide is not None
    assert '"const":"weather"' in guide[1]


async def test_a_file_is_added_to_the_context(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    data = b64encode(b"name,age\nAnn,7\n").decode()
    made = await client.responses.create(
        model=MODEL,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "filename": "p.csv", "file_data": f"data:text/csv;base64,{data}"},
                    {"type": "input_text", "text": "How old is Ann?"},
                ],
            }
        ],
    )
    table = '<file name="p.csv">\n| name | age |\n| --- | --- |\n| Ann | 7 |\n</file>'
    assert prompt(router) == f"<user>{table}\nHow old is Ann?</user><assistant>"
    await client.responses.create(model=MODEL, input="And now?", previous_response_id=made.id)
    assert table in prompt(router)


async def test_an_uploaded_file_is_read(client: openai.AsyncOpenAI, router: RunningRouter) -> None:
    file = await client.files.create(file=("notes.md", b"# Trees"), purpose="user_data")
    asked: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": file.id}]}]
    await client.responses.create(model=MODEL, input=asked)
    assert '<file name="notes.md">\n# Trees\n</file>' in prompt(router)
    asked[0]["content"][0]["file_id"] = "file-\0"
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=MODEL, input=asked)


async def test_log_probabilities_come_with_the_text(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    router.pipeline.script = lambda call: logged("Hel", "lo")
    asked: Any = {
        "model": MODEL,
        "input": "hi",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    whole: Any = await client.responses.create(**asked)
    assert [entry.token for entry in whole.output[0].content[0].logprobs] == ["Hel", "lo"]
    assert whole.output[0].content[0].logprobs[0].top_logprobs[0].token == "other"
    events: list[Any] = [event async for event in await client.responses.create(**asked, stream=True)]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [[entry.token for entry in event.logprobs] for event in deltas] == [["Hel"], ["lo"]]
    assert events[-1].response.output[0].content == whole.output[0].content


def logged(*texts: str) -> list[Step]:
    """Each text is a token."""
    deltas = [
        Delta(
            text,
            completion_tokens=1,
            prompt_tokens=7,
            tokens=(LoggedToken(text.encode(), -0.5, len(text), top=((b"other", -1.5),)),),
        )
        for text in texts
    ]
    return [*deltas, Delta("", prompt_tokens=7, finish="end_id")]


async def test_an_unsupported_field_is_refused_by_name(router: RunningRouter) -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
    refused: list[tuple[dict[str, object], str]] = [
        ({"background": True, "store": False}, "store"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [picture]}, "input"),
        ({"seed": 1}, "seed"),
        ({"model": BARE_MODEL}, "model"),
    ]
    for fields, param in refused:
        answer = await create(router, **fields)
        assert (answer["http_status"], answer["error"]["param"]) == (400, param)
    assert router.pipeline.calls == []


async def test_neutral_values_of_unsupported_fields_are_accepted(router: RunningRouter) -> None:
    answer = await create(
        router,
        background=False,
        reasoning={"effort": None, "summary": None},
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="y",
        truncation=None,
        conversation=None,
        text={"format": {"type": "text"}, "verbosity": "medium"},
    )
    assert answer["http_status"] == 200


async def test_unknown_response_and_conversation_ids_are_not_found(router: RunningRouter) -> None:
    for fields in (
        {"previous_response_id": "resp_x"},
        {"conversation": "conv_x"},
        {"conversation": {"id": "\0"}},
    ):
        assert (await create(router, **fields))["http_status"] == 404
    for path in ("resp_x", "%00", "resp_x/input_items", "a%2Fb"):
        assert (await router.http.get(f"/v1/responses/{path}")).status_code == 404


# Streams


async def test_a_stream_has_openais_events(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello world"
    # Stored before the last event left.
    assert await client.responses.retrieve(last.response.id) == last.response


async def test_a_stream_names_its_events_and_has_no_done_marker(router: RunningRouter) -> None:
    body = {"model": MODEL, "input": "hi", "stream": True}
    text = (await router.http.post("/v1/responses", json=body)).text
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


async def test_openais_stream_helper_reads_the_events(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    router.pipeline.script = lambda call: words("\n", "I look. ", CALL, "\n", CALL)
    async with client.responses.stream(model=MODEL, input="hi", tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.function_call_arguments.done") == 2
    assert kinds.count("response.output_text.done") == 1
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    assert final.output_text == "\nI look. "


@pytest.mark.parametrize("script", [words(), words(" ", "\n")], ids=["nothing", "white space"])
async def test_an_empty_answer_is_still_a_message(
    client: openai.AsyncOpenAI, router: RunningRouter, script: list[Step]
) -> None:
    router.pipeline.script = lambda call: list(script)
    whole = await client.responses.create(model=MODEL, input="hi")
    events = [event async for event in await client.responses.create(model=MODEL, input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.completed"
    assert len(last.response.output) == len(whole.output) == 1
    assert last.response.output_text == whole.output_text


async def test_line_ends_in_a_text_do_not_break_its_events(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    odd = "a\u2028b\u0085c"
    router.pipeline.script = lambda call: words(odd)
    stream = await client.responses.create(model=MODEL, input=odd, instructions=odd, stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.completed"
    assert last.response.output_text == odd


async def test_an_error_before_the_first_token_has_a_status(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [InflightError(ErrorKind.OVERLOADED, "full")]
    answer = await create(router, stream=True)
    assert (answer["http_status"], answer["error"]["code"]) == (503, "overloaded")


async def test_an_error_in_a_stream_fails_the_response(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    router.pipeline.script = lambda call: [
        Delta("Hel", completion_tokens=1, prompt_tokens=7),
        InflightError(ErrorKind.ENGINE_FAILED, "the engine died"),
    ]
    events = [event async for event in await client.responses.create(model=MODEL, input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == ("server_error", "the engine died")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(last.response.id)


async def test_a_client_that_disconnects_stops_the_engine_and_nothing_is_stored(
    router: RunningRouter,
) -> None:
    router.pipeline.script = lambda call: [Delta("Hel", completion_tokens=1, prompt_tokens=7), None]
    conversation = (await router.http.post("/v1/conversations", json={})).json()["id"]
    body = {"model": MODEL, "input": "hi", "stream": True, "conversation": conversation}
    async with router.http.stream("POST", "/v1/responses", json=body) as answer:
        async for _ in answer.aiter_lines():
            break
    await router.until(lambda: router.permits.open_count == 0)
    assert router.pipeline.generations[-1].stopped
    items = (await router.http.get(f"/v1/conversations/{conversation}/items")).json()
    assert items["data"] == []


# The store is away


class Away:
    """Breaks the store from a moment on."""

    def __init__(self, router: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> None:
        self._router = router
        self._patch = monkeypatch

    def break_writes(self) -> None:
        async def write(self: object, act: object, tenant: str = "") -> None:
            raise InflightError(ErrorKind.OVERLOADED, "the store cannot be reached")

        self._patch.setattr(type(self._router.parts.store), "write", write)


@pytest.fixture
def away(router: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(router, monkeypatch)


async def test_while_the_store_is_unreachable_a_response_is_answered_unstored(
    router: RunningRouter, away: Away
) -> None:
    away.break_writes()
    answer = await create(router)
    assert (answer["status"], answer["store"]) == ("completed", False)


async def test_while_the_store_is_unreachable_a_response_that_must_be_stored_fails_clearly(
    router: RunningRouter, away: Away, client: openai.AsyncOpenAI
) -> None:
    conversation = await client.conversations.create()
    away.break_writes()
    for fields in ({"store": True}, {"conversation": conversation.id}):
        answer = await create(router, **fields)
        assert answer["http_status"] == 503
        assert "was not stored" in answer["error"]["message"]
    stream = await client.responses.create(model=MODEL, input="hi", store=True, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"
    assert events[-2].type == "response.output_item.done"


# The window


def with_room_for(most: int) -> Any:
    """An engine whose sequences have at most so many tokens, of three characters each."""

    def script(call: GenerationCall) -> list[Step]:
        tokens = len(call.prompt) // 3 + 1
        if tokens >= most:
            said = f"the prompt has {tokens} tokens; prompt and answer together may have at most {most}"
            return [InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, said)]
        return words("fine")

    return script


async def test_a_prompt_too_long_is_refused_unless_truncation_was_requested(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    first = await client.responses.create(model=MODEL, input="x" * 900)
    router.pipeline.script = with_room_for(300)
    asked: Any = {"model": MODEL, "input": "y" * 200, "previous_response_id": first.id}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**asked)
    assert caught.value.code == "context_length_exceeded"
    answer = await client.responses.create(**asked, truncation="auto")
    assert answer.truncation == "auto"
    assert prompt(router) == f"<user>{'y' * 200}</user><assistant>"


async def test_a_conversation_is_truncated_automatically_and_every_attempt_is_accounted_for(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    conversation = await client.conversations.create(
        items=[
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "x" * 900},
            {"role": "assistant", "content": "fine"},
        ]
    )
    router.pipeline.script = with_room_for(300)
    asked: Any = {"model": MODEL, "input": "y" * 200, "conversation": conversation.id}
    answer = await client.responses.create(**asked)
    assert answer.status == "completed"
    assert prompt(router) == f"<system>rules</system><user>{'y' * 200}</user><assistant>"
    assert len({call.request_id for call in router.pipeline.calls}) == 2
    # The limit is known now: the next one is cut before it is sent.
    await client.responses.create(**asked)
    assert len(router.pipeline.calls) == 3
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**asked, truncation="disabled")
    assert caught.value.code == "context_length_exceeded"
    assert len(await all_items(client, conversation.id)) == 3 + 2 * 2


async def test_new_input_that_does_not_fit_alone_is_refused(
    client: openai.AsyncOpenAI, router: RunningRouter
) -> None:
    conversation = await client.conversations.create(items=[{"role": "user", "content": "x" * 100}])
    router.pipeline.script = with_room_for(100)
    with pytest.raises(openai.BadRequestError, match="the new input") as caught:
        await client.responses.create(model=MODEL, input="y" * 5000, conversation=conversation.id)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert len(await all_items(client, conversation.id)) == 1


async def all_items(client: openai.AsyncOpenAI, conversation_id: str) -> list[Any]:
    return [item async for item in client.conversations.items.list(conversation_id)]


@pytest.mark.parametrize(("asked", "told", "sent"), [("flex", "flex", "batch"), ("auto", "default", None)])
async def test_a_service_tier_is_passed_to_the_engine(
    router: RunningRouter, asked: str, told: str, sent: str | None
) -> None:
    assert (await create(router, service_tier=asked))["service_tier"] == told
    assert router.pipeline.calls[-1].tier == sent


@pytest.mark.parametrize(
    "limits", [Limits(tokens_per_min=0), Limits(monthly_budget=0)], ids=["tokens", "budget"]
)
async def test_who_has_no_tokens_or_budget_is_refused_before_anything_is_read_or_counted(
    router: RunningRouter, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = Price(MODEL, prompt=1_000_000, cached_prompt=0, completion=1_000_000)
    await router.parts.tenancy.administer(lambda admin: admin.set_price(SYSTEM, price))
    key = await router.new_key(await router.new_tenant(limits=limits))
    done: list[str] = []

    async def note(*given: object) -> None:
        done.append("work")
        raise AssertionError("it was read or counted")

    monkeypatch.setattr(StoreAccess, "_run", note)
    monkeypatch.setattr(Tokenizers, "count", note)
    body = {
        "model": MODEL,
        "input": "word " * 200_000,
        "truncation": "auto",
        "conversation": f"conv_{'0' * 48}",
    }
    response = await router.http.post("/v1/responses", json=body, headers={"authorization": f"Bearer {key}"})
    assert (response.status_code, done) == (429, [])
