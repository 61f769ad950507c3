from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.http import InflightClient, NotListening, RequestFailed, Usage
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta
from tests.fakes.pipeline import words
from tests.router.running import EMBEDDER, MODEL, RunningRouter
from tests.waiting import wait_until


@pytest.fixture
def client(router: RunningRouter) -> Iterator[InflightClient]:
    with InflightClient(router.url) as made:
        yield made


def test_a_chat_answer_is_whole(router: RunningRouter, client: InflightClient) -> None:
    answer = client.chat([{"role": "user", "content": "hi"}], max_tokens=5)
    assert answer.text == "Hello world"
    assert answer.finish_reason == "stop"
    assert answer.usage == Usage(7, 2, 9)
    assert answer.model == MODEL
    assert router.pipeline.calls[0].max_tokens == 5


def test_a_string_is_sent_as_one_message(router: RunningRouter, client: InflightClient) -> None:
    client.chat("hi")
    assert router.pipeline.calls[0].prompt == "<user>hi</user><assistant>"


def test_a_stream_yields_text_and_then_has_finish_reason_and_usage(client: InflightClient) -> None:
    with client.stream_chat("hi") as stream:
        assert stream.usage is None
        assert list(stream) == ["Hello", " world"]
        assert stream.finish_reason == "stop"
        assert stream.usage == Usage(7, 2, 9)


def test_completions_are_read_whole_and_streamed(client: InflightClient) -> None:
    assert client.complete("Once").text == "Hello world"
    assert "".join(client.stream_complete("Once")) == "Hello world"


def test_text_with_odd_line_ends_and_characters_arrives_unchanged(
    router: RunningRouter, client: InflightClient
) -> None:
    nasty = ["a\r\n\r\ndata: [DONE]\n\n", "\u2028\x85", "😀", "\x00"]
    router.pipeline.script = lambda call: words(*nasty)
    assert list(client.stream_chat("x")) == nasty


def test_models_are_listed_and_the_first_is_the_default(client: InflightClient) -> None:
    assert client.models() == [MODEL, "no-template", EMBEDDER]
    assert client.model({}) == MODEL
    assert client.model({"model": "other"}) == "other"


def test_a_model_can_be_chosen_for_the_client_or_for_one_request(router: RunningRouter) -> None:
    with InflightClient(router.url, model="no-template") as client:
        assert client.complete("x").model == "no-template"
        assert client.complete("x", model=MODEL).model == MODEL


def test_a_refusal_carries_status_code_and_message(client: InflightClient) -> None:
    with pytest.raises(RequestFailed) as caught:
        client.chat("x", model="other")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert "other" in caught.value.message
    with pytest.raises(RequestFailed, match="temperature: expected"):
        client.stream_chat("x", temperature=5)


def test_an_error_in_mid_stream_is_raised_after_the_text_before_it(
    router: RunningRouter, client: InflightClient
) -> None:
    router.pipeline.script = lambda call: [
        Delta("a", 1, 1),
        InflightError(ErrorKind.ENGINE_FAILED, "gone"),
    ]
    stream = iter(client.stream_chat("x"))
    assert next(stream) == "a"
    with pytest.raises(RequestFailed, match="gone") as caught:
        next(stream)
    assert caught.value.code == "engine_failed"


def test_leaving_a_stream_stops_the_engine(router: RunningRouter, client: InflightClient) -> None:
    router.pipeline.script = lambda call: [Delta("a", 1, 1), None]
    with client.stream_chat("x") as stream:
        assert next(iter(stream)) == "a"
    wait_until(lambda: router.pipeline.generations[0].stopped)


def test_an_address_without_a_listener_says_so() -> None:
    with (
        InflightClient("http://127.0.0.1:1") as client,
        pytest.raises(NotListening, match="nothing is listening"),
    ):
        client.models()


def test_a_key_travels_as_a_bearer_token(router: RunningRouter) -> None:
    with InflightClient(router.url, api_key="k") as client:
        assert client._http.headers["authorization"] == "Bearer k"
