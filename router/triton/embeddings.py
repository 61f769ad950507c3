"""The `embeddings` model in Triton, one unary call for each few texts."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from python_backend.wire import codec
from python_backend.wire.tensors import EMBEDDINGS
from router.core.embedding import EmbeddingAnswer, EmbeddingCall
from router.grpc.status import GrpcError
from router.triton.failures import from_status
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of one call, its time in Triton's queue included; a batch takes well under a second.
_TIMEOUT_S = 60.0
_PADDING = -1


class Connection(Protocol):
    """What is used of a TritonConnection."""

    async def infer_once(self, request: Any, timeout_s: float | None = None) -> Any:
        """One ModelInfer; raises GrpcError."""

    async def ready(self, model: str) -> bool:
        """Whether Triton would take a request for this model."""


class TritonEmbedder:
    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        request = embed_request(self._model, call, request_id, tenant)
        try:
            return read_answer(await self._connection.infer_once(request, _TIMEOUT_S))
        except GrpcError as error:
            raise from_status(error, request_id) from None

    async def ready(self) -> bool:
        return await self._connection.ready(self._model)


def embed_request(model: str, call: EmbeddingCall, request_id: str, tenant: str) -> Any:
    """Always DIMENSIONS, and one kind of rows: Triton batches only requests with the same inputs."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.parameters["tenant"].string_param = tenant
    rows: list[Any] = call.rows
    if isinstance(rows[0], str):
        _add(message, "TEXT", len(rows), rows)
        if call.seconds:
            _add(message, "TEXT_PAIR", len(rows), call.seconds)
    else:
        width = max(map(len, rows))
        padded = [[*row, *[_PADDING] * (width - len(row))] for row in rows]
        _add(message, "INPUT_IDS", len(rows), list(chain.from_iterable(padded)))
    _add(message, "DIMENSIONS", len(rows), [call.dimensions] * len(rows))
    return message


def _add(message: Any, name: str, rows: int, values: Sequence[Any]) -> None:
    dtype = EMBEDDINGS.input(name).dtype
    message.inputs.add(name=name, datatype=dtype, shape=[rows, len(values) // rows])
    message.raw_input_contents.append(codec.encode(dtype, values))


def read_answer(response: Any) -> EmbeddingAnswer:
    raw = {
        output.name: data for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return EmbeddingAnswer(raw["EMBEDDING"], codec.decode(EMBEDDINGS.output("TOKENS").dtype, raw["TOKENS"]))
