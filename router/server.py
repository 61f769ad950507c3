"""Builds the router out of its parts, runs it, and takes it down without losing a request."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.gates import AdmissionSettings, TenantShares, build_gates
from router.app import App
from router.assembly import go_on, keep_gates, keep_releases, keep_sharing
from router.content.batches.runner import BatchRunner, BatchSettings
from router.content.documents.documents import Documents
from router.content.documents.uploads import UploadedFiles
from router.content.files.model import FileLimits
from router.control.objectives.snapshot import ObjectiveBook
from router.control.peers.peer_sync import open_board
from router.control.releases.arms import ArmRecorder
from router.control.releases.shadow import Shadows
from router.control.releases.shadow_figures import ShadowRecorder
from router.core.address import is_loopback
from router.health_port import HealthDoor
from router.http.connection import Limits
from router.http.listener import Listener
from router.http.tls import Certificates, tls_files
from router.kserve import http
from router.kserve.door import Door
from router.kserve.server import KserveServer
from router.parts import Parts
from router.request.answer import Answers
from router.request.identity import Doorkeeper
from router.request.permit import Permits
from router.routing.models import Registry
from router.routing.replicas import Fleet
from router.safety.load import load_safety
from router.settings import check_reachable
from router.store.access import StoreAccess
from router.store.retention import Retention
from router.telemetry.accounts import RequestAccounts
from router.telemetry.metrics import Metrics
from router.telemetry.prompt_log import PromptLog
from router.telemetry.tracing.setup import check_tracing, open_tracer
from router.tenants.installation import open_store, opening_store, places
from router.tenants.lookup import has_keys
from router.tenants.tenancy import Tenancy, TenancySettings
from router.triton.server import TritonServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from router.request.job import Observer
    from router.settings import PlacedTuning, Settings

log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal cuts the drain short."""
    stopping = _on_signals()
    async with open_tenancy(settings) as tenancy:
        check_reachable(settings.host, tenancy.has_keys)
        await _serve(settings, tenancy, stopping)
    log.info("stopped")


async def _serve(settings: Settings, tenancy: Tenancy, stopping: asyncio.Event) -> None:
    """Everything that is opened here is closed in the opposite order, whatever happens in between."""
    async with AsyncExitStack() as closing:
        store = StoreAccess(tenancy.store)
        closing.callback(store.close)
        prompt_log = open_prompt_log(settings)
        if prompt_log is not None:
            closing.push_async_callback(asyncio.to_thread, prompt_log.stop)
        fleet = _fleet(settings, closing)
        registry = Registry()
        parts = _parts(settings, tenancy, store, registry, prompt_log, fleet, closing)
        parts.metrics.watch_fleet(fleet)
        parts.metrics.watch_releases(registry)
        await keep_releases(settings, parts, fleet, closing)
        keep_gates(parts, fleet, closing)
        await keep_sharing(settings, parts, closing)
        runner = await _open_doors(settings, parts, closing)
        await stopping.wait()
        stopping.clear()
        draining = drain(parts.permits, settings.drain_timeout_s, stopping, settings.stop_timeout_s)
        await asyncio.gather(draining, runner.stop())


def _fleet(settings: Settings, closing: AsyncExitStack) -> Fleet:
    servers = []
    for number, each in enumerate(settings.triton_servers):
        server = TritonServer(f"triton-{number}", each.url, each.secret, settings.stop_timeout_s)
        closing.push_async_callback(server.close)
        servers.append(server)
    return Fleet(servers)


def _parts(
    settings: Settings,
    tenancy: Tenancy,
    store: StoreAccess,
    models: Registry,
    prompt_log: PromptLog | None,
    fleet: Fleet,
    closing: AsyncExitStack,
) -> Parts:
    names = [*(model.name for model in settings.models), *(model.name for model in settings.embedders)]
    metrics = Metrics()
    metrics.watch(tenancy)
    objectives = ObjectiveBook(store)
    shares = TenantShares(tenancy.catalogue.share_of)
    admission = AdmissionSettings(settings.admission, settings.admission_places)
    gates = build_gates(admission, fleet, shares, objectives.of, metrics.admission)
    permits = Permits(tenancy, gates, metrics)
    arms = ArmRecorder(store)
    shadows = Shadows(models, permits, metrics, recorder=ShadowRecorder(store), gates=gates)
    safety = load_safety(settings.safety_rules, settings.safety_check, settings.safety_models, names)
    tracer = open_tracer(settings, metrics, version("inflight"), closing)
    observers: list[Observer] = [arms, shadows, *([] if prompt_log is None else [prompt_log])]
    return Parts(
        models=models,
        permits=permits,
        answers=Answers(permits, observers, [] if safety is None else [safety]),
        accounts=RequestAccounts(metrics, tracer),
        metrics=metrics,
        tenancy=tenancy,
        store=store,
        # One for all: how many PDFs are read at once is bounded there.
        documents=Documents(UploadedFiles(store)),
        file_limits=FileLimits(settings.max_file_bytes, settings.max_files_bytes_per_tenant),
        gates=gates,
        arms=arms,
        shadows=shadows,
        objectives=objectives,
        prompt_log=prompt_log,
    )


async def _open_doors(settings: Settings, parts: Parts, closing: AsyncExitStack) -> BatchRunner:
    """The HTTP and gRPC ports, and what goes on behind them by itself."""
    certificates = load_certificates(settings)
    go_on(closing, Retention(parts.tenancy.store, settings.retention_days).keep_deleting())
    if certificates is not None:
        go_on(closing, certificates.watch())
    doorkeeper = Doorkeeper(parts.tenancy, is_loopback(settings.host))
    door = Door(parts.models, parts.answers)
    app = App(parts, doorkeeper, http.routes(door))
    if settings.health_port:
        health = Listener(HealthDoor(app), app.refuse)
        closing.push_async_callback(health.close)
        await health.start("127.0.0.1", settings.health_port)
    limits = Limits(max_body_bytes=settings.max_body_bytes)
    listener = Listener(app, app.refuse, limits, upload_limit=app.upload_limit)
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
        tenancy = Tenancy(places_of(settings))
        await asyncio.to_thread(tenancy.start)
    upkeep = asyncio.get_running_loop().create_task(tenancy.keep_leases())
    try:
        yield tenancy
    finally:
        upkeep.cancel()
        await asyncio.to_thread(tenancy.stop)


def check(settings: PlacedTuning) -> None:
    """Whether a router with these settings could start, as far as that can be told beforehand."""
    with opening_store(), open_store(places_of(settings)) as store, store.read() as connection:
        check_reachable(settings.host, has_keys(connection))
    load_certificates(settings)
    check_tracing(settings)
    load_safety(settings.safety_rules, settings.safety_check, (), ())
    if settings.redis_url:
        open_board(settings.redis_url, "")


def load_certificates(settings: PlacedTuning) -> Certificates | None:
    files = tls_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return None if files is None else Certificates(files)


def open_prompt_log(settings: PlacedTuning) -> PromptLog | None:
    if not settings.prompt_log_dir:
        return None
    opened = PromptLog(Path(settings.prompt_log_dir), settings.prompt_log_days)
    opened.start()
    return opened


def _on_signals() -> asyncio.Event:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked


def places_of(settings: PlacedTuning) -> TenancySettings:
    return places(
        Path(settings.state_dir or settings.data_dir),
        settings.store_url,
        settings.pepper_file,
        settings.max_spool_bytes,
    )


async def drain(permits: Permits, timeout_s: float, hurry: asyncio.Event, stop_timeout_s: float) -> None:
    """Refuses new requests, lets the running ones finish, and cuts those that take too long."""
    permits.drain()
    log.info("draining %d requests", permits.open_count)
    waits = [asyncio.ensure_future(permits.empty(timeout_s)), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if permits.open_count:
        log.warning("cutting %d requests", permits.open_count)
        permits.cut_all(lambda: InflightError(ErrorKind.OVERLOADED, "the server is shutting down"))
        await permits.empty(2 * stop_timeout_s)
