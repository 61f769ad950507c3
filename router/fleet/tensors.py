"""Any other Triton model, on several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind
from router.fleet.choosing import EXPECTED_TOKENS
from router.fleet.health import Failure
from router.fleet.pipeline import FleetRelay
from router.fleet.settings import FleetSettings
from router.fleet.single_calls import SingleCall, ask
from router.grpc.status import GrpcError, StatusCode
from router.kserve.relaying import RelayedGeneration
from router.triton_failures import TritonError, from_status

if TYPE_CHECKING:
    from router.fleet.replicas import Replica, ReplicaSet
    from router.pipeline import GenerationCall

_SETTINGS = FleetSettings()


class FleetTensors:
    """One release that takes and gives tensors, wherever it is loaded."""

    def __init__(self, replicas: ReplicaSet, settings: FleetSettings = _SETTINGS) -> None:
        self.replicas = replicas
        self._settings = settings

    async def infer(self, request: Any, timeout_s: float | None = None) -> Any:
        """The response; the model that the request names is filled in. Raises InflightError."""
        self._address(request)

        async def make(connection: SingleCall) -> Any:
            try:
                return await connection.infer_once(request, timeout_s)
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
