"""The `embeddings` model asked at Triton itself: batched, and refused one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.stack import RunningStack
from python_backend.embeddings.model import EmbeddingModel
from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from tests.pace import patience

pytestmark = pytest.mark.stack

MODEL = "embeddings"


class Client:
    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def embed(self, rows: Sequence[Any], dimensions: int = 0) -> tuple[np.ndarray[Any, Any], list[int]]:
        """`rows` are texts, or ids of one length."""
        count = len(rows)
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        if isinstance(rows[0], list):
            request.inputs.add(name="INPUT_IDS", datatype="INT32", shape=[count, len(rows[0])])
            request.raw_input_contents.append(codec.encode("INT32", [each for row in rows for each in row]))
        else:
            request.inputs.add(name="TEXT", datatype="BYTES", shape=[count, 1])
            request.raw_input_contents.append(codec.encode("BYTES", rows))
        request.inputs.add(name="DIMENSIONS", datatype="INT32", shape=[count, 1])
        request.raw_input_contents.append(codec.encode("INT32", [dimensions] * count))
        response = self._stub.ModelInfer(request, timeout=patience(30))
        raw = {
            output.name: data
            for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
        }
        return np.frombuffer(raw["EMBEDDING"], "<f4").reshape(count, -1), codec.decode("INT32", raw["TOKENS"])


@pytest.fixture(scope="module")
def client(stack: RunningStack) -> Iterator[Client]:
    with grpc.insecure_channel(stack.triton_grpc_url) as channel:
        yield Client(channel)


def test_texts_and_ids_give_the_models_own_vectors(client: Client, model: EmbeddingModel) -> None:
    texts = ["How do I reset my password?", "", "日本語のテキスト", "word " * 1000]
    ids = model.word_pieces.encode(texts)
    expected = model.embed(ids)
    vectors, tokens = client.embed(texts)
    assert np.abs(vectors - expected).max() < 1e-6
    assert tokens == [len(row) for row in ids]
    by_ids, _ = client.embed([ids[0]])
    assert np.abs(by_ids - expected[:1]).max() < 1e-6
    short, _ = client.embed(texts[:1], dimensions=64)
    assert short.shape == (1, 64)
    assert short[0] == pytest.approx(expected[0, :64] / np.linalg.norm(expected[0, :64]), abs=1e-6)


def test_short_texts_of_a_batch_with_long_ones_are_answered_first(
    client: Client, model: EmbeddingModel
) -> None:
    """Some requests of a batch are answered while Triton still waits for the rest of it."""
    texts = [text for number in range(8) for text in (f"short {number}", f"long {number} " * 100)]
    ended: list[str] = []

    def ask(text: str) -> Any:
        found = client.embed([text])[0][0]
        ended.append(text)
        return found

    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(ask, texts))
    assert np.abs(np.array(answers) - model.embed(model.word_pieces.encode(texts))).max() < 1e-5
    places = {kind: sum(ended.index(text) for text in texts if text.startswith(kind)) for kind in ("s", "l")}
    assert places["s"] < places["l"]


def test_a_refusal_keeps_its_kind_and_affects_no_other_request(client: Client) -> None:
    def ask(rows: list[Any]) -> InflightError | None:
        try:
            client.embed(rows)
        except grpc.RpcError as error:
            call: Any = error
            return InflightError.from_text(call.details())
        return None

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, [["fine"], [b"\xff"]] * 8))
    assert answers[::2] == [None] * 8
    for refusal in answers[1::2]:
        assert refusal is not None
        assert refusal.kind is ErrorKind.INVALID_REQUEST
        assert refusal.message == "TEXT is not valid UTF-8 (byte 0)"
