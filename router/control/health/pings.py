"""The smallest request to each kind of Triton model that only a living process of it can answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from python_backend.wire import codec
from python_backend.wire.tensors import CONTRACTS
from router.control.health.vital_signs import Queue
from router.core.embedding import EmbeddingCall
from router.core.generation import GenerationCall
from router.core.manifest import Kind
from router.grpc.status import GrpcError, StatusCode
from router.triton.embeddings import embed_request
from router.triton.messages import GenerateRequests, stop_request
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.core.manifest import Manifest
    from router.triton.client import TritonConnection

# No request of ours has it: it tells the engine to stop what it does not have.
_NOBODY = "probe"
_WORD = "a"


@dataclass(frozen=True, slots=True)
class Ping:
    """`is_heard_of` where each part of an answer shows that the model lives."""

    request: Any
    is_streamed: bool = False
    is_heard_of: bool = True
    queue: Queue = Queue.NONE

    async def send(self, connection: TritonConnection, timeout_s: float) -> None:
        """Returns when the model has answered, in whatever way; raises GrpcError."""
        if not self.is_streamed:
            await connection.infer_once(self.request, timeout_s)
            return
        stream = connection.infer(self.request, timeout_s)
        try:
            async for message in stream:
                if message.error_message:
                    raise GrpcError(StatusCode.UNKNOWN, message.error_message)
        finally:
            stream.cancel()


def pings_of(manifest: Manifest) -> dict[str, Ping]:
    """By the Triton model each is for. What users bring is not asked things that they did not ask for."""
    if manifest.kind is Kind.EMBEDDINGS:
        call = EmbeddingCall([_WORD], 0, 1)
        return {manifest.entry: Ping(embed_request(manifest.entry, call, "", _NOBODY), queue=Queue.LONG)}
    if manifest.kind is not Kind.TEXT:
        return {}
    pings = {}
    for member in manifest.members[:-1]:
        step = member.rpartition(".")[2]
        if member == manifest.engine:
            pings[member] = Ping(stop_request(member, _NOBODY), is_streamed=True)
        elif step == "preprocessing":
            pings[member] = Ping(_tokenize(member), is_heard_of=False, queue=Queue.SHORT)
        elif step == "postprocessing":
            pings[member] = Ping(_detokenize(member))
    return pings


def one_token(manifest: Manifest, number: int) -> Ping:
    """Through the whole pipeline, ahead of others."""
    call = GenerationCall(
        request_id=f"{_NOBODY}-{number}",
        prompt=_WORD,
        max_tokens=1,
        seed=0,
        tenant=_NOBODY,
        tier="interactive",
    )
    return Ping(GenerateRequests(manifest.entry, manifest.adapter).build(call), is_streamed=True)


def _tokenize(model: str) -> Any:
    return _request(model, "preprocessing", {"QUERY": ([1, 1], [_WORD]), "REQUEST_OUTPUT_LEN": ([1, 1], [1])})


def _detokenize(model: str) -> Any:
    """Without a request id: such a text is nobody's, and nothing of it is kept."""
    tensors = {"TOKENS_BATCH": ([1, 1, 1], [0]), "SEQUENCE_LENGTH": ([1, 1], [1])}
    return _request(model, "postprocessing", tensors)


def _request(model: str, contract: str, tensors: Mapping[str, tuple[Sequence[int], Sequence[Any]]]) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, (shape, values) in tensors.items():
        dtype = CONTRACTS[contract].input(name).dtype
        message.inputs.add(name=name, datatype=dtype, shape=shape)
        message.raw_input_contents.append(codec.encode(dtype, values))
    return message
