"""Stands in for Triton's gRPC port: streams scripted responses and honours `stop` by request id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import (
    service_pb2,
    service_pb2_grpc,
)

from python_backend.wire import codec
from python_backend.wire.engine_report import CONFIGURE, ENGINE_REPORT, EngineReport


@dataclass
class Reply:
    """One response of the ensemble; `error` makes it an error. Before it come `pause_s`, and `after`."""

    text: str = ""
    tokens: int = 1
    prompt_tokens: int = 5
    finish: str | None = None
    final: bool = False
    error: str = ""
    pause_s: float = 0.0
    after: asyncio.Event | None = None
    row: int | None = None
    bare: bool = False  # no outputs at all
    context: bytes = b""


Script = Callable[[Any], Sequence[Reply]]


def story(*texts: str, finish: str | None = "end_id") -> list[Reply]:
    last = len(texts) - 1
    return [
        Reply(text, finish=finish if index == last else None, final=index == last)
        for index, text in enumerate(texts)
    ]


@dataclass
class FakeTriton:
    """`deaf_to_stops` is how many stops of each request are lost; `began` is set by the first request.

    `report` is what the engine says of itself, if it does, after `report_pause_s`; `configured` what it was
    told, which it refuses with `refusal`.
    """

    script: Script = field(default=lambda request: story("Hello", " world"))
    ready: bool = True
    deaf_to_stops: int = 0
    requests: list[Any] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    report: EngineReport | None = None
    report_pause_s: float = 0.0
    reports: int = 0
    configured: list[Any] = field(default_factory=list)
    refusal: str = ""
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    metadata: list[dict[str, str]] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    async def start(self) -> FakeTriton:
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(self), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def stop(self, grace_s: float | None = None) -> None:
        await self._server.stop(grace_s)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped base
    def __init__(self, fake: FakeTriton) -> None:
        self._fake = fake

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=self._fake.ready)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Requests of one stream run side by side, as they do in Triton."""
        self._fake.metadata.append(dict(context.invocation_metadata()))
        messages: asyncio.Queue[Any] = asyncio.Queue()
        taking = asyncio.ensure_future(self._take_all(requests, messages))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            taking.cancel()

    async def _take_all(self, requests: AsyncIterator[Any], messages: asyncio.Queue[Any]) -> None:
        running = []
        try:
            async for request in requests:
                running.append(asyncio.ensure_future(self._answer(request, messages)))
            await asyncio.gather(*running)
            messages.put_nowait(None)
        finally:
            for task in running:
                task.cancel()

    async def _answer(self, request: Any, messages: asyncio.Queue[Any]) -> None:
        if any(tensor.name == "stop" for tensor in request.inputs):
            messages.put_nowait(await self._take_order(request))
            return
        async for message in self._generate(request):
            messages.put_nowait(message)

    async def _take_order(self, request: Any) -> Any:
        """A stop, unless it is another order; an engine without a report takes each of them for a stop."""
        fake = self._fake
        response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.parameters["triton_final_response"].bool_param = True
        if fake.report is None or not request.parameters:
            self._take_stop(request.id)
        elif CONFIGURE in request.parameters:
            fake.configured.append(json.loads(request.parameters[CONFIGURE].string_param))
            if fake.refusal:
                return service_pb2.ModelStreamInferResponse(error_message=fake.refusal)
        else:
            fake.reports += 1
            await asyncio.sleep(fake.report_pause_s)
            response.outputs.add(name=ENGINE_REPORT, datatype="BYTES", shape=[1, 1])
            response.raw_output_contents.append(codec.encode("BYTES", [fake.report.to_text()]))
        return service_pb2.ModelStreamInferResponse(infer_response=response)

    def _take_stop(self, request_id: str) -> None:
        self._fake.stops.append(request_id)
        heard = self._fake.stops.count(request_id) > self._fake.deaf_to_stops
        if heard and request_id in self._fake.running:
            self._fake.running[request_id].set()

    async def _generate(self, request: Any) -> AsyncIterator[Any]:
        fake = self._fake
        fake.requests.append(request)
        fake.began.set()
        stopped = fake.running[request.id] = asyncio.Event()
        try:
            for reply in fake.script(request):
                if reply.pause_s:
                    await _pause(stopped, reply.pause_s)
                if reply.after is not None:
                    await reply.after.wait()
                if stopped.is_set():
                    yield _message(request, Reply(finish="cancelled", tokens=0, final=True))
                    return
                yield _message(request, reply)
        finally:
            del fake.running[request.id]


async def _pause(stopped: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stopped.wait(), seconds)
    except asyncio.TimeoutError:
        return


def _message(request: Any, reply: Reply) -> Any:
    if reply.error:
        return service_pb2.ModelStreamInferResponse(error_message=reply.error)
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    outputs: list[tuple[str, str, list[Any]]] = [
        ("text_output", "BYTES", [reply.text]),
        ("num_input_tokens", "INT32", [reply.prompt_tokens]),
        ("num_output_tokens", "INT32", [reply.tokens]),
    ]
    if reply.finish is not None:
        outputs.append(("finish_reason", "BYTES", [reply.finish]))
    if reply.context:
        outputs.append(("out_context_phase_params", "UINT8", list(reply.context)))
    if reply.row is not None:
        outputs.append(("batch_index", "INT32", [reply.row]))
    for name, dtype, values in [] if reply.bare else outputs:
        response.outputs.add(name=name, datatype=dtype, shape=[1])
        response.raw_output_contents.append(codec.encode(dtype, values))
    response.parameters["triton_final_response"].bool_param = reply.final
    return service_pb2.ModelStreamInferResponse(infer_response=response)
