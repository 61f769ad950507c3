from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from client.triton import Generated, GenerationFailed, TritonTextClient
from python_backend.wire import codec
from python_backend.wire.tensors import ENSEMBLE
from tests.fakes.triton_server import FakeTriton, Reply, story


@pytest.fixture
def client(triton: FakeTriton) -> Iterator[TritonTextClient]:
    with TritonTextClient(triton.url) as made:
        yield made


def sent(request: Any) -> dict[str, list[Any]]:
    return {
        tensor.name: codec.decode(tensor.datatype, raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def test_an_answer_is_joined_from_its_parts(triton: FakeTriton, client: TritonTextClient) -> None:
    assert client.generate("Grüße", 8) == Generated("Hello world", 5, 2, "end_id")
    request = triton.requests[0]
    assert request.model_name == "ensemble"
    assert sent(request)["text_input"] == ["Grüße".encode()]
    assert sent(request)["max_tokens"] == [8]
    assert sent(request)["stream"] == [False]


def test_parts_are_streamed_and_the_end_is_found_without_an_extra_response(
    triton: FakeTriton, client: TritonTextClient
) -> None:
    assert [part.text for part in client.stream("x", 8)] == ["Hello", " world"]
    assert sent(triton.requests[0])["stream"] == [True]


def test_an_empty_final_response_ends_the_answer(triton: FakeTriton, client: TritonTextClient) -> None:
    triton.script = lambda request: [Reply("a"), Reply("b", finish="length"), Reply(tokens=0, final=True)]
    assert client.generate("x", 2) == Generated("ab", 5, 2, "length")


def test_many_requests_share_one_stream(triton: FakeTriton, client: TritonTextClient) -> None:
    for _ in range(5):
        assert client.generate("x", 8).text == "Hello world"
    assert len({request.id for request in triton.requests}) == 5


def test_threads_share_a_client_one_request_at_a_time(triton: FakeTriton, client: TritonTextClient) -> None:
    triton.script = lambda request: story(sent(request)["text_input"][0].decode(), "!")
    answers: dict[str, str] = {}

    def ask(text: str) -> None:
        answers[text] = client.generate(text, 8).text

    threads = [threading.Thread(target=ask, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {f"t{number}": f"t{number}!" for number in range(8)}


def test_options_become_tensors_of_the_contract(triton: FakeTriton, client: TritonTextClient) -> None:
    client.generate("x", 8, temperature=0.5, top_k=3, seed=2**63, stop_words=["a", "b"], end_id=-1)
    got = sent(triton.requests[0])
    assert (got["temperature"], got["top_k"], got["seed"]) == ([0.5], [3], [2**63])
    assert got["stop_words"] == [b"a", b"b"]
    for tensor in triton.requests[0].inputs:
        assert ENSEMBLE.input(tensor.name).dtype == tensor.datatype


def test_an_unknown_option_is_refused_naming_those_that_exist(client: TritonTextClient) -> None:
    with pytest.raises(TypeError, match="no such option: temprature; allowed are temperature"):
        client.generate("x", 8, temprature=1)


def test_tritons_error_is_raised_and_the_next_request_works(
    triton: FakeTriton, client: TritonTextClient
) -> None:
    good = triton.script
    triton.script = lambda request: [Reply(error="invalid_request: no"), Reply(tokens=0, final=True)]
    with pytest.raises(GenerationFailed, match="invalid_request: no"):
        client.generate("x", 8)
    triton.script = good
    assert client.generate("x", 8).text == "Hello world"


def test_leaving_a_stream_early_stops_the_engine_and_the_next_request_works(
    triton: FakeTriton, client: TritonTextClient
) -> None:
    good = triton.script
    triton.script = lambda request: [Reply("a", pause_s=0.01)] * 1000
    stream = client.stream("x", 1000)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert triton.running == {}
    assert triton.stops == [triton.requests[0].id]
    triton.script = good
    assert client.generate("x", 8).text == "Hello world"


def test_a_second_request_inside_a_stream_is_refused_and_not_waited_for(
    triton: FakeTriton, client: TritonTextClient
) -> None:
    for _ in client.stream("x", 8):
        with pytest.raises(RuntimeError, match="read the stream to its end"):
            client.generate("y", 8)


def test_an_unreachable_server_is_an_error() -> None:
    with TritonTextClient("127.0.0.1:1") as client, pytest.raises(GenerationFailed):
        client.generate("x", 8)


def test_a_proxy_is_not_used_for_this_machine(triton: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with TritonTextClient(triton.url) as made:
        assert made.generate("x", 8).text == "Hello world"
