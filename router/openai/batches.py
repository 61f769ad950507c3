"""/v1/batches: make, list, show, cancel."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import Metadata
from router.content.batches import rows
from router.content.batches.decisions import Life, Status
from router.content.batches.rows import WINDOW_S, Batch, new_batch_id
from router.content.files.model import LONGEST_LIFE_S, SHORTEST_LIFE_S
from router.content.files.rows import find as find_file
from router.content.lookup import Page
from router.core.actions import Action
from router.core.record import Record
from router.core.tenant import Caller, Scope
from router.http.exchange import Exchange
from router.request.decoding import decode_query, decode_small, invalid
from router.request.errors import respond_json
from router.request.routes import JSON, Route
from router.store.database import StoreAccess

PATH = "/v1/batches"


class OutputExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=SHORTEST_LIFE_S, le=LONGEST_LIFE_S)]


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiresAfter | None = None


class BatchesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None


_decoder = msgspec.json.Decoder(BatchBody)


def routes(store: StoreAccess) -> list[Route]:
    batches = _Batches(store)
    add = partial(Route, takes="", answer="Batch")
    return [
        add(
            "POST",
            PATH,
            batches.make,
            "Create a batch from an uploaded file",
            body=BatchBody,
            takes=JSON,
            is_paid_later=True,
            action=Action.BATCH_WRITE,
        ),
        add(
            "GET",
            PATH,
            batches.list_all,
            "List batches",
            answer="BatchList",
            query=BatchesQuery,
            action=Action.BATCH_READ,
        ),
        add(
            "GET",
            f"{PATH}/{{batch_id}}",
            batches.show,
            "Show a batch and its progress",
            action=Action.BATCH_READ,
        ),
        add(
            "POST",
            f"{PATH}/{{batch_id}}/cancel",
            batches.cancel,
            "Cancel a batch; finished answers are kept",
            action=Action.BATCH_WRITE,
        ),
    ]


class _Batches:
    def __init__(self, store: StoreAccess) -> None:
        self._store = store

    async def make(self, exchange: Exchange, record: Record) -> None:
        body = decode_small(_decoder, exchange.request.body)
        _check_scope(record.caller, body.endpoint)
        created_s = record.began_s
        batch = Batch(
            id=new_batch_id(),
            organisation_id=record.tenant,
            key_id=record.caller.key.id,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            life=Life(Status.VALIDATING, created_s=created_s, expires_s=created_s + WINDOW_S),
            metadata=msgspec.json.encode(body.metadata).decode(),
            output_lifetime_s=body.output_expires_after.seconds if body.output_expires_after else None,
        )
        await self._store.write(partial(_insert, batch=batch), record.tenant)
        respond_json(exchange, record, batch.render())

    async def list_all(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, BatchesQuery)
        page = partial(rows.page, organisation_id=record.tenant, limit=query.limit + 1, after_id=query.after)
        found = await self._store.read(page, record.tenant)
        respond_json(exchange, record, Page.of(found, query.limit).rendered(Batch.render))

    async def show(self, exchange: Exchange, record: Record) -> None:
        batch_id = record.values["batch_id"]
        batch = await self._store.read(lambda at: rows.find(at, record.tenant, batch_id), record.tenant)
        respond_json(exchange, record, batch.render())

    async def cancel(self, exchange: Exchange, record: Record) -> None:
        batch_id = record.values["batch_id"]
        cancel = partial(rows.cancel, organisation_id=record.tenant, batch_id=batch_id, now_s=time.time())
        batch = await self._store.write(cancel, record.tenant)
        respond_json(exchange, record, batch.render())


def _insert(connection: Connection, batch: Batch) -> None:
    file = find_file(connection, batch.organisation_id, batch.input_file_id, batch.life.created_s)
    if file.purpose != "batch":
        message = f"input_file_id: {file.id} was uploaded with the purpose {file.purpose}; expected batch"
        raise invalid(message, "input_file_id")
    rows.insert(connection, batch)


def _check_scope(caller: Caller, endpoint: str) -> None:
    """A batch is run in the name of its key: it must be one that could send each line by itself."""
    scope = Scope.EMBEDDINGS if endpoint == "/v1/embeddings" else Scope.INFERENCE
    if scope not in caller.key.scopes:
        message = f"this key lacks the scope {scope.value}, which {endpoint} needs"
        raise InflightError(ErrorKind.FORBIDDEN, message, "endpoint")
