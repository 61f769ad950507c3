"""LangChain with its OpenAI package."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["langchain-openai==1.7.3"]
# ///

from __future__ import annotations

from typing import Literal

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.clients.uses import STACK, check, main, use

model = ChatOpenAI(model=STACK.model, base_url=STACK.v1, api_key=STACK.key, max_tokens=64, temperature=0)
QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Rome"]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


@use("chain of a template and a model")
def chain() -> None:
    answer = (ChatPromptTemplate.from_messages([("user", "{question}")]) | model).invoke(
        {"question": QUESTION}
    )
    check(answer.content and answer.usage_metadata["output_tokens"] <= 64, answer)


@use("stream and batch")
def stream_and_batch() -> None:
    check("".join(str(piece.content) for piece in model.stream(QUESTION)), "nothing was streamed")
    check(all(answer.content for answer in model.batch([QUESTION, "Hello"])), "an answer is empty")


@use("structured output")
def structured() -> None:
    found = model.with_structured_output(City).invoke(QUESTION)
    check(isinstance(found, City), found)


@use("tool call")
def tool_call() -> None:
    answer = model.bind_tools([get_weather], tool_choice="any").invoke("What is the weather in Paris?")
    (call,) = answer.tool_calls
    check("city" in call["args"], call)


@use("responses API")
def responses() -> None:
    answer = ChatOpenAI(
        model=STACK.model, base_url=STACK.v1, api_key=STACK.key, max_tokens=32, use_responses_api=True
    ).invoke(QUESTION)
    check(answer.text, answer)


@use("embeddings")
def embeddings() -> None:
    found = OpenAIEmbeddings(
        model=STACK.embedder, base_url=STACK.v1, api_key=STACK.key, check_embedding_ctx_length=False
    ).embed_documents(["one", "two"])
    check(len(found) == 2 and len(found[0]) > 100, len(found))


if __name__ == "__main__":
    main()
