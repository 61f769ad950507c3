"""Finds the endpoint for a request, and makes sure that each one is answered, counted and logged."""

from __future__ import annotations

import logging
import time
from itertools import chain
from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from router.admin import health, objectives, openapi, releases, tenants, tuning
from router.core.record import Record, RequestLine, new_request_id
from router.core.stages import HEADER as DEADLINE
from router.core.stages import read_deadline
from router.core.tenant import Scope
from router.openai import batches, chat, completions, conversations, embeddings, files, models, responses
from router.request.decoding import invalid
from router.request.errors import HttpError, error_body, shaped_for, write_error
from router.request.routes import RouteTable
from router.telemetry.logs import OWN_WORDS, speaker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from python_backend.wire.tiers import Tier
    from router.core.tenant import Caller
    from router.http.exchange import Exchange, Refusal
    from router.request.identity import Doorkeeper
    from router.request.routes import Route
    from router.request.service import Service

log = logging.getLogger(__name__)

_UNKNOWN = "unknown"
_QUIET = ("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready", "/metrics")
_WITH_BODY = ("POST", "PUT", "PATCH")


def all_routes(service: Service) -> list[Route]:
    """Everything that is served over HTTP, but for its own description."""
    return [
        *chat.routes(service),
        *completions.routes(service),
        *embeddings.routes(service),
        *responses.routes(service),
        *conversations.routes(service),
        *models.routes(service),
        *files.routes(service),
        *batches.routes(service),
        *health.routes(service),
        *tenants.routes(service),
        *releases.routes(service),
        *objectives.routes(service),
        *tuning.routes(service),
    ]


class App:
    """All endpoints, by path and method."""

    def __init__(self, service: Service, doorkeeper: Doorkeeper, routes: Iterable[Route] = ()) -> None:
        self._desk = service.desk
        self._metrics = service.metrics
        self._tracer = service.tracer
        self._doorkeeper = doorkeeper
        self._max_upload_bytes = service.file_limits.max_upload_bytes
        own = [*all_routes(service), *routes]
        self._table = RouteTable(chain(own, openapi.routes(own)))

    async def __call__(self, exchange: Exchange) -> None:
        await self.serve(exchange)

    async def serve(
        self, exchange: Exchange, caller: Caller | None = None, tier: Tier | None = None
    ) -> Record:
        """Answers one request; with a caller, one from inside the router in the name of that caller."""
        found = self._table.find(exchange.request.path)
        route = None if found is None else _by_method(found[0], exchange.request.method)
        record = _new_record(found, route)
        speaker.set(record)
        if self._tracer is not None and record.route not in _QUIET:
            named = "" if found is None else record.route
            record.trace = self._tracer.begin_http(exchange.request.method, named, exchange.request.headers)
        if tier is not None:
            record.tier, record.is_tier_given = tier, True
        if self._desk.draining:
            exchange.keep_alive = False
        try:
            await self._answer(exchange, record, found, route, caller)
        except (HttpError, InflightError) as error:
            write_error(exchange, record, error)
        except RecursionError:  # what could just be read may still be too deep to be written
            write_error(exchange, record, invalid("the JSON is nested too deeply"))
        except Exception as error:
            log.exception("%s failed", record.request_id)
            write_error(exchange, record, error)
        finally:
            self._account_for(record, exchange.status)
        return record

    async def _answer(
        self,
        exchange: Exchange,
        record: Record,
        found: tuple[dict[str, Route], dict[str, str]] | None,
        route: Route | None,
        caller: Caller | None,
    ) -> None:
        request = exchange.request
        if found is None:
            shown = request.path if request.path.isprintable() and len(request.path) <= 100 else "this path"
            raise HttpError(404, f"there is nothing at {shown}")
        if route is None:
            allowed = ", ".join(found[0])
            raise HttpError(405, f"this path takes {allowed} only", (("allow", allowed),))
        if caller is not None:
            record.caller = caller
        elif (scope := self._doorkeeper.scope_for(route.scope, route.scope_in_public)) is not None:
            record.caller = self._doorkeeper.identify(request.headers.get("authorization"), scope)
        if route.takes and request.method in _WITH_BODY:
            _check_content(request.headers, route.takes)
        record.values = found[1]
        record.user = record.caller.user.id
        record.pinned_release = request.headers.get("x-inflight-release", "")
        record.conversation = request.headers.get("x-inflight-conversation", "")
        if (deadline := request.headers.get(DEADLINE)) is not None:
            record.deadline_s = read_deadline(deadline, None, record.arrived_s)
        await route.endpoint(exchange, record)

    def upload_limit(self, method: str, path: str, headers: dict[str, str]) -> int:
        """How large a body with a file in it may be; 0 on other paths, and for whoever has no key for it."""
        if method != "POST" or path != files.PATH:
            return 0
        try:
            self._doorkeeper.identify(headers.get("authorization"), Scope.FILES)
        except InflightError:
            return 0
        return self._max_upload_bytes

    def refuse(self, status: int, message: str, path: str = "") -> Refusal:
        """Headers and body of the answer to bytes that did not become a request."""
        record = Record(_UNKNOWN, new_request_id("req"))
        self._account_for(record, status)
        headers = [("content-type", "application/json"), ("x-request-id", record.request_id)]
        return headers, shaped_for(path, error_body(status, message))

    def _account_for(self, record: Record, status: int) -> None:
        self._metrics.answered(record, status)
        if self._tracer is not None and record.trace is not None:
            if status:  # else the client left before it was told anything
                record.trace.attributes["http.response.status_code"] = status
            self._tracer.end(record.trace, record, status)
        level = logging.DEBUG if record.route in _QUIET else logging.INFO
        log.log(level, "%s", RequestLine(record, status, time.monotonic()), extra=OWN_WORDS)
        record.is_over = True


def _by_method(methods: dict[str, Route], method: str) -> Route | None:
    return methods.get(method) or (methods.get("GET") if method == "HEAD" else None)


def _new_record(found: tuple[dict[str, Route], dict[str, str]] | None, route: Route | None) -> Record:
    """The name of a route in logs and metrics is its path, of which there are only so many."""
    if found is None:
        return Record(_UNKNOWN, new_request_id("req"))
    route = route or next(iter(found[0].values()))
    return Record(route.path, new_request_id(route.request_id_prefix))


def _check_content(headers: dict[str, str], wanted: str) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != wanted:
        what = "as JSON, with Content-Type: application/json" if "json" in wanted else f"as {wanted}"
        raise HttpError(415, f"send the body {what}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "compressed bodies are not accepted")
