"""Runs a router: its ports, its signals, and a drain that loses no request."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.app import App
from router.assembly import Assembly, run_until_closed
from router.content.batches.runner import BatchRunner, BatchSettings
from router.core.address import is_loopback
from router.core.tenant import LOCAL_CALLER
from router.health_port import HealthDoor
from router.http.connection import Limits
from router.http.listener import Listener
from router.kserve import http
from router.kserve.door import Door
from router.kserve.server import KserveServer
from router.request.identity import Doorkeeper
from router.request.permit import Permits
from router.request.web_pages import WebPages
from router.settings import check_reachable
from router.startup_check import load_certificates, tenancy_settings_of
from router.store.retention import FIGURES, FIGURES_DAYS, HISTORY, KEPT, Retention
from router.telemetry.loop_watch import LoopWatch
from router.tenants.tenancy import Tenancy, opening_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from router.parts import Parts
    from router.settings import Settings

log = logging.getLogger(__name__)

_SWITCH_S = 0.001


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal cuts the drain short."""
    stopping = _on_signals()
    async with open_tenancy(settings) as tenancy:
        check_reachable(settings.host, tenancy.catalogue.has_keys)
        await _serve(settings, tenancy, stopping)
    log.info("stopped")


async def _serve(settings: Settings, tenancy: Tenancy, stopping: asyncio.Event) -> None:
    """Everything that is opened here is closed in the opposite order, whatever happens in between."""
    async with AsyncExitStack() as closing:
        parts = await Assembly(settings, tenancy, closing).start()
        await parts.tokenizers.load()
        runner = await _open_doors(settings, parts, closing)
        await stopping.wait()
        stopping.clear()
        draining = drain(parts.permits, settings.drain_timeout_s, stopping, settings.stop_timeout_s)
        await asyncio.gather(draining, runner.stop())


async def _open_doors(settings: Settings, parts: Parts, closing: AsyncExitStack) -> BatchRunner:
    """The HTTP and gRPC ports, and the batches that are fed to them."""
    certificates = load_certificates(settings)
    for days, kept in (
        (settings.retention_days, KEPT),
        (settings.history_days, HISTORY),
        (FIGURES_DAYS, FIGURES),
    ):
        run_until_closed(closing, Retention(parts.tenancy.store, days, kept).keep_deleting())
    if certificates is not None:
        run_until_closed(closing, certificates.watch())
    pages = WebPages(frozenset(settings.allowed_hosts), frozenset(settings.cors_origins))
    doorkeeper = Doorkeeper(parts.tenancy, is_loopback(settings.host), pages, LOCAL_CALLER)
    door = Door(parts.models, parts.answers)
    app = App(parts, doorkeeper, http.routes(door, settings.max_body_bytes))
    if settings.health_port:
        health = Listener(HealthDoor(app), app.refuse)
        closing.push_async_callback(health.close)
        await health.start("127.0.0.1", settings.health_port)
    limits = Limits(max_body_bytes=settings.max_body_bytes)
    listener = Listener(app, app.refuse, limits, body_terms=app.body_terms)
    closing.push_async_callback(listener.close)
    tls = None if certificates is None else certificates.context()
    port = await listener.start(settings.host, settings.port, tls)
    if settings.grpc_port >= 0:
        credentials = None if certificates is None else certificates.grpc_credentials()
        grpc_server = KserveServer(door, doorkeeper, parts.accounts, settings.max_body_bytes, credentials)
        closing.push_async_callback(grpc_server.stop)
        grpc_port = await grpc_server.start(settings.host, settings.grpc_port)
        log.info("listening for Triton's gRPC clients on %s:%d", settings.host, grpc_port)
    batch_settings = BatchSettings(settings.batch_concurrency, settings.max_body_bytes)
    runner = BatchRunner(parts.store, parts.models, parts.tenancy.keyring, app, batch_settings)
    await runner.start()
    watch = LoopWatch(parts.metrics.loop_stalls)
    closing.callback(watch.stop)
    watch.start()
    # What threads do for the event loop must not keep it waiting for longer than this.
    sys.setswitchinterval(_SWITCH_S)
    # All that is there now stays: the collector need not look through it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    scheme = "http" if tls is None else "https"
    tritons = ", ".join(server.url for server in settings.triton_servers)
    log.info("listening on %s://%s:%d, Triton at %s", scheme, settings.host, port, tritons)
    return runner


@asynccontextmanager
async def open_tenancy(settings: Settings) -> AsyncIterator[Tenancy]:
    """Keys and limits are known before the first request, and all usage is on disk after the last."""
    with opening_store():
        tenancy = Tenancy(tenancy_settings_of(settings))
        await asyncio.to_thread(tenancy.start)
    upkeep = asyncio.get_running_loop().create_task(tenancy.keep_leases())
    try:
        yield tenancy
    finally:
        upkeep.cancel()
        await asyncio.to_thread(tenancy.stop)


def _on_signals() -> asyncio.Event:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked


async def drain(permits: Permits, timeout_s: float, hurry: asyncio.Event, stop_timeout_s: float) -> None:
    """Refuses new requests, lets the running ones finish, and cuts those that take too long."""
    permits.drain()
    log.info("draining %d requests", permits.open_count)
    waits = [asyncio.ensure_future(permits.empty(timeout_s)), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if permits.open_count:
        log.warning("cancelling %d requests", permits.open_count)
        permits.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "the server is shutting down"))
        await permits.empty(2 * stop_timeout_s)
