"""/v1/responses: what is answered, shown again, followed, cancelled, counted and deleted there."""

from __future__ import annotations

from typing import Annotated, NoReturn

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.images import Images
from router.content.conversations.conversation_store import ConversationStore
from router.content.conversations.cutter import image_tokens
from router.content.conversations.response_store import ResponseStore
from router.content.documents.documents import Documents
from router.content.lookup import Owner, PageQuery, page_of
from router.content.storage_quota import StorageQuota
from router.core.actions import Action
from router.core.fair_pool import unless_left
from router.core.generation import unmarked
from router.core.record import Record
from router.http.exchange import Exchange
from router.openai.background import Background, deliver
from router.openai.background_creation import BackgroundCreation
from router.openai.response_bodies import InputTokensBody, ResponseBody, decode_input_tokens, decode_response
from router.openai.response_creation import ResponseCreation
from router.request.answer import Answers
from router.request.decoding import decode_query, invalid
from router.request.errors import respond_json
from router.request.routes import Route
from router.request.token_counting import Tokenizers
from router.resume.event_log import EventLog
from router.routing.models import Registry
from router.store.database import StoreAccess

_PATH = "/v1/responses"


class ShowQuery(msgspec.Struct, frozen=True):
    """`starting_after` is the `sequence_number` of the last event that the caller has."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | None = None


class NewResponses:
    def __init__(
        self, creation: ResponseCreation, behind: BackgroundCreation, tokenizers: Tokenizers
    ) -> None:
        self._creation = creation
        self._behind = behind
        self._tokenizers = tokenizers

    async def create(self, exchange: Exchange, record: Record) -> None:
        asked = await self._creation.understand(exchange, record, decode_response)
        make = self._behind.make if asked.body.background else self._creation.make
        await make(exchange, record, asked)

    async def count(self, exchange: Exchange, record: Record) -> None:
        """Of the prompt as it would be sent, after what does not fit was dropped."""
        asked = await self._creation.understand(exchange, record, decode_input_tokens)
        preparing = self._creation.prepare(exchange, record, asked, None)
        cut = (await unless_left(preparing, exchange.on_disconnect)).cut
        counting = self._tokenizers.count_for(record.tenant, asked.model, unmarked(cut.prompt)[0])
        tokens = await unless_left(counting, exchange.on_disconnect) + image_tokens(asked.model, cut.shown)
        respond_json(exchange, record, {"object": "response.input_tokens", "input_tokens": tokens})

    async def compact(self, exchange: Exchange, record: Record) -> NoReturn:
        message = "compact is not supported; truncation: auto and conversations drop old turns instead"
        raise InflightError(ErrorKind.UNSUPPORTED, message)


class StoredResponses:
    def __init__(self, store: ResponseStore, background: Background) -> None:
        self._store = store
        self._background = background

    async def show(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, ShowQuery)
        owner, response_id = _named(record)
        run = self._background.find(owner, response_id)
        response = await self._store.find(owner, response_id) if run is None else run.response
        if not query.stream:
            respond_json(exchange, record, response)
            return
        if not response.get("background"):
            message = (
                "stream: a stored response can only be streamed if it was created with background and stream"
            )
            raise InflightError(ErrorKind.UNSUPPORTED, message, "stream")
        after = -1 if query.starting_after is None else query.starting_after
        await deliver(exchange, record, await self._background.events.follow(response_id, after))

    async def list_input(self, exchange: Exchange, record: Record) -> None:
        query = decode_query(exchange.request.query, PageQuery)
        items = await self._store.input_items(*_named(record))
        page = page_of(items, query, "Item", lambda item: item.id)
        respond_json(exchange, record, page.rendered(lambda item: item.shown))

    async def delete(self, exchange: Exchange, record: Record) -> None:
        owner, response_id = _named(record)
        await self._store.delete(owner, response_id)
        self._background.events.forget(response_id)
        if (run := self._background.find(owner, response_id)) is not None:
            run.cancel()
        respond_json(exchange, record, {"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, exchange: Exchange, record: Record) -> None:
        owner, response_id = _named(record)
        if (run := self._background.find(owner, response_id)) is not None:
            await self._background.cancelled(run)
        response = await self._store.find(owner, response_id)
        if not response.get("background"):
            raise invalid("only a response created with background can be cancelled, and this one was not")
        respond_json(exchange, record, await self._store.cancel(owner, response_id))


def _named(record: Record) -> tuple[Owner, str]:
    return Owner.of(record.caller), record.values["response_id"]


def routes(
    models: Registry,
    answers: Answers,
    documents: Documents,
    images: Images,
    store: StoreAccess,
    tokenizers: Tokenizers,
    quota: StorageQuota,
    events: EventLog,
) -> list[Route]:
    kept, conversations = ResponseStore(store, quota), ConversationStore(store, quota)
    background = Background(kept, events)
    creation = ResponseCreation(models, answers, documents, images, kept, conversations, tokenizers, quota)
    behind = BackgroundCreation(creation, kept, background, answers.permits)
    new, stored = NewResponses(creation, behind, tokenizers), StoredResponses(kept, background)
    one = f"{_PATH}/{{response_id}}"
    return [
        Route("POST", _PATH, new.create, "Answer an input, with stored state", ResponseBody, "Response", True,
              asks_model=True, action=Action.INFERENCE_RUN),
        Route("POST", f"{_PATH}/input_tokens", new.count, "Count the tokens of an input", InputTokensBody,
              "InputTokens", asks_model=True, action=Action.INFERENCE_RUN),
        Route("POST", f"{_PATH}/compact", new.compact, "Not supported: drops old turns instead", takes="",
              action=Action.INFERENCE_RUN),
        Route("GET", one, stored.show, "A response that is stored or in progress", answer="Response",
              streams=True, query=ShowQuery, action=Action.CONVERSATION_READ),
        Route("DELETE", one, stored.delete, "Delete a stored response", action=Action.CONVERSATION_WRITE),
        Route("GET", f"{one}/input_items", stored.list_input, "The input items of a stored response",
              answer="ItemList", query=PageQuery, action=Action.CONVERSATION_READ),
        Route("POST", f"{one}/cancel", stored.cancel, "Cancel a background response",
              answer="Response", takes="", action=Action.CONVERSATION_WRITE),
    ]  # fmt: skip
