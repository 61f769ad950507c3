"""Finds the endpoint for a request, and makes sure that each one is answered, counted and logged."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from router.api import description, health, models
from router.api.chat import ChatCompletions
from router.api.completions import Completions
from router.api.errors import HttpError, error_body, write_error
from router.record import Record, new_request_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from router.answering import Service
    from router.http.exchange import Exchange, Refusal

    Endpoint = Callable[[Exchange, Record], Awaitable[None]]

log = logging.getLogger(__name__)

_ID_PREFIXES = {"/v1/chat/completions": "chatcmpl", "/v1/completions": "cmpl"}
_UNKNOWN = "unknown"
_QUIET = ("/health/live", "/health/ready", "/metrics")


class App:
    """All endpoints, by path and method."""

    def __init__(self, service: Service) -> None:
        self._desk = service.desk
        self._metrics = service.metrics
        self._routes: dict[str, tuple[str, Endpoint]] = {
            "/v1/chat/completions": ("POST", ChatCompletions(service)),
            "/v1/completions": ("POST", Completions(service)),
            "/v1/models": ("GET", models.ListModels(service.registry)),
            "/health/live": ("GET", health.live),
            "/health/ready": ("GET", health.Ready(service.registry, service.desk)),
            "/metrics": ("GET", health.ShowMetrics(service.metrics)),
            "/openapi.json": ("GET", description.show_openapi),
            "/docs": ("GET", description.show_docs),
        }
        self._show_model: tuple[str, Endpoint] = ("GET", models.ShowModel(service.registry))

    async def __call__(self, exchange: Exchange) -> None:
        route = self._route(exchange.request.path)
        record = Record(route, new_request_id(_ID_PREFIXES.get(route, "req")))
        if self._desk.draining:
            exchange.keep_alive = False
        try:
            await self._endpoint(exchange, route)(exchange, record)
        except (HttpError, InflightError) as error:
            write_error(exchange, record, error)
        except Exception as error:
            log.exception("%s failed", record.request_id)
            write_error(exchange, record, error)
        finally:
            self._account_for(record, exchange.status)

    def refuse(self, status: int, message: str) -> Refusal:
        """Headers and body of the answer to bytes that did not become a request."""
        record = Record(_UNKNOWN, new_request_id("req"))
        self._account_for(record, status)
        headers = [("content-type", "application/json"), ("x-request-id", record.request_id)]
        return headers, error_body(status, message)

    def _account_for(self, record: Record, status: int) -> None:
        self._metrics.answered(record, status)
        level = logging.DEBUG if record.route in _QUIET else logging.INFO
        log.log(level, "%s", record.describe(status, time.monotonic()))

    def _route(self, path: str) -> str:
        """The name of a path in logs and metrics, of which there are only so many."""
        if path in self._routes:
            return path
        return "/v1/models/{id}" if path.startswith(models.PREFIX) else _UNKNOWN

    def _endpoint(self, exchange: Exchange, route: str) -> Endpoint:
        request = exchange.request
        if route == _UNKNOWN:
            shown = request.path if request.path.isprintable() and len(request.path) <= 100 else "this path"
            raise HttpError(404, f"there is nothing at {shown}")
        method, endpoint = self._routes.get(route, self._show_model)
        if request.method != method and not (request.method == "HEAD" and method == "GET"):
            raise HttpError(405, f"this path takes {method} only", (("allow", method),))
        if method == "POST":
            _check_content(request.headers)
        return endpoint


def _check_content(headers: dict[str, str]) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "send the body as JSON, with Content-Type: application/json")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "compressed bodies are not accepted")
