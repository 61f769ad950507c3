"""Pydantic AI."""

# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[openai]==2.66.0"]
# ///

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.uses import STACK, check, main, use

provider = OpenAIProvider(base_url=STACK.v1, api_key=STACK.key)
model = OpenAIChatModel(STACK.model, provider=provider)
BRIEF = {"max_tokens": 64, "temperature": 0.0}
QUESTION = "What is the capital of France?"


class City(BaseModel):
    name: Literal["Paris", "Rome"]


@use("agent")
def agent() -> None:
    found = Agent(model, model_settings=BRIEF).run_sync(QUESTION)
    check(found.output, found)


@use("agent, streamed")
def streamed() -> None:
    async def ask() -> str:
        async with Agent(model, model_settings=BRIEF).run_stream(QUESTION) as stream:
            return "".join([piece async for piece in stream.stream_text(delta=True)])

    check(asyncio.run(ask()), "nothing came")


@use("native structured output")
def structured() -> None:
    found = Agent(model, output_type=NativeOutput(City), model_settings=BRIEF).run_sync(QUESTION)
    check(isinstance(found.output, City), found)


@use("output by a tool")
def by_tool() -> None:
    found = Agent(model, output_type=City, model_settings=BRIEF, retries=3).run_sync(QUESTION)
    check(isinstance(found.output, City), found)


@use("responses API")
def responses() -> None:
    found = Agent(OpenAIResponsesModel(STACK.model, provider=provider), model_settings=BRIEF).run_sync(
        QUESTION
    )
    check(found.output, found)


if __name__ == "__main__":
    main()
