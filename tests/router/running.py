"""A whole router on a free port, with a fake pipeline behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from router.answering import Service
from router.app import App
from router.http.connection import Limits
from router.http.listener import Listener
from router.metrics import Metrics
from router.prompting import ChatTemplate
from router.registry import Registry, ServedModel
from router.ticket import TicketDesk
from tests.fakes.pipeline import FakePipeline

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MODEL = "tiny"
BARE_MODEL = "no-template"
QUESTION = [{"role": "user", "content": "hi"}]


@dataclass
class RunningRouter:
    pipeline: FakePipeline
    desk: TicketDesk
    metrics: Metrics
    listener: Listener
    port: int
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def chat(self, **fields: object) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": QUESTION, **fields}
        )

    async def complete(self, **fields: object) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi", **fields})

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Waits for something that happens shortly after an answer."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, "it did not happen in time"
            await asyncio.sleep(0.01)

    async def until_async(
        self, value: Callable[[], Awaitable[object]], expected: object, timeout_s: float = 5.0
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while await value() != expected:
            assert time.monotonic() < deadline_s, f"it did not become {expected} in time"
            await asyncio.sleep(0.02)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running_router(limits: Limits | None = None, sweep_s: float = 0.05) -> AsyncIterator[RunningRouter]:
    pipeline = FakePipeline()
    metrics = Metrics()
    desk = TicketDesk(metrics)
    registry = Registry(
        [ServedModel(MODEL, pipeline, ChatTemplate(TEMPLATE)), ServedModel(BARE_MODEL, pipeline, None)]
    )
    app = App(Service(registry, desk, metrics))
    listener = Listener(app, app.refuse, limits, sweep_s)
    port = await listener.start("127.0.0.1", 0)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=10
    ) as http:
        yield RunningRouter(pipeline, desk, metrics, listener, port, http)
    await listener.close()
