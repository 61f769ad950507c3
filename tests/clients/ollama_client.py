"""Ollama's Python library."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["ollama==0.6.3"]
# ///

from __future__ import annotations

import ollama

from tests.clients.uses import STACK, check, main, use

client = ollama.Client(host=STACK.url, headers={"Authorization": f"Bearer {STACK.key}"})
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
BRIEF = {"num_predict": 16, "temperature": 0}


@use("list and show")
def models() -> None:
    names = [model.model for model in client.list().models]
    check(any(name.split(":")[0] == STACK.model for name in names), names)
    check(client.show(STACK.model), "nothing is shown")


@use("chat")
def chat() -> None:
    answer = client.chat(STACK.model, MESSAGES, options=BRIEF)
    check(answer.message.content and answer.done, answer)


@use("chat, streamed")
def chat_streamed() -> None:
    pieces = list(client.chat(STACK.model, MESSAGES, options=BRIEF, stream=True))
    check("".join(piece.message.content for piece in pieces), pieces)
    check(pieces[-1].done and pieces[-1].eval_count <= 16, pieces[-1])


@use("generate")
def generate() -> None:
    answer = client.generate(STACK.model, "The capital of France is", options=BRIEF)
    check(answer.response, answer)


@use("JSON by a schema")
def by_schema() -> None:
    name = {"type": "string", "enum": ["Paris", "Rome"]}
    schema = {"type": "object", "properties": {"name": name}, "required": ["name"]}
    answer = client.chat(STACK.model, MESSAGES, format=schema, options={"num_predict": 64})
    check(answer.message.content.lstrip().startswith("{"), answer)


@use("embed")
def embed() -> None:
    answer = client.embed(STACK.embedder, ["one", "two"])
    check(len(answer.embeddings) == 2 and len(answer.embeddings[0]) > 100, len(answer.embeddings))


@use("errors")
def errors() -> None:
    try:
        client.chat("nope", MESSAGES)
    except ollama.ResponseError as error:
        check(error.status_code == 404, error)
    else:
        check(False, "a model that does not exist answered")


if __name__ == "__main__":
    main()
