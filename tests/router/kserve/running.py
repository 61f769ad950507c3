"""A router that speaks KServe over HTTP and gRPC, with a fake Triton behind its language model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from router.app import App
from router.http.listener import Listener
from router.identity import Doorkeeper
from router.kserve import http
from router.kserve.embedding import EmbeddingOffer
from router.kserve.generation import GenerationOffer
from router.kserve.inference import Door
from router.kserve.offers import Offers
from router.kserve.relaying import TritonRelay
from router.kserve.server import KserveServer
from router.registry import ServedModel
from router.safety.guard import Safety
from router.triton_client import TritonConnection, TritonPipeline
from tests.fakes.triton_server import FakeTriton, Reply, story
from tests.router.running import EMBEDDER, MODEL, RunningRouter, running_router

MAX_MESSAGE_BYTES = 1 << 20


def usual_answer(request: Any) -> list[Reply]:
    """In pieces to who wants them."""
    inputs = zip(request.inputs, request.raw_input_contents, strict=True)
    streams = any(tensor.name == "stream" and raw == b"\x01" for tensor, raw in inputs)
    return story("Hello", " world") if streams else story("Hello world")


@dataclass
class RunningKserve:
    router: RunningRouter
    triton: FakeTriton
    door: Door
    server: KserveServer
    http_url: str
    grpc_url: str


@asynccontextmanager
async def running_kserve(safety: Safety | None = None) -> AsyncIterator[RunningKserve]:
    triton = await FakeTriton(usual_answer).start()
    connection = TritonConnection(triton.url)
    async with running_router() as router:
        pipeline = TritonPipeline(connection, "ensemble", "tensorrt_llm")
        embedder = router.service.registry.find_embedder(EMBEDDER)
        relay = TritonRelay(connection, "tensorrt_llm")
        language = GenerationOffer(ServedModel(MODEL, pipeline), "ensemble", relay, safety)
        door = Door(router.service, Offers([language, EmbeddingOffer(embedder, "embeddings")]))
        doorkeeper = Doorkeeper(router.service.tenancy, is_private=True)
        app = App(router.service, doorkeeper, http.routes(door))
        listener = Listener(app, app.refuse)
        server = KserveServer(door, doorkeeper, MAX_MESSAGE_BYTES)
        port = await listener.start("127.0.0.1", 0)
        grpc_port = await server.start("127.0.0.1", 0)
        yield RunningKserve(router, triton, door, server, f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}")
        await server.stop(1.0)
        await listener.close()
    await connection.close()
    await triton.stop()
