"""/v1/files: upload, list, show, download, delete."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.files import model, rows
from router.content.lookup import Page
from router.core.actions import Action
from router.core.fair_pool import FairPool
from router.core.record import Record
from router.http.exchange import Exchange
from router.http.upload import Upload
from router.request.decoding import decode_query, invalid
from router.request.errors import respond_encoded, respond_json
from router.request.routes import Route
from router.store.database import StoreAccess

if TYPE_CHECKING:
    from sqlalchemy import Connection

PATH = "/v1/files"
MULTIPART = "multipart/form-data"
_WAITING_EACH = 64
_RENAMED = {"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}


class FileForm(msgspec.Struct, frozen=True, kw_only=True, rename=_RENAMED):
    """What an upload carries, for those who read the description of it."""

    file: bytes
    purpose: Literal["assistants", "batch", "user_data", "vision"]
    anchor: Literal["created_at"] | None = None
    seconds: Annotated[int, Meta(ge=model.SHORTEST_LIFE_S, le=model.LONGEST_LIFE_S)] | None = None


class FilesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: Annotated[str, Meta(pattern=r"^[a-z_-]{1,32}$")] | None = None


def routes(store: StoreAccess, limits: model.FileLimits) -> list[Route]:
    files = _Files(store, limits)
    read = partial(Route, "GET", action=Action.FILE_READ, takes="")
    write = partial(Route, action=Action.FILE_WRITE)
    return [
        write("POST", PATH, files.upload, "Upload a file", body=FileForm, answer="File", takes=MULTIPART),
        read(PATH, files.list_all, "List files", answer="FileList", query=FilesQuery),
        read(f"{PATH}/{{file_id}}", files.show, "Show a file", answer="File"),
        write("DELETE", f"{PATH}/{{file_id}}", files.delete, "Delete a file", answer="FileDeleted", takes=""),
        read(f"{PATH}/{{file_id}}/content", files.download, "Download the content of a file",
             answer="application/octet-stream"),
    ]  # fmt: skip


class _Files:
    def __init__(self, store: StoreAccess, limits: model.FileLimits) -> None:
        self._store = store
        self._limits = limits
        self._reading = FairPool("uploads to be read", 2, _WAITING_EACH)

    async def upload(self, exchange: Exchange, record: Record) -> None:
        request = exchange.request
        upload = request.upload or Upload.holding(request.body)
        try:
            await upload.arrived()
            source = await self._reading.run(record.tenant, upload.open)
        except OSError as error:
            message = "this server's disk has no room for uploads at the moment"
            raise InflightError(ErrorKind.OVERLOADED, message) from error
        kind = request.headers.get("content-type", "")
        form = await self._reading.run(record.tenant, model.read_form, source, kind)
        if form.size_bytes > self._limits.max_file_bytes:
            message = f"the file has {form.size_bytes} bytes; allowed: at most {self._limits.max_file_bytes}"
            raise InflightError(ErrorKind.TOO_LARGE, message, "file")
        file = _file_of(form, record.tenant, time.time())
        source.seek(form.start_bytes)
        await rows.keep(self._store, file, source, self._limits.max_bytes_per_tenant)
        respond_json(exchange, record, file.render())

    async def list_all(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, FilesQuery)

        def listed(connection: Connection) -> bytes:
            """Made of values where they are read: there may be ten thousand of them."""
            found = rows.page(
                connection,
                record.tenant,
                time.time(),
                limit=query.limit + 1,
                after=query.after,
                ascending=query.order == "asc",
                purpose=query.purpose,
            )
            return msgspec.json.encode(Page.of(found, query.limit).rendered(model.StoredFile.render))

        respond_encoded(exchange, record, await self._store.read(listed, record.tenant))

    async def show(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, (await self._find(record)).render())

    async def download(self, exchange: Exchange, record: Record) -> None:
        file = await self._find(record)
        headers = [
            ("content-type", "application/octet-stream"),
            ("content-disposition", file.disposition()),
            ("x-content-type-options", "nosniff"),
            ("x-request-id", record.request_id),
        ]
        if exchange.request.method == "HEAD" or not file.size_bytes:
            exchange.start(200, headers, file.size_bytes)
            exchange.end()
            return
        try:
            async for piece in rows.pieces(self._store, file):
                if not exchange.started:  # not earlier: until there is a piece an error can have a status
                    exchange.start(200, headers, file.size_bytes)
                if exchange.gone:
                    break
                await exchange.send(piece)
        except InflightError:
            if not exchange.started:
                raise
            exchange.cut()
            return
        exchange.end()

    async def delete(self, exchange: Exchange, record: Record) -> None:
        file_id = record.values["file_id"]

        def delete(at: Connection) -> None:
            rows.delete(at, record.tenant, file_id, time.time())

        await self._store.write(delete, record.tenant)
        respond_json(exchange, record, {"id": file_id, "object": "file", "deleted": True})

    async def _find(self, record: Record) -> model.StoredFile:
        file_id = record.values["file_id"]

        def find(at: Connection) -> model.StoredFile:
            return rows.find(at, record.tenant, file_id, time.time())

        return await self._store.read(find, record.tenant)


def _file_of(form: model.UploadForm, organisation_id: str, now_s: float) -> model.StoredFile:
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise invalid("Missing required parameter: purpose", "purpose")
    model.check_purpose(purpose)
    anchor, seconds = (form.fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    life_s = model.lifetime_s(purpose, anchor, seconds)
    return model.StoredFile(
        id=model.new_file_id(),
        organisation_id=organisation_id,
        filename=model.clean_name(form.filename),
        purpose=purpose,
        size_bytes=form.size_bytes,
        created_s=now_s,
        expires_s=None if life_s is None else now_s + life_s,
    )
