"""GET /health, /health/live, /health/ready, /ping and /metrics."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CONTENT_TYPE_LATEST

from router.core.actions import Action
from router.core.record import Record
from router.http.exchange import Exchange
from router.request.errors import respond_json
from router.request.permit import Permits
from router.request.routes import Route
from router.routing.models import Registry
from router.telemetry.metrics import Metrics

_CACHE_S = 0.5


async def live(exchange: Exchange, record: Record) -> None:
    """The process answers; nothing more is claimed."""
    respond_json(exchange, record, {"status": "live"})


class Ready:
    """Whether a new request would be served: main models ready in Triton, and the router not going down.

    Of the others it only tells: a broken one must not take all out of service. Once there are keys it names
    no model: whoever finds the port may ask.
    """

    def __init__(self, registry: Registry, permits: Permits) -> None:
        self._registry = registry
        self._permits = permits
        self._asking = asyncio.Lock()
        self._models: dict[str, bool] = {}
        self._is_ready = False
        self._expires_s = 0.0

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        if self._permits.draining:
            respond_json(exchange, record, {"status": "draining"}, 503)
            return
        async with self._asking:
            if time.monotonic() >= self._expires_s:
                await self._look()
                self._expires_s = time.monotonic() + _CACHE_S
        value: dict[str, object] = {"status": "ready" if self._is_ready else "not ready"}
        if not self._permits.tenancy.catalogue.has_keys:
            value["models"] = self._models
        respond_json(exchange, record, value, 200 if self._is_ready else 503)

    async def _look(self) -> None:
        lineups = self._registry.lineups
        self._models = {
            name: lineup.stable is not None and await lineup.stable.ready()
            for name, lineup in lineups.items()
        }
        self._is_ready = all(self._models[name] for name, lineup in lineups.items() if lineup.is_main)


class ShowMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        headers = [("content-type", CONTENT_TYPE_LATEST), ("x-request-id", record.request_id)]
        exchange.respond(200, await self._metrics.page(), headers)


def routes(models: Registry, permits: Permits, metrics: Metrics, metrics_open: bool) -> list[Route]:
    ready = Ready(models, permits)
    shown = ShowMetrics(metrics)
    shown_to = Action.METRICS_READ_OPENLY if metrics_open else Action.METRICS_READ
    return [
        Route("GET", "/health/live", live, "Liveness: the process answers", action=Action.HEALTH_READ),
        Route("GET", "/health/ready", ready, "Readiness: requests would be served now",
              action=Action.HEALTH_READ),
        # The names that vLLM and SageMaker ask by.
        Route("GET", "/health", ready, "As /health/ready", action=Action.HEALTH_READ),
        Route("GET", "/ping", ready, "As /health/ready", action=Action.HEALTH_READ),
        # Names and volumes of tenants are not for everybody who finds the port.
        Route("GET", "/metrics", shown, "Prometheus metrics of the router",
              answer="text/plain", action=shown_to),
    ]  # fmt: skip
