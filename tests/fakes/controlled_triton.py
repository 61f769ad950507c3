"""Stands in for a Triton server whose models can be loaded, die and freeze."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from router.triton.control import SECRET_HEADER

SECRET = "s3cret"
UNHEALTHY = (
    "Failed to process the request(s) for model instance '{0}_0_0', message: "
    "Stub process '{0}_0_0' is not healthy."
)


@dataclass
class FakeModel:
    """`dead` says so after a moment, `frozen` says nothing, `slow_s` comes before each answer."""

    loaded: bool = True
    dead: bool = False
    frozen: bool = False
    slow_s: float = 0.0
    epoch: str = ""
    loads: int = 0
    pings: int = 0
    load_error: str = ""
    load_s: float = 0.0
    stays_dead: bool = False  # whatever is done about it
    refusal: str = ""


@dataclass
class ControlledTriton:
    models: dict[str, FakeModel] = field(default_factory=dict)
    frozen: bool = False  # Triton itself
    port: int = 0
    requests: list[Any] = field(default_factory=list)

    async def start(self) -> ControlledTriton:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(self), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        await self._server.stop(None)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped base
    def __init__(self, fake: ControlledTriton) -> None:
        self._fake = fake

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        if self._fake.frozen:
            await asyncio.Event().wait()
        model = self._fake.models.get(request.name)
        return service_pb2.ModelReadyResponse(ready=model is not None and model.loaded)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        return await self._answer(request, context)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            try:
                answer = await self._answer(request, None)
            except RuntimeError as error:
                yield service_pb2.ModelStreamInferResponse(error_message=str(error))
            else:
                yield service_pb2.ModelStreamInferResponse(infer_response=answer)

    async def _answer(self, request: Any, context: Any) -> Any:
        self._fake.requests.append(request)
        model = self._fake.models[request.model_name]
        model.pings += 1
        await asyncio.sleep(model.slow_s)
        if model.frozen or self._fake.frozen:
            await asyncio.Event().wait()
        if model.dead or model.refusal:
            text = UNHEALTHY.format(request.model_name) if model.dead else model.refusal
            if context is None:
                raise RuntimeError(text)
            await context.abort(grpc.StatusCode.INTERNAL, text)
        return service_pb2.ModelInferResponse(model_name=request.model_name)

    # What needs the secret

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        await self._admit(context)
        model = self._fake.models.get(request.model_name)
        if model is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"failed to load '{request.model_name}'")
            raise AssertionError
        model.loads += 1
        if model.load_error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, model.load_error)
        await asyncio.sleep(model.load_s)
        config = json.loads(request.parameters["config"].string_param or "{}")
        epoch = config.get("parameters", {}).get("inflight_epoch", {}).get("string_value", "")
        if epoch != model.epoch and not model.stays_dead:
            model.dead = model.frozen = False
        model.epoch, model.loaded = epoch, True
        return service_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        await self._admit(context)
        self._fake.models[request.model_name].loaded = False
        return service_pb2.RepositoryModelUnloadResponse()

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        await self._admit(context)
        answer = service_pb2.RepositoryIndexResponse()
        for name, model in self._fake.models.items():
            if model.loaded:
                answer.models.add(name=name, version="1", state="READY")
                answer.models.add(name=name, version="2", state="UNAVAILABLE", reason="unloaded")
            else:
                answer.models.add(name=name)
        return answer

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        await self._admit(context)
        model = self._fake.models.get(request.name)
        if model is None or not model.loaded:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model '{request.name}'")
            raise AssertionError
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = request.name
        answer.config.max_batch_size = 64
        if model.epoch:
            answer.config.parameters["inflight_epoch"].string_value = model.epoch
        return answer

    async def _admit(self, context: Any) -> None:
        if dict(context.invocation_metadata()).get(SECRET_HEADER) != SECRET:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")
