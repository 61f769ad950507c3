"""OpenAI's Agents SDK."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["openai-agents==0.24.0"]
# ///

from __future__ import annotations

import asyncio
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tests.clients.uses import STACK, check, main, use

set_tracing_disabled(True)
asked: list[str] = []


@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    asked.append(city)
    return "It is sunny."


def run(kind: Any, question: str, **settings: Any) -> Any:
    """One client for each event loop; an answer that is cut off at its limit is an error to this SDK."""

    async def ask() -> Any:
        async with AsyncOpenAI(base_url=STACK.v1, api_key=STACK.key) as client:
            tools = [get_weather] if "tool_choice" in settings else []
            agent: Any = Agent(
                name="helper",
                instructions="Be brief.",
                model=kind(model=STACK.model, openai_client=client),
                model_settings=ModelSettings(max_tokens=256, temperature=0, **settings),
                tools=tools,
            )
            return await Runner.run(agent, question, max_turns=3)

    return asyncio.run(ask())


@use("agent over responses")
def over_responses() -> None:
    check(run(OpenAIResponsesModel, "Say hello.").final_output, "nothing came")


@use("agent over chat completions")
def over_chat() -> None:
    check(run(OpenAIChatCompletionsModel, "Say hello.").final_output, "nothing came")


@use("tool run by the SDK")
def tool_run() -> None:
    asked.clear()
    run(OpenAIResponsesModel, "What is the weather in Paris?", tool_choice="required")
    check(asked, "no tool was run")


if __name__ == "__main__":
    main()
