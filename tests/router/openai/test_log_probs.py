"""Log probabilities in OpenAI's shapes, beside text that is held back, cut and echoed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from router.core.generation import Delta, GenerationCall, LoggedToken
from tests.fakes.pipeline import Step
from tests.router.openai.test_chat import chunks
from tests.router.running import RunningRouter

TOP = ((b"Hello", -0.25), (b"\xf0\x9f\x98", -2.5))
EMPTY = LoggedToken(b"", -0.5, 0)


def spoken(*pieces: bytes, finish: str = "end_id") -> list[Step]:
    """One token a piece, whose texts are as complete as they can be."""
    deltas: list[Step] = []
    unfinished = b""
    for piece in pieces:
        unfinished += piece
        try:
            text, unfinished = unfinished.decode(), b""
        except UnicodeDecodeError:
            text = ""
        deltas.append(Delta(text, 1, 7, tokens=(LoggedToken(piece, -0.5, len(text), top=TOP),)))
    return [*deltas, Delta("", prompt_tokens=7, finish=finish)]


def entry(piece: bytes, shown: str | None = None) -> dict[str, Any]:
    top = [
        {"token": "Hello", "logprob": -0.25, "bytes": list(b"Hello")},
        {"token": "\\xf0\\x9f\\x98", "logprob": -2.5, "bytes": [240, 159, 152]},
    ]
    return {
        "token": piece.decode() if shown is None else shown,
        "logprob": -0.5,
        "bytes": list(piece),
        "top_logprobs": top,
    }


def streamed(text: str) -> list[tuple[str, Any]]:
    """The text and the log probabilities of each chunk of a chat."""
    choices: list[Any] = [chunk["choices"][0] for chunk in chunks(text)]  # type: ignore[index]  # JSON
    return [(choice["delta"].get("content", ""), choice["logprobs"]) for choice in choices]


async def test_a_chat_has_each_tokens_log_probability_and_the_top_ones(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: spoken(b"Hi", b" \xf0\x9f", b"\x98\x80")
    answer = (await router.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]
    assert answer["message"]["content"] == "Hi 😀"
    assert answer["logprobs"] == {
        "content": [entry(b"Hi"), entry(b" \xf0\x9f", " \\xf0\\x9f"), entry(b"\x98\x80", "\\x98\\x80")],
        "refusal": None,
    }
    assert router.pipeline.calls[0].top_log_probs == 2
    await router.chat(logprobs=True)
    assert router.pipeline.calls[1].top_log_probs == 0


async def test_a_chat_without_logprobs_requested_has_none(router: RunningRouter) -> None:
    for fields in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
        answer = (await router.chat(**fields)).json()
        assert answer["choices"][0]["logprobs"] is None
    assert {call.top_log_probs for call in router.pipeline.calls} == {None}


async def test_streamed_log_probabilities_come_with_the_text_of_their_tokens(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: spoken(b"Hi", b"\xc3", b"\xa9")
    got = streamed((await router.chat(logprobs=True, top_logprobs=2, stream=True)).text)
    half = [entry(b"\xc3", "\\xc3"), entry(b"\xa9", "\\xa9")]
    assert got == [
        ("", None),
        ("Hi", {"content": [entry(b"Hi")], "refusal": None}),
        ("é", {"content": half, "refusal": None}),
        ("", None),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_text_cut_off_by_a_stop_string_has_no_log_probabilities(
    router: RunningRouter, stream: bool
) -> None:
    router.pipeline.script = lambda call: [*spoken(b"one E", b"N", b"D two")[:-1], None]
    response = await router.chat(logprobs=True, stop="END", stream=stream)
    if stream:
        got = streamed(response.text)
        assert "".join(text for text, _ in got) == "one "
        tokens = [each["token"] for _, told in got if told for each in told["content"]]
    else:
        answer = response.json()["choices"][0]
        assert answer["message"]["content"] == "one "
        tokens = [each["token"] for each in answer["logprobs"]["content"]]
    assert tokens == ["one E"], "a part of it has left"


async def test_text_held_back_for_a_false_stop_string_comes_late_with_its_log_probabilities(
    router: RunningRouter,
) -> None:
    router.pipeline.script = lambda call: spoken(b"a", b"E", b"N", b"!")
    got = streamed((await router.chat(logprobs=True, stop="END", stream=True)).text)
    told = [(text, [each["token"] for each in log["content"]]) for text, log in got if log]
    assert told == [("a", ["a"]), ("EN!", ["E", "N", "!"])]


async def test_the_end_of_an_answer_releases_held_back_log_probabilities(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: spoken(b"a", b"EN", finish="length")
    got = streamed((await router.chat(logprobs=True, stop="END", stream=True)).text)
    told = [(text, [each["token"] for each in log["content"]]) for text, log in got if log]
    assert told == [("a", ["a"]), ("EN", ["EN"])]


async def test_an_incomplete_character_has_no_log_probabilities(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: spoken(b"a", b"\xc3", finish="length")
    answer = (await router.chat(logprobs=True)).json()["choices"][0]
    assert [each["token"] for each in answer["logprobs"]["content"]] == ["a"]


async def test_a_hidden_token_has_a_name_and_no_bytes(router: RunningRouter) -> None:
    hidden = LoggedToken(b"<|x|>", -0.5, 0, is_hidden=True)
    router.pipeline.script = lambda call: [Delta("", 1, 7, tokens=(hidden,)), *spoken(b"a")]
    content = (await router.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [(each["token"], each["bytes"]) for each in content] == [("<|x|>", None), ("a", [97])]


async def test_an_infinite_log_probability_is_sent_as_a_number(router: RunningRouter) -> None:
    never = LoggedToken(b"a", -math.inf, 1, top=((b"b", -math.inf),))
    router.pipeline.script = lambda call: [
        Delta("a", 1, 7, tokens=(never,)),
        Delta("", finish="length"),
    ]
    (told,) = (await router.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert (told["logprob"], told["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


async def test_log_probabilities_of_a_tool_call_come_when_the_call_is_whole(router: RunningRouter) -> None:
    call = b'<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "now"}}]
    router.pipeline.script = lambda _: spoken(b"so ", call[:20], call[20:])
    answer = (await router.chat(logprobs=True, tools=tools)).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert len(answer["logprobs"]["content"]) == 3
    got = streamed((await router.chat(logprobs=True, tools=tools, stream=True)).text)
    assert [len(log["content"]) for _, log in got if log] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected `int` <= 20"),
        ({"logprobs": 3}, "logprobs: expected `bool | null`, got `int`"),
        ({"top_logprobs": 2}, "top_logprobs: is only allowed when logprobs is true"),
    ],
)
async def test_invalid_log_probability_options_of_a_chat_are_refused(
    router: RunningRouter, fields: dict[str, Any], message: str
) -> None:
    response = await router.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


async def test_completions_have_token_texts_log_probabilities_and_offsets(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: spoken(b"Hello", b" \xf0\x9f", b"\x98\x80", b"!")
    answer = (await router.complete(logprobs=2)).json()["choices"][0]
    half, rest = "bytes: \\xf0\\x9f", "bytes:\\x98\\x80"
    top = {"Hello": -0.25, "bytes:\\xf0\\x9f\\x98": -2.5}
    assert answer == {
        "index": 0,
        "text": "Hello 😀!",
        "logprobs": {
            "tokens": ["Hello", half, rest, "!"],
            "token_logprobs": [-0.5] * 4,
            "top_logprobs": [top, {**top, half: -0.5}, {**top, rest: -0.5}, {**top, "!": -0.5}],
            "text_offset": [0, 5, 5, 7],
        },
        "finish_reason": "stop",
    }


async def test_completions_with_logprobs_0_have_no_top_ones(router: RunningRouter) -> None:
    plain = LoggedToken(b"a", -0.5, 1)
    router.pipeline.script = lambda call: [
        Delta("a", 1, 7, tokens=(plain,)),
        Delta("", finish="length"),
    ]
    told = (await router.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert told == {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": None, "text_offset": [0]}
    assert (await router.complete(logprobs=6)).status_code == 400


def echoing(call: GenerationCall) -> list[Step]:
    """The prompt first, as an engine sends it that was asked to."""
    assert call.engine_echoes
    tokens = (LoggedToken(b"On", None, 2), LoggedToken(b"ce", -3.0, 2, top=((b"e", -1.0),)))
    return [Delta("Once", 2, 2, cached_tokens=1, tokens=tokens), *spoken(b"Once", b" upon")]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_has_the_prompt_tokens_log_probabilities(router: RunningRouter, stream: bool) -> None:
    router.pipeline.script = echoing
    response = await router.complete(prompt="Once", echo=True, logprobs=1, stop=["Once"], stream=stream)
    if not stream:
        whole = response.json()
        told = whole["choices"][0]["logprobs"]
        assert whole["choices"][0]["text"] == "Once", "only an answer is held against stop strings"
        assert told["tokens"] == ["On", "ce"]
        assert told["token_logprobs"] == [None, -3.0]
        assert told["top_logprobs"] == [None, {"e": -1.0, "ce": -3.0}]
        assert told["text_offset"] == [0, 2]
        assert whole["usage"]["prompt_tokens"] == 2
        assert whole["usage"]["completion_tokens"] == 1
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
        return
    got: list[Any] = chunks(response.text)
    first = got[0]["choices"][0]
    assert (first["text"], first["logprobs"]["tokens"]) == ("Once", ["On", "ce"])
    assert "".join(chunk["choices"][0]["text"] for chunk in got) == "Once"


async def test_an_echo_of_token_ids_is_the_engines_text(router: RunningRouter) -> None:
    router.pipeline.script = echoing
    answer = (await router.complete(prompt=[5, 6], echo=True)).json()["choices"][0]
    assert answer["text"] == "OnceOnce upon"
    assert answer["logprobs"] is None
    (call,) = router.pipeline.calls
    assert (call.prompt_ids, call.prompt, call.top_log_probs) == ((5, 6), "", None)


async def test_line_ends_inside_tokens_do_not_break_events(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: spoken("\u2028".encode(), b"\n\n")
    text = (await router.chat(logprobs=True, stream=True)).text
    for line in filter(None, text.splitlines()):
        assert line == "data: [DONE]" or json.loads(line.removeprefix("data: "))
