"""Embeddings and tensors from a model on several servers: the first replica that answers."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import Failure
from router.grpc.status import GrpcError, StatusCode
from router.routing.generation import FleetRelay
from router.routing.replay import is_releases_fault, may_go_on
from router.routing.replica_choice import EXPECTED_TOKENS
from router.routing.replicas import Failed, FleetSettings, to_avoid
from router.triton.client import RelayedGeneration, read_once
from router.triton.embeddings import TritonEmbedder
from router.triton.failures import UNAVAILABLE, TritonError, cut_error, from_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from router.core.embedding import EmbeddingAnswer, EmbeddingCall
    from router.core.generation import GenerationCall
    from router.grpc.call import Call
    from router.routing.replicas import Replica, ReplicaSet

Answer = TypeVar("Answer")


class SingleCall:
    """One ModelInfer on one replica, for which it counts as long as it is under way.

    `lost_attempts` is how often the release failed the same request before.
    """

    def __init__(self, replica: Replica, tokens: int, began_s: float, lost_attempts: int = 0) -> None:
        self.outstanding_tokens = 0
        self.lost_attempts = lost_attempts
        self._began_s = began_s
        self.replica = replica
        self._tokens = tokens
        self._call: Call | None = None
        self._is_cut = False

    async def infer_once(self, request: Any, timeout_s: float | None = None) -> Any:
        """Raises GrpcError; TritonError where it was given up."""
        replica = self.replica
        replica.began(self, self._tokens, self._began_s)
        call = replica.connection.begin_once(request, timeout_s, partial(replica.ended, self))
        self._call = call
        try:
            return await read_once(call)
        except GrpcError:
            if self._is_cut:
                raise cut_error() from None
            raise

    async def ready(self, model: str) -> bool:
        return await self.replica.connection.ready(model)

    def give_up(self, reason: str) -> None:
        self._is_cut = True
        if self._call is not None:
            self._call.cancel()


async def ask(
    replicas: ReplicaSet,
    settings: FleetSettings,
    tokens: int,
    make: Callable[[SingleCall], Awaitable[Answer]],
) -> Answer:
    """What `make` makes of a call, on the first replica that answers it; raises InflightError."""
    replicas.budget.requested()
    failed: Failed = ()
    attempts = unsent = lost = 0
    while True:
        replica = await replicas.find(None, to_avoid(failed), settings.revive_wait_s)
        if replica is None:
            raise InflightError(ErrorKind.ENGINE_FAILED, UNAVAILABLE)
        attempts += 1
        if attempts > 1:
            replicas.retries += 1
        began_s = time.monotonic()
        try:
            answer = await make(SingleCall(replica, tokens, began_s, lost))
        except TritonError as error:
            replica.failed(error.failure, time.monotonic(), began_s)
            lost += is_releases_fault(error.failure, replica.health.is_reviving)
            unsent += not error.sent
            may = may_go_on(error.failure, attempts - unsent)
            if not (may and (not error.sent or replicas.budget.take())):
                raise
            if error.failure is not Failure.CUT:
                failed += ((replica, began_s),)
        else:
            replica.answered(time.monotonic(), began_s)
            return answer


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
            connection.replica.read(answer.tokens)
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
        return TritonError(
            ErrorKind.INVALID_REQUEST, "the model does not accept these inputs", Failure.CALLER
        )
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
