"""Builds the router out of its parts, runs it, and takes it down without losing a request."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.answering import Service
from router.app import App
from router.http.connection import Limits
from router.http.listener import Listener
from router.metrics import Metrics
from router.prompting import load_template
from router.registry import Registry, ServedModel
from router.sampling_defaults import load_sampling_defaults
from router.ticket import TicketDesk
from router.triton_client import TritonConnection, TritonPipeline

if TYPE_CHECKING:
    from router.settings import ModelSettings, Settings

log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal cuts the drain short."""
    triton = TritonConnection(settings.triton_grpc_url, settings.stop_timeout_s)
    models = [_served(model, triton) for model in settings.models]
    metrics = Metrics()
    desk = TicketDesk(metrics)
    service = Service(Registry(models), desk, metrics)
    app = App(service)
    listener = Listener(app, app.refuse, Limits(max_body_bytes=settings.max_body_bytes))
    stopping = _on_signals()
    port = await listener.start(settings.host, settings.port)
    log.info("listening on http://%s:%d, Triton at %s", settings.host, port, settings.triton_grpc_url)
    await stopping.wait()
    stopping.clear()
    await drain(desk, settings.drain_timeout_s, stopping, settings.stop_timeout_s)
    await listener.close()
    await triton.close()
    log.info("stopped")


def _served(model: ModelSettings, triton: TritonConnection) -> ServedModel:
    template = load_template(Path(model.checkpoint_dir))
    if template is None:
        log.warning("%s has no chat template: it answers /v1/completions only", model.name)
    pipeline = TritonPipeline(triton, model.pipeline, model.engine)
    return ServedModel(model.name, pipeline, template, load_sampling_defaults(Path(model.checkpoint_dir)))


def _on_signals() -> asyncio.Event:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked


async def drain(desk: TicketDesk, timeout_s: float, hurry: asyncio.Event, stop_timeout_s: float) -> None:
    """Refuses new requests, lets the running ones finish, and cuts those that take too long."""
    desk.drain()
    log.info("draining %d requests", desk.open_count)
    waits = [asyncio.ensure_future(desk.empty(timeout_s)), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if desk.open_count:
        log.warning("cutting %d requests", desk.open_count)
        desk.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "the server is shutting down"))
        await desk.empty(2 * stop_timeout_s)
