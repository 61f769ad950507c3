"""OpenAI's Python library, synchronous and asynchronous."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["openai==3.49.0"]
# ///

from __future__ import annotations

import asyncio
import json
from typing import Literal

import openai
from pydantic import BaseModel

from tests.clients.uses import STACK, check, main, use

client = openai.OpenAI(base_url=STACK.v1, api_key=STACK.key)
QUESTION = {"role": "user", "content": "What is the capital of France?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    """With nothing to ramble about: the model is small."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


@use("models")
def models() -> None:
    names = [model.id for model in client.models.list()]
    check(STACK.model in names, names)
    check(client.models.retrieve(STACK.model).id == STACK.model)


@use("chat")
def chat() -> None:
    answer = client.chat.completions.create(model=STACK.model, messages=[QUESTION], max_tokens=16)
    check(answer.choices[0].message.content, answer)
    check(answer.usage.completion_tokens <= 16, answer.usage)


@use("chat, streamed, asynchronous")
def chat_streamed() -> None:
    async def ask() -> tuple[str, int]:
        text, tokens = "", 0
        async with openai.AsyncOpenAI(base_url=STACK.v1, api_key=STACK.key) as asynchronous:
            stream = await asynchronous.chat.completions.create(
                model=STACK.model,
                messages=[QUESTION],
                max_tokens=16,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, tokens

    text, tokens = asyncio.run(ask())
    check(text and 0 < tokens <= 16, (text, tokens))


@use("tool call")
def tool_call() -> None:
    answer = client.chat.completions.create(
        model=STACK.model,
        messages=[QUESTION],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=64,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    check("city" in json.loads(call.function.arguments), call)


@use("structured output by a pydantic model")
def structured() -> None:
    answer = client.chat.completions.parse(
        model=STACK.model, messages=[QUESTION], response_format=City, max_tokens=64, temperature=0
    )
    check(isinstance(answer.choices[0].message.parsed, City), answer)


@use("log probabilities")
def log_probabilities() -> None:
    answer = client.chat.completions.create(
        model=STACK.model, messages=[QUESTION], max_tokens=4, logprobs=True, top_logprobs=3
    )
    check(len(answer.choices[0].logprobs.content[0].top_logprobs) == 3, answer)


@use("token ids, as vLLM returns them")
def token_ids() -> None:
    answer = client.chat.completions.create(
        model=STACK.model, messages=[QUESTION], max_tokens=4, extra_body={"return_token_ids": True}
    )
    told = answer.model_dump()
    check(len(told["prompt_token_ids"]) == answer.usage.prompt_tokens, told)
    check(len(told["choices"][0]["token_ids"]) == answer.usage.completion_tokens, told)


@use("completion")
def completion() -> None:
    answer = client.completions.create(model=STACK.model, prompt="The capital of France is", max_tokens=6)
    check("Paris" in answer.choices[0].text, answer)


@use("embeddings")
def embeddings() -> None:
    answer = client.embeddings.create(model=STACK.embedder, input=["one", "two"])
    check(len(answer.data) == 2 and len(answer.data[0].embedding) > 100, len(answer.data))


@use("responses, streamed, and one that continues it")
def responses() -> None:
    with client.responses.stream(model=STACK.model, input="My name is Ann.", max_output_tokens=16) as stream:
        events = list(stream)
    check(any(event.type == "response.output_text.delta" for event in events), events)
    first = events[-1].response  # complete, or at its limit
    check(first.output_text, first)
    second = client.responses.create(
        model=STACK.model, input="Who am I?", previous_response_id=first.id, max_output_tokens=16
    )
    check(second.usage.input_tokens > first.usage.input_tokens, second.usage)


@use("errors")
def errors() -> None:
    try:
        client.chat.completions.create(model="nope", messages=[QUESTION])
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", error)
    else:
        check(False, "a model that does not exist answered")


if __name__ == "__main__":
    main()
