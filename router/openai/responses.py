"""/v1/responses: what is answered, shown again and deleted there."""

from __future__ import annotations

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import Item
from router.content.conversations.response_store import ResponseStore
from router.content.documents.documents import Documents
from router.content.lookup import Owner, Page, PageQuery, missing
from router.content.storage_quota import StorageQuota
from router.core.record import Record
from router.http.exchange import Exchange
from router.openai.response_bodies import ResponseBody
from router.openai.response_creation import CreateResponse
from router.request.answer import Answers
from router.request.decoding import decode_query, invalid
from router.request.errors import respond_json
from router.request.routes import Route
from router.request.token_counting import Tokenizers
from router.routing.models import Registry
from router.store.database import StoreAccess

_PATH = "/v1/responses"


class ShowQuery(msgspec.Struct, frozen=True):
    stream: bool = False


class StoredResponses:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def show(self, exchange: Exchange, record: Record) -> None:
        if decode_query(exchange.request.query, ShowQuery).stream:
            raise InflightError(ErrorKind.UNSUPPORTED, "stream: a stored response comes whole", "stream")
        response = await self._store.find(Owner.of(record.caller), record.values["response_id"])
        respond_json(exchange, record, response)

    async def list_input(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, PageQuery)
        items = await self._store.input_items(Owner.of(record.caller), record.values["response_id"])
        page = _page(items, query)
        respond_json(exchange, record, page.rendered(lambda item: item.shown))

    async def delete(self, exchange: Exchange, record: Record) -> None:
        response_id = record.values["response_id"]
        await self._store.delete(Owner.of(record.caller), response_id)
        respond_json(exchange, record, {"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, exchange: Exchange, record: Record) -> None:
        await self._store.find(Owner.of(record.caller), record.values["response_id"])
        raise invalid("only a response made with background can be cancelled, and there are none here")


def _page(items: list[Item], query: PageQuery) -> Page[Item]:
    ordered = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        places = [index for index, item in enumerate(ordered) if item.id == query.after]
        if not places:
            raise missing("Item", query.after, "after")
        ordered = ordered[places[0] + 1 :]
    return Page.of(ordered, query.limit)


def routes(
    models: Registry,
    answers: Answers,
    documents: Documents,
    store: StoreAccess,
    tokenizers: Tokenizers,
    quota: StorageQuota,
) -> list[Route]:
    create = CreateResponse(models, answers, documents, store, tokenizers, quota)
    stored = StoredResponses(ResponseStore(store, quota))
    one = f"{_PATH}/{{response_id}}"
    return [
        Route("POST", _PATH, create, "Answer, remembering what was said", ResponseBody, "Response", True,
              asks_model=True),
        Route("GET", one, stored.show, "A response that was stored", answer="Response", query=ShowQuery),
        Route("DELETE", one, stored.delete, "Delete a stored response"),
        Route("GET", f"{one}/input_items", stored.list_input, "What a stored response was asked",
              answer="ItemList", query=PageQuery),
        Route("POST", f"{one}/cancel", stored.cancel, "Refused: nothing runs in the background", takes=""),
    ]  # fmt: skip
