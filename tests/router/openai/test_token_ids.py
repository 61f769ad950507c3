"""The ids of a prompt and of its answer's tokens, where they are asked for."""

from __future__ import annotations

from typing import Any

from router.core.generation import Delta, GenerationCall
from tests.router.openai.test_chat import chunks
from tests.router.running import RunningRouter

PROMPT = (5, 6, 7)


def identified(call: GenerationCall) -> list[Any]:
    """As the engine tells them: the prompt's first, without text."""
    if not call.returns_token_ids:
        return [Delta("One two.", 3, prompt_tokens=3, finish="end_id")]
    return [
        Delta("", 0, prompt_tokens=3, token_ids=PROMPT),
        Delta("One", 1, token_ids=(11,)),
        Delta("", 1, token_ids=(12,)),  # the first half of a character
        Delta(" two", 1, token_ids=(13,)),
        Delta(".", 1, token_ids=(14,), finish="end_id"),
    ]


async def test_a_chat_has_the_ids_of_its_prompt_and_its_choices(router: RunningRouter) -> None:
    router.pipeline.script = identified
    answer = (await router.chat(return_token_ids=True, n=2)).json()
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert [choice["token_ids"] for choice in answer["choices"]] == [[11, 12, 13, 14]] * 2
    assert answer["choices"][0]["message"]["content"] == "One two."
    assert answer["usage"]["completion_tokens"] == 8
    assert "token_ids" not in (await router.chat()).json()["choices"][0]


async def test_a_streamed_chat_tells_each_id_once_and_the_prompts_first(router: RunningRouter) -> None:
    router.pipeline.script = identified
    sent: Any = chunks((await router.chat(return_token_ids=True, stream=True)).text)
    prompts = [chunk.get("prompt_token_ids") for chunk in sent]
    assert [each for each in prompts if each] == [[5, 6, 7]]
    assert prompts[0]
    told = [(chunk["choices"][0]["delta"].get("content"), chunk["choices"][0]["token_ids"]) for chunk in sent]
    assert told == [("", []), ("One", [11]), (" two", [12, 13]), (".", [14]), (None, [])]


async def test_a_completions_choices_have_the_ids_of_their_own_prompts(router: RunningRouter) -> None:
    router.pipeline.script = identified
    body: dict[str, Any] = {"prompt": ["a", "b"], "return_token_ids": True}
    answer = (await router.complete(**body)).json()
    for choice in answer["choices"]:
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([5, 6, 7], [11, 12, 13, 14])
    sent: Any = chunks((await router.complete(**body, stream=True)).text)
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in sent if chunk["choices"][0]["index"] == index]
        assert [each["prompt_token_ids"] for each in own if "prompt_token_ids" in each] == [[5, 6, 7]]
        assert [token for each in own for token in each["token_ids"]] == [11, 12, 13, 14]


async def test_an_engine_that_tells_no_ids_is_answered_without(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [Delta("One", 1, prompt_tokens=3), Delta("", 0, finish="end_id")]
    answer = (await router.chat(return_token_ids=True)).json()
    assert "prompt_token_ids" not in answer
    assert answer["choices"][0]["message"]["content"] == "One"
    assert answer["choices"][0]["token_ids"] == []
