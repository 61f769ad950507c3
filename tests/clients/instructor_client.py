"""Instructor: answers as pydantic models."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["instructor==1.17.0", "openai==3.3.0"]
# ///

from __future__ import annotations

from typing import Literal

import instructor
import openai
from pydantic import BaseModel

from tests.clients.uses import STACK, check, main, use

MESSAGES = [{"role": "user", "content": "Paris has 2 million people. Name the city."}]


class City(BaseModel):
    name: Literal["Paris", "Rome"]


def ask(mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=STACK.v1, api_key=STACK.key), mode=mode)
    found = client.chat.completions.create(
        model=STACK.model, messages=MESSAGES, response_model=City, max_tokens=128, max_retries=2
    )
    check(isinstance(found, City), found)


@use("mode TOOLS")
def tools() -> None:
    ask(instructor.Mode.TOOLS)


@use("mode TOOLS_STRICT")
def tools_strict() -> None:
    ask(instructor.Mode.TOOLS_STRICT)


@use("mode JSON_SCHEMA")
def json_schema() -> None:
    ask(instructor.Mode.JSON_SCHEMA)


@use("a partial answer, streamed")
def partial() -> None:
    client = instructor.from_openai(
        openai.OpenAI(base_url=STACK.v1, api_key=STACK.key), mode=instructor.Mode.JSON_SCHEMA
    )
    parts = list(
        client.chat.completions.create_partial(
            model=STACK.model, messages=MESSAGES, response_model=City, max_tokens=128
        )
    )
    check(parts[-1].name is not None, parts)


if __name__ == "__main__":
    main()
