"""Anthropic's Python library."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["anthropic==2.8.0"]
# ///

from __future__ import annotations

import anthropic

from tests.clients.uses import STACK, check, main, use

client = anthropic.Anthropic(base_url=STACK.url, api_key=STACK.key)
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@use("message")
def message() -> None:
    answer = client.messages.create(
        model=STACK.model, max_tokens=16, system="Be brief.", messages=MESSAGES, stop_sequences=["\n\n\n"]
    )
    check(answer.content[0].text and answer.usage.output_tokens <= 16, answer)


@use("message, streamed")
def streamed() -> None:
    with client.messages.stream(model=STACK.model, max_tokens=16, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check(text and final.content[0].text == text and final.stop_reason, final)


@use("tool call and its result")
def tool_call() -> None:
    answer = client.messages.create(
        model=STACK.model, max_tokens=64, messages=MESSAGES, tools=[WEATHER], tool_choice={"type": "any"}
    )
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    check(answer.stop_reason == "tool_use" and "city" in call.input, answer)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny."}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(model=STACK.model, max_tokens=16, messages=history, tools=[WEATHER])
    check(after.content, after)


@use("count_tokens")
def count_tokens() -> None:
    few = client.messages.count_tokens(model=STACK.model, messages=MESSAGES).input_tokens
    more = client.messages.count_tokens(model=STACK.model, messages=[*MESSAGES * 3]).input_tokens
    check(0 < few < more, (few, more))


@use("errors")
def errors() -> None:
    try:
        client.messages.create(model="nope", max_tokens=16, messages=MESSAGES)
    except anthropic.NotFoundError as error:
        check(error.body["error"]["type"] == "not_found_error", error.body)
    else:
        check(False, "a model that does not exist answered")


if __name__ == "__main__":
    main()
