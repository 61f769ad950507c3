"""What leaves of an answer where the operator's rules are set, by each of the API's ways out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.routing.chat_template import ChatTemplate
from router.routing.models import Registry
from router.safety.guard import Safety
from router.telemetry.prompt_log import PromptLog
from tests.fakes.pipeline import words
from tests.router.running import MODEL, QUESTION, RunningRouter, running_router
from tests.router.safety.rule_files import check, terms

NOTE = {"type": "function", "function": {"name": "note"}}
FORBIDDEN = "blue heron"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    log = PromptLog(tmp_path / "prompts", keep_days=1)
    log.start()
    safety = Safety(check(terms(FORBIDDEN, whole_words=True, name="birds")))
    async with running_router(safety=safety, prompt_log=log) as router:
        yield router
        log.stop()


def call(arguments: str) -> str:
    return f'<tool_call>{{"name": "note", "arguments": {arguments}}}</tool_call>'


def letters(text: str) -> Any:
    """An answer that comes one character at a time."""
    return lambda asked: words(*text)


async def events(router: RunningRouter, path: str, **body: object) -> list[dict[str, Any]]:
    response = await router.http.post(path, json={"model": MODEL, "stream": True, **body})
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"text": "a Blue  Heron"}',
        '{"text": "a \\u0062lue heron"}',
        '{"text": "a blue\\nheron"}',
        '{"blue heron": 1}',
        '[[{"a": ["a blue\\theron"]}]]',
        '"{\\"text\\": \\"blue heron\\"}"',
    ],
)
async def test_a_tool_call_with_forbidden_text_is_never_sent(guarded: RunningRouter, arguments: str) -> None:
    guarded.pipeline.script = letters(f"I note. {call('{}')}{call(arguments)} Done.")
    choice = (await guarded.chat(tools=[NOTE])).json()["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["content"] == "I note."
    assert [made["function"]["arguments"] for made in choice["message"]["tool_calls"]] == ["{}"]
    assert all(generation.stopped for generation in guarded.pipeline.generations)
    told = await events(guarded, "/v1/chat/completions", messages=QUESTION, tools=[NOTE])
    deltas = [event["choices"][0]["delta"] for event in told]
    assert sum(len(delta.get("tool_calls", ())) for delta in deltas) == 1
    assert told[-1]["choices"][0]["finish_reason"] == "content_filter"


async def test_forbidden_text_split_around_a_tool_call_is_found(guarded: RunningRouter) -> None:
    guarded.pipeline.script = letters(f"a blue {call('{}')}heron sings")
    for stream in (False, True):
        response = await guarded.chat(tools=[NOTE], stream=stream)
        assert "content_filter" in response.text
        assert "heron" not in response.text


async def test_a_required_tool_call_is_checked(guarded: RunningRouter) -> None:
    guarded.pipeline.script = letters('{"name": "note", "arguments": {"text": "blue heron"}}')
    choice = (await guarded.chat(tools=[NOTE], tool_choice="required")).json()["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["content"] == ""
    assert "tool_calls" not in choice["message"]


async def test_each_of_several_answers_is_filtered_separately(guarded: RunningRouter) -> None:
    texts = iter(["a blue heron", "a grey goose"] * 2)
    guarded.pipeline.script = lambda asked: words(*next(texts))
    choices = (await guarded.chat(n=2)).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["a ", "a grey goose"]
    assert [choice["finish_reason"] for choice in choices] == ["content_filter", "stop"]


async def test_forbidden_text_that_begins_in_an_echoed_prompt_is_found(guarded: RunningRouter) -> None:
    guarded.pipeline.script = letters(" heron")
    body = {"model": MODEL, "prompt": "a blue", "echo": True}
    (choice,) = (await guarded.http.post("/v1/completions", json=body)).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a ", "content_filter")


async def test_no_event_of_a_response_contains_forbidden_text(guarded: RunningRouter) -> None:
    guarded.pipeline.script = letters(f"I saw {call('{}')} a blue heron there")
    tool = {"type": "function", "name": "note"}
    told = await events(guarded, "/v1/responses", input="hi", tools=[tool])
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
    assert "heron" not in json.dumps(told)
    stored = await guarded.http.get(f"/v1/responses/{told[-1]['response']['id']}")
    assert stored.json()["status"] == "incomplete"
    assert "heron" not in stored.text


async def test_the_prompt_log_has_tool_calls_below_the_text(tmp_path: Path, guarded: RunningRouter) -> None:
    guarded.pipeline.script = letters("I note." + call('{"a": 1}'))
    await guarded.chat(tools=[NOTE])
    assert guarded.parts.prompt_log is not None
    guarded.parts.prompt_log.stop()
    assert logged(tmp_path)["answers"] == ['I note.\nnote {"a": 1}']


def logged(directory: Path) -> Any:
    (file,) = directory.rglob("*.jsonl")
    return json.loads(file.read_text())


THINKING = ChatTemplate("{{ messages[0].content }}{# </think> #}")


@pytest.mark.parametrize(
    ("answer", "thought", "said", "reason"),
    [
        ("<think>A bird.</think>Fine.", "A bird.", "Fine.", "stop"),
        ("<think>A blue heron.</think>Fine.", "A ", "", "content_filter"),
        ("<think>A bird.</think>A blue heron.", "A bird.", "A ", "content_filter"),
        ("<think>So blue", "So blue", "", "stop"),
    ],
)
async def test_forbidden_thoughts_are_never_sent(
    guarded: RunningRouter, monkeypatch: pytest.MonkeyPatch, answer: str, thought: str, said: str, reason: str
) -> None:
    find = Registry.find
    monkeypatch.setattr(Registry, "find", lambda *given: replace(find(*given), template=THINKING))
    guarded.pipeline.script = letters(answer)
    choice = (await guarded.chat()).json()["choices"][0]
    assert choice["message"].get("reasoning_content", "") == thought
    assert (choice["message"]["content"], choice["finish_reason"]) == (said, reason)
    got = await events(guarded, "/v1/chat/completions", messages=QUESTION)
    deltas = [event["choices"][0]["delta"] for event in got]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    assert "".join(delta.get("content", "") for delta in deltas) == said
