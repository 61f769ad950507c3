"""Loads, unloads and revives the models of one Triton server, where nobody else can."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToJson

from router.grpc.status import GrpcError
from router.grpc.target import is_private
from router.triton.client import TritonConnection
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from router.grpc.target import ClientTls

# A restricted protocol of Triton's: the prefix is Triton's own.
SECRET_HEADER = "triton-grpc-protocol-inflight"
EPOCH = "inflight_epoch"
_TIMEOUT_S = 10.0
# Weights may have to be packed first.
_LOAD_TIMEOUT_S = 900.0


class ControlError(Exception):
    """Triton did not do what was asked; it says why in its own words, which may name paths."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """`state` is READY, LOADING, UNLOADING, UNAVAILABLE, or empty for what was never loaded."""

    state: str
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        return self.state == "READY"


class TritonControl:
    """On a connection of its own: requests of clients do not need the secret, where there is one."""

    def __init__(self, url: str, secret: str = "", tls: ClientTls | None = None) -> None:
        self.can_control = bool(secret) or is_private(url, tls)
        metadata = {SECRET_HEADER: secret} if secret else None
        self._connection = TritonConnection(url, metadata=metadata, tls=tls)

    async def load(self, model: str, config_json: str | None = None) -> None:
        """Returns when it is ready; the members of an ensemble are loaded with it.

        Does nothing where neither files nor config have changed since the last load.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        if config_json is not None:
            request.parameters["config"].string_param = config_json
        answer = service_pb2.RepositoryModelLoadResponse
        await self._call("RepositoryModelLoad", request, answer, _LOAD_TIMEOUT_S)

    async def unload(self, model: str) -> None:
        """Returns at once: requests under way finish. The members of an ensemble stay loaded."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        await self._call("RepositoryModelUnload", request, service_pb2.RepositoryModelUnloadResponse)

    async def index(self) -> dict[str, ModelState]:
        """Every model that this Triton has files of; where one has several versions, a ready one counts."""
        request = service_pb2.RepositoryIndexRequest()
        answer = await self._call("RepositoryIndex", request, service_pb2.RepositoryIndexResponse)
        found: dict[str, ModelState] = {}
        for model in answer.models:
            if not (model.name in found and found[model.name].is_ready):
                found[model.name] = ModelState(model.state, model.reason)
        return found

    async def config(self, model: str) -> Any:
        """The ModelConfig that it was loaded with."""
        request = service_pb2.ModelConfigRequest(name=model)
        answer = await self._call("ModelConfig", request, service_pb2.ModelConfigResponse)
        return answer.config

    async def statistics(self, model: str) -> Any:
        """A ModelStatisticsResponse: what it has counted since the model was loaded."""
        request = service_pb2.ModelStatisticsRequest(name=model)
        return await self._call("ModelStatistics", request, service_pb2.ModelStatisticsResponse)

    async def epoch(self, model: str) -> str:
        """Which life this is; empty until it is revived for the first time."""
        return epoch_of(await self.config(model))

    async def revive(self, model: str) -> None:
        """Loads a model anew, processes and all; Triton does that only where its config has changed."""
        config = await self.config(model)
        config.parameters[EPOCH].string_value = str(time.time_ns() // 1_000_000)
        await self.load(model, MessageToJson(config, preserving_proto_field_name=True))

    async def is_alive(self) -> bool:
        try:
            await self._call("ServerLive", service_pb2.ServerLiveRequest(), service_pb2.ServerLiveResponse)
        except ControlError:
            return False
        return True

    async def close(self) -> None:
        await self._connection.close()

    async def _call(
        self, method: str, request: Any, response_type: Any, timeout_s: float = _TIMEOUT_S
    ) -> Any:
        try:
            return await self._connection.call(method, request, response_type, timeout_s)
        except GrpcError as error:
            raise ControlError(error.details or error.code.name) from None


def epoch_of(config: Any) -> str:
    parameters = config.parameters
    return str(parameters[EPOCH].string_value) if EPOCH in parameters else ""
