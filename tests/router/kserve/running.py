"""A router that speaks KServe over HTTP and gRPC, with a fake Triton behind its language model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from router.admission.gates import Gates
from router.app import App
from router.cascade.cascade import Cascade
from router.core.manifest import Kind, Manifest, entry_name, member_name
from router.core.tenant import LOCAL_CALLER
from router.http.listener import Listener
from router.kserve import http
from router.kserve.door import Door
from router.kserve.server import KserveServer
from router.request.identity import Doorkeeper
from router.routing.chat_template import ChatTemplate
from router.routing.checkpoint import CONTEXT_TOKENS
from router.routing.generation import FleetPipeline
from router.routing.models import Registry, ServedModel, lineup_of
from router.routing.replicas import Fleet, FleetSettings
from router.safety.guard import Safety
from router.telemetry.tracing.tracer import Tracer
from router.triton.server import TritonServer
from tests.fakes.triton_server import FakeTriton, Reply, story
from tests.router.running import EMBEDDER, MODEL, TEMPLATE, RunningRouter, running_router

MAX_MESSAGE_BYTES = 1 << 20


def usual_answer(request: Any) -> list[Reply]:
    """In pieces to who wants them."""
    inputs = zip(request.inputs, request.raw_input_contents, strict=True)
    streams = any(tensor.name == "stream" and raw == b"\x01" for tensor, raw in inputs)
    return story("Hello", " world") if streams else story("Hello world")


def text_release(version: int = 1) -> Manifest:
    """The one that a stack brings with it is the first."""
    if version == 1:
        members: tuple[str, ...] = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")
    else:
        steps = [
            member_name(MODEL, version, step) for step in ("preprocessing", "tensorrt_llm", "postprocessing")
        ]
        members = (*steps, entry_name(MODEL, version))
    return Manifest(MODEL, version, Kind.TEXT, members, members[1], is_built_in=version == 1)


@dataclass
class RunningKserve:
    router: RunningRouter
    registry: Registry
    fleet: Fleet
    triton: FakeTriton
    door: Door
    server: KserveServer
    http_url: str
    grpc_url: str

    def text(self, version: int = 1) -> ServedModel:
        """A release of the language model, behind the fake Triton."""
        return _text(self.fleet, version)


def _text(fleet: Fleet, version: int = 1) -> ServedModel:
    manifest = text_release(version)
    pipeline = FleetPipeline(fleet.set_of(manifest), CONTEXT_TOKENS, FleetSettings())
    return ServedModel(MODEL, pipeline, ChatTemplate(TEMPLATE), version=version, triton_name=manifest.entry)


@asynccontextmanager
async def running_kserve(
    safety: Safety | None = None,
    gates: Gates | None = None,
    tracer: Tracer | None = None,
    cascade: Cascade | None = None,
) -> AsyncIterator[RunningKserve]:
    triton = await FakeTriton(usual_answer).start()
    fleet = Fleet([TritonServer("first", triton.url)])
    async with running_router(gates=gates, tracer=tracer, safety=safety, cascade=cascade) as router:
        parts, registry = router.parts, router.parts.models
        registry.publish({MODEL: lineup_of(_text(fleet)), EMBEDDER: registry.lineups[EMBEDDER]})
        door = Door(registry, parts.answers)
        doorkeeper = Doorkeeper(parts.tenancy, is_private=True, keyless=LOCAL_CALLER)
        app = App(parts, doorkeeper, http.routes(door))
        listener = Listener(app, app.refuse)
        server = KserveServer(door, doorkeeper, parts.accounts, MAX_MESSAGE_BYTES)
        port = await listener.start("127.0.0.1", 0)
        grpc_port = await server.start("127.0.0.1", 0)
        http_url, grpc_url = f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
        yield RunningKserve(router, registry, fleet, triton, door, server, http_url, grpc_url)
        await server.stop(1.0)
        await listener.close()
    await fleet.servers[0].close()
    await triton.stop()
