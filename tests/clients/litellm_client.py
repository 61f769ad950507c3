"""LiteLLM: one library for several APIs, of which this server has some."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["litellm==1.106.2"]
# ///

from __future__ import annotations

from typing import Any

import litellm

from tests.clients.uses import STACK, check, main, use

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
AS_OPENAI: dict[str, Any] = {
    "model": f"openai/{STACK.model}",
    "api_base": STACK.v1,
    "api_key": STACK.key,
}


@use("completion")
def completion() -> None:
    answer = litellm.completion(**AS_OPENAI, messages=MESSAGES, max_tokens=16)
    check(answer.choices[0].message.content, answer)


@use("completion, streamed")
def streamed() -> None:
    pieces = litellm.completion(**AS_OPENAI, messages=MESSAGES, max_tokens=16, stream=True)
    check("".join(piece.choices[0].delta.content or "" for piece in pieces), "nothing came")


@use("embedding")
def embedding() -> None:
    model = {**AS_OPENAI, "model": f"openai/{STACK.embedder}"}
    answer = litellm.embedding(**model, input=["one", "two"], encoding_format="float")
    check(len(answer.data) == 2, answer)


@use("context overflow, recognised")
def overflow() -> None:
    try:
        litellm.completion(**AS_OPENAI, messages=[{"role": "user", "content": "word " * 20_000}])
    except litellm.ContextWindowExceededError:
        return
    check(False, "the prompt was not found to be too long")


def ask_as(provider: str) -> None:
    model, api = f"{provider}/{STACK.model}", {"api_base": STACK.url, "api_key": STACK.key}
    answer = litellm.completion(model=model, messages=MESSAGES, max_tokens=16, **api)
    check(answer.choices[0].message.content, answer)


@use("Anthropic's API")
def by_messages() -> None:
    ask_as("anthropic")


@use("Ollama's API")
def by_ollama() -> None:
    ask_as("ollama_chat")


if __name__ == "__main__":
    main()
