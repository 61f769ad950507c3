from __future__ import annotations

import json

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta
from tests.fakes.pipeline import words
from tests.router.openai.test_chat import chunks, events
from tests.router.raw import RawClient, post
from tests.router.running import BARE_MODEL, MODEL, RunningRouter


async def test_a_prompt_is_sent_as_it_is(router: RunningRouter) -> None:
    response = await router.complete(prompt=" Once\u0000 upon")
    answer = response.json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}
    ]
    call = router.pipeline.calls[0]
    assert call.prompt == " Once\u0000 upon"
    assert call.add_special_tokens
    assert call.max_tokens == 16


async def test_a_model_without_template_completes(router: RunningRouter) -> None:
    assert (await router.complete(model=BARE_MODEL)).status_code == 200


async def test_a_list_of_one_prompt_is_one_prompt(router: RunningRouter) -> None:
    assert len((await router.complete(prompt=["x"])).json()["choices"]) == 1


async def test_answers_to_several_prompts_come_prompt_by_prompt(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(call.prompt)
    answer = (await router.complete(prompt=["a", "b"], n=2)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a", "a", "b", "b"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 14


async def test_more_answers_over_all_prompts_than_allowed_are_refused(router: RunningRouter) -> None:
    response = await router.complete(prompt=["a"] * 33, n=2)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "n: at most 64 answers to all prompts together"


async def test_an_echo_puts_the_prompt_before_the_answer_once(router: RunningRouter) -> None:
    whole = (await router.complete(prompt="Once ", echo=True)).json()
    assert whole["choices"][0]["text"] == "Once Hello world"
    got = chunks((await router.complete(prompt="Once ", echo=True, stream=True)).text)
    texts = [chunk["choices"][0]["text"] for chunk in got]  # type: ignore[index]  # JSON
    assert texts == ["Once Hello", " world", ""]


async def test_a_stream_of_text_ends_with_its_reason(router: RunningRouter) -> None:
    got = chunks((await router.complete(stream=True)).text)
    choices = [chunk["choices"][0] for chunk in got]  # type: ignore[index]  # JSON
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("Hello", None),
        (" world", None),
        ("", "stop"),
    ]


async def test_several_prompts_are_answered_together_and_keep_their_index(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(call.prompt, "!")
    answer = (await router.complete(prompt=["a", "b", "c"])).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "a!"),
        (1, "b!"),
        (2, "c!"),
    ]
    usage = answer["usage"]
    assert [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] == [21, 6, 27]
    assert len({call.request_id for call in router.pipeline.calls}) == 3


async def test_several_prompts_stream_side_by_side(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: words(call.prompt, call.prompt)
    got = chunks((await router.complete(prompt=["a", "b"], stream=True)).text)
    texts = {0: "", 1: ""}
    for chunk in got:
        choice = chunk["choices"][0]  # type: ignore[index]  # JSON
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "aa", 1: "bb"}


async def test_when_one_of_several_prompts_fails_the_others_are_stopped(router: RunningRouter) -> None:
    error = InflightError(ErrorKind.INVALID_REQUEST, "no")
    router.pipeline.script = lambda call: [0.05, error] if call.prompt == "bad" else [Delta("x", 1, 1), None]
    assert (await router.complete(prompt=["good", "bad"])).status_code == 400
    got = events((await router.complete(prompt=["good", "bad"], stream=True)).text)
    assert json.loads(got[-1])["error"]["message"] == "no"
    assert router.pipeline.generations[0].stopped
    assert router.pipeline.generations[2].stopped
    await router.until(lambda: router.permits.open_count == 0)


async def test_a_client_that_disconnects_stops_all_its_prompts(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [None]
    client = await RawClient.connect(router.port)
    await client.send(post("/v1/completions", {"model": MODEL, "prompt": ["a", "b"]}))
    await router.until(lambda: len(router.pipeline.generations) == 2)
    await client.close()
    await router.until(lambda: router.permits.open_count == 0)
    assert all(generation.stopped for generation in router.pipeline.generations)


async def test_a_list_of_token_ids_is_one_prompt_and_lists_of_ids_are_several(router: RunningRouter) -> None:
    assert len((await router.complete(prompt=[5, 6, 7])).json()["choices"]) == 1
    assert len((await router.complete(prompt=[[5, 6], [7]])).json()["choices"]) == 2
    assert [call.prompt_ids for call in router.pipeline.calls] == [(5, 6, 7), (5, 6), (7,)]


async def test_an_unknown_token_id_is_refused_in_the_callers_terms(
    router: RunningRouter,
) -> None:
    error = InflightError(ErrorKind.INVALID_REQUEST, "the prompt holds token id 99999; allowed: 0 to 49151")
    router.pipeline.script = lambda call: [error]
    told = (await router.complete(prompt=[99999])).json()["error"]
    assert told["message"] == "prompt: there is no token 99999; allowed: 0 to 49151"
    assert told["param"] == "prompt"


async def test_more_token_ids_than_the_model_takes_are_refused_before_they_are_sent(
    router: RunningRouter,
) -> None:
    most = router.parts.models.lineups[MODEL].stable.context_tokens  # type: ignore[union-attr]
    answer = await router.complete(prompt=[1] * (most + 1))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert not router.pipeline.calls
    assert (await router.complete(prompt=[1] * most)).status_code == 200
