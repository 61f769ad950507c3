"""A language model on several servers: a request outlives the replica that it was sent to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Delta, Failure, GenerationCall, byte_tokens, text_tokens
from router.grpc.status import GrpcError, StatusCode
from router.routing.attempts import Attempts, SingleCall, ask
from router.routing.replay import DifferentAnswer, Told
from router.routing.replica_choice import EXPECTED_TOKENS, LEAST_TOKENS, OPENING_CHARS, answer_tokens
from router.routing.replicas import FleetSettings, Replica, ReplicaSet
from router.triton.client import RelayedGeneration, TritonGeneration
from router.triton.embeddings import TritonEmbedder
from router.triton.failures import TritonError, from_status
from router.triton.messages import GenerateRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.embedding import EmbeddingAnswer, EmbeddingCall
    from router.core.trace import Trace

log = logging.getLogger(__name__)
_OPENING_IDS = OPENING_CHARS // 4


class FleetPipeline:
    """One release that generates text, wherever it is loaded."""

    def __init__(self, replicas: ReplicaSet, context_tokens: int, settings: FleetSettings) -> None:
        self.replicas = replicas
        self.context_tokens = context_tokens
        self.expected_tokens = answer_tokens(context_tokens, context_tokens)
        self.settings = settings
        self.engine = replicas.manifest.engine
        self.requests = GenerateRequests(replicas.manifest.entry)

    def generate(self, call: GenerationCall) -> FleetGeneration:
        return FleetGeneration(self, call)

    def relay(self, request: Any, trace: Trace | None = None) -> FleetRelay:
        """For a request that somebody else built; the model that it names is filled in."""
        request.model_name = self.replicas.manifest.entry
        return FleetRelay(self.replicas, self.settings, request, self.engine, trace)

    async def ready(self) -> bool:
        return await self.replicas.ready()


class FleetGeneration(Attempts):
    """One answer, without a break for who reads it.

    An attempt that comes after the first token generates everything again, with the same seed. As much as was
    delivered is passed over, and must be the same: what a client gets is always one answer, never two halves.
    """

    _can_replay = True
    __slots__ = ("_call", "_expected", "_generated", "_is_broken", "_pipeline", "_told")

    def __init__(self, pipeline: FleetPipeline, call: GenerationCall) -> None:
        expected = pipeline.expected_tokens
        if call.max_tokens < expected:
            expected = max(call.max_tokens, LEAST_TOKENS)
        prompt = text_tokens(call.prompt) if call.prompt_ids is None else len(call.prompt_ids)
        tokens = expected + min(prompt, pipeline.context_tokens)
        super().__init__(pipeline.replicas, pipeline.settings, tokens, call.trace)
        self._pipeline = pipeline
        self._call = call
        self._expected = expected
        self._generated = 0  # by the attempt that is under way
        self._told = Told()
        self._is_broken = False

    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        call = self._call
        if number > 1:
            call = msgspec.structs.replace(call, request_id=f"{call.request_id}-r{number}")
            self._generated = 0
            self._told.begin_again()
        pipeline = self._pipeline
        return TritonGeneration(replica.connection, pipeline.engine, pipeline.requests.encode(call), call)

    def _key(self) -> bytes:
        call = self._call
        if call.prompt_ids is not None:
            return repr(call.prompt_ids[:_OPENING_IDS]).encode()
        return call.prompt[:OPENING_CHARS].encode("utf-8", "replace")

    def _take(self, delta: Delta, replica: Replica) -> Delta | None:
        self._generated += delta.completion_tokens
        if self.outstanding_tokens:  # so much is left of it; what has ended stays ended
            left = self._expected - self._generated
            left = left if left > LEAST_TOKENS else LEAST_TOKENS
            replica.outstanding_tokens += left - self.outstanding_tokens
            self.outstanding_tokens = left
        if self._is_broken:
            return None  # nobody wants it; only its end is waited for
        told = self._told
        if not told.is_replaying:
            told.add(delta)
            return delta
        try:
            return told.pass_over(delta)
        except DifferentAnswer as difference:
            log.error("%s: the second run differs: %s", self._call.request_id, difference)
        self._is_broken = True
        self.stop()
        raise InflightError(ErrorKind.ENGINE_FAILED, "the answer could not be continued")

    def _stopped(self) -> Delta:
        if self._is_broken:
            raise StopAsyncIteration
        return Delta("", finish="cancelled")


class FleetRelay(Attempts):
    """The responses to a request that somebody else built. Once there was one it is never sent again."""

    __slots__ = ("_engine", "_request", "_request_id")

    def __init__(
        self,
        replicas: ReplicaSet,
        settings: FleetSettings,
        request: Any,
        engine: str,
        trace: Trace | None = None,
    ) -> None:
        tokens = EXPECTED_TOKENS + byte_tokens(sum(map(len, request.raw_input_contents)))
        super().__init__(replicas, settings, tokens, trace)
        self._request = request
        self._request_id = request.id
        self._engine = engine

    def _open(self, replica: Replica, number: int) -> TritonGeneration:
        if number > 1:
            self._request.id = f"{self._request_id}-r{number}"
        # Only the id matters here: the rest of what is asked for is in the request.
        call = GenerationCall(request_id=self._request.id, prompt="", max_tokens=0, seed=0)
        return self._generation(replica, self._request.SerializeToString(), call)

    def _generation(self, replica: Replica, request: bytes, call: GenerationCall) -> RelayedGeneration:
        return RelayedGeneration(replica.connection, self._engine, request, call)

    def _key(self) -> bytes | None:
        raw = self._request.raw_input_contents
        return bytes(raw[0][:OPENING_CHARS]) if raw else None

    def _take(self, response: Any, replica: Replica) -> Any:
        replica.revalue(self, EXPECTED_TOKENS)
        return response

    def _stopped(self) -> Any:
        raise StopAsyncIteration


_SETTINGS = FleetSettings()


class FleetEmbedder:
    """One release that makes embeddings, wherever it is loaded."""

    def __init__(self, replicas: ReplicaSet, settings: FleetSettings = _SETTINGS) -> None:
        self.replicas = replicas
        self._settings = settings
        self._entry = replicas.manifest.entry

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        async def make(connection: SingleCall) -> EmbeddingAnswer:
            answer = await TritonEmbedder(connection, self._entry).embed(call, request_id, tenant)
            if connection.lost_attempts:
                return msgspec.structs.replace(answer, lost_attempts=connection.lost_attempts)
            return answer

        return await ask(self.replicas, self._settings, call.most_tokens, make)

    async def ready(self) -> bool:
        return await self.replicas.ready()


class FleetTensors:
    """One release that takes and gives tensors, wherever it is loaded."""

    def __init__(self, replicas: ReplicaSet, settings: FleetSettings = _SETTINGS) -> None:
        self.replicas = replicas
        self._settings = settings

    async def infer(
        self, request: Any, timeout_s: float | None = None, on_lost: Callable[[int], None] | None = None
    ) -> Any:
        """The response; the model that the request names is filled in. Raises InflightError.

        `on_lost` is told how often the release had failed the request before it was answered.
        """
        self._address(request)

        async def make(connection: SingleCall) -> Any:
            try:
                response = await connection.infer_once(request, timeout_s)
                if on_lost is not None and connection.lost_attempts:
                    on_lost(connection.lost_attempts)
                return response
            except GrpcError as error:
                raise _from_model(error, request.id) from None

        return await ask(self.replicas, self._settings, EXPECTED_TOKENS, make)

    def stream(self, request: Any) -> TensorStream:
        """The responses of a model that gives any number of them. Starts when the first is asked for."""
        self._address(request)
        return TensorStream(self.replicas, self._settings, request, "")

    async def ready(self) -> bool:
        return await self.replicas.ready()

    def _address(self, request: Any) -> None:
        request.model_name = self.replicas.manifest.entry
        request.model_version = ""


def _from_model(error: GrpcError, request_id: str) -> TritonError:
    known = from_status(error, request_id)
    if error.code is StatusCode.INVALID_ARGUMENT and known.failure is Failure.ENGINE:
        return TritonError(ErrorKind.INVALID_REQUEST, "the model does not take these inputs", Failure.CALLER)
    return known


class _Stream(RelayedGeneration):
    """A model that is no ensemble hears of it when its call is given up; it knows of no other stop."""

    def stop(self) -> None:
        if self._triton_call is not None and not self._answered:
            self._answered = True
            self._triton_call.cancel()


class TensorStream(FleetRelay):
    __slots__ = ()

    def _generation(self, replica: Replica, request: bytes, call: GenerationCall) -> RelayedGeneration:
        return _Stream(replica.connection, "", request, call)
