"""The official client is the judge of what looks like OpenAI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types import completion_create_params
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import ChatBody
from router.core.generation import Delta, LoggedToken
from router.openai.completions import CompletionBody
from router.openai.response_bodies import ResponseBody
from tests.fakes.pipeline import words
from tests.router.running import MODEL, RunningRouter


@pytest.fixture
async def client(router: RunningRouter) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_the_client_reads_a_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0
    )
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 9
    assert answer._request_id == answer.id


async def test_a_chat_answer_can_be_sent_back_as_it_came(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    again = await client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "hi"},
            first.choices[0].message.model_dump(),  # as users do
            {"role": "user", "content": "and?"},
        ],
    )
    assert again.choices[0].finish_reason == "stop"


async def test_the_client_reads_a_chat_stream_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    got = [chunk async for chunk in stream]
    assert got[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in got if c.choices) == "Hello world"
    assert [c.choices[0].finish_reason for c in got if c.choices][-1] == "stop"
    assert got[-1].choices == []
    assert got[-1].usage is not None
    assert got[-1].usage.completion_tokens == 2


async def test_text_with_every_kind_of_line_end_survives_streaming(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    nasty = ["a\r\n\r\ndata: [DONE]\n\n", "\u2028\u2029\x85\x0b\x0c\x1c", "\x00"]
    router.pipeline.script = lambda call: words(*nasty)
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    assert [chunk.choices[0].text async for chunk in stream][:-1] == nasty


async def test_the_client_reads_completions_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1]


async def test_the_client_lists_models(client: openai.AsyncOpenAI) -> None:
    assert MODEL in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_errors_are_the_exceptions_a_client_expects(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="other", messages=question)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=question, temperature=3)
    assert bad.value.param == "temperature"
    router.pipeline.script = lambda call: [InflightError(ErrorKind.OVERLOADED, "busy")]
    with pytest.raises(openai.InternalServerError) as busy:
        await client.chat.completions.create(model=MODEL, messages=question)
    assert busy.value.status_code == 503


async def test_an_error_in_mid_stream_is_raised(router: RunningRouter, client: openai.AsyncOpenAI) -> None:
    router.pipeline.script = lambda call: [
        Delta("a", 1, 1),
        InflightError(ErrorKind.ENGINE_FAILED, "gone"),
    ]
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    with pytest.raises(openai.APIError, match="gone"):
        _ = [chunk async for chunk in stream]


async def test_the_client_reads_log_probabilities(router: RunningRouter, client: openai.AsyncOpenAI) -> None:
    token = LoggedToken(b"Hi", -0.5, 2, top=((b"Ho", -0.75),))
    router.pipeline.script = lambda call: [
        Delta("Hi", 1, 7, tokens=(token,)),
        Delta("", finish="end_id"),
    ]
    chat = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=1
    )
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    (told,) = chat.choices[0].logprobs.content
    assert (told.token, told.logprob, told.bytes) == ("Hi", -0.5, [72, 105])
    assert [(each.token, each.logprob) for each in told.top_logprobs] == [("Ho", -0.75)]
    plain = (await client.completions.create(model=MODEL, prompt="x", logprobs=1)).choices[0].logprobs
    assert plain is not None
    assert (plain.tokens, plain.token_logprobs, plain.text_offset) == (["Hi"], [-0.5], [0])
    assert plain.top_logprobs == [{"Ho": -0.75, "Hi": -0.5}]


async def test_the_client_sends_token_ids_and_tiers_and_reads_usage_details(
    router: RunningRouter, client: openai.AsyncOpenAI
) -> None:
    answer = await client.completions.create(model=MODEL, prompt=[[1, 2], [3]])
    assert len(answer.choices) == 2
    chat = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        service_tier="flex",
        max_completion_tokens=5,
        seed=1,
        user="u",
        metadata={"a": "b"},
        store=False,
    )
    assert chat.service_tier == "flex"
    assert chat.usage is not None
    assert chat.usage.prompt_tokens_details is not None
    assert chat.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (chat_create_params.CompletionCreateParamsBase, ChatBody),
        (completion_create_params.CompletionCreateParamsBase, CompletionBody),
        (response_create_params.ResponseCreateParamsBase, ResponseBody),
    ],
)
def test_every_field_that_the_client_can_send_is_known(sent: Any, known: Any) -> None:
    """Honoured, accepted without effect or refused by what it is: never taken for a slip of the pen."""
    assert set(sent.__annotations__) <= set(known.__struct_fields__)
