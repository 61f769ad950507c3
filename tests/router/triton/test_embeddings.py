"""What goes to the `embeddings` model in Triton, and what is made of its answers and errors."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import EmbeddingCall
from router.grpc.status import GrpcError, StatusCode
from router.triton.embeddings import TritonEmbedder

CALL = EmbeddingCall(["a text", "ünïcode"], 3, 20)


class FakeConnection:
    def __init__(self, answer: Any) -> None:
        self.requests: list[Any] = []
        self._answer = answer

    async def infer_once(self, request: Any, timeout_s: float | None = None) -> Any:
        assert timeout_s
        self.requests.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def ready(self, model: str) -> bool:
        return model == "embeddings"


def answer() -> Any:
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="TOKENS", datatype="INT32", shape=[2, 1])
    message.raw_output_contents.append(codec.encode("INT32", [4, 5]))
    message.outputs.add(name="EMBEDDING", datatype="FP32", shape=[2, 3])
    message.raw_output_contents.append(struct.pack("<6f", *range(6)))
    return message


def inputs(request: Any) -> dict[str, tuple[str, list[int], list[Any]]]:
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), codec.decode(tensor.datatype, raw))
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


async def test_texts_are_sent_as_rows_and_vectors_come_back() -> None:
    connection = FakeConnection(answer())
    found = await TritonEmbedder(connection, "embeddings").embed(CALL, "embd-1-0", "somebody")
    assert found.tokens == [4, 5]
    assert struct.unpack("<6f", found.vectors) == (0, 1, 2, 3, 4, 5)
    (request,) = connection.requests
    assert (request.model_name, request.id) == ("embeddings", "embd-1-0")
    assert request.parameters["tenant"].string_param == "somebody"
    assert inputs(request) == {
        "TEXT": ("BYTES", [2, 1], [b"a text", "ünïcode".encode()]),
        "DIMENSIONS": ("INT32", [2, 1], [3, 3]),
    }


async def test_ids_of_different_lengths_are_padded() -> None:
    connection = FakeConnection(answer())
    await TritonEmbedder(connection, "embeddings").embed(EmbeddingCall([[7], [8, 9]], 3, 20), "x", "local")
    assert inputs(connection.requests[0])["INPUT_IDS"] == ("INT32", [2, 2], [7, -1, 8, 9])


@pytest.mark.parametrize(
    ("code", "details", "kind", "message"),
    [
        (
            StatusCode.INVALID_ARGUMENT,
            "invalid_request: TEXT is wrong",
            ErrorKind.INVALID_REQUEST,
            "TEXT is wrong",
        ),
        (StatusCode.UNAVAILABLE, "refused", ErrorKind.ENGINE_FAILED, "the model cannot answer at the moment"),
        (StatusCode.DEADLINE_EXCEEDED, "", ErrorKind.OVERLOADED, "the model did not answer in time"),
    ],
)
async def test_tritons_errors_are_mapped_to_our_kinds_and_messages(
    code: StatusCode, details: str, kind: ErrorKind, message: str
) -> None:
    with pytest.raises(InflightError) as failure:
        await TritonEmbedder(FakeConnection(GrpcError(code, details)), "embeddings").embed(CALL, "x", "local")
    assert (failure.value.kind, failure.value.message) == (kind, message)


async def test_an_embedder_is_ready_when_its_model_is() -> None:
    assert await TritonEmbedder(FakeConnection(None), "embeddings").ready()
    assert not await TritonEmbedder(FakeConnection(None), "other").ready()
