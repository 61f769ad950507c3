"""What the router does now, as JSON and as a stream, and how the last requests went."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.admin.endpoint import consulted
from router.core.actions import Action
from router.http.sse import HEADERS, one_line
from router.request.decoding import decode_query
from router.request.errors import respond_json
from router.request.routes import Route
from router.telemetry.recent_requests import Wanted, summary, waterfall
from router.tenants.rbac import Actor, allows

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.permit import Permits
    from router.telemetry.overview.overview import Overview
    from router.telemetry.prompt_log import PromptLog
    from router.telemetry.recent_requests import EndedRequest, RecentRequests
    from router.tenants.tenancy import Tenancy

# A stream ends then, and whoever may still look asks again: a key that was revoked is told nothing more.
STREAM_S = 60.0
_RETRY = b"retry: 200\n\n"
_EVENTS = "text/event-stream"
_LOOKS_S = (0.02, 0.1, 0.3)


class RequestsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tenant: Annotated[str, Meta(max_length=64)] | None = None
    model: Annotated[str, Meta(max_length=64)] | None = None
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    failed: bool = False
    slower_than_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0.0
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class NowDoor:
    def __init__(
        self,
        overview: Overview,
        recent: RecentRequests,
        permits: Permits,
        tenancy: Tenancy,
        prompt_log: PromptLog | None,
    ) -> None:
        self._overview = overview
        self._recent = recent
        self._permits = permits
        self._tenancy = tenancy
        self._prompt_log = prompt_log

    async def show(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, self._overview.now())

    async def stream(self, exchange: Exchange, record: Record) -> None:
        overview, left = self._overview, asyncio.Event()
        exchange.on_disconnect(left.set)
        exchange.start(200, [*HEADERS, ("x-request-id", record.request_id)])
        ends_s = time.monotonic() + STREAM_S
        overview.watch()
        try:
            await exchange.send(_RETRY)
            while not (left.is_set() or self._permits.draining or time.monotonic() >= ends_s):
                await exchange.send(b"data: %b\n\n" % one_line(await overview.next()))
        finally:
            overview.unwatch()
        exchange.end()

    async def list_requests(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, RequestsQuery)
        tenant = query.tenant if record.caller.user.platform_admin else query.tenant or record.tenant
        _require(record, Action.REQUEST_READ, tenant)
        wanted = Wanted(tenant, query.model, query.status, query.failed, query.slower_than_ms / 1e3)
        found = [summary(each) for each in self._recent.newest(wanted, query.limit)]
        respond_json(exchange, record, {"object": "list", "data": found})

    async def show_request(self, exchange: Exchange, record: Record) -> None:
        ended = await self._find(record)
        _require(record, Action.REQUEST_READ, ended.record.tenant)
        respond_json(exchange, record, waterfall(ended))

    async def show_content(self, exchange: Exchange, record: Record) -> None:
        """What the prompt log has of it, for who may read it; that somebody did is in the audit log."""
        ended, actor = await self._find(record), Actor.calling(record.caller, exchange.peer)
        tenant, request_id = ended.record.tenant, ended.record.request_id
        await consulted(
            self._tenancy.administer(
                lambda admin: admin.note_content_read(actor, tenant, request_id), record.tenant
            )
        )
        if self._prompt_log is None:
            raise InflightError(ErrorKind.NOT_FOUND, "prompts are not logged here: prompt_log_dir is not set")
        at_s = time.time() - time.monotonic() + ended.ended_s
        found = await asyncio.to_thread(self._prompt_log.find, tenant, request_id, at_s)
        if found is None:
            raise InflightError(
                ErrorKind.NOT_FOUND,
                "the prompt log has no entry for this request: it was not logged, or is deleted by now",
            )
        shown = {"id": request_id, "prompts": found.prompts, "answers": found.answers}
        respond_json(exchange, record, {"object": "request.content", "at_s": found.at_s, **shown})

    async def show_own(self, exchange: Exchange, record: Record) -> None:
        """Of the same user, through whichever key."""
        ended = await self._find(record)
        if ended.record.caller.user.id != record.caller.user.id:
            raise _not_found()
        respond_json(exchange, record, waterfall(ended))

    async def _find(self, record: Record) -> EndedRequest:
        """A request is noted when its last byte is out: whoever has read that may ask a moment too soon."""
        for wait_s in (*_LOOKS_S, None):
            found = self._recent.find(record.values["request"])
            if found is not None:
                return found
            if wait_s is not None:
                await asyncio.sleep(wait_s)
        raise _not_found()


def _not_found() -> InflightError:
    message = "request not found among the latest ones that this router answered"
    return InflightError(ErrorKind.NOT_FOUND, message)


def _require(record: Record, action: Action, tenant: str | None) -> None:
    if not allows(Actor.calling(record.caller, ""), action, tenant):
        raise InflightError(ErrorKind.FORBIDDEN, f"this key has no permission for {action.label}")


def routes(
    overview: Overview,
    recent: RecentRequests,
    permits: Permits,
    tenancy: Tenancy,
    prompt_log: PromptLog | None,
) -> list[Route]:
    door = NowDoor(overview, recent, permits, tenancy, prompt_log)
    return [
        Route("GET", "/admin/now", door.show, "What the router is doing now, and its last minutes",
              action=Action.NOW_READ),
        Route("GET", "/admin/now/stream", door.stream, "The same as a stream, each second",
              answer=_EVENTS, action=Action.NOW_READ),
        Route("GET", "/admin/requests", door.list_requests, "The latest requests, newest first",
              action=Action.REQUEST_READ, query=RequestsQuery),
        Route("GET", "/admin/requests/{request}", door.show_request, "A request, stage by stage",
              action=Action.REQUEST_READ),
        Route("GET", "/admin/requests/{request}/content", door.show_content,
              "The logged prompts and answers of a request, redacted",
              action=Action.CONTENT_READ),
        Route("GET", "/v1/requests/{request}", door.show_own, "A request of your own, stage by stage",
              action=Action.REQUEST_READ_OWN),
    ]  # fmt: skip
