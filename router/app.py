"""Finds the endpoint for a request, and makes sure that each one is answered, counted and logged."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from router import openapi
from router.admin import additions, health, now, objectives, releases, session, simulations, tenants
from router.admin.endpoint import consulted
from router.answer_cache.cached_requests import HEADER as CACHE_HEADER
from router.anthropic import messages
from router.anthropic import models as anthropic_models
from router.console import pages
from router.content.conversations.chat_store import ChatStore
from router.content.storage_quota import StorageQuota
from router.core.actions import Reach
from router.core.fair_pool import unless_left
from router.core.record import Record, new_request_id
from router.core.stages import HEADER as DEADLINE
from router.core.stages import read_deadline
from router.http.body_shares import BodyTerms
from router.http.message_head import Refused
from router.ollama import answers as ollama_answers
from router.ollama import models as ollama_models
from router.openai import (
    batches,
    chat,
    completions,
    conversations,
    embeddings,
    files,
    moderations,
    rerank,
    responses,
    stored_chats,
    tokenization,
)
from router.openai import models as model_list
from router.request.decoding import invalid
from router.request.error_shapes import Problem, shape_for
from router.request.errors import HttpError, render_error, write_error
from router.request.identity import check_scope
from router.request.routes import RouteTable
from router.resume.keyed_requests import HEADER as KEY_HEADER
from router.resume.keyed_requests import KeyedRequests
from router.tenants.rbac import Actor, allows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from python_backend.wire.tiers import Tier
    from router.core.tenant import Caller
    from router.http.exchange import Exchange, Refusal
    from router.parts import Parts
    from router.request.identity import Doorkeeper
    from router.request.routes import Route
    from router.tenants.administration import Administration

    Found = tuple[dict[str, Route], dict[str, str]]

log = logging.getLogger(__name__)

_UNKNOWN = "unknown"
_WITH_BODY = ("POST", "PUT", "PATCH")
_FORMS = ("multipart/form-data", "text/plain")
_URL_ENCODED = "application/x-www-form-urlencoded"
_BROWSER = "Mozilla/"
_NOTHING: dict[str, Route] = {}
_BY_ROLE = (Reach.TENANT, Reach.PLATFORM)


def all_routes(parts: Parts) -> list[Route]:
    """Everything that is served over HTTP, but for its own description."""
    models, answers, store, documents = parts.models, parts.answers, parts.store, parts.documents
    images = parts.images
    tenancy, quota = parts.tenancy, StorageQuota(parts.file_limits.max_bytes_per_tenant)
    chats = ChatStore(store, quota)
    return [
        *chat.routes(models, answers, documents, images, stored_chats.ChatKeeper(chats, quota)),
        *stored_chats.routes(chats),
        *completions.routes(models, answers),
        *embeddings.routes(models, answers),
        *rerank.routes(models, answers),
        *responses.routes(models, answers, documents, images, store, parts.tokenizers, quota, parts.events),
        *tokenization.routes(models, answers, parts.tokenizers),
        *moderations.routes(parts.safety),
        *conversations.routes(store, documents, quota, answers.aside),
        *anthropic_models.for_both(model_list.routes(models), models),
        *messages.routes(models, answers, images, parts.tokenizers),
        *ollama_answers.routes(models, answers, images),
        *ollama_models.routes(models),
        *files.routes(store, parts.file_limits),
        *batches.routes(store),
        *health.routes(models, parts.permits, parts.metrics, parts.metrics_open),
        *tenants.routes(tenancy, parts.prompt_log),
        *releases.routes(tenancy, has_prompt_log=parts.prompt_log is not None),
        *objectives.routes(tenancy),
        *additions.routes(parts.additions, tenancy),
        *now.routes(parts.overview, parts.recent, parts.permits, tenancy, parts.prompt_log),
        *simulations.routes(parts.simulations, store, parts.recent),
        *pages.routes(),
    ]


class App:
    """All endpoints, by path and method."""

    def __init__(self, parts: Parts, doorkeeper: Doorkeeper, routes: Iterable[Route] = ()) -> None:
        self._permits = parts.permits
        self._accounts = parts.accounts
        self._doorkeeper = doorkeeper
        self._tenancy = parts.tenancy
        self._catalogue = parts.tenancy.catalogue
        self._keyed = KeyedRequests(parts.events, parts.keyed_grace_s)
        self._cached = parts.cached
        self._max_upload_bytes = parts.file_limits.max_upload_bytes
        own = [*all_routes(parts), *session.routes(parts.tenancy.sessions, doorkeeper), *routes]
        described = openapi.routes(own, parts.models, doorkeeper)
        self._table = RouteTable(chain(parts.cascaded.wrap(own), described))

    async def __call__(
        self, exchange: Exchange, caller: Caller | None = None, tier: Tier | None = None
    ) -> Record:
        """Answers one request; with a caller, one from inside the router in the name of that caller."""
        request = exchange.request
        found: Found | None
        plain = self._table.plain.get(request.path, _NOTHING)
        if (route := plain.get(request.method)) is not None:  # as of nearly all
            request_id = new_request_id(route.request_id_prefix)
            found, record = (plain, {}), Record(route.path, request_id, id_header=route.request_id_header)
        else:
            found, route, record = self._find(request.method, request.path)
        self._accounts.begin_http(record, request.method, request.headers, found is not None)
        if tier is not None:
            record.tier, record.is_tier_given = tier, True
        if self._permits.draining:
            exchange.keep_alive = False
        try:
            headers = request.headers
            # A program that has a key is no web page.
            is_page = "origin" in headers or "sec-fetch-site" in headers or not self._catalogue.has_keys
            if is_page and caller is None:
                exchange.extra_headers = self._doorkeeper.pages.answer_headers(headers.get("origin"))
                self._doorkeeper.check_page(request.method, headers)
            await self._answer(exchange, record, found, route, caller)
        except (HttpError, InflightError) as error:
            if isinstance(error, InflightError):
                self._permits.uncount(record, error)
                if caller is None and not exchange.started:
                    await self._hold(exchange, record, error)
            write_error(exchange, record, error)
        except RecursionError:  # what could just be read may still be too deep to be written
            write_error(exchange, record, invalid("the JSON is nested too deeply"))
        except Exception as error:
            log.exception("%s failed", record.request_id)
            write_error(exchange, record, error)
        finally:
            self._accounts.end(record, exchange.status)
        return record

    async def _hold(self, exchange: Exchange, record: Record, error: InflightError) -> None:
        if hold_s := self._permits.hold_s(record, error):
            with suppress(InflightError):  # the client has left
                await unless_left(asyncio.sleep(hold_s), exchange.on_disconnect)

    def _find(self, method: str, path: str) -> tuple[Found | None, Route | None, Record]:
        plain = self._table.plain.get(path)
        found = self._table.find(path) if plain is None else (plain, {})
        route = None if found is None else found[0].get("GET" if method == "HEAD" else method)
        if route is not None:
            request_id = new_request_id(route.request_id_prefix)
            return found, route, Record(route.path, request_id, id_header=route.request_id_header)
        # The name of a route in logs and metrics is its path, of which there are only so many.
        named = _UNKNOWN if found is None else next(iter(found[0].values())).path
        return found, None, Record(named, new_request_id("req"))

    async def _answer(
        self,
        exchange: Exchange,
        record: Record,
        found: Found | None,
        route: Route | None,
        caller: Caller | None,
    ) -> None:
        request = exchange.request
        if found is None:
            shown = request.path if request.path.isprintable() and len(request.path) <= 100 else "this path"
            raise HttpError(404, f"there is nothing at {shown}")
        if route is None:
            allowed = ", ".join(found[0])
            if self._doorkeeper.pages.is_preflight(request.method, request.headers):
                exchange.respond(204, b"", self._doorkeeper.pages.preflight_headers(allowed, request.headers))
                return
            raise HttpError(405, f"this path accepts only {allowed}", (("allow", allowed),))
        if caller is not None:
            record.caller = caller
            if route.scope is not None:
                check_scope(caller, route.scope)
        elif route.scope is not None:
            record.caller = self._doorkeeper.caller_of(request.method, request.headers, route.scope)
        if route.scope is not None:
            self._permits.enter(record, route.scope, route.asks_model)
        if route.action.reach in _BY_ROLE:
            await self._check_role(exchange, record, route, found[1])
        await asyncio.sleep(0)  # in step with others, as Answers has it
        headers = request.headers
        if (
            route.takes
            and (headers.get("content-type") != route.takes or "content-encoding" in headers)
            and request.method in _WITH_BODY
        ):
            _check_content(headers, route.takes)
        elif request.body and not route.takes:
            _check_not_a_form(headers)
        record.values = found[1]
        record.user = record.caller.user.id
        record.pinned_release = headers.get("x-inflight-release", "")
        record.conversation = headers.get("x-inflight-conversation", "")
        if (deadline := headers.get(DEADLINE)) is not None:
            record.deadline_s = read_deadline(deadline, None, record.arrived_s)
        if KEY_HEADER in headers and route.takes_keys:
            await self._keyed.answer(exchange, record, route.endpoint)
        elif request.method == "GET" and route.reads_for_client:
            await unless_left(route.endpoint(exchange, record), exchange.on_disconnect)
        elif CACHE_HEADER in headers and (terms := self._cached.terms_of(exchange, record, route)):
            await self._cached.answer(exchange, record, route, terms)
        else:
            await route.endpoint(exchange, record)

    async def _check_role(
        self, exchange: Exchange, record: Record, route: Route, values: dict[str, str]
    ) -> None:
        """Refuses whoever may not do this at all, on record; an act may still refuse some of its objects."""
        actor, about = Actor.calling(record.caller, exchange.peer), route.concerns(values, record.tenant)
        if not allows(actor, route.action, about):
            target = next(reversed(values.values()), about or "")
            asked = {"asked": f"{route.method} {route.path}"}

            def refuse(admin: Administration) -> None:
                admin.check(actor, route.action, about, target, asked)

            await consulted(self._tenancy.consult(refuse, record.tenant))

    def body_terms(self, method: str, path: str, headers: dict[str, str]) -> BodyTerms:
        """Whose a large body is; raises Refused, before it is read, where its head is enough to refuse it."""
        found, route, record = self._find(method, path)
        try:
            self._doorkeeper.check_page(method, headers)
            if route is None:
                return BodyTerms("")  # the path is no secret: told when the request is there
            if route.scope is not None:
                record.caller = self._doorkeeper.caller_of(method, headers, route.scope)
                self._permits.foresee_entry(record.caller, route.scope, route.asks_model)
        except (HttpError, InflightError) as error:
            self._accounts.begin_http(record, method, headers, found is not None)
            status, body, own = render_error(record, shape_for(path, headers), error)
            self._accounts.end(record, status)
            for_pages = self._doorkeeper.pages.answer_headers(headers.get("origin"))
            raise Refused(status, str(error), ([*own, *for_pages], body)) from None
        kind = headers.get("content-type", "").lower()
        is_file = method == "POST" and path.rstrip("/") == files.PATH and kind.startswith(files.MULTIPART)
        return BodyTerms(record.tenant, self._max_upload_bytes if is_file else None)

    def refuse(self, status: int, message: str, path: str, headers: dict[str, str]) -> Refusal:
        """Headers and body of the answer to bytes that did not become a request."""
        record = Record(_UNKNOWN, new_request_id("req"))
        self._accounts.end(record, status)
        own = [("content-type", "application/json"), ("x-request-id", record.request_id)]
        for_pages = self._doorkeeper.pages.answer_headers(headers.get("origin"))
        body = shape_for(path, headers).body(Problem(status, message), record.request_id)
        return [*own, *for_pages], body


def _check_not_a_form(headers: dict[str, str]) -> None:
    """A web page may have a browser send these types anywhere without asking first.

    `curl -d` says that its JSON is a form; no page can change how its browser calls itself.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS or (kind == _URL_ENCODED and headers.get("user-agent", "").startswith(_BROWSER)):
        raise HttpError(415, "send the body as JSON, with Content-Type: application/json")


def _check_content(headers: dict[str, str], wanted: str) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != wanted:
        what = "as JSON, with Content-Type: application/json" if "json" in wanted else f"as {wanted}"
        raise HttpError(415, f"send the body {what}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "compressed bodies are not accepted")
